"""The HA link over real sockets, between stores: equal logs, quick acks, peers that stall, go or speak nonsense."""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tests.live.ha_support import FILE_BYTES, Master, assert_equal, log_of, master_of, put, slave_of, store_in
from tests.live.support import run, until

from rocketspark.broker.replication.link.ha_listener import UNSENT_BYTES_MAX
from rocketspark.broker.replication.link.links import LinkState
from rocketspark.broker.replication.standing import master_status, slave_status
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.protocol import ha
from rocketspark.store import Store
from rocketspark.store.files.epoch_file import EpochList

pytestmark = pytest.mark.shows(
    "our slave of an official master, its slave of ours: cut off, killed, late; the logs' files byte-equal, "
    "sends answered as each acknowledges",
    "another file size, a log that diverges, is ahead or removed, foreign protocols, garbage, frames of any "
    "size, peers that stall or do not read",
    "heartbeats, housekeeping, flow control by all bytes, a new address at once",
)


@pytest.fixture
def stores(tmp_path: Path) -> Any:
    opened = []

    def make(name: str, *, replica: bool = False, file_bytes: int = FILE_BYTES) -> Store:
        store = store_in(tmp_path / name, file_bytes=file_bytes)
        opened.append(store)
        if replica:
            store.become_replica()
        return store

    yield make
    for store in opened:
        store.close()


@pytest.mark.parametrize("switching", [False, True], ids=["classic", "switching"])
def test_logs_become_equal_and_each_message_is_acknowledged(stores: Any, switching: bool) -> None:
    async def main() -> None:
        log, copy = stores("m"), stores("s", replica=True)
        epochs, others = (EpochList(), EpochList()) if switching else (None, None)
        if epochs is not None:
            epochs.begin(3, 0)
        for number in range(1000):
            put(log, bytes([number % 256]) * 900)
        async with master_of(log, epochs=epochs) as master, slave_of(copy, master.address, epochs=others) as slave:
            # What was there before, then one at a time, then many at once.
            assert await master.held_by(2)
            for number in range(50):
                put(log, bytes([number]) * 300)
                assert await master.held_by(2)
            for number in range(500):
                put(log, bytes([number % 256]) * 400)
            assert await master.held_by(2)
            await assert_equal(copy, log)
            assert len(log_of(log)) > 4 * FILE_BYTES
            queue = copy.consume_queues.find("T", 0)
            assert queue is not None
            assert queue.next == 1550
            assert (slave.client.state, slave.client.connects_count) == (LinkState.TRANSFER, 1)
            assert slave.told > 0
            link = master.listener.connections[0].link
            assert (link.replica_id, link.acked) == (2 if switching else None, log.end_position)
            now_s = asyncio.get_running_loop().time()
            status = master_status(master.listener, log.end_position, now_s)
            assert status["inSyncSlaveNums"] == 1
            assert status["haConnectionInfo"][0]["diff"] == 0
            told = slave_status(slave.client, copy.end_position, now_s)["haClientRuntimeInfo"]
            assert (told["masterAddr"], told["maxOffset"], told["activated"]) == (
                master.address,
                log.end_position,
                True,
            )
            if others is not None:
                assert others.starts == ((3, 0),)
                assert slave.confirmed > 0
            assert not master.troubles.counts + slave.troubles.counts

    run(main())


def test_without_a_slave_a_send_waits_for_its_timeout_and_no_longer(stores: Any) -> None:
    async def main() -> None:
        log = stores("m")
        settings = BrokerSettings(slave_timeout_ms=50)
        async with master_of(log, settings) as master:
            put(log, b"alone")
            assert not await master.held_by(2)
            assert await master.held_by(1)
            async with slave_of(stores("s", replica=True), master.address, settings):
                await until(lambda: master.listener.in_sync_count(log.end_position) == 1)
                assert await master.held_by(2)
                assert not await master.held_by(3)

    run(main())


def test_a_new_address_is_taken_at_once_and_none_ends_the_link(stores: Any) -> None:
    async def main() -> None:
        log, copy = stores("m"), stores("s", replica=True)
        put(log, b"one")
        async with master_of(log) as one, master_of(log) as other, slave_of(copy, None) as slave:
            assert slave.client.state is LinkState.READY
            slave.client.set_address(one.address)
            await until(lambda: one.listener.in_sync_count(log.end_position) == 1)
            slave.client.set_address(other.address)
            await until(lambda: other.listener.in_sync_count(log.end_position) == 1 and not one.listener.connections)
            slave.client.set_address(None)
            await until(lambda: not other.listener.connections)
            put(log, b"two")
            slave.client.set_address(one.address)
            assert await one.held_by(2)
            await assert_equal(copy, log)
            assert slave.client.connects_count == 3

    run(main())


def test_a_cut_link_is_made_again_and_nothing_is_doubled(stores: Any) -> None:
    async def main() -> None:
        log, copy = stores("m"), stores("s", replica=True)
        async with master_of(log) as master, slave_of(copy, master.address):
            for number in range(20):
                put(log, bytes([number]) * 20_000)
                master.listener.wake()
                await until(lambda: master.listener.connections)
                await until(lambda: copy.end_position > 0)
                master.listener.end_connections()
            await until(lambda: master.listener.connections)
            assert await master.held_by(2)
            await assert_equal(copy, log)

    run(main())


def test_a_slave_that_does_not_read_costs_the_master_a_few_frames(stores: Any) -> None:
    async def main() -> None:
        log = stores("m", file_bytes=32 << 20)
        for _ in range(400):
            put(log, bytes(60_000))
        async with master_of(log) as master:
            _, writer = await asyncio.open_connection("127.0.0.1", master.listener.port, limit=1024)
            cast(asyncio.ReadTransport, writer.transport).pause_reading()
            writer.write(ha.encode_report(0))
            connection = (await until(lambda: master.listener.connections))[0]
            await until(lambda: connection.link.position > 0)
            for _ in range(100):
                master.listener.wake()
                await asyncio.sleep(0)
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() <= UNSENT_BYTES_MAX + ha.FRAME_BYTES_MAX
            assert connection.link.position < 16 << 20
            # Others are served meanwhile.
            async with slave_of(stores("s", replica=True, file_bytes=32 << 20), master.address):
                assert await master.held_by(2)
            writer.close()
            await until(lambda: not master.listener.connections)

    run(main())


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name.endswith("replication") and r.levelno >= logging.WARNING]


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "rocketmq": bytes.fromhex("000000f3000000ef") + b'{"code":103',
    "controller mode": ha.encode_slave_handshake(ha.SlaveHandshake(4)),
    "negative": b"\xff" * 8,
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_master_closes_who_speaks_nonsense_with_one_line(
    stores: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        log = stores("m")
        put(log, b"kept")
        async with master_of(log) as master, slave_of(stores("s", replica=True), master.address):
            assert await master.held_by(2)
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", master.listener.port)
                writer.write(GARBAGE[what])
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            assert sum(master.troubles.counts.values()) == 3
            # The good slave is still there, on the connection it had.
            assert len(await until(lambda: len(master.listener.connections) == 1 and master.listener.connections)) == 1
            put(log, b"more")
            assert await master.held_by(2)

    run(main())
    assert len(lines_of(caplog)) == 1


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(8) + b"\x7f\xff\xff\xff", b"\xff" * 64, ha.encode_frame(0, bytes(200))],
    ids=["http", "huge frame", "ones", "no record"],
)
def test_a_slave_leaves_who_sends_nonsense_with_one_line_and_a_long_pause(
    stores: Any, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        copy = stores("s", replica=True)
        visits = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal visits
            visits += 1
            await reader.readexactly(8)
            writer.write(answer)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with slave_of(copy, f"127.0.0.1:{port}") as slave:
            await until(lambda: slave.troubles.counts.total() == 1)
            # A pause of a minute; whoever mended it asks at once.
            await asyncio.sleep(0.1)
            assert visits == 1
            slave.client.retry()
            await until(lambda: slave.troubles.counts.total() == 2)
            assert (visits, copy.end_position) == (2, 0)
        server.close()

    run(main())
    assert len(lines_of(caplog)) == 1


@pytest.mark.shows("what fails before a connection")
@pytest.mark.parametrize(
    "error", [StoreUnwritable("no file can be opened"), KeyError("a mistake")], ids=["store", "any"]
)
def test_what_fails_before_a_connection_does_not_end_the_copying(stores: Any, error: Exception) -> None:
    async def main() -> None:
        log, copy = stores("m"), stores("s", replica=True)
        put(log, b"one")
        failed = asyncio.Event()

        async def check(address: str) -> None:
            if not failed.is_set():
                failed.set()
                raise error

        async with master_of(log) as master, slave_of(copy, master.address) as slave:
            slave.client._check = check
            await failed.wait()
            slave.client.retry()
            assert await master.held_by(2)
            await assert_equal(copy, log)

    run(main())


def test_a_connection_made_anew_by_the_slave_is_no_master_that_hangs_up(stores: Any) -> None:
    async def main() -> None:
        visits: list[asyncio.StreamWriter] = []
        second = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            visits.append(writer)
            if len(visits) == 1:
                slave.client.again()
            else:
                second.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with slave_of(stores("s", replica=True), f"127.0.0.1:{port}") as slave:
            await second.wait()
            assert slave.troubles.counts.total() == 0
        server.close()

    run(main())


def test_a_master_that_hangs_up_at_once_is_asked_less_and_less(stores: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log = stores("m")
        async with master_of(log) as master:
            master.listener.accepting = False
            async with slave_of(stores("s", replica=True), master.address) as slave:
                await until(lambda: slave.troubles.counts["closed"] == 4)
                master.listener.accepting = True
                put(log, b"now")
                await until(
                    lambda: master.listener.in_sync_count(log.end_position) == 1 and master.listener.connections
                )
                assert await master.held_by(2)

    run(main())
    assert sum("ended the connection without a word" in line for line in lines_of(caplog)) == 1


def test_a_silent_slave_and_a_silent_master_are_left(stores: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log, short = stores("m"), BrokerSettings(ha_heartbeat_interval_ms=30, ha_housekeeping_interval_ms=200)
        put(log, b"x")
        async with master_of(log, short) as master:
            _, writer = await asyncio.open_connection("127.0.0.1", master.listener.port)
            writer.write(ha.encode_report(0))
            await until(lambda: master.troubles.counts["stalled"] == 1)
            assert not master.listener.connections
            writer.close()
            # Signs of life both ways keep a link without messages.
            async with slave_of(stores("s", replica=True), master.address, short) as slave:
                await asyncio.sleep(0.5)
                assert slave.client.connects_count == 1
                assert len(master.listener.connections) == 1

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with slave_of(stores("s2", replica=True), f"127.0.0.1:{port}", short) as slave:
            await until(lambda: slave.troubles.counts["stalled"] >= 2)
        server.close()

    run(main())
    assert len(lines_of(caplog)) == 2


def test_a_slave_ahead_stays_connected_and_is_not_counted(stores: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log, copy = stores("m"), stores("s")
        for _ in range(3):
            put(copy, b"of another log")
        copy.become_replica()
        put(log, b"less")
        settings = BrokerSettings(slave_timeout_ms=100, ha_heartbeat_interval_ms=20)
        before = log_of(copy)
        async with master_of(log, settings) as master, slave_of(copy, master.address, settings) as slave:
            await until(lambda: master.troubles.counts["ahead"] == 1)
            for _ in range(10):
                put(log, b"more and more")
            assert not await master.held_by(2)
            assert log_of(copy) == before
            assert (slave.client.connects_count, len(master.listener.connections)) == (1, 1)

    run(main())
    assert ["ahead" in line for line in lines_of(caplog)] == [True]


@pytest.mark.shows("places on the HA port without access control")
def test_where_all_places_are_taken_who_holds_least_makes_room_and_nobody_that_holds_all(stores: Any) -> None:
    async def main() -> None:
        log = stores("m")
        put(log, b"x" * 1000)
        async with master_of(log) as master:
            listener = master.listener
            ends: list[asyncio.StreamWriter] = []

            async def come(position: int, host: str = "127.0.0.1") -> None:
                ends.append((await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(host, 0)))[1])
                address = ":".join(map(str, ends[-1].get_extra_info("sockname")))
                ends[-1].write(struct.pack(">q", position))
                await until(lambda: any(c.address == address and c.link.acked >= 0 for c in listener.connections))

            def there() -> set[int]:
                ports = {end.get_extra_info("sockname")[1]: at for at, end in enumerate(ends)}
                return {ports[int(c.address.rpartition(":")[2])] for c in listener.connections}

            end = log.end_position
            await come(0, "127.0.0.2")
            await come(end)
            await come(0)
            # Of the host with the most: not the stranger that came alone, nor the replica that holds all.
            await come(end)
            assert there() == {0, 1, 3}
            await come(0, "127.0.0.2")
            assert there() == {1, 3, 4}
            for writer in ends:
                writer.close()
            await until(lambda: not listener.connections)
            for _ in range(3):
                await come(end)
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            await until(lambda: listener.refused_count == 1)
            assert there() == {5, 6, 7}
            for one in [writer, *ends]:
                one.close()

    run(main())


def test_the_same_slave_connected_anew_replaces_its_old_connection(stores: Any) -> None:
    async def main() -> None:
        log, epochs = stores("m"), EpochList()
        epochs.begin(1, 0)
        end = put(log, b"x")
        async with master_of(log, epochs=epochs) as master:
            ends = []
            for replica_id in (3, 2, 2):
                reader, writer = await asyncio.open_connection("127.0.0.1", master.listener.port)
                writer.write(ha.encode_slave_handshake(ha.SlaveHandshake(replica_id)))
                await reader.readexactly(32)
                writer.write(ha.encode_switch_report(0))
                ends.append((reader, writer))

            def acked() -> list[tuple[int | None, int]]:
                return [(each.link.replica_id, each.link.acked) for each in master.listener.connections]

            await until(lambda: acked() == [(3, 0), (2, 0)])
            await ends[1][0].read()
            # The other slave and the new connection stay, however often they report.
            for _, writer in (ends[0], ends[2]):
                writer.write(ha.encode_switch_report(end))
            await until(lambda: acked() == [(3, end), (2, end)])
            for _, writer in ends:
                writer.close()

    run(main())


def test_a_port_in_use_is_named(stores: Any) -> None:
    async def main() -> None:
        async with master_of(stores("m")) as master:
            with pytest.raises(ConfigError, match="haListenPort"):
                await Master(stores("n"), epochs=None).listener.start("127.0.0.1", master.listener.port)

    run(main())
