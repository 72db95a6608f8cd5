"""Who makes room at the port of replication: all addresses of one network of IPv6 count as one host."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.broker.replication.link import doors
from rocketspark.broker.replication.link.doors import Hall, MasterDoor
from rocketspark.broker.replication.link.ha_listener import HaConnection, HaListener
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.broker.settings import BrokerSettings


class Below:
    def __init__(self, host: str) -> None:
        self.host = host
        self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return self.host, 4711, 0, 0

    def is_closing(self) -> bool:
        return self.aborted

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def close(self) -> None:
        self.aborted = True

    abort = close


def test_strangers_of_one_network_make_room_and_not_who_came_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "WAITING_MAX", 3)

    async def run() -> None:
        hall = Hall(BrokerSettings())
        alone, *crowd = (Below(host) for host in ("10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"))
        for below in (alone, *crowd):
            MasterDoor(hall, asyncio.Protocol).connection_made(below)  # type: ignore[arg-type]
        assert [below.aborted for below in (alone, *crowd)] == [False, True, False, False]
        hall.close()

    asyncio.run(run())


def test_who_lacks_most_makes_room_only_if_its_network_has_most_places() -> None:
    async def run() -> None:
        waits: Any = SimpleNamespace(left=lambda connection: None)
        make_link: Any = None
        links: Any = iter([SimpleNamespace(lacks=lacks) for lacks in (9, 1, 1, 1)])
        listener = HaListener(make_link, Troubles(), waits, connections_max=3)
        for host in ("10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"):
            connection = HaConnection(listener, next(links))
            connection.address = f"[{host}]:1" if ":" in host else f"{host}:1"
            connection.is_open = True
            assert listener.let_in(connection)
        assert [one.host for one in listener.connections] == ["10.0.0.1", "2001:db8::2", "2001:db8::3"]

    asyncio.run(run())
