"""When a master takes itself for away: neither earlier, nor later than a slave may act."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketspark.broker.replication.acting import way_back
from rocketspark.broker.replication.acting.way_back import READS_ON, Office
from rocketspark.broker.replication.master_api import HaInfo
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import MessageStays, NotSent, ReplicationError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.frames import decode
from rocketspark.transport.processor_table import Routes

pytestmark = pytest.mark.shows("a master that hung and goes on without a start")

LIMIT_S = 7.5


class Rig:
    """An office whose loop runs by hand: `go` lets time pass without a turn, `turn` lets it look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, held: bool) -> None:
        self.now_s, self.held = 1000.0, held
        self.due: list[tuple[float, Any]] = []
        loop = SimpleNamespace(time=lambda: self.now_s, call_later=self._call_later)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        self.office = Office(BrokerSettings(), lambda: self.held)
        self.office.begin()

    def _call_later(self, after_s: float, call: Any) -> Any:
        self.due.append((self.now_s + after_s, call))
        return SimpleNamespace(cancel=self.due.clear)

    def go(self, s: float) -> None:
        self.now_s += s

    def run(self, s: float) -> None:
        end_s = self.now_s + s
        while self.due[0][0] <= end_s:
            self.now_s, look = self.due.pop(0)
            look()
        self.now_s = end_s


@pytest.mark.parametrize("held", [False, True])
def test_a_loop_that_stood_still_is_away_before_its_first_turn_and_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    rig = Rig(monkeypatch, held=held)
    rig.office.may_deliver()
    rig.go(LIMIT_S)
    rig.office.may_deliver()
    rig.go(0.1)
    with pytest.raises(MessageStays):
        rig.office.may_deliver()
    with pytest.raises(NotSent):
        rig.office.may_tell()
    rig.run(60)
    rig.office.sure(rig.now_s)
    assert rig.office.is_away
    rig.office.begin()
    assert not rig.office.is_away


def test_without_a_name_server_it_is_not_away_while_its_slaves_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, held=True)
    rig.run(600)
    assert not rig.office.is_away
    rig.held = False
    rig.run(LIMIT_S)
    assert not rig.office.is_away
    rig.office.sure(rig.now_s)
    rig.run(LIMIT_S)
    assert not rig.office.is_away
    rig.run(LIMIT_S)
    assert rig.office.is_away


def test_a_name_server_that_knows_no_master_is_no_doubt_while_the_slaves_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, held=True)
    rig.office.doubt()
    assert not rig.office.is_away
    rig.held = False
    rig.office.doubt()
    assert rig.office.is_away


def test_where_to_read_on_is_told_by_who_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, routes = Rig(monkeypatch, held=False), Routes()
    for code in READS_ON:
        routes.add(code, lambda peer, request, body: b"served")
    rig.office.guard(routes)
    request: Any = SimpleNamespace(opaque=7)
    assert {routes.table[code][2](None, request, b"") for code in READS_ON} == {b"served"}
    rig.go(60)
    for code in READS_ON:
        assert decode(routes.table[code][2](None, request, b"")).code == ResponseCode.SYSTEM_BUSY


def test_a_slave_that_is_linked_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it says so or its link comes, and also if neither does."""
    told: list[str] = []
    left: list[bytes] = []
    linked = {"value": False}

    async def tell(connections: Any, address: str, info: HaInfo) -> bytes:
        told.append(address)
        return b"what left it"

    async def ask(connections: Any, address: str) -> str:
        return "elsewhere"

    async def take_back(address: str) -> None:
        told.append(f"back from {address}")

    monkeypatch.setattr(way_back, "tell_ha_info", tell)
    monkeypatch.setattr(way_back, "ask_source", ask)
    monkeypatch.setattr(way_back, "LINK_S", 0.05)
    back = way_back.PreOnline(
        BrokerSettings(),
        cast(Any, None),
        cast(Any, None),
        own_info=lambda: HaInfo("h:1", 0, "h:2"),
        is_linked=lambda host: linked["value"],
        take_back=take_back,
        take_left=left.append,
        follow=lambda info: None,
        is_copying=lambda: False,
    )

    async def main() -> None:
        with pytest.raises(ReplicationError, match="does not connect"):
            await back._back_from("s:1")
        asyncio.get_running_loop().call_later(0.02, linked.update, {"value": True})
        monkeypatch.setattr(way_back, "LINK_S", 60)
        await back._back_from("s:2")
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert told == ["s:1", "s:2", "back from s:2"]
    assert left == [b"what left it"] * 2
