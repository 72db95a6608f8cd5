"""No request holds the loop for long: the largest of each kind, by how many lines of Python one turn runs for it.

`make bench PARTS=hostile` shows the time of the same requests. What is done in several turns lets others in between:
nothing goes wrong then.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
from bench.stretches import Turns, batch_of, heartbeat
from tests.live.support import GROUP, TOPIC, broker, connected, create, run, send_header, sent, until

from rocketspark.access.request_contexts import contexts_of
from rocketspark.broker.consumers import connected_clients
from rocketspark.protocol.headers import SendReply
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import LockReply

pytestmark = pytest.mark.shows(
    "no request holds the loop for long; bytes of requests in work, held requests by host",
)

# Some 12 ms; what one call into C does is bounded by what a request may hold.
LINES_MAX = 250_000


class Lines:
    """How many lines a thread ran."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        return self.count

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        self.count += event == "line"
        return self.trace


def test_no_request_holds_the_loop_for_long(tmp_path: Path) -> None:
    lines = Lines()
    turns = Turns(lines, lines.trace)

    async def main(address: str) -> list[tuple[str, int, int, float]]:
        return [(asked.name, asked.answer, code, cost) async for asked, code, cost in turns.each(address)]

    with turns.served(tmp_path) as address:
        found = asyncio.run(main(address))
    assert [row for row in found if row[1] != row[2]] == []
    assert [(name, cost) for name, _, _, cost in found if cost > LINES_MAX] == []
    assert len(found) > 35


def test_a_long_heartbeat_of_a_connection_that_ends_leaves_nothing(tmp_path: Path) -> None:
    """And what the connection asks next waits for it: the group it leaves stays left."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as other:
            clients = server._clients
            async with connected(server.address) as peer:
                beaten = peer.ask(34, None, heartbeat(100, 40))
                left = peer.ask(35, {"clientID": "100-40", "consumerGroup": "g99"})
                assert [(await asked).code for asked in (beaten, left)] == [0, 0]
                assert clients.consumers.keys() == {f"g{n}" for n in range(99)}
                assert {len(group.subscriptions) for group in clients.consumers.values()} == {40}
                asked = peer.ask(34, None, heartbeat(400, 20))
                # While others have their turns.
                while len(clients.consumers) < 150:
                    await other.request(38, {"consumerGroup": "g0"})
                assert len(clients.consumers) < 400
            await until(lambda: not clients.consumers)
            await asyncio.gather(asked, return_exceptions=True)
            await other.request(38, {"consumerGroup": "g0"})
            assert (clients.consumers, clients.weight) == ({}, 0)

    run(main())


def test_two_clients_that_lock_many_queues_at_once_share_them(tmp_path: Path) -> None:
    rows = [{"brokerName": "b", "topic": TOPIC, "queueId": n} for n in range(30_000)]

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as one, connected(server.address) as two:
            bodies = [msgspec.json.encode({"consumerGroup": GROUP, "clientId": c, "mqSet": rows}) for c in "ab"]
            answers = await asyncio.gather(one.request(41, None, bodies[0]), two.request(41, None, bodies[1]))
            held = [
                {row.queue_id for row in msgspec.json.decode(answer.body, type=LockReply).lock_ok_mq_set}
                for answer in answers
            ]
            assert held[0].isdisjoint(held[1])
            assert held[0] | held[1] == set(range(30_000))
            await asyncio.gather(one.request(42, None, bodies[0]), two.request(42, None, bodies[1]))
            assert server._locks.count == 0

    run(main())


def test_a_long_batch_is_stored_whole_and_before_what_its_sender_sends_next(tmp_path: Path) -> None:
    body = batch_of(lambda n: b"n%d\x01v\x02UNIQ_KEY\x01%032X\x02" % (n, n), count_max=6001)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer, queues=1)
            batch = peer.ask(320, send_header(TOPIC, 0, batch=True), body)
            then = peer.ask(310, send_header(TOPIC, 0, pairs={"UNIQ_KEY": "A" * 32}), b"then")
            between = [await sent(other) for _ in range(3)]
            first = (await batch).raise_for_code("batch").header(SendReply).queue_offset
            last = (await then).raise_for_code("send").header(SendReply).queue_offset
            assert server.store.queue_range(TOPIC, 0) == (0, 6004)
            assert last >= first + 6000
            assert not set(between) & set(range(first, first + 6000))

    run(main())


def test_a_client_of_many_groups_leaves_them_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_clients, "LEFT_IN_TURN", 10)

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as other:
            clients = server._clients
            async with connected(server.address) as peer:
                (await peer.request(34, None, heartbeat(60, 3, producers=80))).raise_for_code("beat")
                assert (len(clients.consumers), len(clients.producers)) == (60, 80)
            left: set[int] = set()
            while clients.consumers or clients.producers:
                left.add(len(clients.consumers) + len(clients.producers))
                await asyncio.sleep(0)
            assert len(left) > 10
            await other.request(38, {"consumerGroup": "g0"})
            assert clients.weight == 0

    run(main())


def test_a_heartbeat_behind_access_control_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    decode = bodies._heartbeat

    def counted(body: bytes) -> bodies.Heartbeat:
        read.append(body)
        return decode(body)

    monkeypatch.setattr(bodies, "_heartbeat", counted)
    body = heartbeat(2, 2)
    needed = contexts_of(34, {}, body)
    assert [context.name for context in needed] == ["g0", "topic0", "topic1", "g1"]
    assert len(bodies.heartbeat(body).consumer_data_set) == 2
    assert len(read) == 1
    # It is not kept for longer, and no other's is taken for it.
    bodies.heartbeat(body)
    contexts_of(34, {}, body)
    assert bodies.heartbeat(heartbeat(1, 1)).client_id == "1-1"
    assert len(read) == 4
