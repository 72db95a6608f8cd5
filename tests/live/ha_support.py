"""Both ends of an HA link in the test's own loop, each with a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.live.support import until

from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.link.links import (
    MasterLink,
    ReplicatedLog,
    SlaveLink,
    SwitchMasterLink,
    SwitchSlaveLink,
)
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.broker.replication.waits import ReplicaWaits
from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol.message import properties
from rocketspark.store import Store, StoreSettings
from rocketspark.store.files.epoch_file import EpochList

BORN = bytes.fromhex("7f0000010000c001")
FILE_BYTES = 1 << 18
# Long: what ends a test early is an event.
SETTINGS = BrokerSettings(ha_heartbeat_interval_ms=60_000, ha_housekeeping_interval_ms=120_000)


def store_in(root: Path, *, file_bytes: int = FILE_BYTES) -> Store:
    small = StoreSettings(
        root=str(root), log_file_bytes=file_bytes, queue_file_units=10_000, index_slots=10, index_entries=20_000
    )
    store = Store(small)
    store.open()
    return store


def put(store: Store, body: bytes) -> int:
    text = properties.encode({}).encode()
    store.append(b"T", 0, body, text, 0, None, None, None, 1_700_000_000_000, 0, 0, 1_700_000_000_000, BORN)
    return store.written_position


def log_of(store: Store) -> bytes:
    at, found = store.min_position, b""
    while piece := store.log_bytes(at, 1 << 20):
        found += piece
        at += len(piece)
    return found


async def assert_equal(copy: Store, log: Store) -> None:
    # Readable a turn after the master was told.
    await until(lambda: copy.written_position == log.written_position)
    assert log_of(copy) == log_of(log)


class Master:
    """A store, its port of replication and who waits for it."""

    def __init__(self, log: ReplicatedLog, settings: BrokerSettings = SETTINGS, *, epochs: EpochList | None) -> None:
        self.log = log
        self.troubles = Troubles()
        self.waits = ReplicaWaits(settings)

        def make(now_s: float) -> MasterLink:
            if epochs is None:
                return MasterLink(log, settings, now_s)
            return SwitchMasterLink(log, settings, now_s, epochs=epochs, confirmed=lambda: log.end_position)

        self.listener = HaListener(make, self.troubles, self.waits, connections_max=3)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    async def held_by(self, copies: int) -> bool:
        """Whether so many hold all there is, within slaveTimeout."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waits.reached(self.log.end_position, copies, told.set_result)
        self.listener.wake()
        return await told


@asynccontextmanager
async def master_of(
    log: ReplicatedLog, settings: BrokerSettings = SETTINGS, *, epochs: EpochList | None = None
) -> AsyncIterator[Master]:
    master = Master(log, settings, epochs=epochs)
    await master.listener.start("127.0.0.1", 0)
    try:
        yield master
    finally:
        await master.listener.close()


class Slave:
    def __init__(self, log: Store, settings: BrokerSettings, epochs: EpochList | None, replica_id: int) -> None:
        self.log = log
        self.troubles = Troubles()
        self.told = 0
        self.confirmed = 0

        def confirm(position: int) -> None:
            self.confirmed = position

        def make(now_s: float) -> SlaveLink:
            if epochs is None:
                return SlaveLink(log, settings, now_s)
            return SwitchSlaveLink(log, settings, now_s, epochs=epochs, replica_id=replica_id, confirm=confirm)

        def appended() -> None:
            self.told += 1
            log.dispatch_received()

        self.client = HaClient(make, self.troubles, on_appended=appended, retry_s=0.01)


@asynccontextmanager
async def slave_of(
    log: Store,
    address: str | None,
    settings: BrokerSettings = SETTINGS,
    *,
    epochs: EpochList | None = None,
    replica_id: int = 2,
) -> AsyncIterator[Slave]:
    slave = Slave(log, settings, epochs, replica_id)
    slave.client.set_address(address)
    slave.client.start()
    try:
        yield slave
    finally:
        await slave.client.close()
