"""A FastStream service on both servers: bodies, filters, replies, failures, batches, order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from tests.clients.scene import Scene
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PullConsumer
from rocketspark.faststream import AckPolicy, RocketBroker, RocketResponse
from rocketspark.faststream.annotations import RocketMessage

pytestmark = pytest.mark.shows("FastStream: RocketBroker with filters, replies, delays, batches, order, dead letters")


class Order(BaseModel):
    """What is ordered."""

    number: int
    product: str


async def take(queue: asyncio.Queue[Any]) -> Any:
    """The next of what handlers noted."""
    return await asyncio.wait_for(queue.get(), LIMIT_S)


def test_a_service_gets_what_it_asks_for_and_answers(scene: Scene) -> None:
    async def run() -> None:
        broker = RocketBroker(scene.namesrv)
        noted: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber(scene.topic, group=scene.group, tags="new || odd", consume_from="first", max_workers=4)
        @broker.publisher(f"{scene.topic}-bills", tag="bill", headers={"by": "us"})
        async def bill(order: Order, message: RocketMessage) -> dict[str, int]:
            raw = message.raw_message
            noted.put_nowait((order, raw.tag, raw.keys, raw.properties["__SHARDINGKEY"], message.headers["shop"]))
            return {"bill": order.number}

        @broker.subscriber(f"{scene.topic}-bills", group=f"b-{scene.group}", consume_from="first", batch=True)
        async def bills(given: list[dict[str, int]], message: RocketMessage) -> None:
            for one, raw in zip(given, message.raw_message, strict=True):
                noted.put_nowait((one, raw.tag, raw.properties["by"], raw.properties["correlation_id"]))

        async with broker:
            await broker.start()
            assert await broker.ping(LIMIT_S)
            options: Any = {"keys": ["k1", "k2"], "sharding_key": "s", "headers": {"shop": 7}, "correlation_id": "c-1"}
            await broker.publish(Order(number=1, product="left"), scene.topic, tag="paid", **options)
            sent = await broker.publish(Order(number=2, product="pear"), scene.topic, tag="new", **options)
            assert sent.queue.topic == scene.topic
            found = {str(await take(noted)) for _ in range(2)}
            order = Order(number=2, product="pear")
            assert found == {
                str((order, "new", ("k1", "k2"), "s", "7")),
                str(({"bill": 2}, "bill", "us", "c-1")),
            }
        assert not await broker.ping(0.1)

    asyncio.run(run())


def test_requests_delays_and_batches(scene: Scene) -> None:
    async def run() -> None:
        broker = RocketBroker(scene.namesrv)
        noted: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber(scene.topic, group=scene.group, tags="ask", consume_from="first")
        async def answer(text: str) -> RocketResponse | None:
            return None if text == "nothing" else RocketResponse({"re": text}, headers={"from": "us"})

        @broker.subscriber(scene.topic, group=f"n-{scene.group}", tags="note", consume_from="first", max_workers=4)
        async def note(body: Any) -> None:
            noted.put_nowait(body)

        async with broker:
            await broker.start()
            reply = await broker.request("one", scene.topic, tag="ask", timeout=LIMIT_S)
            assert (await reply.decode(), reply.headers["from"]) == ({"re": "one"}, "us")
            assert await (await broker.request("nothing", scene.topic, tag="ask", timeout=LIMIT_S)).decode() == b""
            with pytest.raises(TimeoutError, match="no reply"):
                await broker.request("one", scene.topic, tag="nobody", timeout=0.5)
            due = datetime.now(UTC) + timedelta(seconds=1.5)
            await broker.publish("later", scene.topic, tag="note", deliver_at=due)
            results = await broker.publish_batch(
                "one", {"two": 2}, RocketResponse(b"\xff\x00", tag="other"), b"", topic=scene.topic, tag="note"
            )
            assert len(results) == 1
            found = [await take(noted) for _ in range(3)]
            assert sorted(map(str, found)) == ["b''", "one", "{'two': 2}"]
            assert await take(noted) == "later"
            # A second of the machine's clock and the broker's.
            assert datetime.now(UTC) >= due - timedelta(seconds=1)

    asyncio.run(run())


def test_what_fails_comes_again_and_what_is_rejected_is_a_dead_letter(scene: Scene) -> None:
    async def run() -> None:
        broker = RocketBroker(scene.namesrv)
        noted: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber(scene.topic, group=scene.group, consume_from="first", max_workers=4)
        async def work(text: str, message: RocketMessage) -> None:
            noted.put_nowait((text, message.raw_message.reconsume_times))
            if text == "reject":
                await message.reject()
            if text == "fail" and not message.raw_message.reconsume_times:
                raise ValueError(text)

        @broker.subscriber(
            scene.topic, group=f"o-{scene.group}", ordered=True, consume_from="first", ack_policy=AckPolicy.MANUAL
        )
        async def in_order(text: str, message: RocketMessage) -> None:
            await (message.reject() if text == "reject" else message.ack())

        async with broker:
            await broker.start()
            # No JSON and no text: what no handler of texts can take is no reason to lose it.
            for body in ("good", "fail", "reject"):
                await broker.publish(body, scene.topic)
            found = {await take(noted) for _ in range(4)}
            assert found == {("good", 0), ("fail", 0), ("fail", 1), ("reject", 0)}

    asyncio.run(run())
    for group in (scene.group, f"o-{scene.group}"):
        scene.wait_for_topic(f"%DLQ%{group}")
        with PullConsumer(scene.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
            consumer.assign(consumer.queues(f"%DLQ%{group}"))
            (dead,) = consumer.poll(LIMIT_S * 1000, count_max=1)
            assert dead.body == b"reject"


def test_bodies_of_other_programs(scene: Scene) -> None:
    """What is no UTF-8 reaches handlers of bytes as it is; what a handler cannot take comes again."""

    async def run() -> None:
        broker = RocketBroker(scene.namesrv)
        noted: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber(scene.topic, group=scene.group, tags="raw", consume_from="first")
        async def raw(body: bytes) -> None:
            noted.put_nowait(body)

        @broker.subscriber(scene.topic, group=f"j-{scene.group}", tags="json", consume_from="first")
        async def orders(order: Order) -> None:
            noted.put_nowait(order)

        async with broker:
            await broker.start()
            with Producer(scene.namesrv) as producer:
                producer.send(scene.topic, "é".encode("latin-1"), tag="raw")
                producer.send(scene.topic, b"{", tag="json", properties={"content-type": "application/json"})
                producer.send(scene.topic, b'{"number": 1, "product": "pear"}', tag="json")
            found = [await take(noted) for _ in range(2)]
            assert sorted(map(str, found)) == [str(b"\xe9"), str(Order(number=1, product="pear"))]

    asyncio.run(run())
    # The broken one is given back, to come again.
    with PullConsumer(scene.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
        retries = f"%RETRY%j-{scene.group}"
        scene.wait_for_topic(retries)
        consumer.assign(consumer.queues(retries))
        (again,) = consumer.poll(LIMIT_S * 1000, count_max=1)
        assert again.body == b"{"
