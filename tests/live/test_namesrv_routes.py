"""A NameServer on its socket: brokers come and go, routes follow at once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import TOPIC, broker, connected, create, name_server, run, send, sent, until
from tests.support.patience import LIMIT_S, in_time
from tests.support.ports import free_ports
from tests.unit.protocol.json.registrations import encode_compressed

from rocketspark.broker.operations import registration as registration_loop
from rocketspark.client import AsyncProducer
from rocketspark.errors import ConfigError, ConnectionLost, FrameError
from rocketspark.model.route import TopicRoute
from rocketspark.namesrv import handlers as namesrv
from rocketspark.namesrv import registry
from rocketspark.namesrv.server import NameServer
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json import registration as deflated
from rocketspark.protocol.json.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("the NameServer's requests and settings", "100,000 topics, groups or offsets")


async def route_reply(peer: Peer, topic: str = TOPIC) -> Reply:
    return await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic))


async def route(peer: Peer, topic: str = TOPIC) -> TopicRoute | None:
    reply = await route_reply(peer, topic)
    return None if reply.code == 17 else bodies.decode_route(topic, reply.raise_for_code("route").body)


async def gone(peer: Peer, topic: str = TOPIC) -> None:
    end = time.monotonic() + LIMIT_S
    while await route(peer, topic) is not None:
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def topics(peer: Peer) -> list[str]:
    reply = (await peer.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).raise_for_code("topics")
    return java_json.decode(reply.body, bodies.TopicList).topic_list


def registration(version: int = 1, **queues: int) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            topic_config_table={
                name: TopicConfig(topic_name=name, read_queue_nums=n, write_queue_nums=n)
                for name, n in (queues or {TOPIC: 4, "Second": 1}).items()
            },
            data_version=DataVersion(counter=version),
        )
    )


async def register(peer: Peer, data: bytes | None = None, **changes: Any) -> Reply:
    data = bodies.encode(registration()) if data is None else data
    values: dict[str, Any] = {
        "broker_name": "a",
        "address": "127.0.0.1:1",
        "cluster": "c",
        "ha_address": "127.0.0.1:2",
        "broker_id": 0,
        "crc": zlib.crc32(data) & 0x7FFFFFFF,
    }
    return await peer.request(RequestCode.REGISTER_BROKER, headers.RegisterBrokerHeader(**values | changes), data)


def test_a_broker_s_topics_are_routed_while_it_lives(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as asker:
            reply = await route_reply(asker)
            assert (reply.code, reply.remark) == (17, f"No topic route info in name server for the topic: {TOPIC}")
            async with (
                broker(tmp_path, namesrv_addresses=names.address) as server,
                connected(server.address) as peer,
            ):
                # Who has the reply to a creation finds the route.
                await create(peer, queues=3)
                found = await route(asker)
                assert found is not None
                assert [(b.cluster, b.broker_name, b.addresses) for b in found.brokers] == [
                    ("DefaultCluster", "broker-a", {0: server.address})
                ]
                (queues,) = found.queues
                assert (queues.read_queue_count, queues.write_queue_count, queues.perm) == (3, 3, 6)
                # A topic made by its first message is routed soon.
                await sent(peer, b"x", "Auto", default_topic_queue_count=2)
                end = time.monotonic() + LIMIT_S
                while (auto := await route(asker, "Auto")) is None:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.005)
                assert auto.queues[0].write_queue_count == 2
                assert {TOPIC, "Auto", "TBW102", "broker-a", "DefaultCluster"} <= set(await topics(asker))
                by_cluster = await asker.request(
                    RequestCode.GET_TOPICS_BY_CLUSTER, headers.ClusterHeader(cluster="DefaultCluster")
                )
                assert TOPIC in java_json.decode(by_cluster.body, bodies.TopicList).topic_list
                info = await asker.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert b'"brokerAddrs":{0:"%b"}' % server.address.encode() in info.body
                found_info = java_json.decode(info.body, bodies.ClusterInfo)
                assert found_info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
            # It leaves when it stops.
            assert await route(asker) is None
            assert await topics(asker) == []

    run(main())


def test_a_broker_whose_connection_ends_is_dropped_at_once_and_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as asker:
            async with connected(names.address) as registrar:
                (await register(registrar)).raise_for_code("register")
                assert await route(asker) is not None
            await gone(asker)
            async with broker(tmp_path, namesrv_addresses=names.address) as server:
                assert await route(asker, "TBW102") is not None
                for connection in list(names._server.peers):
                    if connection.remote_port != asker._transport.get_extra_info("sockname")[1]:  # type: ignore[union-attr]
                        connection.abort()
                await gone(asker, "TBW102")
                # Its keeper sees the loss and registers anew.
                await until(lambda: names.registry.route("TBW102"))
                assert names.registry.members("broker-a") is not None
                assert server.address in names.registry.members("broker-a").broker_addrs.values()  # type: ignore[union-attr]

    run(main())


def test_long_lists_of_topics_are_made_in_turns_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million topics kept a NameServer up to half a second by one question."""
    asked = [
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "none"}),
        (RequestCode.GET_UNIT_TOPIC_LIST, {}),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
    ]

    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer, connected(names.address) as other:
            body = registration(**{f"t{number}": number % 5 for number in range(50)})
            for number, config in enumerate(body.topic_config_serialize_wrapper.topic_config_table.values()):
                config.topic_sys_flag = number % 4
            (await register(other, bodies.encode(body))).raise_for_code("register")
            whole = [(await peer.request(code, ext)).body for code, ext in asked]
            monkeypatch.setattr(namesrv, "TOPICS_IN_TURN", 3)
            assert await asyncio.gather(*(found(peer, code, ext) for code, ext in asked * 3)) == whole * 3
            counts = [len(java_json.decode(text, bodies.TopicList).topic_list) for text in whole]
            assert (counts[0], counts[1], counts[2]) == (50, 50, 0)
            assert 0 < counts[5] < counts[4] < 50
            assert counts[3] > 0

    async def found(peer: Peer, code: RequestCode, ext: dict[str, str] | None) -> bytes:
        return (await peer.request(code, ext)).raise_for_code("list").body

    run(main())


def test_a_silent_broker_is_dropped_when_its_own_time_is_over(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with name_server(scan_s=0.02) as names, connected(names.address) as peer:
            (await register(peer, expiry_ms=1200)).raise_for_code("register")
            (await register(peer, broker_name="b", address="127.0.0.1:5")).raise_for_code("register")
            header = headers.BrokerHeader(broker_name="a", address="127.0.0.1:1", cluster="c")
            end = time.monotonic() + 1.6
            while time.monotonic() < end:
                peer.oneway(RequestCode.BROKER_HEARTBEAT, header)
                await asyncio.sleep(0.03)
            found = await route(peer)
            assert found is not None
            assert {b.broker_name for b in found.brokers} == {"a", "b"}
            await until(lambda: names.registry.members("a") is None)
            found = await route(peer)
            assert found is not None
            assert [b.broker_name for b in found.brokers] == ["b"]

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_a_broker_that_starts_before_its_name_server_registers_when_it_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports()
        async with broker(tmp_path, namesrv_addresses=f"127.0.0.1:{port}") as server, connected(server.address) as peer:
            assert await sent(peer) == 0
            late = NameServer(port=port)
            await late.start()
            await until(lambda: late.registry.route(TOPIC))
            await late.close()

    run(main())


def test_several_name_servers_hear_of_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server() as one, name_server() as two:
            both = f"{one.address};{two.address}"
            async with broker(tmp_path, namesrv_addresses=both) as server, connected(server.address) as peer:
                await create(peer)
                assert one.registry.route(TOPIC)
                assert two.registry.route(TOPIC)
                # One that is gone holds up nothing.
                await one.close()
                started = time.monotonic()
                await create(peer, "Other")
                assert time.monotonic() - started < 50
                await until(lambda: two.registry.route("Other"))
                delete = headers.TopicHeader(topic="Other")
                (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, delete)).raise_for_code("delete")
            assert two.registry.route(TOPIC) is None

    run(main())


@pytest.mark.parametrize(
    ("version", "standard", "quoted"), [(513, False, True), (401, False, True), (400, False, False), (0, True, True)]
)
def test_older_clients_get_bare_broker_ids(version: int, standard: bool, quoted: bool) -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            (await register(peer)).raise_for_code("register")
            reader, writer = await asyncio.open_connection(*names.address.split(":"))
            ext = headers.to_ext(headers.RouteHeader(topic=TOPIC, standard_json=standard))
            writer.write(frames.encode(Frame(code=105, version=version, ext=ext)))
            head = await reader.readexactly(4)
            answer = frames.decode(head + await reader.readexactly(int.from_bytes(head, "big")))
            assert (b'{"0":"127.0.0.1:1"}' in answer.body) == quoted
            assert (b'{0:"127.0.0.1:1"}' in answer.body) != quoted
            writer.close()

    run(main())


def test_registrations_compressed_plain_and_broken() -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            deflated = encode_compressed(registration(1, T=5, U=1))
            (await register(peer, deflated, compressed=True)).raise_for_code("register")
            assert queue_count(await route(peer)) == 5
            reply = await register(peer, bodies.encode(registration(2, T=6)), crc=1)
            assert (reply.code, reply.remark) == (1, "crc32 not match")
            assert queue_count(await route(peer)) == 5
            # No checksum is no objection; no body is a sign of life.
            (await register(peer, bodies.encode(registration(3, T=7)), crc=0)).raise_for_code("register")
            (await register(peer, bodies.encode(registration(4, T=8)), crc=None)).raise_for_code("register")
            (await register(peer, b"")).raise_for_code("register")
            assert queue_count(await route(peer)) == 8
            for data, compressed in ((b"nope", False), (b"nope", True), (b'{"a":' * 5000, False), (deflated[:9], True)):
                reply = await register(peer, data, compressed=compressed)
                assert reply.code == 1
                assert (reply.remark or "").startswith("ProtocolError: ")
            assert queue_count(await route(peer)) == 8

    run(main())


@pytest.mark.shows("mended: a registration's static mappings are dropped by the NameServer")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_static_topic_s_mapping_reaches_clients(compressed: bool) -> None:
    """As a Java broker registers it: numbers that are keys without quotes."""

    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            data = (
                b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,'
                b'"timestamp":1},"topicConfigTable":{"S":{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":'
                b'"SINGLE_TAG","topicName":"S","topicSysFlag":0,"writeQueueNums":2},"%(topic)b":{"perm":6,'
                b'"readQueueNums":3,"topicName":"%(topic)b","writeQueueNums":3}},"topicQueueMappingInfoMap":{"S":'
                b'{"bname":"a","currIdMap":{0:0,2:1},"dirty":false,"epoch":5,"scope":"__global__","topic":"S",'
                b'"totalQueues":4}}}}'
            ) % {b"topic": TOPIC.encode()}
            if compressed:
                data = encode_compressed(java_json.decode(data, RegisterBrokerBody))
            (await register(peer, data, compressed=compressed)).raise_for_code("register")
            answer = json.loads((await route_reply(peer, "S")).body)
            assert answer["topicQueueMappingByBroker"] == {
                "a": {
                    "topic": "S",
                    "scope": "__global__",
                    "totalQueues": 4,
                    "bname": "a",
                    "epoch": 5,
                    "dirty": False,
                    "currIdMap": {"0": 0, "2": 1},
                }
            }
            led = {queue.queue_id: leader for queue, leader in (await route(peer, "S")).leaders.items()}
            assert led == {0: "a", 1: "__syslo__none__", 2: "a", 3: "__syslo__none__"}
            assert b"topicQueueMappingByBroker" not in (await route_reply(peer, TOPIC)).body
            assert queue_count(await route(peer, TOPIC)) == 3

    run(main())


@pytest.mark.shows("mended: deflated registrations inflate up to 256 MiB")
def test_a_large_registration_is_read_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    read = namesrv._registration

    def noted(header: Any, body: bytes) -> Any:
        # Clusters of other tests may run on beside this.
        if header.broker_name == "a":
            threads.append(threading.current_thread() is threading.main_thread())
        return read(header, body)

    monkeypatch.setattr(namesrv, "_registration", noted)
    monkeypatch.setattr(namesrv, "TOPICS_MAX", 3000)
    monkeypatch.setattr(deflated, "TOPICS_MAX", 3000)

    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            (await register(peer)).raise_for_code("register")
            many = bodies.encode(registration(2, **{f"T{i}": 4 for i in range(3000)}))
            (await register(peer, many)).raise_for_code("register")
            assert len(await topics(peer)) == 3002
            more = registration(3, **{f"T{i}": 4 for i in range(3001)})
            for data, compressed in ((bodies.encode(more), False), (encode_compressed(more), True)):
                reply = await register(peer, data, compressed=compressed)
                assert reply.code == 1
                assert "3001 topics in one registration" in (reply.remark or "")

    run(main())
    assert threads == [True, False, False, False]


def test_others_are_answered_while_a_large_registration_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TOPICS_IN_TURN", 1)

    async def main() -> None:
        async with (
            name_server() as names,
            connected(names.address) as peer,
            connected(names.address) as other,
            connected(names.address) as third,
        ):
            (await register(other, address="127.0.0.1:9", broker_name="b")).raise_for_code("register")
            many = registration(2, **{f"T{i}": 4 for i in range(3000)}, Z=4)
            large = asyncio.create_task(register(peer, bodies.encode(many)))
            while not names.registry.route("T0"):
                await asyncio.sleep(0)
            # A newer one of the same broker, which comes meanwhile, is taken behind it.
            newer = asyncio.create_task(register(third, bodies.encode(registration(3, Z=8, T2999=8))))
            answered = 0
            while names.registry.route("Z") is None:
                assert await route(other, TOPIC) is not None
                answered += 1
            assert answered >= 50
            for registered in (large, newer):
                (await registered).raise_for_code("register")
            assert [queue_count(await route(other, name)) for name in ("T0", "T2999", "Z")] == [4, 8, 8]

    run(main())


def test_a_broker_that_goes_while_its_registration_is_taken_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TOPICS_IN_TURN", 1)

    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer, connected(names.address) as other:
            many = registration(2, **{f"T{i}": 4 for i in range(3000)})
            large = asyncio.create_task(register(peer, bodies.encode(many)))
            while not names.registry.route("T0"):
                await asyncio.sleep(0)
            peer.close()
            with pytest.raises(ConnectionLost):
                await large
            await gone(other, "T0")
            # The next one has the lock, so that the one before is over.
            (await register(other, bodies.encode(registration(1, **{f"U{i}": 4 for i in range(1000)}))))
            assert sorted(await topics(other)) == sorted(f"U{i}" for i in range(1000))

    run(main())


def queue_count(found: TopicRoute | None) -> int:
    return found.queues[0].read_queue_count if found else 0


def test_a_slave_is_told_its_master() -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer, connected(names.address) as other:
            answer = (await register(peer)).raise_for_code("register").header(headers.RegisterBrokerReply)
            assert answer == headers.RegisterBrokerReply()
            reply = await register(other, broker_id=1, address="127.0.0.1:11")
            answer = reply.raise_for_code("register").header(headers.RegisterBrokerReply)
            assert answer == headers.RegisterBrokerReply(ha_address="127.0.0.1:2", master_address="127.0.0.1:1")
            reply = await peer.request(
                RequestCode.GET_BROKER_MEMBER_GROUP, headers.MemberGroupHeader(cluster="c", broker_name="a")
            )
            assert reply.body == (
                b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:1",1:"127.0.0.1:11"},"brokerName":"a","cluster":"c"}}'
            )

    run(main())


def test_a_zone_is_a_name_as_it_stands_in_every_route() -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            for zone, code in ((None, 0), ("", 0), ("z" * 255, 0), ("z" * 256, 29), ("z\n", 29)):
                assert (await register(peer, zone=zone)).code == code

    run(main())


def test_the_data_version_tells_whether_to_register_again() -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            header = headers.BrokerHeader(broker_name="a", address="127.0.0.1:1", cluster="c")

            async def changed(version: int) -> tuple[bool, bytes]:
                body = bodies.encode(DataVersion(counter=version))
                reply = await peer.request(RequestCode.QUERY_DATA_VERSION, header, body)
                return reply.raise_for_code("version").header(headers.DataVersionReply).changed, reply.body

            assert await changed(1) == (True, b"")
            (await register(peer)).raise_for_code("register")
            assert await changed(1) == (False, bodies.encode(DataVersion(counter=1)))
            assert (await changed(2))[0]
            (await peer.request(RequestCode.UNREGISTER_BROKER, header)).raise_for_code("leave")
            assert await route(peer) is None
            assert await changed(1) == (True, b"")

    run(main())


def test_an_operator_s_requests() -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            (await register(peer, bodies.encode(registration(1, T=4, U=1)))).raise_for_code("register")

            async def wipe(code: RequestCode) -> dict[str, str]:
                reply = await peer.request(code, headers.BrokerNameHeader(broker_name="a"))
                found: dict[str, str] = json.loads(bytes(reply.raise_for_code("wipe").ext))
                return found

            assert await wipe(RequestCode.WIPE_WRITE_PERM_OF_BROKER) == {"wipeTopicCount": "2"}
            found = await route(peer)
            assert found is not None
            assert (found.queues[0].perm, found.write_queues(), len(found.read_queues())) == (4, (), 4)
            assert await wipe(RequestCode.ADD_WRITE_PERM_OF_BROKER) == {"addTopicCount": "2"}
            delete = headers.TopicHeader(topic=TOPIC)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, delete)).raise_for_code("delete")
            assert await topics(peer) == ["U"]

    run(main())


@pytest.mark.shows("order table in the NameServer's reply to a registration")
def test_key_values_are_kept_and_order_settings_told(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"

    async def put(peer: Peer, namespace: str, key: str, value: str) -> None:
        header = headers.KvHeader(namespace=namespace, key=key, value=value)
        (await peer.request(RequestCode.PUT_KV_CONFIG, header)).raise_for_code("put")

    async def get(peer: Peer, namespace: str, key: str) -> str | None:
        reply = await peer.request(RequestCode.GET_KV_CONFIG, headers.KvHeader(namespace=namespace, key=key))
        if reply.code == 22:
            assert reply.remark == f"No config item, Namespace: {namespace} Key: {key}"
            return None
        assert reply.body == b""
        return reply.raise_for_code("get").header(headers.ValueReply).value

    async def main() -> None:
        async with name_server(kv_path=path, order_topics=True) as names, connected(names.address) as peer:
            assert await get(peer, "n", "k") is None
            await put(peer, "n", "k", "v ü")
            await put(peer, "ORDER_TOPIC_CONFIG", TOPIC, "a:4")
            assert await get(peer, "n", "k") == "v ü"
            reply = await register(peer)
            assert java_json.decode(reply.body, bodies.KvTable).table == {TOPIC: "a:4"}
            found = await route(peer)
            assert found is not None
            assert found.order_conf == "a:4"
            for namespace, wanted in (("n", {"k": "v ü"}), ("zzz", None)):
                header = headers.KvHeader(namespace=namespace)
                reply = await peer.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
                assert reply.code == (0 if wanted else 22)
                assert not wanted or json.loads(reply.body) == {"table": wanted}
        async with name_server(kv_path=path) as names, connected(names.address) as peer:
            assert await get(peer, "n", "k") == "v ü"
            (await register(peer)).raise_for_code("register")
            found = await route(peer)
            assert found is not None
            assert found.order_conf is None, "told only if that is on"
            (await peer.request(RequestCode.DELETE_KV_CONFIG, headers.KvHeader(namespace="n", key="k"))).raise_for_code(
                ""
            )
            assert await get(peer, "n", "k") is None

    run(main())


def test_a_port_that_is_taken() -> None:
    async def main() -> None:
        async with name_server() as names:
            port = int(names.address.split(":")[1])
            with pytest.raises(ConfigError, match=f"port {port} on 127.* is in use"):
                await NameServer(port=port).start()

    run(main())


def test_a_topic_made_by_a_send_has_its_route_when_the_send_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as asking,
        ):
            for number in range(20):
                topic = f"new-{number}"
                assert (await send(peer, b"first", topic)).code == 0
                answer = await asking.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic))
                assert answer.code == 0

    run(main())


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError(7), FrameError("too long"), OSError(5, "odd")], ids=repr)
def test_a_registration_that_fails_in_a_way_nobody_thought_of_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(registration_loop, "RETRY_S", 0.01)
    register_once = registration_loop.Registration._register
    errors = [error] * 3

    async def failing(self: Any, *arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return await register_once(self, *arguments)

    monkeypatch.setattr(registration_loop.Registration, "_register", failing)

    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
            connected(names.address) as other,
        ):
            await until(lambda: not errors)
            await until(lambda: names.registry.topics())
            # Those who create a topic while it fails wait for no longer than they must.
            errors.append(error)
            await create(peer, "created")
            await create(peer, "again")
            while await route(other, "again") is None:
                await asyncio.sleep(0)

    run(main())


# -- zones


async def zoned(peer: Peer, **fields: str) -> tuple[set[str], set[str]]:
    """The names of brokers and of queues in a route that was asked for with these fields."""
    header = headers.RouteHeader(topic=TOPIC, standard_json=True, **fields)
    reply = (await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)).raise_for_code("route")
    found = json.loads(reply.body)
    return {b["brokerName"] for b in found["brokerDatas"]}, {q["brokerName"] for q in found["queueDatas"]}


async def register_in_zones(peer: Peer) -> None:
    """Masters in the zones east and west and in none, and a slave without a master in west."""
    brokers = [("e", 0, "East"), ("w", 0, "west"), ("n", 0, None), ("s", 1, "west")]
    for number, (name, broker_id, zone) in enumerate(brokers, 1):
        changes = {"broker_name": name, "broker_id": broker_id, "zone": zone, "acting_master": False}
        (await register(peer, address=f"127.0.0.1:{number}", **changes)).raise_for_code("register")


async def check_zones(peer: Peer) -> None:
    """What RocketMQ's ZoneRouteRPCHook does: the names of other zones go, but for those without a master."""
    everything = {"e", "w", "n", "s"}
    assert await zoned(peer) == (everything, everything)
    for fields, left in [
        ({"zone": "east", "zone_mode": "true"}, {"e", "s"}),
        ({"zone": "WEST", "zone_mode": "TRUE"}, {"w", "s"}),
        ({"zone": "north", "zone_mode": "true"}, {"s"}),
        ({"zone": "east", "zone_mode": "yes"}, everything),
        ({"zone": "east"}, everything),
        ({"zone": "  ", "zone_mode": "true"}, everything),
    ]:
        assert await zoned(peer, **fields) == (left, left), fields


@pytest.mark.shows("zones of the NameServer")
def test_a_client_may_want_the_brokers_of_its_zone_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with name_server() as names, connected(names.address) as peer:
            await register_in_zones(peer)
            await check_zones(peer)
            reply = await route_reply(peer)
            assert [b.get("zoneName") for b in json.loads(reply.body)["brokerDatas"]] == ["East", "west", None, "west"]
        # As brokers and clients of ours tell it: by the environment, as RocketMQ's do, a broker by its setting, too.
        monkeypatch.setenv("ROCKETMQ_ZONE", "east")
        async with name_server() as names, connected(names.address) as peer:
            near, far = tmp_path / "near", tmp_path / "far"
            async with (
                broker(near, namesrv_addresses=names.address, broker_name="near") as first,
                broker(far, namesrv_addresses=names.address, broker_name="far", zone="west") as second,
            ):
                for server in (first, second):
                    async with connected(server.address) as own:
                        await create(own)
                for mode, left in (("false", {"near", "far"}), ("true", {"near"})):
                    monkeypatch.setenv("ROCKETMQ_ZONE_MODE", mode)
                    async with AsyncProducer(group="P", namesrv=names.address) as out:
                        assert {q.broker_name for q in await out.queues(TOPIC)} == left
