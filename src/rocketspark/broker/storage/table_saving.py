"""Saves tables, and makes their JSON for clients. Rule: no client is told of a change that is not on disk.

A small table is encoded and written at once. Of a large table the rows are copied at once, so that they are of one
moment; a thread makes the JSON, in pieces, because encoding a large table in one piece would keep the loop from
running."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rocketspark import machine
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.storage.json_tables import sorted_json
from rocketspark.errors import RocketSparkError, StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer
from rocketspark.transport.request_frames import Parts, reply_with

log = LimitedLog("rocketspark.broker")

T = TypeVar("T")
Write = Callable[[bytes], None]

# Up to so many rows a table is made at once: some ms.
SMALL_ROWS = 1000
# Some 0.5 ms.
ROWS_IN_PIECE = 100
# Some 5 ms.
ROWS_IN_SORT = 16_384
# So long a save waits at most, while each turn of the loop brings changes.
GATHERED_S = 0.01


def pieces(
    around: Any, field: str, table: Mapping[str, T], encode: Callable[[list[tuple[str, T]]], bytes] | None = None
) -> Iterator[bytes]:
    """Yield the JSON of `around`, with the rows of a table, as they are now, in its empty field `field`.

    Without `encode` the rows are sorted; `encode` makes the JSON of some rows, in the table's order.
    """
    # Not as pairs: a hundred thousand new objects would be looked through by the garbage collection, all others too.
    return _pieces(sorted_json(around), field.encode(), list(table), list(table.values()), encode)


def _pieces(
    empty: bytes,
    field: bytes,
    names: list[str],
    values: list[T],
    encode: Callable[[list[tuple[str, T]]], bytes] | None,
) -> Iterator[bytes]:
    head, mark, tail = empty.partition(b'"%b":{' % field)
    assert mark
    yield head + mark
    order: Sequence[int] = range(len(names))
    if encode is None:
        order = _by_name(names)
        encode = _sorted_rows
    for at in range(0, len(order), ROWS_IN_PIECE):
        yield b"," * bool(at) + encode([(names[n], values[n]) for n in order[at : at + ROWS_IN_PIECE]])
    yield tail


def _by_name(names: list[str]) -> list[int]:
    """Return the numbers of the names, sorted by name: parts of them in one call each, as such a call keeps the loop
    waiting, of 100,000 names for 40 ms.
    """
    parts = [
        sorted(range(at, min(at + ROWS_IN_SORT, len(names))), key=names.__getitem__)
        for at in range(0, len(names), ROWS_IN_SORT)
    ]
    return parts[0] if len(parts) == 1 else list(heapq.merge(*parts, key=names.__getitem__))


def _sorted_rows(rows: list[tuple[str, T]]) -> bytes:
    return sorted_json(dict(rows))[1:-1]


def all_but_last(parts: Iterator[bytes]) -> Generator[bytes, None, bytes]:
    """Yield all pieces but the last, and return that one: something else stands in its place."""
    part = next(parts)
    for following in parts:
        yield part
        part = following
    return part


def joined(parts: Iterable[bytes]) -> bytes:
    """Return all pieces as one; called in a thread, it lets other threads run between them."""
    found = []
    for part in parts:
        found.append(part)
        machine.sleep(0)
    return b"".join(found)


class UnsavedChanges:
    """The changes of a table that are not on disk yet: changes of successive turns of the loop are saved together.

    `rows`: returns the table; `snapshot`: its JSON as it is now, in pieces; `write`: replaces the file. Before `begin`
    each change is saved at once. A reply that needs the change on disk waits for `saved`.
    """

    def __init__(
        self, name: str, rows: Callable[[], Collection[Any]], snapshot: Callable[[], Iterator[bytes]], write: Write
    ) -> None:
        self._name = name
        self._rows = rows
        self._snapshot = snapshot
        self._write = write
        # Numbers of changes.
        self._changed = 0
        self._on_disk = 0
        self._lock = threading.Lock()
        self._scheduled = False
        # Of a save that is scheduled: the change that the last turn of the loop saw, until when it waits for more, and
        # who waits for it.
        self._seen = 0
        self._until_s = 0.0
        self._turn: asyncio.Future[None] | None = None
        self._saving: asyncio.Future[None] | None = None
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._beside: BackgroundThread | None = None

    def begin(self, call_soon: Callable[[Callable[[], None]], object], beside: BackgroundThread) -> None:
        """Save changes on the loop from now on, large tables in the thread `beside`."""
        self._call_soon, self._beside = call_soon, beside

    def note(self) -> None:
        """Note a change: the next save or `flush` writes it."""
        self._changed += 1

    def changed(self) -> None:
        """Note a change and save it soon: once a turn of the loop brings no other, or after a short time."""
        self.note()
        if self._call_soon is None:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._until_s = machine.perf_counter() + GATHERED_S
            self._call_soon(self._in_turn)

    def flush(self) -> None:
        """Save the unsaved changes now. Raises StoreFull or StoreUnwritable: the next call tries again."""
        if self._on_disk < self._changed:
            self._replace(self._changed, self._snapshot())

    async def saved(self) -> None:
        """Wait until all changes so far are on disk. Raises StoreFull or StoreUnwritable."""
        wanted = self._changed
        while self._on_disk < wanted:
            if self._is_small:
                if self._scheduled:
                    self._turn = self._turn or asyncio.get_running_loop().create_future()
                    await asyncio.wait([self._turn])
                    continue
                self.flush()
                return
            # A save that is under way may have begun before the change.
            saving = self._saving or self._save_beside()
            await asyncio.wait([saving])
            if self._on_disk < wanted and saving.exception() is not None:
                saving.result()

    @property
    def _is_small(self) -> bool:
        return self._beside is None or len(self._rows()) <= SMALL_ROWS

    def _replace(self, number: int, parts: Iterator[bytes]) -> None:
        data = joined(parts)
        with self._lock:
            # A save in a thread may end after one that began later.
            if number > self._on_disk:
                self._write(data)
                self._on_disk = number

    def _save_beside(self) -> asyncio.Future[None]:
        assert self._beside is not None
        number, parts = self._changed, self._snapshot()
        self._saving = saving = self._beside.run(lambda: self._replace(number, parts))
        saving.add_done_callback(self._ended)
        return saving

    def _ended(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        if saving.cancelled():
            return
        if (error := saving.exception()) is not None:
            self._failed(error)
        elif self._on_disk < self._changed and not self._scheduled:
            self._in_turn()

    def _in_turn(self) -> None:
        if (
            self._scheduled
            and self._is_small
            and self._seen != self._changed
            and machine.perf_counter() < self._until_s
        ):
            # The requests of one read are begun in several turns: their changes go together.
            assert self._call_soon is not None
            self._seen = self._changed
            self._call_soon(self._in_turn)
            return
        self._scheduled = False
        turn, self._turn = self._turn, None
        try:
            if self._is_small:
                self.flush()
            elif self._saving is None and self._on_disk < self._changed:
                self._save_beside()
        except RocketSparkError as e:
            self._failed(e)
        finally:
            if turn is not None and not turn.done():
                turn.set_result(None)

    def _failed(self, error: BaseException) -> None:
        # The file has already logged an error of the disk, once.
        if not isinstance(error, StoreError):
            log.error("%s was not saved, it is tried again: %s", self._name, error)

    def again(self) -> None:
        """Try again to save changes after a failure; nothing is done if all are saved."""
        if self._on_disk < self._changed and not self._scheduled:
            self._in_turn()


class SavedTable:
    """A table's JSON for clients, which is made once for each state of the table.

    `state`: returns another value after each change; `snapshot`: returns the JSON as it is now, in pieces.
    """

    def __init__(
        self,
        state: Callable[[], Hashable],
        rows: Callable[[], Collection[Any]],
        snapshot: Callable[[], Iterator[bytes]],
        beside: BackgroundThread,
    ) -> None:
        self._state = state
        self._rows = rows
        self._snapshot = snapshot
        self._beside = beside
        self._kept: tuple[Hashable, int, bytes] | None = None
        self._making: asyncio.Future[tuple[int, bytes]] | None = None

    def now(self) -> tuple[int, bytes] | None:
        """Return (number of rows, JSON) if that is at hand; None if it must be made first."""
        if self._kept is None or self._kept[0] != self._state():
            if len(self._rows()) > SMALL_ROWS:
                return None
            self._kept = self._state(), len(self._rows()), b"".join(self._snapshot())
        return self._kept[1:]

    def answer(
        self, peer: Peer, request: Request[Any], count_name: str | None = None, header: dict[str, str] | None = None
    ) -> Answer:
        """Return the reply with the JSON. `header`: fields of it; `count_name`: the field for the number of rows."""
        if peer.is_writable and (found := self.now()) is not None:
            return _answer(request, found, count_name, header)
        # Its other requests of the same read wait until other connections had a turn.
        peer.rest()
        return self._answer_later(peer, request, count_name, header)

    async def _answer_later(
        self, peer: Peer, request: Request[Any], count_name: str | None, header: dict[str, str] | None
    ) -> bytes | Parts | None:
        found = await self.made()
        # Many may wait here: they are answered one after the other, as each reply is large.
        while peer.is_open and not peer.is_writable:
            await peer.writable()
        return _answer(request, found, count_name, header) if peer.is_open else None

    async def made(self) -> tuple[int, bytes]:
        """Return (number of rows, JSON), as of this call or later."""
        if self._making is not None:
            # Begun before the call: a change may be missing. All such calls share the next one.
            await asyncio.wait([self._making])
        if (found := self.now()) is not None:
            return found
        making = self._making or self._make()
        await asyncio.wait([making])
        return making.result()

    def _make(self) -> asyncio.Future[tuple[int, bytes]]:
        state, count, parts = self._state(), len(self._rows()), self._snapshot()

        def make() -> tuple[int, bytes]:
            return count, joined(parts)

        def keep(done: asyncio.Future[tuple[int, bytes]]) -> None:
            self._making = None
            if not done.cancelled() and done.exception() is None:
                self._kept = (state, *done.result())

        self._making = making = self._beside.run(make)
        making.add_done_callback(keep)
        return making


def _answer(
    request: Request[Any], found: tuple[int, bytes], count_name: str | None, header: dict[str, str] | None
) -> bytes | Parts:
    if count_name:
        header = {count_name: str(found[0])} | (header or {})
    return reply_with(found[1], request.opaque, header)
