"""Pops, looks and questions about a topic of many queues: they look at some of them in one turn of the loop.

What lies in any queue is found, and what comes into a queue where a request has been already wakes it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import messages, pop, popped
from tests.live.support import GROUP, TOPIC, broker, connected, create, run, sent

from rocketspark.broker.handlers import pop_message
from rocketspark.broker.pop import reading
from rocketspark.broker.server import BrokerServer
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("pops of 65,536 queues in turns, each message found and each held one woken")

QUEUES = 23
HOLD: dict[str, Any] = {"poll_time_ms": 250_000}


@pytest.fixture(autouse=True)
def few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "QUEUES_IN_TURN", 4)
    monkeypatch.setattr(pop_message, "QUEUES_IN_TURN", 4)


async def notified(peer: Peer, poll_time_ms: int = 0) -> bool:
    header = headers.NotificationHeader(
        group=GROUP, topic=TOPIC, queue_id=-1, poll_time_ms=poll_time_ms, born_time_ms=0
    )
    reply = (await peer.request(RequestCode.NOTIFICATION, header)).raise_for_code("ask")
    return bool(reply.header(headers.NotificationReply).has_message)


def test_what_lies_in_any_queue_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, TOPIC, QUEUES)
            assert await popped(peer) == []
            assert not await notified(peer)
            for queue_id in range(QUEUES):
                await sent(peer, b"%d" % queue_id, TOPIC, queue_id)
                assert await notified(peer)
                peek = headers.PeekHeader(group=GROUP, topic=TOPIC, queue_id=-1, count_max=32)
                looked = (await peer.request(RequestCode.PEEK_MESSAGE, peek)).raise_for_code("peek")
                assert looked.header(headers.PopReply).rest_count == 1
                # Of the other queues nothing is known where a few were looked at.
                [found] = await popped(peer)
                assert (found.queue_id, found.body) == (queue_id, b"%d" % queue_id)
                assert await popped(peer) == []
            for queue_id in range(QUEUES):
                await sent(peer, b"x", TOPIC, queue_id)
            taken = []
            while found_now := await popped(peer, count_max=3):
                taken += found_now
            assert sorted(m.queue_id for m in taken) == list(range(QUEUES))

    run(main())


def test_what_comes_wakes_a_held_one_wherever_it_has_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    step = reading.Round.step

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer, TOPIC, QUEUES)
            for ask in (notified, pop):
                for queue_id in range(QUEUES):
                    held = asyncio.ensure_future(ask(other, **HOLD))  # type: ignore[operator]
                    await looked(server)
                    # In the middle of a round, or behind one.
                    await sent(peer, b"%d" % queue_id, TOPIC, queue_id)
                    found = await held
                    if ask is pop:
                        assert [m.queue_id for m in messages(found)] == [queue_id]
                    else:
                        assert found is True
                        assert len(await popped(peer)) == 1

    async def looked(server: BrokerServer) -> None:
        before = len(steps)
        while len(steps) == before or not server._pop_state.waiting.total + server._pop_state.notified.total:
            await asyncio.sleep(0)

    def counted(self: reading.Round, count: int, first: int = 0) -> Any:
        steps.append(count)
        return step(self, count, first)

    monkeypatch.setattr(reading.Round, "step", counted)
    run(main())


def test_a_round_is_at_each_queue_once_and_again_once_something_came() -> None:
    place = reading.Round()
    seen = [*place.step(10, 3), *place.step(10, 99), *place.step(10)]
    assert (sorted(seen), seen[:3], place.is_cut) == (list(range(10)), [2, 1, 0], False)
    first = list(place.step(10, 5))
    place.again()
    rest = []
    while place.is_cut:
        rest += place.step(10)
    assert sorted(rest) == list(range(10))
    assert first == [4, 3, 2, 1]
    place.again()
    assert not place.is_cut
    # A topic that has fewer queues meanwhile, or none.
    place.step(10)
    assert (list(place.step(2)), place.is_cut) == ([place._first - 1 - 4 & 1, (place._first - 6) % 2], False)
    assert list(place.step(0)) == []
