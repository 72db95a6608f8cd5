"""What clients are asked lies in memory until they answer: so much for one, so much for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketspark.broker.consumers import connected_clients
from rocketspark.broker.consumers.connected_clients import ConnectedClient, ConnectedClients
from rocketspark.errors import NotSent, ServerError
from rocketspark.protocol.json.bodies import Heartbeat, ProducerData


class Asked:
    """A client's connection: it answers when it is told to."""

    address, remote_host, sender = "127.0.0.1:1", "127.0.0.1", None

    def __init__(self) -> None:
        self.is_writable = True
        self.asked = 0
        self.answer = asyncio.Event()

    async def request(self, code: int, header: Any, body: bytes, *, timeout_ms: float) -> Any:
        self.asked += 1
        await self.answer.wait()
        raise NotSent("it went", address=self.address)


def client_of(peer: Any) -> ConnectedClient:
    return ConnectedClient("c", peer, "JAVA", 0, 0)


def test_who_does_not_answer_is_asked_no_more_and_who_does_not_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_clients, "ASKED_OF_CLIENT_BYTES_MAX", 100)
    monkeypatch.setattr(connected_clients, "ASKED_BYTES_MAX", 250)

    async def main() -> None:
        clients = ConnectedClients(lambda group: None)
        one, two, three = Asked(), Asked(), Asked()

        def ask(peer: Any, size: int) -> asyncio.Task[Any]:
            return asyncio.ensure_future(clients.ask(client_of(peer), 326, None, bytes(size), timeout_ms=1000))  # type: ignore[arg-type]

        # A single one may be larger.
        tasks = [ask(one, 120), ask(one, 1), ask(two, 60), ask(two, 30), ask(two, 30), ask(three, 60)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (one.asked, two.asked, three.asked) == (1, 2, 0)
        assert [task.done() for task in tasks] == [False, True, False, False, True, True]
        three.is_writable = False
        two.answer.set()
        one.answer.set()
        outcomes = await asyncio.gather(*tasks, ask(three, 1), return_exceptions=True)
        assert all(isinstance(outcome, NotSent) for outcome in outcomes)
        assert three.asked == 0
        assert (clients._asked, clients._asked_bytes) == ({}, 0)

    asyncio.run(main())


def test_a_client_may_be_asked_twice_at_once_without_a_body() -> None:
    async def main() -> None:
        clients = ConnectedClients(lambda group: None)
        asked = Asked()
        tasks = [
            asyncio.ensure_future(clients.ask(client_of(asked), 221, None, b"", timeout_ms=1000)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        asked.answer.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in outcomes] == [NotSent, NotSent]
        assert clients._asked == {}

    asyncio.run(main())


def test_members_from_one_network_of_ipv6_are_bounded_as_those_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_clients, "HOST_WEIGHT_MAX", 2)

    def member(host: str) -> Any:
        peer = Asked()
        peer.remote_host = host
        return peer

    async def main() -> None:
        clients = ConnectedClients(lambda group: None)
        beat = Heartbeat(client_id="c", producer_data_set=[ProducerData("P")], consumer_data_set=[])
        for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"):
            clients.beat(member(host), beat, "JAVA", 0, 0)
        with pytest.raises(ServerError, match="of this host, are too many"):
            clients.beat(member("2001:db8::3"), beat, "JAVA", 0, 0)

    asyncio.run(main())
