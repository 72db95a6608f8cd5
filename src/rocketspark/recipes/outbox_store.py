"""The table of an outbox, and the order of its rows. Rule: only statements on rows are here; the outbox decides which
are sent, and when again.

A relay owns a row until `owned_until_ms`; while it owns a row of a lane, no other relay takes a row of that lane. Rows
are sent in the order in which they were written, also if their transactions ran side by side. PostgreSQL numbers a row
when it is written but shows it when its transaction commits, so a higher number may be seen first. Each writing
transaction holds a lock on the table: once all that held it when a number was seen have ended, no lower number can
appear.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any, NamedTuple

from rocketspark.errors import ProtocolError, UsageError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.recipes.database import Database, check_table
from rocketspark.recipes.database_urls import database_of
from rocketspark.recipes.outbox_entries import Entry, Kept, PreparedEntry, State, entry_of, fields_text, shown_entry_of

log = LimitedLog("rocketspark.recipes")

COLUMNS = (
    "number, outbox_key, message_id, topic, lane, body, fields, state, attempts, error, added_ms, due_ms, sent_ms,"
    " owner"
)
_TABLES = (
    """CREATE TABLE IF NOT EXISTS {table} (
    number {number},
    outbox_key TEXT NOT NULL UNIQUE,
    message_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    lane TEXT,
    body {bytes} NOT NULL,
    fields TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    added_ms BIGINT NOT NULL,
    due_ms BIGINT NOT NULL DEFAULT 0,
    sent_ms BIGINT,
    owner TEXT,
    owned_until_ms BIGINT NOT NULL DEFAULT 0)""",
    "CREATE INDEX IF NOT EXISTS {table}_waiting ON {table} (number) WHERE state = 'waiting'",
    "CREATE INDEX IF NOT EXISTS {table}_lanes ON {table} (lane, number) WHERE state = 'waiting'",
    "CREATE INDEX IF NOT EXISTS {table}_sent ON {table} (sent_ms) WHERE state = 'sent'",
)
# Rows of one lane that are claimed at once: enough that claiming costs little, few enough that other lanes get a share.
LANE_COUNT_MAX = 20
ERROR_CHARACTERS_MAX = 1000


class RowOutcome(NamedTuple):
    """What came of a relay's work on one row. `state`: the row's new state; WAITING: it is tried again after
    `pause_ms`; None: it was not tried, and is free for other relays.
    """

    number: int
    state: State | None
    error: str | None = None
    pause_ms: int = 0


class StateFigures(NamedTuple):
    """The messages of an outbox in one state. `oldest_ms`: when the first of them was added, `last_sent_ms`: when the
    last was sent, both None if there is none; `failed`: those whose last attempt failed;
    `attempts_max`: how often the one with the most attempts was tried.
    """

    messages: int
    oldest_ms: int | None
    last_sent_ms: int | None
    failed: int
    attempts_max: int


class OutboxStore:
    """The table of an outbox: the outbox and its relays use it, and operators. `database`: a URL; `table`: the table's
    name.

    `must_exist`: an SQLite file that is not there is an error; else it is made. `read_only`: nothing can be changed,
    and a statement that takes longer than `wait_ms` is given up.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        table: str = "rocketspark_outbox",
        wait_ms: float = 5000,
        must_exist: bool = False,
        read_only: bool = False,
    ) -> None:
        self.database = database_of(database, wait_ms=wait_ms, must_exist=must_exist, read_only=read_only)
        self._table = table = check_table(table)
        self._horizon = OutboxOrder(self.database, table)
        self._insert = self.database.sql(
            f"INSERT INTO {table} (outbox_key, message_id, topic, lane, body, fields, state, error, added_ms, due_ms,"
            " attempts) VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?, ?, ?, ?) ON CONFLICT (outbox_key) DO NOTHING"
        )
        locked = " FOR UPDATE OF o SKIP LOCKED" if self.database.kind == "postgresql" else ""
        self._heads = (
            f"SELECT o.number, o.lane FROM {table} o WHERE o.state = 'waiting' AND o.due_ms <= ?"
            f" AND o.owned_until_ms <= ? AND (o.lane IS NULL OR (o.number <= ? AND NOT EXISTS (SELECT 1 FROM {table} e"
            f" WHERE e.lane = o.lane AND e.state = 'waiting' AND (e.number < o.number OR e.owned_until_ms > ?))))"
            f" ORDER BY o.number LIMIT ?{locked}"
        )

    def create_tables(self) -> None:
        """Make the table and its indexes if they are not there. Raises DatabaseFailed."""
        self.database.create([text.replace("{table}", self._table) for text in _TABLES])

    def check(self) -> None:
        """Raise ConfigError if there is no table, DatabaseFailed if there is no database."""
        self.count()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.database.close()

    # -- writing -------------------------------------------------------------------------------------------------

    def add(self, connection: Any, prepared: PreparedEntry) -> Kept:
        """Write a message in the caller's transaction. `connection`: to the outbox's database, or a cursor of it."""
        cursor = connection.execute(self._insert, self._values(prepared))
        return Kept(prepared.key, bool((connection if cursor is None else cursor).rowcount))

    async def add_async(self, connection: Any, prepared: PreparedEntry) -> Kept:
        """As `add`, also with a connection whose `execute` is awaited."""
        cursor = connection.execute(self._insert, self._values(prepared))
        if inspect.isawaitable(cursor):
            cursor = await cursor
        return Kept(prepared.key, bool((connection if cursor is None else cursor).rowcount))

    def keep(self, prepared: PreparedEntry, error: str | None, pause_ms: int) -> bool:
        """Write a message that could not be sent, in a transaction of its own. Returns False, and writes nothing, if
        its key is there already.

        `error`: why it was not sent; `pause_ms`: how long until it is sent again.
        """
        with self.database.work() as connection:
            due_ms = self.database.now_ms(connection) + pause_ms if pause_ms else 0
            values = self._values(prepared, error, due_ms, 1 if error else 0)
            return bool(connection.execute(self._insert, values).rowcount)

    def must_be_kept(self, key: str | None, lane: str | None) -> bool:
        """Tell whether a message may not be sent directly: its key is there already, or messages of its lane wait to be
        sent before it.
        """
        texts, values = [], []
        if key is not None:
            texts.append(f"SELECT 1 FROM {self._table} WHERE outbox_key = ?")
            values.append(key)
        if lane is not None:
            texts.append(f"SELECT 1 FROM {self._table} WHERE lane = ? AND state = 'waiting'")
            values.append(lane)
        with self.database.work() as connection:
            return any(
                self.database.run(connection, f"{text} LIMIT 1", (value,)).fetchone() is not None
                for text, value in zip(texts, values, strict=True)
            )

    def _values(
        self, prepared: PreparedEntry, error: str | None = None, due_ms: int = 0, attempts: int = 0
    ) -> list[Any]:
        key, message_id, message, lane = prepared
        error = error and shown(error, characters_max=ERROR_CHARACTERS_MAX)
        added_ms = time.time_ns() // 1_000_000
        fields = fields_text(message)
        return [key, message_id, message.topic, lane, message.body, fields, error, added_ms, due_ms, attempts]

    # -- claiming and outcomes -----------------------------------------------------------------------------------

    def claim(self, owner: str, count: int, lease_ms: int, due_ms: int | None = None) -> list[list[Entry]]:
        """Claim up to `count` messages that are due, for `owner` and for `lease_ms`. Returns a list of messages for
        each lane, in order, and one for each message without a lane.

        `due_ms`: only messages that were due at this time. A row that cannot be read is parked, and named in the log.
        """
        run = self.database.run
        # Before the transaction that looks for rows: those up to here are all seen by it.
        last = self._horizon.look()
        with self.database.work() as connection:
            now_ms = self.database.now_ms(connection)
            due_ms = now_ms if due_ms is None else due_ms
            heads = run(connection, self._heads, (due_ms, now_ms, last, now_ms, count)).fetchall()
            runs, left = [], count - len(heads)
            for number, lane in heads:
                if lane is None:
                    where, values = "number = ?", [number, 1]
                else:
                    where = "lane = ? AND state = 'waiting' AND number <= ?"
                    values = [lane, last, 1 + min(left, LANE_COUNT_MAX)]
                text = f"SELECT {COLUMNS} FROM {self._table} WHERE {where} ORDER BY number LIMIT ?"
                entries = self._readable(connection, run(connection, text, values).fetchall())
                # Those behind the first that wait for a time of their own end the run.
                due = next((i for i, e in enumerate(entries) if e.due_ms > due_ms), len(entries))
                entries = entries[:due]
                if not entries:
                    continue
                left -= len(entries) - 1
                numbers = [entry.number for entry in entries]
                text = f"UPDATE {self._table} SET owner = ?, owned_until_ms = ? WHERE number IN ({_marks(numbers)})"
                run(connection, text, [owner, now_ms + lease_ms, *numbers])
                runs.append(entries)
        # All that was found were rows that cannot be read: they are parked now, and others are behind them.
        return runs if runs or not heads else self.claim(owner, count, lease_ms, due_ms)

    def _readable(self, connection: Any, rows: Iterable[Sequence[Any]]) -> list[Entry]:
        entries = []
        for row in rows:
            try:
                entries.append(entry_of(row))
            except ProtocolError as e:
                log.error("message %s of the outbox is parked, its row cannot be read: %s", row[1], e)
                text = "state = 'parked', error = ?, owner = NULL, owned_until_ms = 0"
                self._update(connection, text, "number = ?", [shown(e, characters_max=ERROR_CHARACTERS_MAX), row[0]])
        return entries

    def renew(self, owner: str, entries: Sequence[Entry], lease_ms: int) -> bool:
        """Extend an owner's claim on entries by `lease_ms` from now. Returns False if the claim was lost: another relay
        may have the entries.
        """
        numbers = [entry.number for entry in entries]
        text = (
            f"UPDATE {self._table} SET owned_until_ms = ? WHERE owner = ? AND owned_until_ms > ? AND state = 'waiting'"
            f" AND number IN ({_marks(numbers)})"
        )
        with self.database.work() as connection:
            now_ms = self.database.now_ms(connection)
            values = [now_ms + lease_ms, owner, now_ms, *numbers]
            return bool(self.database.run(connection, text, values).rowcount == len(numbers))

    def settle(self, owner: str, outcomes: Iterable[RowOutcome]) -> None:
        """Write the outcomes of rows that `owner` had claimed."""
        free = "owner = NULL, owned_until_ms = 0"
        tried = f"{free}, attempts = attempts + 1, error = ?"
        with self.database.work() as connection:
            now_ms = self.database.now_ms(connection)
            for number, state, error, pause_ms in outcomes:
                mine = [number, owner]
                # A broker's error text may hold characters that no database takes.
                error = error and shown(error, characters_max=ERROR_CHARACTERS_MAX)
                if state is State.SENT:
                    # It is stored at a broker, even if another relay owns it by now.
                    done = f"state = 'sent', sent_ms = ?, body = ?, {free}, attempts = attempts + 1, error = NULL"
                    self._update(connection, done, "number = ?", [now_ms, b"", number])
                elif state is State.PARKED:
                    self._update(connection, f"{tried}, state = 'parked'", "number = ? AND owner = ?", [error, *mine])
                elif state is State.WAITING:
                    values = [error, now_ms + pause_ms, *mine]
                    self._update(connection, f"{tried}, due_ms = ?", "number = ? AND owner = ?", values)
                else:
                    self._update(connection, free, "number = ? AND owner = ?", mine)

    def _update(self, connection: Any, change: str, where: str, values: Sequence[Any]) -> int:
        text = f"UPDATE {self._table} SET {change} WHERE {where}"
        return int(self.database.run(connection, text, values).rowcount)

    def purge(self, keep_sent_ms: float) -> int:
        """Delete the rows that were sent longer ago than that; returns how many."""
        with self.database.work() as connection:
            before_ms = self.database.now_ms(connection) - int(keep_sent_ms)
            text = f"DELETE FROM {self._table} WHERE state = 'sent' AND sent_ms <= ?"
            return int(self.database.run(connection, text, (before_ms,)).rowcount)

    # -- for operators -------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the time by the database's clock, in ms since 1970."""
        with self.database.work() as connection:
            return self.database.now_ms(connection)

    def count(self) -> dict[State, int]:
        """Return how many messages are in each state."""
        return {state: figures.messages for state, figures in self.figures().items()}

    def figures(self) -> dict[State, StateFigures]:
        """Return how many messages are in each state, since when, and how many of them failed at their last attempt."""
        text = (
            "SELECT state, count(*), min(added_ms), max(sent_ms), sum(CASE WHEN error IS NULL THEN 0 ELSE 1 END),"
            f" max(attempts) FROM {self._table} GROUP BY state"
        )
        with self.database.work() as connection:
            rows = self.database.run(connection, text).fetchall()
        found = {row[0]: StateFigures(int(row[1]), row[2], row[3], int(row[4]), int(row[5])) for row in rows}
        return {state: found.get(state.value, StateFigures(0, None, None, 0, 0)) for state in State}

    def entries(self, state: State | None = None, count_max: int = 100, *, bodies: bool = True) -> list[Entry]:
        """Return the oldest entries, all but the sent ones by default; without `bodies` these are left empty."""
        where, values = ("state = ?", [state.value]) if state else ("state <> ?", [State.SENT.value])
        columns = COLUMNS if bodies else COLUMNS.replace(" body,", " substr(body, 1, 0),")
        text = f"SELECT {columns} FROM {self._table} WHERE {where} ORDER BY number LIMIT ?"
        with self.database.work() as connection:
            return [shown_entry_of(row) for row in self.database.run(connection, text, [*values, count_max])]

    def size_bytes(self) -> int:
        """Return how much the table and its indexes take on the disk; of SQLite the whole file."""
        with self.database.work() as connection:
            return self.database.size_bytes(connection, self._table)

    def get(self, key: str) -> Entry:
        """Return the entry of a key. Raises UsageError if there is none."""
        text = f"SELECT {COLUMNS} FROM {self._table} WHERE outbox_key = ?"
        with self.database.work() as connection:
            row = self.database.run(connection, text, (key,)).fetchone()
        if row is None:
            raise UsageError(f"{self.database.name}: nothing with the key {key!r} is in {self._table}")
        return shown_entry_of(row)

    def resend(self, keys: Sequence[str] | None = None) -> int:
        """Make messages due now, parked ones too; None: all that are parked. Returns how many.

        Raises UsageError, with nothing changed, for a key that is not there or was sent already.
        """
        change = "state = 'waiting', due_ms = 0, attempts = 0"
        return self._each(keys, f"UPDATE {self._table} SET {change}", "sent already, its body is gone")

    def drop(self, keys: Sequence[str] | None = None) -> int:
        """Delete messages that were not sent; None: all that are parked. Returns how many. Raises as `resend` does."""
        return self._each(keys, f"DELETE FROM {self._table}", "sent already; its row goes by itself")

    def _each(self, keys: Sequence[str] | None, text: str, sent: str) -> int:
        run = self.database.run
        with self.database.work() as connection:
            if keys is None:
                return int(run(connection, f"{text} WHERE state = 'parked'").rowcount)
            for key in keys:
                if run(connection, f"{text} WHERE outbox_key = ? AND state <> 'sent'", (key,)).rowcount:
                    continue
                found = run(connection, f"SELECT 1 FROM {self._table} WHERE outbox_key = ?", (key,)).fetchone()
                why = f"was {sent}" if found else f"is not in {self._table}"
                raise UsageError(f"{self.database.name}: the message with the key {key!r} {why}; nothing was changed")
            return len(keys)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


EVERY_ROW = (1 << 63) - 1
# A transaction that is open for so long, and so holds messages of others back, is named in the log.
LONG_S = 60.0

_WRITERS = (
    "SELECT virtualtransaction, pid FROM pg_locks WHERE locktype = 'relation' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND relation = CAST(? AS regclass) AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid()"
)


class OutboxOrder:
    """Tells up to which row of one table messages can be sent in order, though open transactions may yet show earlier
    rows.
    """

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._guard = Lock()
        self._safe = 0
        # The number that becomes safe next, once the transactions that wrote to the table when it was seen have ended.
        self._next = 0
        self._writers: dict[str, Any] = {}
        self._since_s = 0.0

    def look(self) -> int:
        """Return the number of the last row before which no row can appear any more. Raises DatabaseFailed."""
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
