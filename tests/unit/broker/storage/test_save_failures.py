"""Tables that cannot be written: one line, counted, tried again, nothing acknowledged as saved that is not."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, create, run, sent
from tests.unit.broker.messages.timers.test_timer_messages import NOW, Clock, Rig, clock, rig

from rocketspark.broker.consumers.consumer_offsets import encode_offsets
from rocketspark.broker.storage.json_tables import JsonFile, SaveFailures
from rocketspark.client.consumer.offsets import LocalOffsets
from rocketspark.errors import ServerError, StoreFull, StoreUnwritable
from rocketspark.protocol.json.bodies import OffsetTable
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows(
    "a table of the broker or a timer file that cannot be saved",
    "leftovers of killed processes (config/*.tmp, offsets.json.PID.tmp)",
)

__all__ = ["clock", "rig"]


class Disk:
    """Refuses to write files with a word in their path."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bad = ""
        self.number = errno.ENOSPC
        for name in ("write_file", "overwrite"):
            patch.setattr(OsFiles, name, self._refusing(getattr(OsFiles, name)))

    def _refusing(self, call: Any) -> Any:
        def run(files: OsFiles, path: str, *args: Any) -> Any:
            if self.bad and self.bad in path:
                raise OSError(self.number, os.strerror(self.number))
            return call(files, path, *args)

        return run


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if word in r.getMessage()]


def test_it_is_said_once_when_it_begins_and_once_when_it_is_over(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    saves = SaveFailures()
    file = JsonFile(tmp_path / "consumerOffset.json", OffsetTable, encode_offsets, saves)
    file.save(OffsetTable(offset_table={"T@G": {0: 1}}))
    disk.bad = "consumerOffset"
    for _ in range(3):
        with pytest.raises(StoreFull) as refused:
            file.save(OffsetTable(offset_table={"T@G": {0: 2}}))
        assert saves.told(refused.value)
    (line,) = lines(caplog, "consumerOffset.json")
    assert line.startswith("consumerOffset.json is not saved: no room on the disk to write ")
    assert str(tmp_path) in line
    assert (saves.failures, list(saves.failing)) == ({"consumerOffset.json": 3}, ["consumerOffset.json"])
    # What was there is whole.
    assert file.load() == OffsetTable(offset_table={"T@G": {0: 1}})
    disk.bad = ""
    for _ in range(2):
        file.save(OffsetTable(offset_table={"T@G": {0: 2}}))
    assert lines(caplog, "again") == [line, "consumerOffset.json is saved again"]
    assert (saves.failures, saves.failing) == ({"consumerOffset.json": 3}, {})


def test_a_topic_is_not_acknowledged_before_it_is_saved_and_is_saved_later(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, metrics_exporter="PROM", metrics_port=0) as server,
            connected(server.address) as peer,
        ):
            disk.bad = "topics.json"
            with pytest.raises(ServerError, match="no room on the disk to write"):
                await create(peer, "Late")
            server._save_again()
            assert b"Late" not in (tmp_path / "config/topics.json").read_bytes()
            assert server._metrics is not None
            found = {
                (family.name, labels["file"]): value
                for family in server._metrics.collect().families
                for labels, value in family.rows
                if "save" in family.name and "file" in labels
            }
            assert found["rocketspark_save_failing", "topics.json"] == 1
            assert found["rocketspark_save_failures", "topics.json"] >= 2
            assert len(lines(caplog, "topics.json is not saved")) == 1
            disk.bad = ""
            server._save_again()
            assert b"Late" in (tmp_path / "config/topics.json").read_bytes()
            assert lines(caplog, "topics.json is saved again")
            assert server._saves.failing == {}

    run(main())


def test_readers_of_a_deleted_topic_are_saved_later(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server:
            path = tmp_path / "config/readersAnew.json"
            disk.bad = path.name
            server._offsets.anew.add([("G", "T", 0)])
            with pytest.raises(StoreFull):
                await server._offsets.saved()
            # The save that the change itself asked for, in the next turn.
            await asyncio.sleep(0)
            server._save_again()
            assert not path.exists()
            assert "readersAnew.json" in server._saves.failing
            disk.bad = ""
            server._save_again()
            assert path.read_text("utf-8") == '{"readers":{"T@G":[0]},"resets":{}}'
            assert server._saves.failing == {}

    run(main())


def test_a_broker_whose_tables_cannot_be_saved_starts_and_serves(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            assert await sent(peer) == 0
        disk.bad = "topics.json"
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await sent(peer) == 1
            assert "topics.json" in server._saves.failing

    run(main())


def test_unwritten_timer_progress_is_said_once_and_tried_again(
    rig: Any, clock: Clock, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    one: Rig = rig()
    one.send(key="a", TIMER_DELAY_SEC=5)
    one.settle()
    one.store.flush_log()
    disk.bad = "timercheck"
    for _ in range(3):
        one.timers._flush(one.timers._next_checkpoint(NOW))
    (line,) = lines(caplog, "timercheck is not saved")
    assert "config/timercheck" in line
    # Nothing of it counts as saved: after a kill what waits is found again.
    disk.bad = ""
    again = one.killed()
    again.at(NOW + 5000)
    assert again.keys() == ["a"]
    again.store.close()


def test_a_replaced_file_is_followed_by_its_directory(tmp_path: Path) -> None:
    done: list[str] = []

    class Watched(OsFiles):
        def write_file(self, path: str, content: bytes) -> None:
            done.append(os.path.basename(path))
            super().write_file(path, content)

        def sync_directory(self, path: str) -> None:
            done.append(f"directory with {(tmp_path / 'a.json').read_text()}")
            super().sync_directory(path)

    config_files.write(str(tmp_path / "a.json"), "1", Watched())
    config_files.write(str(tmp_path / "a.json"), "2", Watched())
    assert done == ["a.json.tmp", "directory with 1", "a.json.bak.tmp", "a.json.tmp", "directory with 2"]

    class Broken(OsFiles):
        def sync_directory(self, path: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(StoreUnwritable):
        config_files.write(str(tmp_path / "a.json"), "3", Broken())


def test_what_a_killed_broker_left_unfinished_is_removed_at_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        config = tmp_path / "config"
        config.mkdir()
        (config / "topics.json.tmp").write_text("{")
        (config / "consumerOffset.json.bak.tmp").write_text("{")
        (config / "mine.txt").write_text("kept")
        async with broker(tmp_path):
            pass
        assert [p.name for p in config.iterdir() if p.name.endswith(".tmp")] == []
        assert (config / "mine.txt").read_text() == "kept"

    run(main())


def test_a_client_removes_what_dead_processes_left_of_broadcast_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        class Instance:
            client_id = "c"

        offsets = LocalOffsets(str(tmp_path), Instance(), "G")  # type: ignore[arg-type]
        folder = offsets.path.parent
        folder.mkdir(parents=True)
        ended = subprocess.Popen(["true"])
        ended.wait()
        for pid in (ended.pid, os.getppid(), "x", os.getpid()):
            (folder / f"offsets.json.{pid}.tmp").write_text("{")
        await offsets.load()
        assert {p.name for p in folder.iterdir()} == {f"offsets.json.{pid}.tmp" for pid in (os.getppid(), os.getpid())}

    run(main())
