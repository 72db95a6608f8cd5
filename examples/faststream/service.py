"""A service that bills orders, on FastStream.

    rocketspark server --store ./store &
    faststream run examples.faststream.service:app

Each new order becomes a bill; whoever asks for a price gets it as the reply; an order that cannot be billed is a dead
letter at once, and one whose handler fails comes again. `test_service.py` beside it tests the service without a server.
"""

from __future__ import annotations

import os

from faststream.exceptions import RejectMessage
from pydantic import BaseModel

from faststream import FastStream, Logger
from rocketspark.faststream import RocketBroker, RocketMessage

TAX_PERCENT = 19
PRICES = {"apple": 120, "pear": 150}

broker = RocketBroker(os.environ.get("NAMESRV", "127.0.0.1:9876"))
app = FastStream(broker)


class Order(BaseModel):
    """What is ordered."""

    number: int
    product: str
    count: int = 1


class Bill(BaseModel):
    """What is to be paid, in cents."""

    order: int
    cents: int


@broker.subscriber("orders", group="billing", tags="new", consume_from="first", max_workers=4)
@broker.publisher("bills", tag="new")
async def bill(order: Order, message: RocketMessage, logger: Logger) -> Bill:
    """Bill a new order."""
    if order.product not in PRICES:
        raise RejectMessage
    logger.info("order %d of %s", order.number, message.raw_message.queue)
    return Bill(order=order.number, cents=PRICES[order.product] * order.count * (100 + TAX_PERCENT) // 100)


@broker.subscriber("prices", group="prices")
async def price(product: str) -> int:
    """Reply to a request for a price."""
    return PRICES[product]
