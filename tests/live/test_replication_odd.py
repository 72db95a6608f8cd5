"""A pair in odd times: a master that is stopped for a while, a clock that jumps, two masters of one name.

Rule: whatever it is, nothing acknowledged is lost, and it is told in one line.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache_pair import replicas
from tests.java.our_controller import OurServer
from tests.live.support import TOPIC, connected, create, pull, records, run, send, sent, until
from tests.live.test_controller_mode import Group, group
from tests.live.test_replication import Pair, pair
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark import machine
from rocketspark.broker.operations.clock_watch import ClockWatch
from rocketspark.broker.replication import members
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.errors import RocketSparkError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.transport.peer import Peer

OK, LATE = ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT
DAY_S = 86_400


def lines_with(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    # Clusters of other tests may live in threads of their own.
    mine = [r for r in caplog.records if r.thread == threading.get_ident() and r.levelno >= logging.WARNING]
    return [r.getMessage() for r in mine if text in r.getMessage()]


async def seen(address: str) -> list[bytes]:
    async with connected(address) as peer:
        found: list[bytes] = []
        while (answer := await pull(peer, TOPIC, 0, len(found), count_max=32, suspend_ms=0)).code == OK:
            found += [message.body for message in records(answer)]
        return found


async def shows(address: str, bodies: list[bytes]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await seen(address) != bodies:
            await asyncio.sleep(0.02)


async def answered(peer: Peer, prefix: str, count: int = 10) -> list[bytes]:
    """Send some, each of which must be acknowledged."""
    bodies = [f"{prefix} {number}".encode() for number in range(count)]
    for body in bodies:
        assert (answer := await send(peer, body)).code == OK, answer.remark
    return bodies


@asynccontextmanager
async def child_master(folder: Path, config: dict[str, Any]) -> AsyncIterator[tuple[OurServer, str]]:
    """A broker of the store 0 as a process, and its address."""
    port = free_ports(-2, 0, 1)
    text = {"listenPort": port, "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "mappedFileSizeCommitLog": 1 << 16}
    text |= {"storePathRootDir": folder / "store0", "slaveReadEnable": "true", "slaveTimeout": 500} | config
    lines = "".join(f"{key}={value}\n" for key, value in text.items())
    server = await asyncio.to_thread(OurServer, folder / "master", "broker", lines)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        server.kill()


@contextmanager
def stopped(server: OurServer) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


@pytest.mark.shows("a master that is stopped (SIGSTOP) and goes on, also after another was elected meanwhile")
def test_a_master_that_is_stopped_for_a_while_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        p = Pair(tmp_path, ha_housekeeping_interval_ms=600, ha_heartbeat_interval_ms=100)
        await p.namesrv.start()
        config = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "namesrvAddr": p.namesrv.address}
        config |= {"haSendHeartbeatInterval": 100, "haHousekeepingInterval": 5000}
        try:
            async with child_master(tmp_path, config) as (master, address), connected(address) as peer:
                await create(peer, queues=1)
                slave = await p.start(1)
                await until(lambda: slave.store.written_position > 0 or slave.replication.client.link)
                while (await send(peer, b"first")).code != OK:
                    await asyncio.sleep(0.02)
                first = len(await seen(address))
                acked = await answered(peer, "before")
                caplog.clear()
                count = slave.replication.client.connects_count
                with stopped(master):
                    waiting = asyncio.create_task(send(peer, b"meanwhile"))
                    await until(lambda: slave.replication.troubles.counts["stalled"])
                    # It listens, so to say: connected again, and again without a word.
                    await until(lambda: slave.replication.troubles.counts["stalled"] > 1)
                    assert not waiting.done()
                answer = await waiting
                assert answer.code in (OK, LATE)
                while (await send(peer, b"again")).code != OK:
                    await asyncio.sleep(0.02)
                acked += await answered(peer, "after")
                theirs = await seen(address)
                assert [body for body in theirs[first:] if body not in (b"meanwhile", b"again")] == acked
                assert theirs.count(b"meanwhile") == 1
                await shows(slave.address, theirs)
                assert slave.replication.client.connects_count > count
                assert len(lines_with(caplog, "replication with")) == 1
        finally:
            await p.stop(1)
            await p.namesrv.close()

    run(main())


@pytest.mark.shows("a master that is stopped (SIGSTOP) and goes on, also after another was elected meanwhile")
def test_a_stopped_master_that_was_replaced_answers_for_nothing(tmp_path: Path) -> None:
    """Sends lie in its buffers when it wakes: none is acknowledged, none is left in the log."""

    async def main() -> None:
        async with group(tmp_path) as g, AsyncExitStack() as stack:
            master, address = await stack.enter_async_context(child_master(tmp_path, controlled(g)))
            async with connected(address) as peer:
                async with asyncio.timeout(LIMIT_S):
                    while not await made(peer):
                        await asyncio.sleep(0.05)
                slave = await g.start(1)
                async with asyncio.timeout(LIMIT_S):
                    while len((await asyncio.to_thread(replicas, g.controller.address)).in_sync) < 2:
                        await asyncio.sleep(0.02)
                acked = await answered(peer, "before")
                with stopped(master):
                    late = [asyncio.create_task(send(peer, b"late %d" % number)) for number in range(5)]
                    await until(lambda: slave.role.kind is Role.MASTER)
                    async with connected(slave.address) as now:
                        while (await send(now, b"again")).code != OK:
                            await asyncio.sleep(0.02)
                        acked += await answered(now, "after")
                codes = {answer.code if not isinstance(answer, BaseException) else -1 for answer in await ended(late)}
                assert OK not in codes
                end = slave.store.written_position
                found = [body for body in await seen(slave.address) if body != b"again"]
                assert found == acked
                # It rejoins, and has what the other has.
                async with asyncio.timeout(LIMIT_S):
                    while [body for body in await seen(address) if body != b"again"] != acked:
                        await asyncio.sleep(0.05)
                assert slave.store.written_position >= end
                assert slave.role.kind is Role.MASTER

    run(main())


def controlled(g: Group) -> dict[str, Any]:
    return {
        "enableControllerMode": "true",
        "controllerAddr": g.controller.address,
        "brokerRole": "SLAVE",
        "brokerId": -1,
        "namesrvAddr": g.namesrv.address,
        "allAckInSyncStateSet": "true",
        "brokerHeartbeatInterval": 100,
        "syncControllerMetadataPeriod": 200,
        "checkSyncStateSetPeriod": 200,
        "controllerHeartBeatTimeoutMills": 1500,
        "haMaxTimeSlaveNotCatchup": 1500,
    }


async def made(peer: Peer) -> bool:
    try:
        await create(peer, queues=1)
    except RocketSparkError:
        return False
    return (await send(peer, b"again")).code == OK


async def ended(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


class Clock:
    """The wall clock of the whole process, `ahead_s` of the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0
        wall, wall_ns = time.time, time.time_ns
        monkeypatch.setattr(machine, "time", lambda: wall() + self.ahead_s)
        monkeypatch.setattr(machine, "time_ns", lambda: wall_ns() + self.ahead_s * 1_000_000_000)


@pytest.mark.shows("a clock that jumps")
def test_a_clock_that_jumps_disturbs_no_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        async with pair(tmp_path, in_sync_replicas=2) as p, connected(p.master.address) as peer:
            await create(peer, queues=1)
            await until(lambda: p.master.replication.listener.connections)
            acked = await answered(peer, "before")
            count = p.slave.replication.client.connects_count
            caplog.clear()
            for number, ahead_s in enumerate((DAY_S, -DAY_S, 0), start=1):
                clock.ahead_s = ahead_s
                acked += await answered(peer, f"jump {number}")
                # Each broker says so once.
                await until(lambda number=number: len(lines_with(caplog, "jumped by")) == 2 * number)  # type: ignore[misc]
            acked += await answered(peer, "after")
            await p.equal()
            assert await seen(p.master.address) == await seen(p.slave.address) == acked
            assert p.slave.replication.client.connects_count == count
            assert lines_with(caplog, "replication with") == []
            # The same after a restart, whose recovery goes by times and positions.
            await p.master.kill()
            await p.start(0)
            assert await seen(p.master.address) == acked

    run(main())


@pytest.mark.shows("a clock that jumps")
def test_a_clock_that_jumps_elects_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        async with group(tmp_path) as g:
            first = await g.start(1)
            await until(lambda: g.master() is first)
            second = await g.start(2)
            await g.in_sync(2)
            async with connected(first.address) as peer:
                await create(peer, queues=1)
                acked = await answered(peer, "before")
                for number, ahead_s in enumerate((DAY_S, -DAY_S, 0)):
                    clock.ahead_s = ahead_s
                    # Longer than several heartbeats and looks of the controller.
                    await asyncio.sleep(0.6)
                    acked += await answered(peer, f"jump {number}")
                assert (first.role.kind, first.role.epoch, second.role.kind) == (Role.MASTER, 1, Role.SLAVE)
                assert await g.in_sync(2) is first
            await shows(second.address, acked)

    run(main())


@pytest.mark.shows("a clock that jumps")
@pytest.mark.parametrize(("jump_s", "told"), [(0.0, 0), (1.5, 0), (-1.5, 0), (2.5, 1), (-3600.0, 1)])
def test_a_jump_is_told_once(jump_s: float, told: int, caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0, 50.0]
    watch = ClockWatch(lambda: now[0], lambda: now[1])
    for at in range(5):
        now[0] += 1.0 + (jump_s if at == 2 else 0.0)
        now[1] += 1.0
        assert watch.look() == pytest.approx(jump_s if at == 2 and told else 0.0)
    assert len(lines_with(caplog, f"jumped by {jump_s:+.1f} s")) == told


@pytest.mark.shows("mended: a clock that stands was told by no line, as each second it lost one alone")
@pytest.mark.parametrize(("is_set", "told"), [(True, 0), (False, 1)])
def test_a_clock_that_stands_is_told_once(is_set: bool, told: int, caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0, 50.0]
    watch = ClockWatch(lambda: now[0], lambda: now[1])
    for at in range(12):
        now[1] += 1.0
        if not 3 <= at < 8:
            now[0] += 1.0
        if at == 8 and is_set:
            now[0] += 5.0
        assert watch.look() == pytest.approx(-5.0 if at == 8 and told else 0.0)
    assert len(lines_with(caplog, "the clock of this machine stands")) == 1
    assert len(lines_with(caplog, "jumped by -5.0 s")) == told


@pytest.mark.shows("two masters by hand under one name")
def test_two_masters_by_hand_are_told_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(members, "ANOTHER_LOOK_S", 0.1)

    async def main() -> None:
        changes = {"in_sync_replicas": 2, "slave_timeout_ms": 300, "member_group_interval_ms": 100}
        async with pair(tmp_path, **changes) as p, connected(p.master.address) as peer:
            await create(peer, queues=1)
            await until(lambda: p.master.replication.listener.connections)
            acked = await answered(peer, "before")
            assert lines_with(caplog, "is a master of the name") == []
            # The second one, on a store of its own, takes the place at the NameServer.
            second = Pair(tmp_path / "second", **changes)
            second.namesrv = p.namesrv
            other = await second.start(0)
            assert other.replication.troubles.counts["two-masters"] == 1
            await until(lambda: p.master.replication.troubles.counts["two-masters"])
            p.slave.replication._registration.again()
            await until(lambda: other.replication.troubles.counts["ahead"])
            # No send has two copies now, so none is acknowledged, at neither.
            assert (await send(peer, b"alone")).code == LATE
            async with connected(other.address) as at_other:
                await create(at_other, queues=1)
                assert (await send(at_other, b"other")).code == LATE
            await asyncio.sleep(0.5)
            # One line of each master about the other, one about the slave whose log does not fit.
            assert len(lines_with(caplog, "is a master of the name")) == 2
            assert len(lines_with(caplog, "replication with")) == 3
            await second.stop(0)
            for broker in (p.master, p.slave):
                broker.replication._registration.again()
            await until(lambda: follows(p.slave, p.master))
            await p.equal()
            acked += [b"alone"]
            acked += await answered(peer, "after")
            await p.equal()
            assert await seen(p.master.address) == await seen(p.slave.address) == acked

    run(main())


def follows(slave: BrokerServer, master: BrokerServer) -> bool:
    slave.replication._registration.again()
    return bool(slave.replication.client.address == master.replication._own_ha_address)


@pytest.mark.shows("mended: a slave held what its SYNC_FLUSH master lost with its power, and was ahead of it for good")
def test_a_slave_that_no_send_waits_for_holds_what_is_flushed(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, flush_disk_type="SYNC_FLUSH", ha_heartbeat_interval_ms=100) as p:
            async with connected(p.master.address) as peer:
                await create(peer, queues=1)
                await sent(peer, b"flushed")
                await p.equal()
                store, link = p.master.store, p.slave.replication.client.link
                assert link is not None
                end, store.flush_log = store.written_position, lambda: store.flushed_position  # type: ignore[method-assign]
                sending = asyncio.ensure_future(send(peer, b"not flushed"))
                await until(lambda: store.written_position > end)
                heard_s = link.last_read_s
                await until(lambda: link.last_read_s > heard_s + 0.5)
                assert p.slave.store.end_position == end
                await p.brokers.pop(0).kill()
                await asyncio.wait([sending])
            root = tmp_path / "store0"
            (root / "abort").write_text("1 of-another-boot")
            log = next((root / "commitlog").iterdir())
            log.write_bytes(log.read_bytes()[:end].ljust(log.stat().st_size, b"\0"))
            master = await p.start(0)
            async with connected(master.address) as peer:
                assert (await send(peer, b"in its place")).code == OK
            await until(lambda: p.slave.store.readable_range(TOPIC, 0) == (0, 2))
            await p.equal()

    run(main())
