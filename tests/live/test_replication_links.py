"""A master and its slave, both ours: killed in mid-record, frozen, late, swapped by hand, ill-matched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.java.ha_relay import Relay
from tests.java.our_controller import OurServer
from tests.live.support import connected, create, pulled, run, sent, settings, until
from tests.live.test_replication import Pair
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark.broker.server import BrokerServer
from rocketspark.errors import RocketSparkError
from rocketspark.store import Store
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "ours+ours: three files equal; killed in mid-record; late, from the first file; frozen",
    "slaves that are ahead, diverged, of another file size; garbage, HTTP, TLS at the port; a store that "
    "cannot be written",
)

SHORT = {"ha_housekeeping_interval_ms": 600, "ha_heartbeat_interval_ms": 100}


@asynccontextmanager
async def master_alone(folder: Path, **changes: Any) -> AsyncIterator[tuple[Pair, Peer]]:
    """A master with topic T, no slave yet, and a connection to it."""
    p = Pair(folder, **{"in_sync_replicas": 1} | changes)
    await p.namesrv.start()
    try:
        await p.start(0)
        async with connected(p.master.address) as peer:
            await create(peer)
            yield p, peer
    finally:
        for broker_id in list(p.brokers):
            await p.stop(broker_id)
        await p.namesrv.close()


def relay_of(master: BrokerServer) -> Relay:
    """A relay to a master's port of replication."""
    return Relay(f"127.0.0.1:{master.replication.listener.port}")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_slave_killed_in_mid_record_goes_on_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with master_alone(tmp_path) as (p, peer):
            for number in range(300):
                await sent(peer, b"%d" % number * 100, "T", number % 4)
            relay = relay_of(p.master)
            port = free_ports(-2, 0, 1)
            config = {
                "brokerRole": "SLAVE",
                "brokerId": 1,
                "listenPort": port,
                "namesrvAddr": p.namesrv.address,
                "haMasterAddress": relay.address,
                "slaveReadEnable": "true",
                "storePathRootDir": tmp_path / "store1",
                "mappedFileSizeCommitLog": 1 << 16,
            }
            text = "".join(f"{key}={value}\n" for key, value in config.items())
            relay.freeze(after_bytes=60_000)
            slave = await asyncio.to_thread(OurServer, tmp_path / "slave", "broker", text)
            try:
                at_slave = p.master.replication.listener
                await until(lambda: relay.is_frozen)
                # What is sent is cut anywhere.
                assert p.master.store.log.record_at(32768) is None
                async with connected(f"127.0.0.1:{port}") as other:
                    await shows(other, 1)
                    assert len(await pulled_all(other)) < 300
                slave.kill()
                relay.thaw()
                await asyncio.to_thread(slave.start)
                await until(lambda: at_slave.connections and at_slave.connections[0].link.acked > 0)
                link = at_slave.connections[0].link
                await until(lambda: link.acked == p.master.store.written_position)
                await sent(peer, b"after", "T", 0)
                await until(lambda: link.acked == p.master.store.written_position)
                async with connected(f"127.0.0.1:{port}") as other:
                    theirs = await pulled_all(peer)
                    assert len(theirs) == 301
                    assert await pulled_all(other) == theirs
                assert await asyncio.to_thread(slave.stop) == 0
            finally:
                slave.kill()
                relay.close()
            assert_same_log(tmp_path / "store1", p.master.store)

    run(main())


async def shows(peer: Peer, count: int) -> None:
    """Wait until so many messages of topic T can be read."""
    async with asyncio.timeout(LIMIT_S):
        while len(await pulled_all(peer)) < count:
            await asyncio.sleep(0.02)


async def pulled_all(peer: Peer) -> list[bytes]:
    """All bodies of topic T, queue by queue."""
    found: list[bytes] = []
    for queue_id in range(4):
        offset = 0
        while offset >= 0:
            try:
                got = await pulled(peer, "T", queue_id, offset)
            except RocketSparkError:
                break
            found += [m.body for m in got]
            offset = got[-1].queue_offset + 1 if got else -1
    return found


def assert_same_log(folder: Path, store: Store) -> None:
    """A closed store's log files hold what another store's log holds."""
    at = 0
    for path in sorted((folder / "commitlog").iterdir()):
        assert int(path.name) == at
        data = path.read_bytes()
        while at < min(int(path.name) + len(data), store.written_position):
            piece = store.log_bytes(at, 1 << 20)
            begin = at - int(path.name)
            assert data[begin : begin + len(piece)] == piece, at
            at += len(piece)
    assert at == store.written_position


def test_a_frozen_link_is_closed_on_both_sides_and_caught_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with master_alone(tmp_path, **SHORT) as (p, peer):
            relay = relay_of(p.master)
            await p.start(1, ha_master_address=relay.address)
            await sent(peer, b"before")
            await p.equal()
            caplog.clear()
            relay.freeze()
            await sent(peer, b"meanwhile")
            listener, client = p.master.replication.listener, p.slave.replication.client
            await until(lambda: not listener.connections)
            assert listener.troubles.counts["stalled"] == 1
            await until(lambda: client.connects_count >= 2)
            relay.thaw()
            await p.equal()
            assert p.slave.store.queue_range("T", 0) == (0, 2)
            lines = warnings(caplog)
            assert [line for line in lines if "the slave sent nothing for" in line]
            assert [line for line in lines if "the master sent nothing for" in line]
            assert len(lines) == 2
            relay.close()

    run(main())


def test_a_late_slave_begins_at_the_first_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with master_alone(tmp_path) as (p, peer):
            for number in range(400):
                await sent(peer, b"%d" % number * 100, "T", number % 4)
            assert len(p.master.store.log.mapped_files.starts) >= 3
            await p.start(1)
            await p.equal()
            assert p.slave.store.min_position == 0
            assert p.slave.store.queue_range("T", 3) == (0, 100)

    run(main())


@pytest.mark.shows("roles swapped by a restart, ours and mixed")
def test_roles_are_swapped_by_a_restart_and_the_logs_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with master_alone(tmp_path) as (p, peer):
            await p.start(1)
            for number in range(10):
                await sent(peer, b"%d" % number)
            await p.equal()
            await p.stop(1)
            await p.stop(0)
            for place in range(2):
                # What was the other's store is the master's now.
                master_folder, slave_folder = (tmp_path / f"store{(place + k + 1) % 2}" for k in range(2))
                await p.start(0, store_root=str(master_folder))
                await p.start(1, store_root=str(slave_folder))
                async with connected(p.master.address) as now:
                    assert await sent(now, b"after", "T", 0) == 10 + place
                    await p.equal()
                    assert len(await pulled_all(now)) == 11 + place
                await p.stop(1)
                await p.stop(0)

    run(main())


def store_with(folder: Path, count: int, body: bytes, **changes: Any) -> None:
    """A store of another master's."""

    async def fill() -> None:
        made = BrokerServer(settings(folder, **{"log_file_bytes": 1 << 16} | changes))
        await made.start()
        try:
            async with connected(made.address) as peer:
                await create(peer)
                for _ in range(count):
                    await sent(peer, body)
        finally:
            await made.close()

    run(fill())


@pytest.mark.shows("a slave whose log is not a copy of its master's")
@pytest.mark.parametrize(
    ("others", "changes", "text"),
    [
        # Further than the master's.
        ((200, b"x" * 100), {}, "and this master"),
        # Of bytes that are no record where it ends.
        ((3, b"y" * 7), {}, "begin no record"),
        # Of other messages, where one of the master's begins.
        ((1, b"y" * 500), {}, "no copy of this master's"),
        # Empty, with files of another size.
        (None, {"log_file_bytes": 1 << 17}, "set mappedFileSizeCommitLog as the master has it"),
    ],
    ids=["ahead", "diverged", "other messages", "file-size"],
)
def test_a_slave_that_does_not_fit_is_one_line_and_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, others: Any, changes: Any, text: str
) -> None:
    if others:
        store_with(tmp_path / "store2", *others)

    async def main() -> None:
        async with master_alone(tmp_path, **SHORT) as (p, peer):
            await p.start(1)
            for number in range(90 if not others or others[0] < 100 else 5):
                await sent(peer, b"%d" % number * 500)
            await p.equal()
            caplog.clear()
            await p.start(2, **changes)
            await until(lambda: [line for line in warnings(caplog) if text in line])
            # Others go on, for more than a housekeeping of both sides.
            for _ in range(8):
                await sent(peer, b"more")
                await asyncio.sleep(0.1)
            await p.equal()
            # That its last record is another one it hears before it connects.
            assert p.brokers[2].replication.client.connects_count == ("copy of" not in text)
            lines = [line for line in warnings(caplog) if "replication" in line]
            assert len([line for line in lines if text in line]) == 1, lines

    run(main())


def test_nonsense_at_the_port_of_replication_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with master_alone(tmp_path) as (p, peer):
            await p.start(1)
            await sent(peer)
            await p.equal()
            caplog.clear()
            port = p.master.replication.listener.port
            hello = bytes.fromhex("16030102000100") + bytes(200)
            for nonsense in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", hello, b"\xff" * 64):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(nonsense)
                if nonsense[0] != 0xFF:
                    # A position beyond any log: nothing is sent.
                    assert await until_refused(p)
                else:
                    assert await asyncio.wait_for(reader.read(), 60) == b""
                writer.close()
                await until(lambda: len(p.master.replication.listener.connections) == 1)
                await sent(peer, b"more")
                await p.equal()
            assert 1 <= len(warnings(caplog)) <= 3

    run(main())


async def until_refused(p: Pair) -> bool:
    connections = p.master.replication.listener.connections
    await until(lambda: len(connections) == 1 or any(c.link.refused for c in connections))
    return True


def test_a_store_that_cannot_be_written_refuses_to_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with master_alone(tmp_path) as (p, _):
            (tmp_path / "store1").write_text("a file")
            with pytest.raises(RocketSparkError) as caught:
                await p.start(1)
            p.brokers.pop(1)
            assert str(tmp_path / "store1") in str(caught.value)
            assert "\n" not in str(caught.value)

    run(main())


@pytest.mark.shows("`haMasterAddress` of another cluster's or name's master")
@pytest.mark.parametrize("known_by", ["the port beside", "the NameServer"])
@pytest.mark.parametrize(("cluster", "name"), [("Theirs", "broker-a"), ("DefaultCluster", "theirs")])
def test_a_slave_of_another_s_master_copies_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cluster: str, name: str, known_by: str
) -> None:
    async def main() -> None:
        beside = known_by == "the port beside"
        if not beside and name != "theirs":
            return  # One NameServer takes them for brokers of one name.
        ports = {"listen_port": free_ports(-2, 0, 1)} if beside else {"ha_listen_port": free_ports(-1, 0)}
        async with master_alone(tmp_path, cluster_name=cluster, broker_name=name, **ports) as (p, peer):
            await sent(peer, b"theirs")
            address = f"127.0.0.1:{p.master.replication.listener.port}"
            caplog.clear()
            mine: dict[str, Any] = {"cluster_name": "DefaultCluster", "broker_name": "broker-a"}
            mine |= {"ha_master_address": address, "ha_listen_port": 0}
            slave = await p.start(1, **mine, listen_port=0, namesrv_addresses="" if beside else p.namesrv.address)
            troubles = slave.replication.troubles.counts
            await until(lambda: troubles["another-master"])
            # Told and counted once a minute, however often it would be tried; nothing was copied.
            await asyncio.sleep(0.3)
            assert troubles == {"another-master": 1}
            lines = [line for line in warnings(caplog) if "replication with" in line]
            assert len(lines) == 1
            assert f"replication with {address}: the master there is broker {name} of cluster {cluster}" in lines[0]
            assert slave.store.end_position == 0
            assert not p.master.replication.listener.connections
            # It is its own name's master that a slave copies from.
            if beside:
                await p.stop(1)
                await p.start(1, **mine | {"cluster_name": cluster, "broker_name": name}, listen_port=0)
                await p.equal()

    run(main())
