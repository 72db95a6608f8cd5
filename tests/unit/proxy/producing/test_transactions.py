"""Half messages of open transactions: which is ended, what is forgotten when, what a crossing check does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketspark.errors import NotSent
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.producing import producer_groups, transactions
from rocketspark.proxy.producing.transactions import CROSSED_MS, HalfPlace, TransactionData

pytestmark = pytest.mark.shows(
    "EndTransaction: once, also from many clients, through another proxy, after a restart, longer ago than 30 "
    "s; checks that cross an end; orphans over Telemetry"
)

A, B = HalfPlace("a", 5, 1000), HalfPlace("b", 7, 2000)


def test_an_end_takes_the_newest_and_a_second_end_of_it_nothing() -> None:
    data = TransactionData()
    data.add("T", "tx", A, 0)
    data.add_checked("T", "tx", HalfPlace("a", 6, 1500), 10)
    assert data.take("T", "tx", 20) == HalfPlace("a", 6, 1500)
    assert data.take("T", "tx", 20) is None
    assert len(data) == 0


def test_ids_of_any_length_are_kept_short_and_told_apart() -> None:
    data, long = TransactionData(), "0" * 15_000
    for number in range(100):
        data.add("T", f"{long}{number}", HalfPlace("a", number, number), 0)
        data.note_end("T", f"{long}{number}", "b", 0)
    assert sum(len(transaction_id) for table in (data._open, data._ended) for _, transaction_id in table) < 20_000
    assert not data.add_checked("T", f"{long}7", HalfPlace("b", 7, 7), 1)
    assert data.was_ended("T", f"{long}7")
    data.forget_end("T", f"{long}7", "b")
    assert not data.was_ended("T", f"{long}7")
    assert data.add_checked("T", f"{long}7", HalfPlace("a", 70, 70), 1)
    assert [data.take("T", f"{long}{number}", 1) for number in (99, 7, 7)] == [
        HalfPlace("a", 99, 99), HalfPlace("a", 70, 70), None,
    ]  # fmt: skip


def test_copies_at_two_brokers_are_ended_one_by_one() -> None:
    data = TransactionData()
    data.add("T", "tx", A, 0)
    data.add("T", "tx", B, 1)
    assert [data.take("T", "tx", 2) for _ in range(3)] == [B, A, None]


def test_topic_and_id_both_count() -> None:
    data = TransactionData()
    data.add("T", "tx", A, 0)
    assert data.take("U", "tx", 0) is None
    assert data.take("T", "ty", 0) is None


def test_what_was_told_too_long_ago_is_not_taken() -> None:
    data = TransactionData(expiry_ms=100)
    data.add("T", "tx", A, 0)
    assert data.take("T", "tx", 101) is None
    data.add("T", "tx", A, 0)
    assert data.take("T", "tx", 100) == A


def test_a_check_under_way_with_an_end_asks_nobody() -> None:
    data = TransactionData()
    data.add("T", "tx", A, 0)
    data.take("T", "tx", 10)
    data.note_end("T", "tx", "a", 10)
    assert not data.add_checked("T", "tx", A, 10 + CROSSED_MS - 1)
    assert data.take("T", "tx", 20) is None
    # The broker asks again: it did not hear of the end.
    assert data.add_checked("T", "tx", A, 10 + CROSSED_MS)
    assert data.take("T", "tx", 10 + CROSSED_MS) == A


def test_a_check_of_a_copy_elsewhere_is_none_of_an_end() -> None:
    data = TransactionData()
    data.note_end("T", "tx", "a", 10)
    assert data.add_checked("T", "tx", B, 11)


def test_an_end_that_could_not_be_told_is_forgotten() -> None:
    data = TransactionData()
    data.note_end("T", "tx", "a", 10)
    assert data.was_ended("T", "tx")
    data.forget_end("T", "tx", "a")
    assert not data.was_ended("T", "tx")


def test_bounds() -> None:
    data = TransactionData(per_id_max=3, ids_max=4)
    for number in range(10):
        data.add("T", "tx", HalfPlace(f"b{number}", 1, 1), number)
    assert [p.broker_name for p in iter(lambda: data.take("T", "tx", 10), None)] == ["b9", "b8", "b7"]
    for number in range(10):
        data.add("T", f"t{number}", A, number)
        data.note_end("T", f"e{number}", "a", number)
    assert len(data) == 4
    assert data.take("T", "t5", 10) is None
    assert data.take("T", "t6", 10) == A
    assert [data.was_ended("T", f"e{number}") for number in (5, 6)] == [False, True]


def test_sweep_drops_what_is_old() -> None:
    data = TransactionData(expiry_ms=100)
    data.add("T", "old", A, 0)
    data.add("T", "new", A, 90)
    data.note_end("T", "old", "a", 0)
    data.sweep(150)
    assert len(data) == 1
    assert data.was_ended("T", "old")
    data.sweep(201)
    assert not data.was_ended("T", "old")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, None),
        ({"a": None, "b": None}, None),
        ({"a": None, "b": B, "c": NotSent("silent")}, B),
        ({"a": None, "b": NotSent("silent")}, NotSent),
    ],
)
def test_no_broker_has_a_half_message_only_if_all_say_so(
    told: dict[str, Any], found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(brokers: Any, topic: str, name: str, *_: Any) -> Any:
        if isinstance(told[name], Exception):
            raise told[name]
        return told[name]

    async def route(topic: str) -> Any:
        masters = [SimpleNamespace(broker_name=name, master="127.0.0.1:1") for name in told]
        return SimpleNamespace(brokers=[*masters, SimpleNamespace(broker_name="slaves alone", master=None)])

    monkeypatch.setattr(transactions, "_look", look)
    finding = transactions.find_half_message(cast(Brokers, SimpleNamespace(route=route)), "t", "id", 1000)
    if found is NotSent:
        with pytest.raises(NotSent):
            asyncio.run(finding)
    else:
        assert asyncio.run(finding) == found


def test_brokers_are_told_of_producers_once_in_a_while_however_often_those_change_their_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rounds: list[set[str]] = []
        told = asyncio.Event()
        client: Any = SimpleNamespace(topics={"normal"})

        async def topic_type(topic: str) -> str:
            rounds[-1].add(topic)
            return "NORMAL"

        def everybody() -> list[Any]:
            rounds.append(set())
            told.set()
            return [client]

        brokers, clients = SimpleNamespace(topic_type=topic_type), SimpleNamespace(all=everybody)
        groups = producer_groups.ProducerGroups(cast(Any, brokers), cast(Any, clients), 3600)
        monkeypatch.setattr(producer_groups, "APART_S", 3600.0)
        groups.begin()
        for number in range(100):
            client.topics = {f"topic-{number}"}
            groups.changed(client)
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(rounds) == 1
        # The first of the next time knows all of it.
        await groups.close()
        monkeypatch.setattr(producer_groups, "APART_S", 0.0)
        told.clear()
        groups.begin()
        await told.wait()
        await asyncio.sleep(0)
        assert rounds[1] == {"topic-99"}
        await groups.close()

    asyncio.run(main())
