"""Our clients on static topics of two brokers: logical queues, which are moved while they send and read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from tests.live.support import run, until
from tests.live.test_static_topics import GROUP, TOPIC, item, mapping, pair, put_mapping
from tests.support.patience import LIMIT_S

from rocketspark.admin.operations import AsyncAdmin
from rocketspark.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    AsyncTransactionProducer,
    TransactionState,
)
from rocketspark.errors import ConfigError
from rocketspark.model import Message, MessageQueue, ReceivedMessage
from rocketspark.spark.exactly_once import batch_commit
from rocketspark.spark.write.batch_sender import send_rows
from rocketspark.tables.options import parse_write
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "our client on static topics: sends (by key, to a logical queue, transactions), push, ordered and pull "
    "consumers, offsets, locks, retries, `rocketspark topic show` and group progress, queues that move "
    "meanwhile"
)

QUEUES = 4
LOGICAL = [MessageQueue(TOPIC, "__syslo__global__", n) for n in range(QUEUES)]


async def make_static(to_a: Peer, to_b: Peer) -> None:
    """Logical queues 0 and 1 on a, under other numbers; 2 and 3 on b."""
    on_a = {0: [item(0, 1, "a", 0)], 1: [item(0, 0, "a", 0)]}
    on_b = {2: [item(0, 0, "b", 0)], 3: [item(0, 1, "b", 0)]}
    await put_mapping(to_a, mapping("a", 1000, on_a, QUEUES), 2)
    await put_mapping(to_b, mapping("b", 1000, on_b, QUEUES), 2)


async def move_to_b(to_a: Peer, to_b: Peer) -> None:
    """Move queues 0 and 1 to b, as remappingStaticTopic does it."""
    parts = {n: [item(0, 1 - n, "a", 0), item(1, 2 + n, "b", -1)] for n in (0, 1)}
    own = {2: [item(0, 0, "b", 0)], 3: [item(0, 1, "b", 0)]}
    await put_mapping(to_b, mapping("b", 2000, parts | own, QUEUES), 4)
    await put_mapping(to_a, mapping("a", 2000, parts, QUEUES), 2)
    parts = {n: [item(0, 1 - n, "a", 0), item(1, 2 + n, "b", 10_000)] for n in (0, 1)}
    await put_mapping(to_b, mapping("b", 2000, parts | own, QUEUES), 4)


@pytest.mark.shows("static topics by pops: SimpleConsumer and PushConsumer(pop=True), by the brokers' own queues")
def test_messages_of_static_topics_are_popped(tmp_path: Path) -> None:
    """Also what lies on the broker from which a queue was moved."""

    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            bodies = [b"%d" % n for n in range(2 * QUEUES)]
            async with AsyncProducer(names, "PG") as producer:
                for n, body in enumerate(bodies[:QUEUES]):
                    await producer.send(TOPIC, body, queue=LOGICAL[n % QUEUES])
            await move_to_b(to_a, to_b)
            async with AsyncProducer(names, "PG") as producer:
                for n, body in enumerate(bodies[QUEUES:]):
                    await producer.send(TOPIC, body, queue=LOGICAL[n % QUEUES])
            simple, got = AsyncSimpleConsumer(names, GROUP), []
            simple.subscribe(TOPIC)
            async with asyncio.timeout(LIMIT_S), simple:
                while len(got) < len(bodies):
                    received = await simple.receive(32, timeout_ms=1000)
                    await simple.ack(received)
                    got += received
            assert sorted(m.body for m in got) == bodies
            assert {m.queue.broker_name for m in got} == {"a", "b"}
            # By the brokers' assignments: the logical queues to one that pulls.
            for group, mode in (("Pulled", "PULL"), ("Pushed", "POP")):
                async with AsyncAdmin(names) as admin:
                    await admin.put_group(group)
                    await admin.set_request_mode(TOPIC, group, mode)
                pushed: list[ReceivedMessage] = []
                push = AsyncPushConsumer(names, group, consume_from="first", pop=True)
                push.subscribe(TOPIC)
                push.listen(pushed.append)
                async with push:
                    await until(lambda pushed=pushed: len(pushed) == len(bodies))
                assert sorted(m.body for m in pushed) == bodies
                assert {m.queue.broker_name for m in pushed} == (
                    {"__syslo__global__"} if mode == "PULL" else {"a", "b"}
                )

    run(main())


def test_a_producer_and_consumers_go_through_a_move(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            got: list[ReceivedMessage] = []
            ordered: list[ReceivedMessage] = []
            push = AsyncPushConsumer(names, GROUP, consume_from="first")
            orderly = AsyncPushConsumer(names, "Ordered", consume_from="first", ordered=True)
            for consumer, listener in ((push, got.append), (orderly, ordered.append)):
                consumer.subscribe(TOPIC)
                consumer.listen(listener)
            async with AsyncProducer(names, "PG") as producer, push, orderly:
                assert await producer.queues(TOPIC) == LOGICAL
                sent: list[bytes] = []

                async def send(count: int) -> None:
                    for n in range(count):
                        body = b"%d" % len(sent)
                        result = await producer.send(TOPIC, body, sharding_key=f"k{n % 7}")
                        assert result.queue in LOGICAL
                        sent.append(body)

                await send(40)
                by_queue = [await producer.send(TOPIC, b"q%d" % q.queue_id, queue=q) for q in LOGICAL]
                assert [r.queue for r in by_queue] == LOGICAL
                sent += [b"q%d" % q.queue_id for q in LOGICAL]
                sending = asyncio.create_task(send(300))
                await until(lambda: len(sent) > 60)
                await move_to_b(to_a, to_b)
                await sending
                await send(40)
                await until(lambda: len(got) >= len(sent) and len(ordered) >= len(sent))
                for found in (got, ordered):
                    assert sorted(m.body for m in found) == sorted(sent)
                    places = [(m.broker_name, m.queue_id, m.queue_offset) for m in found]
                    assert len(set(places)) == len(sent)
                    assert {MessageQueue(TOPIC, name, n) for name, n, _ in places} == set(LOGICAL)
                    # In the order of the logical offsets, over both parts.
                    for queue in LOGICAL:
                        of_queue = [offset for _, number, offset in places if number == queue.queue_id]
                        assert found is got or of_queue == sorted(of_queue)
                    assert any(offset >= 10_000 for _, number, offset in places if number < 2)
            # Committed in logical offsets: nothing comes again, and what is new does.
            async with AsyncPullConsumer(names, GROUP) as pull:
                await pull.assign(LOGICAL)
                for queue in LOGICAL:
                    low, end = await pull.begin_offset(queue), await pull.end_offset(queue)
                    assert (low, end > 10_000, await pull.committed(queue)) == (0, queue.queue_id < 2, end)
                    assert await pull.position(queue) == end
                    assert await pull.offsets_for_time(queue, 0) == 0
                await pull.seek(LOGICAL[0], 0)
                again: list[ReceivedMessage] = []
                wanted = [m for m in got if m.queue_id == 0]
                while len(again) < len(wanted):
                    again += await pull.poll(1000)
                assert [m.body for m in again] == [m.body for m in sorted(wanted, key=lambda m: m.queue_offset)]
                await pull.seek(LOGICAL[1], 7)
                await pull.commit({LOGICAL[1]: 10_005})
                assert await pull.committed(LOGICAL[1]) == 10_005
            async with AsyncAdmin(names) as operations:
                shown = await operations.show_topic(TOPIC)
                assert [state.queue for state in shown.queues] == LOGICAL
                progress = await operations.show_progress(GROUP, TOPIC)
                assert progress[1].committed == 10_005

    run(main())


def test_a_failed_message_a_transaction_and_a_queue_without_a_leader(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, delay_levels="1s 1s 1s 1s") as (_, b, to_a, to_b, names):
            await make_static(to_a, to_b)
            tried: list[bytes] = []

            def listener(message: ReceivedMessage) -> bool:
                tried.append(message.body)
                return message.reconsume_times > 0 or message.body != b"twice"

            class Commits:
                def execute(self, message: Message, transaction: object) -> TransactionState:
                    return TransactionState.COMMIT

                def check(self, message: ReceivedMessage) -> TransactionState:
                    raise AssertionError("it ended already")

            push = AsyncPushConsumer(names, GROUP, consume_from="first")
            push.subscribe(TOPIC)
            push.listen(listener)
            async with AsyncTransactionProducer(names, "TG", listener=Commits()) as producer, push:
                await producer.send(TOPIC, b"twice", queue=LOGICAL[0])
                await move_to_b(to_a, to_b)
                # Its log is a's, its queue is b's.
                await producer.send(TOPIC, b"once", queue=LOGICAL[0])
                await producer.send_in_transaction(TOPIC, b"committed")
                await until(lambda: sorted(tried) == [b"committed", b"once", b"twice", b"twice"])
                # Who leads queues 0 and 1 is gone: keys keep their queues, others go where a broker is.
                await b.close()
                await producer._instance.routes.refresh(TOPIC)
                assert await producer.queues(TOPIC) == LOGICAL

    run(main())


def test_what_waits_when_its_queue_moves_comes_by_one_that_the_broker_still_leads(tmp_path: Path) -> None:
    """It was stored behind the end of the part that had moved, where nobody reads: acknowledged, and never seen."""

    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            began: list[bytes] = []
            moved = asyncio.Event()

            class Waits:
                async def execute(self, message: Message, transaction: object) -> TransactionState:
                    began.append(message.body)
                    await moved.wait()
                    return TransactionState.COMMIT

                def check(self, message: ReceivedMessage) -> TransactionState:
                    return TransactionState.UNKNOWN

            sent = [b"%d" % n for n in range(QUEUES)]
            found: list[ReceivedMessage] = []

            async def find(count: int) -> None:
                async with asyncio.timeout(LIMIT_S):
                    while len(found) < count:
                        found.extend(await pull.poll(1000))

            async with (
                AsyncTransactionProducer(names, "TG", listener=Waits()) as producer,
                AsyncPullConsumer(names, GROUP, consume_from="first", rebalance_interval_ms=500) as pull,
            ):
                pull.subscribe(TOPIC)
                await producer.send(TOPIC, b"first", queue=LOGICAL[0])
                ends = [asyncio.create_task(producer.send_in_transaction(TOPIC, body)) for body in sent]
                await until(lambda: len(began) == QUEUES)
                # Queue 0 moves to b, after its one message; a leads queue 1 still.
                parts = {0: [item(0, 1, "a", 0) | {"endOffset": 1}, item(1, 2, "b", 10_000)]}
                await put_mapping(to_b, mapping("b", 2000, parts, QUEUES), 4)
                await put_mapping(to_a, mapping("a", 2000, parts, QUEUES), 2)
                await producer._instance.routes.refresh(TOPIC)
                await producer.send(TOPIC, b"second", queue=LOGICAL[0])
                await find(2)
                assert found[-1].queue_offset == 10_000
                moved.set()
                await asyncio.gather(*ends)
                await find(2 + QUEUES)
            assert sorted(m.body for m in found) == [*sent, b"first", b"second"]

    run(main())


@pytest.mark.shows("Spark writes to static topics at least once, and refuses exactly once by name")
def test_spark_writes_to_one_at_least_once_alone(tmp_path: Path) -> None:
    def write(names: str, number: int, **options: str) -> None:
        options |= {"namesrv": names, "topic": TOPIC}
        rows = {
            "body": pa.array([b"%d/%d" % (number, n) for n in range(20)], pa.binary()),
            "queueId": pa.array([n % QUEUES for n in range(20)], pa.int32()),
        }
        batch, given = pa.record_batch(rows), parse_write(options)
        if given.transactional_id:
            batch_commit.open_log(given)
            batch_commit.send_attempt(iter([batch]), given, batch_commit.TaskAttempt("q", number, 0))
        else:
            send_rows(iter([batch]), given)

    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            await asyncio.to_thread(write, names, 1)
            with pytest.raises(ConfigError, match=r"topic 'Moved' is a static topic.*delivery at-least-once"):
                await asyncio.to_thread(write, names, 2, delivery="exactly-once", transactionalId="moved")
            await move_to_b(to_a, to_b)
            await asyncio.to_thread(write, names, 3)
            found: list[ReceivedMessage] = []
            async with AsyncPullConsumer(names, GROUP, consume_from="first") as pull:
                await pull.assign(LOGICAL)
                while len(found) < 40:
                    found += await pull.poll(1000)
            assert sorted(m.body for m in found) == sorted(b"%d/%d" % (k, n) for k in (1, 3) for n in range(20))
            assert {m.queue_id == int(m.body.split(b"/")[1]) % QUEUES for m in found} == {True}

    run(main())
