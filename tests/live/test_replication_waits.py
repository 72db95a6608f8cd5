"""What a send's answer waits for: copies and the disk, side by side; who does not wait is not delayed."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tests.live.support import connected, create, run, send, sent, until
from tests.live.test_replication import pair

from rocketspark.protocol.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.shows(
    "ours+ours: 12 after slaveTimeout, 0 again, WAIT=false at once, 10 and 12 beside SYNC_FLUSH, the warning "
    "of inSyncReplicas=1"
)

LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_a_send_waits_for_its_copy_and_is_late_without_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=2, slave_timeout_ms=400) as p:
            async with connected(p.master.address) as peer:
                await create(peer)
                await until(lambda: p.master.replication.listener.connections)
                assert (await send(peer, b"one")).code == ResponseCode.SUCCESS
                # What is answered is there.
                assert p.slave.store.end_position == p.master.store.written_position
                await p.stop(1)
                begun_s = time.monotonic()
                late = asyncio.ensure_future(send(peer, b"two"))
                # Beside it, who wants no copy is not delayed.
                assert (await send(peer, b"three", pairs={"WAIT": "false"})).code == ResponseCode.SUCCESS
                assert not late.done()
                assert (await late).code == LATE
                # A timer of the loop counts from the turn's begin.
                assert time.monotonic() - begun_s >= 0.35
                await p.start(1)
                await until(lambda: p.master.replication.listener.connections)
                await until(lambda: p.slave.store.written_position == p.master.store.written_position)
                assert (await send(peer, b"four")).code == ResponseCode.SUCCESS
            # What was late came too.
            await p.equal()
            assert p.slave.store.queue_range("T", 0) == (0, 4)

    run(main())


def test_a_master_that_runs_waits_for_copies_from_when_it_is_told_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=1, slave_timeout_ms=50) as p:
            await p.stop(1)
            async with connected(p.master.address) as peer:
                await create(peer)
                for count, code in ((1, ResponseCode.SUCCESS), (2, LATE), (1, ResponseCode.SUCCESS)):
                    told = await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"inSyncReplicas=%d" % count)
                    assert told.code == 0
                    assert (await send(peer, b"one")).code == code

    run(main())


def test_copies_and_disk_are_waited_for_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        changes = {"in_sync_replicas": 2, "slave_timeout_ms": 300, "flush_timeout_ms": 300}
        async with pair(tmp_path, flush_disk_type="SYNC_FLUSH", **changes) as p, connected(p.master.address) as peer:
            await create(peer)
            await until(lambda: p.master.replication.listener.connections)
            assert (await send(peer, b"one")).code == ResponseCode.SUCCESS
            told = []
            flush = p.master._flush_service

            def hang(position: int, tell: object, count: int = 1) -> None:
                # The disk answers not in time, as FlushService tells it.
                told.append(position)
                asyncio.get_running_loop().call_later(0.3, tell, False)  # type: ignore[arg-type]

            with monkeypatch.context() as patched:
                patched.setattr(flush, "reached", hang)
                assert (await send(peer, b"two")).code == ResponseCode.FLUSH_DISK_TIMEOUT
                await p.stop(1)
                # Both fail: the copies' outcome is told.
                assert (await send(peer, b"three")).code == LATE
            assert len(told) == 2
            assert (await send(peer, b"four")).code == LATE
            await p.start(1)
            await p.equal()

    run(main())


def test_more_copies_than_slaves_are_late_each_at_its_own_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=3, slave_timeout_ms=1000) as p, connected(p.master.address) as peer:
            await create(peer)
            begun_s = time.monotonic()
            # RocketMQ's one row of waiting sends would take 20 times as long.
            answers = await asyncio.gather(*(send(peer, b"%d" % n) for n in range(20)))
            assert {answer.code for answer in answers} == {LATE}
            assert time.monotonic() - begun_s < 10
            await p.start(2)
            await until(lambda: len(p.master.replication.listener.connections) == 2)
            await until(lambda: p.brokers[2].store.end_position == p.master.store.written_position)
            assert (await send(peer, b"x")).code == ResponseCode.SUCCESS

    run(main())


@pytest.mark.parametrize(
    ("role", "replicas", "warned"), [("SYNC_MASTER", 1, 1), ("SYNC_MASTER", 2, 0), ("ASYNC_MASTER", 1, 0)]
)
def test_a_master_that_waits_for_nobody_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, role: str, replicas: int, warned: int
) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=replicas) as p:
            await p.stop(0)
            caplog.clear()
            await p.start(0, broker_role=role)
            if replicas == 1:
                await p.stop(1)
                async with connected(p.master.address) as peer:
                    await create(peer)
                    assert await sent(peer) == 0
        lines = [r.getMessage() for r in caplog.records if "inSyncReplicas" in r.getMessage()]
        assert len(lines) == warned
        assert all("waits for no slave with inSyncReplicas=1: set inSyncReplicas=2" in line for line in lines)

    with caplog.at_level(logging.WARNING):
        run(main())
