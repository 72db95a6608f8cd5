"""Property filters over costly messages: others are answered meanwhile, and what is found is what one read finds."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    TOPIC,
    beat,
    broker,
    connected,
    create,
    pull,
    pull_header,
    records,
    run,
    send,
    sent,
    until,
)
from tests.support.patience import LIMIT_S
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.broker.consumers import long_polling, message_filters
from rocketspark.filters import sql92
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullReply
from rocketspark.protocol.message import batch
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("mended: SQL of empty strings, costly SQL filters")

SQL: dict[str, Any] = {"expression_type": "SQL92"}


async def filled(peer: Peer, count: int) -> None:
    """Messages with the property n = 0, 1, …, 9, 0, …"""
    await create(peer)
    rows = [BatchItem(0, b"%d" % n, b"n\x01%d\x02" % (n % 10)) for n in range(count)]
    (await send(peer, batch.encode(rows), code=RequestCode.SEND_BATCH_MESSAGE)).raise_for_code("send")


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds that a turn's time is over: one record in a turn."""
    ticks = itertools.count()
    monkeypatch.setattr(message_filters, "machine", like(machine, perf_counter=lambda: float(next(ticks))))


@pytest.mark.parametrize(
    ("subscription", "changes", "next_offset", "found"),
    [
        ("n = 10", {}, 800, []),
        ("n = 5", {"count_max": 3}, 26, [5, 15, 25]),
        ("n = 5", {"count_max": 100}, 800, list(range(5, 800, 10))),
        ("n >= 0", {"count_max": 1000}, 32, list(range(32))),
        ("n = 5", {"bytes_max": 200}, 16, [5, 15]),
    ],
)
def test_a_filter_that_takes_long_holds_up_nobody(
    tmp_path: Path, slow_clock: None, subscription: str, changes: Any, next_offset: int, found: list[int]
) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, property_filter=True, pull_count_max=100 if "= 5" in subscription else 32) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await filled(peer, 1000)
            header = pull_header(TOPIC, 0, 0, subscription=subscription, **SQL, **changes)
            reply = peer.ask(RequestCode.PULL_MESSAGE, header)
            answered = 0
            while not reply.done():
                await sent(other, b"meanwhile", TOPIC, 1)
                answered += 1
            whole = await reply
            assert answered >= (3 if next_offset < 100 else 50)
            assert whole.code == (0 if found else 20)
            assert whole.header(PullReply).next_offset == next_offset
            assert [int(m.body) for m in records(whole)] == found

    run(main())


def test_pulls_with_filters_take_turns(tmp_path: Path, slow_clock: None) -> None:
    """One that has much to look at does not keep those waiting that came behind it."""

    async def main() -> None:
        async with (
            broker(tmp_path, property_filter=True) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await filled(peer, 1000)
            long = peer.ask(RequestCode.PULL_MESSAGE, pull_header(TOPIC, 0, 0, subscription="n = 10", **SQL))
            await sent(other, b"the pull is under way", TOPIC, 1)
            short = await pull(other, TOPIC, 0, 0, subscription="n = 9", count_max=1, **SQL)
            assert [m.body for m in records(short)] == [b"9"]
            assert not long.done()
            assert (await long).code == 20

    run(main())


def test_a_held_pull_goes_on_in_later_turns(tmp_path: Path, slow_clock: None) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, property_filter=True) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer)
            header = pull_header(TOPIC, 0, 0, subscription="n = 10", sys_flag=6, suspend_ms=600_000, **SQL)
            held = peer.ask(RequestCode.PULL_MESSAGE, header)
            await until(lambda: server._long_polling.waiting == 1)
            await filled(other, 300)
            await sent(other, b"wanted", pairs={"n": "10"})
            answered = 0
            while not held.done():
                await sent(other, b"meanwhile", TOPIC, 1)
                answered += 1
            assert answered >= 10
            assert [m.body for m in records(await held)] == [b"wanted"]

    run(main())


def test_who_waits_with_a_costly_filter_holds_up_nobody_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(long_polling, "machine", like(machine, perf_counter=lambda: float(next(ticks))))

    async def main() -> None:
        held = long_polling.LongPolling()
        asked: list[int] = []
        for number in range(4):
            held.wait(("T", 0), 60, lambda final, number=number: not asked.append(number))  # type: ignore[misc, func-returns-value]
        held.mark("T", 0)
        for count in range(1, 5):
            await asyncio.sleep(0)
            assert asked == list(range(count))

    run(main())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiling and evaluating in a thread wait for it; on the loop they fail."""
    opened = threading.Event()
    loop_thread = threading.current_thread()

    def behind_gate(act: Any) -> Any:
        def wait(*arguments: Any) -> Any:
            assert threading.current_thread() is not loop_thread
            assert opened.wait(LIMIT_S)
            return act(*arguments)

        return wait

    opened.behind_gate = behind_gate  # type: ignore[attr-defined]
    return opened


@pytest.mark.parametrize("held", [False, True], ids=["at-once", "held"])
def test_a_costly_record_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Any, held: bool
) -> None:
    """One message and filter that take a second alone: 30 KB of properties, thousands of terms."""
    expression = " OR ".join(f"a={n}" for n in range(1000)) + " OR n = 10"
    compiled = sql92.compile(expression)
    monkeypatch.setattr(compiled, "accepts_record", gate.behind_gate(compiled.accepts_record))

    async def main() -> None:
        async with (
            broker(tmp_path, property_filter=True) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer)
            changes: dict[str, Any] = {"sys_flag": 6, "suspend_ms": 600_000} if held else {}
            header = pull_header(TOPIC, 0, 0, subscription=expression, **SQL, **changes)
            if held:
                answer = peer.ask(RequestCode.PULL_MESSAGE, header)
                await until(lambda: server._long_polling.waiting == 1)
            costly = "a\x01\x02" * 10_000
            for value in ("9", "10"):
                await sent(other, value.encode(), properties=f"{costly}n\x01{value}\x02")
            if not held:
                answer = peer.ask(RequestCode.PULL_MESSAGE, header)
            for _ in range(20):
                await sent(other, b"meanwhile", TOPIC, 1)
            assert not answer.done()
            gate.set()
            assert [m.body for m in records(await answer)] == [b"10"]

    run(main())


def test_a_long_filter_is_compiled_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Any) -> None:
    monkeypatch.setattr(sql92, "_compiled", gate.behind_gate(sql92._compiled))
    expression = " OR ".join(f"compiled{n}=1" for n in range(300)) + " OR n = 7"

    async def main() -> None:
        async with (
            broker(tmp_path, property_filter=True) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer)
            await sent(peer, b"7", pairs={"n": "7"})
            pulls = [
                peer.ask(RequestCode.PULL_MESSAGE, pull_header(TOPIC, 0, 0, subscription=text, **SQL))
                for text in (expression, expression + " OR")
            ]
            check = b'{"subscriptionData":{"topic":"T","subString":"%b","expressionType":"SQL92"}}'
            checks = [
                peer.ask(RequestCode.CHECK_CLIENT_CONFIG, None, check % text.encode())
                for text in (expression, expression + " AND")
            ]
            await beat(other)
            assert not any(future.done() for future in (*pulls, *checks))
            gate.set()
            found, wrong = await asyncio.gather(*pulls)
            assert [m.body for m in records(found)] == [b"7"]
            assert (wrong.code, "the expression ends here" in wrong.remark) == (23, True)
            assert [(await c).code for c in checks] == [0, 23]

    run(main())


def test_a_broker_that_closes_waits_for_no_queue_of_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Any
) -> None:
    monkeypatch.setattr(sql92, "_compiled", gate.behind_gate(sql92._compiled))

    async def main() -> None:
        async with broker(tmp_path, property_filter=True) as server, connected(server.address) as peer:
            await create(peer)
            for number in range(50):
                text = f"x{number}=1 OR " * 200 + "n = 7"
                peer.ask(RequestCode.PULL_MESSAGE, pull_header(TOPIC, 0, 0, subscription=text, **SQL))
            # One round: the pulls arrived.
            await beat(peer)
            gate.set()
        assert not [t for t in threading.enumerate() if t.name.startswith("rocketspark-filters")]

    run(main())
