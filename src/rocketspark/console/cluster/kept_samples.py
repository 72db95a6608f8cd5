"""The samples of plots in an SQLite file, so that plots go on after a restart. Rule: a file that is not ours, or is
damaged, stays as it is and another one beside it is used; nobody waits for the disk, and without it plots go on.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from rocketspark import machine
from rocketspark.model import typed_json
from rocketspark.model.limited_log import LimitedLog

log = LimitedLog("rocketspark.console")
Sample = tuple[float, dict[str, float]]
AGE_S = 86_400.0
# "RSsa" in the head of the file, and the version of its table.
APPLICATION_ID, VERSION = 0x52537361, 1
BESIDE_MAX = 9
BUSY_MS = 2000
CLOSE_S = 5.0
TABLE = """CREATE TABLE IF NOT EXISTS samples (namesrv TEXT NOT NULL, at REAL NOT NULL, figures BLOB NOT NULL,
    PRIMARY KEY (namesrv, at)) WITHOUT ROWID"""


class Foreign(Exception):
    """A file is not one of samples, or is damaged."""


class KeptSamples:
    """A file of samples. `namesrv`: whose samples are read and written, as consoles of several clusters may share the
    file; `samples_max`: how many of them are kept, none for longer than a day.
    """

    def __init__(self, path: Path, namesrv: str, samples_max: int) -> None:
        self._path, self._namesrv, self._samples_max = path, namesrv, samples_max
        self._connection: sqlite3.Connection | None = None
        self._file: Path | None = None
        # Files that turned out damaged while they were written.
        self._left: set[Path] = set()
        self._pool = ThreadPoolExecutor(1, "rocketspark-samples")
        self._writing: Future[None] | None = None

    async def load(self) -> list[Sample]:
        """Return the samples that are there, the oldest first."""
        return await asyncio.wrap_future(self._pool.submit(self._load))

    def add(self, at: float, figures: Mapping[str, float]) -> None:
        """Write a sample by and by; it is left out if the one before it is not written yet."""
        if self._writing is None or self._writing.done():
            self._writing = self._pool.submit(self._add, at, dict(figures))

    async def close(self) -> None:
        """Close the file, once what is being written is."""
        closing = asyncio.wrap_future(self._pool.submit(self._close))
        await asyncio.wait({closing}, timeout=CLOSE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _load(self) -> list[Sample]:
        for _ in range(BESIDE_MAX + 1):
            try:
                return self._read()
            except sqlite3.DatabaseError as e:
                if not self._leave(e):
                    break
        return []

    def _read(self) -> list[Sample]:
        connection = self._opened()
        if connection is None:
            return []
        now_s = machine.time_ns() / 1e9
        rows = connection.execute(
            "SELECT at, figures FROM samples WHERE namesrv = ? AND at BETWEEN ? AND ? ORDER BY at DESC LIMIT ?",
            (self._namesrv, now_s - AGE_S, now_s + 1, self._samples_max),
        ).fetchall()
        found = []
        for at, figures in reversed(rows):
            try:
                found.append((float(at), typed_json.decode(figures, dict[str, float])))
            except (msgspec.MsgspecError, TypeError):
                continue
        return found

    def _add(self, at: float, figures: dict[str, float]) -> None:
        try:
            connection = self._opened()
            if connection is None:
                return
            with connection:
                connection.execute(
                    "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)",
                    (self._namesrv, at, msgspec.json.encode(figures)),
                )
                connection.execute("DELETE FROM samples WHERE at NOT BETWEEN ? AND ?", (at - AGE_S, at + AGE_S))
                connection.execute(
                    "DELETE FROM samples WHERE namesrv = ?1 AND at < (SELECT at FROM samples WHERE namesrv = ?1"
                    " ORDER BY at DESC LIMIT 1 OFFSET ?2)",
                    (self._namesrv, self._samples_max - 1),
                )
        except sqlite3.DatabaseError as e:
            self._leave(e)

    def _leave(self, error: sqlite3.DatabaseError) -> bool:
        """Say what is wrong, and tell whether another file is used from now on."""
        damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        path = self._file
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in damaged or path is None:
            log.warning("samples are not kept in %s: %s", self._path, error)
            return False
        log.warning("%s is damaged (%s) and is left as it is: samples are kept in a file beside it", path, error)
        self._left.add(path)
        self._close()
        return True

    def _opened(self) -> sqlite3.Connection | None:
        """Return the connection; None if no file can be used, which is said."""
        if self._connection is not None:
            return self._connection
        for path in (self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, BESIDE_MAX + 1))):
            if path in self._left:
                continue
            try:
                self._connection, self._file = _open(path), path
            except Foreign as e:
                log.warning("%s %s: it is left as it is, and samples are kept in a file beside it", path, e)
                self._left.add(path)
            except (OSError, sqlite3.Error) as e:
                log.warning("samples are not kept, as %s cannot be used: %s", path, e)
                return None
            else:
                return self._connection
        log.warning("samples are not kept: %s and %d files beside it are of something else", self._path, BESIDE_MAX)
        return None

    def _close(self) -> None:
        connection, self._connection, self._file = self._connection, None, None
        if connection is not None:
            connection.close()


def _open(path: Path) -> sqlite3.Connection:
    """Open a file of samples, make it if it is not there. Raises Foreign, OSError, sqlite3.Error."""
    # Names of groups are in it: nobody else's to read.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, check_same_thread=False)
    try:
        with connection:
            # One at a time looks, and makes the table.
            connection.execute("BEGIN IMMEDIATE")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            heads = ("application_id", "user_version")
            head = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in heads)
            if tables and head != (APPLICATION_ID, VERSION):
                raise Foreign("is a database of something else")
            if not tables:
                connection.execute(TABLE)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
        if (wrong := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise Foreign(f"is damaged ({wrong})")
        # A power cut may take the last samples, and nothing else.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.DatabaseError as e:
        connection.close()
        if e.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise Foreign(f"is damaged, or no database ({e})") from e
        raise
    except BaseException:
        connection.close()
        raise
    return connection
