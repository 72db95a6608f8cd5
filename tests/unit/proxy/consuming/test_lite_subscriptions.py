"""SyncLiteSubscription before a played broker: what is refused, what brokers are told, and what a client is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.protocol.headers import NotifyUnsubscribeLiteHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.json.lite_bodies import LiteSubscriptions as Told
from rocketspark.proxy.checks import check_lite_topic
from rocketspark.proxy.clients import Clients
from rocketspark.proxy.consuming.lite_subscriptions import LiteSubscriptions
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import ClientType, Code
from rocketspark.proxy.wire.statuses import Refused

GROUPS = {
    "Lite": GroupConfig(group_name="Lite", attributes={"lite.bind.topic": "Parent", "lite.sub.client.quota": "2"}),
    "Plain": GroupConfig(group_name="Plain"),
}


class Played:
    """A proxy's part with one broker, which keeps what it is told."""

    def __init__(self, **own: Any) -> None:
        self.told: list[dict[str, Any]] = []
        queue = SimpleNamespace(broker_name="b", perm=6, read_queue_count=1)
        route = SimpleNamespace(queues=[queue], broker=lambda name: SimpleNamespace(master="m"))
        brokers: Any = SimpleNamespace(
            group=lambda name: asyncio.sleep(0, GROUPS.get(name)),
            route=lambda topic: asyncio.sleep(0, route),
            peer=lambda name: asyncio.sleep(0, self),
        )
        self.clients = Clients(60)
        self.lite = LiteSubscriptions(ProxySettings(namesrv="", **own), brokers, self.clients)
        self.call: Any = SimpleNamespace(
            identity="/c", client_id="c", user="", language="JAVA", version="5", remote_address="1.2.3.4:5",
            remote_host="1.2.3.4",
        )  # fmt: skip

    async def request(self, code: int, header: Any, body: bytes, *, timeout_ms: float) -> Any:
        (change,) = java_json.decode(body, Told).subscription_set or ()
        option = change.offset_option
        shown = (option.type.value, option.value) if option is not None and option.type is not None else None
        assert change.action is not None
        self.told.append({"action": change.action.value, "names": change.lite_topic_set, "option": shown})
        return SimpleNamespace(raise_for_code=lambda what: None)

    async def sync(self, action: int, *names: str, group: str = "Lite", topic: str = "Parent", **more: Any) -> Code:
        """The code of the answer."""
        asked = messages.SyncLiteSubscriptionRequest(
            action=cast(Any, action), topic={"name": topic}, group={"name": group}, lite_topic_set=names, **more
        )
        try:
            answer = await self.lite.sync(self.call, asked)
        except Refused as e:
            return e.code
        return Code(answer.status.code)


def test_what_is_asked_reaches_the_broker_or_is_refused_with_its_code() -> None:
    async def play() -> None:
        p = Played()
        assert await p.sync(0, "a", "a", "b", offset_option={"tail_n": 3}) == Code.OK
        # Options count for new ones alone; names that cannot be may still be taken away.
        assert await p.sync(1, "a/b", offset_option={"tail_n": 3}) == Code.OK
        assert await p.sync(2) == Code.OK
        assert p.told == [
            {"action": "PARTIAL_ADD", "names": ["a", "b"], "option": ("TAIL_N", 3)},
            {"action": "PARTIAL_REMOVE", "names": ["a/b"], "option": None},
            {"action": "COMPLETE_ADD", "names": [], "option": None},
        ]
        assert await p.sync(0, "a/b") == Code.ILLEGAL_LITE_TOPIC
        assert await p.sync(0, "a", group="Plain") == Code.ILLEGAL_TOPIC
        assert await p.sync(0, "a", topic="Other") == Code.ILLEGAL_TOPIC
        assert await p.sync(0, "a", group="Nobody") == Code.ILLEGAL_CONSUMER_GROUP
        assert await p.sync(9, "a") == Code.BAD_REQUEST
        assert await p.sync(0, "a", offset_option={}) == Code.BAD_REQUEST
        assert await p.sync(2, *map(str, range(302))) == Code.OK
        assert await p.sync(2, *map(str, range(303))) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert len(p.told) == 4

    asyncio.run(play())


def test_new_subscriptions_of_a_second_are_bounded_and_others_are_not() -> None:
    async def play() -> list[Code]:
        p = Played(lite_subscriptions_per_s_max=0)
        return [await p.sync(0, "a"), await p.sync(1, "a")]

    assert asyncio.run(play()) == [Code.TOO_MANY_REQUESTS, Code.OK]


def test_a_client_is_told_of_what_it_lost_and_brokers_of_a_client_that_went() -> None:
    async def play() -> tuple[list[Any], list[dict[str, Any]]]:
        p, sent = Played(), asyncio.Queue[Any]()
        await p.sync(0, "a")
        (client,) = p.clients.all()
        assert (client.lite_parent, client.settings.client_type) == ("Parent", ClientType.LITE_PUSH_CONSUMER)
        stream: Any = SimpleNamespace(send=sent.put)
        client.streams.append(stream)
        for client_id in ("c", "gone"):
            header = NotifyUnsubscribeLiteHeader(lite_topic="a", group="Lite", client_id=client_id)
            request: Any = SimpleNamespace(ext=header)
            assert p.lite.unsubscribed(cast(Any, None), request, b"") is None
        command = await sent.get()
        await asyncio.sleep(0)
        assert sent.empty()
        await p.lite.gone(client)
        return [command.notify_unsubscribe_lite_command.lite_topic], p.told[1:]

    assert asyncio.run(play()) == (["a"], [{"action": "COMPLETE_REMOVE", "names": [], "option": None}])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=70) | st.sampled_from(["a" * 64, "a" * 65, "a\n", "é", "-_9Z"]))
def test_a_name_is_taken_or_refused(name: str) -> None:
    good = 0 < len(name) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    if good:
        check_lite_topic(name, 64)
        return
    with pytest.raises(Refused) as refused:
        check_lite_topic(name, 64)
    assert refused.value.code == Code.ILLEGAL_LITE_TOPIC
