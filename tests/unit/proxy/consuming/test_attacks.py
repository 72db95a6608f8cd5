"""What one client asks costs the others nothing: odd and huge values, brokers that are away, readers that stall."""

from __future__ import annotations

import socket
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from tests.unit.proxy.consuming.support import Consumer, bodies, make_group, make_topic
from tests.unit.proxy.consuming.test_consuming import World, proxy, wait_until, world

from rocketspark.errors import NotSent
from rocketspark.model import BrokerData, TopicRoute
from rocketspark.proxy.consuming.receive import _filter
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import Code
from rocketspark.transport.peer import Peer

__all__ = ["proxy", "world"]

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
    masters, peer, route = brokers.masters, brokers.peer, brokers.route

    async def all_masters() -> list[str]:
        return [dead, *await masters()]

    async def peer_of(broker_name: str) -> Peer:
        return await (brokers.peer_at(dead) if broker_name == "dead" else peer(broker_name))

    async def route_of(topic: str) -> TopicRoute:
        found = await route(topic)
        return msgspec.structs.replace(found, brokers=(BrokerData("C", "dead", {0: dead}), *found.brokers))

    monkeypatch.setattr(brokers, "masters", all_masters)
    monkeypatch.setattr(brokers, "peer", peer_of)
    monkeypatch.setattr(brokers, "route", route_of)
    assert world.consumer().settings.subscription.fifo
    assert not world.consumer(group=f"{world.group}-nowhere").settings.subscription.fifo
    assert world.proxy.run(lambda: brokers.topic_type(world.topic)) == "FIFO"

    async def only_dead() -> list[str]:
        return [dead]

    monkeypatch.setattr(brokers, "masters", only_dead)
    with pytest.raises(NotSent):
        world.proxy.run(lambda: brokers.group("of-which-nobody-tells"))


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
