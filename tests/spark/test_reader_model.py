"""Any order of sends, new and fewer queues, topics made anew, retention, micro-batches and restarts, also between the
planning of a micro-batch and its reading: no row is passed over, none comes twice, without being told.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.examples import PATIENT

from rocketspark import Producer
from rocketspark.admin.operations import Admin
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.spark.read.batch_read import BatchReader
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import read_schema
from rocketspark.tables.offset_ranges import from_json
from rocketspark.tables.options import parse_read
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.connections import dial

pytestmark = pytest.mark.shows(
    "Spark's reader against a model: queues that come, go, are cut and made anew, also between plan and read",
)

EXAMPLES = 40

CHANGES = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), st.integers(1, 12), st.sampled_from([1, 1500])),
    st.tuples(st.just("remake"), st.integers(1, 3)),
    st.tuples(st.just("queues"), st.integers(1, 4)),
    st.tuples(st.just("clean")),
    st.tuples(st.just("restart")),
)
# A micro-batch with what happens before its partitions are planned, and before they are read.
BATCH = st.tuples(st.just("batch"), st.lists(CHANGES, max_size=2), st.lists(CHANGES, max_size=2))
STEPS = st.lists(st.one_of(CHANGES, CHANGES, BATCH), max_size=12)

_TOLD = re.compile(r"messages (\d+) (?:to (\d+)|from .*? on) of queue (\d+) |messages from (\d+) on of queue (\d+) ")
_GONE = re.compile(r"queue (\d+) of .*, read up to offset (\d+), is gone")
_names = itertools.count()


class Sent(NamedTuple):
    """A message's place; `life`: the topic's, which is deleted and made anew."""

    life: int
    queue: int
    offset: int


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    small = {"log_file_bytes": 1 << 16, "queue_file_bytes": 20 * 60, "index_slots": 500, "index_entries": 2000}
    with run_cluster(reserved_hours=0, delete_when="", **small) as cluster:
        yield cluster


class Model(logging.Handler):
    """A stream without failOnDataLoss, what was sent, what came, and what its warnings told as gone."""

    def __init__(self, cluster: Cluster, producer: Producer, operations: Admin, limit: int | None) -> None:
        super().__init__()
        self._cluster, self._producer, self._operations = cluster, producer, operations
        self.topic = f"model{next(_names)}"
        self._options = {"namesrv": cluster.namesrv, "topic": self.topic, "columns": "body", "pollTimeoutMs": "200"}
        self._streaming = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
        self._streaming |= {"maxMessagesPerTrigger": str(limit)} if limit else {}
        self.life, self.count = 0, 2
        self.sent: dict[str, Sent] = {}
        self.came: Counter[str] = Counter()
        self.told: set[str] = set()
        self.known: set[tuple[int, int]] = set()
        operations.create_topic(self.topic, queue_count=2)
        self.reader = self._made()
        self.at = self.reader.initialOffset()

    def _made(self) -> StreamReader:
        return StreamReader(read_schema(("body",)), parse_read(self._options | self._streaming, streaming=True))

    def emit(self, record: logging.LogRecord) -> None:
        """Note what a warning tells: of a topic made anew, the messages of its lives before."""
        text = record.getMessage()
        if gone := _GONE.search(text):
            queue, first, end = int(gone[1]), int(gone[2]), None
        elif told := _TOLD.search(text):
            first, end = int(told[1] or told[4]), told[2] and int(told[2]) + 1
            queue = int(told[3] or told[5])
        else:
            return
        anew = re.search("(deleted and|it was) made anew", text) is not None
        self.told |= {
            body
            for body, at in self.sent.items()
            if at.life < self.life or (not anew and at.queue == queue and first <= at.offset < (end or at.offset + 1))
        }

    def send(self, queue: int, count: int, size: int) -> None:
        for _ in range(count):
            body = f"{len(self.sent)} ".ljust(size, "x")
            place = MessageQueue(self.topic, "broker-a", queue % self.count)
            offset = self._producer.send(self.topic, body.encode(), queue=place).queue_offset
            self.sent[body] = Sent(self.life, place.queue_id, offset)

    def remake(self, count: int) -> None:
        self._operations.delete_topic(self.topic)
        self._operations.create_topic(self.topic, queue_count=count)
        self.life, self.count = self.life + 1, count

    def queues(self, count: int) -> None:
        self._operations.create_topic(self.topic, queue_count=count, force=True)
        self.count = count

    def clean(self) -> None:
        async def clean() -> None:
            peer = await dial(self._cluster.brokers[0])
            (await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)).raise_for_code("clean")
            peer.close()

        asyncio.run(clean())

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self._made()

    def batch(self, planned: list[Any], read: list[Any]) -> bool:
        """One micro-batch, as Spark runs it; tells whether there was one."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())))
        if end == self.at:
            return False
        self.all(planned)
        parts = self.reader.partitions(self.at, end)
        self.all(read)
        self.came.update(body for part in parts for body in bodies(self.reader, part))
        self.at = end
        self.known |= {(self.life, queue.queue_id) for queue in from_json(end)}
        return True

    def all(self, steps: list[Any]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def there(self) -> set[str]:
        """All that the topic holds now."""
        reader = BatchReader(read_schema(("body",)), parse_read(self._options, streaming=False))
        return {body for part in reader.partitions() for body in bodies(reader, part)}


def bodies(reader: StreamReader | BatchReader, part: Any) -> list[str]:
    return [body.decode() for rows in reader.read(part) for body in rows.column("body").to_pylist()]


ANEW_WITH_FEWER_QUEUES: list[Any] = [
    ("send", 1, 3, 1), ("batch", [], []), ("remake", 1), ("send", 0, 1, 1), ("batch", [], []),
    ("queues", 2), ("send", 1, 4, 1),
]  # fmt: skip
ANEW_UNDER_A_PLAN: list[Any] = [("send", 0, 3, 1), ("batch", [], [("remake", 2), ("send", 0, 4, 1)])]
FEWER_UNDER_A_PLAN: list[Any] = [("send", 1, 3, 1), ("batch", [], [("queues", 1)])]
FEWER_AND_MORE: list[Any] = [
    ("send", 1, 3, 1), ("batch", [], []), ("send", 1, 2, 1), ("queues", 1), ("batch", [], []),
    ("queues", 2), ("send", 1, 1, 1), ("batch", [], []),
]  # fmt: skip


@settings(PATIENT, max_examples=EXAMPLES)
@given(steps=STEPS, limit=st.sampled_from([None, 5]))
@example(ANEW_WITH_FEWER_QUEUES, None)
@example(ANEW_UNDER_A_PLAN, None)
@example(FEWER_UNDER_A_PLAN, None)
@example(FEWER_AND_MORE, None)
def test_a_stream_passes_nothing_over_and_gives_nothing_twice(
    cluster: Cluster, steps: list[Any], limit: int | None
) -> None:
    with Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as operations:
        model = Model(cluster, producer, operations, limit)
        log = logging.getLogger("rocketspark.spark")
        log.addHandler(model)
        try:
            model.all(steps)
            while model.batch([], []):
                pass
            assert [body for body, times in model.came.items() if times > 1] == []
            # What came and went between two looks, nobody can tell of.
            known = {body for body, at in model.sent.items() if (at.life, at.queue) in model.known}
            assert (known | model.there()) - model.came.keys() - model.told == set()
        finally:
            log.removeHandler(model)
            model.reader.stop()
            operations.delete_topic(model.topic)
