"""Clients of one instance share a connection; groups are used once in it; another loop or other options are refused."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncProducer, AsyncPullConsumer, Producer
from rocketspark.errors import ConfigError, StateError


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
            assert groups == ["p1", "p2"]
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
