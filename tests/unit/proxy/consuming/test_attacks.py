"""What one client asks costs the others nothing: odd and huge values, brokers that are away, readers that stall."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
import pytest
from tests.java.apache import ask
from tests.support.patience import LIMIT_S
from tests.unit.proxy.consuming.support import PUSH, Consumer, bodies, make_group, make_topic
from tests.unit.proxy.consuming.test_consuming import World, proxy, wait_until, world
from tests.unit.proxy.stalled import Stalled

from rocketspark.errors import NotSent, RouteNotFound
from rocketspark.model import BrokerData, TopicRoute
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.bodies import ClusterInfo
from rocketspark.proxy import call as call_module
from rocketspark.proxy import service as service_module
from rocketspark.proxy.call import Call
from rocketspark.proxy.consuming.receive import _filter
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "attacks: huge texts, made-up handles, brokers that are dead or silent beside others",
    "a reader that stalls, or reads nothing at all",
)

__all__ = ["proxy", "world"]

POOL = [("grpc.use_local_subchannel_pool", 1)]
HUGE = "x" * (2 << 20)


def huge_attempt(consumer: Consumer, handle: str) -> Any:
    return consumer.answers(attempt_id=HUGE)[0].status


def huge_message_id(consumer: Consumer, handle: str) -> Any:
    made = messages.ForwardMessageToDeadLetterQueueRequest(
        group={"name": consumer.group}, topic={"name": consumer.topic}, receipt_handle=handle, message_id=HUGE
    )
    return consumer.raw.call("ForwardMessageToDeadLetterQueue", made).status


def huge_transaction_id(consumer: Consumer, handle: str) -> Any:
    made = messages.EndTransactionRequest(topic={"name": consumer.topic}, transaction_id=HUGE, message_id="m")
    return consumer.raw.call("EndTransaction", made).status


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (huge_attempt, Code.BAD_REQUEST),
        (huge_message_id, Code.INTERNAL_SERVER_ERROR),
        (huge_transaction_id, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_a_huge_text_of_one_client_ends_no_receive_of_another(world: World, ask: Any, code: Code) -> None:
    """All clients share one connection to a broker, which ends it after a header that is too large."""
    world.send(b"1")
    consumer = world.consumer()
    (got,) = consumer.receive()
    other = world.consumer()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.receive, polling_ms=20_000)
        wait_until(lambda: world.proxy.server.service.at_work > 0)
        status = ask(consumer, got.system_properties.receipt_handle)
        assert status.code == code, status
        assert len(status.message) < 1000
        world.send(b"2")
        assert bodies(waiting.result(30)) == [b"2"]


def test_a_reader_that_stalls_keeps_nothing_from_others(world: World) -> None:
    """What it does not read in its time is given to others, and then its call is over."""
    make_topic(world.cluster.brokers[0], world.topic, 1)
    world.send(*(b"%02d" % number + os.urandom(7000) for number in range(32)))
    stalled, other = world.consumer(), world.consumer()
    narrow = [("grpc.http2.lookahead_bytes", 16384), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    stalled.raw.channel.close()
    stalled.raw.channel = grpc.insecure_channel(world.proxy.address, options=narrow)
    call = stalled.receiving(invisible_ms=3000, timeout_s=LIMIT_S)
    assert next(call).status.code == Code.OK
    assert world.proxy.server.service.at_work == 1
    found = other.receive_all(32, polling_ms=20_000)
    assert [body[:2] for body in bodies(found)] == [b"%02d" % number for number in range(32)]
    # It counts until gRPC has done with it, though nobody works on it.
    wait_until(lambda: len(world.proxy.server.service.work._answered) == 1)
    assert 0 < len([answer for answer in call if answer.WhichOneof("content") == "message"]) < 32
    wait_until(lambda: world.proxy.server.service.at_work == 0)


def test_what_a_receive_brought_that_was_cut_is_not_kept_for_its_client_that_goes_on(world: World) -> None:
    """The clients of Java and Python drop what came of a receive that failed; renewed it would be away for hours."""
    world.send(*(b"%02d" % number + os.urandom(7000) for number in range(32)))
    push, other = world.consumer(PUSH), world.consumer()
    own, narrow = push.raw.channel, [("grpc.http2.lookahead_bytes", 16384), ("grpc.http2.bdp_probe", 0)]
    push.raw.channel = grpc.insecure_channel(world.proxy.address, options=[*narrow, *POOL])
    call = push.receiving(auto_renew=True, timeout_s=LIMIT_S)
    assert [next(call).WhichOneof("content") for _ in range(2)] == ["status", "message"]
    renewals = world.proxy.server.consuming.renewals
    assert renewals.count > 0
    call.cancel()
    push.raw.channel.close()
    push.raw.channel = own
    assert push.beat().code == Code.OK
    assert len(other.receive_all(32, polling_ms=20_000)) == 32
    wait_until(lambda: renewals.count == 0)


def test_clients_that_read_nothing_at_all_keep_no_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many calls as the proxy takes could wait for them for ever."""
    monkeypatch.setattr(call_module, "WRITE_S", 0.2)
    monkeypatch.setattr(service_module, "STATUS_S", 0.2)
    # What still waits for them then ends with their connection.
    monkeypatch.setattr(service_module, "UNREAD_S", 0.2)
    service = world.proxy.server.service
    begun: list[None] = []
    begin = service._begin

    def counted(*given: Any) -> Call:
        begun.append(None)
        return begin(*given)

    monkeypatch.setattr(service, "_begin", counted)
    stalled = Stalled(world.proxy.address)
    with stalled.socket:
        for _ in range(50):
            stalled.call(f"/{messages.SERVICE}/ReceiveMessage", b"")
        wait_until(lambda: len(begun) == 50)
        wait_until(lambda: service.at_work == 0)


def test_filters_of_clients_are_kept_in_bounded_memory() -> None:
    def filters(count: int) -> None:
        for number in range(count):
            _filter("T", f"{number}" + "x" * 60_000, 1)

    filters(1)
    tracemalloc.start()
    filters(100)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 20


def test_of_two_brokers_the_one_that_answers_tells_of_groups_and_types(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NameServer names a broker for two minutes after it died."""
    brokers = world.proxy.server.brokers
    make_group(world.cluster.brokers[0], world.group, consume_message_orderly=True)
    make_topic(world.cluster.brokers[0], world.topic, kind="FIFO")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
    masters, peer, route = brokers.masters_by_name, brokers.peer, brokers.route

    async def all_masters() -> dict[str, str]:
        return {"dead": dead, **await masters()}

    async def peer_of(broker_name: str) -> Peer:
        return await (brokers.peer_at(dead) if broker_name == "dead" else peer(broker_name))

    async def route_of(topic: str) -> TopicRoute:
        found = await route(topic)
        return msgspec.structs.replace(found, brokers=(BrokerData("C", "dead", {0: dead}), *found.brokers))

    monkeypatch.setattr(brokers, "masters_by_name", all_masters)
    monkeypatch.setattr(brokers, "peer", peer_of)
    monkeypatch.setattr(brokers, "route", route_of)
    assert world.consumer().settings.subscription.fifo
    assert not world.consumer(group=f"{world.group}-nowhere").settings.subscription.fifo
    assert world.proxy.run(lambda: brokers.topic_type(world.topic)) == "FIFO"

    async def only_dead() -> dict[str, str]:
        return {"dead": dead}

    monkeypatch.setattr(brokers, "masters_by_name", only_dead)
    with pytest.raises(NotSent):
        world.proxy.run(lambda: brokers.group("of-which-nobody-tells"))


@pytest.mark.shows("a NameServer that was started again, and knows no broker yet, makes no group or topic another one")
def test_what_a_group_and_a_topic_are_holds_while_a_name_server_knows_no_broker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers, broker = world.proxy.server.brokers, world.cluster.brokers[0]
    make_group(broker, world.group, consume_message_orderly=True)
    make_topic(broker, world.topic, kind="FIFO")
    known: dict[str, str] = {}
    masters, route = brokers.masters_by_name, brokers.route

    async def known_masters() -> dict[str, str]:
        return known

    async def known_route(topic: str) -> TopicRoute:
        found = await route(topic)
        return found if known else msgspec.structs.replace(found, brokers=())

    async def is_in_order(group: str) -> bool:
        brokers._groups.clear()
        found = await brokers.group(group)
        return found is not None and found.consume_message_orderly

    monkeypatch.setattr(brokers, "masters_by_name", known_masters)
    monkeypatch.setattr(brokers, "route", known_route)
    # Nothing is known yet, and nothing is made up.
    with pytest.raises(NotSent):
        world.proxy.run(lambda: brokers.group(world.group))
    with pytest.raises(NotSent):
        world.proxy.run(lambda: brokers.topic_type(world.topic))
    known |= world.proxy.run(masters)
    assert world.proxy.run(lambda: is_in_order(world.group))
    assert world.proxy.run(lambda: brokers.topic_type(world.topic)) == "FIFO"
    names = dict(known)
    known.clear()
    assert world.proxy.run(lambda: is_in_order(world.group))
    # Another broker is there first, which has not got it.
    answer = ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields={"groupName": world.group})
    assert answer.code == 0
    known["another"] = broker
    assert world.proxy.run(lambda: is_in_order(world.group))
    known |= names
    assert not world.proxy.run(lambda: is_in_order(world.group))


def test_a_topic_is_sent_to_and_read_while_a_name_server_that_was_started_again_knows_no_broker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = world.proxy.server.brokers
    consumer = world.consumer()
    assert consumer.receive(polling_ms=100) == []

    async def nothing(topic: str) -> TopicRoute:
        raise RouteNotFound(topic)

    async def no_brokers() -> ClusterInfo:
        return ClusterInfo()

    async def later(topic: str) -> TopicRoute:
        brokers._routes.expire(topic)
        return await brokers.route(topic)

    with monkeypatch.context() as patched:
        patched.setattr(brokers.routes, "refresh", nothing)
        patched.setattr(brokers, "_cluster_info", no_brokers)
        assert world.proxy.run(lambda: later(world.topic)).brokers
        message = messages.Message(topic={"name": world.topic}, body=b"on")
        message.system_properties.message_id, message.system_properties.message_type = "on", 1
        message.system_properties.body_encoding = 1
        sent = consumer.raw.call("SendMessage", messages.SendMessageRequest(messages=[message]))
        assert sent.status.code == Code.OK
        assert [one.body for one in consumer.receive()] == [b"on"]
        # The brokers are back, and the topic is not.
        patched.undo()
        patched.setattr(brokers.routes, "refresh", nothing)
        with pytest.raises(RouteNotFound):
            world.proxy.run(lambda: later(world.topic))


@pytest.mark.shows("a new master is found by the first call after it is elected")
def test_a_route_without_a_master_is_asked_for_anew_by_the_next_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers, consumer = world.proxy.server.brokers, world.consumer()
    make_topic(world.cluster.brokers[0], f"L{world.topic}", kind="LITE")
    make_group(world.cluster.brokers[0], f"L{world.group}", attributes={"+lite.bind.topic": f"L{world.topic}"})
    refresh = brokers.routes.refresh
    asked = messages.QueryAssignmentRequest(
        topic={"name": world.topic}, group={"name": world.group}, endpoints={"scheme": 1, "addresses": [{"host": "h"}]}
    )
    lite = messages.SyncLiteSubscriptionRequest(
        action=2, topic={"name": f"L{world.topic}"}, group={"name": f"L{world.group}"}, lite_topic_set=["a"]
    )

    async def without_master(topic: str) -> TopicRoute:
        found = await refresh(topic)
        slaves = tuple(msgspec.structs.replace(each, addresses={1: "127.0.0.1:1"}) for each in found.brokers)
        return msgspec.structs.replace(found, brokers=slaves)

    calls: list[Callable[[], Any]] = [
        lambda: consumer.answers(polling_ms=100)[0].status,
        lambda: consumer.raw.call("QueryAssignment", asked).status,
        lambda: consumer.raw.call("SyncLiteSubscription", lite).status,
    ]
    for call in calls:
        with monkeypatch.context() as patched:
            patched.setattr(brokers.routes, "refresh", without_master)
            brokers._routes.clear()
            assert call().code == Code.FORBIDDEN
        assert call().code != Code.FORBIDDEN


def test_handles_of_brokers_that_nobody_knows_cost_the_name_servers_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(b"1")
    consumer = world.consumer()
    (got,) = consumer.receive()
    asked: list[None] = []
    routes = world.proxy.server.brokers.routes
    ask = routes.ask

    async def counted(*given: Any) -> Any:
        asked.append(None)
        return await ask(*given)

    monkeypatch.setattr(routes, "ask", counted)
    handle = got.system_properties.receipt_handle
    entries = [{"receipt_handle": handle.replace("broker-a", f"broker-{number}")} for number in range(500)]
    request = messages.AckMessageRequest(
        group={"name": world.group}, topic={"name": world.topic}, entries=[*entries, {"receipt_handle": handle}]
    )
    answer = consumer.raw.call("AckMessage", request, timeout_s=60)
    assert [entry.status.code for entry in answer.entries] == [Code.BAD_REQUEST] * 500 + [Code.OK]
    assert len(asked) < 50
