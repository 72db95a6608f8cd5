"""What no retry mends is raised by poll, receive and iteration, and given to `on_error`; then reading goes on."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.client.consumer.refusals import is_refusal
from rocketspark.errors import (
    FilterIllegal,
    NoReply,
    RocketSparkError,
    RouteNotFound,
    ServerError,
)
from rocketspark.protocol.codes import RequestCode

pytestmark = pytest.mark.shows("refusals are raised and told", "refusals are raised once for each time")

NO_SQL = (1, "The broker does not support consumer to filter message by SQL92 (enablePropertyFilter=true allows it)")
NO_RIGHT = (16, "subscription group no permission, g")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.puller.REFUSED_PAUSE_S", 0.02)
    monkeypatch.setattr("rocketspark.client.consumer.puller.TROUBLE_PAUSE_S", 0.02)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ServerError(*NO_SQL), True),
        (ServerError(*NO_RIGHT), True),
        (ServerError(23, "parse the consumer's subscription failed"), True),
        (ServerError(29, "the heartbeat names 5000 subscriptions of a group; one connection has at most 4096"), True),
        (ServerError(29, "request queueId[8] is illegal"), False),
        (FilterIllegal("wrong"), True),
        (ServerError(1, "busy"), False),
        (ServerError(24, "the consumer's group info not exist"), False),
        (RouteNotFound("t"), False),
        (NoReply("late"), False),
    ],
)
def test_which_errors_no_retry_mends(error: RocketSparkError, told: bool) -> None:
    assert is_refusal(error) is told


@in_loop
@pytest.mark.parametrize("refusal", [NO_SQL, NO_RIGHT])
async def test_poll_and_iteration_raise_it_until_it_is_mended(refusal: tuple[int, str]) -> None:
    async with Fake(t=2) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        fake.broker.put("t", 0, b"x")
        fake.broker.rules[RequestCode.PULL_MESSAGE] = lambda header, body: refusal
        consumer.subscribe("t", sql="a = 1")
        for _ in range(10):
            with pytest.raises(ServerError, match=f"code {refusal[0]} ") as caught:
                await consumer.poll(60_000)
            assert caught.value.remark == refusal[1]
            # Another broker may allow what this one forbids; a filter that is switched off stays refused.
            assert caught.value.retriable is (refusal is NO_RIGHT)
        # Who catches it and goes on is not kept busy: each is raised once.
        assert fake.broker.requests[RequestCode.PULL_MESSAGE] >= 10
        with pytest.raises(ServerError, match=f"code {refusal[0]} "):
            await anext(consumer)
        del fake.broker.rules[RequestCode.PULL_MESSAGE]
        for _ in range(3):
            # One of each queue may be on its way.
            with contextlib.suppress(ServerError):
                assert (await anext(consumer)).body == b"x"
                break
        else:
            raise AssertionError


@in_loop
async def test_messages_of_other_queues_come_first() -> None:
    async with Fake(t=2) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        fake.broker.put("t", 0, b"x")
        fake.broker.rules[RequestCode.PULL_MESSAGE] = lambda header, body: NO_RIGHT if header.queue_id else None
        consumer.subscribe("t")
        await until(lambda: consumer._rebalance.refusals.now() and consumer._handed_out.fetched)
        assert [m.body for m in await consumer.poll()] == [b"x"]
        with pytest.raises(ServerError):
            await consumer.poll()


@in_loop
async def test_a_client_with_too_many_topics_is_told() -> None:
    """Its heartbeats were refused, and it heard nothing: the broker has no such group."""
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g") as consumer:
        fake.broker.rules[RequestCode.HEART_BEAT] = lambda header, body: (29, "the heartbeat names 5000 subscriptions")
        fake.broker.rules[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda header, body: (1, "no consumer for this")
        consumer.subscribe("t")
        with pytest.raises(ServerError, match="code 29 "):
            await consumer.poll(60_000)


@in_loop
async def test_a_group_that_may_not_join_is_told() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g") as consumer:
        fake.broker.rules[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda header, body: NO_RIGHT
        consumer.subscribe("t")
        with pytest.raises(ServerError, match="no permission"):
            await consumer.poll(60_000)


@in_loop
@pytest.mark.parametrize("coroutine", [False, True])
async def test_on_error_is_told_once_in_a_while(coroutine: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    told: list[RocketSparkError] = []

    def tell(error: RocketSparkError) -> None:
        told.append(error)
        raise ValueError("of the application")

    async def tell_async(error: RocketSparkError) -> None:
        tell(error)

    got: list[bytes] = []
    async with Fake(t=2) as fake:
        fake.broker.put("t", 0, b"x")
        fake.broker.rules[RequestCode.PULL_MESSAGE] = lambda header, body: NO_SQL if header.topic == "t" else None
        on_error: Any = tell_async if coroutine else tell
        consumer = AsyncPushConsumer(fake.namesrv, "g", consume_from="first", on_error=on_error)
        consumer.subscribe("t", sql="a = 1")
        consumer.listen(lambda message: got.append(message.body))
        async with consumer:
            await until(lambda: fake.broker.requests[RequestCode.PULL_MESSAGE] > 20 and told)
            fake.broker.rules.clear()
            await until(lambda: got)
    assert [error.remark for error in told if isinstance(error, ServerError)] == [NO_SQL[1]]
    assert "on_error failed; the consumer goes on" in caplog.text
