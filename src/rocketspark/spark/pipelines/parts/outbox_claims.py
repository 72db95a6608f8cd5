"""Rows of a database table, claimed batch by batch for the pipeline `outbox`. Rule: a row stays in the batch that
it was claimed for, and a batch never changes.

Keys need not ascend, and rows may appear in any order, as those of transactions that commit late do: what counts is
which rows have no claim yet. Claims stand in a table of their own beside the rows, under texts of the rows' keys that
no two keys share; a second table names the rows of which no message could be made, a third the table and the key that
each pipeline claims by. A value for which Python has no object is read as the database's text of it, so that no row
fails a read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.recipes.database import Database, check_table
from rocketspark.recipes.database_urls import database_of

CLAIMS = "rocketspark_claims"
REFUSED = "rocketspark_refused"
CLAIMED_BY = "rocketspark_claimed_by"
# The id of a claim that only keeps the last batch's number, once rows and their claims are deleted.
_LAST = ""
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The first character of texts that are not the key as it is.
_MARK = "\x01"
_KEY_NAME = "rocketspark_key"
# Of an id in a table of claims, less what a mark takes.
_PLAIN_CHARACTERS_MAX = 499
_REASON_CHARACTERS_MAX = 500


class ClaimedRow(NamedTuple):
    """A row that was claimed: its key as text, and the values of its columns."""

    id: str
    columns: dict[str, Any]


def key_text(kind: str, column: str, declared: str | None = "") -> str:
    """Return SQL for the text of a key, as claims hold it: no two keys have the same text; a null key has null.

    Whole numbers and short texts are as they are. SQLite writes 15 digits of a REAL, and a column whose `declared` type
    says nothing may hold both 1 and '1'; PostgreSQL cuts texts to fit VARCHAR(500).
    """
    as_text = f"CAST({column} AS TEXT)"
    marked = f"WHEN {as_text} = '' OR substr({as_text}, 1, 1) = '{_MARK}' THEN '{_MARK}' || {as_text}"
    if kind != "sqlite":
        digest = f"encode(sha256(convert_to({as_text}, 'UTF8')), 'hex')"
        long = f"WHEN length({as_text}) > {_PLAIN_CHARACTERS_MAX} THEN '{_MARK}h' || {digest}"
        return f"CASE {long} {marked} ELSE {as_text} END"
    if _takes_all_types(declared or ""):
        marked += f" WHEN {column} NOT GLOB '*[^0-9-]*' THEN '{_MARK}t' || {as_text}"
    return (
        f"CASE typeof({column}) WHEN 'real' THEN '{_MARK}r' || quote({column}) WHEN 'blob' THEN '{_MARK}b' ||"
        f" hex({column}) WHEN 'text' THEN CASE {marked} ELSE {as_text} END ELSE {as_text} END"
    )


def _takes_all_types(declared: str) -> bool:
    """Tell whether SQLite keeps values of a column as they come (rule: affinity BLOB, sqlite.org/datatype3.html)."""
    kind = declared.upper()
    if any(word in kind for word in ("INT", "CHAR", "CLOB", "TEXT")):
        return False
    return not kind or "BLOB" in kind


class RowClaims:
    """The claims of one pipeline on the rows of one table.

    A key must never be used again for another row (AUTOINCREMENT in SQLite): that row would count as sent.

    Args:
        url: `sqlite:///file.db` or `postgresql://user@host/name`.
        table: the table of the rows, with its schema before a dot if it has one; `key`: its unique column, text or
            number; `order`: the column that orders the rows of a claim, the key if not given.
        pipeline: the name by which rows are claimed.
    """

    def __init__(self, url: str, table: str, key: str, pipeline: str, order: str = "") -> None:
        self._database: Database = database_of(url, wait_ms=30_000, must_exist=True)
        for part in table.split("."):
            check_table(part)
        self._name(table, _check_column(key), _check_column(order or key))
        if not pipeline or len(pipeline) > 200:
            raise ConfigError(f"the pipeline's name {pipeline!r} has {len(pipeline)} characters: 1 to 200 are needed")
        self.pipeline = pipeline

    def _name(self, table: str, key: str, order: str) -> None:
        self.table, self.key, self.order = table, key, order
        # As they stand in SQL.
        self._table, self._key, self._order = _quoted_table(table), _quoted(key), _quoted(order)
        self._texts: dict[str, str] = {}

    def _id(self, row: str) -> str:
        """Return SQL for the text of a row's key; `row`: the table, or the name it has in a statement."""
        if row not in self._texts:
            declared = ""
            if self._database.kind == "sqlite":
                with self._database.work() as connection:
                    text = "SELECT type FROM pragma_table_info(?) WHERE lower(name) = ?"
                    found = self._run(connection, text, (self.table.split(".")[-1], self.key.lower())).fetchone()
                declared = found[0] if found else ""
            self._texts[row] = key_text(self._database.kind, f"{row}.{self._key}", declared)
        return self._texts[row]

    def create(self) -> None:
        """Make the tables of claims if they are not there. Raises DatabaseFailed."""
        self._database.create(
            [
                f"CREATE TABLE IF NOT EXISTS {CLAIMS} (pipeline VARCHAR(200) NOT NULL, id VARCHAR(500) NOT NULL,"
                " batch BIGINT NOT NULL, PRIMARY KEY (pipeline, id))",
                f"CREATE INDEX IF NOT EXISTS {CLAIMS}_batch ON {CLAIMS} (pipeline, batch)",
                f"CREATE TABLE IF NOT EXISTS {REFUSED} (pipeline VARCHAR(200) NOT NULL, id VARCHAR(500) NOT NULL,"
                f" reason VARCHAR({_REASON_CHARACTERS_MAX}) NOT NULL, PRIMARY KEY (pipeline, id))",
                f"CREATE TABLE IF NOT EXISTS {CLAIMED_BY} (pipeline VARCHAR(200) NOT NULL PRIMARY KEY,"
                " source VARCHAR(200) NOT NULL, key_column VARCHAR(200) NOT NULL)",
            ]
        )

    def hold(self) -> None:
        """Note by which table and key this pipeline claims, as `columns` found them. Raises ConfigError if it claimed
        rows of another table, or by another key, before: those claims say nothing of these rows.
        """
        insert = f"INSERT INTO {CLAIMED_BY} (pipeline, source, key_column) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        text = f"SELECT source, key_column FROM {CLAIMED_BY} WHERE pipeline = ?"
        with self._database.work() as connection:
            self._run(connection, insert, (self.pipeline, self.table, self.key))
            table, key = self._run(connection, text, (self.pipeline,)).fetchone()
        # A schema is compared where both name it.
        parts = 1 if "." not in table or "." not in self.table else 2
        if [*table.lower().split(".")[-parts:], key.lower()] != [
            *self.table.lower().split(".")[-parts:],
            self.key.lower(),
        ]:
            raise ConfigError(
                f"pipeline {self.pipeline!r} sends rows of table {table} by their {key}, not of {self.table} by their"
                f" {self.key}: it would take some for sent, or send some again; give this one another --name"
            )

    def columns(self) -> list[str]:
        """Return the names of the table's columns. From now on table, key and order have the names that the database
        gives them.

        Raises ConfigError if there is no such table or key.
        """
        names = self._columns_of(self.table)
        if names is None and (names := self._columns_of(self.table.lower())) is not None:
            self._name(self.table.lower(), self.key, self.order)
        if names is None:
            raise ConfigError(f"there is no table {self.table!r} in {self._database.name}")
        as_there = {name.lower(): name for name in names} | {name: name for name in names}
        for wanted in (self.key, self.order):
            if wanted not in as_there and wanted.lower() not in as_there:
                raise ConfigError(f"table {self.table} has no column {wanted!r}; it has: {', '.join(names)}")
        key, order = (as_there.get(name) or as_there[name.lower()] for name in (self.key, self.order))
        self._name(self.table, key, order)
        return names

    def _columns_of(self, table: str) -> list[str] | None:
        """Return the names of a table's columns, None if there is no such table."""
        try:
            with self._database.work() as connection:
                cursor = self._run(connection, f"SELECT * FROM {_quoted_table(table)} WHERE 1 = 0")
                return [str(column[0]) for column in cursor.description]
        except ConfigError:
            return None

    def newest(self) -> int:
        """Return the number of the last batch that was claimed; 0 before the first."""
        with self._database.work() as connection:
            return self._newest(connection)

    def _newest(self, connection: Any) -> int:
        text = f"SELECT COALESCE(MAX(batch), 0) FROM {CLAIMS} WHERE pipeline = ?"
        return int(self._run(connection, text, (self.pipeline,)).fetchone()[0])

    def waiting(self) -> int:
        """Return how many rows are in no batch yet."""
        text = f"SELECT COUNT(*) {self._unclaimed()}"
        with self._database.work() as connection:
            return int(self._run(connection, text, (self.pipeline,)).fetchone()[0])

    def claim(self, rows_max: int) -> int:
        """Put up to `rows_max` rows that are in no batch into a new one; return the number of the newest batch, which
        is an old one if there were no rows.
        """
        insert = (
            f"INSERT INTO {CLAIMS} (pipeline, id, batch) SELECT ?, {self._id('t')}, ?"
            f" {self._unclaimed()} ORDER BY t.{self._order} LIMIT {rows_max}"
        )
        with self._database.work() as connection:
            if self._database.kind != "sqlite":  # There one transaction writes at a time.
                # Of two that claim at once one waits: a batch that the other has sent already would get its rows.
                text = f"SELECT 1 FROM {CLAIMED_BY} WHERE pipeline = ? FOR UPDATE"
                self._run(connection, text, (self.pipeline,))
            batch = self._newest(connection)
            added = self._run(connection, insert, (self.pipeline, batch + 1, self.pipeline)).rowcount
            return batch + 1 if added else batch

    def claim_all(self, rows_max: int) -> int:
        """Put all rows that are in no batch into new ones of up to `rows_max` rows; return the number of the newest
        batch.
        """
        newest = self.newest()
        while (claimed := self.claim(rows_max)) > newest:
            newest = claimed
        return newest

    def _unclaimed(self) -> str:
        return (
            f"FROM {self._table} t WHERE t.{self._key} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {CLAIMS} c"
            f" WHERE c.pipeline = ? AND c.id = {self._id('t')})"
        )

    def without_key(self) -> int:
        """Return how many rows cannot be put into a batch, as their key is null."""
        with self._database.work() as connection:
            text = f"SELECT COUNT(*) FROM {self._table} t WHERE t.{self._key} IS NULL"
            return int(self._run(connection, text).fetchone()[0])

    def rows(self, after: int, to: int, columns: Collection[str] = ()) -> list[ClaimedRow]:
        """Return the rows of the batches with numbers above `after` up to `to`, in their order. `columns`: the names of
        those wanted, by default all.

        A value that Python cannot represent, such as PostgreSQL's `infinity`, is the database's text of it. Raises
        ConfigError if rows that were claimed are gone: what was to be sent must not change.
        """
        where = "c.pipeline = ? AND c.batch > ? AND c.batch <= ?"
        chosen = ", ".join(f"t.{_quoted(name)}" for name in columns) or "t.*"
        joined = (
            f"SELECT c.id AS {_KEY_NAME}, {chosen} FROM {self._table} t JOIN {CLAIMS} c ON c.id = {self._id('t')}"
            f" WHERE {where} ORDER BY c.batch, t.{self._order}"
        )
        values = (self.pipeline, after, to)
        with self._database.work() as connection:
            text = f"SELECT COUNT(*) FROM {CLAIMS} c WHERE {where} AND c.id <> ?"
            wanted = int(self._run(connection, text, (*values, _LAST)).fetchone()[0])
            cursor = reading(connection, self._database.kind)
            cursor.execute(self._database.sql(joined), values)
            names = [str(column[0]) for column in cursor.description][1:]
            found = [ClaimedRow(row[0], dict(zip(names, row[1:], strict=True))) for row in cursor.fetchall()]
        if len(found) != wanted:
            raise ConfigError(
                f"{wanted - len(found)} rows of table {self.table} are gone that pipeline {self.pipeline!r} was to"
                " send: delete rows only once they are sent (--delete does so)"
            )
        return found

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Note rows of which no message can be made, each by the text of its key with the reason: they are not sent,
        deleted, nor claimed again.
        """
        text = f"INSERT INTO {REFUSED} (pipeline, id, reason) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        with self._database.work() as connection:
            for key, reason in reasons.items():
                # PostgreSQL takes no NUL in a text.
                self._run(connection, text, (self.pipeline, key, shown(reason)[:_REASON_CHARACTERS_MAX]))

    def refused(self) -> int:
        """Return how many rows were noted by `refuse`."""
        with self._database.work() as connection:
            text = f"SELECT COUNT(*) FROM {REFUSED} WHERE pipeline = ?"
            return int(self._run(connection, text, (self.pipeline,)).fetchone()[0])

    def delete(self, to: int) -> int:
        """Delete the rows of the batches up to number `to` with their claims, in one transaction; return how many rows
        there were.

        Rows of which no message could be made stay, and keep their claims.
        """
        aside = f"SELECT r.id FROM {REFUSED} r WHERE r.pipeline = ?"
        mine = f"SELECT c.id FROM {CLAIMS} c WHERE c.pipeline = ? AND c.batch <= ? AND c.id NOT IN ({aside})"
        rows = f"DELETE FROM {self._table} WHERE {self._id(self._table)} IN ({mine})"
        values = (self.pipeline, to, self.pipeline)
        with self._database.work() as connection:
            last = self._newest(connection)
            deleted = self._run(connection, rows, values).rowcount
            self._run(
                connection, f"DELETE FROM {CLAIMS} WHERE pipeline = ? AND batch <= ? AND id NOT IN ({aside})", values
            )
            if last <= to:
                text = f"INSERT INTO {CLAIMS} (pipeline, id, batch) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
                self._run(connection, text, (self.pipeline, _LAST, last))
            return int(deleted)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _run(self, connection: Any, text: str, values: tuple[Any, ...] = ()) -> Any:
        return self._database.run(connection, text, values)


def _check_column(name: str) -> str:
    if not _COLUMN.fullmatch(name):
        raise ConfigError(f"column {name!r}: letters, digits and _ are needed")
    return name


def _quoted(name: str) -> str:
    """Return a name for SQL as it is: it may be one of SQL's words, and PostgreSQL folds capitals without quotes."""
    return f'"{name}"'


def _quoted_table(name: str) -> str:
    """Return a table's name for SQL, with its schema if it has one."""
    return ".".join(map(_quoted, name.split(".")))


# Types of PostgreSQL with values that psycopg has no object for: infinity, years before 1 and after 9999, 24:00.
# Arrays of them are read by the same loaders.
_BEYOND = ("date", "time", "timetz", "timestamp", "timestamptz")
# Those whose objects are not the same: a month of an interval is 30 days there, a range has no quotes.
_BOUNDS = ("int4", "int8", "num", "ts", "tstz", "date")
_AS_TEXT = ("interval", *(f"{name}{kind}" for name in _BOUNDS for kind in ("range", "multirange")))


class JsonText(str):
    """A JSON value as the database writes it, which is kept as text, since Python's floats would round its numbers."""


def reading(connection: Any, kind: str) -> Any:
    """Return a cursor that can read any row of a database of this kind: a value that Python cannot represent becomes
    text.
    """
    if kind == "sqlite":
        connection.text_factory = _text
        return connection.cursor()
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    cursor = connection.cursor()
    for name in _BEYOND:
        oid = cursor.adapters.types[name].oid
        exact = cursor.adapters.get_loader(oid, Format.TEXT)
        cursor.adapters.register_loader(oid, _lenient(Loader, exact))
    for names, load in ((_AS_TEXT, _written), (("json", "jsonb"), _json)):
        loader = type("AsWritten", (Loader,), {"load": staticmethod(load)})
        for name in names:
            cursor.adapters.register_loader(cursor.adapters.types[name].oid, loader)
    return cursor


def _written(data: Any) -> str:
    return bytes(data).decode("utf-8", "replace")


def _json(data: Any) -> JsonText | None:
    text = JsonText(_written(data))
    return None if text.strip() == "null" else text


def _lenient(base: Any, exact: Any) -> Any:
    class Lenient(base):  # type: ignore[misc]
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._exact = exact(oid, context)

        def load(self, data: Any) -> Any:
            from psycopg import DataError

            try:
                return self._exact.load(data)
            except (DataError, ValueError, OverflowError, RecursionError):
                return _written(data)

    return Lenient


def _text(stored: bytes) -> str | bytes:
    """SQLite checks no text: what is not UTF-8 stays bytes."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored
