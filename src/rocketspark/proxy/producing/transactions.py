"""EndTransaction, and the recovery of orphans: a broker's question goes to a producer that is there, over Telemetry.

Rule: an end is told to the broker that has the half message, which answers nothing; if it gets lost, the broker asks
about the transaction. Where the half message lies is known from its send or from the broker's question; else it is
looked for in the brokers' indexes, unless this proxy has told its end before (EndTransactionActivity and
ProxyClientRemotingProcessor, 5.5.0).
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketspark.client.connection import client_api
from rocketspark.errors import NotSent
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.headers import EndTransactionHeader
from rocketspark.protocol.message import sysflags
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.call import Call
from rocketspark.proxy.calls.statuses import Refused, status
from rocketspark.proxy.names import checked_topic
from rocketspark.proxy.producing.half_messages import find_half_message
from rocketspark.proxy.producing.send import timeout_ms_of
from rocketspark.proxy.producing.transaction_data import HalfPlace, TransactionData, monotonic_ms
from rocketspark.proxy.producing.validation import is_blank
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import Code

log = LimitedLog("rocketspark.proxy")

# Numbers of messaging.proto: TransactionResolution and TransactionSource.
_OUTCOMES = {1: sysflags.TRANSACTION_COMMIT, 2: sysflags.TRANSACTION_ROLLBACK}
_SERVER_CHECK = 2


class Transactions:
    """The ends of one proxy's transactions."""

    def __init__(self, brokers: Brokers, data: TransactionData) -> None:
        self._brokers = brokers
        self._data = data

    async def end_transaction(self, call: Call, request: Any) -> Any:
        """Serve EndTransaction. Raises Refused, RocketSparkError."""
        topic = checked_topic(request.topic.name)
        transaction_id = request.transaction_id
        if is_blank(transaction_id):
            raise Refused(Code.INVALID_TRANSACTION_ID, "transaction id: it is blank")
        outcome = _OUTCOMES.get(request.resolution, 0)
        timeout_ms = timeout_ms_of(call)
        place = self._data.take(topic, transaction_id, monotonic_ms())
        if place is None:
            place = await self._find(topic, transaction_id, timeout_ms)
        header = EndTransactionHeader(
            topic=topic,
            producer_group=topic,
            half_offset=place.half_offset,
            physical_offset=place.physical_offset,
            outcome=outcome,
            from_check=request.source == _SERVER_CHECK,
            message_id=request.message_id,
            transaction_id=transaction_id,
            broker_name=place.broker_name,
        )
        await self._tell(topic, place, header, timeout_ms)
        return messages.EndTransactionResponse(status=status(Code.OK))

    async def _find(self, topic: str, transaction_id: str, timeout_ms: float) -> HalfPlace:
        place = None
        if not self._data.was_ended(topic, transaction_id):
            place = await find_half_message(self._brokers, topic, transaction_id, timeout_ms)
            # Another call may have found it meanwhile.
        if place is None or self._data.was_ended(topic, transaction_id):
            raise Refused(Code.INTERNAL_SERVER_ERROR, f"cannot found transaction data: {shown(transaction_id)}")
        return place

    async def _tell(self, topic: str, place: HalfPlace, header: EndTransactionHeader, timeout_ms: float) -> None:
        """Tell the broker; if that fails, the half message can be ended again."""
        transaction_id = header.transaction_id or ""
        if header.outcome:
            # Before any wait: what comes in between finds it ended.
            self._data.note_end(topic, transaction_id, place.broker_name, monotonic_ms())
        try:
            peer = self._brokers.open_peer(place.broker_name)
            if peer is None:
                async with asyncio.timeout(timeout_ms / 1000):
                    peer = await self._brokers.peer(place.broker_name)
            client_api.end_transaction(peer, header)
        except BaseException as e:
            self._data.forget_end(topic, transaction_id, place.broker_name)
            self._data.add(topic, transaction_id, place, monotonic_ms())
            if isinstance(e, TimeoutError):
                text = f"no connection to broker {place.broker_name} in time: the end was not sent"
                raise NotSent(text) from None
            raise
        if not header.outcome:
            # It is as open as before.
            self._data.add(topic, transaction_id, place, monotonic_ms())
