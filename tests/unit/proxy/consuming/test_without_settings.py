"""Clients whose settings a proxy does not have: it was started again, they came from another one, or they told late.

What brokers know of a group holds for them; the rest stands in their calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.java.apache import ask
from tests.unit.proxy.conftest import RunningProxy, running_proxy
from tests.unit.proxy.consuming.support import PUSH, SIMPLE, Consumer, bodies, make_group
from tests.unit.proxy.consuming.test_consuming import QUICK, World, dead_letters, wait_until
from tests.unit.proxy.test_bounds import call_of

from rocketspark import Message
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.proxy.clients import Clients
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.testing.cluster import Cluster

pytestmark = pytest.mark.shows(
    "Clients whose settings a proxy does not know: order, retries, renewals, members at brokers",
)


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv, {"grace_s": 1.0}, **QUICK) as running:
        yield running


@pytest.fixture
def world(cluster: Cluster, proxy: RunningProxy) -> Iterator[World]:
    made = World(cluster, proxy)
    yield made
    made.close()


def unknown(world: World, kind: int = SIMPLE) -> Consumer:
    made = Consumer(world.proxy.address, world.group, world.topic, kind, tells=False)
    world.opened.append(made)
    return made


def members(world: World) -> bytes:
    """Return what the broker says of the group's members."""
    fields = {"consumerGroup": world.group}
    reply = ask(world.cluster.brokers[0], RequestCode.GET_CONSUMER_CONNECTION_LIST, ext_fields=fields)
    return b"" if reply.code else reply.body


def test_order_and_retries_are_its_groups(world: World) -> None:
    make_group(world.cluster.brokers[0], world.group, consume_message_orderly=True, retry_max_times=1)
    world.send(*[Message(topic=world.topic, body=b"%d" % n, sharding_key="k") for n in range(2)])
    consumer = unknown(world)
    assert [m.body for m in consumer.receive(invisible_ms=1000)] == [b"0", b"1"]
    assert consumer.receive(polling_ms=200) == [], "the queue is held back while a batch is out"
    again = consumer.receive(invisible_ms=200)
    assert [(m.body, m.system_properties.delivery_attempt) for m in again] == [(b"0", 2), (b"1", 2)]
    assert consumer.receive(polling_ms=1500) == [], "they had their attempts"
    wait_until(lambda: dead_letters(world) == [b"0", b"1"])
    assert consumer.beat().code == Code.OK


@pytest.mark.shows("retries below 0, retry policies that are none")
def test_a_group_with_fewer_than_no_retries_gets_each_message_once(world: World) -> None:
    make_group(world.cluster.brokers[0], world.group, retry_max_times=-1)
    world.send(b"1")
    assert bodies(world.consumer().receive(invisible_ms=200)) == [b"1"]
    wait_until(lambda: not world.opened[0].receive(polling_ms=500) and dead_letters(world) == [b"1"])


@pytest.mark.shows("handles renewed; a client that ends or vanishes frees its push messages")
def test_a_client_whose_connections_break_again_and_again_has_the_whole_grace_each_time() -> None:
    async def main() -> None:
        clients, call = Clients(60), call_of(1)
        request = messages.ReceiveMessageRequest(group={"name": "G"}, message_queue={"topic": {"name": "T"}})
        client, before = clients.receives(call, request), None
        for back in (lambda: clients.receives(call, request), lambda: clients.lives(call)):
            clients.connection_ended(call.remote_address)
            assert client.ending is not None
            assert client.ending is not before
            # Of the official clients that of Java is back last, 1.4 s later.
            assert client.ending.when() - asyncio.get_running_loop().time() > 3 * 1.4
            before = client.ending
            assert back() is client
            assert (client.ending, before.cancelled()) == (None, True)

    asyncio.run(main())


def test_what_a_push_consumer_has_is_renewed_and_freed_with_its_connection(world: World) -> None:
    world.send(b"1")
    push, other = unknown(world, PUSH), world.consumer()
    (got,) = push.receive(auto_renew=True)
    handle = ReceiptHandle.decode(got.system_properties.receipt_handle)
    wait_until(lambda: time.time() * 1000 > handle.next_visible_ms + 200)
    assert other.receive(polling_ms=500) == []
    push.vanish()
    assert bodies(other.receive(polling_ms=10_000)) == [b"1"]
    wait_until(lambda: world.proxy.server.clients.get(f"/{push.raw.metadata['x-mq-client-id']}") is None)


def test_a_push_consumer_that_ends_its_stream_keeps_what_it_has_until_its_connection_ends(world: World) -> None:
    world.send(b"1")
    push, other = world.consumer(PUSH), world.consumer()
    assert bodies(push.receive(auto_renew=True)) == [b"1"]
    push.end_stream()
    assert other.receive(polling_ms=2500) == []
    world.send(b"2")
    assert bodies(push.receive(auto_renew=True)) == [b"2"]
    push.vanish()
    assert bodies(other.receive_all(2, polling_ms=10_000)) == [b"1", b"2"]


@pytest.mark.shows("a stream cut by something between")
def test_a_stream_that_something_between_cuts_takes_nothing_from_a_consumer_that_goes_on(world: World) -> None:
    """Load balancers reset streams that are silent, and keep one connection for many clients."""
    world.send(b"1")
    push, other = world.consumer(PUSH), world.consumer()
    assert bodies(push.receive(auto_renew=True)) == [b"1"]
    client = world.proxy.server.clients.get(f"/{push.raw.metadata['x-mq-client-id']}")
    assert client is not None
    held = push.receiving(auto_renew=True, polling_ms=4000)
    wait_until(lambda: client.receiving == 1)
    push.stream.cancel()
    wait_until(lambda: client.streams == [])
    assert other.receive(polling_ms=2500) == []
    assert [answer.WhichOneof("content") for answer in held] == ["status", "delivery_timestamp"]
    # Behind such a connection it is lost with what it waits for.
    held = push.receiving(auto_renew=True, polling_ms=15_000)
    wait_until(lambda: client.receiving == 1)
    held.cancel()
    assert bodies(other.receive(polling_ms=10_000)) == [b"1"]
    assert world.proxy.server.clients.get(client.identity) is None
    # As is one that waits for nothing.
    silent = world.consumer(PUSH)
    identity = f"/{silent.raw.metadata['x-mq-client-id']}"
    assert world.proxy.server.clients.get(identity) is not None
    silent.stream.cancel()
    wait_until(lambda: world.proxy.server.clients.get(identity) is None)


def test_what_calls_say_is_told_to_brokers_until_the_settings_come(world: World) -> None:
    consumer = unknown(world, PUSH)
    assert consumer.beat().code == Code.OK
    client = world.proxy.server.clients.get(f"/{consumer.raw.metadata['x-mq-client-id']}")
    assert client is not None
    assert (client.group, client.is_push_consumer, client.has_told) == (world.group, True, False)
    consumer.receive(polling_ms=200, expression="a || b", auto_renew=True)
    wait_until(lambda: b'"a || b"' in members(world))
    consumer.tell()
    wait_until(lambda: b'"a || b"' not in members(world))
    assert (client.has_told, len(client.settings.subscription.subscriptions)) == (True, 1)
    consumer.vanish()
    wait_until(lambda: members(world) == b"")


def test_a_groups_settings_that_are_changed_hold_for_receives_within_the_refresh(world: World) -> None:
    """Nothing is told by telemetry meanwhile."""
    broker, server = world.cluster.brokers[0], world.proxy.server
    make_group(broker, world.group)
    world.send(b"1")
    consumer = world.consumer()
    assert bodies(consumer.receive(invisible_ms=500)) == [b"1"]

    def changes(**values: Any) -> None:
        begun = time.monotonic()
        make_group(broker, world.group, **values)
        name, value = next(iter(values.items()))
        wait_until(lambda: getattr(world.proxy.run(lambda: server.brokers.group(world.group)), name) == value)
        assert time.monotonic() - begun < QUICK["route_refresh_ms"] / 1000 + 1

    changes(retry_max_times=0)
    assert consumer.receive(polling_ms=2500) == []
    wait_until(lambda: dead_letters(world) == [b"1"])
    changes(consume_message_orderly=True)
    world.send(*[Message(topic=world.topic, body=b"%d" % n, sharding_key="k") for n in range(2)])
    assert len(consumer.receive(count=1)) == 1
    assert consumer.receive(polling_ms=200) == [], "the queue is held back"
    assert consumer.settings.backoff_policy.max_attempts == 17


def test_as_many_clients_are_kept_as_are_allowed(world: World) -> None:
    clients = world.proxy.server.clients
    before = clients.kept.most
    clients.kept.most = clients.kept.total
    try:
        late = unknown(world)
        assert late.beat().code == Code.TOO_MANY_REQUESTS
        assert late.answers()[0].status.code == Code.TOO_MANY_REQUESTS
    finally:
        clients.kept.most = before
    assert late.beat().code == Code.OK
