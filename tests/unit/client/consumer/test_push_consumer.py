"""The push consumer against a broker that does what it is told: delivery, failures, offsets, shares, life."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.unit.client.fake import Fake, FakeBroker, in_loop, until

from rocketspark.client import AsyncPushConsumer
from rocketspark.errors import ConfigError, MessageIllegal, NotSent, StateError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.server import Server

pytestmark = pytest.mark.shows(
    "concurrent and ordered listeners, broadcast with offsets in Java's file, SQL92, time-outs of calls, "
    "bounds per queue and topic, pause, retries, dead letters"
)

PULL = RequestCode.PULL_MESSAGE
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def consumer(
    fake: Fake, listener: Any, group: str = "g", topic: str = "t", tags: str = "*", **settings: Any
) -> AsyncPushConsumer:
    made = AsyncPushConsumer(fake.namesrv, group, **{"consume_from": "first", **settings})
    made.subscribe(topic, tags)
    made.listen(listener)
    return made


@in_loop
async def test_every_message_once_and_committed() -> None:
    async with Fake(2, t=2) as fake:
        for i in range(2000):
            fake.brokers[i % 2].put("t", i // 2 % 2, b"%d" % i, f"UNIQ_KEY\x01id{i}\x02KEYS\x01a b\x02")
        got: list[ReceivedMessage] = []
        async with consumer(fake, got.append) as c:
            await until(lambda: len(got) == 2000)
            assert len(await c.queues()) == 4 + 2
        assert sorted(int(m.body) for m in got) == list(range(2000))
        one = next(m for m in got if m.body == b"3")
        assert (one.topic, one.broker_name, one.queue_id, one.queue_offset) == ("t", "broker-b", 1, 0)
        assert (one.message_id, one.keys) == ("id3", ("a", "b"))
        for broker in fake.brokers:
            assert {q: broker.offsets["g", "t", q] for q in (0, 1)} == {0: 500, 1: 500}
            assert [u.consumer_group for u in broker.unregistered] == ["g"]


@in_loop
async def test_brokers_of_ours_are_asked_for_as_many_as_were_wanted() -> None:
    async with Fake(t=1) as fake:
        asked: list[tuple[bool | None, int]] = []
        fake.broker.rules[PULL] = lambda ext, body: asked.append((ext.bulk, ext.count_max))  # type: ignore[func-returns-value]
        fake.broker.put("t", 0, b"x")
        got: list[ReceivedMessage] = []
        async with consumer(fake, got.append, pull_count_max=100):
            await until(lambda: len(got) == 1)
        assert set(asked) == {(True, 100)}


@in_loop
async def test_messages_of_a_queue_come_in_order_with_one_thread() -> None:
    async with Fake(t=1) as fake:
        got: list[int] = []
        async with consumer(fake, lambda m: got.append(m.queue_offset), threads=1):
            for i in range(300):
                fake.broker.put("t", 0, b"%d" % i)
                if i % 50 == 0:
                    await asyncio.sleep(0.001)
            await until(lambda: len(got) == 300)
        assert got == list(range(300))


@in_loop
async def test_tags_are_compared_by_text() -> None:
    async with Fake(t=1) as fake:
        # "Aa" and "BB" have one hash: the broker lets both through.
        for tag in ("Aa", "BB", "C", "Aa"):
            fake.broker.put("t", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        got: list[bytes] = []
        async with consumer(fake, lambda m: got.append(m.body), tags="Aa || D"):
            await until(lambda: len(got) == 2)
        assert got == [b"Aa", b"Aa"]
        assert fake.broker.offsets["g", "t", 0] == 4
        sent = fake.broker.heartbeats[-1].consumer_data_set[0]
        of_topic = {s.topic: s for s in sent.subscription_data_set}
        assert set(of_topic) == {"t", "%RETRY%g"}
        assert (of_topic["t"].sub_string, of_topic["t"].tags_set) == ("Aa || D", ["Aa", "D"])
        assert (sent.message_model, sent.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")


@in_loop
async def test_batches_are_of_one_queue() -> None:
    async with Fake(t=2) as fake:
        for i in range(20):
            fake.broker.put("t", i % 2, b"%d" % i)
        got: list[list[ReceivedMessage]] = []
        async with consumer(fake, got.append, batch_max=4):
            await until(lambda: sum(map(len, got)) == 20)
        assert all(len({m.queue for m in batch}) == 1 and len(batch) <= 4 for batch in got)
        assert max(map(len, got)) == 4


@in_loop
async def test_offset_of_the_slowest_is_committed() -> None:
    async with Fake(t=1) as fake:
        for i in range(10):
            fake.broker.put("t", 0, b"%d" % i)
        let_go = threading.Event()
        done: list[int] = []

        def listener(message: ReceivedMessage) -> None:
            if message.queue_offset == 3:
                let_go.wait(120)
            done.append(message.queue_offset)

        async with consumer(fake, listener, commit_interval_ms=10):
            await until(lambda: len(done) == 9)
            await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 3)
            await asyncio.sleep(0.05)
            assert fake.broker.offsets["g", "t", 0] == 3
            let_go.set()
            await until(lambda: fake.broker.offsets["g", "t", 0] == 10)


@in_loop
async def test_no_more_is_held_than_allowed() -> None:
    async with Fake(t=1) as fake:
        for i in range(500):
            fake.broker.put("t", 0, b"%d" % i)
        let_go = threading.Event()
        async with consumer(
            fake,
            lambda m: let_go.wait(120),
            threads=2,
            backlog_count_max=50,
            pull_count_max=10,
            commit_interval_ms=10,
        ) as c:
            puller = c._rebalance.pullers[MessageQueue("t", "broker-a", 0)]
            await until(lambda: not puller.process_queue.has_room)
            pulls = fake.broker.requests[PULL]
            await asyncio.sleep(0.05)
            assert 50 <= len(puller.process_queue) <= 60
            assert fake.broker.requests[PULL] == pulls
            let_go.set()
            await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 500)


@in_loop
async def test_slow_listeners_run_side_by_side_up_to_the_bound() -> None:
    async with Fake(t=1) as fake:
        for i in range(60):
            fake.broker.put("t", 0, b"%d" % i)
        now = 0
        most = 0
        done = 0
        guard = threading.Lock()

        def listener(message: ReceivedMessage) -> None:
            nonlocal now, most, done
            with guard:
                now += 1
                most = max(most, now)
            time.sleep(0.02)
            with guard:
                now -= 1
                done += 1

        async with consumer(fake, listener, threads=6):
            await until(lambda: done == 60)
        assert most == 6


@in_loop
async def test_coroutines_run_side_by_side_up_to_the_bound() -> None:
    async with Fake(t=1) as fake:
        for i in range(60):
            fake.broker.put("t", 0, b"%d" % i)
        now = most = done = 0

        async def listener(message: ReceivedMessage) -> None:
            nonlocal now, most, done
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.002)
            now -= 1
            done += 1

        async with consumer(fake, listener, threads=6):
            await until(lambda: done == 60)
        assert most == 6


@pytest.mark.parametrize(("consume_from", "first"), [("last", 5), ("first", 0), ("time", 3)])
def test_where_a_group_begins(consume_from: str, first: int) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            for i in range(3):
                fake.broker.put("t", 0, b"%d" % i)
            time.sleep(0.005)
            now_ms = int(time.time() * 1000)
            for i in range(3, 5):
                fake.broker.put("t", 0, b"%d" % i)
            got: list[int] = []
            where: Any = now_ms if consume_from == "time" else consume_from
            async with consumer(fake, lambda m: got.append(m.queue_offset), consume_from=where):
                fake.broker.put("t", 0, b"5")
                await until(lambda: 5 in got)
            assert sorted(got) == list(range(first, 6))
            assert fake.broker.offsets["g", "t", 0] == 6
            # The next member goes on where the group stopped.
            fake.broker.put("t", 0, b"6")
            again: list[int] = []
            async with consumer(fake, lambda m: again.append(m.queue_offset), consume_from=where):
                await until(lambda: again)
            assert again == [6]

    run()


@pytest.mark.shows("PushConsumer: concurrent, average allocation, offsets on the broker")
@in_loop
async def test_members_share_the_queues_and_hand_them_over() -> None:
    async with Fake(t=4) as fake:
        got: list[int] = []
        async with consumer(fake, lambda m: got.append(int(m.body)), commit_interval_ms=20) as first:
            assert len([q for q in await first.queues() if q.topic == "t"]) == 4
            second = consumer(fake, lambda m: got.append(int(m.body)), commit_interval_ms=20)
            await second.start()

            def own(c: AsyncPushConsumer) -> list[int]:
                return [q.queue_id for q in c._rebalance.pullers if q.topic == "t"]

            await until(lambda: len(own(first)) == len(own(second)) == 2)
            assert sorted(own(first) + own(second)) == [0, 1, 2, 3]
            for i in range(400):
                fake.broker.put("t", i % 4, b"%d" % i)
            await until(lambda: len(got) >= 400)
            await second.close()
            await until(lambda: len(own(first)) == 4)
            for i in range(400, 800):
                fake.broker.put("t", i % 4, b"%d" % i)
            await until(lambda: len(got) >= 800)
        assert sorted(got) == list(range(800))


@in_loop
async def test_an_offset_the_broker_moves() -> None:
    async with Fake(t=1) as fake:
        for i in range(10):
            fake.broker.put("t", 0, b"%d" % i)
        fake.broker.minima["t", 0] = 4
        fake.broker.offsets["g", "t", 0] = 1
        got: list[int] = []
        async with consumer(fake, lambda m: got.append(m.queue_offset)):
            await until(lambda: len(got) == 6)
        assert sorted(got) == [4, 5, 6, 7, 8, 9]
        assert fake.broker.offsets["g", "t", 0] == 10


@in_loop
async def test_what_a_broker_lost_is_void_and_what_was_fetched_below_is_not() -> None:
    async with Fake(t=1) as fake:
        for i in range(10):
            fake.broker.put("t", 0, b"old %d" % i)
        got: list[bytes] = []
        go_on = asyncio.Event()

        async def listener(message: ReceivedMessage) -> None:
            await go_on.wait()
            got.append(message.body)

        async with consumer(fake, listener, threads=1) as c:
            first = c._rebalance.pullers[MessageQueue("t", "broker-a", 0)]
            await until(lambda: first.process_queue.next_offset == 10)
            # The pull that it holds is answered with the queue's end, which lies behind what was fetched.
            del fake.broker.queues["t", 0][4:]
            fake.broker.look_again()
            await until(lambda: first.dropped)
            for i in range(4, 10):
                fake.broker.put("t", 0, b"new %d" % i)
            go_on.set()
            await until(lambda: b"new 9" in got)
        # The first call ran already.
        assert got == [b"old 0", *(b"old %d" % i for i in range(4)), *(b"new %d" % i for i in range(4, 10))]
        assert fake.broker.offsets["g", "t", 0] == 10


@pytest.mark.shows("client: reconnect")
@in_loop
async def test_a_restarted_broker_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.puller.TROUBLE_PAUSE_S", 0.05)
    async with Fake(t=1) as fake:
        got: list[bytes] = []
        async with consumer(fake, lambda m: got.append(m.body)):
            fake.broker.put("t", 0, b"before")
            await until(lambda: got)
            old = fake.broker
            await old.server.close()
            fake.brokers[0] = fake.broker = fake.names.brokers["broker-a"] = await FakeBroker().start()
            fake.broker.queues, fake.broker.offsets = old.queues, old.offsets
            fake.broker.put("t", 0, b"after")
            await until(lambda: len(got) == 2)
            assert fake.broker.heartbeats[0].consumer_data_set[0].group_name == "g"
        assert got == [b"before", b"after"]


@in_loop
async def test_a_broker_that_forgot_the_group_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.puller.TROUBLE_PAUSE_S", 0.01)
    async with Fake(t=1) as fake:
        got: list[bytes] = []
        left = [24, 25, 26]
        fake.broker.rules[PULL] = lambda header, body: (left.pop(), "who?") if left else None
        async with consumer(fake, lambda m: got.append(m.body)):
            beats = len(fake.broker.heartbeats)
            fake.broker.put("t", 0, b"x")
            await until(lambda: got)
            assert len(fake.broker.heartbeats) >= beats


@in_loop
async def test_a_broker_that_does_not_hold_pulls_is_not_asked_in_a_tight_loop() -> None:
    async with Fake(t=1) as fake:
        fake.broker.rules[PULL] = lambda header, body: (20, "at once")
        async with consumer(fake, lambda m: None):
            await asyncio.sleep(0.3)
        assert 2 <= fake.broker.requests[PULL] <= 20


@in_loop
async def test_a_topic_that_is_made_later_is_found() -> None:
    async with Fake() as fake:
        got: list[bytes] = []
        async with consumer(fake, lambda m: got.append(m.body)):
            fake.names.topics["t"] = {"broker-a": 2}
            fake.broker.put("t", 1, b"x")
            await until(lambda: got)


@in_loop
async def test_a_broken_record_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.puller.REFUSED_PAUSE_S", 0.01)
    async with Fake(t=1) as fake:
        for i in range(3):
            fake.broker.put("t", 0, b"%d" % i)
        whole = fake.broker.queues["t", 0][1]
        fake.broker.queues["t", 0][1] = whole[:-30] + bytes(30)
        got: list[int] = []
        async with consumer(fake, lambda m: got.append(m.queue_offset), commit_interval_ms=10):
            await until(lambda: fake.broker.requests[PULL] > 5)
            assert fake.broker.offsets.get(("g", "t", 0), 0) == 0
            fake.broker.queues["t", 0][1] = whole
            await until(lambda: len(got) == 3)
        assert got == [0, 1, 2]


@in_loop
async def test_subscribe_and_unsubscribe_while_running() -> None:
    async with Fake(t=1, u=1) as fake:
        got: list[str] = []
        async with consumer(fake, lambda m: got.append(m.topic)) as c:
            fake.broker.put("u", 0, b"x")
            c.subscribe("u")
            await until(lambda: got == ["u"])
            c.unsubscribe("t")
            await until(lambda: {q.topic for q in c._rebalance.pullers} == {"u", "%RETRY%g"})
            assert {s.topic for s in fake.broker.heartbeats[-1].consumer_data_set[0].subscription_data_set} == {
                "u",
                "%RETRY%g",
            }


@in_loop
async def test_close_ends_what_runs_and_leaves_no_thread() -> None:
    async with Fake(t=1) as fake:
        for i in range(5):
            fake.broker.put("t", 0, b"%d" % i)
        threads = set(threading.enumerate())
        began = threading.Event()
        done: list[int] = []

        def listener(message: ReceivedMessage) -> None:
            began.set()
            time.sleep(0.05)
            done.append(message.queue_offset)

        c = consumer(fake, listener, threads=1)
        await c.start()
        await until(began.is_set)
        await c.close()
        assert done == [0]
        assert fake.broker.offsets["g", "t", 0] == 1
        assert set(threading.enumerate()) == threads
        await until(lambda: not fake.broker.server.peers)
        with pytest.raises(StateError):
            await c.start()


@in_loop
async def test_what_cannot_be_used() -> None:
    with pytest.raises(MessageIllegal, match="group"):
        AsyncPushConsumer("127.0.0.1:1")
    with pytest.raises(ConfigError, match="consume_from"):
        AsyncPushConsumer("127.0.0.1:1", "g", consume_from="middle")  # type: ignore[arg-type]
    c = AsyncPushConsumer("127.0.0.1:1", "g")
    with pytest.raises(MessageIllegal):
        c.subscribe("a b")
    with pytest.raises(StateError, match="listen"):
        await c.start()
    c.listen(print)
    with pytest.raises(NotSent, match="no NameServer answers"):
        await c.start()


@in_loop
async def test_a_broker_that_came_back_is_told_the_offsets_again() -> None:
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"0")
        got: list[ReceivedMessage] = []
        async with consumer(fake, got.append, commit_interval_ms=20):
            await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 1)
            port = int(fake.broker.address.rpartition(":")[2])
            await fake.broker.server.close()
            # What it was told last was not on its disk yet.
            fake.broker.offsets.clear()
            fake.broker.server = Server(fake.broker.routes, on_close=fake.broker._gone)
            await fake.broker.start(port)
            await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 1)
        assert len(got) == 1


@in_loop
async def test_pulls_to_a_slave_follow_its_master_and_commit_nothing() -> None:
    async with Fake(t=1) as fake:
        slave = await FakeBroker("broker-a").start()
        try:
            for broker in (fake.broker, slave):
                for i in range(4):
                    broker.put("t", 0, b"%d" % i)
            fake.names.slaves["broker-a"] = {1: slave.address}
            fake.broker.suggested = slave.suggested = 1
            flags: list[int] = []

            def note(header: Any, body: bytes) -> None:
                flags.append(header.sys_flag)

            slave.rules[PULL] = note
            got: list[int] = []
            async with consumer(fake, lambda m: got.append(m.queue_offset), pull_count_max=1):
                await until(lambda: len(got) == 4)
                # Only the first came from the master.
                await until(lambda: len(flags) >= 3)
                assert fake.broker.requests[PULL] <= 3
                assert not any(flag & 1 for flag in flags)
            assert got == [0, 1, 2, 3]
            assert fake.broker.offsets["g", "t", 0] == 4
            assert slave.offsets == {}
        finally:
            await slave.server.close()
