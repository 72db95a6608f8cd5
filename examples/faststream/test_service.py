"""Tests of the service in memory: no server runs. `pytest examples/faststream`"""

from __future__ import annotations

import asyncio

import pytest

from examples.faststream.service import Bill, Order, bill, broker, price
from rocketspark.faststream import TestRocketBroker


def test_an_order_becomes_a_bill() -> None:
    async def run() -> None:
        async with TestRocketBroker(broker) as memory:
            await memory.publish(Order(number=1, product="apple", count=2), "orders", tag="new")
            bill.mock.assert_called_once_with({"number": 1, "product": "apple", "count": 2})
            publisher = broker.publishers[0]
            publisher.mock.assert_called_once_with(Bill(order=1, cents=285).model_dump())

    asyncio.run(run())


def test_other_tags_are_not_billed() -> None:
    async def run() -> None:
        async with TestRocketBroker(broker) as memory:
            await memory.publish(Order(number=1, product="apple"), "orders", tag="paid")
            bill.mock.assert_not_called()

    asyncio.run(run())


def test_a_price_is_the_reply() -> None:
    async def run() -> None:
        async with TestRocketBroker(broker) as memory:
            reply = await memory.request("pear", "prices")
            assert await reply.decode() == 150
            with pytest.raises(KeyError):
                await memory.request("plum", "prices")
            assert price.mock.call_count == 2

    asyncio.run(run())
