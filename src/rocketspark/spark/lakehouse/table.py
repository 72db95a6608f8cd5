"""Archives as tables of a lakehouse: where one is, of which format, and what both formats have in common.

Rule: a micro-batch is one commit, which holds its rows, the offsets up to where topics are archived with them, and a
number: whoever writes looks at the newest commit first, and a number is committed once. There is no other bookkeeping.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import MessageQueue, typed_json
from rocketspark.spark.lakehouse import decoded_columns, object_store
from rocketspark.spark.schemas import READ_SCHEMA, quoted
from rocketspark.tables.offset_ranges import NAMESPACE_KEY, made_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

log = logging.getLogger("rocketspark.spark")

VERSION = 1
FORMATS = ("parquet", "delta", "iceberg")
# The writer's name in transactions, and the name of our property in commits.
WRITER = "rocketspark-archive"
PROPERTY = "rocketspark.archive"
# The property of a table that tells of which namespace its topics are, "" for none: commits expire. In hexadecimal
# digits, as Spark does not show a property in whose text it finds a word such as token or url.
NAMESPACE = "rocketspark.namespace"
TABLE_DEFAULT = "rocketspark.archive"
PARTITIONS = ("topic", "hour")
CATALOG_FILE = "catalog.db"
COLUMNS = ", ".join([*(f"{field.name} {quoted(field.dataType)}" for field in READ_SCHEMA.fields), "hour string"])
NO_COLUMNS = StructType([])
_TYPES = {field.name: field.dataType.simpleString() for field in READ_SCHEMA.fields} | {"hour": "string"}
_CATALOGS = ("jdbc:sqlite:", "jdbc:postgresql:")
_TABLE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class TablePlace(NamedTuple):
    """Where a table is. `place`: the folder of a Delta table, or the warehouse of an Iceberg table; for Iceberg,
    `catalog` is the catalog's JDBC URI, and `name` the table's namespace.table.
    """

    format: str
    place: str
    catalog: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name} in {self.place}" if self.name else self.place


def table_place(table_format: str, place: str | Path, catalog: str = "", name: str = "") -> TablePlace:
    """Return the place of a table that is to be read or written. Raises ConfigError for a place, catalog or name that
    cannot be one.
    """
    where = object_store.uri(place) if object_store.scheme_of(place) else os.path.abspath(place)
    if table_format == "delta":
        if catalog or name:
            raise ConfigError("--catalog and --table are Iceberg's: a Delta table is its folder")
        return TablePlace("delta", where)
    name = name or TABLE_DEFAULT
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigError(f"--table is {name!r}: NAMESPACE.TABLE is needed, of letters, digits and _")
    return TablePlace("iceberg", where, _catalog(where, catalog), name)


def _catalog(place: str, given: str) -> str:
    if not given and object_store.scheme_of(place):
        raise ConfigError(
            f"{place}: an Iceberg table there needs a database as its catalog: --catalog jdbc:sqlite:/data/cat.db or"
            " --catalog jdbc:postgresql://host/database"
        )
    catalog = given or f"jdbc:sqlite:{place}/{CATALOG_FILE}"
    if not catalog.startswith(_CATALOGS):
        raise ConfigError(
            f"--catalog is {object_store.hidden(given)!r}: a file ('hadoop') catalog is not atomic, and others are not"
            " known; name a database: jdbc:sqlite:/data/catalog.db or jdbc:postgresql://host/database"
        )
    if re.search(r"(?i)password=|//[^/@]*:[^/@]*@", catalog):
        raise ConfigError("--catalog holds a password: give it as PGPASSWORD in the environment, and PGUSER")
    return _sqlite_file(catalog) if catalog.startswith(_CATALOGS[0]) else catalog


def _sqlite_file(catalog: str) -> str:
    """Return an SQLite catalog by its whole path: Iceberg's tables are found by the catalog's name, made of it."""
    path, mark, options = catalog.removeprefix(_CATALOGS[0]).partition("?")
    if not path or path == ":memory:":
        raise ConfigError(f"--catalog is {catalog!r}: it would end with the process; name a file after jdbc:sqlite:")
    return catalog if ":" in path else f"{_CATALOGS[0]}{os.path.abspath(path)}{mark}{options}"


def archive_at(place: str | Path | TablePlace, catalog: str = "", name: str = "") -> Path | TablePlace:
    """Return where an archive is that is to be read: a table's place, or the folder of a Parquet archive.

    With a catalog, or a name in it, it is an Iceberg table; otherwise the files in the folder tell its format. Raises
    ConfigError.
    """
    if isinstance(place, TablePlace):
        return place
    place = object_store.local(_named(place))
    if catalog or name:
        return table_place("iceberg", place, catalog, name)
    if object_store.scheme_of(place):
        return table_place("delta", place)
    folder = Path(place)
    found = format_in(folder)
    return folder if found in ("", "parquet") else table_place(found, folder)


def _named(place: str | Path) -> str | Path:
    """Return a place. Raises ConfigError for what names none: the working folder is not meant by nothing."""
    text = str(place)
    if not text.strip() or text.startswith("-"):
        hint = f", or ./{text} for a folder of that name" if text.strip() else ""
        raise ConfigError(f"the archive's place is {text!r}: a folder or s3a://… is needed{hint}")
    return place


def archive_for(table_format: str, place: str | Path, catalog: str = "", name: str = "") -> Path | TablePlace:
    """Return where an archive is that is to be written. Raises ConfigError if an archive of another format is there."""
    if table_format not in FORMATS:
        raise ConfigError(f"--format is {table_format!r}: {', '.join(FORMATS[:-1])} or {FORMATS[-1]} is needed")
    place = object_store.local(_named(place))
    if table_format == "parquet":
        if catalog or name:
            raise ConfigError("--catalog and --table are Iceberg's: give --format iceberg with them")
        object_store.refuse_plain_archive(place)
    elif object_store.scheme_of(place):
        return table_place(table_format, place, catalog, name)
    folder = Path(place)
    found = format_in(folder)
    if found and found != table_format:
        raise ConfigError(
            f"{folder} holds an archive of format {found}: archive with --format {found}, or name another folder"
        )
    return folder if table_format == "parquet" else table_place(table_format, folder, catalog, name)


def format_in(folder: Path) -> str:
    """Return the format of the archive in a folder; "" if there is none, as after a first run that failed."""
    if (folder / "_archive" / "manifest.json").is_file():
        return "parquet"
    if (folder / "_delta_log").is_dir():
        return "delta"
    if (folder / CATALOG_FILE).is_file():
        return "iceberg"
    # The manifest was lost.
    return "parquet" if next((folder / "_files").glob("topic=*/hour=*/*"), None) is not None else ""


# ------------------------------------------------------------------ what a commit says


class ArchiveState(msgspec.Struct, frozen=True):
    """How far an archive is written, as each commit says it. `sequence`: the commit's number; `offsets`: the next
    offset of each queue, as a stream's JSON; `commit`: an id of the commit's own; `follows`: that of the commit that
    its writer saw as the newest, "" if he went by the rows.
    """

    sequence: int
    offsets: dict[str, Any]
    commit: str = ""
    version: int = VERSION
    follows: str = ""

    def next(self, offsets: Mapping[str, Any]) -> ArchiveState:
        """Return the state for the next commit, up to which these offsets are archived."""
        return ArchiveState(self.sequence + 1, dict(offsets), uuid.uuid4().hex, follows=self.commit)

    def encoded(self) -> str:
        """Return the state as the text that is written into a commit."""
        return msgspec.json.encode({PROPERTY: self}).decode()


class _Commit(msgspec.Struct):
    said: ArchiveState = msgspec.field(name=PROPERTY)


class _Version(msgspec.Struct):
    version: int


class _Versioned(msgspec.Struct):
    said: _Version = msgspec.field(name=PROPERTY)


def decode_state(text: str | None, place: TablePlace) -> ArchiveState | None:
    """Return the state that the text in a commit holds; None if the commit is no archive's. Raises ConfigError for a
    state of another version.
    """
    if not text or PROPERTY not in text:
        return None
    data = text.encode()
    try:
        version = typed_json.decode(data, _Versioned).said.version
        if version != VERSION:
            raise ConfigError(
                f"{place} was written by a RocketSpark whose archives have version {version}, known is {VERSION}: use a"
                " newer RocketSpark"
            )
        return typed_json.decode(data, _Commit).said
    except msgspec.DecodeError:
        return None


def decode_namespace(told: str | None) -> str | None:
    """Return the namespace in a table's property NAMESPACE; as it is if a person has written it there."""
    try:
        return None if told is None else bytes.fromhex(told).decode()
    except ValueError:
        return told


def ddl(columns: StructType) -> str:
    """Return columns as DDL, with quoted names."""
    return ", ".join(f"{decoded_columns.path_of((f.name,))} {quoted(f.dataType)}" for f in columns.fields)


def check_columns(types: Mapping[str, str], partitions: tuple[str, ...], place: TablePlace) -> None:
    """Raise ConfigError unless a table has the columns and partitions of an archive; it may have more columns. `types`:
    the table's types by column.
    """
    if odd := sorted(name for name, kind in _TYPES.items() if types.get(name) != kind):
        raise ConfigError(f"{place} is no archive's table, its columns differ ({', '.join(odd)}): name another place")
    if partitions != PARTITIONS:
        raise ConfigError(f"{place} is no archive's table: it is not partitioned by topic and hour; name another place")


# What a format says whose log, metadata or data are gone or cannot be read; and the file, where it is named.
_DAMAGED = re.compile(
    r"FAILED_READ_FILE\.(FILE_NOT_EXIST|PARQUET_|CANNOT_READ_FILE_FOOTER)|FAILED_READ_FILE[^\n]*/_delta_log/"
    r"|ChecksumException: Checksum error|is not a Parquet file|Could not find any delta files for version"
    r"|DELTA_(LOG_FILE_NOT_FOUND|TRUNCATED_TRANSACTION_LOG|VERSIONS_NOT_CONTIGUOUS"
    r"|STATE_RECOVER_ERROR|FILE_NOT_FOUND|MISSING_PART_FILES|MISSING_FILES_UNEXPECTED|LOG_FILE_MALFORMED)"
    r"|iceberg\.exceptions\.NotFoundException: (Failed to open|File does not exist)|InvalidAvroMagicException"
    r"|Not an Avro data file|RuntimeIOException: Failed to (read|open) file"
)
_DAMAGED_FILE = re.compile(r"[^\s/'\",;:()]+\.(?:json|avro|parquet)\b")


def damage_in(text: str) -> str:
    """Return what a user should know and do if the text of an error says that files of a table are gone or damaged;
    else "".
    """
    if not _DAMAGED.search(text):
        return ""
    found = _DAMAGED_FILE.search(text)
    return damage_of(found[0] if found else "")


def damage_of(file: str) -> str:
    """Return what a user should know and do about a file of a table that is gone or damaged."""
    name = f"{file} of the table" if file else "a file of the table"
    return f"{name} is gone or damaged: bring it back from a copy, or archive to another place"


# ------------------------------------------------------------------ a table


class ArchiveTable(ABC):
    """The base class of tables that hold an archive; `formats.open_table` returns one."""

    def __init__(self, spark: SparkSession, place: TablePlace) -> None:
        self.spark, self.place = spark, place

    @property
    @abstractmethod
    def _name(self) -> str:
        """Its name in SQL."""

    @abstractmethod
    def exists(self) -> bool:
        """Tell whether the table exists. Raises ConfigError if what is there is no archive."""

    @abstractmethod
    def read(self) -> DataFrame:
        """Return the table's rows: COLUMNS, and those of decoded bodies."""

    @abstractmethod
    def read_version(self) -> DataFrame:
        """Return the rows that the table has now; whatever others do to it meanwhile, later jobs read the same ones."""

    @abstractmethod
    def append(self, rows: DataFrame, state: ArchiveState, after: ArchiveState | None = None) -> int:
        """Add rows in one commit, and return how many they were; the table is made if it does not exist.

        `state`: written into the commit, with its number; `after`: the state of the commit before it. Raises
        ConfigError, and adds nothing, if another commit has that number.
        """

    @abstractmethod
    def compact(self, last_hour: str, file_bytes: int) -> int:
        """Merge the files of each hour up to `last_hour` into files of some `file_bytes`; return how many hours were
        merged.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise an error if files that say which rows the table has are gone or damaged. The table must exist."""

    @abstractmethod
    def identity(self) -> str:
        """Return the id that the table got when it was made; "" if it cannot be told. The table must exist."""

    @abstractmethod
    def file_count(self) -> int:
        """Return how many files hold the table's rows."""

    @abstractmethod
    def _namespace(self) -> str | None:
        """Return the namespace in the table's property NAMESPACE; None if it has none."""

    def note_namespace(self, offsets: Mapping[str, Any]) -> None:
        """Have the table itself tell of which namespace the topics of these offsets are; only a warning if it may not
        be changed.
        """
        namespace = offsets.get(NAMESPACE_KEY, "")
        try:
            if self._namespace() != namespace:
                told = namespace.encode().hex()
                self.spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{NAMESPACE}'='{told}')")
        except (PySparkException, Py4JError, RocketSparkError) as e:
            why = object_store.hidden(str(getattr(e, "java_exception", e))).partition("\n")[0]
            log.warning("the table %s does not tell of which namespace its topics are: %s", self.place, why)

    def row_count(self) -> int:
        """Return how many rows the table has."""
        return self.read().count()

    def decoded(self) -> StructType:
        """Return the columns that the table has beside COLUMNS; none if it does not exist."""
        if not self.exists():
            return NO_COLUMNS
        return StructType([field for field in self.read().schema.fields if field.name not in _TYPES])

    def hold(self, wanted: StructType) -> StructType:
        """Add the decoded columns `wanted` that the table lacks, if it exists. Return all decoded columns that it has,
        or will have once it is made.

        Raises ConfigError, and changes nothing, for columns that a table cannot hold, or that this one has with another
        type.
        """
        wanted = decoded_columns.held(wanted, self.place.format)
        if not self.exists():
            return wanted
        there = self.decoded()
        if there.fields and not wanted.fields:
            raise ConfigError(
                f"{self.place} has decoded columns ({', '.join(there.fieldNames())}), which would stay empty: give the"
                " options of decoding again, or archive to another place"
            )
        if new := decoded_columns.lacking(there, wanted):
            self._add_columns(new)
            there = self.decoded()
        return there

    def _add_columns(self, new: list[tuple[decoded_columns.Path, DataType]]) -> None:
        columns = ", ".join(f"{decoded_columns.path_of(path)} {quoted(kind)}" for path, kind in new)
        self.spark.sql(f"ALTER TABLE {self._name} ADD COLUMNS ({columns})")

    @abstractmethod
    def _committed(self) -> ArchiveState | None:
        """Return the state that the archive's newest commit noted, passing over commits of others; None if none did."""

    def state(self) -> ArchiveState | None:
        """Return how far the archive is written, by the newest commit; None if the table does not exist yet. Raises
        ConfigError.
        """
        if not self.exists():
            return None
        self.check()
        return self._committed() or self._state_of_rows()

    def _state_of_rows(self) -> ArchiveState | None:
        """Return the state of a table whose commits have expired, by its rows. Its number is above those of all commits
        before. Rows do not tell of which namespace their topics are, but a property of the table does.
        """
        offsets = self.offsets_of_rows() | {NAMESPACE_KEY: self._namespace()}
        return ArchiveState(time.time_ns() // 1_000_000, offsets)

    def offsets_of_rows(self, topics: Collection[str] = ()) -> dict[str, Any]:
        """Return the next offset of each queue by the rows of the table, as a stream's JSON; for these topics, by
        default for all.
        """
        from pyspark.sql import functions as F

        rows = self.read().where(F.col("topic").isin(*topics)) if topics else self.read()
        wanted = (F.max("queueOffset") + 1).alias("next"), F.max("logPosition").alias("position")
        ends = rows.groupBy("topic", "broker", "queueId").agg(*wanted).collect()
        # A topic that was made anew since has a higher number than the position of any row; the same one has not.
        made = {(row.topic, row.broker): row.position for row in sorted(ends, key=lambda row: row.position)}
        found = {MessageQueue(row.topic, row.broker, row.queueId): row.next for row in ends}
        return {**to_json(found), **made_json(made)}

    def check_new(self, state: ArchiveState) -> None:
        """Raise ConfigError if the table does not exist, though `state` is not its first commit: somebody removed it
        and its rows.
        """
        if state.sequence > 1:
            raise ConfigError(
                f"the table {self.place} is gone, deleted or moved while it was written: bring it back, or archive anew"
            )

    def taken(self) -> ConfigError:
        """Return the error for a commit whose number another process has used: it writes the same archive."""
        return ConfigError(f"another process writes the archive {self.place}: stop it first")

    def set_back(self) -> RocketSparkError:
        """Return the error for a table that was set back to an older version during the run. It is retriable: by the
        rows that are left the archive goes on.
        """
        error = RocketSparkError(f"the table {self.place} was set back to an older version while it was written")
        error.retriable = True
        return error

    def changed(self) -> ConfigError:
        """Return the error for a table whose columns somebody changed during the run."""
        return ConfigError(f"the columns of the table {self.place} were changed while it was written: archive again")
