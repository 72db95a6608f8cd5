"""RecallMessage: a delayed message is taken back at the broker that its handle names.

Rule: RecallMessageActivity and ProducerProcessor, 5.5.0.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketspark.client.connection import client_api
from rocketspark.errors import NotSent, ProtocolError
from rocketspark.protocol.timers import decode_handle
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.call import Call
from rocketspark.proxy.calls.statuses import Refused, status
from rocketspark.proxy.messages import DELAY
from rocketspark.proxy.names import checked_topic
from rocketspark.proxy.producing.send import check_type, timeout_ms_of
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import Code


class Recalls:
    """The recalls of one proxy."""

    def __init__(self, brokers: Brokers, *, check_types: bool = True) -> None:
        self._brokers = brokers
        self._check_types = check_types

    async def recall_message(self, call: Call, request: Any) -> Any:
        """Serve RecallMessage. Raises Refused, RocketSparkError."""
        topic = checked_topic(request.topic.name)
        if self._check_types:
            await check_type(self._brokers, topic, DELAY)
        try:
            handle = decode_handle(request.recall_handle)
        except ProtocolError as e:
            raise Refused(Code.INTERNAL_SERVER_ERROR, str(e)) from None
        timeout_ms = timeout_ms_of(call)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                peer = await self._brokers.peer(handle.broker_name)
        except TimeoutError:
            raise NotSent(f"no connection to broker {handle.broker_name} in time") from None
        message_id = await client_api.recall(peer, topic, request.recall_handle, timeout_ms=timeout_ms)
        return messages.RecallMessageResponse(status=status(Code.OK), message_id=message_id)
