"""Sends that are gathered: one request, a result each, order per queue, nothing lost at the end."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND, failing

from rocketspark.client import AsyncProducer, SendResult
from rocketspark.client.options import ProducerOptions
from rocketspark.errors import ConfigError, NotSent, SendFailed
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import properties, record

pytestmark = pytest.mark.shows("gathered sends (`linger_ms`, `batch_bytes`)")

BATCH = RequestCode.SEND_BATCH_MESSAGE


def bodies(fake: Fake, topic: str, queue_id: int) -> list[bytes]:
    return [record.decode(r).body for r in fake.broker.queues[topic, queue_id]]


@in_loop
async def test_one_request_and_a_result_each() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0) as producer:
        results = await asyncio.gather(*(producer.send("t", b"%d" % i, keys=f"k{i}", flag=i) for i in range(50)))
        assert (fake.broker.requests[BATCH], fake.broker.requests[SEND]) == (1, 0)
        assert bodies(fake, "t", 0) == [b"%d" % i for i in range(50)]
        stored = [record.decode(r) for r in fake.broker.queues["t", 0]]
        for i, result in enumerate(results):
            assert (result.queue, result.queue_offset) == (MessageQueue("t", "broker-a", 0), i)
            pairs = properties.decode(stored[i].properties.decode())
            assert (pairs["UNIQ_KEY"], pairs["KEYS"], stored[i].flag) == (result.message_id, f"k{i}", i)
        assert len({r.offset_message_id for r in results}) == 50
        # One alone is a plain send.
        assert (await producer.send("t", b"alone")).queue_offset == 50
        assert fake.broker.requests[SEND] == 1


@in_loop
async def test_what_cannot_be_gathered_goes_alone() -> None:
    async with Fake(t=1, u=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0) as producer:
        await asyncio.gather(
            producer.send("t", b"delayed", delay_level=1),
            producer.send("t", b"timer", delay_ms=5),
            producer.send("t", b"large" * 2000),
            producer.send("u", b"other topic"),
            producer.send("t", b"not waiting", wait_store_ok=False),
            producer.send("t", b"own time", timeout_ms=1000),
        )
        assert (fake.broker.requests[BATCH], fake.broker.requests[SEND]) == (0, 6)


@in_loop
async def test_size_and_time_end_a_batch() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=60_000, batch_bytes=2000) as producer:
        sends = [asyncio.ensure_future(producer.send("t", b"x" * 500)) for _ in range(8)]
        await until(lambda: fake.broker.requests[BATCH] == 2)
        await asyncio.gather(*sends[:6])
        # What is left is sent when closing.
        assert not sends[7].done()
        await producer.close()
        await asyncio.gather(*sends)
        assert len(fake.broker.queues["t", 0]) == 8
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=5) as producer:
        await asyncio.gather(producer.send("t", b"1"), producer.send("t", b"2"))
        assert fake.broker.requests[BATCH] == 1


@in_loop
async def test_order_of_a_sharding_key_and_of_a_queue() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0, batch_bytes=1000) as producer:
        fake.broker.rules[BATCH] = failing(1, 1)
        sends = [producer.send("t", b"%d" % i, sharding_key="x") for i in range(100)]
        queue = MessageQueue("t", "broker-a", 3)
        sends += [producer.send("t", b"%d" % i, queue=queue) for i in range(100)]
        await asyncio.gather(*sends)
        assert bodies(fake, "t", 0) == bodies(fake, "t", 3) == [b"%d" % i for i in range(100)]


@in_loop
async def test_a_quarter_is_enough_for_a_free_queue() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=60_000, batch_bytes=2000) as producer:
        waiting = asyncio.ensure_future(producer.send("t", b"x" * 500))
        await asyncio.gather(*(producer.send("t", b"%d" % i * 300, sharding_key="x") for i in range(3)))
        # All of one turn, and nothing of those without a key, which fill batches together.
        assert (fake.broker.requests[BATCH], fake.broker.requests[SEND], waiting.done()) == (1, 0, False)
        await producer.close()
        await waiting


@in_loop
async def test_what_comes_while_a_queue_is_busy_goes_together() -> None:
    options: ProducerOptions = {"linger_ms": 1, "send_timeout_ms": 60_000, "retries": 20}
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", **options) as producer:
        sends: list[asyncio.Future[SendResult]] = []
        fake.broker.rules[SEND] = lambda header, body: (1, "as told") if len(sends) < 9 else None
        sends.append(asyncio.ensure_future(producer.send("t", b"first", sharding_key="x")))
        await until(lambda: fake.broker.requests[SEND])
        for i in range(8):
            sends.append(asyncio.ensure_future(producer.send("t", b"%d" % i, sharding_key="x")))
            await asyncio.sleep(0.002)
        results = await asyncio.gather(*sends)
        assert fake.broker.requests[BATCH] == 1
        assert [r.queue_offset for r in results] == list(range(9))
        assert bodies(fake, "t", 0) == [b"first", *(b"%d" % i for i in range(8))]


@in_loop
async def test_a_busy_queue_holds_nothing_beyond_its_time() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=1, send_timeout_ms=300) as producer:
        fake.broker.silent = {SEND, BATCH}
        began_s = asyncio.get_running_loop().time()
        sends = []
        for i in range(6):
            sends.append(asyncio.ensure_future(producer.send("t", b"%d" % i, sharding_key="x")))
            await asyncio.sleep(0.01)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(o, SendFailed | NotSent) for o in outcomes)
        # One budget for those that were held, not one after the other's.
        assert asyncio.get_running_loop().time() - began_s < 0.55


@in_loop
async def test_a_failure_is_everybody_s_own() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0) as producer:
        fake.broker.rules[BATCH] = failing(13)
        outcomes = await asyncio.gather(*(producer.send("t", b"x") for _ in range(3)), return_exceptions=True)
        assert [type(o) for o in outcomes] == [SendFailed] * 3
        waiting = asyncio.ensure_future(producer.send("t", b"given up"))
        staying = asyncio.ensure_future(producer.send("t", b"staying"))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await staying).queue_offset >= 0
        assert b"given up" not in bodies(fake, "t", 0)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="linger_ms"):
        AsyncProducer("127.0.0.1:9", "pg", linger_ms=-1)
