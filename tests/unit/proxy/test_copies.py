"""What the proxy keeps of what brokers and NameServers said: how old it may be, and when it is asked for again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.java.apache import ask
from tests.unit.proxy.conftest import RawClient, RunningProxy
from tests.unit.proxy.consuming.support import make_topic
from tests.unit.proxy.consuming.test_consuming import wait_until
from tests.unit.proxy.producing.support import Producer

from rocketspark.errors import NoReply, NotSent, RouteNotFound
from rocketspark.model import BrokerData, TopicRoute
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.bodies import BrokerDataBody, ClusterInfo
from rocketspark.proxy import brokers
from rocketspark.proxy.brokers import AGAIN_S, AHEAD, Brokers, _Cache
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.testing.cluster import Cluster

pytestmark = pytest.mark.shows("What the proxy copies and for how long")

LIFE_S = 20.0


class Source:
    """Where a copy comes from: what it answers or raises, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.answer, self.asked = 100.0, 1, 0
        self.error: Exception | None = None
        monkeypatch.setattr(brokers, "machine", SimpleNamespace(monotonic=lambda: self.now_s))
        self.copy: _Cache[int] = _Cache(self.fetch, LIFE_S)

    async def fetch(self, name: str) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.answer


def test_a_copy_is_never_older_than_its_life_and_who_uses_it_often_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        source = Source(monkeypatch)
        assert (await source.copy.get("a"), source.asked) == (1, 1)
        source.answer = 2
        source.now_s += LIFE_S * AHEAD - 0.1
        assert (await source.copy.get("a"), source.copy.known("a"), source.asked) == (1, 1, 1)
        source.now_s += 0.2
        assert source.copy.known("a") == 1, "and asked for in the background"
        await asyncio.sleep(0.01)
        assert (source.copy.known("a"), source.asked) == (2, 2)
        # Nobody used it for long.
        source.answer = 3
        source.now_s += LIFE_S
        assert source.copy.known("a") is None
        assert await source.copy.get("a") == 3

    asyncio.run(main())


def test_while_nobody_answers_the_old_copy_holds_and_nobody_waits_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        source = Source(monkeypatch)
        await source.copy.get("a")
        source.error = NoReply("away")
        source.now_s += LIFE_S + 1
        assert (await source.copy.get("a"), source.asked) == (1, 2)
        assert (source.copy.known("a"), source.asked) == (1, 2)
        for asked in (3, 4):
            source.now_s += AGAIN_S + 0.1
            assert source.copy.known("a") == 1
            await asyncio.sleep(0.01)
            assert source.asked == asked
        source.error, source.answer = None, 2
        source.now_s += AGAIN_S + 0.1
        source.copy.known("a")
        await asyncio.sleep(0.01)
        assert source.copy.known("a") == 2
        # What is said not to be there is not.
        source.error = RouteNotFound("gone")
        source.copy.expire("a")
        with pytest.raises(RouteNotFound):
            await source.copy.get("a")
        assert source.copy.old("a") is None

    asyncio.run(main())


def test_a_topic_that_takes_other_messages_now_takes_them_now_and_the_old_ones_no_more(
    cluster: Cluster, proxy: RunningProxy, client: RawClient
) -> None:
    """Whoever sent seldom got the type of long ago once more."""
    make_topic(cluster.brokers[0], "changed")
    known = proxy.server.brokers._topic_types

    def send(number: int, **system: Any) -> int:
        system |= {"message_id": f"id{number}", "message_type": 2 if system else 1}
        request = messages.SendMessageRequest()
        request.messages.add(topic={"name": "changed"}, body=b"x", system_properties=system)
        return int(client.call("SendMessage", request).status.code)

    assert send(1) == Code.OK
    make_topic(cluster.brokers[0], "changed", kind="FIFO")
    # In doubt it is asked for, once a second.
    wait_until(lambda: send(2, message_group="g") == Code.OK)
    found = known._found["changed"]
    make_topic(cluster.brokers[0], "changed")
    known._found["changed"] = (found[0] - proxy.server.settings.route_refresh_ms / 1000, found[1])
    assert send(3, message_group="g") == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_the_address_of_a_master_holds_until_it_is_silent_or_a_route_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        known, asked = Brokers(ProxySettings(namesrv="127.0.0.1:1")), [0]

        async def info(_: str) -> ClusterInfo:
            asked[0] += 1
            return ClusterInfo(broker_addr_table={"b": BrokerDataBody(broker_addrs={0: f"b:{asked[0]}"})})

        async def refresh(topic: str) -> TopicRoute:
            return TopicRoute(topic, brokers=(BrokerData("c", "b", {0: "b:8"}),), queues=())

        monkeypatch.setattr(known, "_infos", _Cache(info, 0))
        for _ in range(2):
            assert await known.master("b") == "b:1"
        known.note_lost("b")
        for _ in range(2):
            assert await known.master("b") == "b:2"
        monkeypatch.setattr(known.routes, "refresh", refresh)
        monkeypatch.setattr(known.routes, "master", lambda name: "b:8")
        await known.route("T")
        assert (await known.master("b"), asked) == ("b:8", [2])
        await known.close()

    asyncio.run(main())


def test_a_broker_that_is_away_is_told_from_one_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        known = Brokers(ProxySettings(namesrv="127.0.0.1:1"))
        table = {"b": BrokerDataBody(broker_addrs={0: "b:1"})}

        async def info(_: str) -> ClusterInfo:
            return ClusterInfo(broker_addr_table=dict(table))

        monkeypatch.setattr(known, "_infos", _Cache(info, 0))
        assert await known.master("b") == "b:1"
        # It was started again, or the NameServer was: clients try again where the proxy is what they wait for.
        table.clear()
        known.note_lost("b")
        with pytest.raises(NotSent, match="broker 'b' has no master"):
            await known.master("b")
        with pytest.raises(Refused, match="broker 'other' has no master"):
            await known.master("other")
        await known.close()

    asyncio.run(main())


def test_brokers_ask_about_transactions_of_a_topic_once_its_type_is_known(
    cluster: Cluster, proxy: RunningProxy
) -> None:
    """It is told with what else is, every 20 s."""
    server, topic = proxy.server, "halves"
    groups, known = server.producing._groups, server.brokers._topic_types
    assert server.settings.heartbeat_interval_ms == 20_000

    def is_told() -> bool:
        fields = {"producerGroup": topic}
        return ask(cluster.brokers[0], RequestCode.GET_PRODUCER_CONNECTION_LIST, ext_fields=fields).code == 0

    make_topic(cluster.brokers[0], topic)
    producer = Producer(proxy.address, "halves-producer", topic)
    wait_until(lambda: bool(server.clients.producers_of(topic)))
    proxy.run(groups.tell)
    assert not is_told()
    make_topic(cluster.brokers[0], topic, kind="TRANSACTION")
    found = known._found[topic]
    known._found[topic] = (found[0] - server.settings.route_refresh_ms / 1000, found[1])
    proxy.run(groups.tell)
    assert is_told()
    producer.close()
