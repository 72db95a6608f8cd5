"""What a source does with messages of several brokers, one of which is silent, and as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from tests.support.patience import LIMIT_S

from rocketspark.kombu import source
from rocketspark.kombu.connection import Inbox, Transport
from rocketspark.kombu.options import Settings
from rocketspark.kombu.source import Popped, Source

# Messages are named after their brokers.
SILENT = "silent"


class Brokers:
    """Stands in for a consumer: a silent broker answers nothing."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.acknowledged: list[str] = []
        self.visible_ms: list[tuple[str, float]] = []
        self.changed = asyncio.Event()

    async def start(self) -> None: ...

    close = start

    async def receive(self, count: int, *, timeout_ms: float) -> list[Any]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        if not taken and timeout_ms:
            await asyncio.Event().wait()
        return [SimpleNamespace(broker_name=name, message_id=name) for name in taken]

    async def ack(self, messages: list[Any]) -> None:
        await self._answer({message.broker_name for message in messages})
        self.acknowledged += [message.broker_name for message in messages]

    async def change_invisible_time(self, message: Any, invisible_ms: float) -> None:
        await self._answer({message.broker_name})
        self.visible_ms.append((message.broker_name, invisible_ms))

    async def _answer(self, brokers: set[str]) -> None:
        if SILENT in brokers:
            await asyncio.Event().wait()
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def with_source(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a test of a source, on brokers that have these messages; what arrives is in the list."""
    monkeypatch.setattr(source, "CLOSE_S", 0.01)

    def run(test: Callable[[Source, Brokers, list[Popped]], Awaitable[None]], *messages: str) -> None:
        async def body() -> None:
            brokers, arrived = Brokers(), list[Popped]()
            brokers.waiting += messages
            monkeypatch.setattr(Source, "_consumer", lambda *_: brokers)
            made = Source(
                Settings(namesrv="", access={}, visibility_timeout=0.08),
                ["topic"],
                room=lambda: 32,
                shares=lambda: 1,
                turn=asyncio.Lock(),
                arrive=arrived.append,
                soon=lambda act: act(),
            )
            await made.open()
            try:
                await test(made, brokers, arrived)
            finally:
                await made.close()

        asyncio.run(body())

    return run


def test_a_silent_broker_holds_up_no_acknowledgement_of_others(with_source: Callable[..., None]) -> None:
    async def test(made: Source, brokers: Brokers, arrived: list[Popped]) -> None:
        made.run()
        while len(arrived) < 6:
            await asyncio.sleep(0)
        for popped in arrived:
            made.ack(popped)
        await brokers.until(lambda: len(brokers.acknowledged) == 3)
        assert brokers.acknowledged == ["fast"] * 3

    with_source(test, *[SILENT, "fast"] * 3)


def test_a_silent_broker_holds_up_no_renewal_of_others(with_source: Callable[..., None]) -> None:
    async def test(made: Source, brokers: Brokers, arrived: list[Popped]) -> None:
        made.run()
        await brokers.until(lambda: len(brokers.visible_ms) >= 3)
        assert set(brokers.visible_ms) == {("fast", 80)}

    with_source(test, SILENT, "fast")


def test_what_was_received_as_the_source_stops_is_given_back(with_source: Callable[..., None]) -> None:
    async def test(made: Source, brokers: Brokers, arrived: list[Popped]) -> None:
        waits = asyncio.ensure_future(made._wait(1))
        # The receive runs behind this, and is done as the wait is cancelled.
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(waits.cancel))
        await asyncio.wait([waits])
        assert waits.cancelled()
        assert brokers.waiting == []
        await brokers.until(lambda: bool(brokers.visible_ms))
        assert brokers.visible_ms == [("fast", source.GIVEN_BACK_MS)]

    with_source(test, "fast")


def test_a_consumer_that_raises_holds_up_no_later_message() -> None:
    """The event loop is woken for what is left."""

    class Raises:
        got: list[Any] = []

        def deliver(self, queue: str, item: Any) -> bool:
            self.got.append(item)
            if item == 1:
                raise ValueError("no such task")
            return True

    transport = Transport(Connection("rocketmq://"))
    transport.inbox = Inbox()
    channel: Any = Raises()
    for item in (1, 2, 3):
        transport.inbox.put(channel, "queue", item)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such task"):
        transport.on_readable(None)
    transport.on_readable(None)
    assert Raises.got == [1, 2, 3]
    transport.inbox.close()


def test_a_source_of_a_channel_that_is_closing_receives_nothing(
    with_source: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def closing(made: Source, brokers: Brokers, arrived: list[Popped]) -> None:
        made._shares = lambda: 0
        made.run()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (brokers.waiting, arrived) == (["a"], [])

    with_source(closing, "a")
    assert not caplog.messages
