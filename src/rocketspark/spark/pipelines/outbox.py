"""`pipeline outbox`: rows of a table in a database to a topic. Rule: a row is claimed for one batch for ever, a batch
is one micro-batch, and a micro-batch is written exactly once.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines.claims import Claims
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.progress import SILENT, Progress
from rocketspark.spark.pipelines.session import one_line_errors
from rocketspark.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "rocketspark-table"
SCHEMA = "body binary, topic string, tag string, keys string, shardingKey string, properties map<string,string>"
# What of a message a column can give.
PARTS = ("body", "topic", "tag", "keys", "shardingKey", "properties")
_ARROW = pa.schema(
    [(name, pa.binary() if name == "body" else pa.string()) for name in PARTS[:-1]]
    + [("properties", pa.map_(pa.string(), pa.string()))]
)
BATCH_ROWS = 10_000


class OutboxResult(NamedTuple):
    """What a run did. `waiting`: rows that came too late for it."""

    table: str
    topic: str
    rows: int
    batches: int
    waiting: int
    seconds: float


class Columns(NamedTuple):
    """Which column of the table gives which part of a message.

    Without `body` the whole row goes there, as JSON; `properties` is a column of JSON objects.
    """

    body: str = ""
    topic: str = ""
    tag: str = ""
    keys: str = ""
    sharding_key: str = ""
    properties: str = ""


def run(
    spark: SparkSession,
    where: Connection | str,
    *,
    database: str,
    table: str,
    checkpoint: Path | str,
    topic: str = "",
    name: str = "",
    key: str = "id",
    order: str = "",
    columns: Columns | None = None,
    batch_rows: int = BATCH_ROWS,
    interval_s: float | None = None,
    delivery: str = "exactly-once",
    delete: bool = False,
    progress: Progress = SILENT,
) -> OutboxResult:
    """Send the rows of a table that were not sent yet.

    Args:
        database: `sqlite:///file.db` (on one machine, or a folder that all share) or `postgresql://user@host/name`.
        table, key, order: the table, its unique column, and the column that orders rows of one batch.
        checkpoint: folder or URL where the query keeps its place.
        topic: where all rows go, unless `columns.topic` says so row by row.
        name: of the pipeline: under it rows are claimed and transactions are named; the table's if not given.
        interval_s: given, go on until stopped, looking for rows every so many seconds.
        delivery: `exactly-once` or `at-least-once`.
        delete: take rows out of the table once they are sent.

    Raises ConfigError, DatabaseFailed, and RocketSparkError for what fails in Spark.
    """
    if not topic and not (columns and columns.topic):
        raise ConfigError("a topic is needed: --topic, or a column that tells it (--topic-column)")
    name = name or f"outbox-{table}"
    claims = Claims(database, table, key, name, order)
    try:
        claims.create()
        mapping = _check(columns or Columns(), claims.columns())
        spark.dataSource.register(TableSource)
        options = {"database": database, "table": table, "key": key, "order": order, "name": name}
        options |= {"batchRows": str(batch_rows), "columns": json.dumps(mapping), "delete": str(delete).lower()}
        target = connection(where).spark_options() | ({"topic": topic} if topic else {}) | {"delivery": delivery}
        if delivery == "exactly-once":
            target["transactionalId"] = name
        with one_line_errors():
            rows = spark.readStream.format(FORMAT).options(**options).load()
            kept = [part for part in PARTS if part == "body" or part in mapping]
            writer = rows.select(*kept).writeStream.format("rocketmq").options(**target).queryName(name)
            writer = writer.option("checkpointLocation", str(checkpoint))
            if interval_s is None:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
            query = writer.start()
            try:
                outcome = progress.watch(query)
            finally:
                query.stop()
        if delete and interval_s is None and not outcome.stopped:
            # It has sent all that it claimed; Spark tells the source of all micro-batches but the last.
            claims.delete(claims.newest())
        waiting = claims.waiting()
    finally:
        claims.close()
    return OutboxResult(table, topic, outcome.rows, outcome.batches, waiting, round(progress.seconds, 3))


def _check(columns: Columns, there: list[str]) -> dict[str, str]:
    """Part of a message to the column that gives it."""
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
    """Rows of a table as a stream; a micro-batch holds the rows of the batches claimed for it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Columns as a write to a topic takes them."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For spark.readStream."""
        return TableReader({name.lower(): value for name, value in self.options.items()})


class Batches(InputPartition):
    """Claimed batches after one, up to another."""

    def __init__(self, after: int, to: int) -> None:
        self.after, self.to = after, to


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims rows on the driver, reads them on an executor. An offset is {"batch": number}."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._batch_rows = int(options["batchrows"])
        # With AvailableNow: the last batch of the query.
        self._last: int | None = None

    @contextmanager
    def _claims(self) -> Iterator[Claims]:
        given = self._options
        with plain_errors():
            claims = Claims(given["database"], given["table"], given["key"], given["name"], given.get("order", ""))
            try:
                yield claims
            finally:
                claims.close()

    def initialOffset(self) -> dict[str, int]:
        """Before the first batch."""
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """One batch of claims for each micro-batch, however many rows it has."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Claim all that is there now: that is what the query sends."""
        with self._claims() as claims:
            self._last = claims.newest()
            while (newest := claims.claim(self._batch_rows)) > self._last:
                self._last = newest

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The next batch: one that was claimed, else what waits now."""
        with self._claims() as claims:
            newest = claims.newest() if self._last is None else self._last
            if newest <= start["batch"] and self._last is None:
                newest = claims.claim(self._batch_rows)
        return {"batch": min(newest, start["batch"] + 1)}

    def commit(self, end: dict[str, int]) -> None:
        """What a micro-batch sent is deleted, if that is wanted."""
        if self._options["delete"] == "true":
            with self._claims() as claims:
                claims.delete(end["batch"])

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One: rows keep their order."""
        return [Batches(start["batch"], end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows as messages; runs on an executor."""
        if not isinstance(partition, Batches):
            return
        mapping = json.loads(self._options["columns"])
        with self._claims() as claims:
            rows = claims.rows(partition.after, partition.to)
            for first in range(0, len(rows), 1000):
                messages = [message_of(row, mapping) for row in rows[first : first + 1000]]
                yield pa.RecordBatch.from_pylist(messages, _ARROW)


def message_of(row: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """A row as the parts of a message. Raises ConfigError for a value that cannot be one."""
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
        parts["body"] = json.dumps(dict(row), default=text_of, ensure_ascii=False).encode()
    elif not parts["body"]:
        raise ConfigError(f"a row's {mapping['body']} is empty: RocketMQ takes no message without a body")
    return parts


def _properties(value: Any, column: str) -> list[tuple[str, str]]:
    try:
        found = value if isinstance(value, dict) else json.loads(value)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"a row's {column} is no JSON object: message properties are needed there")
    return [(str(name), text_of(inner)) for name, inner in found.items() if inner is not None]


def text_of(value: Any) -> str:
    """A value of a database as text: times as ISO 8601, bytes as base64, numbers and JSON as JSON writes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, default=text_of, ensure_ascii=False)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return str(value)
