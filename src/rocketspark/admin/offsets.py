"""An operator's work on the offsets of consumer groups: setting them, saving them and putting them back.

Rule: what will change is worked out before anything is changed; a queue's offset is never set beyond its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from datetime import datetime
from typing import Any, Literal

import msgspec

from rocketspark.admin.cluster_client import BrokerState, check_name
from rocketspark.admin.groups import GroupOperations
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, client_api, group_api
from rocketspark.errors import ServerError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.model.namespace import RETRY_PREFIX
from rocketspark.model.route import TopicRoute
from rocketspark.model.text import LONG_MAX
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.transport.peer import Peer

# Where a group is to go on: at a queue's first or past its last message, at a time, or at an offset.
Place = Literal["earliest", "latest"] | datetime | int


class StoredOffset(msgspec.Struct, frozen=True, order=True):
    """The offset that a group committed in a queue: the next message it consumes."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def queue(self) -> MessageQueue:
        """The queue as the other operations name it."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class OffsetChange(msgspec.Struct, frozen=True):
    """A change of a group's offset in a queue. `before`: None if the group had none there; `min_offset`, `max_offset`:
    the queue's oldest message, and the next one.
    """

    group: str
    queue: MessageQueue
    before: int | None
    after: int
    min_offset: int
    max_offset: int

    @property
    def passed_over(self) -> int:
        """How many messages the group will not consume that it had not consumed."""
        return max(0, self.after - max(self.before or 0, self.min_offset))

    @property
    def read_again(self) -> int:
        """How many messages the group consumes once more."""
        return max(0, min(self.before or 0, self.max_offset) - max(self.after, self.min_offset))


def _chosen(topic: str, route: TopicRoute, wanted: Set[int] | None, brokers: Collection[str]) -> list[MessageQueue]:
    """Return the queues of these ids (None: of all) that brokers have. Raises UsageError if an id has none."""
    queues = [q for q in route.read_queues() if q.broker_name in brokers and (wanted is None or q.queue_id in wanted)]
    missing = (wanted or set()) - {q.queue_id for q in queues}
    if missing or not queues:
        which = f"queue {min(missing)}" if missing else "queue to read from"
        raise UsageError(f"topic {topic!r} has no {which} on {', '.join(sorted(brokers)) or 'any broker'}")
    return queues


class OffsetOperations(GroupOperations):
    """The operations on groups' offsets, a part of AsyncAdmin."""

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Place,
        *,
        queue_ids: Iterable[int] | None = None,
        brokers: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> list[OffsetChange]:
        """Have a group go on at another place of a topic, whether its members are connected or not.

        Args:
            to: "earliest", "latest", a time (with its zone, else the local one): the first message stored then or
                later, or an offset, which each of the queues must hold.
            queue_ids: only in these queues; by default in all.
            brokers: only on the brokers of these names; by default on all.
            dry_run: change nothing, only tell what would be.

        Returns the change of each queue, sorted. Raises RouteNotFound, UsageError for what cannot be done, before
        anything is changed, or what a broker raises.
        """
        check_name(group)
        check_place(to)
        route = await self._routes.refresh(validators.check_topic(topic))
        if brokers is None and (without := sorted(b.broker_name for b in route.brokers if b.master is None)):
            raise UsageError(
                f"{', '.join(without)} has no master now, on which offsets are set: start it, or name the others"
            )
        if route.leaders:
            raise UsageError(f"topic {topic!r} is a static one, whose groups' offsets are not set by hand")
        targets = await self._targets_of([b.broker_name for b in route.brokers if b.master], brokers)
        wanted = None if queue_ids is None else set(queue_ids)
        queues = _chosen(topic, route, wanted, targets)
        await self._check_known_on(group, targets.values())
        changes = await self._plan({(group, queue): to for queue in queues}, targets)
        if dry_run:
            return changes
        time_ms = _time_ms(to)
        if wanted is None and time_ms is not None:
            return await self._reset_topic(group, topic, time_ms, targets, changes)
        await self._put(changes, targets)
        return changes

    async def export_offsets(self, groups: Iterable[str] | None = None) -> list[StoredOffset]:
        """Return the committed offsets of groups, sorted; by default of all groups.

        Raises UsageError for a group that has none, or what a broker raises.
        """
        wanted = None if groups is None else {check_name(group) for group in groups}
        kept = await self._ask_all(
            await self._readable(), "all offsets", lambda peer: group_api.all_offsets(peer, timeout_ms=self._timeout_ms)
        )
        found = sorted(
            StoredOffset(group, topic, broker_name, queue_id, offset)
            for broker_name, rows in kept.items()
            for group, topic, queue_id, offset in rows
            if wanted is None or group in wanted
        )
        missing = (wanted or set()) - {each.group for each in found}
        if missing:
            raise UsageError(f"no broker has offsets of group {', '.join(sorted(missing))}")
        return found

    async def import_offsets(self, offsets: Iterable[StoredOffset], *, dry_run: bool = False) -> list[OffsetChange]:
        """Set groups' offsets to what `export_offsets` returned once; groups that are not there are created.

        An offset whose message has expired meanwhile becomes that of the queue's oldest message; those in retry topics
        that are not there are left out. `dry_run`: change nothing, only tell what would be.

        Returns the changes, sorted. Raises UsageError for a topic or a queue that does not exist, or ends before its
        offset, before anything is changed, or what a broker raises.
        """
        places: dict[tuple[str, MessageQueue], Place] = {}
        for each in offsets:
            validators.check_group(each.group)
            validators.check_topic(each.topic)
            if places.setdefault((each.group, each.queue), each.offset) != each.offset:
                raise UsageError(f"two offsets of group {each.group!r} in {_named(each.queue)}")
        names = {queue.broker_name for _, queue in places}
        if not names:
            return []
        targets = {b.broker_name: b for b in await self._masters(None, names)}
        counts = await self._queue_counts({(q.broker_name, q.topic) for _, q in places}, targets)
        gone = {at for at, count in counts.items() if count is None}
        for name, topic in sorted(gone):
            if not topic.startswith(RETRY_PREFIX):
                raise UsageError(f"{name} has no topic {topic!r}: create it first, or leave its offsets out")
        there = {at: place for at, place in places.items() if (at[1].broker_name, at[1].topic) not in gone}
        changes = await self._plan(there, targets, expired=True)
        for c in changes:
            # A queue that was taken away has its messages still; brokers say of any other that it is empty.
            if not (0 <= c.queue.queue_id < (counts[c.queue.broker_name, c.queue.topic] or 0) or c.max_offset > 0):
                raise UsageError(f"there is no {_named(c.queue)}: create it first, or leave its offset out")
        if not dry_run:
            await self._create_missing(changes, targets)
            await self._put(changes, targets)
        return changes

    # -- working out ---------------------------------------------------------------------------------------------

    async def _targets_of(self, names: Iterable[str], brokers: Iterable[str] | None) -> dict[str, BrokerState]:
        found = {b.broker_name: b for b in await self._masters(None, brokers)}
        return {name: found[name] for name in names if name in found}

    async def _check_known_on(self, group: str, targets: Iterable[BrokerState]) -> None:
        """Raise UsageError if a broker does not know the group: it would refuse, or keep offsets of a mistyped name."""
        known = await self._known_groups(targets)
        without = sorted(name for name, groups in known.items() if group not in groups)
        if without:
            raise UsageError(
                f"{', '.join(without)} {'does' if len(without) == 1 else 'do'} not know group {group!r}:"
                f" `rocketspark group list` names all, `rocketspark group create {group}` makes it"
            )

    async def _queue_counts(
        self, wanted: Iterable[tuple[str, str]], targets: Mapping[str, BrokerState]
    ) -> dict[tuple[str, str], int | None]:
        """Return, for each pair of a broker and a topic, how many queues the topic has there; None without it."""

        async def count(name: str, topic: str) -> int | None:
            async with self._room:
                peer = await self._broker(targets[name].address)
                found = await admin_api.topic_settings(peer, topic, timeout_ms=self._timeout_ms)
            return None if found is None else max(found.read_queue_nums, found.write_queue_nums)

        pairs = list(wanted)
        return dict(zip(pairs, await asyncio.gather(*(count(*pair) for pair in pairs)), strict=True))

    async def _plan(
        self,
        places: Mapping[tuple[str, MessageQueue], Place],
        targets: Mapping[str, BrokerState],
        *,
        expired: bool = False,
    ) -> list[OffsetChange]:
        """Return the change of each queue. `expired`: an offset below the queue's first message is that one's."""

        async def one(group: str, queue: MessageQueue, place: Place) -> OffsetChange:
            peer = await self._broker(targets[queue.broker_name].address)
            ask: dict[str, Any] = {"timeout_ms": self._timeout_ms}
            async with self._room:
                lowest = await client_api.min_offset(peer, queue, **ask)
                highest = await client_api.max_offset(peer, queue, **ask)
                before = await client_api.query_consumer_offset(peer, queue, group, zero_if_not_found=False, **ask)
                if isinstance(place, datetime):
                    after = await client_api.search_offset(peer, queue, _ms(place), **ask)
                else:
                    after = lowest if place == "earliest" else highest if place == "latest" else place
            if expired and after >= 0:
                after = max(after, lowest)
            return OffsetChange(group, queue, before, after, lowest, highest)

        changes = list(
            await asyncio.gather(*(one(*key, place) for key, place in sorted(places.items(), key=lambda p: p[0])))
        )
        beyond = [c for c in changes if not c.min_offset <= c.after <= c.max_offset]
        if beyond:
            first = beyond[0]
            also = f"; {len(beyond) - 1} more like it" if len(beyond) > 1 else ""
            raise UsageError(
                f"offset {first.after} is not in {_named(first.queue)}, which goes from {first.min_offset} to"
                f" {first.max_offset}{also}"
            )
        return changes

    # -- doing ---------------------------------------------------------------------------------------------------

    async def _reset_topic(
        self,
        group: str,
        topic: str,
        time_ms: int,
        targets: Mapping[str, BrokerState],
        changes: list[OffsetChange],
    ) -> list[OffsetChange]:
        """Set offsets by time in all queues of a topic; returns the changes as brokers made them."""
        set_to: dict[MessageQueue, int] = {}

        async def reset(peer: Peer) -> None:
            try:
                set_to.update(await group_api.reset_topic(peer, group, topic, time_ms, timeout_ms=self._timeout_ms))
            except ServerError as e:
                # A broker that leaves it to members, and there are none.
                if e.no_permission or e.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                    raise
                name = next(b.broker_name for b in targets.values() if b.address == peer.address)
                here = [c for c in changes if c.queue.broker_name == name]
                if not await self._is_offline(peer, group):
                    raise
                await self._commit(peer, here)

        await self._each(targets.values(), f"reset of group {group!r} in topic {topic!r}", reset)
        return [msgspec.structs.replace(c, after=set_to.get(c.queue, c.after)) for c in changes]

    async def _put(self, changes: Iterable[OffsetChange], targets: Mapping[str, BrokerState]) -> None:
        """Set offsets queue by queue. Raises UsageError, before any is set, where only members could do it."""
        by_broker: dict[str, list[OffsetChange]] = {}
        for change in changes:
            by_broker.setdefault(change.queue.broker_name, []).append(change)
        touched = {name: targets[name] for name in by_broker}
        here = await self._ask_all(
            touched.values(), "settings", lambda peer: group_api.resets_here(peer, timeout_ms=self._timeout_ms)
        )
        for name, resets in here.items():
            peer = await self._broker(touched[name].address)
            for group in sorted({c.group for c in by_broker[name]}) if not resets else ():
                if not await self._is_offline(peer, group):
                    raise UsageError(
                        f"{name} has members set offsets (useServerSideResetOffset=false), which they do for a whole"
                        f" topic by time alone: stop the members of group {group!r} first"
                    )
        for name, some in by_broker.items():
            peer = await self._broker(touched[name].address)
            await (self._reset_queues if here[name] else self._commit)(peer, some)

    async def _reset_queues(self, peer: Peer, changes: Iterable[OffsetChange]) -> None:
        await self._in_turn(
            changes,
            lambda c: group_api.reset_queue(peer, c.group, c.queue, c.after, timeout_ms=self._timeout_ms),
        )

    async def _commit(self, peer: Peer, changes: Iterable[OffsetChange]) -> None:
        await self._in_turn(
            changes,
            lambda c: client_api.update_consumer_offset(peer, c.queue, c.group, c.after, timeout_ms=self._timeout_ms),
        )

    async def _in_turn(self, changes: Iterable[OffsetChange], act: Callable[[OffsetChange], Any]) -> None:
        """Act on each change: first on one of each topic, then on the others at once (see `commits_in_turn`)."""

        async def one(change: OffsetChange) -> None:
            async with self._room:
                await act(change)

        by_group: dict[str, dict[MessageQueue, OffsetChange]] = {}
        for change in changes:
            by_group.setdefault(change.group, {})[change.queue] = change
        for some in by_group.values():
            for queues in client_api.commits_in_turn(some):
                await asyncio.gather(*(one(some[queue]) for queue in queues))

    async def _is_offline(self, peer: Peer, group: str) -> bool:
        found = await group_api.connections(peer, group, timeout_ms=self._timeout_ms)
        return found is None or not found.connection_set

    async def _create_missing(self, changes: Iterable[OffsetChange], targets: Mapping[str, BrokerState]) -> None:
        wanted: dict[str, set[str]] = {}
        for change in changes:
            wanted.setdefault(change.queue.broker_name, set()).add(change.group)
        for name, groups in wanted.items():
            peer = await self._broker(targets[name].address)
            known = await group_api.groups(peer, timeout_ms=self._timeout_ms)
            for group in sorted(groups - set(known)):
                await admin_api.put_group(peer, GroupConfig(group_name=group), timeout_ms=self._timeout_ms)


def _ms(time: datetime) -> int:
    """Return a time in ms since 1970. Before it there are no messages, and brokers take -1 for the end of a queue."""
    return max(0, int(time.timestamp() * 1000))


def _time_ms(to: Place) -> int | None:
    """Return the time that brokers reset a whole topic by; None for an offset."""
    if isinstance(to, datetime):
        return _ms(to)
    return {"earliest": 0, "latest": -1}.get(str(to))


def check_place(to: object) -> None:
    """Raise UsageError for a place that there is not."""
    if to in ("earliest", "latest") or isinstance(to, datetime) or (type(to) is int and 0 <= to <= LONG_MAX):
        return
    raise UsageError(f"{to!r} is no place to go on at: earliest, latest, a datetime or an offset")


def _named(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker_name}"
