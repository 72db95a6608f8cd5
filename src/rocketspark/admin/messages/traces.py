"""What became of a message: the traces that clients wrote of it, and which groups have consumed it.

Rule of the tracks: messageTrackDetail of RocketMQ's tools, 5.x; it tells what a group's committed offset says.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial

import msgspec

from rocketspark.admin.messages.search import SearchOperations
from rocketspark.client.connection import admin_api, client_api, group_api
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol import trace

# As many as one answer of a broker's index has.
TRACES_MAX = 64
CONTEXTS = {0: "success", 1: "timeout", 2: "exception", 3: "returned null", 4: "failed"}
KINDS = {trace.NORMAL: "normal", trace.HALF: "half", trace.COMMIT: "commit", trace.DELAY: "delay"}


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a message, as a client recorded it. `kind`: sent, received, consumed or ended (a transaction).

    `client`: its address; `cost_ms`: how long it took; `retry_times`: of a delivery; `result`: of a consumed one
    success, timeout, exception, returned null or failed, of an ended one its state; `request_id`: of a delivery, the
    same in its end; `message_kind`: of a sent one normal, half, commit or delay.
    """

    kind: str
    time_ms: int
    group: str
    client: str
    success: bool = True
    cost_ms: int = 0
    retry_times: int = 0
    result: str = ""
    request_id: str = ""
    message_kind: str = ""
    topic: str = ""
    store_host: str = ""


class MessageTrace(msgspec.Struct, frozen=True):
    """All events that clients recorded of a message, oldest first; `unread`: records that could not be read."""

    message_id: str
    events: list[TraceEvent]
    unread: int = 0


class TrackType(StrEnum):
    """Whether a group has consumed a message, as RocketMQ's tools name it."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    PULL = "PULL"
    UNKNOWN = "UNKNOWN"


class MessageTrack(msgspec.Struct, frozen=True):
    """Whether a group has consumed a message; `why`: what kept that from being known."""

    group: str
    track: TrackType
    why: str = ""


class TraceOperations(SearchOperations):
    """The part of AsyncAdmin that tells what became of a message."""

    async def trace_message(
        self,
        message_id: str,
        *,
        trace_topic: str = trace.TOPIC,
        since_ms: int = 0,
        until_ms: int = client_api.TIMES_END_MS,
    ) -> MessageTrace:
        """Return what producers and consumers recorded of a message in their traces, by its unique id.

        `trace_topic`: where they write it; `since_ms`, `until_ms`: when that was stored. Without traces there are no
        events. Raises RouteNotFound where there is no such topic.
        """
        found = await self._query(trace_topic, message_id, count_max=TRACES_MAX, begin_ms=since_ms, end_ms=until_ms)
        events: list[TraceEvent] = []
        unread = 0
        for message in found:
            for record in trace.decode_each(message.body.decode("utf-8", "replace")):
                if isinstance(record, trace.Broken):
                    unread += 1
                elif not isinstance(record, trace.Unknown) and message_id in record.message_id.split(","):
                    events.append(_event(record, message))
        return MessageTrace(message_id, in_order(events), unread)

    async def track_message(self, message: ReceivedMessage) -> list[MessageTrack]:
        """Return, for each group that subscribes to a message's topic or has offsets there, whether it consumed it."""
        groups = await self._groups_of(message.topic)
        return list(await asyncio.gather(*(self._track(group, message) for group in groups)))

    async def _groups_of(self, topic: str) -> list[str]:
        route = await self._routes.refresh(topic)
        peers = [await self._broker(broker.master) for broker in route.brokers if broker.master]
        asked = (admin_api.groups_of_topic(peer, topic, timeout_ms=self._timeout_ms) for peer in peers)
        return sorted(set().union(*await asyncio.gather(*asked)))

    async def _track(self, group: str, message: ReceivedMessage) -> MessageTrack:
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        try:
            peer = await self._broker(await self._routes.find_readable(queue))
            members = await group_api.connections(peer, group, timeout_ms=self._timeout_ms)
            if members is None:
                return MessageTrack(group, TrackType.NOT_ONLINE)
            if members.consume_type == "CONSUME_ACTIVELY":
                return MessageTrack(group, TrackType.PULL)
            if members.message_model == "BROADCASTING":
                return MessageTrack(group, TrackType.CONSUME_BROADCASTING)
            committed = await client_api.query_consumer_offset(
                peer, queue, group, zero_if_not_found=False, timeout_ms=self._timeout_ms
            )
        except RocketSparkError as e:
            return MessageTrack(group, TrackType.UNKNOWN, str(e))
        if (committed or 0) <= message.queue_offset:
            return MessageTrack(group, TrackType.NOT_CONSUME_YET)
        wanted = members.subscription_table.get(message.topic)
        tags = () if wanted is None else wanted.tags_set
        if not tags or "*" in tags or message.tag in tags:
            return MessageTrack(group, TrackType.CONSUMED)
        return MessageTrack(group, TrackType.CONSUMED_BUT_FILTERED)


def in_order(events: list[TraceEvent]) -> list[TraceEvent]:
    """Return events by time; older clients do not tell when a delivery ended: its begin and its cost do."""
    begun = {(e.request_id, e.client): e for e in events if e.kind == "received"}
    told = []
    for event in events:
        begin = begun.get((event.request_id, event.client))
        if event.kind == "consumed" and begin is not None:
            time_ms = event.time_ms or begin.time_ms + event.cost_ms
            event = msgspec.structs.replace(event, time_ms=time_ms, group=event.group or begin.group)
        told.append(event)
    order = {"sent": 0, "ended": 1, "received": 2, "consumed": 3}
    return sorted(told, key=lambda e: (e.time_ms, order[e.kind]))


def _event(record: trace.Trace, stored: ReceivedMessage) -> TraceEvent:
    client = stored.born_host.rpartition(":")[0]
    event = partial(TraceEvent, time_ms=record.time_ms, group=record.group, client=client)
    if isinstance(record, trace.Published):
        return event(
            kind="sent",
            success=record.success,
            cost_ms=record.cost_ms,
            message_kind=KINDS.get(record.kind, str(record.kind)),
            topic=record.topic,
            store_host=record.store_host,
        )
    if isinstance(record, trace.Received):
        return event(
            kind="received",
            retry_times=record.retry_times,
            request_id=record.request_id,
        )
    if isinstance(record, trace.Consumed):
        return event(
            kind="consumed",
            success=record.success,
            cost_ms=record.cost_ms,
            result=CONTEXTS.get(record.context, f"code {record.context}"),
            request_id=record.request_id,
        )
    return event(
        kind="ended",
        result=record.state,
        topic=record.topic,
        store_host=record.store_host,
        message_kind=KINDS.get(record.kind, str(record.kind)),
    )
