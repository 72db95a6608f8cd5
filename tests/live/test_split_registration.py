"""A broker of many topics registers them in parts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, create, name_server, run, until
from tests.live.test_namesrv_routes import route

from rocketspark.broker.operations import registration as registration_loop
from rocketspark.broker.operations.registration import Registration
from rocketspark.namesrv import handlers as namesrv
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import TopicHeader
from rocketspark.protocol.headers.namesrv import DeleteTopicHeader
from rocketspark.protocol.json.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketspark.transport.peer import Peer


@pytest.mark.shows("splitRegistrationSize: a broker of many topics registers in parts, each under a version of its own")
@pytest.mark.parametrize("split", [True, False])
def test_a_broker_of_many_topics_registers_in_parts(
    split: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its settings, or because no frame holds so many. What a part changes counts at the next registration."""
    monkeypatch.setattr(registration_loop, "TOPICS_IN_REQUEST", 1000 if split else 7)
    parts: list[TopicConfigTable] = []
    taken = namesrv.NameServerHandlers._registered

    def registered(self: Any, peer: Peer, request: Any, body: RegisterBrokerBody) -> Any:
        parts.append(body.topic_config_serialize_wrapper)
        return taken(self, peer, request, body)

    monkeypatch.setattr(namesrv.NameServerHandlers, "_registered", registered)

    async def main() -> None:
        async with name_server() as names:
            many = {"namesrv_addresses": names.address, "split_registration": split, "split_registration_topics": 7}
            async with broker(tmp_path, **many) as server, connected(names.address) as peer:
                server._topics.put_all([TopicConfig(topic_name=f"t{n}") for n in range(40)])
                await server._registration.settled()
                parts.clear()
                for perm in (6, 4):
                    # Without a change of the version, which would tell of it alone.
                    server._topics.table["t38"].perm = server._topics.table["t3"].perm = perm
                    server._registration.again()
                    whole = -(-len(server._topics.table) // 7)
                    await until(lambda whole=whole: len(parts) >= whole)  # type: ignore[misc]
                    assert [len(part.topic_config_table) for part in parts[:-1]] == [7] * (whole - 1)
                    assert {name for part in parts for name in part.topic_config_table} == set(server._topics.table)
                    version = server._topics.version
                    counters = [version.counter - n for n in reversed(range(whole))]
                    assert [part.data_version.counter for part in parts] == counters
                    for topic in ("t3", "t38"):
                        found = await route(peer, topic)
                        assert found is not None
                        assert [queues.perm for queues in found.queues] == [perm]
                    live = names.registry.version_of("DefaultCluster", server.address, 0)
                    assert live == version
                    parts.clear()

    run(main())


@pytest.mark.shows("a change of many topics at once is told in parts: no frame holds 100,000 of them")
def test_many_changed_topics_are_told_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The permission of the broker changes that of all: a NameServer heard of it 30 s later where a frame was full."""
    monkeypatch.setattr(registration_loop, "SMALL_ROWS", 3)
    monkeypatch.setattr(registration_loop, "TOPICS_IN_REQUEST", 7)
    parts: list[TopicConfigTable] = []
    taken = namesrv.NameServerHandlers._registered

    def registered(self: Any, peer: Peer, request: Any, body: RegisterBrokerBody) -> Any:
        parts.append(body.topic_config_serialize_wrapper)
        return taken(self, peer, request, body)

    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(names.address) as peer,
            connected(server.address) as operator,
        ):
            server._topics.put_all([TopicConfig(topic_name=f"t{n}") for n in range(40)])
            await server._registration.settled()
            monkeypatch.setattr(namesrv.NameServerHandlers, "_registered", registered)
            for perm in (4, 6):
                changed = await operator.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=%d" % perm)
                assert changed.code == 0
                await server._registration.settled()
                assert {len(part.topic_config_table) for part in parts[:-1]} == {7}
                assert {name for part in parts for name in part.topic_config_table} == set(server._topics.table)
                parts.clear()
                for topic in ("t0", "t3", "t39"):
                    found = await route(peer, topic)
                    assert found is not None
                    assert [queues.perm for queues in found.queues] == [perm]

    run(main())


def test_a_topic_that_is_deleted_comes_back_by_no_registration_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who deletes it at the broker, and then at the NameServer, had it back there, for good."""
    made, asked, on_its_way = asyncio.Event(), asyncio.Event(), asyncio.Event()
    body, settled = Registration._body, Registration.settled

    async def slowly(self: Registration, *part: Any) -> Any:
        found = await body(self, *part)
        made.set()
        await on_its_way.wait()
        return found

    async def waited(self: Registration) -> None:
        asked.set()
        await settled(self)

    monkeypatch.setattr(Registration, "settled", waited)
    arrived: list[bool] = []
    taken = namesrv.NameServerHandlers._registered

    def registered(self: Any, peer: Peer, request: Any, body: RegisterBrokerBody) -> Any:
        found = yield from taken(self, peer, request, body)
        if on_its_way.is_set() and "T" in body.topic_config_serialize_wrapper.topic_config_table:
            arrived.append(True)
        return found

    monkeypatch.setattr(namesrv.NameServerHandlers, "_registered", registered)

    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(names.address) as names_peer,
            connected(server.address) as peer,
        ):
            await create(peer, "T")
            asked.clear()
            monkeypatch.setattr(Registration, "_body", slowly)
            server._registration.again()
            await made.wait()
            deleting = asyncio.create_task(peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="T")))
            await until(lambda: asked.is_set() or deleting.done())
            if not deleting.done():
                on_its_way.set()
            assert (await deleting).code == 0
            deletion = DeleteTopicHeader(topic="T")
            (await names_peer.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, deletion)).raise_for_code("deletion")
            on_its_way.set()
            await until(lambda: arrived)
            assert await route(names_peer, "T") is None

    run(main())


@pytest.mark.shows("a topic that any user deletes is gone from the NameServers, also if one could not be told at once")
@pytest.mark.parametrize("failing", ["forget_topic", "register"])
def test_a_nameserver_that_was_not_told_of_a_deletion_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as at_names,
        ):
            for topic in ("one", "two"):
                await create(peer, topic, 1)
            asked = list[object]()

            def fails(of: object, *others: object) -> None:
                asked.append(of)
                raise OSError("no such disk")

            with monkeypatch.context() as patched:
                patched.setattr(names.registry, failing, fails)
                for topic in ("one", "two"):
                    header = TopicHeader(topic=topic)
                    (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).raise_for_code("delete")
                await until(lambda: len(asked) >= 2)
            assert await route(at_names, "one") is not None
            server._registration.again()
            await until(lambda: not server._registration._to_forget[names.address])
            assert [await route(at_names, topic) for topic in ("one", "two")] == [None, None]

    run(main())
