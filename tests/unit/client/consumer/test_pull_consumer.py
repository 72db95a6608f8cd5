"""The pull consumer against a broker that does what it is told: reading, positions, commits, shares."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.client.hooks import Consuming, Hooks
from rocketspark.errors import FilterIllegal, RouteNotFound, StateError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode

pytestmark = pytest.mark.shows(
    "PullConsumer: subscribe, assign, poll, seek, pause, commit, callbacks, iteration, SQL92, broadcast",
)

Q0 = MessageQueue("t", "broker-a", 0)
Q1 = MessageQueue("t", "broker-a", 1)


async def read(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.poll(2000, count_max=count - len(found))
    return found


def fill(fake: Fake, count: int, queues: int = 1) -> None:
    for i in range(count):
        fake.broker.put("t", i % queues, b"%d" % i)


@in_loop
async def test_subscribe_poll_commit_and_go_on() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 100, queues=2)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        consumer.subscribe("t")
        async with consumer:
            assert consumer.assignment() == [Q0, Q1]
            found = await read(consumer, 100)
            assert sorted(int(m.body) for m in found) == list(range(100))
            assert await consumer.poll(10) == []
            assert fake.broker.heartbeats[-1].consumer_data_set[0].consume_type == "CONSUME_ACTIVELY"
        assert (fake.broker.offsets["g", "t", 0], fake.broker.offsets["g", "t", 1]) == (50, 50)
        assert [u.consumer_group for u in fake.broker.unregistered] == ["g"]
        fill(fake, 1)
        async with AsyncPullConsumer(fake.namesrv, "g") as again:
            again.subscribe("t")
            assert [m.queue_offset for m in await read(again, 1)] == [50]


@in_loop
async def test_poll_waits_for_the_first_message() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        await consumer.assign([Q0])
        polling = asyncio.ensure_future(consumer.poll(5000))
        await asyncio.sleep(0.02)
        assert not polling.done()
        fill(fake, 1)
        assert [m.body for m in await polling] == [b"0"]
        started_s = time.monotonic()
        assert await consumer.poll(50) == []
        assert 0.04 < time.monotonic() - started_s < 50


@in_loop
async def test_tags() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        for tag in ("Aa", "BB", "Aa"):
            fake.broker.put("t", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        await consumer.assign([Q0], "BB")
        assert [m.queue_offset for m in await read(consumer, 1)] == [1]
        await until(lambda: consumer._rebalance.pullers[Q0].process_queue.next_offset == 3)
        assert await consumer.position(Q0) == 3


@pytest.mark.shows("PullConsumer: subscribe, assign, poll, seek, commit")
@in_loop
async def test_positions_and_seeks() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 10)
        cut_ms = int(time.time() * 1000) + 2
        await asyncio.sleep(0.005)
        fill(fake, 10)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
            assert await consumer.queues("t") == [Q0, Q1]
            await consumer.assign([Q0])
            assert (await consumer.begin_offset(Q0), await consumer.end_offset(Q0)) == (0, 20)
            assert await consumer.position(Q0) == 0
            assert [m.queue_offset for m in await read(consumer, 3)] == [0, 1, 2]
            assert await consumer.position(Q0) == 3
            await consumer.seek(Q0, 15)
            assert [m.queue_offset for m in await read(consumer, 2)] == [15, 16]
            await consumer.seek_to_begin(Q0)
            assert [m.queue_offset for m in await read(consumer, 2)] == [0, 1]
            assert await consumer.offsets_for_time(Q0, cut_ms) == 10
            await consumer.seek_to_time(Q0, cut_ms)
            assert [m.queue_offset for m in await read(consumer, 1)] == [10]
            # Numbers as columns have them.
            offset, stored_ms = np.int64(15), np.int64(cut_ms)
            assert await consumer.offsets_for_time(Q0, stored_ms) == 10
            await consumer.seek(Q0, offset)
            assert [m.queue_offset for m in await consumer.poll(2000, count_max=np.int64(1))] == [15]
            await consumer.commit({Q0: offset + 1})
            assert await consumer.committed(Q0) == 16
            await consumer.seek_to_end(Q0)
            assert await consumer.position(Q0) == 20
            fill(fake, 1)
            assert [m.queue_offset for m in await read(consumer, 1)] == [20]
            with pytest.raises(StateError, match="assignment"):
                await consumer.seek(Q1, 0)
            with pytest.raises(RouteNotFound):
                await consumer.queues("missing")


@pytest.mark.parametrize(
    ("given", "pulling"),
    [
        ({}, (16_384, 2 << 20, 65_536, 100 << 20)),
        ({"pull_count_max": 10}, (10, 2 << 20, 65_536, 100 << 20)),
        ({"backlog_count_max": 1000}, (1000, 2 << 20, 1000, 100 << 20)),
        ({"backlog_bytes_max": 1 << 20, "backlog_count_max": 1 << 20}, (16_384, 1 << 20, 1 << 20, 1 << 20)),
        ({"pull_count_max": 20, "pull_bytes_max": 30, "backlog_count_max": 10}, (20, 30, 10, 100 << 20)),
    ],
)
def test_columns_are_pulled_within_what_was_asked_for(given: dict[str, Any], pulling: tuple[int, ...]) -> None:
    for how in (
        AsyncPullConsumer("127.0.0.1:1", "g", **given)._pulling_columns,
        AsyncPushConsumer("127.0.0.1:1", "g", **given)._pulling_columns,
    ):
        assert (how.count_max, how.bytes_max, how.backlog_count_max, how.backlog_bytes_max) == pulling
    assert AsyncPushConsumer("127.0.0.1:1", "g", span_max=7)._pulling_columns.span_max == 7


@in_loop
async def test_commit_by_hand() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False) as consumer:
            await consumer.assign([Q0])
            await read(consumer, 4)
            assert await consumer.committed(Q0) is None
            await consumer.commit()
            assert await consumer.committed(Q0) == 4
            await read(consumer, 2)
            await consumer.commit({Q0: 5})
            assert await consumer.committed(Q0) == 5
        assert fake.broker.offsets["g", "t", 0] == 5


@in_loop
async def test_auto_commit_leaves_out_what_the_last_poll_returned() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first", commit_interval_ms=10) as consumer:
                await consumer.assign([Q0])
                assert len(await consumer.poll(2000, count_max=4)) == 4
                assert len(await consumer.poll(2000, count_max=3)) == 3
                await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 4)
                raise ZeroDivisionError
        assert fake.broker.offsets["g", "t", 0] == 4


@in_loop
async def test_a_move_backward_commits_nothing_of_what_is_in_hand() -> None:
    async with Fake(t=1) as fake:
        for i in range(10):
            fake.broker.put("t", 0, b"%d" % i)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first", commit_interval_ms=10) as c:
            queue = MessageQueue("t", "broker-a", 0)
            await c.assign([queue])
            assert [m.queue_offset for m in await c.poll(count_max=3)] == [0, 1, 2]
            first = c._rebalance.pullers[queue]
            await until(lambda: first.process_queue.next_offset == 10)
            del fake.broker.queues["t", 0][5:]
            fake.broker.look_again()
            await until(lambda: first.dropped)
            assert await c.position(queue) == 3
            before = len(fake.broker.committed["g", "t", 0])
            await until(
                lambda: len(fake.broker.committed["g", "t", 0]) > before or c._rebalance.pullers[queue].done == 0
            )
            assert set(fake.broker.committed["g", "t", 0]) <= {0}
            assert [m.queue_offset for m in await c.poll()] == [3, 4]
        assert fake.broker.offsets["g", "t", 0] == 5


@in_loop
async def test_iteration_counts_what_was_given_out() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            got = []
            async for message in consumer:
                got.append(message.queue_offset)
                if len(got) == 4:
                    break
        assert got == [0, 1, 2, 3]
        assert fake.broker.offsets["g", "t", 0] == 4


@in_loop
async def test_pause_and_resume() -> None:
    async with Fake(t=2) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        await consumer.assign([Q0, Q1])
        await consumer.pause([Q0])
        await consumer.seek(Q0, 0)
        fake.broker.put("t", 0, b"paused")
        fake.broker.put("t", 1, b"read")
        assert [m.body for m in await consumer.poll(2000)] == [b"read"]
        assert await consumer.poll(50) == []
        await consumer.resume([Q0])
        assert [m.body for m in await consumer.poll(2000)] == [b"paused"]


@in_loop
async def test_two_members_share_and_queues_move() -> None:
    async with Fake(t=4) as fake:
        first = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        first.subscribe("t")
        async with first:
            assert len(first.assignment()) == 4
            second = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
            second.subscribe("t")
            async with second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert not set(first.assignment()) & set(second.assignment())
            await until(lambda: len(first.assignment()) == 4)


@in_loop
async def test_states() -> None:
    async with Fake(t=1) as fake:
        consumer = AsyncPullConsumer(fake.namesrv, "g")
        with pytest.raises(StateError, match="start"):
            await consumer.poll()
        async with consumer:
            await consumer.assign([Q0])
            with pytest.raises(StateError, match="assigned by hand"):
                consumer.subscribe("t")
        with pytest.raises(StateError):
            await consumer.poll()
        other = AsyncPullConsumer(fake.namesrv, "g")
        other.subscribe("t")
        async with other:
            with pytest.raises(StateError, match="subscribed"):
                await other.assign([Q0])


@in_loop
async def test_who_subscribes_is_told_of_queues_that_come_and_go() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 4, queues=2)
        told: list[tuple[str, list[MessageQueue], bool]] = []
        loop_thread = threading.get_ident()

        def assigned(queues: list[MessageQueue]) -> None:
            told.append(("assigned", queues, threading.get_ident() != loop_thread))

        async def revoked(queues: list[MessageQueue]) -> None:
            told.append(("revoked", queues, ("g", "t", 1) in fake.broker.committed))
            await first.commit()
            raise ValueError("logged, and no more")

        options: dict[str, Any] = {
            "consume_from": "first",
            "rebalance_interval_ms": 50,
            "commit_interval_ms": 1_000_000,
        }
        first = AsyncPullConsumer(
            fake.namesrv, "g", on_assigned=assigned, on_revoked=revoked, instance_name="a", **options
        )
        first.subscribe("t")
        async with first:
            assert told == [("assigned", [Q0, Q1], True)]
            await read(first, 4)
            second = AsyncPullConsumer(fake.namesrv, "g", instance_name="b", **options)
            second.subscribe("t")
            async with second:
                await until(lambda: second.assignment() == [Q1])
                assert told[1:] == [("revoked", [Q1], False)]
                # What it had read was committed by the function that was told.
                assert await second.position(Q1) == 2
            await until(lambda: len(told) == 3)
            assert told[2] == ("assigned", [Q1], True)
            first.unsubscribe("t")
            await until(lambda: first.assignment() == [])


@in_loop
async def test_a_namespace_is_put_on_and_taken_off() -> None:
    async with Fake(**{"space%t": 1}) as fake:
        fake.broker.put("space%t", 0, b"in")
        told: list[list[MessageQueue]] = []
        made = AsyncPullConsumer(
            fake.namesrv,
            "g",
            namespace="space",
            consume_from="first",
            auto_commit=False,
            on_assigned=told.append,
        )
        made.subscribe("t")
        async with made:
            assert told == [[Q0]]
            assert await made.queues("t") == made.assignment() == [Q0]
            (message,) = await read(made, 1)
            assert message.topic == "t"
            await made.unread([message])
            assert await made.position(Q0) == 0
            await made.seek(Q0, 1)
            await made.commit({Q0: 1})
            assert (await made.committed(Q0), await made.end_offset(Q0)) == (1, 1)
        assert fake.broker.offsets == {("space%g", "space%t", 0): 1}
        assert fake.broker.heartbeats[-1].consumer_data_set[0].group_name == "space%g"


@in_loop
async def test_sql_goes_with_the_pulls() -> None:
    async with Fake(t=1) as fake:
        asked: list[tuple[str | None, str | None]] = []

        def note(header: Any, body: bytes) -> None:
            asked.append((header.subscription, header.expression_type))

        fake.broker.rules[RequestCode.PULL_MESSAGE] = note
        made = AsyncPullConsumer(fake.namesrv, "g")
        with pytest.raises(FilterIllegal):
            made.subscribe("t", sql="a >")
        with pytest.raises(UsageError):
            made.subscribe("t", "TagA", sql="a > 1")
        made.subscribe("t", sql="a > 1")
        async with made:
            await until(lambda: ("a > 1", "SQL92") in asked)
        async with AsyncPullConsumer(fake.namesrv, "h") as by_hand:
            await by_hand.assign([Q0], sql="b = 2")
            await until(lambda: ("b = 2", "SQL92") in asked)


@in_loop
async def test_broadcast_keeps_its_offsets_in_a_file(tmp_path: Path) -> None:
    async with Fake(t=2) as fake:
        fill(fake, 4, queues=2)

        def member(name: str) -> AsyncPullConsumer:
            made = AsyncPullConsumer(
                fake.namesrv, "g", broadcast=True, offset_folder=str(tmp_path), instance_name=name, consume_from="first"
            )
            made.subscribe("t")
            return made

        async with member("a") as one, member("b") as other:
            assert len(await read(one, 4)) == len(await read(other, 4)) == 4
            await one.commit()
            assert await one.committed(Q0) == 2
        assert fake.broker.offsets == {}
        fill(fake, 1)
        async with member("a") as again:
            assert [m.queue_offset for m in await read(again, 1)] == [2]


@in_loop
async def test_a_topic_is_watched_for_other_queues() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", watch_interval_ms=10) as consumer:
        seen: list[list[MessageQueue]] = []
        await consumer.watch_queues("t", seen.append)
        fake.names.topics["t"] = {"broker-a": 2}
        await until(lambda: seen == [[Q0, Q1]])
        del fake.names.topics["t"]
        await until(lambda: seen[1:] == [[]])
        with pytest.raises(RouteNotFound):
            await consumer.watch_queues("none", seen.append)


@in_loop
async def test_commits_that_nobody_waits_for() -> None:
    options: dict[str, Any] = {"consume_from": "first", "auto_commit": False}
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", **options) as consumer:
        await consumer.assign([Q0])
        fill(fake, 3)
        await read(consumer, 3)
        fake.broker.silent.add(RequestCode.UPDATE_CONSUMER_OFFSET)
        await consumer.commit(wait=False)
        await consumer.commit({Q0: 1}, wait=False)
        await until(lambda: fake.broker.requests[RequestCode.UPDATE_CONSUMER_OFFSET] == 2)
        fake.broker.silent.clear()
        await consumer.commit({Q0: 2}, wait=False)
        await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 2)


@in_loop
async def test_hooks_see_what_is_handed_out() -> None:
    class Look(Hooks):
        def __init__(self) -> None:
            self.seen: list[tuple[str, list[bytes], bool]] = []

        def after_consume(self, consuming: Consuming) -> None:
            self.seen.append((consuming.group, [m.body for m in consuming.messages], consuming.success))

    look = Look()
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first", hooks=[look]) as consumer:
        fill(fake, 2)
        await consumer.assign([Q0])
        await read(consumer, 2)
        assert look.seen == [("g", [b"0", b"1"], True)]


@in_loop
async def test_a_close_leaves_out_what_a_cancelled_task_was_given() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        gave = asyncio.Event()

        async def work(consumer: AsyncPullConsumer) -> None:
            await consumer.poll(5000, count_max=4)
            await consumer.poll(5000, count_max=3)
            gave.set()
            await asyncio.Event().wait()

        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            task = asyncio.create_task(work(consumer))
            await gave.wait()
            task.cancel()
        assert fake.broker.offsets["g", "t", 0] == 4
        # A task that ended by itself was through with its messages.
        async with AsyncPullConsumer(fake.namesrv, "g") as consumer:
            await consumer.assign([Q0])
            assert len(await asyncio.create_task(consumer.poll(5000, count_max=2))) == 2
        assert fake.broker.offsets["g", "t", 0] == 6


@pytest.mark.shows("mended: `poll(0)` never yields")
@in_loop
async def test_polls_that_never_wait_let_others_run() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        fill(fake, 200)
        await consumer.assign([Q0])
        found = 0
        polls = 0
        while found < 200:
            found += len(await consumer.poll(0, count_max=1))
            polls += 1
            assert polls < 1_000_000, "nothing else ran"
        with pytest.raises(UsageError, match="timeout_ms"):
            await consumer.poll(float("nan"))


@pytest.mark.shows("mended: a message with a RETRY_TOPIC property of its own counts as one of a retry topic")
@in_loop
async def test_a_retry_s_property_does_not_make_a_message_one_of_a_retry_topic() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        # As dead letters that were sent again keep it.
        fake.broker.put("t", 0, b"sent again", "RETRY_TOPIC\x01t\x02")
        fake.broker.put("%RETRY%g", 0, b"again", "RETRY_TOPIC\x01t\x02", reconsume_times=1)
        retries = MessageQueue("%RETRY%g", "broker-a", 0)
        await consumer.assign([retries, Q0])
        found = {m.body: m for m in await read(consumer, 2)}
        assert {body: m.queue for body, m in found.items()} == {b"sent again": Q0, b"again": retries}
        assert {m.topic for m in found.values()} == {"t"}
        await consumer.unread([found[b"sent again"]])
        assert (await consumer.position(retries), await consumer.position(Q0)) == (1, 0)
        assert [m.body for m in await read(consumer, 1)] == [b"sent again"]
        await consumer.unread([found[b"again"]])
        assert (await consumer.position(retries), await consumer.position(Q0)) == (0, 1)


@pytest.mark.shows("mended: `unread` on %RETRY% topics")
@in_loop
async def test_what_came_from_a_retry_topic_is_taken_back() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        fake.broker.put("%RETRY%g", 0, b"again", "RETRY_TOPIC\x01t\x02", reconsume_times=1)
        fill(fake, 1)
        retries = MessageQueue("%RETRY%g", "broker-a", 0)
        await consumer.assign([retries, Q0])
        found = await read(consumer, 2)
        assert {m.topic for m in found} == {"t"}
        (again,) = [m for m in found if m.body == b"again"]
        await consumer.unread([again])
        assert (await consumer.position(retries), await consumer.position(Q0)) == (0, 1)
        assert [m.body for m in await read(consumer, 1)] == [b"again"]


@pytest.mark.shows("mended: broker versions from heartbeats", "mended: brokers' versions from heartbeats, consumers")
@in_loop
async def test_an_older_broker_is_asked_for_nothing_by_sql(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The last one before 4.1.0; it would take the expression for tags.
    monkeypatch.setattr(frames, "VERSION", 231)
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        fill(fake, 1)
        await consumer.assign([Q0], sql="a > 1")
        await until(lambda: "is not read in group g" in caplog.text)
        assert "(version 231) is older than 4.1.0 and knows no SQL92 filters" in caplog.text
        assert fake.broker.requests[RequestCode.PULL_MESSAGE] == 0
        await consumer.assign([Q0])
        assert len(await read(consumer, 1)) == 1
    monkeypatch.setattr(frames, "VERSION", 232)
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        await consumer.assign([Q0], sql="a > 1")
        await until(lambda: fake.broker.requests[RequestCode.PULL_MESSAGE])
