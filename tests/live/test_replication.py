"""A master and its slave, both ours: what is copied, what waits, what a slave answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run, settings, until

from rocketspark.broker.server import BrokerServer
from rocketspark.client import AsyncProducer
from rocketspark.model import Message
from rocketspark.namesrv.server import NameServer

pytestmark = pytest.mark.shows(
    "ours+ours: three files equal; killed in mid-record; late, from the first file; frozen",
)


class Pair:
    """A NameServer and brokers of one name; `master`, `slave` are those that run."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.changes = {"log_file_bytes": 1 << 16, "slave_read": True, "ha_heartbeat_interval_ms": 200} | changes
        self.namesrv = NameServer(port=0)
        self.brokers: dict[int, BrokerServer] = {}

    async def start(self, broker_id: int, **changes: Any) -> BrokerServer:
        role = "SLAVE" if broker_id else "SYNC_MASTER"
        own = {"broker_role": role, "broker_id": broker_id, "namesrv_addresses": self.namesrv.address}
        made = settings(self.folder / f"store{broker_id}", **own | self.changes | changes)
        self.brokers[broker_id] = broker = BrokerServer(made)
        await broker.start()
        return broker

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).close()

    @property
    def master(self) -> BrokerServer:
        return self.brokers[0]

    @property
    def slave(self) -> BrokerServer:
        return self.brokers[1]

    async def equal(self) -> None:
        """Wait until the slave has and shows all that the master has; compare byte for byte."""
        master, slave = self.master.store, self.slave.store
        await until(lambda: slave.written_position == master.written_position)
        at = slave.min_position
        while at < master.written_position:
            piece = master.log_bytes(at, 1 << 20)
            assert piece == slave.log_bytes(at, 1 << 20)
            at += len(piece)
        for topic, ids in master.queues().items():
            for queue_id in ids:
                assert slave.queue_range(topic, queue_id) == master.queue_range(topic, queue_id)


@asynccontextmanager
async def pair(folder: Path, **changes: Any) -> AsyncIterator[Pair]:
    found = Pair(folder, **changes)
    await found.namesrv.start()
    try:
        await found.start(0)
        await found.start(1)
        yield found
    finally:
        for broker_id in list(found.brokers):
            await found.stop(broker_id)
        await found.namesrv.close()


@asynccontextmanager
async def producer(namesrv: str, **options: Any) -> AsyncIterator[AsyncProducer]:
    made = AsyncProducer(group="P", namesrv=namesrv, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def test_three_files_are_copied(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as p, producer(p.namesrv.address) as out:
            for i in range(400):
                await out.send(Message(topic="T", body=b"%d" % i * 100, tag="A", keys=f"k{i}"))
            assert len(p.master.store.log.mapped_files.starts) >= 3
            await p.equal()

    run(main())
