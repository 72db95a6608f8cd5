"""Batches to queues: sizes, order, bounds and failures, with a producer that only notes what it is given."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from rocketspark.client.producer import send_many
from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.errors import MessageIllegal, NotSent, RouteNotFound, SendFailed, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import batch, compression, properties
from rocketspark.spark.write import batch_encoding, batch_sender
from rocketspark.tables.options import WriteOptions, parse_write

pytestmark = pytest.mark.shows(
    "batch and stream, all columns and options, delivery times, bounded memory, order per queue, a killed "
    "broker, inner batches"
)

QUEUES = [MessageQueue("t", broker, i) for broker in ("a", "b") for i in (0, 1)]
ITEM_BYTES = 74 + 10


class Producer:
    """Notes sends; `obstacle` may wait or raise before one is stored."""

    def __init__(self) -> None:
        self.stored: dict[MessageQueue | None, list[bytes]] = defaultdict(list)
        self.sends: list[PreparedMessage] = []
        self.batches: list[list[bytes]] = []
        self.in_flight_bytes = self.in_flight_bytes_max = self.in_flight_max = self.in_flight = 0
        self.known = True
        self.obstacle: Callable[[MessageQueue | None, list[bytes]], Coroutine[Any, Any, None]] | None = None

    def __call__(self, *arguments: Any, **options: Any) -> Producer:
        return self

    @property
    def bodies(self) -> list[bytes]:
        return [body for bodies in self.batches for body in bodies]

    async def start(self) -> None:
        pass

    close = start

    async def queues(self, topic: str) -> list[MessageQueue]:
        if not self.known:
            raise RouteNotFound(topic)
        return QUEUES

    # What a topic will have that does not exist yet.
    _namespace = ""

    @property
    def _routes(self) -> Producer:
        return self

    async def find_write_queues(self, topic: str) -> list[MessageQueue]:
        return QUEUES

    def _bare_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue

    async def send_packed(
        self,
        out: PreparedMessage,
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: float | None,
        attempts: int | None = None,
    ) -> None:
        is_batch = out.code == RequestCode.SEND_BATCH_MESSAGE
        bodies = [item.body for item in batch.decode(out.body)] if is_batch else [out.body]
        self.in_flight += 1
        self.in_flight_bytes += len(out.body)
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        self.in_flight_bytes_max = max(self.in_flight_bytes_max, self.in_flight_bytes)
        try:
            await asyncio.sleep(0)
            if self.obstacle is not None:
                await self.obstacle(queue, bodies)
        finally:
            self.in_flight -= 1
            self.in_flight_bytes -= len(out.body)
        self.known = True
        self.sends.append(out)
        self.batches.append(bodies)
        self.stored[queue] += bodies


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    fake = Producer()
    monkeypatch.setattr(batch_sender, "AsyncProducer", fake)
    return fake


def options(**changes: Any) -> WriteOptions:
    return parse_write({"namesrv": "127.0.0.1:1", "topic": "t"} | {k: str(v) for k, v in changes.items()})


def rows(count: int, first: int = 0, **columns: Any) -> pa.RecordBatch:
    kinds = {"queueId": pa.int32(), "delayLevel": pa.int32(), "delayMs": pa.int64()}
    made = {"body": pa.array([b"%010d" % i for i in range(first, first + count)], pa.binary())}
    return pa.RecordBatch.from_pydict(made | {n: pa.array(v, kinds.get(n)) for n, v in columns.items()})


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body) for body in bodies]


def test_batches_are_full_and_take_turns(producer: Producer) -> None:
    batches = [rows(25, first) for first in (0, 25, 50)]
    assert batch_sender.send_rows(iter(batches), options(maxBatchBytes=10 * ITEM_BYTES + 5)) == 75
    assert sorted(map(len, producer.batches)) == [5, *[10] * 7]
    assert sorted(numbers(producer.bodies)) == list(range(75))
    assert [len(producer.stored[q]) for q in QUEUES].count(20) >= 3
    for bodies in producer.stored.values():
        assert numbers(bodies) == sorted(numbers(bodies))
    ids = [properties.decode(i.properties.decode())["UNIQ_KEY"] for s in producer.sends for i in batch.decode(s.body)]
    assert len(set(ids)) == 75


def test_no_rows_no_sends(producer: Producer) -> None:
    assert batch_sender.send_rows(iter([]), options()) == 0
    assert batch_sender.send_rows(iter([rows(0), rows(0)]), options()) == 0
    assert producer.sends == []


def test_a_batch_holds_no_more_rows_than_a_broker_counts(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sender, "BATCH_ROWS_MAX", 7)
    batch_sender.send_rows(iter([rows(10), rows(10, 10)]), options())
    assert [len(bodies) for bodies in producer.batches] == [7, 7, 6]


def test_chosen_queues_keep_their_order_and_go_side_by_side(producer: Producer) -> None:
    async def slow(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        for _ in range(20 if queue == QUEUES[0] else 1):
            await asyncio.sleep(0)

    producer.obstacle = slow
    given = rows(400, queueId=[i % 2 for i in range(400)], broker=["a", "a", "b", "b"] * 100)
    batch_sender.send_rows(iter([given]), options(maxBatchBytes=5 * ITEM_BYTES, maxBatchesInFlight=8))
    for n, queue in enumerate(QUEUES):
        assert numbers(producer.stored[queue]) == list(range(n, 400, 4))
    assert 1 < producer.in_flight_max <= 4


def test_what_is_in_flight_is_bounded(producer: Producer) -> None:
    """Of a broker that does not answer: no more leaves, and the rows are not taken."""

    async def main() -> None:
        answers = asyncio.Event()

        async def hang(queue: MessageQueue | None, bodies: list[bytes]) -> None:
            await answers.wait()

        producer.obstacle = hang
        made = batch_sender.Sender(options(maxBatchBytes=10 * ITEM_BYTES, maxBatchesInFlight=3))
        await made.start()
        task = asyncio.ensure_future(made.send(rows(1000)))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert (producer.in_flight, task.done()) == (3, False)
        answers.set()
        await task
        await made.finish()
        await made.close()

    asyncio.run(main())
    assert producer.in_flight_bytes_max <= 3 * 10 * ITEM_BYTES
    assert producer.in_flight_max == 3
    assert sorted(numbers(producer.bodies)) == list(range(1000))


def test_a_failed_batch_is_not_overtaken(producer: Producer) -> None:
    async def refuse(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        if b"%010d" % 12 in bodies:
            for _ in range(10):
                await asyncio.sleep(0)
            raise ServerError(13, "the message is illegal")

    producer.obstacle = refuse
    with pytest.raises(ServerError, match="illegal"):
        batch_sender.send_rows(iter([rows(100, queueId=[0] * 100)]), options(maxBatchBytes=5 * ITEM_BYTES))
    assert numbers(producer.stored[QUEUES[0]]) == list(range(10))


@pytest.mark.shows("mended: Spark's batches that a broker refused as larger than its maxMessageSize ended a write")
def test_a_batch_that_its_broker_calls_too_large_goes_by_halves(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_encoding, "BATCH_BYTES_LEAST", ITEM_BYTES)
    monkeypatch.setattr(send_many, "BATCH_BYTES_LEAST", ITEM_BYTES)
    refused: list[int] = []

    async def refuse(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        if len(bodies) > 7 or b"%010d" % 99 in bodies:
            refused.append(len(bodies))
            raise ServerError(ResponseCode.MESSAGE_ILLEGAL, "message body size over max value")

    producer.obstacle = refuse
    # Of a few bytes more than a row has, so that one alone is no batch's half.
    many = rows(99, queueId=[0, 1] * 49 + [0], body=[b"%010d" % n for n in range(98)] + [b"x" * 100])
    given = options(maxBatchBytes=20 * ITEM_BYTES, maxBatchesInFlight=1)
    assert batch_sender.send_rows(iter([many]), given) == 99
    assert max(map(len, producer.batches)) <= 7
    for bodies in producer.stored.values():
        assert bodies == sorted(bodies)
    # Those that follow are of such a size.
    assert 0 < len(refused) < 10
    # A row that is wrong by itself ends the write.
    with pytest.raises(ServerError, match="over max value"):
        batch_sender.send_rows(iter([rows(20, 90)]), given)


def test_a_free_batch_leaves_a_queue_that_fails_and_a_chosen_one_does_not(producer: Producer) -> None:
    tried: list[tuple[MessageQueue | None, int]] = []

    async def down(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        tried.append((queue, int(bodies[0])))
        if queue is not None and queue.broker_name == "a":
            cause = NotSent("no connection", address="a")
            raise SendFailed("t", cause, attempts=1, brokers=("a",), cost_ms=1)

    producer.obstacle = down
    batch_sender.send_rows(iter([rows(40)]), options(maxBatchBytes=10 * ITEM_BYTES))
    assert sorted(numbers(producer.bodies)) == list(range(40))
    # Two of the four went to a first; the producer then chooses among all.
    assert len(producer.stored[None]) == 20
    with pytest.raises(SendFailed):
        batch_sender.send_rows(iter([rows(1, queueId=[0], broker=["a"])]), options())
    with pytest.raises(SendFailed):
        batch_sender.send_rows(iter([rows(1, broker=["a"])]), options())
    with pytest.raises(SendFailed):
        batch_sender.send_rows(iter([rows(40)]), options(maxBatchBytes=10 * ITEM_BYTES, sendAttempts=1))


def test_a_topic_that_is_not_there_is_made_by_the_first_batch(producer: Producer) -> None:
    producer.known = False
    batch_sender.send_rows(iter([rows(30)]), options(maxBatchBytes=10 * ITEM_BYTES))
    assert numbers(producer.stored[None]) == list(range(10))
    assert sum(map(len, producer.stored.values())) == 30
    producer.known = False
    with pytest.raises(RouteNotFound, match="needs its queues; create it first"):
        batch_sender.send_rows(iter([rows(1, queueId=[0])]), options())


@pytest.mark.shows("keys to a topic that does not exist")
def test_keys_choose_among_the_queues_that_a_topic_will_have(producer: Producer) -> None:
    """As a producer's sends do. What comes of the route meanwhile moves no key of the task."""
    keys = [f"k{i % 5}" for i in range(100)]
    producer.known = False
    batch_sender.send_rows(iter([rows(100, shardingKey=keys)]), options(maxBatchBytes=10 * ITEM_BYTES))
    assert None not in producer.stored
    queue_of = {i: queue for queue, bodies in producer.stored.items() for i in numbers(bodies)}
    assert len(queue_of) == 100
    for key in set(keys):
        wanted = [i for i in range(100) if keys[i] == key]
        [queue] = {queue_of[i] for i in wanted}
        assert [i for i in numbers(producer.stored[queue]) if keys[i] == key] == wanted


def test_large_rows_keep_their_place_and_late_ones_do_not_hinder(producer: Producer) -> None:
    bodies = [b"%010d" % i if i != 4 else b"4" * 2000 for i in range(9)]
    delays = [None, None, 3, None, None, None, 5, None, None]
    given = pa.RecordBatch.from_pydict(
        {"body": bodies, "delayLevel": pa.array(delays, pa.int32()), "queueId": pa.array([0] * 9, pa.int32())}
    )
    batch_sender.send_rows(iter([given]), options(maxBatchBytes=1000))
    assert sorted(producer.batches, key=lambda b: (len(b), b)) == [
        [bodies[2]],
        [bodies[6]],
        [bodies[4]],
        [bodies[0], bodies[1], bodies[3]],
        [bodies[5], bodies[7], bodies[8]],
    ]
    order = [body for body in producer.stored[QUEUES[0]] if body not in (bodies[2], bodies[6])]
    assert order == [b for i, b in enumerate(bodies) if i not in (2, 6)]
    alone = [out for out in producer.sends if out.code == RequestCode.SEND_MESSAGE_V2]
    assert [properties.decode(out.properties).get("DELAY") for out in alone] == ["3", None, "5"]


def test_many_late_rows_are_in_flight_at_once(producer: Producer) -> None:
    async def linger(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    producer.obstacle = linger
    batch_sender.send_rows(iter([rows(3000, delayMs=[5] * 3000)]), options(maxBatchBytes=1 << 20))
    assert len(producer.sends) == 3000
    assert 20 < producer.in_flight_max <= batch_sender.IN_FLIGHT_MAX


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_bodies_over_a_size_are_compressed_and_go_alone(producer: Producer, kind: str) -> None:
    bodies = [b"a" * 5000, b"small", bytes(range(256)) * 2, b"b" * 100, b"c" * 6000]
    given = pa.RecordBatch.from_pydict({"body": bodies})
    batch_sender.send_rows(iter([given]), options(compression=kind, compressOverBytes=1000))
    alone = {out.message_id: out for out in producer.sends if out.code == RequestCode.SEND_MESSAGE_V2}
    assert {compression.inflate(out.body, out.sys_flag) for out in alone.values()} == {bodies[0], bodies[4]}
    assert all(len(out.body) < 1000 for out in alone.values())
    (batched,) = [b for b in producer.batches if len(b) > 1]
    assert batched == [bodies[1], bodies[2], bodies[3]]
    producer.sends.clear()
    batch_sender.send_rows(iter([given]), options())
    assert [out.sys_flag for out in producer.sends] == [0]


def test_what_waits_for_many_topics_is_bounded(producer: Producer) -> None:
    given = rows(2000, topic=[f"topic-{i % 500}" for i in range(2000)])
    made = parse_write({"namesrv": "127.0.0.1:1", "maxBatchBytes": str(8 * ITEM_BYTES), "maxBatchesInFlight": "2"})
    held: list[int] = []
    real = batch_sender.Sender._gather

    async def watched(self: batch_sender.Sender, *arguments: Any) -> None:
        await real(self, *arguments)
        held.append(self._gathered_bytes)

    batch_sender.Sender._gather = watched  # type: ignore[method-assign]
    try:
        assert batch_sender.send_rows(iter([given]), made) == 2000
    finally:
        batch_sender.Sender._gather = real  # type: ignore[method-assign]
    assert max(held) <= 2 * 8 * ITEM_BYTES
    assert sorted(numbers(producer.bodies)) == list(range(2000))
    assert all(len({body[-3:] for body in bodies}) <= 4 for bodies in producer.batches)


def test_a_wrong_row_fails_before_its_part_leaves(producer: Producer) -> None:
    given = pa.RecordBatch.from_pydict({"body": [b"a", b""]})
    with pytest.raises(MessageIllegal, match="empty"):
        batch_sender.send_rows(iter([given]), options())
    assert producer.sends == []


def test_spark_makes_the_next_rows_while_those_before_are_sent(producer: Producer) -> None:
    """One batch ahead, no more, so that a slow broker stops the reading."""
    made: list[int] = []
    seen_at_send: list[int] = []
    fourth = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            made.append(number)
            if number == 3:
                fourth.set()
            yield rows(10, 10 * number)

    async def linger(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        # The first send ends only when the fourth batch was made.
        while not fourth.is_set():
            await asyncio.sleep(0.001)
        seen_at_send.append(len(made))

    producer.obstacle = linger
    batch_sender.send_rows(source(), options(maxBatchBytes=10 * ITEM_BYTES, maxBatchesInFlight=1))
    assert numbers(producer.bodies) == list(range(60))
    # One is in flight, one waits for room, one is gathered, one is taken ahead.
    assert seen_at_send[0] == 4


def test_a_send_that_fails_ends_a_task_whose_rows_take_long(producer: Producer) -> None:
    released = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield rows(20)
        released.wait(60)

    async def refuse(queue: MessageQueue | None, bodies: list[bytes]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        raise NotSent("no room")

    producer.obstacle = refuse
    try:
        with pytest.raises(NotSent, match="no room"):
            batch_sender.send_rows(source(), options(maxBatchBytes=10 * ITEM_BYTES, sendAttempts=1))
    finally:
        released.set()


def test_what_the_source_raises_ends_the_task(producer: Producer) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield rows(10)
        raise OSError("no more rows")

    with pytest.raises(OSError, match="no more rows"):
        batch_sender.send_rows(source(), options(maxBatchBytes=10 * ITEM_BYTES))
