"""The base class of the databases that recipes keep their tables in. Rule: what differs between databases is in the
subclasses.

SQL is written once, with `?` for values; statements are those that SQLite 3.24 and PostgreSQL 12 both know.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakSet

from rocketspark.errors import ConfigError, DatabaseFailed, StateError

TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
# Of the texts that are unique in a table: a database's index takes a bounded length.
KEY_CHARACTERS_MAX = 500


class Database(ABC):
    """A database. `name`: its URL as it may be shown; `kind`: the scheme of the URL, such as sqlite.

    `wait_ms`: how long to wait for a lock that another transaction holds. `read_only`: nothing can be changed; then a
    statement that takes longer than `wait_ms` is given up, too.
    """

    kind: str
    # This database's spelling of types and clauses that the tables need.
    words: dict[str, str]

    def __init__(self, name: str, wait_ms: float, read_only: bool) -> None:
        self.name = name
        self.wait_ms = wait_ms
        self.read_only = read_only
        _open.add(self)

    def sql(self, text: str) -> str:
        """Return a statement with its placeholders for values as this database's driver writes them."""
        return text

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Begin a transaction, and give its connection to the block: it commits at the end, and rolls back if the block
        raises.

        Raises DatabaseFailed if it cannot begin, StateError if the block has ended the transaction itself.
        """

    @abstractmethod
    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction as `transaction` does, for coroutines; the connection is an asynchronous one if the
        driver has any.
        """

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """While the block runs, turn the driver's errors into DatabaseFailed, or into ConfigError where a table is
        missing.
        """

    @abstractmethod
    def now_ms(self, connection: Any) -> int:
        """Return the time in ms since 1970 by a clock that all users of this database share."""

    @abstractmethod
    def size_bytes(self, connection: Any, table: str) -> int:
        """Return how much a table and its indexes take on the disk; of SQLite the whole file."""

    @contextmanager
    def work(self) -> Iterator[Any]:
        """Give the block a connection in a transaction for the recipes' own statements: errors become DatabaseFailed or
        ConfigError.
        """
        with self.errors(), self.transaction() as connection:
            yield connection

    def run(self, connection: Any, text: str, values: Sequence[Any] = ()) -> Any:
        """Execute one statement; returns its cursor."""
        return connection.execute(self.sql(text), values)

    def create(self, statements: Sequence[str]) -> None:
        """Execute statements that create tables and indexes; they say IF NOT EXISTS, so it may be repeated."""
        with self.work() as connection:
            for text in statements:
                connection.execute(text.format(**self.words))

    @abstractmethod
    def close(self) -> None:
        """Close the connections that are not in use."""

    @abstractmethod
    def forked(self) -> None:
        """Let go of the parent's connections in a forked child process, so that the parent can go on using them."""

    def _no_table(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.name}: {str(error).splitlines()[0]}: make the tables first, with create_tables()")

    def _ended(self) -> StateError:
        return StateError(
            f"{self.name}: the transaction was committed, rolled back or failed inside the block: do neither there, and"
            " let errors pass"
        )


_open: WeakSet[Database] = WeakSet()


def _let_go() -> None:
    for database in list(_open):
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def shown(url: str) -> str:
    """Return the URL without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1@", re.sub(r"(password=)[^&]*", r"\1***", url))


def check_table(name: str) -> str:
    """Return the table name. Raises ConfigError unless letters, digits and _ make it up."""
    if not TABLE.fullmatch(name):
        raise ConfigError(f"table {name!r}: a letter, then up to 40 letters, digits and _ are needed")
    return name


def failed(name: str, error: Exception) -> DatabaseFailed:
    """Turn a driver's error into DatabaseFailed."""
    return DatabaseFailed(f"{name}: {' '.join(str(error).split()) or type(error).__name__}")
