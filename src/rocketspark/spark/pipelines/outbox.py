"""`pipeline outbox`: sends the rows of a database table to a topic. Rule: a row is claimed for one batch for ever, a
batch is one micro-batch, and a micro-batch is written exactly once.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.options import OutboxOptions
from rocketspark.spark.pipelines.parts.outbox_claims import REFUSED, ClaimedRow, JsonText, RowClaims
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.session import one_line_errors
from rocketspark.spark.pipelines.parts.streaming import (
    check_delivery,
    check_name,
    default_name,
    highest_noted,
    run_query,
)
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.spark_features import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow, for_this_spark
from rocketspark.spark.write.batch_encoding import refused_rows
from rocketspark.tables.options import EXACTLY_ONCE, over

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("rocketspark.spark")

FORMAT = "rocketspark-table"
SCHEMA = "body binary, topic string, tag string, keys string, shardingKey string, properties map<string,string>"
# The parts of a message that a column can give.
PARTS = ("body", "topic", "tag", "keys", "shardingKey", "properties")
_ARROW = pa.schema(
    [(name, pa.binary() if name == "body" else pa.string()) for name in PARTS[:-1]]
    + [("properties", pa.map_(pa.string(), pa.string()))]
)
DEFAULTS = OutboxOptions()
_NAME = re.compile(r"\w+")


class OutboxResult(NamedTuple):
    """The result of a run. `waiting`: rows that came too late for this run; `refused`: rows of which no message can be
    made, which a table of the database names.
    """

    table: str
    topic: str
    rows: int
    batches: int
    waiting: int
    seconds: float
    refused: int = 0


class Columns(NamedTuple):
    """The names of the table's columns that give the parts of a message.

    Without `body` the whole row becomes the body, as JSON; `properties` names a column of JSON objects.
    """

    body: str = ""
    topic: str = ""
    tag: str = ""
    keys: str = ""
    sharding_key: str = ""
    properties: str = ""


ROWS_AS_JSON = Columns()


def run(
    spark: SparkSession,
    where: Connection | str,
    database: str,
    table: str,
    options: OutboxOptions = DEFAULTS,
    *,
    checkpoint: Path | str,
    columns: Columns = ROWS_AS_JSON,
    progress: Progress | None = None,
) -> OutboxResult:
    """Send the rows of a table that were not sent yet.

    Args:
        database: `sqlite:///file.db` (on one machine, or a folder that all share) or `postgresql://user@host/name`.
        checkpoint: folder or URL where the query keeps its place.
        columns: which column gives which part of a message; the topic of a row rather than `options.topic`.

    Raises ConfigError, DatabaseFailed, and RocketSparkError for what fails in Spark.
    """
    progress = progress or Progress("outbox")
    check(columns, options)
    topic, batch_rows, delivery = options.topic, options.batch_rows, options.delivery
    name = options.name or default_name(f"outbox-{table}")
    claims = RowClaims(database, table, options.key, name, options.order)
    try:
        claims.create()
        mapping = _check(columns, claims.columns())
        claims.hold()
        spark.dataSource.register(TableSource)
        reading = {"database": database, "table": claims.table, "key": claims.key, "order": claims.order, "name": name}
        reading |= {"batchRows": str(batch_rows), "columns": json.dumps(mapping), "delete": str(options.delete).lower()}
        reading |= {"topic": topic} if topic else {}
        target = connection(where).spark_options() | ({"topic": topic} if topic else {}) | {"delivery": delivery}
        if delivery == EXACTLY_ONCE:
            # A batch has the same rows each time, and a row may have been changed since it was sent.
            target = over({"differingRepeat": "first"}, target) | {"transactionalId": name}
        with one_line_errors():
            _check_age(claims.newest(), _reached(spark, checkpoint), f"{checkpoint}")
            rows = spark.readStream.format(FORMAT).options(**reading).load()
            kept = [part for part in PARTS if part == "body" or part in mapping]
            writer = rows.select(*kept).writeStream.format("rocketmq").options(**target)
            outcome = run_query(
                writer,
                progress,
                name=name,
                checkpoint=checkpoint,
                interval_s=options.interval_s,
                end=lambda: {"batch": claims.claim_all(batch_rows)},
            )
        if options.delete and options.interval_s is None and not outcome.stopped:
            # Spark tells the source of all micro-batches but the last. What others claimed, or planned, is not sent.
            claims.delete(_reached(spark, checkpoint, ended=True))
        waiting, refused = claims.waiting(), claims.refused()
        if keyless := claims.without_key():
            progress.say(f"{keyless} rows of table {table} are not sent: their {options.key} is null")
        if refused:
            progress.say(f"{refused} rows of table {table} are set aside: the table {REFUSED} tells why")
    finally:
        claims.close()
    return OutboxResult(table, topic, outcome.rows, outcome.batches, waiting, round(progress.seconds, 3), refused)


def _reached(spark: SparkSession, checkpoint: Path | str, *, ended: bool = False) -> int:
    """Return the last batch of claims that a checkpoint's micro-batches have come to, or those that have ended; 0 if
    there is none yet.
    """
    return highest_noted(spark, f"{checkpoint}", "$.batch", ended=ended)


def _check_age(newest: int, reached: int, sender: str) -> None:
    """Raise ConfigError if batches are not there that were sent: their numbers would be given to rows again, which the
    query would take for sent.
    """
    if newest < reached:
        raise ConfigError(
            f"{sender} has sent {reached} batches of rows, and the database knows of {newest}: it is an older copy."
            " Bring the newer one back; or give another --name and --checkpoint, and all rows that are there are sent"
        )


def check(columns: Columns, options: OutboxOptions) -> None:
    """Raise ConfigError for arguments of `run` that contradict each other or make no sense."""
    if not options.topic and not columns.topic:
        raise ConfigError("a topic is needed: --topic, or a column that tells it (--topic-column)")
    check_delivery(options.delivery)
    if options.name:
        check_name(options.name, options.delivery)


def _check(columns: Columns, there: list[str]) -> dict[str, str]:
    """Map each part of a message to the column that gives it."""
    given = zip(
        PARTS,
        (columns.body, columns.topic, columns.tag, columns.keys, columns.sharding_key, columns.properties),
        strict=True,
    )
    mapping = {part: column for part, column in given if column}
    for part, column in mapping.items():
        if column not in there:
            raise ConfigError(f"the table has no column {column!r} for {part}; it has: {', '.join(there)}")
    return mapping


class TableSource(DataSource):
    """A data source: the rows of a table as a stream; a micro-batch holds the rows of the batches that were claimed for
    it.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns that a write to a topic takes."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for spark.readStream."""
        return for_this_spark(TableReader({name.lower(): value for name, value in self.options.items()}), repeated=True)


class Batches(InputPartition):
    """A partition of a TableSource stream: the claimed batches with numbers above `after`, up to and with `to`."""

    def __init__(self, after: int, to: int) -> None:
        self.after, self.to = after, to


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a TableSource stream: it claims rows on the driver, and reads them on an executor. Its offsets are
    {"batch": number}.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._batch_rows = int(options["batchrows"])
        # With AvailableNow: the last batch of the query.
        self._last: int | None = None

    @contextmanager
    def _claims(self) -> Iterator[RowClaims]:
        given = self._options
        with plain_errors():
            claims = RowClaims(given["database"], given["table"], given["key"], given["name"], given.get("order", ""))
            try:
                yield claims
            finally:
                claims.close()

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first batch."""
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch: one batch of claims, however many rows that has."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Claim all rows that are there now: the query sends these, and no later ones."""
        with self._claims() as claims:
            self._last = claims.claim_all(self._batch_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the number of the next batch: one that was claimed before, else a new one of rows that wait now."""
        with self._claims() as claims:
            newest = claims.newest()
            if newest <= start["batch"] and self._last is None:
                newest = claims.claim(self._batch_rows)
            # Also in the midst of a run: another server may have taken over, with less than the first one had.
            _check_age(newest, start["batch"], f"pipeline {claims.pipeline!r}")
        return {"batch": min(newest if self._last is None else self._last, start["batch"] + 1)}

    def commit(self, end: dict[str, int]) -> None:
        """Delete the rows that a micro-batch has sent, if the options want that."""
        if self._options["delete"] == "true":
            with self._claims() as claims:
                claims.delete(end["batch"])

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one partition, so that rows keep their order."""
        return [Batches(start["batch"], end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows as messages; runs on an executor."""
        if not isinstance(partition, Batches):
            return
        with self._claims() as claims:
            columns = json.loads(self._options["columns"])
            # Without a column for the body, the whole row goes there; a name that is odd in SQL needs it whole too.
            named = "body" in columns and all(_NAME.fullmatch(name) for name in columns.values())
            rows = claims.rows(partition.after, partition.to, sorted(set(columns.values())) if named else ())
            for first in range(0, len(rows), 1000):
                yield self._batch(rows[first : first + 1000], claims)

    def _batch(self, rows: Sequence[ClaimedRow], claims: RowClaims) -> pa.RecordBatch:
        """Return the rows of which messages can be made; set the others aside."""
        mapping = json.loads(self._options["columns"])
        reasons: dict[str, str] = {}
        made: list[tuple[str, dict[str, Any]]] = []
        for row in rows:
            try:
                made.append((row.id, message_of(row.columns, mapping)))
            except ConfigError as e:
                reasons[row.id] = str(e)
        batch = pa.RecordBatch.from_pylist([parts for _, parts in made], _ARROW)
        # If no column names the topic, the option of the write does.
        topic = self._options.get("topic") or (None if "topic" in mapping else FORMAT)
        if bad := refused_rows(batch, topic):
            reasons |= {made[i][0]: why for i, why in bad.items()}
            batch = batch.filter(pa.array([i not in bad for i in range(len(made))]))
        if reasons:
            claims.refuse(reasons)
            for key, why in reasons.items():
                log.warning("table %s: the row with key %s is set aside: %s", claims.table, shown(key), shown(why))
        return batch


def message_of(row: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of the message that a row becomes. `mapping`: the column of each part. Raises ConfigError for a
    value that cannot be one.
    """
    parts: dict[str, Any] = dict.fromkeys(PARTS)
    for part, column in mapping.items():
        value = row[column]
        if value is None:
            continue
        if part == "body":
            parts[part] = bytes(value) if isinstance(value, bytes | memoryview | bytearray) else text_of(value).encode()
        elif part == "properties":
            parts[part] = _properties(value, column)
        else:
            parts[part] = text_of(value)
    if "body" not in mapping:
        parts["body"] = _json(dict(row)).encode()
    elif not parts["body"]:
        raise ConfigError(f"a row's {mapping['body']} is empty: RocketMQ takes no message without a body")
    return parts


def _properties(value: Any, column: str) -> list[tuple[str, str]]:
    try:
        found = value if isinstance(value, dict) else json.loads(value, parse_float=JsonText)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"a row's {column} is no JSON object: message properties are needed there")
    return [(str(name), text_of(inner)) for name, inner in found.items() if inner is not None]


def text_of(value: Any) -> str:
    """Return a value of a database as text: times as ISO 8601, bytes as base64, numbers and JSON as JSON
    writes them.
    """
    if isinstance(value, JsonText) and value.lstrip().startswith('"'):
        return str(json.loads(value))
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return _not_finite(value)
    if isinstance(value, bool | int | float | list | dict):
        return _json(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return str(value)


def _json(value: Any) -> str:
    """Return JSON as every reader takes it: numbers outside JSON become texts, as PostgreSQL and Spark write them."""
    if isinstance(value, JsonText):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(str(name))}: {_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        value = _not_finite(value)
    return json.dumps(value, default=text_of, ensure_ascii=False)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
