"""Stores of a group's offsets: the brokers, or, for broadcasting, a file of each member's own.

Rule: RemoteBrokerOffsetStore and LocalFileOffsetStore, 5.x; the file is Java's: folder/client id/group/offsets.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.errors import ConfigError, ProtocolError, RocketSparkError, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.metadata import decode_offsets, encode_offsets

FOLDER = "~/.rocketmq_offsets"

LatestOffset = Callable[[MessageQueue], int | None]


class OffsetStore(Protocol):
    """Committed offsets of one group."""

    async def load(self) -> None:
        """Load the offsets, before any other call; raises ConfigError."""

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """Return the next offset to read, None if there is none. Raises ServerError or TransportError.

        A broker answers 0 for a young queue without one, unless `zero_if_not_found` is false.
        """

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False, latest: LatestOffset | None = None
    ) -> dict[MessageQueue, Exception]:
        """Store these offsets; return the queues whose offset could not be stored, and why.

        `latest` gives the offset of a queue whose turn comes, where it may have moved since; None: store nothing.
        """

    def place(self, queue: MessageQueue) -> object:
        """Return what stores the queue's offset now; another object than before may lack earlier commits."""


class BrokerOffsets:
    """Offsets stored by the brokers, shared by the whole group."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group
        # By broker and topic: the connection over which a commit was answered; who else waits for the first one.
        self._made: dict[tuple[str, str], object] = {}
        self._making: dict[tuple[str, str], asyncio.Event] = {}
        # Commits under way, each queue's latest: a broker may carry out two of one queue in either order.
        self._telling: dict[MessageQueue, asyncio.Future[None]] = {}

    async def load(self) -> None:
        """Do nothing."""

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """Return the offset that the queue's broker has: a slave's only while there is no master."""
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
        """Return the connection: a broker that was killed may have lost the last commits."""
        return self._instance.peer_in_use(queue)


class LocalOffsets:
    """Offsets stored in a file of this client alone; the file before stays beside it as offsets.json.bak."""

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
            if number != str(os.getpid()) and not (number.isdigit() and _lives(int(number))):
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
            fresh = path.with_name(f"offsets.json.{os.getpid()}.tmp")
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
