"""The offsets of one consumer's queues: what stores them, where a queue begins, and what is committed.

Brokers store them; for broadcasting a file of each member's own does, at Java's place (folder/client id/group/
offsets.json; rules: RemoteBrokerOffsetStore and LocalFileOffsetStore, 5.x). A queue begins at the group's committed
offset, and what is committed is never older than what was committed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol
from weakref import WeakKeyDictionary

from rocketspark import machine
from rocketspark.client import validators
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import AWAY_S, Instance
from rocketspark.client.consumer.puller import Puller
from rocketspark.errors import ConfigError, ProtocolError, RocketSparkError, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers.messages import plain_pull
from rocketspark.protocol.json.metadata import decode_offsets, encode_offsets
from rocketspark.transport.peer import Peer

FOLDER = "~/.rocketmq_offsets"
# After so long an offset is told again that has not moved. Java's client tells all each time (5 s).
AGAIN_S = 30.0

LatestOffset = Callable[[MessageQueue], int | None]


class OffsetStore(Protocol):
    """Committed offsets of one group."""

    async def load(self) -> None:
        """Load the offsets, before any other call; raises ConfigError."""

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """Return the group's committed offset of a queue, the next one to read; None if there is none. Raises
        ServerError or TransportError.

        For a queue that still has its first messages, a broker answers 0 where none is committed, unless
        `zero_if_not_found` is false.
        """

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False, latest: LatestOffset | None = None
    ) -> dict[MessageQueue, Exception]:
        """Store these offsets; return the queues whose offset could not be stored, and why.

        `latest`, if given, is asked for a queue's offset right before it is stored, as it may have moved; its None
        means that nothing is stored for the queue.
        """

    def place(self, queue: MessageQueue) -> object:
        """Return an object that stands for where a queue's offset is stored now. If another is returned later, commits
        may be lost there.
        """

    @property
    def forgets(self) -> bool:
        """True if commits may be lost even while `place` returns the same object: they are sent again at times."""


class BrokerOffsets:
    """Offsets stored by the brokers, shared by the whole group."""

    # A master that stood still, was replaced and is elected again takes the older offsets of who was master meanwhile.
    forgets = True

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        # By broker and topic: the connection over which a commit was answered; who else waits for the first one.
        self._made: dict[tuple[str, str], object] = {}
        self._making: dict[tuple[str, str], asyncio.Event] = {}
        # Of connections to slaves: what stands for each as a place.
        self._as_slave: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        # Commits under way, each queue's latest: a broker may carry out two of one queue in either order.
        self._telling: dict[MessageQueue, asyncio.Future[None]] = {}

    async def load(self) -> None:
        """Do nothing."""

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """Return the offset that the queue's broker has; a slave is asked only while there is no master."""
        peer = await self._instance.peer_of(queue, master_first=True)
        return await client_api.query_consumer_offset(peer, queue, self._group, zero_if_not_found=zero_if_not_found)

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False, latest: LatestOffset | None = None
    ) -> dict[MessageQueue, Exception]:
        """Send each offset to its broker. A broker that hangs holds up no other, and costs two time-outs at most.

        A new connection's first commit to a topic is answered before others are sent (see `commits_in_turn`).
        """
        failed: dict[MessageQueue, Exception] = {}

        async def tell(queue: MessageQueue, *, oneway: bool) -> bool:
            before = self._telling.get(queue)
            told = self._telling[queue] = asyncio.get_running_loop().create_future()

            def over(_: object = None) -> None:
                told.set_result(None)
                if self._telling.get(queue) is told:
                    del self._telling[queue]

            try:
                if before is not None:
                    await asyncio.wait([before])
                return await tell_in_turn(queue, oneway=oneway)
            finally:
                if before is None or before.done():
                    over()
                else:
                    # Given up while it waited: who comes next waits for the one before.
                    before.add_done_callback(over)

        async def tell_in_turn(queue: MessageQueue, *, oneway: bool) -> bool:
            try:
                peer = await self._instance.peer_of(queue)
                offset = latest(queue) if latest is not None else offsets[queue]
                if offset is None:
                    return False
                await client_api.update_consumer_offset(peer, queue, self._group, offset, oneway=oneway)
            except Exception as e:
                failed[queue] = e
                if isinstance(e, ServerError) and e.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                    # It moved; the next commit goes to who leads it now.
                    with contextlib.suppress(RocketSparkError):
                        await self._instance.routes.refresh(queue.topic)
                return False
            return True

        async def tell_topic(table: tuple[str, str], queues: list[MessageQueue]) -> None:
            if self._made.get(table) is not (self.place(queues[0]) or self):
                if (making := self._making.get(table)) is not None:
                    await making.wait()
                elif len(queues) > 1 or not oneway:
                    making = self._making[table] = asyncio.Event()
                    try:
                        if await tell(queues[0], oneway=False):
                            self._made[table] = self.place(queues[0])
                    finally:
                        del self._making[table]
                        making.set()
                    queues = queues[1:]
            await asyncio.gather(*(tell(queue, oneway=oneway) for queue in queues))

        tables: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in offsets:
            tables.setdefault((self._instance.routes.leader(queue), queue.topic), []).append(queue)
        await asyncio.gather(*(tell_topic(*table) for table in tables.items()))
        return failed

    def place(self, queue: MessageQueue) -> object:
        """Return the connection to the queue's broker: a broker that was killed and started again may have lost the
        last commits.

        For a slave another object is returned: once it is elected master it has its former master's table, and has lost
        what was committed to it as a slave.
        """
        peer = self._instance.peer_in_use(queue)
        if peer is None or self._instance.routes.master_of(queue) is not None:
            return peer
        return self._as_slave.setdefault(peer, object())


class LocalOffsets:
    """Offsets in a file that only this client uses. The previous version of the file is kept as offsets.json.bak."""

    forgets = False

    def __init__(self, folder: str | None, instance: Instance, group: str) -> None:
        self._root = Path(folder or FOLDER).expanduser()
        self._instance = instance
        self._group = group
        self._table: dict[MessageQueue, int] = {}
        # Of the threads that write: a commit that was given up may still be at it.
        self._writing = threading.Lock()

    @property
    def path(self) -> Path:
        """Return the file's path; known once the instance has its client id."""
        return self._root / self._instance.client_id / self._group / "offsets.json"

    async def load(self) -> None:
        """Read the file, or the one before if it cannot be read. Raises ConfigError if neither can."""
        await asyncio.to_thread(self._remove_leftovers)
        self._table = await asyncio.to_thread(self._read)

    def _remove_leftovers(self) -> None:
        """Remove unfinished files of processes that were killed; a process that is alive may still write its own."""
        for path in self.path.parent.glob("offsets.json.*.tmp"):
            number = path.name.split(".")[2]
            if number != str(machine.getpid()) and not (number.isdigit() and _lives(int(number))):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _read(self) -> dict[MessageQueue, int]:
        problem: Exception | None = None
        for path in (self.path, self.path.with_name("offsets.json.bak")):
            try:
                return decode_offsets(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ProtocolError) as e:
                problem = e
        if problem is not None:
            text = f"the offsets of group {self._group!r} in {self.path} cannot be read: {problem}"
            raise ConfigError(f"{text}; mend the file, or remove it to begin as consume_from says")
        return {}

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """Return the offset that the file has."""
        return self._table.get(queue)

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False, latest: LatestOffset | None = None
    ) -> dict[MessageQueue, Exception]:
        """Write a new file, which then takes the old one's place."""
        if not offsets:
            return {}
        now = {queue: latest(queue) if latest is not None else offset for queue, offset in offsets.items()}
        self._table |= {queue: offset for queue, offset in now.items() if offset is not None}
        try:
            await asyncio.to_thread(self._write)
        except OSError as e:
            return dict.fromkeys(offsets, e)
        return {}

    def place(self, queue: MessageQueue) -> object:
        """Return the file's path."""
        return self._root

    def _write(self) -> None:
        with self._writing:
            # Only now: the last of several commits writes the offsets of all.
            data = encode_offsets(self._table.copy())
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            # A forked child, or another process of this client id, may write its own at the same time.
            fresh = path.with_name(f"offsets.json.{machine.getpid()}.tmp")
            try:
                with fresh.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path, path.with_name("offsets.json.bak"))
                os.replace(fresh, path)
            except OSError:
                with contextlib.suppress(OSError):
                    fresh.unlink()
                raise
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return pid > 0


log = logging.getLogger("rocketspark.client")

ConsumeFrom = Literal["last", "first"] | int


class Presence:
    """Whether a program went on all the time, and brokers heard of it; it looks here every few seconds."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._before = instance.silences
        self._stops = 0
        self._seen = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        # By the time of day too: where the machine sleeps, the clock that is never set may stand still.
        return machine.monotonic(), machine.time()

    def absences(self) -> int:
        """Return how often the program or its machine stood still, or was cut off from a broker, for so long that it
        may have been taken for gone.
        """
        now, before = self._now(), self._seen
        self._seen = now
        self._stops += max(now[0] - before[0], now[1] - before[1]) > AWAY_S
        return self._stops + self._instance.silences - self._before


class OffsetCommits:
    """The offsets of one consumer. `store` keeps them; `pullers`: the puller that reads each queue now.

    `consume_from`: where a queue without a committed offset begins ("last", "first", or a time in ms). `to_commit`
    returns up to which offset the application has finished a puller's queue. `absences` returns how often others may
    have read the queues: what they committed is not set back then. `told`: of each queue, the largest offset that its
    broker may have from here: a larger one is others'.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        store: OffsetStore,
        pullers: Mapping[MessageQueue, Puller],
        *,
        consume_from: ConsumeFrom,
        to_commit: Callable[[Puller], int],
        absences: Callable[[], int] = lambda: 0,
    ) -> None:
        if consume_from not in ("last", "first") and not isinstance(consume_from, int):
            raise ConfigError(f"consume_from {consume_from!r}: 'last', 'first' or a time in ms since 1970 is needed")
        self.store = store
        self._read_to = to_commit
        self._instance = instance
        self._group = group
        self._pullers = pullers
        self._consume_from = consume_from
        self._absences = absences
        self.told: dict[MessageQueue, int] = {}

    def to_commit(self, puller: Puller) -> int:
        """Return the offset to commit of a puller's queue: up to where the application finished it, or where a broker
        reset it to.
        """
        return self._read_to(puller) if puller.reset_to is None else puller.reset_to

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return the offset at which to begin a queue: the committed one, else the one that `consume_from` means."""
        peer = await self._instance.peer_of(queue)
        is_retry = queue.topic.startswith(validators.RETRY_PREFIX)
        # Asked first: what comes between the two questions is not missed.
        end = 0
        if self._consume_from == "last" and not is_retry:
            end = await self._bound(peer, queue, client_api.max_offset, "max_offset")
        committed = await self.store.committed(queue)
        if committed is not None and committed >= 0:
            self.told[queue] = committed
            return committed
        if is_retry or self._consume_from == "last":
            return end
        if self._consume_from == "first":
            return await self._bound(peer, queue, client_api.min_offset, "min_offset")
        return await client_api.search_offset(peer, queue, int(self._consume_from))

    async def _bound(
        self, peer: Peer, queue: MessageQueue, ask: Callable[[Peer, MessageQueue], Awaitable[int]], name: str
    ) -> int:
        """Return where a queue begins or ends. Who may read it, and not ask that, is told with the answer to a pull."""
        try:
            return await ask(peer, queue)
        except ServerError as e:
            if not e.no_permission:
                raise
        header = plain_pull(self._group, queue.topic, queue.queue_id, 0, 1, broker_name=queue.broker_name)
        bound: int = getattr((await client_api.pull(peer, header)).header, name)
        return bound

    def telling(self, queue: MessageQueue, offset: int) -> None:
        """Note an offset that is on its way: it may be lost, and what the broker has of this member be more."""
        self.told[queue] = max(self.told.get(queue, -1), offset)

    def is_told(self, queue: MessageQueue, offset: int) -> None:
        """Note an offset that a broker has now: a master, as its table replaces what a slave was told."""
        if self._has_master(queue):
            self.told[queue] = offset
        else:
            self.telling(queue, offset)

    async def of_others(self, puller: Puller, at: int) -> int | None:
        """Return the offset up to which others have read a puller's queue, if that is beyond `at`; else None. Raises
        RocketSparkError.
        """
        committed = await self.store.committed(puller.queue)
        if committed is None or committed <= max(at, self.told.get(puller.queue, -1)):
            return None
        return committed

    async def _is_mine(self, puller: Puller, *, strict: bool) -> bool:
        """Tell whether nobody else has read a puller's queue further."""
        try:
            return puller.reset_to is not None or await self.of_others(puller, self.to_commit(puller)) is None
        except RocketSparkError as e:
            if strict:
                raise
            log.warning("how far %s was read is not known, nothing is committed: %s", puller.queue, e)
            return False

    def _is_unknown(self, puller: Puller) -> bool:
        """Tell whether the place that stores offsets may not know how far a queue was read."""
        place = self.store.place(puller.queue)
        if self.to_commit(puller) != puller.committed or place is not puller.committed_at:
            return True
        return self.store.forgets and asyncio.get_running_loop().time() - puller.committed_s >= AGAIN_S

    async def _find_masters(self, pullers: list[Puller]) -> None:
        """Ask whether masters are back that slaves stand in for: their tables replace what slaves are told last."""
        for topic in {puller.queue.topic for puller in pullers if not self._has_master(puller.queue)}:
            with contextlib.suppress(RocketSparkError):
                await self._instance.routes.refresh(topic)

    def _has_master(self, queue: MessageQueue) -> bool:
        return self._instance.routes.master_of(queue) is not None

    async def _moved(self, pullers: list[Puller], absences: int, *, strict: bool) -> dict[MessageQueue, Puller]:
        """Return those pullers whose offset is to be committed, by queue, without those that others read further."""
        moved = {puller.queue: puller for puller in pullers if self._is_unknown(puller)}
        doubtful = [puller for puller in moved.values() if puller.absences < absences]
        mine = await asyncio.gather(*(self._is_mine(puller, strict=strict) for puller in doubtful))
        for puller, is_mine in zip(doubtful, mine, strict=True):
            if not is_mine:
                del moved[puller.queue]
        return moved

    async def commit(self, pullers: Iterable[Puller], *, oneway: bool = False, strict: bool = False) -> None:
        """Commit the offsets of those pullers' queues that moved since the last commit, or that the broker may have
        lost.

        `oneway`: without waiting for replies. `strict`: a failure is raised; else it is tried again with the next
        commit.
        """
        pullers = list(pullers)
        if not oneway:
            await self._find_masters(pullers)
        absences = self._absences()
        moved = await self._moved(pullers, absences, strict=strict)
        leaving = {puller for puller in moved.values() if puller.leaving}
        told: dict[Puller, tuple[int, object, float]] = {}
        # Whose broker heard of this member again after a long time just now, as the connection began.
        again: list[Puller] = []

        def latest(queue: MessageQueue) -> int | None:
            puller = moved[queue]
            if self._pullers.get(queue) is not puller or (puller.leaving and puller not in leaving):
                return None  # Whoever gives it up or resets it commits it; another member may read it already.
            if self._absences() > absences:
                again.append(puller)
                return None
            offset = self.to_commit(puller)
            # As it is now: what takes its place meanwhile knows nothing of this.
            told[puller] = offset, self.store.place(queue), asyncio.get_running_loop().time()
            self.telling(queue, offset)
            return offset

        offsets = {queue: self.to_commit(puller) for queue, puller in moved.items()}
        failed = await self.store.commit(offsets, oneway=oneway, latest=latest)
        for queue, puller in moved.items():
            error = failed.get(queue)
            if error is None:
                if puller in told:
                    puller.committed, puller.committed_at, puller.committed_s = told[puller]
                    if not oneway and self._pullers.get(queue) is puller:
                        self.is_told(queue, puller.committed)
            elif not strict:
                known = isinstance(error, (RocketSparkError, OSError))
                text = "offset %d of %s is not committed: %s"
                log.warning(text, offsets[queue], queue, error, exc_info=None if known else error)
        if strict:
            for error in failed.values():
                raise error
        if again:
            await self.commit(again, oneway=oneway, strict=strict)
