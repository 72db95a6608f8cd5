"""The order of an outbox's rows: up to which number all are visible. Rule: the row written first goes first, also from
transactions that run side by side.

PostgreSQL gives a row its number when it is written and shows it when its transaction commits: of two transactions that
run side by side the later number may be seen first. Whoever writes rows holds a lock of the table until then. So once
all have ended who held it when some number was seen, no number below that one can appear.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Any

from rocketspark.model.limited_log import LimitedLog
from rocketspark.recipes.database import Database

log = LimitedLog("rocketspark.recipes")

EVERY_ROW = (1 << 63) - 1
# A transaction that holds others' messages back for so long is named in the log.
LONG_S = 60.0

_WRITERS = (
    "SELECT virtualtransaction, pid FROM pg_locks WHERE locktype = 'relation' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND relation = CAST(? AS regclass) AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid()"
)


class OutboxOrder:
    """Watches one table, for as long as it lives; `look` returns the highest number that is safe to send in order."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._guard = Lock()
        self._safe = 0
        # The number that is waited for, and the transactions that wrote to the table when it was seen.
        self._next = 0
        self._writers: dict[str, Any] = {}
        self._since_s = 0.0

    def look(self) -> int:
        """Return the number up to which all rows are there. Raises DatabaseFailed."""
        if self._database.kind != "postgresql":
            return EVERY_ROW  # One transaction writes at a time.
        with self._guard, self._database.work() as connection:
            # In this order: a transaction with a lower number that is not visible yet still holds the lock.
            row = self._database.run(connection, f"SELECT max(number) FROM {self._table}").fetchone()
            writers = dict(self._database.run(connection, _WRITERS, (self._table,)).fetchall())
            self._take(int(row[0] or 0), writers)
            return self._safe

    def _take(self, highest: int, writers: dict[str, Any]) -> None:
        self._writers = {name: pid for name, pid in self._writers.items() if name in writers}
        if self._writers:
            if time.monotonic() - self._since_s > LONG_S:
                log.warning(
                    "%s: a transaction of the server's process %s wrote to %s and is open for over %.0f s: messages"
                    " with a sharding key that were written after it wait for its end",
                    self._database.name,
                    ", ".join(str(pid) for pid in self._writers.values()),
                    self._table,
                    LONG_S,
                )
            return
        self._safe = max(self._safe, self._next)
        self._next, self._writers, self._since_s = highest, writers, time.monotonic()
        if not writers:
            self._safe = max(self._safe, highest)
