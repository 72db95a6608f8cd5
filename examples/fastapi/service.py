"""A web service that puts orders into a topic and counts what was delivered, on FastAPI.

    rocketspark server --store ./store &
    uvicorn examples.fastapi.service:app

The producer and the consumer live as long as the application: `lifespan` starts and closes them. A request waits until
a broker has stored the order; the consumer runs beside the requests, on the same loop.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel

from fastapi import FastAPI, HTTPException, Request
from rocketspark import AsyncProducer, AsyncPushConsumer, ReceivedMessage
from rocketspark.errors import RocketSparkError

TOPIC, GROUP = "orders", "shop"


class Order(BaseModel):
    """What is ordered."""

    product: str
    count: int = 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the producer and the consumer with the application, and close them with it."""
    namesrv = os.environ.get("NAMESRV", "127.0.0.1:9876")
    app.state.delivered = Counter()

    async def deliver(message: ReceivedMessage) -> None:
        order = Order.model_validate_json(message.body)
        app.state.delivered[order.product] += order.count

    consumer = AsyncPushConsumer(namesrv, GROUP, consume_from="first")
    consumer.subscribe(TOPIC, "new")
    consumer.listen(deliver)
    # Closed in the other order: handlers that run end first, then what they sent is on its way.
    async with AsyncProducer(namesrv) as producer:
        await producer.create_topic(TOPIC)
        async with consumer:
            app.state.producer = producer
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(order: Order, request: Request) -> dict[str, str]:
    """Take an order: once this returns, it is stored and will be delivered."""
    try:
        sent = await request.app.state.producer.send(TOPIC, order.model_dump_json().encode(), tag="new")
    except RocketSparkError as e:
        raise HTTPException(503, str(e)) from e
    return {"id": sent.message_id}


@app.get("/delivered")
async def delivered(request: Request) -> dict[str, int]:
    """Return how many of each product were delivered."""
    return dict(request.app.state.delivered)
