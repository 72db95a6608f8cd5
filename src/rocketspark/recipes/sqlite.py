"""SQLite, by the standard library. Rule: every transaction begins IMMEDIATE, so that none fails half way for a lock.

One transaction of all processes writes at a time: the others wait for their turn.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from rocketspark.errors import ConfigError
from rocketspark.recipes.database import Database, failed

FIRST_PAUSE_S = 0.002
PAUSE_MAX_S = 0.05
# After so many steps of SQLite's machine a statement that only reads looks whether its time is over.
STEPS = 10_000
# Connections of the process that this one was forked from.
_PARENTS: list[sqlite3.Connection] = []


class Sqlite(Database):
    """An SQLite file. Coroutines share its connection on the loop's thread: keep their transactions short."""

    kind = "sqlite"
    words = {"number": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"}

    def __init__(self, path: str, *, wait_ms: float = 5000, must_exist: bool = False, read_only: bool = False) -> None:
        if not path or path.startswith(":memory:"):
            raise ConfigError(
                "sqlite:// needs a file, such as sqlite:///shop.db: a database in memory does not survive a kill"
            )
        super().__init__(f"sqlite:///{path}", wait_ms, read_only)
        self._path = Path(path)
        if must_exist and not self._path.is_file():
            raise ConfigError(f"{self.name}: there is no such file")
        self._guard = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """As Database.errors."""
        try:
            yield
        except sqlite3.Error as e:
            raise self._no_table(e) if "no such table" in str(e) else failed(self.name, e) from e

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """As Database.transaction."""
        connection = self._take()
        try:
            with self.errors():
                connection.execute(f"PRAGMA busy_timeout = {int(self.wait_ms)}")
                connection.execute("BEGIN" if self.read_only else "BEGIN IMMEDIATE")
                if self.read_only:
                    end_s = time.monotonic() + self.wait_ms / 1000
                    connection.set_progress_handler(lambda: time.monotonic() > end_s, STEPS)
            with self._ending(connection):
                yield connection
        finally:
            self._give_back(connection)

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[sqlite3.Connection]:
        """As Database.transaction_async; waiting for the lock lets the loop go on."""
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turns:
            connection = self._take()
            try:
                connection.execute("PRAGMA busy_timeout = 0")
                await self._begin(connection)
                with self._ending(connection):
                    yield connection
            finally:
                self._give_back(connection)

    async def _begin(self, connection: sqlite3.Connection) -> None:
        end_s, pause_s = time.monotonic() + self.wait_ms / 1000, FIRST_PAUSE_S
        while True:
            try:
                connection.execute("BEGIN" if self.read_only else "BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as e:
                # Not the text alone: it is "database is locked" for both kinds of locks.
                if e.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise failed(self.name, e) from e
                if time.monotonic() >= end_s:
                    raise failed(self.name, e) from e
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    @contextmanager
    def _ending(self, connection: sqlite3.Connection) -> Iterator[None]:
        try:
            yield
            if not connection.in_transaction:
                raise self._ended()
            with self.errors():
                # Others may be reading still: a commit waits for them as a beginning does.
                connection.execute(f"PRAGMA busy_timeout = {int(self.wait_ms)}")
                connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def now_ms(self, connection: Any) -> int:
        """As Database.now_ms: one file, one machine, one clock."""
        return time.time_ns() // 1_000_000

    def size_bytes(self, connection: sqlite3.Connection, table: str) -> int:
        """As Database.size_bytes: of the whole file."""
        pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(pages) * int(page_bytes)

    def close(self) -> None:
        """As Database.close."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def forked(self) -> None:
        """As Database.forked. SQLite forbids to use, and to close, what a parent opened: it is kept as it is."""
        _PARENTS.extend(self._idle)
        self._guard, self._idle, self._turns = threading.Lock(), [], WeakKeyDictionary()

    def __del__(self) -> None:
        # No caller closes a store that was made from a URL.
        if hasattr(self, "_idle"):
            self.close()

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            with self.errors():
                # Used by one thread at a time, not by one thread alone.
                if self.read_only:
                    place = f"{self._path.absolute().as_uri()}?mode=ro"
                    connection = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
                else:
                    connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.row_factory = None
        connection.text_factory = str
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            self._idle.append(connection)
