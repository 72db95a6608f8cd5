"""Three brokers of one name, all ours: what a send waits for, who is elected, and that only a master is copied."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import pytest
from tests.live.support import connected, create, run, send, until
from tests.live.test_controller_mode import group, shown
from tests.live.test_replication import pair, producer

from rocketspark.broker.replication.role import Role
from rocketspark.model import Message
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store import Store

pytestmark = pytest.mark.shows(
    "three replicas: inSyncReplicas=2 of three, allAckInSyncStateSet, a slave of a slave refused",
)

LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT


def _as_far(slave: Store, master: Store) -> bool:
    return slave.written_position == master.written_position


def test_two_of_three_are_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=2, slave_timeout_ms=400) as p:
            await p.start(2)
            async with connected(p.master.address) as peer:
                await create(peer)
                await until(lambda: len(p.master.replication.listener.connections) == 2)
                for gone in (1, 2):
                    await p.stop(gone)
                    assert (await send(peer, b"one is away")).code == ResponseCode.SUCCESS
                    left = p.brokers[3 - gone]
                    # What is answered is on two disks.
                    assert left.store.end_position == p.master.store.written_position
                    await p.start(gone)
                    await until(lambda: len(p.master.replication.listener.connections) == 2)
                await p.stop(1)
                await p.stop(2)
                assert (await send(peer, b"both are away")).code == LATE
                await p.start(1)
                await p.start(2)
                for broker_id in (1, 2):
                    slave = p.brokers[broker_id].store
                    await until(partial(_as_far, slave, p.master.store))
                    log = p.master.store.log_bytes(0, 1 << 16)
                    assert slave.log_bytes(0, 1 << 16) == log
                    assert slave.queue_range("T", 0) == (0, 3)

    run(main())


def test_all_of_the_set_are_waited_for_until_one_leaves_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            for number in (1, 2, 3):
                await g.start(number)
                await g.in_sync(number)
            master = await g.in_sync(3)
            slaves = [b for b in g.brokers.values() if b is not master]
            async with producer(g.namesrv.address) as out:
                await out.send(Message(topic="T", body=b"three have it"))
                # Whoever is in the set has what was acknowledged.
                assert {b.store.end_position for b in slaves} == {master.store.written_position}
                gone = next(number for number, b in g.brokers.items() if b is slaves[0])
                await g.stop(gone)
                # A send is held until the one that left is out of the set, and then answered.
                await out.send(Message(topic="T", body=b"two have it"))
                assert slaves[1].store.end_position == master.store.written_position
                await g.in_sync(2)
                # The master goes: the one of the set takes over, the one that was away may not, however early it is.
                first = next(number for number, b in g.brokers.items() if b is master)
                await g.stop(first)
                back = asyncio.create_task(g.start(gone))
                await until(lambda: slaves[1].role.kind is Role.MASTER)
                await back
                await g.in_sync(2)
                await out.send(Message(topic="T", body=b"of the new master"))
            store = slaves[1].store
            await until(lambda: shown(store) == 3)
            await g.start(first)
            await g.in_sync(3)
            ends = [b.store for b in g.brokers.values()]
            await until(lambda: len({s.written_position for s in ends}) == 1)
            assert len({bytes(s.log_bytes(0, 1 << 16)) for s in ends}) == 1

    run(main())


def test_a_slave_of_a_slave_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair(tmp_path) as p:
            async with connected(p.master.address) as peer:
                await create(peer)
                await send(peer, b"one")
            await p.equal()
            middle = p.slave.replication.listener
            refused = middle.refused_count
            address = f"127.0.0.1:{middle.port}"
            with caplog.at_level(logging.WARNING):
                third = await p.start(2, ha_master_address=address)
                await until(lambda: middle.refused_count > refused)
            assert third.store.end_position == 0
            assert not middle.connections
            assert any("no master" in record.getMessage() for record in caplog.records), caplog.text

    run(main())


@pytest.mark.shows("topics deleted at the master, the quarantine and offsets set by hand reach slaves of ours")
def test_a_deletion_beyond_the_logs_that_are_left_hides_nothing_that_comes_later(tmp_path: Path) -> None:
    """Slaves that are behind hear of it at once; the master dies with what they lack, and other messages stand there.

    They were in no queue of the next master's slaves, nor of its own once it had started again.
    """

    async def main() -> None:
        async with group(tmp_path) as g:
            for number in (1, 2, 3):
                await g.start(number)
                await g.in_sync(number)
            first = await g.in_sync(3)
            others = [b for b in g.brokers.values() if b is not first]
            async with producer(g.namesrv.address, retries=20, send_timeout_ms=20_000) as out:
                await out.send(Message(topic="T", body=b"deleted"))
                for slave in others:
                    slave.store.take_deletions({"T": slave.store.written_position + (1 << 20)})
                await g.stop(next(number for number, b in g.brokers.items() if b is first))
                for i in range(5):
                    await out.send(Message(topic="T", body=b"%d" % i))
            await g.in_sync(2)
            one, two = (b.store for b in others)
            await until(lambda: [shown(one), shown(two)] == [5, 5])

    run(main())
