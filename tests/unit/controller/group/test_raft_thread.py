"""The thread of one member: what it tells of itself while its disk fails."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import LIMIT_S

from rocketspark.controller.group.entries import State
from rocketspark.controller.group.raft_log import FOUNDING, RaftLog
from rocketspark.controller.group.raft_thread import RaftThread, Status
from rocketspark.store.files.system_calls import OsFiles


class Full(OsFiles):
    """A disk that is full once `is_full` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full, self.refused = False, threading.Event()

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        if self.is_full:
            self.refused.set()
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().write_at(path, at, content)


class Heard:
    """What the thread told."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []
        self.first = threading.Event()

    def send(self, name: str, message: dict[str, Any]) -> None:
        pass

    def state(self, state: State) -> None:
        pass

    def status(self, status: Status) -> None:
        self.statuses.append(status)
        self.first.set()


@pytest.mark.shows("a controller whose disk fails as its group begins: others that are new still begin with it")
def test_one_whose_disk_fails_stands_as_it_did(tmp_path: Path) -> None:
    log = RaftLog(str(tmp_path))
    log.open()
    log.stand(FOUNDING)
    log.flush()
    files, heard = Full(), Heard()
    thread = RaftThread("n0-a:1", ["n1-b:1", "n2-c:1"], str(tmp_path), heard, files)
    thread.start()
    assert heard.first.wait(LIMIT_S)
    # It asks another one to elect it, and cannot write that before.
    files.is_full = True
    thread.way("n1-b:1", is_open=True)
    assert files.refused.wait(LIMIT_S)
    thread.stop()
    assert {status.standing for status in heard.statuses} == {FOUNDING}
