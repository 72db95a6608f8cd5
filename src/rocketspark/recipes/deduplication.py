"""Idempotent consuming: a message that is delivered again is not processed again, as a table holds the ids of those
that were.

Rule: a message's id is recorded in the transaction that does its work: both commit, or neither does.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from rocketspark.client.callbacks import check_ran, plain
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.message_batch import MessageBatch, messages_given
from rocketspark.client.validators import names_arguments
from rocketspark.errors import ConfigError, RocketSparkError, UsageError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import properties
from rocketspark.recipes.database import KEY_CHARACTERS_MAX, Database, check_table
from rocketspark.recipes.database_urls import database_of
from rocketspark.recipes.outbox_entries import KEY_PROPERTY

log = logging.getLogger("rocketspark.recipes")

PURGE_EVERY_S = 600.0
PURGE_COUNT_MAX = 1000

# Layout: scope and id name the processed message; seen_ms: when, in ms since 1970, by the consumer's clock.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS {table} (scope TEXT NOT NULL, id TEXT NOT NULL, seen_ms BIGINT NOT NULL,"
    " PRIMARY KEY (scope, id))",
    "CREATE INDEX IF NOT EXISTS {table}_age ON {table} (seen_ms)",
)


class ScopeFigures(NamedTuple):
    """The ids that a scope has recorded: how many, and when the first and the last of them."""

    scope: str
    ids: int
    oldest_ms: int
    newest_ms: int


class SeenStore:
    """The store of the ids of processed messages.

    Args:
        database: `sqlite:///file.db` or `postgresql://user@host/name`: the one that the listener's work is in.
        keep_days: how long an id is remembered: longer than a message can be delivered again (brokers keep it 3 days).
        wait_ms: how long a consumer waits for another that has the same message in work.
        table: the table's name.
        must_exist: an SQLite file that is not there is an error; else it is made.
        read_only: nothing can be changed, and a statement that takes longer than `wait_ms` is given up.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        keep_days: float = 7,
        wait_ms: float = 5000,
        table: str = "rocketspark_seen",
        must_exist: bool = False,
        read_only: bool = False,
    ) -> None:
        if keep_days <= 0:
            raise ConfigError("keep_days must be over 0: a message may come again at any time")
        self.database = database_of(database, wait_ms=wait_ms, must_exist=must_exist, read_only=read_only)
        self._keep_ms = keep_days * 86_400_000
        self._table = check_table(table)
        # The words ON CONFLICT make others with the same id wait until this transaction has ended, on both databases.
        self._insert = f"INSERT INTO {table} (scope, id, seen_ms) VALUES (?, ?, ?) ON CONFLICT (scope, id) DO NOTHING"
        self._purge_at_s = 0.0
        self._guard = threading.Lock()

    def create_tables(self) -> None:
        """Make the table if it is not there. Raises DatabaseFailed."""
        self.database.create([text.replace("{table}", self._table) for text in _TABLES])

    def record(self, connection: Any, scope: str, ids: Iterable[str]) -> set[str]:
        """Record ids of messages in the connection's transaction; returns those that were not recorded before. `scope`:
        ids are kept apart for each scope.
        """
        now_ms = time.time_ns() // 1_000_000
        with self.database.errors():
            return {
                i for i in _in_order(ids) if self.database.run(connection, self._insert, (scope, i, now_ms)).rowcount
            }

    async def record_async(self, connection: Any, scope: str, ids: Iterable[str]) -> set[str]:
        """Do as `record`, with a connection of `transaction_async`."""
        if self.database.kind == "sqlite":
            return self.record(connection, scope, ids)
        now_ms = time.time_ns() // 1_000_000
        new = set()
        with self.database.errors():
            for i in _in_order(ids):
                if (await self.database.run(connection, self._insert, (scope, i, now_ms))).rowcount:
                    new.add(i)
        return new

    def purge(self) -> int:
        """Forget ids older than `keep_days`; returns how many. Consumers do it every ten minutes."""
        return self._purge(1 << 62)

    def purge_is_due(self) -> bool:
        """Tell whether old ids are to be purged now, which is so every ten minutes. Of callers at the same time only
        one gets true.
        """
        with self._guard:
            now_s = time.monotonic()
            if now_s < self._purge_at_s:
                return False
            self._purge_at_s = now_s + PURGE_EVERY_S
            return True

    def purge_some(self) -> None:
        """Forget some ids that are older than `keep_days`. It never raises, as it must not make a message fail."""
        try:
            if self._purge(PURGE_COUNT_MAX) == PURGE_COUNT_MAX:
                self._purge_at_s = 0.0
        except RocketSparkError as e:
            log.warning("old ids are not purged: %s", e)

    def _purge(self, count_max: int) -> int:
        before_ms = time.time_ns() // 1_000_000 - self._keep_ms
        old = f"SELECT scope, id FROM {self._table} WHERE seen_ms < ? ORDER BY seen_ms LIMIT ?"
        text = f"DELETE FROM {self._table} WHERE (scope, id) IN ({old})"
        with self.database.work() as connection:
            return int(self.database.run(connection, text, (int(before_ms), count_max)).rowcount)

    def scopes(self, count_max: int = 100) -> list[ScopeFigures]:
        """Return how many ids each scope has recorded, and since when, of so many scopes by name."""
        figures = "scope, count(*), min(seen_ms), max(seen_ms)"
        text = f"SELECT {figures} FROM {self._table} GROUP BY scope ORDER BY scope LIMIT ?"
        with self.database.work() as connection:
            return [ScopeFigures(*row) for row in self.database.run(connection, text, (count_max,)).fetchall()]

    def size_bytes(self) -> int:
        """Return how much the table and its indexes take on the disk; of SQLite the whole file."""
        with self.database.work() as connection:
            return self.database.size_bytes(connection, self._table)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.database.close()


def _in_order(ids: Iterable[str]) -> list[str]:
    # All record in one order: two batches with the same ids would else wait for each other for ever.
    return sorted(set(ids))


By = Literal["id", "key"] | Callable[[ReceivedMessage], str]
Listener = Callable[[Any, Any], Any]


class _Undo(Exception):
    """Raised when the listener returned False: the transaction is rolled back, and False returned."""


@names_arguments
def deduplicate(
    *, store: SeenStore | str, by: By = "id", scope: str = ""
) -> Callable[[Listener], Callable[[Any], Any]]:
    """Wrap a listener so that each message is processed once, however often it is delivered.

    The listener is called with what the consumer hands over, a message, a list of them or columns, and a connection in
    the transaction that also records the ids: what it does with that connection is done once. A list, or a batch of
    columns, holds only messages that are new; if none is, the listener is not called. If it raises or returns False,
    all is rolled back and the messages are delivered again. It neither commits nor rolls back itself. A plain function
    gets a `sqlite3.Connection` or a `psycopg.Connection`; a coroutine function a `psycopg.AsyncConnection`, or with
    SQLite a `sqlite3.Connection`. Two consumers that get one message at once: the second waits for the first, and has
    nothing to do if that commits.

    Args:
        store: where ids are recorded: a SeenStore, or the URL of a database for one with the defaults.
        by: what tells messages apart: "id", the producer's unique id, the same in every delivery of one send; "key",
            the message's only key, also the same if the application sends it again; or a function, see `outbox_key`.
        scope: ids are remembered apart for each scope: give groups that share a database different ones.

    >>> @consumer.listen
    ... @deduplicate(store=SeenStore("sqlite:///bank.db"), by="key", scope="billing")
    ... def pay(message, connection):
    ...     connection.execute("UPDATE account SET balance = balance - ? WHERE name = ?", read(message.body))
    """
    seen = SeenStore(store) if isinstance(store, str) else store
    id_of = _named(by) if isinstance(by, str) else by

    def wrap(listener: Listener) -> Callable[[Any], Any]:
        if is_coroutine_function(listener):
            return _wrap_coroutine(listener, seen, id_of, scope)
        return _wrap_function(listener, seen, id_of, scope)

    return wrap


def _wrap_function(
    listener: Listener, seen: SeenStore, id_of: Callable[[ReceivedMessage], str], scope: str
) -> Callable[[Any], Any]:
    @functools.wraps(listener)
    def call(given: Any) -> Any:
        firsts = _firsts(given, id_of)
        try:
            with seen.database.transaction() as connection:
                new = seen.record(connection, scope, firsts)
                result = plain(listener(_only(given, firsts, new), connection)) if new else None
                if result is False:
                    raise _Undo
                # Within the transaction: the id of a message for which nothing ran is not recorded.
                check_ran(result)
                if inspect.isawaitable(result):
                    raise _no_coroutine(result)
        except _Undo:
            return False
        if seen.purge_is_due():
            seen.purge_some()
        return result

    del call.__wrapped__  # Its arguments are others.
    return call


def _wrap_coroutine(
    listener: Listener, seen: SeenStore, id_of: Callable[[ReceivedMessage], str], scope: str
) -> Callable[[Any], Any]:
    @functools.wraps(listener)
    async def call(given: Any) -> Any:
        firsts = _firsts(given, id_of)
        try:
            async with seen.database.transaction_async() as connection:
                new = await seen.record_async(connection, scope, firsts)
                result = plain(await listener(_only(given, firsts, new), connection)) if new else None
                if result is False:
                    raise _Undo
        except _Undo:
            return False
        if seen.purge_is_due():
            await asyncio.to_thread(seen.purge_some)
        return result

    del call.__wrapped__
    return call


def _no_coroutine(result: Any) -> UsageError:
    # It would do the message's work after its id was recorded, and outside the transaction.
    if hasattr(result, "close"):
        result.close()
    return UsageError("the listener is a plain function that returns a coroutine: make it an async def, wrappers too")


def _firsts(given: Any, id_of: Callable[[ReceivedMessage], str]) -> dict[str, ReceivedMessage]:
    """Return the first message of each id, in order."""
    firsts: dict[str, ReceivedMessage] = {}
    for message in messages_given(given):
        firsts.setdefault(_short(id_of(message)), message)
    return firsts


def _only(given: Any, firsts: dict[str, ReceivedMessage], new: set[str]) -> Any:
    if isinstance(given, ReceivedMessage):
        return given
    messages = [message for i, message in firsts.items() if i in new]
    return messages if isinstance(given, list) else MessageBatch(messages)


def _short(text: str) -> str:
    if not isinstance(text, str) or not text:
        raise UsageError(f"{text!r} does not identify a message: a text that is not empty is needed")
    if len(text) <= KEY_CHARACTERS_MAX and _STORABLE.fullmatch(text):
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _unique_id(message: ReceivedMessage) -> str:
    # Without a producer's id, the broker's at first storing: a retry is stored anew.
    found = message.properties
    return found.get(properties.UNIQUE_ID) or found.get(properties.ORIGIN_MESSAGE_ID) or message.offset_message_id


def _only_key(message: ReceivedMessage) -> str:
    if len(message.keys) != 1:
        text = f"message {message.message_id} of topic {message.topic!r} has {len(message.keys)} keys"
        raise UsageError(f'{text}: by="key" needs exactly one; give a function that makes an id of a message')
    return f"{message.topic}/{message.keys[0]}"


def outbox_key(message: ReceivedMessage) -> str:
    """Return the key that a message was given in an outbox; its unique id if it has none. For the argument `by` of
    `deduplicate`.
    """
    key = message.properties.get(KEY_PROPERTY)
    return f"{message.topic}/{key}" if key else _unique_id(message)


# Texts that every database takes: no 0x00, no half of a surrogate pair.
_STORABLE = re.compile("[^\x00\ud800-\udfff]*")
_BY: dict[str, Callable[[ReceivedMessage], str]] = {"id": _unique_id, "key": _only_key}


def _named(by: str) -> Callable[[ReceivedMessage], str]:
    if by not in _BY:
        raise UsageError(f'by={by!r}: "id", "key" or a function of the message is needed')
    return _BY[by]
