"""An archive as a Delta table. Rule: commits have numbers, and Delta's transaction identifiers take
each number once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse import object_store
from rocketspark.spark.lakehouse.table import (
    NAMESPACE,
    PARTITIONS,
    WRITER,
    ArchiveState,
    ArchiveTable,
    check_columns,
    damage_of,
    decode_namespace,
    decode_state,
)
from rocketspark.tables.offset_ranges import NAMESPACE_KEY, START_KEY, from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from rocketspark.spark.lakehouse.decoded_columns import Path

# Commits looked at first; others than an archive's (compaction, a change of properties) may lie between.
COMMITS_AT_ONCE = 20
_NO_TABLE = re.compile(r"DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE|DELTA_PATH_DOES_NOT_EXIST|PATH_NOT_FOUND"
                       r"|is not a Delta table|FileNotFoundException")  # fmt: skip
_TAKEN = re.compile(r"DELTA_CONCURRENT_TRANSACTION|ConcurrentTransactionException")
# What the second of two hears who begin a table at once, or who writes while others change its columns.
_BEGUN = re.compile(r"DELTA_(PROTOCOL|METADATA)_CHANGED|(Protocol|Metadata)ChangedException")
_OTHER_COLUMNS = re.compile(r"DELTA_(METADATA_MISMATCH|FAILED_TO_MERGE_FIELDS)|A schema mismatch detected")
_RANGES = "rocketspark_ranges"
_SIZES = ("spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize")


class DeltaTable(ArchiveTable):
    """A Delta table in a folder."""

    # The newest version when its rows were looked at, of a table whose commits are forgotten.
    _rows_version = -1

    @property
    def _name(self) -> str:
        return "delta.`" + self.place.place.replace("`", "``") + "`"

    def exists(self) -> bool:
        """Tell whether the table exists. Raises ConfigError if what is in the folder is no archive."""
        detail = self._detail()
        if detail is None:
            return False
        fields = self.read_all().schema.fields
        if not fields:
            # Its log has no commit yet: whoever began it failed.
            return False
        types = {field.name: field.dataType.simpleString() for field in fields}
        check_columns(types, tuple(detail.partitionColumns), self.place)
        return True

    def _detail(self) -> Any:
        try:
            found = self.spark.sql(f"DESCRIBE DETAIL {self._name}").collect()[0]
        except PySparkException as e:
            if _NO_TABLE.search(str(e)):
                return None
            raise
        return found if found.format == "delta" else None

    def read_all(self) -> DataFrame:
        """Return the table's rows with all its columns."""
        return self.spark.read.format("delta").load(self.place.place)

    def read(self) -> DataFrame:
        """Return the table's rows: COLUMNS, and those of decoded bodies."""
        return self.read_all()

    def read_version(self) -> DataFrame:
        """Return the rows that the table has now; whatever others do to it meanwhile, later jobs read the same ones."""
        version = self._commits(1)[0][1].version
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.place.place)

    def _add_columns(self, new: list[tuple[Path, DataType]]) -> None:
        if any("timestamp_ntz" in kind.json() for _, kind in new):
            # A table that begins with the type has it by itself.
            self.spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('delta.feature.timestampNtz'='supported')")
        super()._add_columns(new)

    def append(self, rows: DataFrame, state: ArchiveState, after: ArchiveState | None = None) -> int:
        """Add rows in one commit, and return how many they were; the table is made if it does not exist.

        `state`: written into the commit, with its number; `after`: the state of the commit before it. Raises
        ConfigError, and adds nothing, if another commit has that number.
        """
        options = {
            # Delta leaves out a write whose number this writer committed before, and fails one at the same time.
            "txnAppId": WRITER,
            "txnVersion": str(state.sequence),
            "userMetadata": state.encoded(),
        }
        if after is not None and not self._stands(after):
            raise self.set_back()
        # A write would make it anew, without the rows that were there.
        detail = self._detail()
        if detail is None or not detail.partitionColumns:
            self.check_new(state)
        writer = rows.write.format("delta").mode("append").partitionBy(*PARTITIONS)
        try:
            writer.options(**options).save(self.place.place)
        except PySparkException as e:
            if _TAKEN.search(str(e)) or (state.sequence == 1 and _BEGUN.search(str(e))):
                raise self.taken() from None
            if _BEGUN.search(str(e)) or _OTHER_COLUMNS.search(str(e)):
                raise self.changed() from None
            raise
        return self._added(state, after)

    def _added(self, state: ArchiveState, after: ArchiveState | None) -> int:
        """Return how many rows the commit of a state added. Raises ConfigError unless that commit is in the log."""
        commits = self._commits(COMMITS_AT_ONCE)
        for said, row in commits:
            if said is not None and said.sequence >= state.sequence:
                if said.commit == state.commit:
                    if after is not None and _restores(commits) and not self._stands(after):
                        if not after.commit:
                            self._take_back(row.version, commits[0][1].version)
                        raise self.set_back()
                    return int((row.operationMetrics or {}).get("numOutputRows", 0))
                if said.sequence == state.sequence:
                    break
        raise self.taken()

    def _take_back(self, version: int, newest: int) -> None:
        """Restore the table to before a commit whose writer went by rows that were taken back since: no later look
        would tell it from one that came after the RESTORE. Raises ConfigError if others have changed the table since.
        """
        if version != newest:
            raise ConfigError(
                f"the table {self.place} was set back while its version {version} was written, and others have changed"
                f" it since: restore it to version {version - 1}, and archive again"
            )
        self.spark.sql(f"RESTORE TABLE {self._name} TO VERSION AS OF {version - 1}").collect()

    def _state_of_rows(self) -> ArchiveState | None:
        self._rows_version = self._commits(1)[0][1].version
        found = super()._state_of_rows()
        told = next((said.offsets for said, _ in self._history() if said is not None), None)
        if found is not None and told is not None:
            found.offsets[NAMESPACE_KEY] = told.get(NAMESPACE_KEY, "")
        return found

    def _stands(self, state: ArchiveState) -> bool:
        """Tell whether no RESTORE came after the commit of a state, or after its rows were looked at if it is of no
        commit; one that is forgotten counts as standing.
        """
        looked = self._rows_version
        for said, row in self._history() if state.commit or looked >= 0 else ():
            if (said is not None and said.commit == state.commit) if state.commit else row.version <= looked:
                return True
            if row.operation == "RESTORE":
                return False
        return True

    def _history(self) -> Iterator[tuple[ArchiveState | None, Any]]:
        """Yield what `_commits` returns of all commits; those before the last COMMITS_AT_ONCE are read if need be."""
        commits = self._commits(COMMITS_AT_ONCE)
        yield from commits
        if len(commits) >= COMMITS_AT_ONCE:
            oldest = commits[-1][1].version
            yield from (one for one in self._commits(None) if one[1].version < oldest)

    def _commits(self, limit: int | None) -> list[tuple[ArchiveState | None, Any]]:
        """Return what commits say and their rows of the history, the newest first."""
        found = self.spark.sql(f"DESCRIBE HISTORY {self._name}" + (f" LIMIT {limit}" if limit else ""))
        columns = "version", "operation", "userMetadata", "operationMetrics"
        rows = found.select(*columns).orderBy("version", ascending=False).collect()
        return [(decode_state(row.userMetadata, self.place), row) for row in rows]

    def check(self) -> None:
        """Raise ConfigError if one of the last commits is empty or cut off. Delta does not notice: its rows would be
        missing, and be archived again or never. Older commits are in a checkpoint, and are not looked at.
        """
        from pyspark.sql import functions as F

        commits = {f"{row.version:020d}.json": row for _, row in self._commits(COMMITS_AT_ONCE)}
        if not commits:
            return
        log = object_store.literal(f"{self.place.place}/_delta_log")
        lines = self.spark.read.text([f"{log}/{name}" for name in commits])
        adds = F.count_if(F.col("value").startswith('{"add":')).alias("adds")
        found = {row.file_name: row.adds for row in lines.groupBy("_metadata.file_name").agg(adds).collect()}
        for name, row in commits.items():
            files = int((row.operationMetrics or {}).get("numFiles", 0)) if row.operation == "WRITE" else 0
            # One that is empty has no lines.
            if found.get(name, -1) < files:
                raise ConfigError(damage_of(name))

    def _committed(self) -> ArchiveState | None:
        newest, is_set_back = None, False
        for said, row in self._history():
            is_set_back |= row.operation == "RESTORE"
            if newest is None and is_set_back:
                # Rows of the commits before it may be gone: those that are there tell.
                return None
            if said is None:
                continue
            if newest is not None:
                if is_set_back and said.sequence + 1 == newest.sequence:
                    # It came after the writer had looked. The rows that it took back are to come before these.
                    self._remove(said, newest)
                    return None
                break
            newest = said
        return newest

    def _remove(self, before: ArchiveState, state: ArchiveState) -> None:
        """Delete the rows of the commit `state`, which followed `before`."""
        first = from_json(before.offsets) | from_json(state.offsets.get(START_KEY, {}))
        ranges = [(*queue, first.get(queue, 0), end) for queue, end in from_json(state.offsets).items()]
        columns = "topic string, broker string, queueId int, first bigint, end bigint"
        self.spark.createDataFrame(ranges, columns).createOrReplaceTempView(_RANGES)
        self.spark.sql(
            f"MERGE INTO {self._name} t USING {_RANGES} r ON t.topic = r.topic AND t.broker = r.broker AND t.queueId ="
            " r.queueId AND t.queueOffset >= r.first AND t.queueOffset < r.end WHEN MATCHED THEN DELETE"
        )
        self.spark.catalog.dropTempView(_RANGES)

    def compact(self, last_hour: str, file_bytes: int) -> int:
        """Merge the files of each hour up to `last_hour` into files of some `file_bytes`, by OPTIMIZE; return how many
        hours were merged.
        """
        before = {name: self.spark.conf.get(name, None) for name in _SIZES}
        try:
            for name in _SIZES:
                self.spark.conf.set(name, str(file_bytes))
            done = self.spark.sql(f"OPTIMIZE {self._name} WHERE hour <= '{last_hour}'").collect()
        finally:
            for name, value in before.items():
                if value is None:
                    self.spark.conf.unset(name)
                else:
                    self.spark.conf.set(name, value)
        return int(done[0].metrics.partitionsOptimized) if done and done[0].metrics.numFilesRemoved else 0

    def identity(self) -> str:
        """Return the id that the table got when it was made; "" if it cannot be told. The table must exist."""
        detail = self._detail()
        return str(detail.id or "") if detail is not None else ""

    def _namespace(self) -> str | None:
        detail = self._detail()
        return decode_namespace(detail.properties.get(NAMESPACE)) if detail is not None else None

    def file_count(self) -> int:
        """Return how many files hold the table's rows."""
        detail = self._detail()
        return int(detail.numFiles) if detail is not None else 0


def _restores(commits: Iterable[tuple[ArchiveState | None, Any]]) -> bool:
    return any(row.operation == "RESTORE" for _, row in commits)
