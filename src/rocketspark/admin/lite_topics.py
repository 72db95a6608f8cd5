"""An operator's look at lite topics: which a topic has, who subscribed to one, and how far groups are behind in them.

Rule: the requests are RocketMQ 5.5's; names are told by brokers of ours alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

import msgspec

from rocketspark.admin.cluster_client import BrokerState, ClusterClient, check_name
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, group_api, lite_api
from rocketspark.errors import ServerError, UsageError
from rocketspark.protocol import lite_topics
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.lite_bodies import LiteGroupInfo, LiteTopicInfo, ParentTopicInfo
from rocketspark.transport.peer import Peer

T = TypeVar("T")
LIMIT_MAX = 1000
# Of a broker that lists no names: what is asked to find some.
CLIENTS_ASKED_MAX = 50
NAMES_MAX = 1000


class LiteTopicRow(msgspec.Struct, frozen=True, order=True):
    """A lite topic in a list. Offsets: `min_offset` of the oldest message, `max_offset` of the next one; `newest_ms`:
    when the newest message was stored, in ms since 1970, 0 for none; `subscribers`: how many clients subscribed to it.
    """

    name: str
    broker_name: str
    min_offset: int
    max_offset: int
    newest_ms: int
    subscribers: int


class LiteTopicList(msgspec.Struct, frozen=True):
    """Lite topics of a topic, by name.

    `expiration_minutes`: minutes after its newest message in which one is removed, -1: never; `groups`: those that are
    bound to the topic; `count`: how many lite topics there are; `more`: whether others come after these by name;
    `is_whole`: False where a broker lists no names, as RocketMQ's: then some are missing.
    """

    topic: str
    expiration_minutes: int
    groups: tuple[str, ...]
    count: int
    topics: tuple[LiteTopicRow, ...]
    more: bool
    is_whole: bool


class LiteSubscriber(msgspec.Struct, frozen=True, order=True):
    """A client that subscribed to a lite topic; "*" stands for all of a group that reads every lite topic."""

    group: str
    client_id: str


class LiteProgress(msgspec.Struct, frozen=True, order=True):
    """How far a group is in a lite topic. `offset`: of the next message that it consumes, None before its first one;
    `lag`: messages that it has not consumed yet, None where that is not known; `waiting_since_ms`: when the oldest of
    them was stored, -1 if there is none.
    """

    group: str
    offset: int | None
    lag: int | None
    waiting_since_ms: int


class LiteTopicState(msgspec.Struct, frozen=True, order=True):
    """A lite topic on a broker. Fields as of LiteTopicRow; `gets_messages`: whether sends of it go to this broker."""

    topic: str
    name: str
    broker_name: str
    min_offset: int
    max_offset: int
    newest_ms: int
    gets_messages: bool
    subscribers: tuple[LiteSubscriber, ...]
    groups: tuple[LiteProgress, ...]


class LiteLagRow(msgspec.Struct, frozen=True, order=True):
    """A lite topic in which a group is behind: by how many messages, and since when the oldest of them is stored, in ms
    since 1970, -1 if that is not known.
    """

    name: str
    broker_name: str
    lag: int
    waiting_since_ms: int


class LiteGroupLag(msgspec.Struct, frozen=True):
    """How far a group is behind in all lite topics of its topic, and those in which it is farthest behind, first.
    `waiting_since_ms`: when the oldest message that brokers told of was stored, in ms since 1970, -1 for none.
    """

    group: str
    topic: str
    lag: int
    waiting_since_ms: int
    topics: tuple[LiteLagRow, ...]


class LiteClientState(msgspec.Struct, frozen=True, order=True):
    """What a client of a group has at a broker. `count`: lite topics that it subscribed to, of which `names` has some;
    `seen_ms`: when it last asked for messages, in ms since 1970, -1 if the broker does not know.
    """

    broker_name: str
    client_id: str
    group: str
    topic: str
    count: int
    seen_ms: int
    names: tuple[str, ...]


class LiteParent(msgspec.Struct, frozen=True, order=True):
    """A topic with lite topics, the minutes after its newest message in which one is removed, -1: never, and the groups
    that are bound to it.
    """

    topic: str
    expiration_minutes: int
    groups: tuple[str, ...]


class LiteBrokerState(msgspec.Struct, frozen=True):
    """How much a broker has of lite topics. `light_queues`: lite topics and other light queues, at most
    `light_queues_max`; `subscriptions`: of a client and a lite topic each; `clients`: those with notes of lite topics
    that have new messages; `popped`: queues of a group of which messages are popped and not acknowledged; `offsets`:
    queues of a group with an offset; `topics`: by name.
    """

    broker_name: str
    light_queues: int
    light_queues_max: int
    subscriptions: int
    clients: int
    popped: int
    offsets: int
    topics: tuple[LiteParent, ...]


class LiteTopicOperations(ClusterClient):
    """The operations on lite topics, a part of AsyncAdmin."""

    async def _listed(
        self, master: BrokerState, topic: str, part: str, after: str, limit: int
    ) -> tuple[ParentTopicInfo, list[LiteTopicRow], bool]:
        """Return what a master tells of a topic, those of its lite topics that are asked for, and if they are all."""
        peer = await self._broker(master.address)
        # One more tells whether there are others.
        info = await self._of_lite(
            topic, lite_api.parent_info(peer, topic, limit + 1, after, part, timeout_ms=self._timeout_ms)
        )
        name = master.broker_name
        if info.listed is not None:
            rows = [
                LiteTopicRow(
                    *(each.lite_topic, name, each.min_offset, each.max_offset),
                    *(each.last_update_timestamp, each.subscriber_count),
                )
                for each in info.listed
            ]
            return info, rows, len(rows) == info.lite_topic_count or len(rows) > limit or bool(after or part)
        names = sorted(n for n in await self._lite_names(peer, topic, info.groups or ()) if n > after and part in n)
        rows = await asyncio.gather(*(self._lite_row(peer, name, topic, each) for each in names[: limit + 1]))
        return info, rows, len(names) == info.lite_topic_count

    async def list_lite_topics(self, topic: str, *, part: str = "", after: str = "", limit: int = 100) -> LiteTopicList:
        """Return lite topics of a topic, by name; some of RocketMQ's brokers, which list none: those that groups are
        behind in, or members subscribed to.

        Args:
            part: only those with this in their names.
            after: only those whose names come after this one.
            limit: how many at most, 1 to 1000; a few more if several brokers have the last one.

        Raises UsageError for a topic that has no lite topics, RouteNotFound, or what a broker raises.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise UsageError(f"limit {limit} is not from 1 to {LIMIT_MAX}")
        masters = await self._lite_masters(topic)
        told = await asyncio.gather(*(self._listed(master, topic, part, after, limit) for master in masters))
        rows = sorted(row for _, found, _ in told for row in found)
        last = rows[limit - 1].name if len(rows) > limit else None
        shown = [row for row in rows if last is None or row.name <= last]
        infos = [info for info, _, _ in told]
        return LiteTopicList(
            topic,
            infos[0].ttl,
            tuple(sorted({group for info in infos for group in info.groups or ()})),
            sum(info.lite_topic_count for info in infos),
            tuple(shown),
            len(shown) < len(rows),
            all(whole for _, _, whole in told),
        )

    async def show_lite_topic(self, topic: str, name: str) -> list[LiteTopicState]:
        """Return a lite topic on each broker that has messages of it or subscribers: its offsets, who subscribed to it,
        and how far each group is. Raises UsageError if there is none, RouteNotFound, or what a broker raises.
        """

        async def look(target: BrokerState) -> LiteTopicState | None:
            peer = await self._broker(target.address)
            info = await self._of_lite(topic, lite_api.topic_info(peer, topic, name, timeout_ms=self._timeout_ms))
            offsets = info.topic_offset
            if (offsets is None or offsets.max_offset <= 0) and not info.subscriber:
                return None
            parent = await lite_api.parent_info(peer, topic, timeout_ms=self._timeout_ms)
            groups = await asyncio.gather(*(self._lite_progress(peer, each, name) for each in parent.groups or ()))
            return _state(target.broker_name, topic, name, info, groups)

        told = await asyncio.gather(*map(look, await self._lite_masters(topic)))
        if not (found := sorted(each for each in told if each is not None)):
            raise UsageError(f"topic {topic!r} has no lite topic {name!r}: it may have expired")
        return found

    async def lite_group_lag(self, group: str, *, limit: int = 20) -> LiteGroupLag:
        """Return how far a group is behind in the lite topics of the topic that it is bound to.

        `limit`: lite topics that are named, 1 to 1000. Raises UsageError for a group that is not bound to a topic, or
        what a broker raises.
        """
        check_name(group)
        if not 1 <= limit <= LIMIT_MAX:
            raise UsageError(f"limit {limit} is not from 1 to {LIMIT_MAX}")
        infos: list[tuple[str, LiteGroupInfo]] = []
        for name, peer, _ in await self._lite_bound(group):
            infos.append((name, await lite_api.group_info(peer, group, count_max=limit, timeout_ms=self._timeout_ms)))
        rows = [
            LiteLagRow(each.lite_topic, name, each.lag_count, each.earliest_unconsumed_timestamp)
            for name, info in infos
            for each in info.lag_count_top_k or ()
        ]
        rows.sort(key=lambda row: (-row.lag, row))
        # Of all lite topics brokers tell it only with liteLagLatencyCollectEnable.
        told = [info.earliest_unconsumed_timestamp for _, info in infos] + [row.waiting_since_ms for row in rows]
        since = [ms for ms in told if ms > 0]
        topic = infos[0][1].parent_topic or ""
        total = sum(info.total_lag_count for _, info in infos)
        return LiteGroupLag(group, topic, total, min(since, default=-1), tuple(rows[:limit]))

    async def show_lite_client(self, group: str, client_id: str, *, limit: int = 1000) -> list[LiteClientState]:
        """Return which lite topics a client of a group subscribed to, by broker; `limit`: names of each, 1 to 1000.

        Raises UsageError for a group that is not bound to a topic, and for a client that no broker knows, or what a
        broker raises.
        """
        check_name(group)
        if not 1 <= limit <= LIMIT_MAX:
            raise UsageError(f"limit {limit} is not from 1 to {LIMIT_MAX}")
        found = []
        for name, peer, topic in await self._lite_bound(group):
            info = await lite_api.client_info(
                peer, topic, group, client_id, count_max=limit, timeout_ms=self._timeout_ms
            )
            if info.lite_topic_count > 0:
                names = sorted(lite.name for q in info.lite_topic_set or () if (lite := lite_topics.of_queue(q)))
                found.append(
                    LiteClientState(
                        *(name, client_id, group, topic, info.lite_topic_count),
                        *(info.last_access_time, tuple(names)),
                    )
                )
        if not found:
            raise UsageError(f"client {client_id!r} of group {group!r} is subscribed to no lite topic of any broker")
        return sorted(found)

    async def dispatch_lite(self, group: str, client_id: str | None = None) -> list[str]:
        """Have brokers look through the lite topics of a client of a group, or of all its clients, for messages that
        wait; return the names of the brokers. Raises UsageError for a group that is not bound to a topic, or what a
        broker raises.
        """
        check_name(group)
        asked = []
        for name, peer, _ in await self._lite_bound(group):
            await lite_api.dispatch(peer, group, client_id, timeout_ms=self._timeout_ms)
            asked.append(name)
        return asked

    async def lite_broker_info(self, address: str) -> LiteBrokerState:
        """Return how much the broker at an address, e.g. find_broker's, has of lite topics. Raises what it raises."""
        info = await lite_api.broker_info(await self._broker(address), timeout_ms=self._timeout_ms)
        names = [each.broker_name for each in await self.cluster_info() if each.address == address]
        groups = info.group_meta or {}
        topics = sorted(
            LiteParent(topic, minutes, tuple(sorted(groups.get(topic, ()))))
            for topic, minutes in (info.topic_meta or {}).items()
        )
        return LiteBrokerState(
            *(names[0] if names else address, info.current_lmq_num, info.max_lmq_num, info.lite_subscription_count),
            *(info.event_map_size, info.order_info_count, info.offset_table_size, tuple(topics)),
        )

    async def _lite_bound(self, group: str) -> list[tuple[str, Peer, str]]:
        """Return the masters that have a group bound to a topic: name, connection, topic. Raises UsageError."""
        found, is_known = [], False
        for target in await self._masters(None, None):
            peer = await self._broker(target.address)
            config = await admin_api.group_config(peer, group, timeout_ms=self._timeout_ms)
            is_known = is_known or config is not None
            if config is not None and (topic := config.attributes.get(lite_topics.BIND_TOPIC)):
                found.append((target.broker_name, peer, topic))
        if not found:
            raise UsageError(
                f"group {group!r} is not bound to a topic with lite topics"
                if is_known
                else f"no broker knows group {group!r}: `rocketspark group list` names all"
            )
        return found

    async def _lite_masters(self, topic: str) -> list[BrokerState]:
        route = await self._routes.refresh(validators.check_topic(topic))
        names = [broker.broker_name for broker in route.brokers if broker.master]
        return await self._masters(None, names)

    async def _of_lite(self, topic: str, asked: Awaitable[T]) -> T:
        """Return an answer about a topic that has to have lite topics."""
        try:
            return await asked
        except ServerError as e:
            if e.code == ResponseCode.INVALID_PARAMETER and "type not match" in (e.remark or ""):
                raise UsageError(f"topic {topic!r} has no lite topics: it is not of the type LITE") from None
            raise

    async def _lite_names(self, peer: Peer, topic: str, groups: Iterable[str]) -> set[str]:
        """Return lite topics that groups are behind in, and that members of them subscribed to."""
        found: set[str] = set()
        for group in groups:
            info = await lite_api.group_info(peer, group, count_max=NAMES_MAX, timeout_ms=self._timeout_ms)
            found.update(each.lite_topic for each in info.lag_count_top_k or ())
            members = await group_api.connections(peer, group, timeout_ms=self._timeout_ms)
            ids = sorted(c.client_id for c in members.connection_set) if members is not None else []
            for client_id in ids[:CLIENTS_ASKED_MAX]:
                client = await lite_api.client_info(
                    peer, topic, group, client_id, count_max=NAMES_MAX, timeout_ms=self._timeout_ms
                )
                found.update(lite.name for q in client.lite_topic_set or () if (lite := lite_topics.of_queue(q)))
        return found

    async def _lite_row(self, peer: Peer, broker_name: str, topic: str, name: str) -> LiteTopicRow:
        async with self._room:
            info = await lite_api.topic_info(peer, topic, name, timeout_ms=self._timeout_ms)
        state = _state(broker_name, topic, name, info, ())
        return LiteTopicRow(
            *(name, broker_name, state.min_offset, state.max_offset, state.newest_ms, len(state.subscribers))
        )

    async def _lite_progress(self, peer: Peer, group: str, name: str) -> LiteProgress:
        info = await lite_api.group_info(peer, group, lite_topic=name, timeout_ms=self._timeout_ms)
        at = info.lite_topic_offset_wrapper
        if at is None:
            return LiteProgress(group, None, None, -1)
        lag = max(0, info.total_lag_count)
        return LiteProgress(group, at.consumer_offset, lag, info.earliest_unconsumed_timestamp if lag else -1)


def _state(
    broker_name: str, topic: str, name: str, info: LiteTopicInfo, groups: Iterable[LiteProgress]
) -> LiteTopicState:
    offsets = info.topic_offset
    low, high, newest_ms = (
        (0, 0, 0)
        if offsets is None
        else (max(0, offsets.min_offset), max(0, offsets.max_offset), max(0, offsets.last_update_timestamp))
    )
    subscribers = sorted(LiteSubscriber(each.group or "", each.client_id or "") for each in info.subscriber or ())
    return LiteTopicState(
        *(topic, name, broker_name, low, high, newest_ms, info.sharding_to_broker),
        *(tuple(subscribers), tuple(sorted(groups, key=lambda each: each.group))),
    )
