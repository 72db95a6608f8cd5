"""Clients before RocketMQ 5 through the proxy's port: they know no other address."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.scene import Inbox
from tests.live.support import connected
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RunningProxy, running_proxy
from tests.unit.proxy.test_guard import USERS, locked, locked_proxy

from rocketspark import Producer, PushConsumer
from rocketspark.admin.operations import Admin
from rocketspark.client.connection.credentials import Signer
from rocketspark.client.hooks import HookSet
from rocketspark.errors import ConnectionLost
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows(
    "remoting through the port: routes that name the proxy, requests to the named broker, heartbeats, waiting "
    "pulls, what brokers ask of clients, locked clusters"
)

__all__ = ["locked", "locked_proxy"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2) as running, Admin(running.namesrv) as operations:
        for topic in ("relayed", "shared", "quiet", "ordered"):
            operations.create_topic(topic, queue_count=4)
        yield running


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv) as running:
        yield running


def test_what_is_sent_through_it_is_consumed_through_it(cluster: Cluster, proxy: RunningProxy) -> None:
    inbox = Inbox()
    consumer = PushConsumer(proxy.address, "through", consume_from="first")
    consumer.subscribe("relayed")
    consumer.listen(inbox)
    with Producer(proxy.address) as producer:
        sent = {producer.send("relayed", b"%d" % n).queue.broker_name for n in range(16)}
        assert sent == {"broker-a", "broker-b"}
        with consumer:
            got = inbox.wait_for(16)
            # A pull that waits at the broker is answered as soon as there is something.
            producer.send("relayed", b"late")
            assert sorted(int(m.body) for m in got) == list(range(16))
            assert inbox.wait_for(17)[-1].body == b"late"


def test_members_share_the_queues_and_hear_of_each_other(cluster: Cluster, proxy: RunningProxy) -> None:
    boxes = [Inbox(), Inbox()]
    consumers = []
    for number, box in enumerate(boxes):
        consumer = PushConsumer(proxy.address, "sharing", consume_from="first", instance_name=f"m{number}")
        consumer.subscribe("shared")
        consumer.listen(box)
        consumers.append(consumer)
    with Producer(proxy.address) as producer:
        producer.send("shared", b"0")
        with consumers[0], consumers[1]:
            for _ in range(400):
                producer.send("shared", b"x")
                if all(box.received for box in boxes):
                    break
            else:
                pytest.fail("one member got nothing")


def test_queues_in_order_are_locked_through_it_at_both_brokers(cluster: Cluster, proxy: RunningProxy) -> None:
    """No client says in the header of a lock which broker it is for."""
    inbox = Inbox()
    consumer = PushConsumer(proxy.address, "in-order", consume_from="first", ordered=True)
    consumer.subscribe("ordered")
    consumer.listen(inbox)
    with Producer(proxy.address) as producer, consumer:
        sent = {producer.send("ordered", b"%d" % n).queue for n in range(16)}
        assert len(sent) == 8
        assert sorted(int(m.body) for m in inbox.wait_for(16)) == list(range(16))


@pytest.mark.parametrize("broker", ["broker-a", "broker-b"])
def test_a_lock_as_java_s_client_asks_for_it(cluster: Cluster, proxy: RunningProxy, broker: str) -> None:
    queue = {"topic": "ordered", "brokerName": broker, "queueId": 1}

    async def run() -> None:
        async with connected(proxy.address) as one, connected(proxy.address) as other:

            async def ask(peer: Peer, code: RequestCode, *queues: Any) -> tuple[int, list[Any]]:
                body = {"clientId": f"c{id(peer)}", "consumerGroup": "by-hand", "mqSet": queues}
                found = await peer.request(code, {}, json.dumps(body).encode())
                return found.code, json.loads(found.body or b"{}").get("lockOKMQSet", [])

            assert await ask(one, RequestCode.LOCK_BATCH_MQ, queue) == (0, [queue])
            assert await ask(other, RequestCode.LOCK_BATCH_MQ, queue) == (0, [])
            assert await ask(one, RequestCode.UNLOCK_BATCH_MQ, queue) == (0, [])
            assert await ask(other, RequestCode.LOCK_BATCH_MQ, queue) == (0, [queue])
            assert await ask(one, RequestCode.LOCK_BATCH_MQ) == (0, [])
            assert (await ask(one, RequestCode.LOCK_BATCH_MQ, queue | {"brokerName": "nobody"}))[0] == 1
            assert (await one.request(RequestCode.LOCK_BATCH_MQ, {}, b"[")).code == 1

    asyncio.run(run())


@pytest.mark.parametrize("listens", [True, False])
def test_members_are_told_by_another_broker_where_the_first_is_silent_or_away(
    cluster: Cluster, proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    """A NameServer goes on naming a broker whose machine is gone for two minutes."""
    brokers = proxy.server.brokers
    with socket.create_server(("127.0.0.1", 0)) as other:
        gone = f"127.0.0.1:{other.getsockname()[1]}"
        if not listens:
            other.close()

        async def masters() -> list[str]:
            return [gone, *cluster.brokers]

        async def run() -> None:
            async with connected(proxy.address) as peer:
                found = await peer.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "members"})
                assert found.code == 0, found
                (member,) = json.loads(found.body)["consumerIdList"]
                assert member.partition("@")[2].startswith("one")

        consumer = PushConsumer(cluster.namesrv, "members", instance_name="one")
        consumer.subscribe("relayed")
        consumer.listen(Inbox())
        with consumer:
            monkeypatch.setattr(brokers, "masters", masters)
            asyncio.run(run())


def test_routes_name_the_proxy_alone(cluster: Cluster, proxy: RunningProxy) -> None:
    async def run() -> None:
        async with connected(proxy.address) as peer:
            ext = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
            found = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
            brokers = json.loads(found.body)["brokerDatas"]
            assert sorted(b["brokerName"] for b in brokers) == ["broker-a", "broker-b"]
            assert [b["brokerAddrs"] for b in brokers] == [{"0": proxy.address}] * 2
            missing = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
            assert missing.code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "ext", "answer", "remark"),
    [
        (RequestCode.PULL_MESSAGE, {"topic": "t"}, 15, "Request doesn't have field bname"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "t", "bname": "broker-a"}, 15, "Request doesn't have field bname"),
        (RequestCode.GET_MAX_OFFSET, {"bname": "nobody", "topic": "t", "queueId": "0"}, 1, "nobody"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {}, 3, " request type 17 not supported"),
        (RequestCode.GET_BROKER_CONFIG, {}, 3, " request type 26 not supported"),
    ],
)
def test_what_is_refused(proxy: RunningProxy, code: int, ext: dict[str, str], answer: int, remark: str) -> None:
    async def run() -> None:
        async with connected(proxy.address) as peer:
            found = await peer.request(code, ext)
            assert found.code == answer
            assert remark in (found.remark or "")

    asyncio.run(run())


def test_a_broker_asks_a_client_on_its_own_connection(cluster: Cluster, proxy: RunningProxy) -> None:
    def tell(peer: Any, request: Any, body: bytes) -> bytes:
        return reply(request.opaque, body=b"as it is")

    async def run() -> None:
        routes = Routes()
        routes.add(RequestCode.GET_CONSUMER_RUNNING_INFO, tell)
        client = await dial(proxy.address, routes)
        consumer = {
            "groupName": "asked",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": "shared", "subString": "*"}],
        }
        beat = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
        assert (await client.request(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())).code == 0
        async with connected(cluster.brokers[0]) as operator:
            ext = {"consumerGroup": "asked", "clientId": "c1", "jstackEnable": "false"}
            found = await operator.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert (found.code, found.body) == (0, b"as it is")
        client.close()

    asyncio.run(run())


def client_address(peer: Any) -> str:
    host, port = peer._transport.get_extra_info("sockname")[:2]
    return f"{host}:{port}"


def test_a_client_that_is_gone_is_no_member_although_a_pull_of_its_waits(cluster: Cluster, proxy: RunningProxy) -> None:
    async def run() -> None:
        client = await dial(proxy.address)
        consumer = {"groupName": "leaver", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        consumer |= {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
        consumer_set = [consumer | {"subscriptionDataSet": [{"topic": "quiet", "subString": "*"}]}]
        beat = {"clientID": "c9", "producerDataSet": [], "consumerDataSet": consumer_set}
        await client.request(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        ext = {"consumerGroup": "leaver", "topic": "quiet", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
        ext |= {"sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0"}
        waiting = asyncio.ensure_future(client.request(RequestCode.PULL_MESSAGE, ext | {"bname": "broker-a"}))
        async with connected(cluster.brokers[0]) as operator:

            async def members() -> int:
                listed = await operator.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "leaver"})
                return len(json.loads(listed.body)["consumerIdList"]) if listed.code == 0 else 0

            assert await members() == 1
            client.close()
            async with asyncio.timeout(3):
                while await members():
                    await asyncio.sleep(0.01)
        with pytest.raises(ConnectionLost):
            await waiting

    asyncio.run(run())


def test_what_stands_behind_a_client_ends_with_it(proxy: RunningProxy) -> None:
    async def run() -> None:
        client = await dial(proxy.address)
        await client.request(RequestCode.GET_MAX_OFFSET, {"bname": "broker-a", "topic": "TBW102", "queueId": "0"})
        [mine] = [p for p in proxy.server.remoting._behind_of if p.address == client_address(client)]
        client.close()
        async with asyncio.timeout(LIMIT_S):
            while mine in proxy.server.remoting._behind_of:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def signer(user: str, secret: str) -> HookSet:
    return HookSet([Signer(user, secret)])


@pytest.mark.parametrize(
    ("user", "secret", "code"),
    [
        ("shop", USERS["shop"], 0),
        ("shop", "wrong", ResponseCode.NO_PERMISSION),
        ("billing", USERS["billing"], ResponseCode.NO_PERMISSION),
        ("", "", ResponseCode.NO_PERMISSION),
    ],
)
def test_a_locked_cluster_is_locked_here_too(locked_proxy: RunningProxy, user: str, secret: str, code: int) -> None:
    async def run() -> None:
        client = await dial(locked_proxy.address, hooks=signer(user, secret) if user else None)
        ext = {"a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        ext |= {"i": "", "j": "0", "k": "false", "m": "false", "n": "broker-a"}
        found = await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"x")
        assert found.code == code, found.remark
        client.close()

    asyncio.run(run())


def test_who_names_a_message_by_its_place_is_known_by_his_own_address(
    locked_proxy: RunningProxy, locked: Cluster
) -> None:
    """By rules that name addresses, and by the topic that the message is of."""
    with Admin(locked.namesrv, **locked.client_options) as operations:
        operations.create_user("far", "far-secret")
        operations.create_acl("far", ["Topic:orders", "Group:billing"], ["Sub"], source_ips=["127.0.0.2"])
        operations.put_group("billing")
    assert locked_proxy.server.access is not None
    locked_proxy.run(locked_proxy.server.access.tables._fetch)
    with Producer(locked.namesrv, **locked.client_options) as producer:
        places = [parse_offset_message_id(producer.send(t, b"x").offset_message_id)[2] for t in ("orders", "bills")]

    async def sent_back(host: str, place: int) -> int:
        client = Peer()
        client.hooks = signer("far", "far-secret")
        port = int(locked_proxy.address.rpartition(":")[2])
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, "127.0.0.1", port, local_addr=(host, 0))
        ext = {"offset": str(place), "group": "billing", "delayLevel": "1", "bname": "broker-a"}
        found = await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        client.close()
        return found.code

    async def run() -> None:
        assert await sent_back("127.0.0.2", places[0]) == 0
        assert await sent_back("127.0.0.2", places[1]) == ResponseCode.NO_PERMISSION
        assert await sent_back("127.0.0.1", places[0]) == ResponseCode.NO_PERMISSION

    asyncio.run(run())


def test_a_rule_about_the_cluster_by_its_name_counts_here_too(locked_proxy: RunningProxy, locked: Cluster) -> None:
    with Admin(locked.namesrv, **locked.client_options) as operations:
        operations.create_user("almost", "almost-secret")
        operations.create_acl("almost", ["*"], ["All"])
        operations.create_acl("almost", ["Cluster:DefaultCluster"], ["All"], decision="Deny")
    assert locked_proxy.server.access is not None
    locked_proxy.run(locked_proxy.server.access.tables._fetch)

    async def pulled(topic: str) -> int:
        client = await dial(locked_proxy.address, hooks=signer("almost", "almost-secret"))
        ext = {"consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
        ext |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1"}
        found = await client.request(RequestCode.PULL_MESSAGE, ext | {"subscription": "*", "bname": "broker-a"})
        client.close()
        return found.code

    # Where delayed messages of all topics wait.
    assert asyncio.run(pulled("SCHEDULE_TOPIC_XXXX")) == ResponseCode.NO_PERMISSION
    assert asyncio.run(pulled("orders")) != ResponseCode.NO_PERMISSION
