"""What the driver asks a cluster: queues, bounds, addresses. Rule: calls block, on an event loop of their own.

Nothing is kept across calls but connections and where brokers are; it is never pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.connection.topic_routes import RouteCache
from rocketspark.client.validators import RETRY_PREFIX
from rocketspark.errors import RocketSparkError, RouteNotFound, ServerError, TransportError
from rocketspark.model import MessageQueue
from rocketspark.model.route import MASTER_ID, BrokerData, is_logical
from rocketspark.model.subscription import ALL, TAG
from rocketspark.model.text import LONG_MAX, whole_number
from rocketspark.protocol import light_queues, topic_attributes
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import plain_pull
from rocketspark.protocol.headers.static_topics import PartPullHeader
from rocketspark.protocol.json import bodies, static_topics
from rocketspark.protocol.message import record, sysflags
from rocketspark.tables.client_access import Access
from rocketspark.tables.offset_ranges import EACH_TOPIC, Made, first_at_or_after
from rocketspark.tables.option_values import matching
from rocketspark.tables.options import READER_GROUP
from rocketspark.tables.queue_bounds import OffsetBounds, QueuePart, is_of_other_store, of_parts, part_at
from rocketspark.transport.connections import Connections, parse_addresses
from rocketspark.transport.peer import Peer
from rocketspark.transport.retries import RetryRule, again, is_retriable

log = logging.getLogger("rocketspark.spark")

T = TypeVar("T")

TIMEOUT_MS = 5000.0
_DELAYED_TOPIC = "SCHEDULE_TOPIC_XXXX"
# So many messages of a queue are measured to estimate their size.
SAMPLE_COUNT = 32


def _may_pass(error: Exception) -> bool:
    return is_retriable(error) and not isinstance(error, RouteNotFound)


# The loop stands still between the driver's questions: a connection that the server closed meanwhile shows only when it
# is used. So the second attempt comes at once.
RETRIES = RetryRule(attempts_max=3, pauses_s=(0, 0.1), may_pass=_may_pass)
# A new master shows what it has confirmed, which may take a moment; so may the route that names it.
SETTLE_S, SETTLE_PAUSE_S = 3.0, 0.05


# The reason for a queue that is gone for good: a later queue of its name is another one.
TOPIC_DELETED = "the topic was deleted"


class ClusterQueries:
    """A cluster, by the addresses of its NameServers ("host:port;host:port"). Close it when done.

    Topics and queues have the user's names, without the namespace.
    """

    def __init__(self, namesrv: str, *, group: str = READER_GROUP, access: Access | None = None) -> None:
        self._access = access or Access()
        self._group = self._access.wire(group)
        self._filters: dict[tuple[str, str], bool] = {}
        self._runner = asyncio.Runner()
        # The brokers' addresses; the last known ones while no NameServer knows a broker.
        self._seen: dict[str, tuple[str, ...]] = {}
        # Their masters, and those that are read from a slave.
        self._masters: dict[str, str] = {}
        self._from_slave: set[str] = set()
        # The queues of each topic that may not be read.
        self._closed: dict[str, list[MessageQueue]] = {}
        # Brokers that have, or had, replicas; and those that are at another address now, which one may have been. Of
        # these: whose topics were not looked at yet, and the first number of each topic's making that they told.
        self._replicated: set[str] = set()
        self._moved: set[str] = set()
        self._unjudged: set[str] = set()
        self._made_first: Made = {}
        # The parts of logical queues, as they were last known.
        self._parts: dict[MessageQueue, tuple[QueuePart, ...]] = {}
        self._routes, self._connections = self._run(self._opened(parse_addresses(namesrv)))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    async def _opened(self, addresses: list[str]) -> tuple[RouteCache, Connections]:
        return self._access.routes(addresses, timeout_ms=TIMEOUT_MS), self._access.connections()

    def _learn(self, broker: BrokerData) -> None:
        """Note where a broker is; tell of another master, once."""
        name, master = broker.broker_name, broker.master
        self._seen[name] = tuple(address for _, address in sorted(broker.addresses.items()))
        before = self._masters.get(name)
        if master is not None:
            self._masters[name] = master
            self._from_slave.discard(name)
            if before not in (None, master):
                log.warning("broker %r: %s is its master now, %s no more; reading goes on", name, master, before)
                self._moved.add(name)
                self._unjudged.add(name)
        if len(broker.addresses) > 1:
            self._replicated.add(name)

    def topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches a pattern, by the rule of `option_values.matching`. Raises
        NotSent.
        """
        return self._run(self._topics(pattern))

    async def _topics(self, pattern: str) -> list[str]:
        names = await again(partial(self._routes.ask, partial(admin_api.topic_list, timeout_ms=TIMEOUT_MS)), RETRIES)
        info = await self._cluster_info()
        own = (name for wire_name in names if (name := self._access.own(wire_name)) is not None)
        return matching(pattern, own, [*info.broker_addr_table, *info.cluster_addr_table])

    async def _cluster_info(self) -> bodies.ClusterInfo:
        return await again(partial(self._routes.ask, partial(admin_api.cluster_info, timeout_ms=TIMEOUT_MS)), RETRIES)

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return every readable queue of the topics as of now. Raises RouteNotFound, NotSent."""
        return self._run(self._queues(list(topics)))

    async def _queues(self, topics: list[str]) -> list[MessageQueue]:
        found = await asyncio.gather(*map(self._queues_of, topics))
        return [queue for queues in found for queue in queues]

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        try:
            route = await again(partial(self._routes.refresh, self._access.wire(topic)), RETRIES)
        except RouteNotFound:
            names = ", ".join(self._routes.addresses)
            space = f" in namespace {self._access.namespace!r}" if self._access.namespace else ""
            text = f"no topic {topic!r}{space} at {names}: check the name, or create it (rocketspark topic create)"
            is_light = topic.startswith(light_queues.NAME_PREFIX)
            raise RouteNotFound(topic, remark=None if is_light else text) from None
        for broker in route.brokers:
            self._learn(broker)
        self._closed[topic] = [MessageQueue(topic, q.broker_name, q.queue_id) for q in route.closed_queues()]
        return [MessageQueue(topic, q.broker_name, q.queue_id) for q in route.read_queues()]

    def closed_queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return the queues that hold messages and may not be read, as of the last `queues`. One whose broker does not
        answer is left out. Raises ServerError.
        """
        closed = [queue for topic in topics for queue in self._closed.get(topic, ())]
        return sorted(q for q, now in self.bounds(closed, if_there=True).items() if now.next > now.oldest)

    def bounds(
        self,
        queues: Iterable[MessageQueue],
        *,
        if_there: bool = False,
        seen: Mapping[MessageQueue, int] | None = None,
    ) -> dict[MessageQueue, OffsetBounds]:
        """Return the offsets that each queue holds now. `if_there`: a queue whose broker does not answer is left out.

        `seen`: where queues ended before. If one ends earlier now, and its broker has replicas, a master may just have
        been elected: it is asked again for up to SETTLE_S.
        """
        return self._run(self._settled(list(queues), seen or {}, if_there=if_there))

    async def _settled(
        self, queues: list[MessageQueue], seen: Mapping[MessageQueue, int], *, if_there: bool
    ) -> dict[MessageQueue, OffsetBounds]:
        found = await self._of_each(queues, self._bounds, if_there=if_there)
        end_s = time.monotonic() + SETTLE_S
        short = [queue for queue, now in found.items() if now.next < seen.get(queue, 0) and now.of_master]
        short = [q for q in short if found[q].brokers(q) & self._moved or await self._has_replicas(q)]
        while short and time.monotonic() < end_s:
            await asyncio.sleep(SETTLE_PAUSE_S)
            for topic in {queue.topic for queue in short}:
                with contextlib.suppress(RocketSparkError):
                    await self._queues_of(topic)
            found |= await self._of_each(short, self._bounds, if_there=True)
            short = [queue for queue in short if found[queue].next < seen[queue] and found[queue].of_master]
        replicated = self._replicated | self._moved
        # With all that was read it is the broker that it was.
        self._moved -= _brokers(found) - _brokers({queue: found[queue] for queue in short})
        return {queue: now.with_replicas(queue, replicated) for queue, now in found.items()}

    def made_anew(
        self, bounds: Mapping[MessageQueue, OffsetBounds], made: Made, ends: Mapping[MessageQueue, int]
    ) -> list[MessageQueue]:
        """Return the queues of `bounds` whose topic was deleted and made again since `made`, the numbers of its making,
        was noted; and those whose broker has another store now, if something of the old one lies before their `ends`.

        Only of brokers without replicas: a slave's number may be another one, and becomes the broker's number by an
        election. A broker that is at another address now may be such a slave, so the first number that it tells there
        is not compared.
        """
        later = set()
        for queue, now in bounds.items():
            place = ends.get(queue, 0)
            for own, held, _ in now.read_of(queue, LONG_MAX):
                if own.broker_name in self._unjudged:
                    self._made_first[own.topic, own.broker_name] = held.made_at
            for own, held, at in now.read_of(queue, place):
                key = own.topic, own.broker_name
                is_later = held.made_at > max(made.get(key, 0), self._made_first.get(key, 0))
                if held.of_master and (is_later or (place and is_of_other_store(own, held, made, at))):
                    later.add((queue, own))
        self._unjudged -= _brokers(bounds)
        return sorted({queue for queue, own in later if not self._run(self._has_replicas(own))})

    async def _has_replicas(self, queue: MessageQueue) -> bool:
        """Tell whether a queue's broker has, or had, replicas. One that is alone now tells it by its epochs."""
        if queue.broker_name not in self._replicated:
            with contextlib.suppress(RocketSparkError):
                broker, _ = await self._broker_of(queue)
                reply = await broker.request(RequestCode.GET_BROKER_EPOCH_CACHE, None, timeout_ms=TIMEOUT_MS)
                if reply.code == ResponseCode.SUCCESS:
                    self._replicated.add(queue.broker_name)
        return queue.broker_name in self._replicated

    async def _of_each(
        self,
        queues: list[MessageQueue],
        ask: Callable[[MessageQueue], Awaitable[T]],
        *,
        if_there: bool = False,
    ) -> dict[MessageQueue, T]:
        """Return the answer for each queue, asked at once; `if_there` leaves out queues whose broker does not
        answer.
        """
        asked = (again(partial(ask, queue), RETRIES, between=partial(self._look_again, queue)) for queue in queues)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[MessageQueue, T] = {}
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, BaseException):
                if not if_there or not is_retriable(answer):
                    raise answer
                continue
            found[queue] = answer
        return found

    async def _look_again(self, queue: MessageQueue, error: Exception) -> None:
        """Fetch the route anew: another may have taken the broker's place."""
        with contextlib.suppress(RocketSparkError):
            await self._queues_of(queue.topic)

    async def _bounds(self, queue: MessageQueue) -> OffsetBounds:
        if not is_logical(queue):
            return await self._own_bounds(queue)
        parts = await self._parts_of(queue)
        self._parts[queue] = parts
        return of_parts(parts)

    async def _own_bounds(self, queue: MessageQueue, lo: bool | None = None) -> OffsetBounds:
        """Return what a broker's own queue holds. `lo`: false for a part, as of `client_api.queue_end`."""
        broker, queue = await self._broker_of(queue)
        oldest = await client_api.min_offset(broker, queue, lo=lo, timeout_ms=TIMEOUT_MS)
        newest = await client_api.queue_end(broker, queue, lo=lo, timeout_ms=TIMEOUT_MS)
        of_master = broker.address == self._routes.master(queue.broker_name)
        if not of_master and queue.broker_name not in self._from_slave:
            self._from_slave.add(queue.broker_name)
            log.warning(
                "broker %r has no master now: what its slave at %s has is read", queue.broker_name, broker.address
            )
        return OffsetBounds(
            *(oldest, newest.offset, of_master),
            made_at=newest.made_at or 0,
            log_end=newest.log_end,
            store_number=newest.store_number or 0,
            shared=_shared(newest.shared_ends),
        )

    async def _parts_of(self, queue: MessageQueue) -> tuple[QueuePart, ...]:
        """Return the parts of a logical queue, as its leader has them. One that is moved at the moment ends where its
        former leader does.
        """
        leader, wire_queue = await self._broker_of(queue)
        config = await admin_api.static_topic_config(leader, wire_queue.topic, timeout_ms=TIMEOUT_MS)
        detail = config and config.mapping_detail
        items = detail.hosted_queues.get(queue.queue_id) if detail else None
        known = static_topics.decided(items or ())
        if not detail or not items or not known or items[-1].bname != detail.bname:
            raise ServerError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"queue {queue.queue_id} of static topic {queue.topic!r} is being moved",
                address=leader.address,
                retriable=True,
            )
        own = [MessageQueue(queue.topic, item.bname, item.queue_id) for item in known]
        held = await asyncio.gather(*(self._part_bounds(one) for one in own))
        # Ends that were seen once stay as they are.
        ends = {part.queue: part.end for part in self._parts.get(queue, ())[:-1] if part.ended}
        found = []
        for at, (item, one, there) in enumerate(zip(known, own, held, strict=True)):
            if there is None and one == own[-1]:
                there = await self._own_bounds(one, lo=False)
            end = item.end_offset if item.is_ended else ends.get(one) if there is None else there.next
            # What a broker wrote that is away lies before the next part.
            last = item.to_physical(known[at + 1].logic_offset) if one != own[-1] else LONG_MAX
            stop = last if end is None else min(end, last)
            found.append(QueuePart(one, item.logic_offset, item.start_offset, stop, there, end is not None))
        return tuple(found)

    async def _part_bounds(self, own: MessageQueue) -> OffsetBounds | None:
        """Return what a broker's queue that is a part holds, None while the broker does not answer."""
        try:
            return await self._own_bounds(own, lo=False)
        except (TransportError, RouteNotFound):
            return None

    def known_parts(self, queue: MessageQueue) -> tuple[QueuePart, ...]:
        """Return the parts of a logical queue as `bounds` last found them; none if it never did."""
        return self._parts.get(queue, ())

    async def _broker_of(self, queue: MessageQueue) -> tuple[Peer, MessageQueue]:
        """Return the connection to a queue's broker, its master if that is up, and the queue by its full name."""
        queue = self._access.wire_queue(queue)
        return await self._connections.get(await self._routes.find_readable(queue)), queue

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message that was stored at or after `time_ms`; the end of the queue
        if there is none.

        The answer is exact where store times ascend along a queue, as they do unless the clock of an Apache broker was
        set back (RocketSpark's never stamps an earlier time than before). It is never before the oldest message that is
        still there.
        """
        return self._run(self._of_each(list(queues), lambda queue: self._offset_at(queue, time_ms)))

    async def _offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        if not is_logical(queue):
            return await self._own_offset_at(queue, time_ms)
        for part in await self._parts_of(queue):
            at = await self._own_offset_at(part.queue, time_ms, lo=False)
            if at < part.end:
                break
        return part.logical + max(min(at, part.end) - part.first, 0)

    async def _own_offset_at(self, queue: MessageQueue, time_ms: int, lo: bool | None = None) -> int:
        broker, queue = await self._broker_of(queue)
        # The end first: what comes meanwhile is of no interest.
        end = (await client_api.queue_end(broker, queue, lo=lo, timeout_ms=TIMEOUT_MS)).offset
        oldest = await client_api.min_offset(broker, queue, lo=lo, timeout_ms=TIMEOUT_MS)
        if oldest >= end:
            return end
        # A time that no long holds is beyond every message; Java's is signed, 64 bits.
        guess = await client_api.search_offset(broker, queue, min(time_ms, LONG_MAX), lo=lo, timeout_ms=TIMEOUT_MS)
        return await first_at_or_after(time_ms, oldest, end, guess, partial(self._stored_ms, broker, queue, lo=lo))

    def stored_ms(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Return the store time of each queue's first message at or after an offset; infinity if there is none. Queues
        whose broker does not answer are left out.
        """
        return self._run(self._of_each(list(offsets), lambda q: self._stored_at(q, offsets[q]), if_there=True))

    async def _stored_at(self, queue: MessageQueue, offset: int) -> float:
        own, offset, lo = await self._place(queue, offset)
        broker, own = await self._broker_of(own)
        return await self._stored_ms(broker, own, offset, lo=lo)

    async def _place(self, queue: MessageQueue, offset: int) -> tuple[MessageQueue, int, bool | None]:
        """Return the broker's own queue in which an offset of a queue lies, or the next one behind a gap, its offset
        there, and the `lo` with which the broker is asked.
        """
        if not is_logical(queue):
            return queue, offset, None
        parts = await self._parts_of(queue)
        offset = max(of_parts(parts).past_gap(offset), parts[0].logical)
        part = part_at(parts, offset)
        return part.queue, offset - part.logical + part.first, False

    async def _stored_ms(self, broker: Peer, queue: MessageQueue, offset: int, *, lo: bool | None = None) -> float:
        """Return the store time of the message at an offset, or of the next one where a compaction left it out."""
        pulled = await self._pull(broker, queue, offset, 1, lo)
        if pulled.code == ResponseCode.SUCCESS:
            # Bodies are of no interest here: one that does not inflate, or is damaged, has a time all the same.
            found = record.decode_all(pulled.records, check_crc=False)
            wanted = (r for r in found if r.queue_offset >= offset or r.sys_flag & sysflags.INNER_BATCH)
            return next((r.store_time_ms for r in wanted), math.inf)
        return -math.inf if pulled.header.next_offset > offset else math.inf

    async def _pull(
        self, broker: Peer, queue: MessageQueue, offset: int, count_max: int, lo: bool | None = None
    ) -> client_api.PullResult:
        at = queue.topic, queue.queue_id, offset, count_max, ALL
        name = queue.broker_name
        header = plain_pull(self._group, *at, kind=PartPullHeader, expression_type=TAG, broker_name=name, lo=lo)
        return await client_api.pull(broker, header, timeout_ms=TIMEOUT_MS)

    def record_bytes(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Return the mean size in bytes of some records of each queue, from an offset on. Queues whose broker does not
        tell it are left out.
        """
        found = self._run(self._of_each(list(offsets), lambda q: self._record_bytes(q, offsets[q]), if_there=True))
        return {queue: size for queue, size in found.items() if size is not None}

    async def _record_bytes(self, queue: MessageQueue, offset: int) -> float | None:
        own, offset, lo = await self._place(queue, offset)
        broker, own = await self._broker_of(own)
        pulled = await self._pull(broker, own, offset, SAMPLE_COUNT, lo)
        count = pulled.header.next_offset - offset
        return len(pulled.records) / count if pulled.code == ResponseCode.SUCCESS and count > 0 else None

    # -- groups --------------------------------------------------------------------------------------------------

    def committed(self, queues: Iterable[MessageQueue], group: str) -> dict[MessageQueue, int | None]:
        """Return the offset that a group has committed in each queue; None where it has committed none."""
        return self._run(self._of_each(list(queues), lambda queue: self._committed(queue, self._access.wire(group))))

    async def _committed(self, queue: MessageQueue, group: str) -> int | None:
        broker, queue = await self._broker_of(queue)
        return await client_api.query_consumer_offset(
            broker, queue, group, zero_if_not_found=False, timeout_ms=TIMEOUT_MS
        )

    def commit(self, offsets: Mapping[MessageQueue, int], group: str) -> Iterable[MessageQueue]:
        """Commit a group's offset of each queue, which is the next one to consume; return the queues whose broker
        answered. Raises ServerError.
        """
        wire = self._access.wire(group)
        return self._run(self._commit_all(offsets, wire))

    async def _commit_all(self, offsets: Mapping[MessageQueue, int], group: str) -> list[MessageQueue]:
        done: list[MessageQueue] = []
        for queues in client_api.commits_in_turn(offsets):
            done += await self._of_each(queues, lambda q: self._commit(q, offsets[q], group), if_there=True)
        return done

    async def _commit(self, queue: MessageQueue, offset: int, group: str) -> None:
        queue = self._access.wire_queue(queue)
        broker = await self._connections.get(await self._routes.find_master(queue))
        await client_api.update_consumer_offset(broker, queue, group, offset, timeout_ms=TIMEOUT_MS)

    def register_group(self, queues: Iterable[MessageQueue], group: str) -> None:
        """Register a group with the brokers of these queues, as if a consumer had joined it.

        The broker makes the group from a heartbeat, if it may create groups, and its retry topic too, by which
        RocketMQ's tools find groups.
        """
        self._run(self._register(list(queues), self._access.wire(group)))

    async def _register(self, queues: list[MessageQueue], group: str) -> None:
        client = f"{socket.gethostname()}@{os.getpid()}#spark"
        consumer = bodies.ConsumerData(group_name=group, consume_type="CONSUME_ACTIVELY")
        # By address: the logical queues of a static topic name no broker.
        for address in {await self._routes.find_master(self._access.wire_queue(queue)): None for queue in queues}:
            broker = await self._connections.get(address)
            await client_api.heartbeat(broker, bodies.Heartbeat(client_id=client, consumer_data_set=[consumer]))
            await client_api.unregister(broker, client, consumer_group=group)

    def knows_group(self, group: str) -> bool:
        """Tell whether a group's retry topic exists, which brokers make for its first member."""
        try:
            self._run(again(partial(self._routes.refresh, self._access.wire(RETRY_PREFIX + group)), RETRIES))
        except RouteNotFound:
            return False
        return True

    # -- what became of a queue ----------------------------------------------------------------------------------

    def why_gone(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, str]:
        """Return which queues are gone for good, and why. `offsets`: queues that no route names, and how far each was
        read.

        The brokers of the other queues are away: no NameServer knows them, or they do not answer.
        """
        return self._run(self._why_gone(offsets))

    async def _why_gone(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, str]:
        brokers = (await self._cluster_info()).broker_addr_table
        found: dict[MessageQueue, str] = {}
        for queue, offset in offsets.items():
            # A logical queue's leader, as last known: without it nobody can tell.
            names = [part.queue.broker_name for part in self.known_parts(queue)] or [queue.broker_name]
            broker = brokers.get(names[-1])
            address = broker.broker_addrs.get(MASTER_ID) if broker else None
            if address is None:
                continue
            try:
                why = await again(
                    partial(self._why_gone_from, address, self._access.wire_queue(queue), offset), RETRIES
                )
            except TransportError:
                continue
            if why:
                found[queue] = why
        return found

    async def _why_gone_from(self, address: str, queue: MessageQueue, offset: int) -> str | None:
        broker = await self._connections.get(address)
        try:
            if is_logical(queue):
                static = await admin_api.static_topic_config(broker, queue.topic, timeout_ms=TIMEOUT_MS)
                return TOPIC_DELETED if static is None or static.mapping_detail is None else None
            config = await admin_api.topic_config(broker, queue.topic, timeout_ms=TIMEOUT_MS)
        except ServerError as e:
            if e.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE):
                return None  # It tells nothing for now.
            config = None  # A broker that does not tell (before 5.0, or to us): then the NameServer's word holds.
        if config is None:
            return TOPIC_DELETED
        if queue.queue_id < config.read_queue_nums:
            return None  # The route is behind, or reading is forbidden for now.
        if await client_api.max_offset(broker, queue, timeout_ms=TIMEOUT_MS) <= offset:
            return None
        return f"the topic has {config.read_queue_nums} queues to read there now, and this one holds messages unread"

    def filters_each_message(self, queue: MessageQueue) -> bool:
        """Tell whether the filter of a queue's broker looks at each message by itself, so that no message that matches
        is left out.

        It does not where a record is a batch (topics with queue.type=BatchCQ), nor for the tags of delayed messages,
        whose queue units hold a time instead (rule: CommitLog, 5.x).
        """
        if queue.topic == _DELAYED_TOPIC:
            return False
        key = queue.topic, queue.broker_name
        if key not in self._filters:
            look_again = partial(self._look_again, queue)
            self._filters[key] = self._run(again(partial(self._has_plain_queues, queue), RETRIES, between=look_again))
        return self._filters[key]

    async def _has_plain_queues(self, queue: MessageQueue) -> bool:
        broker, queue = await self._broker_of(queue)
        try:
            config = await admin_api.topic_config(broker, queue.topic, timeout_ms=TIMEOUT_MS)
        except ServerError as e:
            # Brokers before 5.0 know neither the request nor such topics; without permission everything is read.
            return e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return config is not None and config.attributes.get(topic_attributes.QUEUE_TYPE) != topic_attributes.BATCH

    def is_compacted(self, queue: MessageQueue) -> bool:
        """Tell whether a queue's broker compacts the topic, so that messages which are not there are no loss."""
        look_again = partial(self._look_again, queue)
        return self._run(again(partial(self._is_compacted, queue), RETRIES, between=look_again))

    async def _is_compacted(self, queue: MessageQueue) -> bool:
        broker, queue = await self._broker_of(queue)
        try:
            config = await admin_api.topic_config(broker, queue.topic, timeout_ms=TIMEOUT_MS)
        except ServerError as e:
            if is_retriable(e):
                raise
            return False  # Brokers before 5.0 compact nothing; what we may not ask counts as lost.
        return config is not None and topic_attributes.is_compacted(config.attributes)

    def addresses(self, broker_name: str) -> tuple[str, ...]:
        """Return a broker's addresses, its master's first, as they are now or were last known; none if the broker was
        never known.
        """
        return self._seen.get(broker_name, ())

    def close(self) -> None:
        """Close the connections."""
        self._run(self._connections.close())
        self._run(self._routes.close())
        self._runner.close()


def _shared(text: str | None) -> tuple[tuple[int, int], ...]:
    """Return what a broker tells of the stores that its own continues; nothing for what cannot be read."""
    pairs = (part.partition(":") for part in (text or "").split())
    found = ((whole_number(number), whole_number(end)) for number, _, end in pairs)
    return tuple((number, end) for number, end in found if number is not None and end is not None)


def making_of(bounds: Mapping[MessageQueue, OffsetBounds]) -> Made:
    """Return the numbers of topics' making and of stores, as brokers told them."""
    told = [(own, held) for queue, found in bounds.items() for own, held, _ in found.read_of(queue, LONG_MAX)]
    topics = {(own.topic, own.broker_name): held.made_at for own, held in told if held.made_at}
    return topics | {
        (EACH_TOPIC, own.broker_name): held.store_number for own, held in told if held.store_number and held.of_master
    }


def _brokers(bounds: Mapping[MessageQueue, OffsetBounds]) -> set[str]:
    return {name for queue, found in bounds.items() for name in found.brokers(queue)}


def remade(namesrv: str, access: Access, topic: str, made: Made, brokers: Collection[str]) -> str:
    """Return one of the brokers that has not what was sent to a topic when `made` was noted, as the topic was made anew
    since, or the broker's store; "" if none is known to. Raises RouteNotFound, TransportError.
    """
    with contextlib.closing(ClusterQueries(namesrv, access=access)) as cluster:
        queues = [queue for queue in cluster.queues([topic]) if queue.broker_name in brokers or is_logical(queue)]
        bounds = cluster.bounds(queues, if_there=True)
        # What was sent may lie anywhere.
        found = cluster.made_anew(bounds, made, dict.fromkeys(bounds, LONG_MAX))
        return min((queue.broker_name for queue in found), default="")
