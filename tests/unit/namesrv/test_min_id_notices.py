"""Notices of a lowest id: each broker hears its own in order, and none waits for another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.live.support import run, until
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark.errors import NotSent
from rocketspark.namesrv import min_id_notices
from rocketspark.namesrv.acting_master import MinIdChange
from rocketspark.namesrv.min_id_notices import LOOKUPS_MAX, NOTICES_MAX, MinIdNotices
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import MinBrokerIdHeader, Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import OF_PROCESS

pytestmark = pytest.mark.shows("brokers that hang or are gone")


class Broker:
    """A server that hears notices. `heard`: those that came; `flags`, `peers`: their frames' flags and connections."""

    def __init__(self) -> None:
        self.heard: list[MinBrokerIdHeader] = []
        self.flags: list[int] = []
        self.peers: list[Peer] = []
        routes = Routes()
        routes.add(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self._hear, MinBrokerIdHeader)
        self.server = Server(routes)

    def _hear(self, peer: Peer, request: Request[Any], body: bytes) -> None:
        self.heard.append(request.ext)
        self.flags.append(request.flag)
        self.peers.append(peer)


@asynccontextmanager
async def stage(count: int = 1, port: int = 0) -> AsyncIterator[tuple[MinIdNotices, list[Broker]]]:
    notices, brokers = MinIdNotices(), [Broker() for _ in range(count)]
    taken = OF_PROCESS.taken
    for broker in brokers:
        await broker.server.start("127.0.0.1", port)
    try:
        yield notices, brokers
    finally:
        await notices.close()
        for broker in brokers:
            await broker.server.close()
        assert notices._told == {}
        await until(lambda: OF_PROCESS.taken == taken)


def change(*told: str, broker_id: int = 0) -> MinIdChange:
    return MinIdChange(told, broker_id, "h:1", offline_address="h:2", ha_address="h:3")


def test_brokers_hear_in_order_over_one_connection() -> None:
    async def main() -> None:
        async with stage(2) as (notices, (one, two)):
            for number in range(10):
                notices.send(change(one.server.address, two.server.address, broker_id=number))
            await until(lambda: len(one.heard) == len(two.heard) == 10)
            for broker in (one, two):
                assert broker.heard == [
                    MinBrokerIdHeader(broker_id=n, address="h:1", offline_address="h:2", ha_address="h:3")
                    for n in range(10)
                ]
                assert set(broker.flags) == {2}
                assert len(set(broker.peers)) == 1

    run(main())


def test_brokers_that_hang_or_are_gone_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    dial = min_id_notices.dial

    async def dialed(address: str, **options: Any) -> Peer:
        if address.startswith("127.9.9.9"):
            await asyncio.Event().wait()
        return await dial(address, **options)

    monkeypatch.setattr(min_id_notices, "dial", dialed)
    monkeypatch.setattr(min_id_notices, "CONNECT_MS", 1000 * LIMIT_S)
    monkeypatch.setattr(min_id_notices, "PAUSE_S", 0.01)

    async def main() -> None:
        async with stage() as (notices, (broker,)):
            gone = [f"127.0.0.1:{free_ports()}" for _ in range(30)]
            notices.send(change("127.9.9.9:1", *gone, "nonsense", "127.0.0.1:99999", broker.server.address))
            await until(lambda: len(broker.heard) == 1)
            await until(lambda: list(notices._told) == ["127.9.9.9:1", broker.server.address])
            notices.send(change("127.9.9.9:1", broker.server.address))
            await until(lambda: len(broker.heard) == 2)

    run(main())
    # Some lines of a kind, then a count.
    assert 1 <= len(caplog.records) <= 10
    for record in caplog.records:
        assert "is not told of a new lowest id" in record.getMessage()


def test_what_hangs_gives_way_to_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(min_id_notices, "BROKERS_MAX", 3)
    dial = min_id_notices.dial

    async def dialed(address: str, **options: Any) -> Peer:
        if address.startswith("127.9.9.9"):
            await asyncio.Event().wait()
        return await dial(address, **options)

    monkeypatch.setattr(min_id_notices, "dial", dialed)
    monkeypatch.setattr(min_id_notices, "CONNECT_MS", 1000 * LIMIT_S)
    monkeypatch.setattr(min_id_notices, "PAUSE_S", 0.01)

    async def main() -> None:
        async with stage() as (notices, (broker,)):
            for number in range(9):
                notices.send(change(f"127.9.9.9:{number + 1}"))
                await asyncio.sleep(0)
            for _ in range(3 * NOTICES_MAX):
                notices.send(change("127.9.9.9:9"))
            assert len(notices._told["127.9.9.9:9"].waiting) == NOTICES_MAX
            notices.send(change(broker.server.address))
            await until(lambda: broker.heard)
            assert list(notices._told) == ["127.9.9.9:8", "127.9.9.9:9", broker.server.address]
            # Of a group above the bound the last ones are told.
            notices.send(change(*(f"127.9.9.9:{number + 1}" for number in range(1000))))
            assert list(notices._told) == ["127.9.9.9:998", "127.9.9.9:999", "127.9.9.9:1000"]

    run(main())


def test_a_connection_that_ended_is_opened_again_and_one_out_of_use_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with stage() as (notices, (broker,)):
            address = broker.server.address
            notices.send(change(address))
            await until(lambda: broker.heard)
            broker.peers[0].abort()
            await until(lambda: not broker.server.peers)
            told = notices._told[address]
            notices.send(change(address))
            await until(lambda: len(broker.heard) == 2)
            assert notices._told[address] is told
            monkeypatch.setattr(min_id_notices, "LINGER_S", 0.01)
            notices.send(change(address))
            await until(lambda: len(broker.heard) == 3)
            await until(lambda: not notices._told and not broker.server.peers)
            notices.send(change(address))
            await until(lambda: len(broker.heard) == 4)

    run(main())


def test_names_are_looked_up_a_few_at_once_and_one_that_hangs_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(min_id_notices, "PAUSE_S", 0.01)
    monkeypatch.setattr(min_id_notices, "CONNECT_MS", 20)
    asked: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hanging: list[asyncio.Future[Any]] = []

        async def look_up(host: str, port: int, **options: Any) -> Any:
            asked.append(host)
            if host == "localhost":
                return [(2, 1, 6, "", ("127.0.0.1", port))]
            hanging.append(loop.create_future())
            return await hanging[-1]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up, raising=False)
        async with stage() as (notices, (broker,)):
            notices.send(change(*(f"hangs{number}:1" for number in range(20))))
            await until(lambda: not notices._told)
            assert asked == [f"hangs{number}" for number in range(LOOKUPS_MAX)]
            # By its number a broker is told meanwhile; by its name once one is over.
            notices.send(change(broker.server.address))
            await until(lambda: len(broker.heard) == 1)
            for look in hanging:
                look.set_exception(OSError("not known"))
            await asyncio.sleep(0)
            notices.send(change(f"localhost:{broker.server.port}"))
            await until(lambda: len(broker.heard) == 2)

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_who_is_gone_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dialed: list[str] = []

    async def dial(address: str, **options: Any) -> Peer:
        dialed.append(address)
        raise NotSent("gone")

    monkeypatch.setattr(min_id_notices, "dial", dial)

    async def main() -> None:
        async with stage() as (notices, _):
            for _ in range(50):
                notices.send(change("127.0.0.1:1"))
                await asyncio.sleep(0)
            assert len(dialed) == 1
            monkeypatch.setattr(min_id_notices, "PAUSE_S", 0.01)
            await until(lambda: not notices._told)
            # What came during the pause was tried once more.
            assert len(dialed) == 2

    run(main())


def test_without_descriptors_nobody_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(OF_PROCESS, "_count_max", 0)
    monkeypatch.setattr(min_id_notices, "PAUSE_S", 0.01)
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        notices = MinIdNotices()
        notices.send(change("127.0.0.1:1"))
        await until(lambda: not notices._told)
        await notices.close()

    run(main())
    assert "too many connections" in caplog.text
