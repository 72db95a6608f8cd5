"""Ends by ranges across failovers: told again to whoever is master, each message is there once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import TOPIC, connected, create, run, until
from tests.live.test_controller_mode import Group, group
from tests.live.test_half_ranges import COMMIT, end, halves, items, visible
from tests.live.test_unconfirmed import SLOW, pair

from rocketspark.broker.handlers import end_transaction
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.errors import TransportError
from rocketspark.protocol.message import half_ranges
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "a master of a pair that dies in the midst of a range, the new one is told it again, with copies of the "
    "batch on both; the old one that comes back, or hears of no election"
)

COUNT = 300
ONCE = Counter({b"tx %d" % n: 1 for n in range(COUNT)})
QUICKLY = SLOW | {"controller_timeout_ms": 1500, "log_file_bytes": 1 << 18}
# SLAVE_NOT_AVAILABLE
SLAVE = 11


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many turns of the loop, so that a range is cut in its midst."""
    for name in ("TOGETHER_MAX", "SINGLE_MAX", "TURN"):
        monkeypatch.setattr(end_transaction, name, 10)


async def told(broker: BrokerServer, body: bytes) -> Reply:
    async with connected(broker.address) as peer:
        return await end(peer, COMMIT, body)


def stored(broker: BrokerServer) -> Counter[bytes]:
    return Counter(r.body for r in broker.store.iterate(0) if r.topic == TOPIC.encode())


async def half_committed(first: BrokerServer, peer: Any, body: bytes) -> asyncio.Future[Reply]:
    """Tell the end of a range; return in its midst."""
    asked = asyncio.ensure_future(end(peer, COMMIT, body))
    await until(lambda: first.store.stored_range(TOPIC, 1)[1] >= 50)
    return asked


async def taken_over(g: Group) -> BrokerServer:
    await g.brokers.pop(1).kill()
    return await until(g.master)


async def back(g: Group) -> BrokerServer:
    """Start the old master again; return once its log is the new one's."""
    first, second = await g.start(1), g.brokers[2]
    await g.in_sync(2)
    await until(lambda: first.store.written_position == second.store.written_position)
    assert first.role.kind is Role.SLAVE
    return first


@pytest.mark.parametrize("copied", ["all", "nothing"])
def test_a_master_dies_in_the_midst_of_a_range(tmp_path: Path, copied: str) -> None:
    async def main() -> None:
        async with group(tmp_path, **QUICKLY) as g:
            first, second = await pair(g)
            if copied == "nothing":
                # It hears of no topic any more: the half messages alone tell of theirs.
                assert second.replication.synchronize is not None
                await second.replication.synchronize.stop()
            async with connected(first.address) as peer:
                await create(peer)
                at, positions = await halves(peer, items(COUNT), COUNT)
                body = half_ranges.encode([(at, positions)])
                await until(lambda: second.store.written_position == first.store.written_position)
                if copied == "all":
                    asked = await half_committed(first, peer, body)
                    await until(lambda: second.store.stored_range(TOPIC, 1)[1] > 0)
                    await taken_over(g)
                else:
                    link = second.replication.client._connection
                    assert link is not None
                    assert link._transport is not None
                    link._transport.pause_reading()
                    asked = await half_committed(first, peer, body)
                    await g.brokers.pop(1).kill()
                    link._transport.abort()
                    await until(g.master)
                    assert stored(second) == {}
                with pytest.raises(TransportError):
                    await asked
            before = sum(stored(second).values())
            assert 0 <= before < COUNT
            for _ in range(2):
                reply = await told(second, body)
                assert (reply.code, reply.remark, bytes(reply.body)) == (0, None, b"")
                assert stored(second) == ONCE
            async with connected(second.address) as peer:
                assert Counter(await visible(peer)) == ONCE
            first = await back(g)
            assert (await told(first, body)).code == SLAVE
            assert stored(first) == ONCE
            # It becomes the master again, and is told what it was told at first.
            await g.brokers.pop(2).kill()
            await until(g.master)
            assert (await told(first, body)).code == 0
            assert stored(first) == ONCE
            assert first._transactions.open_count == 0

    run(main())


def test_a_batch_that_was_sent_to_both_masters_is_committed_once(tmp_path: Path) -> None:
    """The reply of the first was lost; ends name the places of the second, or of both."""

    async def main() -> None:
        async with group(tmp_path, **QUICKLY) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
                older = await halves(peer, items(COUNT), COUNT)
            await until(lambda: second._topics.get(TOPIC))
            await until(lambda: second.store.written_position == first.store.written_position)
            await taken_over(g)
            async with connected(second.address) as peer:
                newer = await halves(peer, items(COUNT), COUNT)
                assert second._transactions.open_count == COUNT
                pieces = [(newer[0], newer[1][:100]), (older[0] + 50, older[1][50:200]), newer, older]
                for piece in pieces:
                    reply = await end(peer, COMMIT, half_ranges.encode([piece]))
                    assert (reply.code, reply.remark, bytes(reply.body)) == (0, None, b"")
            assert stored(second) == ONCE
            first = await back(g)
            await g.brokers.pop(2).kill()
            await until(g.master)
            for piece in (older, newer):
                assert (await told(first, half_ranges.encode([piece]))).code == 0
            assert stored(first) == ONCE

    run(main())


def test_an_old_master_that_hears_of_no_election_doubles_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, slave_timeout_ms=300, slave_not_caught_up_ms=60_000, log_file_bytes=1 << 18) as g:
            first, second = await pair(g)
            manager, controller = first.replication.manager, ControllerClient([g.controller.address])
            assert manager is not None
            try:
                async with connected(first.address) as peer:
                    await create(peer)
                    at, positions = await halves(peer, items(COUNT), COUNT)
                    await manager._changing.acquire()
                    await controller.elect("DefaultCluster", "broker-a", 2, designate=True)
                    done = 0
                    codes = []
                    while second.role.kind is not Role.MASTER:
                        piece = (at + done, positions[done : done + 5])
                        codes.append((await end(peer, COMMIT, half_ranges.encode([piece]))).code)
                        done = min(done + 5, COUNT - 50)
                    whole = half_ranges.encode([(at, positions)])
                    assert (await told(second, whole)).code == 0
                    assert stored(second) == ONCE
                    # Nobody holds what it commits now.
                    assert (await end(peer, COMMIT, whole)).code != 0
                    manager._changing.release()
                    await until(lambda: first.role.kind is Role.SLAVE)
                    # Its own commits are as long as those that it gets for them: the epochs tell them apart.
                    await until(lambda: first.replication.epochs.starts == second.replication.epochs.starts)
                    await until(lambda: first.store.written_position == second.store.written_position)
                    assert (await end(peer, COMMIT, whole)).code == SLAVE
                    assert stored(first) == stored(second) == ONCE
            finally:
                await controller.close()

    run(main())
