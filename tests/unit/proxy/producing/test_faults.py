"""Sends while brokers are away, silent, or their clients have gone."""

from __future__ import annotations

import base64
import socket
import time
from contextlib import ExitStack, suppress

import grpc
import pytest
from tests.unit.proxy.conftest import RawClient, running_proxy
from tests.unit.proxy.consuming.support import Consumer
from tests.unit.proxy.producing.sent_messages import message
from tests.unit.proxy.producing.support import COMMIT, end, half, ids, parsed, send, sent, wait_for

from rocketspark.admin.operations import Admin
from rocketspark.model import BrokerData
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.testing.cluster import run_cluster

pytestmark = pytest.mark.shows("sends while brokers are away or silent, or clients give up")


def test_a_broker_that_is_away_is_told_within_the_time_and_an_end_is_not_lost() -> None:
    with ExitStack() as away, ExitStack() as stack:
        cluster = away.enter_context(run_cluster())
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("TRANSACTION", queue_count=1, message_type="MIXED")
        proxy = stack.enter_context(running_proxy(cluster.namesrv))
        client = RawClient(proxy.address)
        sent(client, parsed(message(topic="TRANSACTION")))
        half(client, "open")
        away.close()
        began_s = time.monotonic()
        answer = send(client, parsed(message(topic="TRANSACTION")))
        assert answer.status.code == Code.PROXY_TIMEOUT
        assert "\n" not in answer.status.message
        assert end(client, "open", COMMIT) == Code.PROXY_TIMEOUT
        assert time.monotonic() - began_s < 30
        assert len(proxy.server.producing._data) == 1
        client.close()


async def nowhere(broker_name: str) -> str:
    raise Refused(Code.BAD_REQUEST, f"broker {broker_name!r} has no master that is known")


def test_of_two_brokers_the_one_that_answers_takes_all() -> None:
    with run_cluster(2) as cluster, running_proxy(cluster.namesrv) as proxy, socket.create_server(("", 0)) as nobody:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("NORMAL", queue_count=2)
        client = RawClient(proxy.address)
        sent(client, parsed(message(topic="NORMAL", messageId="first")))
        port = nobody.getsockname()[1]
        nobody.close()
        routes = proxy.server.brokers.routes

        async def lose() -> None:
            # Its route is as the NameServer told it, and nobody listens there any more.
            routes._brokers["broker-b"] = BrokerData("DefaultCluster", "broker-b", {0: f"127.0.0.1:{port}"})

        proxy.run(lose)
        for number in range(6):
            sent(client, parsed(message(topic="NORMAL", messageId=f"n{number}")))

        async def without_master() -> None:
            proxy.server.brokers._lost.clear()
            proxy.server.brokers._found.clear()
            routes._brokers["broker-b"] = BrokerData("DefaultCluster", "broker-b", {1: f"127.0.0.1:{port}"})
            proxy.server.brokers._find = nowhere  # type: ignore[method-assign]

        proxy.run(without_master)
        for number in range(6):
            sent(client, parsed(message(topic="NORMAL", messageId=f"m{number}")))
        client.close()


def test_a_broker_that_is_elsewhere_by_now_is_found_by_the_first_call() -> None:
    """Ends, recalls and acknowledgements have no second broker to go to, and clients do not repeat each of them."""
    with ExitStack() as stack, socket.create_server(("", 0)) as nobody:
        cluster = stack.enter_context(run_cluster(recall_enabled=True))
        proxy = stack.enter_context(running_proxy(cluster.namesrv))
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("TRANSACTION", queue_count=1, message_type="MIXED")
        client = RawClient(proxy.address)
        port = nobody.getsockname()[1]
        nobody.close()
        brokers = proxy.server.brokers

        async def move() -> None:
            await brokers._connections.close()
            brokers._connections = brokers.connections(brokers.requests)
            brokers._found["broker-a"] = f"127.0.0.1:{port}"

        half(client, "moved")
        consumer = Consumer(proxy.address, "moving", "TRANSACTION")
        sent(client, parsed(message(topic="TRANSACTION", messageId="first")))
        (got,) = consumer.receive()
        proxy.run(move)
        assert end(client, "moved", COMMIT) == Code.OK
        wait_for(proxy, "TRANSACTION", "moved")
        proxy.run(move)
        assert consumer.ack(got).status.code == Code.OK
        proxy.run(move)
        handle = base64.urlsafe_b64encode(b"v1 TRANSACTION broker-a %d id" % (time.time() * 1000 + 600_000)).decode()
        recall = messages.RecallMessageRequest(topic={"name": "TRANSACTION"}, recall_handle=handle)
        assert client.call("RecallMessage", recall).status.code == Code.OK
        assert not brokers._lost
        consumer.vanish()
        client.close()


def test_a_silent_broker_costs_two_seconds_and_harms_nobody_else() -> None:
    with run_cluster() as cluster, running_proxy(cluster.namesrv) as proxy, socket.create_server(("", 0)) as silent:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("NORMAL", queue_count=1)
        client = RawClient(proxy.address)
        sent(client, parsed(message(topic="NORMAL")))
        routes = proxy.server.brokers.routes
        known = routes._brokers["broker-a"]

        async def at(broker: BrokerData) -> None:
            routes._brokers["broker-a"] = broker

        port = silent.getsockname()[1]
        proxy.run(lambda: at(BrokerData("DefaultCluster", "broker-a", {0: f"127.0.0.1:{port}"})))
        with suppress(grpc.RpcError):
            # Who does not wait tells nothing about the broker to others.
            send(client, parsed(message(topic="NORMAL")), timeout_s=0.05)
        assert not proxy.server.producing.sends._avoided
        assert not proxy.server.brokers._lost
        answer = send(client, parsed(message(topic="NORMAL")))
        assert answer.status.code == Code.PROXY_TIMEOUT
        assert proxy.server.brokers._lost == {"broker-a"}
        proxy.run(lambda: at(known))
        sent(client, parsed(message(topic="NORMAL", messageId="after")))
        wait_for(proxy, "NORMAL", "after")
        client.close()


def test_sends_that_are_given_up_leave_nothing_behind() -> None:
    with run_cluster() as cluster, running_proxy(cluster.namesrv) as proxy:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("NORMAL", queue_count=1)
        client = RawClient(proxy.address)
        sent(client, parsed(message(topic="NORMAL")))
        for number in range(20):
            with suppress(grpc.RpcError):
                send(client, parsed(message(topic="NORMAL", messageId=f"n{number}")), timeout_s=0.0005 * (number % 8))
        sent(client, parsed(message(topic="NORMAL", messageId="after")))
        found = ids(proxy, "NORMAL")
        assert found.count("after") == 1
        assert max(found.count(one) for one in found) == 1
        deadline_s = time.monotonic() + 60
        while proxy.server.service.at_work:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        client.close()
