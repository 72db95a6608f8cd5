"""Rows that are sent by columns: what arrives where, in which order, what is sent again, and what the results say."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from tests.unit.client.fake import Fake, FakeBroker, in_loop, until
from tests.unit.client.producer.test_producer import failing

from rocketspark.client import AsyncProducer, Producer, SendManyResult, SendStatus
from rocketspark.client.hooks import Hooks, Sending
from rocketspark.client.producer import send_many
from rocketspark.client.producer.prepared_message import queue_of_key
from rocketspark.errors import MessageIllegal, NotSent, RouteNotFound, SendFailed, StateError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import compression, properties, record
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows(
    "send_many: columns in batches by size, queue and sharding key in order; results as columns; only batches that "
    "failed are sent again; delays one by one; cancelled or closed at any point",
)

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def stored(broker: FakeBroker, topic: str = "t") -> dict[int, list[record.Record]]:
    return {
        queue: [record.decode(data) for data in found]
        for (name, queue), found in broker.queues.items()
        if name == topic
    }


def pairs_of(found: record.Record) -> dict[str, str]:
    return properties.decode(found.properties.decode())


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_many, "BATCH_BYTES", 1000)


@in_loop
async def test_what_arrives_is_what_the_results_say() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        result = await producer.send_many(
            "t", [b"%d" % row for row in range(50)], tags="A", keys=[f"k{row}" for row in range(50)]
        )
        (queue,) = set(result.queues)
        assert queue is not None
        found = stored(fake.broker)[queue.queue_id]
        assert [each.body for each in found] == [b"%d" % row for row in range(50)]
        assert result.queue_offsets.tolist() == list(range(50))
        for row, each in enumerate(found):
            wanted = {"UNIQ_KEY": result.message_ids[row], "WAIT": "true", "TAGS": "A", "KEYS": f"k{row}"}
            assert pairs_of(each) == wanted
        assert len(set(result.message_ids)) == len(set(result.offset_message_ids)) == 50
        assert result.statuses == [SendStatus.SEND_OK] * 50
        assert (len(result), result.failed.any(), result.errors) == (50, False, [None] * 50)
        assert repr(result) == "<SendManyResult of 50 rows, 0 failed>"
        result.raise_for_errors()
        assert fake.broker.requests[BATCH] == 1


@in_loop
async def test_batches_take_turns_and_are_cut_by_size(small_batches: None) -> None:
    async with Fake(2, t=2) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        bodies = [bytes([row % 256]) * (100 + row % 7) for row in range(200)]
        result = await producer.send_many("t", bodies)
        found: dict[tuple[MessageQueue | None, int], bytes] = {}
        for broker in fake.brokers:
            for queue_id, records in stored(broker).items():
                for offset, each in enumerate(records):
                    found[MessageQueue("t", broker.name, queue_id), offset] = each.body
        assert len(found) == 200
        places = zip(result.queues, result.queue_offsets.tolist(), strict=True)
        assert [found[place] for place in places] == bodies
        assert len(set(result.queues)) == 4


@in_loop
async def test_what_is_too_large_for_a_broker_is_sent_in_smaller_batches(
    small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a row that is too large by itself, which fails alone, or with those that follow it to its queue."""
    monkeypatch.setattr(send_many, "BATCH_BYTES_LEAST", 200, raising=False)
    bodies = [b"%03d" % row + b"." * (50 + row % 7 + (row == 40) * 800) for row in range(100)]
    for keys in (None, [f"key-{row % 5}" for row in range(100)]):
        async with Fake(2, t=2) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
            for broker in fake.brokers:
                broker.rules[SEND] = broker.rules[BATCH] = lambda header, body: (
                    (ResponseCode.MESSAGE_ILLEGAL, "too large") if len(body) > 350 else None
                )
            result = await producer.send_many("t", bodies, sharding_keys=keys)
            found = [[each.body for each in records] for broker in fake.brokers for records in stored(broker).values()]
            failed = set(np.flatnonzero(result.failed).tolist())
            assert sorted(body for bodies_of in found for body in bodies_of) == [
                body for row, body in enumerate(bodies) if row not in failed
            ]
            if keys is None:
                assert failed == {40}
            else:
                of_queue = {row for row in range(40, 100) if keys[row] in {keys[each] for each in failed}}
                assert 40 in failed
                assert failed == of_queue
                assert all(records == sorted(records) for records in found)


@in_loop
async def test_rows_that_were_told_as_not_sent_do_not_follow_a_batch_that_is_sent_in_smaller_ones(
    small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others failed by then, so that the rest of its queue was given up."""
    monkeypatch.setattr(send_many, "BATCH_BYTES_LEAST", 200)
    async with Fake(t=2) as fake, AsyncProducer(fake.namesrv, "pg", retries=0) as producer:
        refused, failed = asyncio.Event(), list[bytes]()

        def late(handler: Any) -> Any:
            async def answered(peer: Any, asked: Any, body: bytes) -> Any:
                if b"keyed" not in body:
                    failed.append(body)
                    return reply(asked.opaque, 2, remark="no")
                if not refused.is_set():
                    refused.set()
                    await until(lambda: len(failed) >= send_many.FAILURES_MAX)
                    return reply(asked.opaque, ResponseCode.MESSAGE_ILLEGAL, remark="too large")
                return handler(peer, asked, body)

            return answered

        fake.broker.routes.wrap(BATCH, late)
        bodies = [(b"keyed" if row % 2 else b"plain") + b"%03d" % row + b"." * 100 for row in range(600)]
        result = await producer.send_many("t", bodies, sharding_keys=["k" if row % 2 else None for row in range(600)])
        assert sum(each.end - each.at for each in result.outcomes) == 600
        told = {body for body, failed in zip(bodies, result.failed, strict=True) if not failed}
        assert {each.body for records in stored(fake.broker).values() for each in records} == told


@in_loop
@pytest.mark.shows("mended: one row that a broker refuses made all later batches of `send_many` small")
async def test_batches_grow_again_after_some_were_stored(small_batches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_many, "BATCH_BYTES_LEAST", 200)
    monkeypatch.setattr(send_many, "GROW_AFTER", 2)
    for limit, size in ((900, 492), (10_000, 984)):
        sizes: list[int] = []

        def rule(header: Any, body: bytes, limit: int = limit, sizes: list[int] = sizes) -> tuple[int, str] | None:
            sizes.append(len(body))
            is_refused = b"wrong" in body or len(body) > limit
            return (ResponseCode.MESSAGE_ILLEGAL, "no") if is_refused else None

        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
            fake.broker.rules[BATCH] = fake.broker.rules[SEND] = rule
            result = await producer.send_many("t", [b"wrong", *[b"." * 90] * 400])
            failed = np.flatnonzero(result.failed).tolist()
            assert failed[0] == 0
            assert failed == list(range(len(failed)))
            assert len(stored(fake.broker)[0]) == 401 - len(failed)
        # The last one holds what was left.
        assert max(sizes[-6:-1]) == size


@in_loop
async def test_no_rows() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        result = await producer.send_many("unknown", [])
        assert (len(result), result.errors, result.queue_offsets.tolist(), result.failed.tolist()) == (0, [], [], [])
        assert fake.broker.sends == []


@in_loop
async def test_rows_of_a_key_stay_in_order_one_batch_of_a_queue_at_a_time(small_batches: None) -> None:
    async with Fake(t=3) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        keys = [None if row % 5 == 0 else f"key-{row % 7}" for row in range(300)]
        bodies = [b"%03d" % row + b"." * 50 for row in range(300)]
        fake.broker.rules[BATCH] = failing(*[ResponseCode.SYSTEM_BUSY] * 3)
        in_flight: list[int] = []
        before = send_many.RowsInFlight._begin

        def begin(self: Any, lane: Any, end: int, size: int) -> None:
            before(self, lane, end, size)
            in_flight.append(
                max([each.in_flight for each in self._sends.values() if each.queue is not None], default=0)
            )

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(send_many.RowsInFlight, "_begin", begin)
            result = await producer.send_many("t", bodies, sharding_keys=keys)
        assert max(in_flight) == 1
        assert not result.failed.any()
        queues = await producer.queues("t")
        by_key: defaultdict[str, list[bytes]] = defaultdict(list)
        for records in stored(fake.broker).values():
            for each in records:
                if key := pairs_of(each).get("__SHARDINGKEY"):
                    by_key[key].append(each.body)
        for row, key in enumerate(keys):
            if key:
                assert result.queues[row] == queue_of_key(key, queues)
            place = stored(fake.broker)[result.queues[row].queue_id][result.queue_offsets[row]]  # type: ignore[union-attr]
            assert (place.body, pairs_of(place)["UNIQ_KEY"]) == (bodies[row], result.message_ids[row])
        assert by_key == {key: [b for b, k in zip(bodies, keys, strict=True) if k == key] for key in keys if key}


@in_loop
async def test_only_the_batch_that_failed_is_sent_again(small_batches: None) -> None:
    async with Fake(t=2) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        bodies = [b"%03d" % row + b"." * 100 for row in range(60)]
        await producer.send_many("t", bodies)
        without_failures = fake.broker.requests[BATCH]
        fake.broker.queues.clear()
        fake.broker.rules[BATCH] = failing(ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR)
        result = await producer.send_many("t", bodies)
        assert not result.failed.any()
        assert sorted(each.body for records in stored(fake.broker).values() for each in records) == bodies
        assert fake.broker.requests[BATCH] == 2 * without_failures + 2


@in_loop
async def test_rows_that_failed_are_masked_and_can_be_sent_again_in_order(small_batches: None) -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.send("t", b"first")
        calls = iter(range(1000))
        fake.broker.rules[BATCH] = lambda header, body: (13, "no") if next(calls) == 2 else None
        bodies = np.array([b"%03d" % row + b"." * 100 for row in range(60)])
        result = await producer.send_many("t", bodies, sharding_keys="k")
        rows = np.flatnonzero(result.failed)
        assert rows.tolist() == list(range(int(rows[0]), 60))
        assert isinstance(result.errors[rows[0]], SendFailed)
        last = result.errors[59]
        assert isinstance(last, NotSent)
        assert str(last) == "not sent, as rows before it failed"
        assert last.__cause__ is result.errors[rows[0]]
        assert (result.queues[59], result.statuses[59], result.offset_message_ids[59]) == (None, None, None)
        assert result.queue_offsets[59] == -1
        with pytest.raises(SendFailed) as caught:
            result.raise_for_errors()
        with pytest.raises(SendFailed):
            result.raise_for_errors()
        assert caught.value.__notes__ == [f"row {rows[0]} of 60; {60 - rows[0]} rows failed"]
        again = await producer.send_many("t", bodies[result.failed], sharding_keys="k")
        assert not again.failed.any()
        assert [each.body for each in stored(fake.broker)[0]] == [b"first", *bodies.tolist()]


@in_loop
async def test_a_row_that_no_batch_holds_goes_alone_and_is_compressed() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        large = b"z" * (1 << 20)
        result = await producer.send_many("t", [b"a", large, b"b"], tags=["x", "y", None], sharding_keys="k")
        first, second, third = stored(fake.broker)[0]
        assert (first.body, third.body) == (b"a", b"b")
        assert compression.inflate(second.body, second.sys_flag) == large
        assert pairs_of(second) == {
            "UNIQ_KEY": result.message_ids[1],
            "WAIT": "true",
            "TAGS": "y",
            "__SHARDINGKEY": "k",
        }
        assert result.queue_offsets.tolist() == [0, 1, 2]


@in_loop
async def test_rows_with_a_delay_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_many, "IN_FLIGHT_MAX", 8)
    most = 0
    begin = send_many.RowsInFlight._begin

    def count(self: Any, *arguments: Any) -> None:
        nonlocal most
        begin(self, *arguments)
        most = max(most, len(self._sends))

    monkeypatch.setattr(send_many.RowsInFlight, "_begin", count)
    async with Fake(t=2) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        bodies = [b"%d" % row for row in range(100)]
        result = await producer.send_many("t", bodies, delay_ms=[5000 if row % 2 else 0 for row in range(100)])
        assert (fake.broker.requests[SEND], fake.broker.requests[BATCH], most) == (50, 1, 8)
        found = {pairs_of(each)["UNIQ_KEY"]: each for records in stored(fake.broker).values() for each in records}
        for row in range(100):
            each = found[result.message_ids[row]]
            assert each.body == bodies[row]
            assert pairs_of(each).get("TIMER_DELAY_MS") == ("5000" if row % 2 else None)


@in_loop
async def test_rows_of_a_key_with_a_delay_wait_for_one_another_too() -> None:
    async with Fake(t=3) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        bodies = np.array([b"%02d" % row for row in range(20)])
        busy = iter([(int(ResponseCode.SYSTEM_BUSY), "a moment")])
        is_refused = True

        def refuse(header: Any, body: bytes) -> tuple[int, str] | None:
            if body == b"03":
                return next(busy, None)
            return (int(ResponseCode.MESSAGE_ILLEGAL), "no") if body == b"05" and is_refused else None

        fake.broker.rules[SEND] = refuse
        result = await producer.send_many("t", bodies, sharding_keys="k", delay_ms=5000)
        assert np.flatnonzero(result.failed).tolist() == list(range(5, 20))
        is_refused = False
        again = await producer.send_many("t", bodies[result.failed], sharding_keys="k", delay_ms=5000)
        assert not again.failed.any()
        (found,) = stored(fake.broker).values()
        assert [each.body for each in found] == bodies.tolist()


@in_loop
async def test_hooks_see_batches() -> None:
    seen: list[Sending] = []

    class Look(Hooks):
        def before_send(self, sending: Sending) -> None:
            sending.properties["context"] = "1"

        def after_send(self, sending: Sending) -> None:
            seen.append(sending)

    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[Look()]) as producer:
        result = await producer.send_many("t", [b"a", b"b"], keys=["k", "l"])
        (sending,) = seen
        assert (sending.message_id, sending.keys) == (",".join(result.message_ids), "k l")
        assert sending.result is not None
        assert "context" in fake.broker.sends[0].properties


@in_loop
async def test_a_hook_that_refuses_is_an_error_of_its_rows() -> None:
    class Refuse(Hooks):
        def check_forbidden(self, sending: Sending) -> None:
            raise PermissionError("not you")

    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", hooks=[Refuse()]) as producer:
        result = await producer.send_many("t", [b"a", b"b"])
        assert [type(error) for error in result.errors] == [PermissionError] * 2
        assert fake.broker.sends == []


@in_loop
async def test_what_is_known_before_is_raised() -> None:
    async with Fake(t=1) as fake:
        producer = AsyncProducer(fake.namesrv, "pg")
        with pytest.raises(StateError):
            await producer.send_many("t", [b"x"])
        async with producer:
            with pytest.raises(RouteNotFound):
                await producer.send_many("unknown", [b"x"])
            with pytest.raises(MessageIllegal, match="row 2, column bodies"):
                await producer.send_many("t", [b"x", b"y", None])
            with pytest.raises(TypeError, match="tag"):
                await producer.send_many("t", [b"x"], tag="a")  # type: ignore[call-arg]
        assert fake.broker.sends == []


@in_loop
async def test_a_dead_broker_ends_it_after_some_failures(small_batches: None) -> None:
    async with Fake(t=2) as fake, AsyncProducer(fake.namesrv, "pg", retries=0) as producer:
        await producer.send("t", b"x")
        fake.broker.rules[BATCH] = lambda header, body: (13, "no")
        result = await producer.send_many("t", [b"y" * 100] * 1000)
        assert result.failed.all()
        assert fake.broker.requests[BATCH] < 40
        assert {type(error) for error in result.errors} == {SendFailed, NotSent}


@pytest.mark.parametrize("hold", ["room", "reply"])
@in_loop
async def test_cancelled_at_every_turn_of_the_loop_leaves_nothing(small_batches: None, hold: str) -> None:
    """The next send goes as if nothing had been before it."""
    async with Fake(2, t=2) as fake:
        for turns in [*range(30), 50, 100]:
            bounds: Any = {"in_flight_max": 1} if hold == "room" else {}
            async with AsyncProducer(fake.namesrv, "pg", **bounds) as producer:
                keys = [f"k{row % 3}" if row % 2 else None for row in range(100)]
                sending = asyncio.ensure_future(producer.send_many("t", [b"x" * 50] * 100, sharding_keys=keys))
                for _ in range(turns):
                    await asyncio.sleep(0)
                was_done = sending.done()
                sending.cancel()
                await asyncio.wait([sending])
                assert sending.cancelled() or was_done or len(sending.result()) == 100
                path = producer.send_path
                assert (path.limit.count, len(path.gate), path.waiting) == (0, 0, {})
                assert not (await producer.send_many("t", [b"y"] * 3, sharding_keys="k1")).failed.any()


@in_loop
async def test_closed_in_between(small_batches: None) -> None:
    async with Fake(t=2) as fake:
        for turns in [*range(1, 40, 3), 60, 100]:
            producer = AsyncProducer(fake.namesrv, "pg")
            await producer.start()
            sending = asyncio.ensure_future(producer.send_many("t", [b"x" * 50] * 400, sharding_keys=["a", None] * 200))
            for _ in range(turns):
                await asyncio.sleep(0)
            await producer.close()
            try:
                result = await sending
            except StateError:
                continue
            assert {type(error) for error in result.errors} <= {type(None), StateError}
            places = list(zip(result.queues, result.queue_offsets.tolist(), strict=True))
            assert [place for place, failed in zip(places, result.failed, strict=True) if failed] == [(None, -1)] * int(
                result.failed.sum()
            )


def test_threads() -> None:
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    fake = Fake(t=4)
    asyncio.run_coroutine_threadsafe(fake.__aenter__(), loop).result(60)
    try:
        with Producer(fake.namesrv, "pg") as producer:
            result: SendManyResult = producer.send_many("t", [b"a", b"b"], tags=["x", "y"])
            assert result.queue_offsets.tolist() == [0, 1]
            with pytest.raises(MessageIllegal, match="row 1, column bodies"):
                producer.send_many("t", [b"a", "b"])
            with pytest.raises(TypeError, match="has no argument 'tag': did you mean 'tags'"):
                producer.send_many("t", [b"a"], tag="x")  # type: ignore[call-arg]
        with pytest.raises(StateError):
            producer.send_many("t", [b"a"])
    finally:
        asyncio.run_coroutine_threadsafe(fake.__aexit__(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()


@in_loop
async def test_a_namespace() -> None:
    async with Fake(**{"space%t": 2}) as fake, AsyncProducer(fake.namesrv, "pg", namespace="space") as producer:
        result = await producer.send_many("t", [b"a", b"b"], sharding_keys=["k", None])
        assert {queue.topic for queue in result.queues if queue} == {"t"}
        assert sum(len(found) for found in stored(fake.broker, "space%t").values()) == 2


@in_loop
async def test_what_lingers_goes_first() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=60_000) as producer:
        before = asyncio.ensure_future(producer.send("t", b"0", sharding_key="k"))
        await until(lambda: producer.send_path.accumulator._waiting)  # type: ignore[union-attr]
        await producer.send_many("t", [b"1", b"2"], sharding_keys="k")
        await before
        assert [each.body for each in stored(fake.broker)[0]] == [b"0", b"1", b"2"]
