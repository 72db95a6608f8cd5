"""Brokers under a controller that come back without a part of their log: none of them is elected by its old number."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.live.support import connected, run, send, until
from tests.live.test_controller_mode import group
from tests.live.test_replication import producer

from rocketspark.broker.replication import members
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.role import Role
from rocketspark.controller import live_table
from rocketspark.errors import ConfigError, LogMissing
from rocketspark.model import Message
from rocketspark.protocol.codes import ResponseCode

pytestmark = pytest.mark.shows(
    "mended: all brokers of a controller's set end, the master's log is lost (its own disk, its last files, "
    "or the whole store but the number) and it is back first: the others cut their logs to nothing"
)

COUNT = 200


def _log(disk: Path) -> None:
    shutil.rmtree(disk / "log")


def _last_file(disk: Path) -> None:
    sorted((disk / "log").iterdir())[-1].unlink()


def _all_but_the_number(disk: Path) -> None:
    _all_but_number_and_epochs(disk)
    for file in disk.glob("epochs*"):
        file.unlink()


def _all_but_number_and_epochs(disk: Path) -> None:
    shutil.rmtree(disk / "log")
    shutil.rmtree(disk.parent / "store1")


@pytest.mark.parametrize(
    "lose",
    [_log, _last_file, _all_but_the_number, _all_but_number_and_epochs],
    ids=["log", "last file", "store", "store but the epochs"],
)
def test_the_others_keep_what_one_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None]
) -> None:
    """All end at once; the master lost its disk and is back first. Elected, it would have the other cut its log too."""
    monkeypatch.setattr(live_table, "TIMEOUT_MS", 1000)
    disk = tmp_path / "disk"
    changes = {"store_commit_log": str(disk / "log"), "identity_file": str(disk / "number"), "log_file_bytes": 1 << 13}
    changes["epoch_file"] = str(disk / "epochs")

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1, **changes)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2, log_file_bytes=1 << 13)
            await g.in_sync(2)
            for number in range(COUNT):
                await out.send(Message("T", b"%d" % number))
            end = first.store.written_position
            await until(lambda: second.store.written_position == end)
            address = g.controller.address
            await g.controller.close()
            await g.stop(1)
            await g.stop(2)
            lose(disk)
            g.controller = g._controller(int(address.rpartition(":")[2]))
            await g.controller.start()
            # Where it is known that there was a log another one that has it is waited for.
            begun = asyncio.create_task(g.start(1, **changes))
            if lose is _last_file:
                await begun
            second = await g.start(2, log_file_bytes=1 << 13)
            first = await begun
            assert await g.in_sync(2) is second
            await until(lambda: first.store.written_position == second.store.written_position >= end)
            for broker in (first, second):
                bodies = [int(r.body) for r in broker.store.iterate(0) if r.topic == b"T"]
                assert bodies == list(range(COUNT))
            assert (disk / "number").read_text() == "DefaultCluster#broker-a#3"

    run(main())


@pytest.mark.shows("who alone is in sync keeps its number while its log's disk is not mounted")
def test_who_alone_is_in_sync_asks_for_its_logs_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, away = tmp_path / "log", tmp_path / "away"
    changes = {"store_commit_log": str(log)}

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1, **changes)
            await until(lambda: first.role.kind is Role.MASTER)
            await out.send(Message("T", b"kept"))
            await g.stop(1)
            log.rename(away)
            monkeypatch.setattr(members, "HOLDER_WAIT_S", 0.0)
            with pytest.raises(LogMissing, match="no file of it is there: mount"):
                await g.start(1, **changes)
            await g.controller.close()
            with pytest.raises(ConfigError, match="no controller tells whether another replica has it"):
                await g.start(1, **changes)
            del g.brokers[1]
            shutil.rmtree(log, ignore_errors=True)
            away.rename(log)
            g.controller = g._controller(int(g.controller.address.rpartition(":")[2]))
            await g.controller.start()
            first = await g.start(1, **changes)
            await until(lambda: first.role.kind is Role.MASTER)
            assert [r.body for r in first.store.iterate(0) if r.topic == b"T"] == [b"kept"]

    run(main())


@pytest.mark.shows("a broker that waits at its start for a replica with its log has producers go to other brokers")
def test_who_waits_for_a_holder_of_its_log_sends_clients_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "HOLDER_WAIT_S", 3600.0)
    asked = asyncio.Event()

    async def live_in_sync(self: ControllerClient, broker_name: str) -> set[int]:
        asked.set()
        return set()

    monkeypatch.setattr(ControllerClient, "live_in_sync", live_in_sync)

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1, store_commit_log=str(tmp_path / "log"))
            await until(lambda: first.role.kind is Role.MASTER)
            await out.send(Message("T", b"kept"))
            await g.stop(1)
            (tmp_path / "log").rename(tmp_path / "away")
            begun = asyncio.create_task(g.start(1, store_commit_log=str(tmp_path / "log")))
            await asked.wait()
            async with connected(g.brokers.pop(1).address) as peer:
                # Each client sends again elsewhere on it; on "not supported" Java's gives up.
                assert (await send(peer, b"x", "T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            begun.cancel()
            with pytest.raises(asyncio.CancelledError):
                await begun

    run(main())


@pytest.mark.shows("replicas whose logs' disks, or whole stores, are all away at once wait for them, and keep numbers")
@pytest.mark.parametrize("whole", [False, True], ids=["log", "store"])
def test_all_ask_for_their_logs_disks_where_all_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(members, "HOLDER_WAIT_S", 0.0)
    disks = {number: tmp_path / (f"store{number}" if whole else f"disk{number}") for number in (1, 2)}

    def places(number: int) -> dict[str, str]:
        """Where the log lies that goes away, or what is left when the whole store does."""
        key = "identity_file" if whole else "store_commit_log"
        return {key: str(tmp_path / f"number{number}" if whole else disks[number])}

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1, **places(1))
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2, **places(2))
            await g.in_sync(2)
            for number in range(COUNT):
                await out.send(Message("T", b"%d" % number))
            await until(lambda: second.store.written_position == first.store.written_position)
            for number in (2, 1):
                await g.stop(number)
            for disk in disks.values():
                disk.rename(f"{disk}away")
            for number in disks:
                # Tried again, as a unit of systemd does: nothing that it left is taken for a store.
                for _ in range(2):
                    with pytest.raises(LogMissing, match=r"mount its disk.*or start another replica first"):
                        await g.start(number, **places(number))
                del g.brokers[number]
            for disk in disks.values():
                shutil.rmtree(disk, ignore_errors=True)
                Path(f"{disk}away").rename(disk)
            begun = [await g.start(number, **places(number)) for number in disks]
            await g.in_sync(2)
            await until(lambda: begun[0].store.written_position == begun[1].store.written_position)
            for number, broker in zip(disks, begun, strict=True):
                assert broker.replication.controlled.own_id == number
                bodies = [int(r.body) for r in broker.store.iterate(0) if r.topic == b"T"]
                assert bodies == list(range(COUNT))

    run(main())


@pytest.mark.shows(
    "mended: controller, `allAckInSyncStateSet=true`: the master's machine loses power (unflushed tail gone) "
    "and is back within the controller's timeout: acknowledged messages are cut off the slave"
)
@pytest.mark.parametrize("started_again", [True, False], ids=["power", "kill"])
def test_a_machine_that_lost_its_power_is_no_master_where_another_holds_what_it_lost(
    tmp_path: Path, started_again: bool
) -> None:
    """It is back before it was missed; after a kill alone nothing is lost, and it goes on."""

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            changes = {"flush_interval_ms": 600_000, "flush_queue_interval_ms": 600_000}
            first = await g.start(1, **changes)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            for number in range(10):
                await out.send(Message("T", b"%d" % number))
            position = [r.position for r in first.store.iterate(0) if r.topic == b"T"][5]
            # The controller hears of nothing: the connections of such a machine do not end.
            address = g.controller.address
            await g.controller.close()
            await g.brokers.pop(1).kill()
            if started_again:
                root = tmp_path / "store1"
                (root / "abort").write_text("1 of-another-boot")
                log = next((root / "commitlog").iterdir())
                log.write_bytes(log.read_bytes()[:position].ljust(log.stat().st_size, b"\0"))
            g.controller = g._controller(int(address.rpartition(":")[2]))
            await g.controller.start()
            await until(lambda: g.controller._live.alive("DefaultCluster", "broker-a", 2))
            first = await g.start(1, **changes)
            assert await g.in_sync(2) is (second if started_again else first)
            await until(lambda: first.store.written_position == second.store.written_position)
            for broker in (first, second):
                assert [r.body for r in broker.store.iterate(0) if r.topic == b"T"] == [b"%d" % n for n in range(10)]

    run(main())


def test_a_log_that_is_whole_keeps_its_number(tmp_path: Path) -> None:
    """Also where it lies apart from its store, and has taken nothing yet."""
    disk = tmp_path / "disk"
    changes = {"store_commit_log": str(disk / "log"), "identity_file": str(disk / "number")}

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            for count in range(2):
                first = await g.start(1, **changes)
                await until(lambda: g.master())
                assert (disk / "number").read_text() == "DefaultCluster#broker-a#1"
                if count:
                    await out.send(Message("T", b"x"))
                await first.kill()
                del g.brokers[1]
            first = await g.start(1, **changes)
            assert await until(lambda: g.master()) is first
            assert (disk / "number").read_text() == "DefaultCluster#broker-a#1"

    run(main())
