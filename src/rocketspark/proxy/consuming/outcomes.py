"""What becomes of a message that was given out, named by its handle: AckMessage, ChangeInvisibleDuration and
ForwardMessageToDeadLetterQueue, and what the broker is told of it.

Rule: a handle that the proxy renewed meanwhile is replaced by the one that holds now; the entries of an acknowledgement
have outcomes of their own (AckMessageActivity and its neighbours, 5.5.0). Requests to a broker leave at once, without a
task each, if its connection is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rocketspark.client.connection import pop_api
from rocketspark.errors import FrameError
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.call import Call
from rocketspark.proxy.checks import TURN, checked_group, checked_topic
from rocketspark.proxy.consuming.handle_calls import HandleCalls, Held, changed, check_valid, now_ms, read_handle
from rocketspark.proxy.consuming.renewals import Renewal, Renewals
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused, code_of_remoting, status, status_of
from rocketspark.transport.request_frames import Reply


def duration_ms(duration: Any) -> int:
    """Return a protobuf Duration in ms; it may be negative or beyond the legal range."""
    return int(duration.seconds * 1000 + duration.nanos // 1_000_000)


OK = status(Code.OK)
NOT_ACKED = "ack failed: status is abnormal"


class Outcomes:
    """Serves AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue. `is_there`: tells whether the
    client of an identity is connected.
    """

    def __init__(
        self,
        settings: ProxySettings,
        brokers: Brokers,
        calls: HandleCalls,
        renewals: Renewals,
        is_there: Callable[[str], bool],
    ) -> None:
        self._settings, self._brokers, self._is_there = settings, brokers, is_there
        self._calls, self._renewals = calls, renewals

    # -- acknowledgements ----------------------------------------------------------------------------------------

    async def ack_message(self, call: Call, request: Any) -> Any:
        """Serve AckMessage. Raises Refused."""
        topic, group = checked_topic(request.topic.name), checked_group(request.group.name)
        entries = request.entries
        if not entries:
            return messages.AckMessageResponse(status=status(Code.INTERNAL_SERVER_ERROR, "ack message result is empty"))
        # Brokers take no batch of them for lite topics.
        together = self._settings.batch_ack and not any(entry.lite_topic for entry in entries)
        ack = self._ack_together if together else self._ack_each
        answer = messages.AckMessageResponse()
        codes = set()
        for at in range(0, len(entries), TURN):
            if at:
                # Entries that are refused at once wait for nothing.
                await asyncio.sleep(0)
            part = entries[at : at + TURN]
            for entry, outcome in zip(part, await ack(call.identity, group, topic, part), strict=True):
                codes.add(outcome.code)
                answer.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=outcome)
        answer.status.CopyFrom(status(Code(codes.pop()) if len(codes) == 1 else Code.MULTIPLE_RESULTS))
        return answer

    async def _held(self, client: str, group: str, topic: str, named: Any) -> tuple[Held, Renewal | None]:
        """Return the message that a handle names, with the handle that holds now, and its renewal, which ends.
        `named`: what has the handle and perhaps a lite topic. Raises Refused 40013.
        """
        given = Held(group, topic, read_handle(named.receipt_handle), named.lite_topic)
        renewal = await self._renewals.take_renewal(client, given)
        return (given if renewal is None else renewal.held), renewal

    def _not_told(self, client: str, renewal: Renewal | None, error: BaseException) -> None:
        """Go on renewing a message whose broker could not be told of it, or not in time: its client may tell again."""
        refused = isinstance(error, Refused) and error.code == Code.INVALID_RECEIPT_HANDLE
        if renewal is not None and not refused and self._is_there(client):
            self._renewals.restore(client, renewal)

    async def _ack_each(self, client: str, group: str, topic: str, entries: Sequence[Any]) -> list[Any]:
        """Return the status of each entry; each is a request of its own, all of them under way at once."""
        begun: list[tuple[Awaitable[Reply] | Exception, Renewal | None]] = []
        outcomes: list[Any] = []
        try:
            for entry in entries:
                renewal = None
                try:
                    held, renewal = await self._held(client, group, topic, entry)
                    begun.append((self._calls.ack(held), renewal))
                except Exception as e:
                    begun.append((e, renewal))
            for one, renewal in begun:
                try:
                    if isinstance(one, Exception):
                        raise one
                    outcomes.append(_ack_status(await one))
                except Exception as e:
                    self._not_told(client, renewal, e)
                    outcomes.append(status_of(e))
        except BaseException as e:
            # Its client waits no more.
            for _, renewal in begun[len(outcomes) :]:
                self._not_told(client, renewal, e)
            raise
        return outcomes

    async def _ack_together(self, client: str, group: str, topic: str, entries: Sequence[Any]) -> list[Any]:
        """Return the status of each entry; those of one broker are one request."""
        outcomes: list[Any] = [None] * len(entries)
        brokers: dict[str, list[tuple[int, Held, Renewal | None]]] = {}
        at_ms = now_ms()
        try:
            for at, entry in enumerate(entries):
                try:
                    held, renewal = await self._held(client, group, topic, entry)
                    check_valid(held.handle, at_ms)
                    brokers.setdefault(held.handle.broker_name, []).append((at, held, renewal))
                except Exception as e:
                    outcomes[at] = status_of(e)
            for broker_name, listed in brokers.items():
                try:
                    peer = await self._brokers.peer(broker_name)
                    await pop_api.ack_all(peer, group, broker_name, [(topic, held.handle) for _, held, _ in listed])
                    found = OK
                except Exception as e:
                    for _, _, renewal in listed:
                        self._not_told(client, renewal, e)
                    found = status_of(e)
                for at, _, _ in listed:
                    outcomes[at] = found
        except BaseException as e:
            for at, _, renewal in (one for listed in brokers.values() for one in listed):
                if outcomes[at] is None:
                    self._not_told(client, renewal, e)
            raise
        return outcomes

    # -- others --------------------------------------------------------------------------------------------------

    async def change_invisible_duration(self, call: Call, request: Any) -> Any:
        """Serve ChangeInvisibleDuration. Raises Refused, RocketSparkError."""
        topic, group = checked_topic(request.topic.name), checked_group(request.group.name)
        invisible_ms, most_ms = duration_ms(request.invisible_duration), self._settings.invisible_ms_max
        if invisible_ms < 0:
            raise Refused(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small: {invisible_ms} ms is below 0")
        if invisible_ms > most_ms > 0:
            text = f"the invisibleTime is too large: {invisible_ms} ms, at most {most_ms} are allowed"
            raise Refused(Code.ILLEGAL_INVISIBLE_TIME, text)
        held, renewal = await self._held(call.identity, group, topic, request)
        try:
            reply = await self._calls.change(held, invisible_ms, suspend=request.suspend)
        except BaseException as e:
            self._not_told(call.identity, renewal, e)
            raise
        if reply.code:
            text = "changeInvisibleDuration failed: status is abnormal"
            return messages.ChangeInvisibleDurationResponse(status=status(Code.INTERNAL_SERVER_ERROR, text))
        try:
            handle = changed(held.handle, reply)
        except FrameError as e:
            raise Refused(Code.INTERNAL_SERVER_ERROR, f"the broker told no new handle: {e}") from None
        return messages.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle.encode())

    async def forward(self, call: Call, request: Any) -> Any:
        """Serve ForwardMessageToDeadLetterQueue. Raises Refused, RocketSparkError."""
        topic, group = checked_topic(request.topic.name), checked_group(request.group.name)
        held, renewal = await self._held(call.identity, group, topic, request)
        try:
            reply = await self._calls.forward(held, request.message_id)
        except BaseException as e:
            self._not_told(call.identity, renewal, e)
            raise
        return messages.ForwardMessageToDeadLetterQueueResponse(
            status=status(code_of_remoting(reply.code), reply.remark or "" if reply.code else "")
        )


def _ack_status(reply: Reply) -> Any:
    return status(Code.INTERNAL_SERVER_ERROR, NOT_ACKED) if reply.code else OK
