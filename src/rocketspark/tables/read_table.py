"""read_table and read_batches: the messages of a topic as rows of Arrow. Rule: columns, options and what is read are
those of format("rocketmq"); where the read begins and ends is fixed when it is called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from rocketspark.errors import ConfigError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.model.subscription import can_be_asked
from rocketspark.tables.decode.options import JSON, DecodeOptions
from rocketspark.tables.offset_ranges import to_json
from rocketspark.tables.option_values import COMMITTED, EARLIEST, LATEST
from rocketspark.tables.options import ReadOptions, check_known, parse_read
from rocketspark.tables.read import batch
from rocketspark.tables.read_columns import Columns, columns_of, names_of, with_schema

T = TypeVar("T")

# Where a read begins or ends: a word of the option, a time, or offsets by queue.
Place = str | int | datetime | Mapping[Any, Any]
# Options that may be lists; of others a list would be one text with commas.
_SEVERAL = ("namesrv", "topic", "columns", "store", "brokername", "storepathcommitlog", "schemaregistry")
_PLACES = "earliest, latest, committed, a time, or a table of offsets by queue is needed"


def read_table(namesrv: str | None = None, topic: str | Sequence[str] | None = None, **how: Any) -> pa.Table:
    """Return the messages of a topic as a table that is in memory; arguments as of `read_batches`."""
    with read_batches(namesrv, topic, **how) as batches:
        return batches.read_all()


def read_batches(
    namesrv: str | None = None,
    topic: str | Sequence[str] | None = None,
    *,
    start: Place | None = None,
    end: Place | None = None,
    columns: Sequence[str] | None = None,
    tags: str | Sequence[str] | None = None,
    decode: str | None = None,
    store: str | Path | Sequence[str | Path] | None = None,
    **options: Any,
) -> pa.RecordBatchReader:
    """Return the messages of a topic as batches of some 16,000 rows, each read when it is asked for; queue by queue, in
    the order of their offsets. DuckDB, Polars and others query such a reader, once.

    Args:
        namesrv: NameServers, "host:port;host:port"; None if `store` is read.
        topic: one or several; None with the options topicPattern or assign.
        start: "earliest" (the default), "committed" (option committedGroup names the group), a time, or offsets by
            queue: {"topic": {"broker-a": {"0": 12}}} or {MessageQueue: 12}. A time is a datetime with a zone, ms since
            1970, or ISO text (UTC where it names no zone), and stands for the first message stored at or after it.
        end: "latest" (the default: what is there now), or as `start`; what lies there is not read.
        columns: names of columns, in the order wanted; all by default. Fewer are quicker.
        tags: "A || B", or a list of tags, by which the broker filters.
        decode: "json", "avro" or "protobuf": bodies as a column `value`, and why one is bad in `_decode_error`.
        store: a broker's store directory, or several, read without the broker, which may run; or its folder in a second
            tier, which may be in an object store (s3a://bucket/folder, options object_store_endpoint, …_access_key,
            …_secret_key).
        options: every other option of the source for a batch read, by its name there or as Python writes it: `sql=…`,
            `failOnDataLoss=False` or `fail_on_data_loss=False`, `access_key=…`, `decode_schema="id INT"`.

    Raises ConfigError for a wrong argument, RouteNotFound for no such topic, and TransportError. While batches are
    read: DataLost for messages that are gone (unless failOnDataLoss is false), RecordError for a body that cannot be
    read, BodyUndecodable with decodeMode FAILFAST.
    """
    if namesrv is None and store is None:
        raise UsageError("namesrv is missing: host:port of a NameServer, or store= for a store's directory")
    given: dict[str, Any] = {"namesrv": namesrv, "topic": topic, "columns": columns, "tags": _tags(tags)}
    given |= {"decode": decode, "store": store}
    given |= _place("start", start) | _place("end", end) | options
    return opened(*prepared(given))


def opened(options: ReadOptions, columns: Columns) -> pa.RecordBatchReader:
    """Return the reader of a read that is prepared, planned now. Raises as `read_batches`."""
    partitions = _apart(lambda: batch.plan(options))
    return pa.RecordBatchReader.from_batches(columns.schema, _batches(partitions, columns, options))


class Prepared(NamedTuple):
    """A read whose options are checked: these, and its columns."""

    options: ReadOptions
    columns: Columns


def prepared(given: Mapping[str, Any]) -> Prepared:
    """Return the read that options ask for; a sample is read where a JSON schema is to be inferred. Raises as
    `read_batches`.
    """
    options = parse_read(texts(given), streaming=False)
    check_known(given)
    names = names_of(options.columns, options.decode)
    if options.decode is not None:
        options = _apart(lambda: options._replace(decode=_resolved(options, options.decode)))
    return Prepared(options, columns_of(names, options))


def _batches(partitions: Sequence[batch.Partition], columns: Columns, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    for partition in partitions:
        yield from batch.read(partition, columns, options)


def _resolved(options: ReadOptions, decode: DecodeOptions | None) -> DecodeOptions:
    """Return the options of decoding with the type of the decoded column."""
    from rocketspark.tables.decode.bodies import typed, value_type
    from rocketspark.tables.decode.json_bodies import of_ddl

    assert decode is not None
    decode = with_schema(decode, batch.sampled_bodies(options))
    return typed(decode, of_ddl(decode.schema) if decode.format == JSON else value_type(decode))


def _apart(act: Callable[[], T]) -> T:
    """Return the result of what runs an event loop of its own; in another thread if one runs here, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return act()
    with ThreadPoolExecutor(1) as other:
        return other.submit(act).result()


def texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark hands them over: all texts. None stands for an option that is not given. Raises
    ConfigError for one that is given twice, under both of its names.
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        plain = name.replace("_", "").lower()
        if plain in found:
            raise ConfigError(f"option {name} is given twice: leave one out")
        found[plain] = _text(name, value)
    return found


def _text(name: str, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | Path():
            return str(value)
        case Mapping():
            return json.dumps(to_json(value) if _by_queue(value) else value)
        case list() | tuple() if name.replace("_", "").lower() in _SEVERAL:
            for each in value:
                if not isinstance(each, str | Path) or "," in str(each):
                    raise ConfigError(f"option {name} holds {each!r}: a text without a comma is needed")
            return ",".join(map(str, value))
    raise ConfigError(f"option {name} is a {type(value).__name__}: a text or a number is needed")


def _by_queue(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(isinstance(queue, MessageQueue) for queue in value)


def _tags(given: str | Sequence[str] | None) -> str | None:
    """Return the option of a list of tags. Raises UsageError for one that brokers cannot be asked for."""
    if given is None or isinstance(given, str):
        return given
    for tag in given:
        if not isinstance(tag, str) or not can_be_asked(tag):
            raise UsageError(f"tags holds {tag!r}: a tag without ||, and without blanks around it, is needed")
    if not given:
        raise UsageError("tags is an empty list: leave it out for all messages")
    return " || ".join(given)


def _place(name: str, value: Place | None) -> dict[str, Any]:
    """Return the option that says where a read starts or ends."""
    option = "starting" if name == "start" else "ending"
    match value:
        case None:
            return {}
        case bool():
            raise UsageError(f"{name} is {value}: {_PLACES}")
        case Mapping():
            return {f"{option}Offsets": value}
        case datetime():
            if value.tzinfo is None:
                raise UsageError(f"{name} is {value}, which names no time zone: give it one, such as datetime.UTC")
            return {f"{option}Timestamp": value.isoformat()}
        case str() if value.strip().lower() in (EARLIEST, LATEST, COMMITTED) or value.lstrip().startswith("{"):
            return {f"{option}Offsets": value}
        case int() if value >= 0:
            # So that the digits are no date.
            return {f"{option}Timestamp": f"0{value}"}
        case str():
            return {f"{option}Timestamp": value}
    raise UsageError(f"{name} is {value!r}: {_PLACES}")
