"""Where a group's offsets are kept: on the brokers, or, for broadcasting, in a file of each member's own.

Rule: RemoteBrokerOffsetStore and LocalFileOffsetStore, 5.x; the file is Java's: folder/client id/group/offsets.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rocketspark.client import requests
from rocketspark.client.instance import Instance
from rocketspark.errors import ConfigError, ProtocolError
from rocketspark.model import MessageQueue
from rocketspark.protocol.queue_offsets import decode_offsets, encode_offsets

FOLDER = "~/.rocketmq_offsets"
Failures = dict[MessageQueue, Exception]


class OffsetStore(Protocol):
    """Committed offsets of one group."""

    async def load(self) -> None:
        """Before anything else; raises ConfigError."""

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """The next offset to read, None if there is none. Raises ServerError or TransportError.

        A broker answers 0 for a young queue without one, unless `zero_if_not_found` is false.
        """

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False
    ) -> dict[MessageQueue, Exception]:
        """Keep these; returns what could not be kept, and why."""

    def place(self, queue: MessageQueue) -> object:
        """What keeps the offset of a queue just now; another one knows nothing of what was committed."""


class BrokerOffsets:
    """Kept by the brokers; shared by the whole group."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def load(self) -> None:
        """Nothing to do."""

    async def committed(self, queue: MessageQueue, *, zero_if_not_found: bool | None = None) -> int | None:
        """As its broker has it."""
        peer = await self._instance.peer_of(queue)
        return await requests.query_consumer_offset(peer, queue, self._group, zero_if_not_found=zero_if_not_found)

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False
    ) -> dict[MessageQueue, Exception]:
        """Each is told its broker, all at once: one that hangs costs its time-out once."""
        failed: dict[MessageQueue, Exception] = {}

        async def tell(queue: MessageQueue, offset: int) -> None:
            try:
                peer = await self._instance.peer_of(queue)
                await requests.update_consumer_offset(peer, queue, self._group, offset, oneway=oneway)
            except Exception as e:
                failed[queue] = e

        await asyncio.gather(*(tell(queue, offset) for queue, offset in offsets.items()))
        return failed

    def place(self, queue: MessageQueue) -> object:
        """The connection: a broker that was killed may have lost what was committed last."""
        return self._instance.peer_in_use(queue)


class LocalOffsets:
    """Kept in a file of this client alone; the one before stays beside it as offsets.json.bak."""

    def __init__(self, folder: str | None, instance: Instance, group: str) -> None:
        self._root = Path(folder or FOLDER).expanduser()
        self._instance = instance
        self._group = group
        self._table: dict[MessageQueue, int] = {}

    @property
    def path(self) -> Path:
        """The file; known once the instance has its client id."""
        return self._root / self._instance.client_id / self._group / "offsets.json"

    async def load(self) -> None:
        """Read the file, or the one before if it cannot be read. Raises ConfigError if neither can."""
        self._table = await asyncio.to_thread(self._read)

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
        """As the file has it."""
        return self._table.get(queue)

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, oneway: bool = False
    ) -> dict[MessageQueue, Exception]:
        """Written to a new file that then takes the old one's place."""
        if not offsets:
            return {}
        self._table |= offsets
        try:
            await asyncio.to_thread(self._write, encode_offsets(self._table))
        except OSError as e:
            return dict.fromkeys(offsets, e)
        return {}

    def place(self, queue: MessageQueue) -> object:
        """The file."""
        return self._root

    def _write(self, data: bytes) -> None:
        path = self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name("offsets.json.tmp")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, path.with_name("offsets.json.bak"))
        os.replace(fresh, path)
