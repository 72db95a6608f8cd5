"""A stream whose Spark does not tell it where it is: a model of such a Spark drives a reader of one queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from rocketspark.spark.spark_features import OwnLimitsReader, ReadAllAvailable, ReadLimit, ReadMaxRows

pytestmark = pytest.mark.shows(
    "limits on 4.0 and 4.1, exact, over restarts; `availableNow` with a limit ends after one micro-batch, "
    "warned once; pipelines repeat until the end noted at their start; what cannot work says so with version "
    "and option"
)


class Queue:
    """A queue of `end` messages; a new query begins at `start`."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Reader:
    """Reads at most `limit` messages of a queue at a time."""

    def __init__(self, queue: Queue, limit: int | None) -> None:
        self._queue, self._limit = queue, limit
        self._initial: dict[str, Any] | None = None
        self.committed: list[int] = []

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = {"at": self._queue.start}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._queue.end
        return {"at": min(self._queue.end, start["at"] + most)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from ()

    def commit(self, end: dict[str, Any]) -> None:
        self.committed.append(end["at"])

    def stop(self) -> None:
        pass


class Spark:
    """A query of Spark 4.0: it keeps what was planned and what is done over restarts, and calls a reader as it does."""

    def __init__(self, queue: Queue, limit: int | None) -> None:
        self.queue, self.limit = queue, limit
        self.planned: list[tuple[int, int]] = []
        self.done = 0
        self.restart()

    def restart(self) -> None:
        self.reader = OwnLimitsReader(Reader(self.queue, self.limit))
        self._at: dict[str, Any] | None = None
        if self.planned:
            newest = {"at": self.planned[-1][1]}
            assert self.reader.partitions(newest, newest) == []

    def micro_batch(self, *, fails: bool, at_end: dict[str, Any] | None = None) -> bool:
        """Run the next one; False if there is nothing. `at_end`: the end that AvailableNow took."""
        if self.done < len(self.planned):
            first, end = self.planned[self.done]
            begin = self.reader.initialOffset() if self.done == 0 and not fails else {"at": first}
        else:
            latest = self.reader.latestOffset() if at_end is None else at_end
            begin = {"at": self.planned[-1][1]} if self.planned else self.reader.initialOffset()
            if latest == begin:
                return False
            self.planned.append((begin["at"], latest["at"]))
            first, end = self.planned[-1]
        (part,) = self.reader.partitions(begin, {"at": end})
        assert part.value == (first, end)
        if not fails:
            self.done += 1
            self.reader.commit({"at": end})
        return True


@given(
    limit=st.none() | st.integers(1, 9),
    start=st.integers(0, 5),
    steps=st.lists(st.sampled_from(["batch", "fail", "restart", "now"]) | st.integers(1, 12), max_size=40),
)
def test_every_message_comes_once_within_the_limit(limit: int | None, start: int, steps: list[str | int]) -> None:
    queue = Queue(start, start + 3)
    spark = Spark(queue, limit)
    for step in steps:
        if isinstance(step, int):
            queue.end += step
        elif step == "restart":
            spark.restart()
        elif step == "fail":
            spark.micro_batch(fails=True)
            spark.restart()
        elif step == "now":
            # It takes the end first, and ends after that micro-batch; one that is to run again is all of the query.
            spark.restart()
            again = spark.done < len(spark.planned)
            spark.micro_batch(fails=False, at_end=None if again else spark.reader.latestOffset())
        else:
            spark.micro_batch(fails=False)
    while spark.micro_batch(fails=False):
        pass
    places = [n for first, end in spark.planned for n in range(first, end)]
    assert places == list(range(start, queue.end))
    assert all(0 < end - first <= (limit or queue.end) for first, end in spark.planned)


def test_a_micro_batch_of_which_spark_plans_nothing_is_done() -> None:
    queue = Queue(0, 20)
    reader = OwnLimitsReader(Reader(queue, 5))
    # As with a join with an empty table: the rows are not wanted.
    assert [reader.latestOffset()["at"] for _ in range(3)] == [5, 10, 15]
    assert [part.value for part in reader.partitions({"at": 10}, {"at": 15})] == [(10, 15)]
    assert reader.latestOffset() == {"at": 20}


def test_a_limit_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    limited, free = OwnLimitsReader(Reader(Queue(0, 9), 2)), OwnLimitsReader(Reader(Queue(0, 9), None))
    repeated = OwnLimitsReader(Reader(Queue(0, 9), 2), repeated=True)
    with caplog.at_level(logging.WARNING, "rocketspark.spark"):
        for reader in (limited, limited, free, repeated):
            reader.latestOffset()
    assert [r.message.split(" after ")[0].split(" ", 2)[2] for r in caplog.records] == [
        "ends a query with trigger AvailableNow"
    ]
