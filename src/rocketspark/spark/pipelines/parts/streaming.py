"""The streaming queries of pipelines, and the names that a pipeline gives its queries, transactions and files. Rule:
without an interval a query takes what is there and ends; whatever topics are called, the writer takes the names.

Under Spark 4.0 and 4.1 a query with trigger AvailableNow ends after one micro-batch of its limits, and after one that
it runs again: there the end is noted at the start, and the query is started until it is reached.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.text import shown
from rocketspark.spark.lakehouse.object_store import literal, local, scheme_of
from rocketspark.spark.lakehouse.table import CATALOG_FILE
from rocketspark.spark.pipelines.parts.archive_manifest import replace_file
from rocketspark.spark.pipelines.parts.progress import Progress, QueryOutcome, leaves
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ADMISSION_CONTROL, reported_offset
from rocketspark.tables.options import AT_LEAST_ONCE, EXACTLY_ONCE, TRANSACTIONAL_ID, parse_read
from rocketspark.transport.connections import in_one_form

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


# In the place of streams: which NameServers they were read from. Spark takes no notice of such a name.
SERVERS = ".servers.json"
# What stands in a place before anything was read: ours, in a checkpoint Spark's, and an Iceberg table's catalog.
_BEFORE = frozenset((SERVERS, "lock", "metadata", ".metadata.crc", CATALOG_FILE, f"{CATALOG_FILE}-journal"))
# A broker may be away, or a queue deleted: after so many runs in a row that came no nearer to the end, it is given up.
RUNS_IN_VAIN_MAX = 3


def start_query(
    writer: DataStreamWriter, *, name: str, checkpoint: Path | str, interval_s: float | None
) -> StreamingQuery:
    """Start a streaming query. `interval_s`: it goes on, a micro-batch at most every so many seconds; None: it reads
    what is there now, and ends (AvailableNow).
    """
    _clear_unfinished(checkpoint)
    writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds").start()


def _clear_unfinished(checkpoint: Path | str) -> None:
    """Remove from a place on this machine's disk what a kill or a full disk left of its first note: Spark 4.3 refuses
    to begin beside it.
    """
    folder = local(checkpoint)
    if scheme_of(folder):
        return
    notes = list((Path(folder) / "offsets").glob("*"))
    if any(note.name.isdecimal() for note in notes):
        return
    for note in notes:
        if note.name.startswith(".") and note.name.endswith((".tmp", ".tmp.crc")):
            note.unlink(missing_ok=True)


def run_query(
    writer: DataStreamWriter,
    progress: Progress,
    *,
    name: str,
    checkpoint: Path | str,
    interval_s: float | None,
    end: Callable[[], Mapping[str, Any]],
    told: Callable[[Any], None] | None = None,
) -> QueryOutcome:
    """Start a streaming query and watch it until its end; `told` is that of `Progress.watch`. Raises the error that the
    query failed with.

    `end`: returns where the sources end now, as a stream's offset.
    """
    wanted = WantedEnd(end, interval_s)
    rows = batches = 0
    while True:
        query = start_query(writer, name=name, checkpoint=checkpoint, interval_s=interval_s)
        try:
            outcome = progress.watch(query, told=told)
        finally:
            query.stop()
        rows, batches = rows + outcome.rows, batches + outcome.batches
        if outcome.stopped or not wanted.is_ahead(query):
            return outcome._replace(rows=rows, batches=batches)


class WantedEnd:
    """The offsets up to which a query with AvailableNow has to read, noted when this is made. Needed for a Spark that
    ends such a query after one micro-batch.
    """

    def __init__(self, end: Callable[[], Mapping[str, Any]], interval_s: float | None) -> None:
        self._needed = interval_s is None and not ADMISSION_CONTROL
        self._end = leaves(end()) if self._needed else {}
        self._missing: int | None = None
        self._runs_in_vain = 0

    def is_ahead(self, query: StreamingQuery) -> bool:
        """Tell whether a query that ended has to be started again: it has not reached the wanted end, but its runs
        still get nearer.
        """
        if not self._needed:
            return False
        reached = _reached(query)
        # A query may read some of the topics only.
        read = {place[0] for place in reached if place}
        ends = {place: offset for place, offset in self._end.items() if place[0] in read or not reached}
        missing = sum(max(0, offset - reached.get(place, 0)) for place, offset in ends.items())
        came_on = self._missing is None or missing < self._missing
        self._missing = missing
        self._runs_in_vain = 0 if came_on else self._runs_in_vain + 1
        return missing > 0 and self._runs_in_vain < RUNS_IN_VAIN_MAX


def _reached(query: StreamingQuery) -> dict[tuple[str, ...], int]:
    """Return where a query's sources have come to, the lowest where two read the same queue."""
    reached: dict[tuple[str, ...], int] = {}
    progress: Any = query.lastProgress
    for source in progress["sources"] if progress else ():
        for place, offset in leaves(reported_offset(source["endOffset"])).items():
            reached[place] = min(offset, reached.get(place, offset))
    return reached


def highest_noted(spark: SparkSession, checkpoint: str, path: str, *, ended: bool = False) -> int:
    """Return the highest number that the offsets in a checkpoint hold at a path of their JSON; 0 if there is none.
    `ended`: of micro-batches that have ended alone, not of one that another run may have planned and not written.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        lines = spark.read.text(literal(f"{checkpoint}/offsets"))
        if ended:
            number = F.col("_metadata.file_name").try_cast("bigint")
            last = spark.read.text(literal(f"{checkpoint}/commits")).select(F.max(number)).first()
            lines = lines.where(number <= F.lit(last[0] if last is not None else None))
        row = lines.select(F.max(F.get_json_object("value", path).try_cast("bigint"))).first()
    except AnalysisException:
        return 0  # There is no checkpoint yet.
    return int(row[0] or 0) if row is not None else 0


def end_of_topics(options: Mapping[str, str]) -> dict[str, Any]:
    """Return where the topics of a stream's options end now, as the stream's offset. Raises ConfigError, and the errors
    of asking servers.
    """
    reader = StreamReader(READ_SCHEMA, parse_read(options, streaming=True))
    try:
        return reader.end_now()
    finally:
        reader.stop()


def check_servers(place: Path | str, sources: Mapping[str, str], *, option: str = "--checkpoint") -> None:
    """Note in a folder, the place that streams are given, of which cluster each of them is; nothing on an object store.
    `sources`: NameServers by the stream's name; `option`: the option that gives the place.

    Raises ConfigError if none of a stream's servers was noted for it, once anything was read: queues of one name in
    another cluster, of which RocketMQ's brokers do not tell, would be read from where the ones before were left.
    """
    folder = local(place)
    if scheme_of(folder):
        return
    note = Path(folder) / SERVERS
    noted: dict[str, str] = {}
    with suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        noted = typed_json.decode(note.read_bytes(), dict[str, str])
    now = {name: in_one_form(servers) for name, servers in sources.items()}
    for name, servers in now.items():
        before = noted.get(name, servers)
        if not {*before.split(";")} & {*servers.split(";")} and _is_begun(Path(folder)):
            raise ConfigError(
                f"{place} is the place of a read of {shown(name)} at {before}, and this is one at {servers}: give"
                f" another {option}; if it is the same cluster, remove {note}"
            )
    if noted | now != noted:
        # Spark tells of a place that nobody can write; this one may be on its server's disk.
        with suppress(PermissionError, FileExistsError, NotADirectoryError):
            note.parent.mkdir(parents=True, exist_ok=True)
            replace_file(note, msgspec.json.encode(noted | now))


def _is_begun(folder: Path) -> bool:
    """Tell whether anything was read into a place, beyond what is there once a start has failed."""
    return any(path.is_file() and path.name not in _BEFORE for path in folder.rglob("*"))


_CHARACTERS_MAX = 100
_FOLDER_CHARACTERS_MAX = 200
# With what a progress file's name has besides, and a new one beside it.
_FILE_BYTES_MAX = 232


def default_name(text: str) -> str:
    """Return a text as a transactionalId: as it is if it can be one, else a shorter name that no other text gets."""
    if TRANSACTIONAL_ID.fullmatch(text):
        return text
    return _told_apart(re.sub(r"[^A-Za-z0-9_-]+", "_", text), text, _CHARACTERS_MAX)


def default_folder(text: str) -> str:
    """Return a text as the name of a folder: as it is unless it is too long, else a shorter name that no other text
    gets.
    """
    return text if len(text.encode()) <= _FOLDER_CHARACTERS_MAX else default_name(text)


def file_name(*parts: str) -> str:
    """Join parts, such as topics, to the name of a file; a name that would be too long is cut and gets a hash."""
    text = "-".join(part.replace("%", "_") for part in parts)
    return text if len(text.encode()) <= _FILE_BYTES_MAX else _told_apart(text, text, _FILE_BYTES_MAX // 2)


def _told_apart(shown: str, text: str, characters_max: int) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{shown[: characters_max - len(digest) - 1]}-{digest}"


def check_name(name: str, delivery: str) -> str:
    """Return a name that was given for transactions. Raises ConfigError for a name that an exactly-once write refuses,
    and for an unknown delivery.
    """
    check_delivery(delivery)
    if delivery == EXACTLY_ONCE and not TRANSACTIONAL_ID.fullmatch(name):
        raise ConfigError(f"--name is {name!r}: 1 to {_CHARACTERS_MAX} of the characters A-Z a-z 0-9 _ - are needed")
    return name


def check_delivery(delivery: str) -> str:
    """Return the delivery. Raises ConfigError for an unknown one."""
    if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ConfigError(f"--delivery is {delivery!r}: {EXACTLY_ONCE} or {AT_LEAST_ONCE} is needed")
    return delivery
