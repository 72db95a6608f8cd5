"""Rows of a table, claimed batch by batch for a pipeline. Rule: a row is in one batch for ever; none ever changes.

Keys need not ascend, and rows may appear in any order, as those of transactions that commit late do: what counts is
which rows have no claim yet. Claims stand in a table of their own beside the rows.
"""

from __future__ import annotations

import re
from typing import Any

from rocketspark.errors import ConfigError
from rocketspark.recipes.databases import Database, check_table, database_of

CLAIMS = "rocketspark_claims"
# The id of a claim that only keeps the last batch's number, once rows and their claims are deleted.
_LAST = ""
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Claims:
    """The claims of one pipeline on one table.

    Keys are never used again for another row (AUTOINCREMENT in SQLite): it would count as sent.

    Args:
        url: `sqlite:///file.db` or `postgresql://user@host/name`.
        table: whose rows are wanted, with its schema before a dot if it has one; `key`: its unique column, text or
            number; `order`: the column whose order rows of one claim have, the key if not given.
        pipeline: under which name rows are claimed.
    """

    def __init__(self, url: str, table: str, key: str, pipeline: str, order: str = "") -> None:
        self._database: Database = database_of(url, wait_ms=30_000, must_exist=True)
        for part in table.split("."):
            check_table(part)
        self.table = table
        self.key = _check_column(key)
        self.order = _check_column(order or key)
        if not pipeline or len(pipeline) > 200:
            raise ConfigError(f"the pipeline's name {pipeline!r} has {len(pipeline)} characters: 1 to 200 are needed")
        self.pipeline = pipeline

    def create(self) -> None:
        """Make the table of claims if it is not there. Raises DatabaseFailed."""
        self._database.create(
            [
                f"CREATE TABLE IF NOT EXISTS {CLAIMS} (pipeline VARCHAR(200) NOT NULL, id VARCHAR(500) NOT NULL,"
                " batch BIGINT NOT NULL, PRIMARY KEY (pipeline, id))",
                f"CREATE INDEX IF NOT EXISTS {CLAIMS}_batch ON {CLAIMS} (pipeline, batch)",
            ]
        )

    def columns(self) -> list[str]:
        """Names of the table's columns. Raises ConfigError if there is no such table or key."""
        try:
            with self._database.work() as connection:
                cursor = self._run(connection, f"SELECT * FROM {self.table} WHERE 1 = 0")
                names = [str(column[0]) for column in cursor.description]
        except ConfigError:
            raise ConfigError(f"there is no table {self.table!r} in {self._database.name}") from None
        for wanted in (self.key, self.order):
            if wanted.lower() not in (name.lower() for name in names):
                raise ConfigError(f"table {self.table} has no column {wanted!r}; it has: {', '.join(names)}")
        return names

    def newest(self) -> int:
        """The number of the last batch that was claimed; 0 before the first."""
        with self._database.work() as connection:
            return self._newest(connection)

    def _newest(self, connection: Any) -> int:
        text = f"SELECT COALESCE(MAX(batch), 0) FROM {CLAIMS} WHERE pipeline = ?"
        return int(self._run(connection, text, (self.pipeline,)).fetchone()[0])

    def waiting(self) -> int:
        """How many rows no batch has."""
        with self._database.work() as connection:
            return int(self._run(connection, f"SELECT COUNT(*) {self._unclaimed()}", (self.pipeline,)).fetchone()[0])

    def claim(self, rows_max: int) -> int:
        """Put up to so many rows without a batch into a new one; the number of the newest batch, new or not."""
        # Of two that claim at once, the key lets one through; the other fails and is tried again by its query.
        insert = (
            f"INSERT INTO {CLAIMS} (pipeline, id, batch) SELECT ?, CAST(t.{self.key} AS VARCHAR(500)), ?"
            f" {self._unclaimed()} ORDER BY t.{self.order} LIMIT {rows_max}"
        )
        with self._database.work() as connection:
            batch = self._newest(connection)
            added = self._run(connection, insert, (self.pipeline, batch + 1, self.pipeline)).rowcount
            return batch + 1 if added else batch

    def _unclaimed(self) -> str:
        return (
            f"FROM {self.table} t WHERE NOT EXISTS (SELECT 1 FROM {CLAIMS} c"
            f" WHERE c.pipeline = ? AND c.id = CAST(t.{self.key} AS VARCHAR(500)))"
        )

    def rows(self, after: int, to: int) -> list[dict[str, Any]]:
        """The rows of batches after `after` up to `to`, in their order.

        Raises ConfigError if rows are gone that were claimed: what was to be sent must not change.
        """
        where = "c.pipeline = ? AND c.batch > ? AND c.batch <= ?"
        joined = (
            f"SELECT t.* FROM {self.table} t JOIN {CLAIMS} c ON c.id = CAST(t.{self.key} AS VARCHAR(500))"
            f" WHERE {where} ORDER BY c.batch, t.{self.order}"
        )
        values = (self.pipeline, after, to)
        with self._database.work() as connection:
            text = f"SELECT COUNT(*) FROM {CLAIMS} c WHERE {where} AND c.id <> ?"
            wanted = int(self._run(connection, text, (*values, _LAST)).fetchone()[0])
            cursor = self._run(connection, joined, values)
            names = [str(column[0]) for column in cursor.description]
            found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        if len(found) != wanted:
            raise ConfigError(
                f"{wanted - len(found)} rows of table {self.table} are gone that pipeline {self.pipeline!r} was to"
                " send: delete rows only once they are sent (--delete does so)"
            )
        return found

    def delete(self, to: int) -> int:
        """Delete the rows of batches up to `to` and their claims, in one transaction; how many rows there were."""
        mine = f"SELECT c.id FROM {CLAIMS} c WHERE c.pipeline = ? AND c.batch <= ?"
        with self._database.work() as connection:
            last = self._newest(connection)
            deleted = self._run(
                connection,
                f"DELETE FROM {self.table} WHERE CAST({self.key} AS VARCHAR(500)) IN ({mine})",
                (self.pipeline, to),
            ).rowcount
            self._run(connection, f"DELETE FROM {CLAIMS} WHERE pipeline = ? AND batch <= ?", (self.pipeline, to))
            if last <= to:
                text = f"INSERT INTO {CLAIMS} (pipeline, id, batch) VALUES (?, ?, ?)"
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
