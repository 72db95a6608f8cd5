"""The ids of messages that were processed. Rule: an id is recorded in the transaction that does the message's work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.recipes.database import Database, check_table
from rocketspark.recipes.databases import database_of

log = logging.getLogger("rocketspark.recipes")

PURGE_EVERY_S = 600.0
PURGE_COUNT_MAX = 1000

# Layout: scope and id name the processed message; seen_ms: when, in ms since 1970, by the consumer's clock.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS {table} (scope TEXT NOT NULL, id TEXT NOT NULL, seen_ms BIGINT NOT NULL,"
    " PRIMARY KEY (scope, id))",
    "CREATE INDEX IF NOT EXISTS {table}_age ON {table} (seen_ms)",
)


class SeenStore:
    """The store of the ids of processed messages.

    Args:
        database: `sqlite:///file.db` or `postgresql://user@host/name`: the one that the listener's work is in.
        keep_days: how long an id is remembered; longer than a message can come again (brokers keep messages 3 days).
        wait_ms: how long a consumer waits for another that has the same message in work.
        table: the table's name.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        keep_days: float = 7,
        wait_ms: float = 5000,
        table: str = "rocketspark_seen",
    ) -> None:
        if keep_days <= 0:
            raise ConfigError("keep_days must be over 0: a message may come again at any time")
        self.database = database_of(database, wait_ms=wait_ms)
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
        """Record ids in the connection's transaction; returns those that are new."""
        now_ms = time.time_ns() // 1_000_000
        with self.database.errors():
            return {
                i for i in _in_order(ids) if self.database.run(connection, self._insert, (scope, i, now_ms)).rowcount
            }

    async def record_async(self, connection: Any, scope: str, ids: Iterable[str]) -> set[str]:
        """As `record`, with a connection of `transaction_async`."""
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
        """Tell whether ten minutes have passed since the last purge was due; only one caller gets true."""
        with self._guard:
            now_s = time.monotonic()
            if now_s < self._purge_at_s:
                return False
            self._purge_at_s = now_s + PURGE_EVERY_S
            return True

    def purge_some(self) -> None:
        """Forget some old ids; never raises, for it must not make a message fail."""
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

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.database.close()


def _in_order(ids: Iterable[str]) -> list[str]:
    # All record in one order: two batches with the same ids would else wait for each other for ever.
    return sorted(set(ids))
