"""Brokers under a controller, all ours: who becomes master, what a lost one leaves, what it comes back to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.live.support import connected, pulled, run, settings, until
from tests.live.test_replication import producer

from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.model import Message
from rocketspark.namesrv.server import NameServer

QUICK = {
    "heartbeat_interval_ms": 100,
    "metadata_interval_ms": 200,
    "sync_set_check_interval_ms": 200,
    "controller_timeout_ms": 1500,
    "member_group_interval_ms": 100,
    "ha_heartbeat_interval_ms": 200,
    "slave_not_caught_up_ms": 1500,
}


class Group:
    """A controller, a NameServer and brokers of one name, by the number of their store folder."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.changes = {"log_file_bytes": 1 << 16, "all_ack_in_sync_set": True, "slave_read": True} | QUICK | changes
        self.namesrv = NameServer(port=0)
        self.controller = self._controller(0)
        self.brokers: dict[int, BrokerServer] = {}

    def _controller(self, port: int) -> ControllerServer:
        quick = {"scanNotActiveBrokerInterval": "200", "scanInactiveMasterInterval": "200"}
        made = ControllerSettings(quick, listen=f"127.0.0.1:{port}", folder=str(self.folder / "controller"))
        return ControllerServer(made)

    async def start(self, number: int, **changes: Any) -> BrokerServer:
        made = settings(
            self.folder / f"store{number}",
            controller_mode=True,
            controller_addresses=self.controller.address,
            broker_role="SLAVE",
            broker_id=-1,
            namesrv_addresses=self.namesrv.address,
            **self.changes | changes,
        )
        self.brokers[number] = broker = BrokerServer(made)
        await broker.start()
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).close()

    def master(self) -> BrokerServer | None:
        return next((b for b in self.brokers.values() if b.role.kind is Role.MASTER), None)

    async def in_sync(self, count: int) -> BrokerServer:
        def found() -> BrokerServer | None:
            master = self.master()
            if master is None:
                return None
            in_sync = master.replication.controlled.in_sync
            return master if in_sync is not None and len(in_sync.set.members) == count else None

        return await until(found)


@asynccontextmanager
async def group(folder: Path, **changes: Any) -> AsyncIterator[Group]:
    found = Group(folder, **changes)
    await found.namesrv.start()
    await found.controller.start()
    try:
        yield found
    finally:
        for number in list(found.brokers):
            await found.stop(number)
        await found.controller.close()
        await found.namesrv.close()


def test_the_first_is_master_and_the_next_joins_the_set(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            assert second.role.kind is Role.SLAVE
            async with producer(g.namesrv.address) as out:
                for i in range(50):
                    await out.send(Message(topic="T", body=b"%d" % i))
            await until(lambda: second.store.written_position == first.store.written_position)
            assert (tmp_path / "store1/brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
            assert (tmp_path / "store2/brokerIdentity").read_text() == "DefaultCluster#broker-a#2"

    run(main())


def test_the_other_takes_over_and_the_old_one_comes_back_as_slave(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address, retries=20, send_timeout_ms=20_000) as out:
            await g.start(1)
            await until(lambda: g.master())
            await g.start(2)
            await g.in_sync(2)
            for i in range(30):
                await out.send(Message(topic="T", body=b"%d" % i))
            await g.stop(1)
            assert (await until(lambda: g.master())) is g.brokers[2]
            for i in range(30, 60):
                await out.send(Message(topic="T", body=b"%d" % i))
            await g.start(1)
            await g.in_sync(2)
            assert g.brokers[1].role.kind is Role.SLAVE
            one, two = g.brokers[1].store, g.brokers[2].store
            await until(lambda: one.written_position == two.written_position)
            bodies = sorted(int(r.body) for r in one.iterate(0) if r.topic == b"T")
            assert bodies == list(range(60))

    run(main())


def test_a_topic_made_just_before_the_kill_is_readable_at_the_new_master(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            await g.start(1)
            await until(lambda: g.master())
            second = await g.start(2)
            await g.in_sync(2)
            assert second.replication.synchronize is not None
            # It hears of no topic any more.
            await second.replication.synchronize.stop()
            sent = [await out.send(Message(topic="New", body=b"%d" % i)) for i in range(8)]
            await g.stop(1)
            await until(lambda: g.master() is second)
            async with connected(second.address) as peer:
                for one in sent:
                    (found,) = await pulled(peer, "New", one.queue.queue_id, one.queue_offset, count_max=1)
                    assert found.body == b"%d" % sent.index(one)

    run(main())
