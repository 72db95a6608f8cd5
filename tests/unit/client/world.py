"""A cluster without sockets, on a loop whose clock nobody waits for: every call takes as long as a seed says.

Rule: the world looks at what consumers do as they do it. What is committed must be done with; each assignment of a
queue gives out its messages once and without a hole; an ordered queue is in one hand; who closed has left nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.client.connection.client_api import PullResult
from rocketspark.client.consumer.offsets import BrokerOffsets
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.client.consumer.rebalance import Rebalance
from rocketspark.errors import ConnectionLost, NotSent, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record

QUEUES = [MessageQueue("t", "broker-a", i) for i in range(3)]
RETRIES = MessageQueue("%RETRY%g", "broker-a", 0)
# How long a broker keeps a lock that nobody renews.
LOCK_S = 60.0
REQUESTS = ["pull", "max_offset", "min_offset", "query_consumer_offset", "update_consumer_offset", "consumer_list"]
REQUESTS += ["lock", "unlock", "send_back", "send"]
# Where clients look at the clock; the loop's is the only one here.
CLOCKS = ["puller", "listeners", "queue_locks", "pull_consumer", "handed_out"]


class FakeClockLoop(asyncio.SelectorEventLoop):
    """Time passes at once, and only when nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        selector = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def pass_time(timeout: float | None) -> Any:
            assert timeout is not None, "everything waits for ever"
            self.now_s += timeout
            return select(0)

        selector.select = pass_time

    def time(self) -> float:
        return self.now_s


class Line:
    """A member's connection to the broker."""

    address = "address"

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_open = True
        self.held: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Have a pull that the broker holds look again."""
        for future in self.held:
            if not future.done():
                future.set_result(None)

    def check(self) -> None:
        if not self.is_open:
            raise ConnectionLost("as the machine wants it", address="address")


class World:
    """A broker, a NameServer and the members of a group."""

    def __init__(self, seed: int, failures: float) -> None:
        self.random = random.Random(seed)
        self.loop = FakeClockLoop()
        self.failures = failures
        self.calm = False
        self.sizes: dict[MessageQueue, int] = dict.fromkeys([*QUEUES, RETRIES], 0)
        self.consumers: dict[str, Any] = {}
        self.lines: dict[str, Line] = {}
        self.registered: set[str] = set()
        # Members that take a share, and are never seen to read it.
        self.ghosts: list[str] = []
        self.committed: dict[MessageQueue, int] = {}
        self.persisted: dict[MessageQueue, int] = {}
        self.owners: dict[MessageQueue, tuple[str, float]] = {}
        self.down_until_s = 0.0
        # Until then a broker that forgot its locks may have given one to two members.
        self.doubtful_until_s = 0.0
        self.not_unlocked: set[str] = set()
        # What is older was deleted.
        self.oldest: dict[MessageQueue, int] = dict.fromkeys(QUEUES, 0)
        # Offsets whose record cannot be read, and where an operator sends the group at its next pull.
        self.damaged: defaultdict[MessageQueue, set[int]] = defaultdict(set)
        self.set_to: dict[MessageQueue, int] = {}
        # Of queues that seem to have lost their end at their next pull: which share of what was read is left.
        self.left: dict[MessageQueue, float] = {}
        # By puller: it was sent on from here to there.
        self.passed: dict[tuple[Puller, int], int] = {}
        # What did not hold: those who are told of an error may well go on.
        self.faults: list[BaseException] = []
        # What may be committed: offsets that somebody was through with.
        self.done: defaultdict[MessageQueue, set[int]] = defaultdict(set)
        # Queues of which what was done may come again: a commit failed, somebody wanted it so.
        self.again: set[MessageQueue] = set()
        self.pullers: list[tuple[str, Puller]] = []
        # By member and queue: the last puller; what was to be committed last, if that failed.
        self.last: dict[tuple[str, MessageQueue], Puller] = {}
        self.not_kept: dict[tuple[str, MessageQueue], int] = {}
        self.kept: dict[tuple[str, MessageQueue], tuple[int, Line | None]] = {}
        self.forgotten: set[Puller] = set()
        self.given: dict[Puller, int] = {}
        self.refused: set[tuple[Puller, int]] = set()
        self.calls: Counter[tuple[str, MessageQueue]] = Counter()
        self._patches = [
            mock.patch(f"rocketspark.client.connection.client_api.{n}", getattr(self, f"_{n}")) for n in REQUESTS
        ]
        clock = like(machine, monotonic=self.loop.time)
        self._patches += [mock.patch(f"rocketspark.client.consumer.{name}.machine", clock) for name in CLOCKS]
        self._watch(Puller.start, BrokerOffsets.commit, QueueLocks.release, Rebalance.take)
        for patch in self._patches:
            patch.start()

    def _watch(self, start: Any, commit: Any, release: Any, take: Any) -> None:
        def begun(puller: Puller) -> Any:
            name = puller._instance.client_id
            before = self.last.get((name, puller.queue))
            left = before is not None and before.leaving and before not in self.forgotten
            self.holds(not left, f"{name} begins {puller.queue} while it gives it up")
            self.last[name, puller.queue] = puller
            self.pullers.append((name, puller))
            self.given[puller] = puller.process_queue.next_offset
            return start(puller)

        async def told(store: Any, offsets: Mapping[MessageQueue, int], *, latest: Any = None, **how: Any) -> Any:
            name, not_kept = store._instance.client_id, set(offsets)
            offsets = dict(offsets)

            def asked(queue: MessageQueue) -> int | None:
                offset = latest(queue)
                if offset is None:
                    del offsets[queue]  # Somebody else tells it.
                else:
                    offsets[queue] = offset
                return cast("int | None", offset)

            try:
                failed = await commit(store, dict(offsets), latest=latest and asked, **how)
                not_kept = set(failed)
            finally:
                self.again |= not_kept
                for queue, offset in offsets.items():
                    if queue not in not_kept:
                        self.not_kept.pop((name, queue), None)
                        self.kept[name, queue] = (offset, self.lines.get(name))
                    elif self.kept.get((name, queue)) != (offset, self.lines.get(name)):
                        self.not_kept[name, queue] = offset
            return failed

        def forgotten(members: Rebalance, puller: Puller) -> None:
            self.forgotten.add(puller)
            forget(members, puller)

        forget = Rebalance._forget
        self._patches.append(mock.patch.object(Rebalance, "_forget", forgotten))

        async def released(locks: QueueLocks, queues: Any) -> None:
            name, given_up = locks._instance.client_id, list(queues)
            for queue in given_up:
                puller = self.consumers[name]._rebalance.pullers.get(queue)
                if puller is not None and puller.leaving and queue not in self.again and queue in QUEUES:
                    known = self.committed.get(queue, 0) >= puller.process_queue.lowest
                    self.holds(known, f"{name} unlocks {queue} before it is committed how far it was read")
            try:
                await release(locks, given_up)
            finally:
                if any(self.owners.get(q, ("",))[0] == name for q in given_up):
                    self.not_unlocked.add(name)

        async def taken(members: Rebalance, queue: MessageQueue) -> Any:
            found = await take(members, queue)
            wanted = not members.joined or queue.topic in members.subscriptions
            self.holds(not found or wanted, f"{queue} is begun, though nobody wants it any more")
            return found

        self._patches.append(mock.patch.object(Puller, "start", begun))
        self._patches.append(mock.patch.object(Rebalance, "take", taken))
        self._patches.append(mock.patch.object(QueueLocks, "release", released))
        self._patches.append(mock.patch.object(BrokerOffsets, "commit", told))

    def close(self) -> None:
        for patch in self._patches:
            patch.stop()
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    async def take_time(self, at_most_s: float = 0.5) -> None:
        """As long as a seed says; or no time at all."""
        if self.random.random() < 0.7:
            await asyncio.sleep(self.random.random() * at_most_s)

    def fails(self, times: float = 1) -> bool:
        return not self.calm and self.random.random() < self.failures * times

    async def suffer(self) -> None:
        """What functions of an application do besides returning."""
        if self.fails():
            raise ValueError("as the seed wants it")
        if self.fails():
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    # -- members -------------------------------------------------------------------------------------------------

    def carry(self, name: str, consumer: Any) -> None:
        """Have a consumer see this world instead of a cluster."""
        self.consumers[name] = consumer
        instance = consumer._instance
        instance.client_id = name
        broker = SimpleNamespace(addresses={0: "address"})
        counts = SimpleNamespace(broker_name="broker-a", perm=6, read_queue_count=len(QUEUES))
        route = SimpleNamespace(brokers=[broker], queues=[counts], read_queues=lambda: list(QUEUES))
        retries = SimpleNamespace(brokers=[broker], read_queues=lambda: [RETRIES])

        async def answer(*_: Any, **__: Any) -> Any:
            await self.take_time()

        async def get(topic: str) -> Any:
            await self.take_time()
            if self.fails():
                raise ServerError(1, "as the seed wants it", address="address")
            return retries if topic.startswith("%") else route

        async def address(*_: Any) -> str:
            return "address"

        async def peer(*_: Any, **__: Any) -> Line:
            line = self.lines.get(name)
            if line is None or not line.is_open:
                await self.take_time()
                if self.loop.time() < self.down_until_s or self.fails():
                    raise NotSent("as the machine wants it", address="address")
                line = self.lines.get(name)
                if line is None or not line.is_open:
                    line = self.lines[name] = Line(name)
                    self._register(name)
            return line

        async def heartbeat(*_: Any) -> None:
            line = await peer()
            await self.take_time()
            if line.is_open:
                self._register(name)

        async def leave(**_: Any) -> None:
            await self.take_time()
            instance.consumers.clear()
            self.unregister(name)

        def in_use(*_: Any) -> Line | None:
            line = self.lines.get(name)
            return line if line is not None and line.is_open else None

        instance.start = instance.check_namesrv = answer
        instance.close = leave
        instance.heartbeat_all = instance.heartbeat = heartbeat
        instance.peer_of = instance.master_of = instance.broker = peer
        instance.open_broker = instance.peer_in_use = in_use
        instance.routes = SimpleNamespace(
            get=get, known=lambda _: route, refresh=answer, look_again=answer, find_readable=address,
            find_master=address, addresses=[],
            master=lambda _: "address", readable=lambda _: "address", find_write_queues=answer,
            master_of=lambda _: "address", leader=lambda queue: queue.broker_name, broker_addresses=lambda **_: [],
        )  # fmt: skip

    def _register(self, name: str) -> None:
        if self.consumers[name]._instance.consumers and name not in self.registered:
            self.registered.add(name)
            self.tell_of_members()

    def unregister(self, name: str) -> None:
        self.registered.discard(name)
        self.tell_of_members()

    def tell_of_members(self) -> None:
        """What brokers do when members come and go; some are not told."""
        for consumer in self.consumers.values():
            for notice in list(consumer._instance.asked.watchers.values()):
                if self.random.random() < 0.8:
                    self.loop.call_later(self.random.choice([0, 0.01, 0.3]), notice)

    def lose(self, name: str) -> None:
        """A member's connection ends."""
        line = self.lines.pop(name, None)
        if line is not None:
            line.is_open = False
            line.wake()
            self.unregister(name)

    def restart(self, away_s: float) -> None:
        """The broker is killed: who is connected, who has locks and what was committed last is forgotten."""
        for name in list(self.lines):
            self.lose(name)
        self.owners.clear()
        self.committed = dict(self.persisted)
        self.down_until_s = self.loop.time() + away_s
        self.doubtful_until_s = self.down_until_s + 2 * LOCK_S
        self.again.update(QUEUES)

    def put(self, queue: MessageQueue, count: int) -> None:
        self.sizes[queue] += count
        for line in self.lines.values():
            line.wake()

    # -- requests ------------------------------------------------------------------------------------------------

    async def _pull(self, line: Line, header: Any, *, timeout_ms: float) -> Any:
        queue = MessageQueue(header.topic, "broker-a", header.queue_id)
        if header.sys_flag & 1:
            self.note_commit(line.name, queue, header.commit_offset)
        await self.take_time()
        line.check()
        if self.fails():
            raise NotSent("as the seed wants it", address="address")
        if header.queue_offset >= self.sizes[queue]:
            future = self.loop.create_future()
            line.held.add(future)
            try:
                async with asyncio.timeout(header.suspend_ms / 1000):
                    await future
            except TimeoutError:
                pass
            finally:
                line.held.discard(future)
            line.check()
        begin = header.queue_offset
        if (to := self.set_to.pop(queue, None)) is not None:
            return self._move(to, "OFFSET_RESET")
        if (left := self.left.pop(queue, None)) is not None:
            return self._move(int(left * begin), "OFFSET_OVERFLOW_BADLY")
        if begin < (oldest := self.oldest.get(queue, 0)):
            return self._pass(line, queue, begin, oldest)
        if begin in self.damaged[queue]:
            return self._pass(line, queue, begin, begin + 1)
        bad = [offset for offset in self.damaged[queue] if offset > begin]
        end = min(self.sizes[queue], begin + self.random.randint(1, 8), *bad)
        reply = SimpleNamespace(next_offset=max(begin, end), suggested_broker_id=0)
        if end <= begin:
            return PullResult(ResponseCode.PULL_NOT_FOUND, None, reply, b"")  # type: ignore[arg-type]
        return PullResult(0, None, reply, b"".join(self._stored(queue, o) for o in range(begin, end)))  # type: ignore[arg-type]

    def _pass(self, line: Line, queue: MessageQueue, begin: int, end: int) -> PullResult:
        self.passed[self.last[line.name, queue], begin] = end
        return self._move(end, "deleted")

    def _move(self, offset: int, remark: str) -> PullResult:
        moved = SimpleNamespace(next_offset=offset, suggested_broker_id=0)
        return PullResult(ResponseCode.PULL_OFFSET_MOVED, remark, moved, b"")  # type: ignore[arg-type]

    def _stored(self, queue: MessageQueue, offset: int) -> bytes:
        return record.encode(
            topic=queue.topic.encode(),
            queue_id=queue.queue_id,
            queue_offset=offset,
            position=offset,
            body=b"x",
            properties=b"TAGS\x01A\x02",
        )

    async def _max_offset(self, line: Line, queue: MessageQueue, **_: Any) -> int:
        await self.take_time()
        line.check()
        return self.sizes[queue]

    async def _min_offset(self, line: Line, queue: MessageQueue, **_: Any) -> int:
        await self.take_time()
        line.check()
        return self.oldest.get(queue, 0)

    async def _query_consumer_offset(self, line: Line, queue: MessageQueue, group: str, **_: Any) -> int | None:
        await self.take_time()
        found = self.committed.get(queue)
        await self.take_time()
        line.check()
        return found

    async def _update_consumer_offset(self, line: Line, queue: MessageQueue, group: str, offset: int, **_: Any) -> None:
        if self.fails():
            raise NotSent("as the seed wants it", address="address")
        self.note_commit(line.name, queue, offset)
        await self.take_time()
        line.check()
        if self.fails():
            raise ServerError(1, "as the seed wants it", address="address")

    def holds(self, held: bool, otherwise: str) -> None:
        """As assert, also where errors are caught."""
        if not held:
            self.faults.append(AssertionError(otherwise))

    def note_commit(self, name: str, queue: MessageQueue, offset: int) -> None:
        missing = set(range(offset)) - self.done[queue]
        self.holds(not missing, f"{queue}: {name} commits {offset}, but nobody was through with {sorted(missing)}")
        if queue not in self.again and self.owners and self.loop.time() > self.doubtful_until_s:
            # Locks alone keep a member that is late from undoing what the next one did.
            before = self.committed.get(queue, 0)
            self.holds(offset >= before, f"{queue}: {name} commits {offset} after {before}")
        self.committed[queue] = offset
        if self.random.random() < 0.5:
            self.persisted = dict(self.committed)

    async def _consumer_list(self, line: Line, group: str, **_: Any) -> list[str]:
        await self.take_time()
        line.check()
        return sorted([*self.registered, *self.ghosts])

    async def _lock(self, line: Line, group: str, client_id: str, queues: list[MessageQueue], **_: Any) -> Any:
        got = set()
        for queue in queues:
            owner, until_s = self.owners.get(queue, ("", 0.0))
            if owner in ("", client_id) or until_s < self.loop.time():
                self.owners[queue] = (client_id, self.loop.time() + LOCK_S)
                got.add(queue)
        await self.take_time()
        line.check()
        return got

    async def _unlock(self, line: Line, group: str, client_id: str, queues: list[MessageQueue], **_: Any) -> None:
        for queue in queues:
            if self.owners.get(queue, ("",))[0] == client_id:
                del self.owners[queue]
        await self.take_time()
        line.check()

    async def _send_back(self, line: Line, message: Any, group: str, **_: Any) -> None:
        await self.take_time()
        line.check()
        if self.fails(2):
            raise ServerError(1, "as the seed wants it", address="address")
        self.done[message.queue].add(message.queue_offset)

    async def _send(self, *_: Any, **__: Any) -> Any:
        raise ServerError(1, "as the seed wants it", address="address")

    # -- what must hold ------------------------------------------------------------------------------------------

    def gives(self, name: str, queue: MessageQueue, offset: int) -> Puller | None:
        """A member gives out a message: it is the next one of who reads the queue there, or one that was refused."""
        what = f"{name} gives out {offset} of {queue}"
        puller: Puller | None = self.consumers[name]._rebalance.pullers.get(queue)
        if puller is None or puller.dropped:
            self.holds(False, f"{what}, which it does not read, or gave up, or reads from elsewhere")
            return puller
        expected = self.given[puller]
        while expected != offset and (puller, expected) in self.passed:
            expected = self.passed[puller, expected]
        if offset < expected:
            self.holds((puller, offset) in self.refused, f"{what} twice")
            self.refused.discard((puller, offset))
        else:
            self.holds(offset == expected, f"{what}, {expected} is next")
            self.given[puller] = offset + 1
        return puller

    def called(self, name: str, queue: MessageQueue, offset: int) -> None:
        """A call for a queue that is read in order begins."""
        others = {n for (n, q), count in self.calls.items() if q == queue and count}
        self.holds(name not in others, f"two calls for {queue} at once")
        if self.loop.time() > self.doubtful_until_s:
            self.holds(not others, f"{queue} is in work at {others} and {name}")
            if queue not in self.again:
                known = offset in self.done[queue]
                self.holds(not known, f"{name} is given {offset} of {queue}, which was done with")
        missing = set(range(offset)) - self.done[queue]
        self.holds(not missing, f"{offset} of {queue} overtook {sorted(missing)}")

    def live(self, name: str) -> list[Puller]:
        return [f for n, f in self.pullers if n == name and f._task is not None and not f._task.done()]

    def check(self) -> None:
        """One puller for a queue and member at most, and each of them known to its consumer."""
        for name, consumer in self.consumers.items():
            for puller in self.live(name):
                known = consumer._rebalance.pullers.get(puller.queue)
                assert puller.dropped or known is puller, f"{puller.queue} is read by who is not known"
            rebalance = getattr(consumer, "_rebalance", None)  # A simple consumer has none.
            for queue, puller in rebalance.pullers.items() if rebalance is not None else ():
                if puller.committed_at is not None and puller.committed_at is self.lines.get(name):
                    failed = self.not_kept.get((name, queue)) == puller.committed
                    assert not failed, f"{name} takes {puller.committed} of {queue} for committed, which failed"

    def check_left(self, name: str) -> None:
        """A member that closed has left nothing behind."""
        assert self.live(name) == [], f"{name} reads on"
        assert name not in self.registered, f"{name} is a member still"
        assert not any(count for (n, _), count in self.calls.items() if n == name), f"calls of {name} run on"
        held = [q for q, (owner, _) in self.owners.items() if owner == name]
        assert not held or name in self.not_unlocked, f"{name} holds locks of {held}"

    def check_closed(self) -> None:
        """Nothing runs any more."""
        left = [t for t in asyncio.all_tasks(self.loop) if not t.done()]
        assert left == [], left
