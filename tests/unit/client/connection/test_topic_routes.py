"""The route cache against NameServers that fail, forget and come back."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.fake import Fake, FakeNamesrv, in_loop

from rocketspark.client import AsyncProducer
from rocketspark.client.connection.topic_routes import RouteCache, namesrv_addresses
from rocketspark.errors import BrokerNotFound, ConfigError, NotSent, RouteNotFound, ServerError
from rocketspark.model import BrokerData, MessageQueue, TopicRoute
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "routes: cache, one fetch at a time, default topic, several NameServers, HTTP look-up, on from the cache",
    "the client follows its brokers: a former master's refusals (2, 14) have the route fetched, as lost "
    "connections do; sends wait while a master is elected; ids that swap",
)

DEAD = "127.0.0.1:1"


@in_loop
async def test_one_fetch_for_many_who_ask() -> None:
    async with Fake(t=2) as fake:
        routes = RouteCache([fake.namesrv])
        found = await asyncio.gather(*(routes.get("t") for _ in range(50)))
        assert fake.names.fetches["t"] == 1
        assert all(f is found[0] for f in found)
        await routes.get("t")
        assert fake.names.fetches["t"] == 1
        await routes.refresh("t")
        assert fake.names.fetches["t"] == 2
        await routes.close()


@pytest.mark.shows("client: several NameServers")
@in_loop
async def test_the_next_nameserver_takes_over() -> None:
    async with Fake(t=1) as fake:
        routes = RouteCache([DEAD, fake.namesrv])
        assert (await routes.get("t")).topic == "t"
        await routes.close()


@in_loop
async def test_every_nameserver_is_told_though_one_is_down_or_refuses() -> None:
    async with Fake(t=1) as fake:
        routes, told = RouteCache([DEAD, fake.namesrv]), list[str]()

        async def tell(peer: Peer) -> None:
            told.append(peer.address)

        with pytest.raises(NotSent, match=DEAD):
            await routes.ask_all(tell)
        assert told == [fake.namesrv]
        routes.set_addresses([fake.namesrv, fake.namesrv])

        async def refuse(peer: Peer) -> None:
            told.append(peer.address)
            raise ServerError(16, "no", address=peer.address)

        with pytest.raises(ServerError, match="no"):
            await routes.ask_all(refuse)
        assert told == [fake.namesrv] * 3
        await routes.close()


@in_loop
async def test_a_silent_nameserver_takes_only_its_share_of_the_time() -> None:
    async with Fake(t=1) as fake:
        silent = await FakeNamesrv().start()
        silent.delay_s = 60
        routes = RouteCache([silent.address, fake.namesrv], timeout_ms=2000)
        started_s = time.monotonic()
        await routes.get("t")
        assert 0.9 < time.monotonic() - started_s < 50
        await routes.close()
        await silent.server.close()


@in_loop
async def test_no_nameserver_is_a_clear_error_soon() -> None:
    routes = RouteCache([DEAD])
    started_s = time.monotonic()
    with pytest.raises(NotSent, match=r"no NameServer answers .*127\.0\.0\.1:1"):
        await routes.get("t")
    assert time.monotonic() - started_s < 50
    await routes.close()


@in_loop
async def test_unknown_topic_takes_the_default_topics_brokers_on_few_queues() -> None:
    async with Fake(2, TBW102=8) as fake:
        fake.names.perms["TBW102"] = 7
        routes = RouteCache([fake.namesrv])
        queues = await routes.find_write_queues("new")
        assert queues == tuple(MessageQueue("new", b, i) for b in ("broker-a", "broker-b") for i in range(4))
        # Once the topic exists, its own route counts.
        fake.names.topics["new"] = {"broker-a": 6}
        await routes.refresh_all()
        assert len(routes.write_queues("new")) == 6
        await routes.close()


@in_loop
async def test_default_topic_with_fewer_queues() -> None:
    async with Fake(TBW102=2) as fake:
        routes = RouteCache([fake.namesrv])
        assert len(await routes.find_write_queues("new")) == 2
        await routes.close()


@in_loop
async def test_route_not_found() -> None:
    async with Fake(t=1) as fake:
        routes = RouteCache([fake.namesrv])
        with pytest.raises(RouteNotFound, match="'missing'"):
            await routes.get("missing")
        with pytest.raises(RouteNotFound, match="'missing'"):
            await routes.find_write_queues("missing")
        fake.names.perms["t"] = 4
        with pytest.raises(RouteNotFound, match="no broker takes messages"):
            await routes.find_write_queues("t")
        await routes.close()


@in_loop
async def test_what_is_known_stays_in_use_without_nameservers() -> None:
    async with Fake(t=2) as fake:
        routes = RouteCache([fake.namesrv], timeout_ms=300)
        await routes.find_write_queues("t")
        await fake.names.server.close()
        await routes.refresh_all()
        assert len(await routes.find_write_queues("t", refresh=True)) == 2
        assert routes.master("broker-a") == fake.broker.address
        assert await routes.find_readable(MessageQueue("t", "broker-a", 0)) == fake.broker.address
        await routes.close()


@in_loop
async def test_brokers_that_left_are_forgotten() -> None:
    async with Fake(2, t=1) as fake:
        routes = RouteCache([fake.namesrv])
        await routes.get("t")
        fake.names.topics["t"] = {"broker-b": 1}
        await routes.refresh_all()
        assert routes.broker_addresses(slaves=True) == [fake.brokers[1].address]
        assert routes.master("broker-a") is None
        await routes.close()


@pytest.mark.shows(
    "mended: a master elected: a topic that no NameServer knew, or knows no more, kept the client at the former master"
)
@pytest.mark.parametrize("is_known_first", [True, False])
@in_loop
async def test_a_route_that_cannot_be_had_anew_keeps_no_old_master(is_known_first: bool) -> None:
    async with Fake(TBW102=8) as fake:
        fake.names.perms["TBW102"] = 7
        routes = RouteCache([fake.namesrv])
        await routes.get("TBW102")
        if is_known_first:
            fake.names.topics["new"] = {"broker-a": 1}
        await routes.find_write_queues("new")
        fake.names.topics.pop("new", None)
        fake.names.addresses["broker-a"] = {0: "127.0.0.1:10999", 1: fake.brokers[0].address}
        await routes.refresh_all()
        assert routes.master("broker-a") == "127.0.0.1:10999"
        await routes.close()


def test_addresses_from_argument_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="ROCKETMQ_NAMESRV_ADDR"):
        namesrv_addresses(None)
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert namesrv_addresses(None) == ["a:1", "b:2"]
    monkeypatch.setenv("ROCKETMQ_NAMESRV_ADDR", "c:3")
    assert namesrv_addresses(None) == ["c:3"]
    assert namesrv_addresses("d:4;e:5") == ["d:4", "e:5"]
    with pytest.raises(ConfigError, match="no address"):
        namesrv_addresses("localhost")


@pytest.mark.shows('mended: "dead;alive" NameServers: first sends at once raise NoNameServer')
@in_loop
async def test_each_of_many_asks_every_nameserver() -> None:
    async with Fake(**{f"t{i}": 1 for i in range(8)}) as fake:
        for turn in range(3):
            routes = RouteCache(["127.0.0.1:1", fake.namesrv, "127.0.0.1:2"])
            routes._turn = turn
            found = await asyncio.gather(*(routes.get(f"t{i}") for i in range(8)))
            assert [route.topic for route in found] == [f"t{i}" for i in range(8)]
            await routes.close()


def test_clients_spread_over_nameservers() -> None:
    routes = RouteCache([f"127.0.0.1:{port}" for port in range(1, 4)])
    turns = set()
    for _ in range(200):
        routes.spread()
        turns.add(routes._turn)
    assert turns == {0, 1, 2}


@in_loop
async def test_one_route_that_cannot_be_read_keeps_no_other_from_being_fetched() -> None:
    async with Fake(a=1, z=1) as fake:
        routes = RouteCache([fake.namesrv])
        await routes.get("a")
        await routes.get("z")
        fake.names.topics["a"]["broker-a"] = 1 << 20
        fake.names.topics["z"]["broker-a"] = 3
        await routes.refresh_all()
        assert (len(routes.write_queues("a")), len(routes.write_queues("z"))) == (1, 3)
        await routes.close()


@pytest.mark.shows("mended: a key changes its queue when a broker of an order topic is away")
@in_loop
async def test_a_set_order_holds_while_a_broker_is_away() -> None:
    async with Fake(2, t=2) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        route = await producer._routes.get("t")
        away = msgspec.structs.replace(
            route, brokers=route.brokers[:1], queues=route.queues[:1], order_conf="broker-a:2;broker-b:2"
        )

        async def fetch(peer: object, topic: str, **_: object) -> TopicRoute:
            return away

        producer._routes._brokers.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rocketspark.client.connection.topic_routes.client_api.fetch_route", fetch)
            await producer._routes.refresh("t")
            assert [q.broker_name for q in await producer.queues("t")] == ["broker-a"] * 2 + ["broker-b"] * 2
            # What goes anywhere goes to those that are there; a key keeps its queue.
            assert {(await producer.send("t", b"x")).queue.broker_name for _ in range(8)} == {"broker-a"}
            assert (await producer.send("t", b"x", sharding_key="x")).queue.broker_name == "broker-a"
            with pytest.raises(BrokerNotFound):
                await producer.send("t", b"x", sharding_key="order-1")


@given(st.dictionaries(st.integers(0, 6), st.integers(0, 3), max_size=4), st.integers(0, 7))
def test_whom_a_queue_is_read_from(ids: dict[int, int], wanted: int) -> None:
    """That member; of slaves the next one; the master; the lowest slave: whatever ids are there."""
    addresses = {number: f"host-{place}:{number}" for number, place in ids.items()}
    routes = RouteCache([DEAD])
    routes._learn(TopicRoute("t", (BrokerData("c", "b", addresses),), ()))
    order = [wanted, *([wanted + 1] if wanted else []), *sorted(addresses)]
    assert routes.readable("b", wanted) == next((addresses[n] for n in order if n in addresses), None)
    assert routes.master("b") == addresses.get(0)


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 2), min_size=1, max_size=3), max_size=8))
def test_each_change_of_a_brokers_addresses_is_told_once(steps: list[dict[int, int]]) -> None:
    told: list[tuple[dict[int, str] | None, dict[int, str]]] = []
    routes = RouteCache([DEAD])
    routes.changed = lambda before, after: told.append((before and before.addresses, after.addresses))
    expected, known = [], None
    for step in steps:
        addresses = {number: f"host-{place}" for number, place in step.items()}
        routes._learn(TopicRoute("t", (BrokerData("c", "b", addresses),), ()))
        if addresses != known:
            expected.append((known, addresses))
        known = addresses
    assert told == expected
