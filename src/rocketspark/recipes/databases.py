"""The databases that recipes keep their tables in, by URL. Rule: what differs between them stands in their classes.

SQL is written once, with `?` for values; statements are those that SQLite 3.24 and PostgreSQL 12 both know.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any

from rocketspark.errors import ConfigError, DatabaseFailed, StateError

TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
# Of the texts that are unique in a table: a database's index takes a bounded length.
KEY_CHARACTERS_MAX = 500


class Database(ABC):
    """A database. `name`: its URL as it may be shown; `kind`: what stands before the URL's colon.

    `wait_ms`: how long to wait for a lock that another transaction holds.
    """

    kind: str
    # How this database spells types and clauses that the tables need.
    words: dict[str, str]

    def __init__(self, name: str, wait_ms: float) -> None:
        self.name = name
        self.wait_ms = wait_ms

    def sql(self, text: str) -> str:
        """A statement in this database's spelling."""
        return text

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """A connection in a transaction that commits at the end of the block, and rolls back if that raises.

        Raises DatabaseFailed if it cannot begin, StateError if the block has ended the transaction itself.
        """

    @abstractmethod
    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        """As `transaction`, for coroutines; its connection is the database's own asynchronous one if it has any."""

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Makes the driver's errors DatabaseFailed, or ConfigError where a table is missing."""

    @abstractmethod
    def now_ms(self, connection: Any) -> int:
        """The time that all who use this database agree on, in ms since 1970."""

    @contextmanager
    def work(self) -> Iterator[Any]:
        """A transaction of our own statements alone: all its errors are ours."""
        with self.errors(), self.transaction() as connection:
            yield connection

    def run(self, connection: Any, text: str, values: Sequence[Any] = ()) -> Any:
        """Execute one statement; returns its cursor."""
        return connection.execute(self.sql(text), values)

    def create(self, statements: Sequence[str]) -> None:
        """Create tables and indexes; statements say IF NOT EXISTS."""
        with self.work() as connection:
            for text in statements:
                connection.execute(text.format(**self.words))

    @abstractmethod
    def close(self) -> None:
        """Close the connections that are not in use."""

    def _no_table(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.name}: {str(error).splitlines()[0]}: make the tables first, with create_tables()")

    def _ended(self) -> StateError:
        return StateError(
            f"{self.name}: the transaction was committed, rolled back or failed inside the block: do neither there, and"
            " let errors pass"
        )


def database_of(url: str | Database, *, wait_ms: float = 5000, must_exist: bool = False) -> Database:
    """The database of a URL: `sqlite:///file.db`, `sqlite:////absolute/file.db` or `postgresql://user@host/name`.

    `wait_ms`: how long a transaction waits for a lock; `must_exist`: an SQLite file is not made. Raises ConfigError.
    """
    if isinstance(url, Database):
        return url
    scheme, colon, _ = url.partition("://")
    if scheme == "sqlite" and url.startswith("sqlite:///"):
        from rocketspark.recipes.sqlite import Sqlite

        return Sqlite(url.removeprefix("sqlite:///"), wait_ms=wait_ms, must_exist=must_exist)
    if colon and scheme in ("postgresql", "postgres"):
        from rocketspark.recipes.postgres import Postgres

        return Postgres(url, wait_ms=wait_ms)
    raise ConfigError(f"{shown(url)!r} is no database: give sqlite:///file.db or postgresql://user@host/name")


def shown(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1@", re.sub(r"(password=)[^&]*", r"\1***", url))


def check_table(name: str) -> str:
    """The table name itself. Raises ConfigError unless letters, digits and _ make it up."""
    if not TABLE.fullmatch(name):
        raise ConfigError(f"table {name!r}: a letter, then up to 40 letters, digits and _ are needed")
    return name


def failed(name: str, error: Exception) -> DatabaseFailed:
    """What a driver's error becomes."""
    return DatabaseFailed(f"{name}: {' '.join(str(error).split()) or type(error).__name__}")
