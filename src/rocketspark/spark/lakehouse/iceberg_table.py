"""An archive as an Iceberg table in a JDBC catalog. Rule: one snapshot of a number.

Iceberg appends whatever came in between; so a micro-batch is staged first, under its number, and published then: two
snapshots of one number are never published (write-audit-publish, `spark.wap.id`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse import object_store
from rocketspark.spark.lakehouse.table import (
    COLUMNS,
    PROPERTY,
    WRITER,
    ArchiveState,
    ArchiveTable,
    TablePlace,
    check_columns,
    decode_state,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Other engines find the tables in the database by it.
CATALOG = "rocketspark"
_PROPERTIES = {
    "format-version": "2",
    "write.wap.enabled": "true",
    # A task's rows are of one queue: of few hours, and in order.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
}
_CATALOG_FAILS = re.compile(r"SQLException|SQLITE_|JdbcCatalog|Cannot initialize|Cannot find catalog plugin")
# Files of one hour are merged from two on.
_MERGE_MIN = 2


class IcebergTable(ArchiveTable):
    """A table of an Iceberg catalog."""

    def __init__(self, spark: SparkSession, place: TablePlace) -> None:
        super().__init__(spark, place)
        self.catalog = set_catalog(spark, place)

    @property
    def _name(self) -> str:
        # Procedures want it whole too: a namespace may be called as the catalog is.
        return f"{self.catalog}.{self.place.name}"

    def exists(self) -> bool:
        """Tell whether it is there. Raises ConfigError if it is there and no archive's."""
        try:
            fields = self.spark.table(self._name).schema.fields
        except (PySparkException, Py4JError) as e:
            if "TABLE_OR_VIEW_NOT_FOUND" in str(e):
                return False
            if catalog_fails(str(e)):
                raise ConfigError(self._why(e)) from None
            raise
        described = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self._name}").collect()
        check_location([(row.col_name, row.data_type) for row in described], self.place)
        names = [row.col_name for row in described]
        # "# Partition Information" and "# col_name" stand before the names, and an empty one after them.
        parts = names[names.index("# Partition Information") + 2 :] if "# Partition Information" in names else []
        parts = parts[: parts.index("")] if "" in parts else parts
        check_columns({f.name: f.dataType.simpleString() for f in fields}, tuple(parts), self.place)
        return True

    def _why(self, error: Exception) -> str:
        """What a catalog that cannot be opened says, in a line."""
        text = str(error)
        said = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Caused by: ")]
        lines = said or [line for line in text.splitlines() if line.strip()]
        return object_store.hidden(f"the catalog {self.place.catalog} cannot be used: {lines[-1] if lines else text}")

    def read(self) -> DataFrame:
        """Return its rows, COLUMNS."""
        return self.spark.table(self._name)

    def _make(self) -> None:
        namespace = self.place.name.rpartition(".")[0]
        properties = ", ".join(f"'{name}'='{value}'" for name, value in _PROPERTIES.items())
        try:
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.{namespace}")
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._name} ({COLUMNS}) USING iceberg PARTITIONED BY (topic, hour)"
                f" TBLPROPERTIES ({properties})"
            )
        except (PySparkException, Py4JError) as e:
            if catalog_fails(str(e)):
                raise ConfigError(self._why(e)) from None
            raise

    def append(self, rows: DataFrame, state: ArchiveState) -> int:
        """Add rows in one commit, which says `state`; makes the table if it is not there. Returns how many they were.

        Raises ConfigError, and adds nothing, if another commit has that number.
        """
        if not self.exists():
            self.check_new(state)
            self._make()
        number = f"{WRITER}-{state.sequence}"
        self.spark.conf.set("spark.wap.id", number)
        try:
            rows.writeTo(self._name).option(f"snapshot-property.{PROPERTY}", state.encoded()).append()
        finally:
            self.spark.conf.unset("spark.wap.id")
        staged = [row for row in self._snapshots() if self._said(row) == state]
        if not staged:
            raise self.taken()
        try:
            self.spark.sql(
                f"CALL {self.catalog}.system.cherrypick_snapshot('{self._name}', {staged[0].snapshot_id})"
            ).collect()
        except Exception as e:
            if "DuplicateWAPCommitException" in str(e):
                raise self.taken() from None
            raise
        return int(staged[0].summary.get("added-records", 0))

    def _snapshots(self) -> list[Any]:
        columns = "snapshot_id, committed_at, summary"
        return self.spark.sql(f"SELECT {columns} FROM {self._name}.snapshots ORDER BY committed_at DESC").collect()

    def _said(self, row: Any) -> ArchiveState | None:
        return decode_state(row.summary.get(PROPERTY), self.place)

    def _committed(self) -> ArchiveState | None:
        snapshots = {row.snapshot_id: row for row in self._snapshots()}
        history = self.spark.sql(f"SELECT snapshot_id, made_current_at FROM {self._name}.history"
                                 " WHERE is_current_ancestor ORDER BY made_current_at DESC").collect()  # fmt: skip
        for current in history:
            row = snapshots.get(current.snapshot_id)
            # Something came between staging and publishing: the new snapshot names the staged one.
            source = row.summary.get("source-snapshot-id") if row is not None else None
            if source is not None:
                row = snapshots.get(int(source))
                if row is None:
                    # It expired, and what older ones say is not the newest.
                    return None
            if row is not None and (said := self._said(row)) is not None:
                return said
        return None

    def compact(self, last_hour: str, file_bytes: int) -> int:
        """Merge the files of hours up to `last_hour` with rewrite_data_files; returns how many hours were merged."""
        due = self._hours_of_several(last_hour)
        if not due:
            return 0
        options = f"map('min-input-files','{_MERGE_MIN}','target-file-size-bytes','{file_bytes}')"
        self.spark.sql(
            f"CALL {self.catalog}.system.rewrite_data_files(table => '{self._name}',"
            f" where => \"hour <= '{last_hour}'\", options => {options})"
        ).collect()
        after = self._hours_of_several(last_hour)
        return sum(after.get(hour, 1) < files for hour, files in due.items())

    def _hours_of_several(self, last_hour: str) -> dict[tuple[str, str], int]:
        counted = self.spark.sql(
            f"SELECT partition.topic, partition.hour, count(*) AS files FROM {self._name}.files"
            f" WHERE partition.hour <= '{last_hour}' GROUP BY 1, 2 HAVING count(*) > 1"
        ).collect()
        return {(row.topic, row.hour): row.files for row in counted}

    def file_count(self) -> int:
        """Return how many files its rows are in."""
        return int(self.spark.sql(f"SELECT count(*) FROM {self._name}.files").collect()[0][0]) if self.exists() else 0


def catalog_fails(text: str) -> bool:
    """Tell whether an error says that a catalog cannot be used; one that another holds just now can, later."""
    return "SQLITE_BUSY" not in text and _CATALOG_FAILS.search(text) is not None


def set_catalog(spark: SparkSession, place: TablePlace) -> str:
    """Have a session know a table's catalog; returns the name it has there, and in the database's rows.

    Raises ConfigError if the session's catalog of that name is another one: a session knows one.
    """
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": place.catalog,
        ".warehouse": place.place,
        ".jdbc.schema-version": "V1",
        # Others may write the table, or have written it before a retry.
        ".cache-enabled": "false",
    }
    for part in (".uri", ".warehouse"):
        there = spark.conf.get(f"spark.sql.catalog.{CATALOG}{part}", "") or settings[part]
        if there != settings[part]:
            raise ConfigError(
                f"this Spark session has the catalog {CATALOG} at {object_store.hidden(there)}: take a session of its"
                f" own (spark.newSession()) for {settings[part]}"
            )
    if place.catalog.startswith("jdbc:postgresql:"):
        user, password = (os.environ.get(variable, "") for variable in ("PGUSER", "PGPASSWORD"))
        object_store.remember_secrets({"jdbc.password": password}, {})
        settings |= {".jdbc.user": user} if user else {}
        settings |= {".jdbc.password": password} if password else {}
    for part, value in settings.items():
        key = f"spark.sql.catalog.{CATALOG}{part}"
        if not spark.conf.get(key, ""):
            spark.conf.set(key, value)
    return CATALOG


def check_location(described: Iterable[tuple[str, str]], place: TablePlace) -> None:
    """Raise ConfigError if a table, described by (name, value), lies elsewhere than in its warehouse."""
    at = next((value for name, value in described if name == "Location"), "")
    if at and not f"{_path(at)}/".startswith(f"{_path(place.place)}/"):
        raise ConfigError(
            f"the table {place.name} of the catalog {place.catalog} lies at {at}, not in {place.place}: give that"
            " place, or another --table"
        )


def _path(place: str) -> str:
    return re.sub(r"^file:/+", "/", place).rstrip("/")
