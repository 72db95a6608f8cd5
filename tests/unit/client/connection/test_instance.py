"""Clients of one instance share a connection; groups are used once in it; another loop or other options are refused."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.support.patience import LIMIT_S
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncProducer, AsyncPullConsumer, Producer, callbacks
from rocketspark.client.connection import instance
from rocketspark.errors import ConfigError, NotSent, StateError
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows("shared instances, client ids, states", "mended: inner producer group, unitMode")


@in_loop
async def test_one_connection_for_all_of_a_name() -> None:
    async with Fake(t=1) as fake:
        options: Any = {"instance_name": "shared", "client_ip": "10.0.0.1"}
        first = AsyncProducer(fake.namesrv, "p1", **options)
        second = AsyncProducer(fake.namesrv, "p2", **options)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", **options)
        consumer.subscribe("t")
        async with first, second, consumer:
            assert {first.client_id, second.client_id, consumer.client_id} == {"10.0.0.1@shared"}
            await first.send("t", b"1")
            await second.send("t", b"2")
            got = [(await anext(consumer)).body for _ in range(2)]
            assert sorted(got) == [b"1", b"2"]
            assert len(fake.broker.server.peers) == 1
            await first._instance.heartbeat_all()
            groups = [g.group_name for g in fake.broker.heartbeats[-1].producer_data_set]
            assert groups == ["p1", "p2", "CLIENT_INNER_PRODUCER"]
            # One that closes leaves alone.
            await first.close()
            assert [u.producer_group for u in fake.broker.unregistered] == ["p1"]
            assert (await second.send("t", b"3")).queue_offset == 2
        await until(lambda: not fake.broker.server.peers)
        assert {u.producer_group or u.consumer_group for u in fake.broker.unregistered} == {"p1", "p2", "g"}
        # All have gone: the name is free.
        async with AsyncProducer(fake.namesrv, "p1", timeout_ms=100, **options) as again:
            await again.send("t", b"4")


@in_loop
async def test_a_slave_is_asked_first_only_while_the_route_names_no_master() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "p") as producer:
        queue, client = MessageQueue("t", "broker-a", 0), producer._instance
        master, slave = (broker.address for broker in fake.brokers)
        for known, now, first, fetched, found in [
            ({0: master, 1: slave}, {0: master, 1: slave}, True, 0, master),
            ({1: slave}, {1: slave}, True, 1, slave),
            ({1: slave}, {0: master, 1: slave}, True, 1, master),
            ({1: slave}, {0: master, 1: slave}, False, 0, slave),
        ]:
            fake.names.addresses["broker-a"] = known
            await client.routes.refresh("t")
            fake.names.addresses["broker-a"] = now
            before = fake.names.fetches["t"]
            peer = await client.peer_of(queue, master_first=first)
            assert (peer.address, fake.names.fetches["t"] - before) == (found, fetched)


@in_loop
async def test_without_a_name_each_is_alone() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "p") as one, AsyncProducer(fake.namesrv, "p") as two:
        await one.send("t", b"1")
        await two.send("t", b"2")
        assert one.client_id != two.client_id
        assert len(fake.broker.server.peers) == 2


@in_loop
async def test_a_group_is_used_once() -> None:
    async with Fake(t=1) as fake:
        first = AsyncProducer(fake.namesrv, "p", instance_name="twice")
        second = AsyncProducer(fake.namesrv, "p", instance_name="twice")
        async with first:
            with pytest.raises(StateError, match=r"producer group 'p' is in use"):
                await second.start()
            await first.send("t", b"still works")


@in_loop
async def test_other_options_are_refused() -> None:
    async with Fake(t=1) as fake:
        kept = AsyncProducer(fake.namesrv, "p", instance_name="options")
        with pytest.raises(ConfigError, match="other options"):
            AsyncProducer(fake.namesrv, "q", instance_name="options", timeout_ms=5)
        assert kept.group == "p"
        del kept
        gc.collect()
        AsyncProducer(fake.namesrv, "q", instance_name="options", timeout_ms=5)


@in_loop
async def test_one_loop_only() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "p", instance_name="loops"):
        synchronous = Producer(fake.namesrv, "q", instance_name="loops")
        with pytest.raises(StateError, match="another event loop"):
            await asyncio.to_thread(synchronous.start)


@in_loop
async def test_a_start_that_fails_can_be_tried_with_a_new_client() -> None:
    with pytest.raises(ConfigError, match="namesrv_url"):
        await AsyncProducer(None, "p", namesrv_url="nowhere", instance_name="fails").start()
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "p", instance_name="fails") as producer:
        await producer.send("t", b"x")


@pytest.mark.shows("mended: the same client id shares or explains")
@in_loop
async def test_one_id_is_one_client_however_the_nameservers_are_named() -> None:
    options: Any = {"instance_name": "one", "client_ip": "10.0.0.1"}
    first = AsyncProducer("127.0.0.1:1;127.0.0.1:2", "p1", **options)
    assert AsyncProducer("127.0.0.1:2;127.0.0.1:3", "p2", **options)._instance is first._instance
    # Another cluster knows nothing of this client.
    assert AsyncProducer("127.0.0.1:4", "p1", **options)._instance is not first._instance
    with pytest.raises(ConfigError, match="one client id"):
        AsyncProducer("127.0.0.1:1", "p3", timeout_ms=5, **options)


@in_loop
async def test_a_start_that_is_given_up_leaves_the_others_alone() -> None:
    async with Fake(t=1) as fake:
        before = asyncio.all_tasks()
        options: Any = {"instance_name": "one"}
        first, second = (AsyncProducer(fake.namesrv, group, **options) for group in ("p1", "p2"))
        starting = [asyncio.ensure_future(p.start()) for p in (first, second)]
        await asyncio.sleep(0)
        starting[0].cancel()
        await starting[1]
        with pytest.raises(asyncio.CancelledError):
            await starting[0]
        assert (await second.send("t", b"x")).queue_offset == 0
        assert second._instance.producers == {"p2"}
        assert len(second._instance._tasks) == 2
        await second.close()
        await until(lambda: not asyncio.all_tasks() - before - {asyncio.current_task()} or _of_servers(before))


def _of_servers(before: Any) -> bool:
    return all("_every" not in repr(task) for task in asyncio.all_tasks() - before)


@pytest.mark.shows("mended: known to brokers from `start` on")
@in_loop
async def test_brokers_know_a_producer_that_sends_nothing() -> None:
    async with Fake(2, mine=1) as fake:
        fake.names.topics["TBW102"] = {"broker-b": 8}
        fake.names.topics["mine"] = {"broker-a": 1}
        async with AsyncProducer(fake.namesrv, "pg", unit_mode=True):
            await until(lambda: fake.brokers[1].heartbeats)
            groups = [g.group_name for g in fake.brokers[1].heartbeats[0].producer_data_set]
            assert groups == ["pg", "CLIENT_INNER_PRODUCER"]
        assert fake.brokers[0].heartbeats == []
        async with AsyncProducer(fake.namesrv, "pg", topics=["mine"]):
            await until(lambda: fake.brokers[0].heartbeats)
    # A NameServer that comes later is asked again with the next round.
    async with AsyncProducer("127.0.0.1:1", "pg", topics=["mine"]) as producer:
        await until(lambda: not producer._instance._introducing)
        assert list(producer._routes._wanted) == ["TBW102", "mine"]


@pytest.mark.parametrize("error", [KeyError("k"), NotSent("not sent", address="a:1")])
@pytest.mark.parametrize("kind", ["every", "_every"])
def test_a_periodic_task_ends_when_it_is_cancelled_whatever_its_turn_raises_then(kind: str, error: Exception) -> None:
    async def act() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise error

    async def run() -> None:
        call = callbacks.every(0, act, "a test") if kind == "every" else instance._every(0, act)
        task = asyncio.ensure_future(call)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=LIMIT_S)
        assert task.done()
        assert task.exception() is error

    asyncio.run(run())
