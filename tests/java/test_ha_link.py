"""The HA link with official brokers: our slave of their master, their slave of our master; logs equal byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.java.apache import ask
from tests.java.apache_pair import PairBroker, PairNamesrv, ha_status, until
from tests.live.ha_support import log_of, master_of, put, slave_of, store_in
from tests.live.support import run
from tests.live.support import until as soon

from rocketspark.broker.settings import BrokerSettings
from rocketspark.store import Store
from rocketspark.store.files.epoch_file import EpochList

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows(
        "our slave of an official master, its slave of ours: cut off, killed, late; the logs' files "
        "byte-equal, sends answered as each acknowledges"
    ),
]
FILE_BYTES = 1 << 16
CONFIG = {"mappedFileSizeCommitLog": FILE_BYTES, "haSendHeartbeatInterval": 200}
# RocketMQ's slave reports first after its interval, and comes again 5 s after a loss.
SETTINGS = BrokerSettings(ha_heartbeat_interval_ms=500, slave_timeout_ms=15_000)
TOPIC = "replicated"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairNamesrv]:
    server = PairNamesrv(tmp_path_factory.mktemp("names"))
    yield server
    server.kill()


def send(broker: str, number: int) -> int:
    """Store a message in queue 0; the code of the answer."""
    ext = {"a": "group", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    body = b"%d " % number * (number * 37 % 900 + 1)
    return ask(broker, 310, body, ext | {"i": "", "j": "0", "k": "false", "m": "false"}).code


def follow(slave: PairBroker, ha_address: str) -> None:
    """Tell a slave where to copy from. 5.5.0 loses its own haMasterAddress: it is set before the client is made."""
    ext = {"masterHaAddress": ha_address, "masterFlushOffset": "0", "masterAddress": "127.0.0.1:1"}
    assert ask(slave.broker, 906, ext_fields=ext).code == 0


def files_of(store: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def holds(store: Path, log: Store) -> bool:
    """Whether a broker's files hold this log, from their first one on."""
    found = files_of(store)
    content = b"".join(found.values())
    start = min(found, default=0)
    return bool(found) and content[: log.end_position - start] == log_of(log)[start - log.min_position :]


@pytest.mark.soak
def test_our_slave_of_an_official_master(namesrv: PairNamesrv, tmp_path: Path) -> None:
    config = CONFIG | {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 300}
    master = PairBroker(tmp_path / "m", namesrv.namesrv, tmp_path / "store", config=config)
    copy = store_in(tmp_path / "copy", file_bytes=FILE_BYTES)
    copy.become_replica()

    async def main() -> None:
        # Alone it stores, and says that no slave has it.
        assert await asyncio.to_thread(send, master.broker, 0) == 12
        async with slave_of(copy, master.ha, SETTINGS) as slave:
            await soon(lambda: copy.end_position > 0)
            for number in range(1, 300):
                assert await asyncio.to_thread(send, master.broker, number) == 0
            # Cut off in the middle of everything, it comes again and goes on.
            slave.client.set_address(None)
            assert await asyncio.to_thread(send, master.broker, 300) == 12
            slave.client.set_address(master.ha)
            status = await asyncio.to_thread(ha_status, master.broker)
            end = status["masterCommitLogMaxOffset"]
            await soon(lambda: copy.written_position == end)
            assert await asyncio.to_thread(send, master.broker, 301) == 0
            await soon(lambda: copy.written_position > end)
            status = await asyncio.to_thread(ha_status, master.broker)
            assert status["inSyncSlaveNums"] == 1
            assert status["haConnectionInfo"][0]["slaveAckOffset"] == copy.end_position
            assert not slave.troubles.counts

    try:
        run(main())
        assert holds(tmp_path / "store", copy)
        assert len(files_of(tmp_path / "store")) > 3
        queue = copy.consume_queues.find(TOPIC, 0)
        assert queue is not None
        assert queue.next == 302
    finally:
        master.kill()
        copy.close()


@pytest.mark.soak
def test_an_official_slave_of_our_master(namesrv: PairNamesrv, tmp_path: Path) -> None:
    log = store_in(tmp_path / "log", file_bytes=FILE_BYTES)
    for number in range(300):
        put(log, b"%d " % number * (number * 37 % 900 + 1))
    store = tmp_path / "store"

    async def main() -> None:
        async with master_of(log, SETTINGS) as master:
            arguments = (tmp_path / "s", namesrv.namesrv, store, "classic", 1)
            slave = await asyncio.to_thread(PairBroker, *arguments, name="broker-s", config=CONFIG)
            follow(slave, master.address)
            try:
                # RocketMQ's own master would have begun at its last file: here the slave gets all of them.
                assert await master.held_by(2)
                assert min(files_of(store)) == 0
                for number in range(200):
                    put(log, b"%d " % number * (number * 53 % 900 + 1))
                    assert await master.held_by(2)
                # Killed while more is on its way, it comes again and gets the rest.
                for _ in range(50):
                    put(log, bytes(900))
                master.listener.wake()
                slave.kill()
                await soon(lambda: not master.listener.connections)
                put(log, b"while it is away")
                slave = await asyncio.to_thread(
                    PairBroker, *arguments, name="broker-s", config=CONFIG, port=int(slave.broker.rpartition(":")[2])
                )
                follow(slave, master.address)
                assert await master.held_by(2)
                assert not master.troubles.counts
            finally:
                slave.kill()

    try:
        run(main())
        assert holds(store, log)
        assert len(files_of(store)) > 4
    finally:
        log.close()


@pytest.mark.shows(
    "epoch file (byte for byte the official broker's), killed at any write; where two logs part; masters that "
    "take turns"
)
def test_our_slave_follows_an_official_master_under_a_controller(tmp_path: Path) -> None:
    names = PairNamesrv(tmp_path / "names", "controller")
    copy, epochs = store_in(tmp_path / "copy", file_bytes=FILE_BYTES), EpochList(str(tmp_path / "epochs"))
    copy.become_replica()
    master: PairBroker | None = None
    try:
        arguments = (tmp_path / "m", names.namesrv, tmp_path / "store", "controller")
        config = CONFIG | {"allAckInSyncStateSet": "false"}
        master = PairBroker(*arguments, controller=names.controller, config=config)

        async def main() -> None:
            nonlocal master
            assert master is not None
            for number in range(100):
                assert await asyncio.to_thread(send, master.broker, number) == 0
            async with slave_of(copy, master.ha, SETTINGS, epochs=epochs, replica_id=2) as slave:
                end = (await asyncio.to_thread(ha_status, master.broker))["masterCommitLogMaxOffset"]
                await soon(lambda: copy.written_position == end)
                # It dies and comes again with the next epoch.
                await asyncio.to_thread(master.kill)
                port = int(master.broker.rpartition(":")[2])
                master = await asyncio.to_thread(
                    PairBroker, *arguments, controller=names.controller, config=config, port=port
                )
                await asyncio.to_thread(until, lambda: send(master.broker, 100) == 0)
                for number in range(101, 150):
                    assert await asyncio.to_thread(send, master.broker, number) == 0
                end = (await asyncio.to_thread(ha_status, master.broker))["masterCommitLogMaxOffset"]
                await soon(lambda: copy.written_position == end)
                assert slave.confirmed == end

        run(main())
        assert holds(tmp_path / "store", copy)
        told = json.loads(ask(master.broker, 1007).body)
        assert epochs.starts == tuple((entry["epoch"], entry["startOffset"]) for entry in told["epochList"])
        assert len(epochs) == 2
        # The file is the official broker's, byte for byte.
        assert (tmp_path / "epochs").read_bytes() == (tmp_path / "store" / "epochFileCheckpoint").read_bytes()
    finally:
        if master is not None:
            master.kill()
        names.kill()
        copy.close()
