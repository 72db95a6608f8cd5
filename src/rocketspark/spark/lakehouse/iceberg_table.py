"""An archive as an Iceberg table in a JDBC catalog. Rule: snapshots have numbers, each once.

Iceberg appends whatever came in between; so a micro-batch is staged first, under its number, and published then: two
snapshots of one number are never published (write-audit-publish, `spark.wap.id`).
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rocketspark.errors import ConfigError, DatabaseFailed
from rocketspark.spark.lakehouse import object_store
from rocketspark.spark.lakehouse.table import (
    NAMESPACE,
    PROPERTY,
    WRITER,
    ArchiveState,
    ArchiveTable,
    TablePlace,
    check_columns,
    damage_of,
    ddl,
    decode_namespace,
    decode_state,
)
from rocketspark.tables.offset_ranges import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from rocketspark.spark.lakehouse.decoded_columns import Path

# Other engines find the tables in the database by it.
CATALOG = "rocketspark"
# With it a write is staged under its number.
_GUARD = "write.wap.enabled"
_PROPERTIES = {
    "format-version": "2",
    _GUARD: "true",
    # A task's rows are of one queue: of few hours, and in order.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
}
_CATALOG_FAILS = re.compile(r"SQLException|SQLITE_|JdbcCatalog|Cannot initialize|Cannot find catalog plugin")
# SQL states of a database that is away, starts or has no connection left: it may be back in a while.
_AWAY_STATES = re.compile(r"08...|57P0[1-3]|53300")
_AWAY = re.compile(r"PSQLException: (Connection to |The connection attempt failed|An I/O error|This connection has been"
                   r"|FATAL: (terminating connection|the database system is|sorry, too many clients))")  # fmt: skip
# What a writer hears whose table others give other columns meanwhile.
_OTHER_COLUMNS = re.compile("INCOMPATIBLE_DATA_FOR_TABLE|INSERT_COLUMN_ARITY_MISMATCH")
# Spark unpacks files by their ending, and this one (write.metadata.compression-codec=gzip) is none that it knows.
_COMPRESSED = ".gz.metadata.json"
_UUID = r'"table-uuid"\s*:\s*"([^"]+)"'
# Files of one hour are merged from two on.
_MERGE_MIN = 2
# Causes of an error that are looked at.
_CAUSES_MAX = 20


class IcebergTable(ArchiveTable):
    """An archive's table in an Iceberg catalog."""

    def __init__(self, spark: SparkSession, place: TablePlace) -> None:
        super().__init__(spark, place)
        self.catalog = set_catalog(spark, place)
        self._guarded = True

    @property
    def _name(self) -> str:
        # Procedures want it whole too: a namespace may be called as the catalog is.
        return f"{self.catalog}.{self.place.name}"

    def exists(self) -> bool:
        """Tell whether the table exists. Raises ConfigError if what has its name is no archive."""
        with self._asking():
            try:
                fields = self.spark.table(self._name).schema.fields
            except PySparkException as e:
                if "TABLE_OR_VIEW_NOT_FOUND" in str(e):
                    return False
                raise
            return self._check(fields)

    def _check(self, fields: list[StructField]) -> bool:
        described = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self._name}").collect()
        check_location([(row.col_name, row.data_type) for row in described], self.place)
        names = [row.col_name for row in described]
        # "# Partition Information" and "# col_name" stand before the names, and an empty one after them.
        parts = names[names.index("# Partition Information") + 2 :] if "# Partition Information" in names else []
        parts = parts[: parts.index("")] if "" in parts else parts
        check_columns({f.name: f.dataType.simpleString() for f in fields}, tuple(parts), self.place)
        properties = next((row.data_type for row in described if row.col_name == "Table Properties"), "")
        self._guarded = f"{_GUARD}=true" in properties.strip("[]").split(",")
        return True

    @contextmanager
    def _asking(self, *, commits: bool = False) -> Iterator[None]:
        """While the block runs, raise DatabaseFailed if the catalog is away, ConfigError if it cannot be used; but in
        one that `commits` only the former: what else fails there may be the rows.
        """
        try:
            yield
        except (PySparkException, Py4JError) as e:
            if catalog_is_away(e):
                raise DatabaseFailed(self._why(e, "does not answer: see that the database runs")) from None
            if not commits and catalog_fails(str(e)):
                raise ConfigError(self._why(e, "cannot be used")) from None
            raise

    def _why(self, error: Exception, what: str) -> str:
        """Return one line on a catalog that failed: `what` is wrong with it, and the reason that it gave."""
        text = str(error)
        said = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Caused by: ")]
        lines = said or [line for line in text.splitlines() if line.strip()]
        return object_store.hidden(f"the catalog {self.place.catalog} {what} ({lines[-1] if lines else text})")

    def read(self) -> DataFrame:
        """Return the table's rows: COLUMNS, and those of decoded bodies."""
        return self.spark.table(self._name)

    def read_version(self) -> DataFrame:
        """Return the rows that the table has now; whatever others do to it meanwhile, later jobs read the same ones."""
        newest = self.spark.sql(f"SELECT snapshot_id FROM {self._name}.refs WHERE name = 'main'").collect()
        if not newest:
            return self.read()
        return self.spark.sql(f"SELECT * FROM {self._name} VERSION AS OF {newest[0].snapshot_id}")

    def decoded(self) -> StructType:
        """Return the columns that the table has beside COLUMNS; none if it does not exist."""
        with self._asking():
            return super().decoded()

    def _add_columns(self, new: list[tuple[Path, DataType]]) -> None:
        with self._asking():
            super()._add_columns(new)

    def _make(self, columns: StructType) -> None:
        namespace = self.place.name.rpartition(".")[0]
        properties = ", ".join(f"'{name}'='{value}'" for name, value in _PROPERTIES.items())
        folder = f"{self.place.place}/{self.place.name.replace('.', '/')}"
        if object_store.is_there(self.spark, f"{folder}/data"):
            raise ConfigError(
                f"{folder} holds the files of a table that the catalog {self.place.catalog} does not know: give the"
                " catalog that does, or archive to another place"
            )
        with self._asking():
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.{namespace}")
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._name} ({ddl(columns)}) USING iceberg PARTITIONED BY (topic, hour)"
                f" TBLPROPERTIES ({properties})"
            )

    def append(self, rows: DataFrame, state: ArchiveState, after: ArchiveState | None = None) -> int:
        """Add rows in one commit, and return how many they were; the table is made if it does not exist.

        `state`: written into the commit, with its number; `after`: the state of the commit before it. Raises
        ConfigError, and adds nothing, if another commit has that number.
        """
        if not self.exists():
            self.check_new(state)
            self._make(rows.schema)
        with self._asking(commits=True):
            if not self._guarded:
                # Others switched it off: rows would count at once, whoever added the same before.
                self.spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{_GUARD}'='true')")
                self._guarded = True
            return self._append(rows, state, after)

    def _append(self, rows: DataFrame, state: ArchiveState, after: ArchiveState | None) -> int:
        self.spark.conf.set("spark.wap.id", _wap_id(state))
        try:
            rows.writeTo(self._name).option(f"snapshot-property.{PROPERTY}", state.encoded()).append()
        except PySparkException as e:
            if _OTHER_COLUMNS.search(str(e)):
                raise self.changed() from None
            raise
        finally:
            self.spark.conf.unset("spark.wap.id")
        staged = [row for row in self._snapshots() if self._said(row) == state]
        if not staged:
            raise self.taken()
        self._check_follows(state, after)
        self._publish(staged[0].snapshot_id)
        if (now := self._committed()) is None or now.sequence < state.sequence:
            raise self.set_back()
        return int(staged[0].summary.get("added-records", 0))

    def _check_follows(self, state: ArchiveState, after: ArchiveState | None) -> None:
        """Raise ConfigError unless the staged commit `state` follows the newest commit of the table.

        Iceberg refuses a number that was published before only until that snapshot expires. A snapshot that others
        publish from here on is newer than the staged one, so it does not expire before it.
        """
        told, staged = self._commits()
        if told:
            newest = told[0]
            if newest.sequence >= state.sequence:
                raise self.taken()
            if newest.sequence < state.sequence - 1:
                raise ConfigError(
                    f"rows of the table {self.place} were taken back while it was written: archive again, which goes on"
                    " after the last row"
                )
            if after is None or newest.commit != after.commit:
                raise self.taken()
            return
        if after is not None:
            found = self.offsets_of_rows()
            if _beyond(found, after.offsets):
                raise self.taken()
            if not after.commit and _beyond(after.offsets, found):
                raise self.set_back()
        # All commits are forgotten: who began before that has another number than who began from the rows. Each stages
        # before he looks, so one of two sees the other's.
        if others := [str(snapshot) for number, snapshot in staged if number != state.sequence]:
            raise ConfigError(
                f"the table {self.place} has staged commits of another number: see that no other process writes it,"
                f" then CALL {self.catalog}.system.expire_snapshots(table => '{self.place.name}', snapshot_ids =>"
                f" array({', '.join(others)})) and archive again"
            )

    def _publish(self, snapshot_id: int) -> None:
        try:
            self.spark.sql(f"CALL {self.catalog}.system.cherrypick_snapshot('{self._name}', {snapshot_id})").collect()
        except Exception as e:
            if "DuplicateWAPCommitException" in str(e):
                raise self.taken() from None
            if "unknown snapshot ID" in str(e):
                raise ConfigError(
                    f"a commit of the table {self.place} expired before it was published: archive again"
                ) from None
            if "CherrypickAncestorCommitException" in str(e):
                raise ConfigError(
                    f"{_GUARD} of the table {self.place} was switched off while it was written: set it to true and"
                    " archive again"
                ) from None
            raise

    def _snapshots(self) -> list[Any]:
        columns = "snapshot_id, parent_id, committed_at, summary"
        return self.spark.sql(f"SELECT {columns} FROM {self._name}.snapshots ORDER BY committed_at DESC").collect()

    def _said(self, row: Any) -> ArchiveState | None:
        return decode_state(row.summary.get(PROPERTY), self.place)

    def _committed(self) -> ArchiveState | None:
        with self._asking():
            told, _ = self._commits()
            if len(told) > 1 and told[0].follows not in ("", told[1].commit):
                self._take_back(told[0])
                del told[0]
            return told[0] if told else None

    def _take_back(self, state: ArchiveState) -> None:
        """Roll back the newest commit: rows that it follows were taken back between its writer's look and its
        publication, and are to come before its own. Raises ConfigError if others have changed the table since.
        """
        name, snapshots = self._name, {row.snapshot_id: row for row in self._snapshots()}
        newest = self.spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").collect()[0].snapshot_id
        published = snapshots[newest]
        own = snapshots.get(int(published.summary.get("source-snapshot-id", newest)))
        call = f"CALL {self.catalog}.system.rollback_to_snapshot('{name}', {published.parent_id})"
        if own is None or self._said(own) != state:
            raise ConfigError(
                f"rows of the table {self.place} were taken back while commit {state.sequence} was written, and others"
                " have changed it since: roll it back to before that commit, and archive again"
            )
        self.spark.sql(call).collect()

    def _state_of_rows(self) -> ArchiveState | None:
        with self._asking():
            # First: what is published from here on shows in the rows, or has the number that is taken.
            _, staged = self._commits()
            found = super()._state_of_rows()
        if found is None or not from_json(found.offsets):
            # Where nothing counts yet, all who begin take the same number: so one of them wins.
            return None
        # Who staged a commit may stand before its publication: with his number, one of both is published.
        return msgspec.structs.replace(found, sequence=max(staged)[0] - 1) if staged else found

    def _commits(self) -> tuple[list[ArchiveState], list[tuple[int, int]]]:
        """Return what the commits of an archive that count say, as `_told` does, and the (number, snapshot) of each
        that is staged and may yet be published.
        """
        snapshots = {row.snapshot_id: row for row in self._snapshots()}
        history = self.spark.sql(f"SELECT snapshot_id, made_current_at FROM {self._name}.history"
                                 " WHERE is_current_ancestor ORDER BY made_current_at DESC").collect()  # fmt: skip
        # One that a rollback went back to was current more than once: its first time is its place.
        current = list(dict.fromkeys(row.snapshot_id for row in reversed(history)))[::-1]
        known = [snapshots[i].summary for i in current if i in snapshots]
        published = {summary.get(name) for summary in known for name in ("wap.id", "published-wap-id")}
        staged = [
            (said.sequence, row.snapshot_id)
            for row in snapshots.values()
            if row.snapshot_id not in current and (said := self._said(row)) is not None
            if _wap_id(said) not in published
        ]
        return list(self._told(snapshots, current)), staged

    def _told(self, snapshots: Mapping[int, Any], current: Iterable[int]) -> Iterator[ArchiveState]:
        """Yield what the commits of an archive say, the newest first, up to one that expired."""
        for snapshot_id in current:
            row = snapshots.get(snapshot_id)
            # Something came between staging and publishing: the new snapshot names the staged one.
            source = row.summary.get("source-snapshot-id") if row is not None else None
            if source is not None:
                row = snapshots.get(int(source))
            if row is None:
                # It expired, and what older ones say is not the newest.
                return
            if (said := self._said(row)) is not None:
                yield said

    def compact(self, last_hour: str, file_bytes: int) -> int:
        """Merge the files of each hour up to `last_hour` into files of some `file_bytes`, by rewrite_data_files; return
        how many hours were merged.
        """
        with self._asking(commits=True):
            return self._compact(last_hour, file_bytes)

    def _compact(self, last_hour: str, file_bytes: int) -> int:
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

    def check(self) -> None:
        """Raise an error if manifest files of the table are gone or cut off: a commit would notice that only after its
        rows are written, or never.
        """
        with self._asking():
            # Another writer may come in between.
            if not any(self._names_all_files() for _ in range(2)):
                raise ConfigError(damage_of(""))

    def _names_all_files(self) -> bool:
        """Tell whether the manifests name as many files as the list of them says."""
        said = "sum(added_data_files_count + existing_data_files_count)"
        lists = self.spark.sql(f"SELECT {said} FROM {self._name}.manifests WHERE content = 0").collect()
        found = self.spark.sql(f"SELECT count(*) FROM {self._name}.data_files").collect()
        return bool(lists[0][0] in (None, found[0][0]))

    def identity(self) -> str:
        """Return the id that the table got when it was made; "" if it cannot be told. The table must exist."""
        from pyspark.sql import functions as F

        with self._asking():
            entries = f"SELECT file FROM {self._name}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1"
            file = object_store.literal(self.spark.sql(entries).collect()[0].file)
            # Spark's SQL shows it nowhere.
            found = F.regexp_extract("value", _UUID, 1).alias("id")
            if not file.endswith(_COMPRESSED):
                return str(self.spark.read.text(file, wholetext=True).select(found).collect()[0].id)
            content = self.spark.read.format("binaryFile").load(file).select("content").collect()[0].content
        told = re.search(_UUID, gzip.decompress(content).decode())
        return told[1] if told else ""

    def _namespace(self) -> str | None:
        with self._asking():
            rows = self.spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        return decode_namespace(next((row.value for row in rows if row.key == NAMESPACE), None))

    def file_count(self) -> int:
        """Return how many files hold the table's rows."""
        with self._asking():
            found = self.spark.sql(f"SELECT count(*) FROM {self._name}.files").collect() if self.exists() else [[0]]
        return int(found[0][0])

    def row_count(self) -> int:
        """Return how many rows the table has."""
        with self._asking():
            return super().row_count()


def _wap_id(state: ArchiveState) -> str:
    return f"{WRITER}-{state.sequence}"


def _beyond(offsets: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Tell whether a queue goes on beyond what is known of it; offsets as a stream's JSON has them."""
    reached = from_json(known)
    return any(offset > reached.get(queue, 0) for queue, offset in from_json(offsets).items())


def catalog_fails(text: str) -> bool:
    """Tell whether the text of an error says that a catalog cannot be used.

    A SQLite catalog that another process has locked (SQLITE_BUSY) does not count: it can be used again later.
    """
    return "SQLITE_BUSY" not in text and _CATALOG_FAILS.search(text) is not None


def catalog_is_away(error: Exception) -> bool:
    """Tell whether an error says that a catalog's database cannot be reached for now, by its SQL state where there is
    one.
    """
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    with suppress(Py4JError):
        for _ in range(_CAUSES_MAX):
            if cause is None:
                break
            if cause.getClass().getName().endswith("SQLException"):
                with suppress(Py4JError):  # Iceberg's has none.
                    if _AWAY_STATES.fullmatch(cause.getSQLState() or ""):
                        return True
            cause = cause.getCause()
    return "SQLITE_BUSY" in str(error) or _AWAY.search(str(error)) is not None


def set_catalog(spark: SparkSession, place: TablePlace) -> str:
    """Make a table's catalog known to a session, and return its name, by which the session and the rows of the
    catalog's database call it.

    Raises ConfigError if the session has another catalog of that name.
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
    """Raise ConfigError if a table lies outside of its warehouse. `described`: the names and values that Spark
    describes the table by.
    """
    at = next((value for name, value in described if name == "Location"), "")
    if at and not f"{_path(at)}/".startswith(f"{_path(place.place)}/"):
        raise ConfigError(
            f"the table {place.name} of the catalog {place.catalog} lies at {at}, not in {place.place}: give that"
            " place, or another --table"
        )


def _path(place: str) -> str:
    return re.sub(r"^file:/+", "/", place).rstrip("/")
