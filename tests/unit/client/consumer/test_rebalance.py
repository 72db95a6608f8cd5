"""Queues that come and go while something else happens: nothing reads on that nobody owns, nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest
from tests.unit.client.consumer.test_pull_consumer import Q0, Q1, fill, read
from tests.unit.client.consumer.test_push_consumer import consumer
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark import machine
from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer, AsyncSimpleConsumer
from rocketspark.client.callbacks import Overdue
from rocketspark.client.consumer import rebalance
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.client.hooks import Hooks
from rocketspark.errors import NotSent, StateError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import RequestCode

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
RETRIES = MessageQueue("%RETRY%g", "broker-a", 0)


def readers() -> list[Any]:
    """All tasks that read a queue."""
    return [t for t in asyncio.all_tasks() if "Puller._run" in repr(t)]


class Held:
    """Lets a coroutine method wait until it is told to go on: before it begins, or with its result."""

    def __init__(self, owner: Any, name: str, *, ended: bool = False) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self._real = getattr(owner, name)
        self._ended = ended
        setattr(owner, name, self)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = await self._real(*args, **kwargs) if self._ended else None
        self.begun.set()
        await self.go_on.wait()
        return result if self._ended else await self._real(*args, **kwargs)


@pytest.mark.shows("mended: leaked fetchers read for ever (resubscribe, seek in on_revoked, two assigns)")
@in_loop
async def test_two_assigns_at_once_read_each_queue_once() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 10, queues=2)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
            await asyncio.gather(c.assign([Q0, Q1]), c.assign([Q0, Q1]), c.assign([Q0]))
            assert c.assignment() == [Q0]
            assert len(readers()) == 1
            await asyncio.gather(c.assign([Q0]), c.assign([Q0, Q1]))
            assert len(await read(c, 10)) == 10
            await c.assign([])
            await until(lambda: not readers())
            fill(fake, 2, queues=2)
            assert await c.poll(20) == []


@pytest.mark.shows("mended: leaked fetchers read for ever (resubscribe, seek in on_revoked, two assigns)")
@in_loop
async def test_an_assign_that_a_close_overtakes_reads_nothing() -> None:
    async with Fake(t=2) as fake:
        c = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        await c.start()
        held = Held(c._rebalance.offsets, "start_offset", ended=True)
        assigning = asyncio.create_task(c.assign([Q0, Q1]))
        await held.begun.wait()
        await c.close()
        held.go_on.set()
        with pytest.raises(StateError, match="closed"):
            await assigning
        assert (readers(), c.assignment()) == ([], [])


@pytest.mark.shows("mended: leaked fetchers read for ever (resubscribe, seek in on_revoked, two assigns)")
@in_loop
async def test_a_queue_that_is_being_given_up_is_not_begun_again_by_a_seek() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 20, queues=2)
        told, go_on = asyncio.Event(), asyncio.Event()

        async def revoked(queues: list[MessageQueue]) -> None:
            told.set()
            await go_on.wait()

        options: dict[str, Any] = {"consume_from": "first", "rebalance_interval_ms": 20}
        a = AsyncPullConsumer(fake.namesrv, "g", on_revoked=revoked, instance_name="a", **options)
        a.subscribe("t")
        async with a:
            found = await read(a, 20)
            await a.poll(0)
            b = AsyncPullConsumer(fake.namesrv, "g", instance_name="b", **options)
            b.subscribe("t")
            async with b:
                await told.wait()
                with pytest.raises(StateError, match="given up"):
                    await a.seek(Q1, 0)
                # What is taken back now is begun by who reads the queue next.
                await a.unread([m for m in found if m.queue == Q1 and m.queue_offset >= 7])
                await a.poll(0)
                a.subscribe("t", "*")
                a.unsubscribe("t")
                a.subscribe("t", "TagA || TagB")
                a.subscribe("t")
                go_on.set()
                await until(lambda: a.assignment() == [Q0] and b.assignment() == [Q1])
                assert fake.broker.committed["g", "t", 1] == [7]
                assert await a.position(Q0) == 10
                assert len(readers()) == 2
        assert readers() == []


@pytest.mark.shows("mended: leaked fetchers read for ever (resubscribe, seek in on_revoked, two assigns)")
@in_loop
async def test_a_filter_that_changes_while_its_queues_come_and_go() -> None:
    async with Fake(t=4) as fake:
        got: list[bytes] = []
        async with consumer(fake, lambda m: got.append(m.body), tags="A") as c:
            for i in range(30):
                c.unsubscribe("t")
                for _ in range(i % 7):
                    await asyncio.sleep(0)
                c.subscribe("t", "A" if i % 2 else "A || B")
                await asyncio.sleep(0.002)
            await until(lambda: len([q for q in c._rebalance.pullers if q.topic == "t"]) == 4)
            for i in range(40):
                fake.broker.put("t", i % 4, b"%d" % i, "TAGS\x01A\x02")
            await until(lambda: len(got) == 40)
            await until(lambda: len(readers()) == 5)
        assert sorted(map(int, got)) == list(range(40))
        assert readers() == []


@pytest.mark.shows("mended: interrupted start or close leaves a live member (the consumer's half)")
@in_loop
async def test_a_start_that_is_given_up_is_undone() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 1)
        got: list[bytes] = []
        c = consumer(fake, lambda m: got.append(m.body))
        held = Held(c._rebalance, "rebalance")
        starting = asyncio.create_task(c.start())
        await held.begun.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        held.go_on.set()
        assert [u.consumer_group for u in fake.broker.unregistered] == ["g"]
        await until(lambda: not fake.broker.server.peers)
        await c.close()
        with pytest.raises(StateError, match="closed"):
            await c.start()
        assert (got, readers()) == ([], [])
        # The group can be joined anew.
        async with consumer(fake, lambda m: got.append(m.body)):
            await until(lambda: got == [b"0"])


@pytest.mark.shows("mended: interrupted start or close leaves a live member (the consumer's half)")
@in_loop
async def test_a_close_while_it_starts_ends_the_start() -> None:
    async with Fake(t=1) as fake:
        for c in (consumer(fake, print), AsyncPullConsumer(fake.namesrv, "g")):
            c.subscribe("t")
            held = Held(c._rebalance, "rebalance")
            starting = asyncio.create_task(c.start())
            await held.begun.wait()
            await c.close()
            with pytest.raises(StateError, match="while it started"):
                await starting
        await until(lambda: not fake.broker.server.peers)
        assert readers() == []


@pytest.mark.shows("mended: interrupted start or close leaves a live member (the consumer's half)")
@in_loop
async def test_a_close_that_nobody_waits_for_goes_on() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 3)
        began, let_go = asyncio.Event(), asyncio.Event()

        async def listener(given: ReceivedMessage) -> None:
            began.set()
            await let_go.wait()

        c = consumer(fake, listener, threads=1)
        await c.start()
        await began.wait()
        closing = asyncio.create_task(c.close())
        await until(lambda: c._listeners._closing)  # type: ignore[union-attr]
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        let_go.set()
        await c.close()
        assert fake.broker.offsets["g", "t", 0] == 1
        assert [u.consumer_group for u in fake.broker.unregistered] == ["g"]
        await until(lambda: not fake.broker.server.peers)
        with pytest.raises(StateError, match="closed"):
            await c.queues()


@pytest.mark.shows("mended: interrupted start or close leaves a live member (the consumer's half)")
@in_loop
async def test_what_fails_after_the_close_opens_nothing_any_more() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 1)
        began, let_go = asyncio.Event(), asyncio.Event()

        async def listener(given: ReceivedMessage) -> bool:
            began.set()
            await let_go.wait()
            return False

        c = consumer(fake, listener, close_timeout_ms=1)
        await c.start()
        await began.wait()
        await c.close()
        let_go.set()
        await until(lambda: c._listeners is not None and not c._listeners._tasks)  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        assert (fake.broker.send_backs, list(fake.broker.server.peers)) == ([], [])
        assert fake.broker.offsets["g", "t", 0] == 0


@pytest.mark.shows("mended: leaks: messages of ended tasks; a consumer and a timer per failed start")
@in_loop
async def test_starts_that_fail_leave_nothing() -> None:
    left = []
    timers = sum(isinstance(o, Overdue) for o in gc.get_objects())
    for _ in range(3):
        c = AsyncPushConsumer("127.0.0.1:1", "g")
        left.append(weakref.ref(c))
        c.subscribe("t")
        c.listen(print)
        with pytest.raises(NotSent):
            await c.start()
    del c
    gc.collect()
    assert [each() for each in left] == [None] * 3
    assert sum(isinstance(o, Overdue) for o in gc.get_objects()) <= timers
    assert [t for t in asyncio.all_tasks() if "rocketspark" in repr(t.get_coro())] == []


@pytest.mark.shows("mended: a raising before_request hook ends the commit loop, and lock renewal (it did)")
@in_loop
async def test_commits_and_locks_go_on_after_a_hook_failed(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[int] = []

    class Once(Hooks):
        def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
            if armed and code in (COMMIT, RequestCode.LOCK_BATCH_MQ) and failed.count(code) < 2:
                failed.append(code)
                raise ValueError("as the test wants it")

    armed = False
    async with Fake(t=1) as fake:
        c = consumer(fake, lambda m: None, ordered=True, commit_interval_ms=10, hooks=[Once()])
        assert c._locks is not None
        c._locks._renew_s = 0.01
        with caplog.at_level(logging.CRITICAL, "rocketspark.client"):
            async with c:
                armed = True
                fill(fake, 3)
                await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 3)
                await until(lambda: failed.count(RequestCode.LOCK_BATCH_MQ) == 2)
                locked = fake.broker.requests[RequestCode.LOCK_BATCH_MQ]
                await until(lambda: fake.broker.requests[RequestCode.LOCK_BATCH_MQ] > locked)
                fill(fake, 1)
                await until(lambda: fake.broker.offsets["g", "t", 0] == 4)


@in_loop
async def test_a_lock_that_was_given_up_is_not_renewed() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g") as c:
        locks = QueueLocks(c._instance, "g", renew_s=0.001)
        # The pull consumer has made the route known.
        await c.queues("t")
        assert await locks.acquire([Q0]) == {Q0}
        held = Held(locks, "_ask")
        keeping = asyncio.create_task(locks.keep(lambda: [Q0]))
        await held.begun.wait()
        releasing = asyncio.create_task(locks.release([Q0]))
        await asyncio.sleep(0)
        assert not locks.holds(Q0)
        held.go_on.set()
        await releasing
        rounds = fake.broker.requests[RequestCode.LOCK_BATCH_MQ]
        await asyncio.sleep(0.02)
        keeping.cancel()
        assert fake.broker.owners == {}
        assert (locks.holds(Q0), fake.broker.requests[RequestCode.LOCK_BATCH_MQ]) == (False, rounds)


@pytest.mark.shows("mended: sys.exit in a callback (consumer half: listeners, hooks, on_assigned/on_revoked)")
@in_loop
async def test_functions_that_are_told_of_queues_may_raise_anything() -> None:
    async def assigned(queues: list[MessageQueue]) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    def revoked(queues: list[MessageQueue]) -> None:
        raise SystemExit

    async with Fake(t=1) as fake:
        options: dict[str, Any] = {"on_assigned": assigned, "on_revoked": revoked}
        c = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", **options)
        c.subscribe("t")
        async with c:
            c.unsubscribe("t")
            await until(lambda: c.assignment() == [])
            c.subscribe("t")
            await until(lambda: c.assignment() == [Q0])


@in_loop
async def test_a_reset_goes_on_when_who_asked_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async with Fake(t=1) as fake:
        fill(fake, 5)
        got: list[int] = []
        async with consumer(fake, lambda m: got.append(m.queue_offset)) as c:
            await until(lambda: len(got) == 5)
            held = Held(c._rebalance.offsets.store, "commit")
            resetting = asyncio.create_task(c._rebalance.reset({Q0: 2}))
            await held.begun.wait()
            again = asyncio.create_task(c._rebalance.reset({Q0: 3}))
            resetting.cancel()
            c.subscribe("t", "*")
            held.go_on.set()
            await again
            await until(lambda: got[-1] == 4 and len(got) > 5)
            assert len(readers()) == 2
            await until(lambda: c._rebalance.pullers[Q0].process_queue.lowest == 5)
        assert set(got[5:]) in ({3, 4}, {2, 3, 4})
        assert fake.broker.offsets["g", "t", 0] == 5
        assert "is not committed" not in caplog.text


@pytest.mark.parametrize("closes", [False, True])
@in_loop
async def test_a_reset_counts_for_a_queue_that_is_being_given_up(closes: bool) -> None:
    """What its member read was committed last, once its call had ended: the reset was lost, without a word."""
    async with Fake(t=1) as fake:
        fill(fake, 5)
        began, ends = asyncio.Event(), asyncio.Event()

        async def listener(message: ReceivedMessage) -> None:
            if message.queue_offset == 4:
                began.set()
                await ends.wait()

        async with consumer(fake, listener, ordered=True) as c:
            await began.wait()
            if closes:
                closing = asyncio.create_task(c.close())
                await until(lambda: c._rebalance._closed)
            else:
                c.unsubscribe("t")
                await until(lambda: Q0 in c._rebalance._leaving)
            await c._rebalance.reset({Q0: 2})
            ends.set()
            if closes:
                await closing
            else:
                await until(lambda: Q0 not in c._rebalance.pullers)
        assert fake.broker.offsets["g", "t", 0] == 2


@in_loop
async def test_only_newcomers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fake(t=2) as fake:
        first, second = (
            AsyncPullConsumer(fake.namesrv, "g", instance_name=name, rebalance_interval_ms=50) for name in "ab"
        )
        first.subscribe("t")
        second.subscribe("t")
        # Who is alone waits for nobody.
        monkeypatch.setattr(rebalance, "HANDOVER_S", 1e6)
        async with first:
            assert first.assignment() == [Q0, Q1]
            monkeypatch.setattr(rebalance, "HANDOVER_S", 0)
            async with second:
                await until(lambda: (first.assignment(), second.assignment()) == ([Q0], [Q1]))
                # Nor do those that know each other.
                monkeypatch.setattr(rebalance, "HANDOVER_S", 1e6)
                fake.names.topics["t"] = {"broker-a": 4}
                await first._instance.routes.refresh("t")
                await until(lambda: len(first.assignment()) == 2)


@pytest.mark.shows("mended: seek(1030) (also negative, text, commit of such)")
@in_loop
async def test_offsets_that_cannot_be() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g") as c:
        await c.assign([Q0])
        for wrong in (-1, 10**30, "3", 1.5, True, None):
            with pytest.raises(UsageError, match="no offset"):
                await c.seek(Q0, wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="no offset"):
                await c.commit({Q0: wrong})  # type: ignore[dict-item]
        assert len(readers()) == 1


@pytest.mark.parametrize("kind", [AsyncPushConsumer, AsyncPullConsumer, AsyncSimpleConsumer])
@in_loop
async def test_a_filter_is_newer_than_the_one_before_though_the_clock_was_set_back(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep the filter of the highest version: by the old one they passed over what the new one wants."""
    now_s = 1_700_000_000.0
    monkeypatch.setattr(machine, "time", lambda: now_s)
    made = kind("127.0.0.1:1", "g")
    subscriptions = made._subscriptions if kind is AsyncSimpleConsumer else made._rebalance.subscriptions
    versions = []
    for expression in ("a", "b", "c"):
        made.subscribe("t", expression)
        versions.append(subscriptions["t"].version)
        now_s -= 600
        made.unsubscribe("t") if expression == "b" else None
    assert versions == sorted(set(versions))
