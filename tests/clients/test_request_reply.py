"""Request-reply on both servers: the reply reaches who asked, late or wrong ones reach nobody."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.clients.scene import Scene
from tests.support.patience import LIMIT_MS

from rocketspark.client import AsyncProducer, Producer, PushConsumer
from rocketspark.errors import NoReply, UsageError
from rocketspark.model import ReceivedMessage

pytestmark = pytest.mark.shows("request-reply, delay levels, timer messages, recall")


def test_replies_reach_who_asked(scene: Scene) -> None:
    with Producer(scene.namesrv, f"r-{scene.group}") as replier:
        consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first")
        consumer.subscribe(scene.topic, "ask")

        @consumer.listen
        def answer(message: ReceivedMessage) -> None:
            size = 9000 if message.body == b"large" else 1
            replier.reply(message, b"re: " + message.body * size, properties={"of": "us"})

        with consumer, Producer(scene.namesrv, f"p-{scene.group}") as producer:
            found = producer.request(scene.topic, b"one", tag="ask", keys="k", timeout_ms=LIMIT_MS)
            assert found.body == b"re: one"
            assert (found.properties["MSG_TYPE"], found.properties["of"]) == ("reply", "us")
            assert abs(found.store_time_ms - time.time() * 1000) < 60_000
            # Compressed on its way.
            assert (
                producer.request(scene.topic, b"large", tag="ask", timeout_ms=LIMIT_MS).body
                == b"re: " + b"large" * 9000
            )

            async def many() -> list[bytes]:
                async with AsyncProducer(scene.namesrv, f"p-{scene.group}") as several:
                    asked = [several.request(scene.topic, b"%d" % i, tag="ask", timeout_ms=LIMIT_MS) for i in range(20)]
                    return [m.body for m in await asyncio.gather(*asked)]

            assert asyncio.run(many()) == [b"re: %d" % i for i in range(20)]
            # Nobody listens to this tag.
            with pytest.raises(NoReply, match="no reply came"):
                producer.request(scene.topic, b"two", tag="other", timeout_ms=300)


def test_what_is_no_request_gets_no_reply(scene: Scene) -> None:
    with Producer(scene.namesrv, f"p-{scene.group}") as producer:
        producer.send(scene.topic, b"plain")
        (plain,) = scene.stored(1)
        with pytest.raises(UsageError, match="no request"):
            producer.reply(plain, b"x")
