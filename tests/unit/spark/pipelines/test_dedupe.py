"""The time at which a stream saw its messages: whatever the clock does, it never goes back."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.spark.pipelines.dedupe import SeenReader
from rocketspark.spark.read.queue_discovery import DiscoveredQueues
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadAllAvailable
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.queue_bounds import OffsetBounds
from rocketspark.tables.read.partition_planning import QueuePartition

pytestmark = pytest.mark.shows("mended: `dedupe` loses messages after the driver's clock went back")

QUEUE = MessageQueue("T", "b", 0)


class FakeDiscovery:
    """A queue that grows by one message each time it is looked at."""

    def __init__(self) -> None:
        self.next = 0
        self.told: list[str] = []

    def look(self, held: Any) -> DiscoveredQueues:
        self.next += 1
        return DiscoveredQueues({QUEUE: OffsetBounds(0, self.next)}, {})

    def tell(self, text: str) -> None:
        self.told.append(text)


def reader(clock: list[int], floor_ms: int = 0, by: str = "") -> tuple[SeenReader, FakeDiscovery]:
    options = parse_read({"namesrv": "127.0.0.1:1", "topic": "T"}, streaming=True)
    made = SeenReader(StructType([READ_SCHEMA["queueOffset"]]), options, floor_ms, lambda: clock[0], by=by)
    watch = FakeDiscovery()
    made._queue_discovery = watch  # type: ignore[assignment]
    made._initial = {"T": {"b": {"0": 0}}}
    return made, watch


def test_it_stands_still_while_the_clock_is_behind() -> None:
    clock = [1000]
    stream, watch = reader(clock)
    start = stream.initialOffset()
    seen = []
    for now in (1000, 2000, 500, 1500, 2500):
        clock[0] = now
        start = stream.latestOffset(start, ReadAllAvailable())
        seen.append(start["@seen"])
    assert seen == [1000, 2000, 2000, 2000, 2500]
    assert len(watch.told) == 2


def test_it_begins_after_the_watermark_of_the_checkpoint() -> None:
    stream, _ = reader([1000], floor_ms=5000)
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())["@seen"] == 5001


@pytest.mark.shows(
    "mended: `dedupe` with another `--by` on the same checkpoint passed all repetitions on: no key of the old "
    "kind is known"
)
def test_keys_that_were_told_by_something_else_are_not_taken_for_new() -> None:
    stream, _ = reader([1000], by="key")
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert start["@by"] == "key"
    assert stream.latestOffset(start, ReadAllAvailable())["@by"] == "key"
    other, watch = reader([1000], by="body")
    for ask in (lambda: other.latestOffset(start, ReadAllAvailable()), lambda: other.partitions({}, start)):
        with pytest.raises(ConfigError, match="remembers keys by key, not by body: give --by key, or another"):
            ask()
    # One of an earlier version does not tell.
    del start["@by"]
    watch.next = 9
    assert other.latestOffset(start, ReadAllAvailable())["@by"] == "body"


def test_nothing_new_is_the_same_offset() -> None:
    stream, watch = reader([1000])
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    watch.next -= 1
    assert stream.latestOffset(start, ReadAllAvailable()) is start


def test_rows_have_the_time_of_their_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def planned(self: StreamReader, start: Any, end: Any) -> list[InputPartition]:
        asked.append((start, end))
        return [InputPartition(QueuePartition(OffsetRange(QUEUE, 0, 1), ()))]

    monkeypatch.setattr(StreamReader, "partitions", planned)
    stream, _ = reader([9000])
    own = {"T": {"b": {"0": 1}}}
    [part] = stream.partitions(own, {**own, "@seen": 1234})
    assert (part.seen_ms, asked) == (1234, [(own, own)])  # type: ignore[attr-defined]
    # Of a version that kept no time.
    assert stream.partitions(own, own)[0].seen_ms == 9000  # type: ignore[attr-defined]
