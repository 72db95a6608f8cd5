"""What a group's journal makes of the decisions that come together."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import LIMIT_S

from rocketspark.controller.group import group_journal
from rocketspark.controller.group.entries import ENTRY_BYTES_MAX
from rocketspark.controller.group.founding import Beginning
from rocketspark.controller.group.group_journal import GroupJournal
from rocketspark.controller.group.members import Member
from rocketspark.controller.group.messages import Hello
from rocketspark.controller.group.raft_log import FOUNDING, RaftLog
from rocketspark.controller.group.raft_thread import Done, Status
from rocketspark.controller.replica_sets import Cleaned, IdApplied, Replica
from rocketspark.controller.replicas_info import Decision
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store.files.system_calls import OsFiles

MEMBERS = [Member("n0", "a:1"), Member("n1", "b:1")]


class Agreeing:
    """A member's thread whose group agrees to all."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def propose(self, entry: bytes, done: Done) -> None:
        self.entries.append(entry)
        done(True)


@pytest.mark.shows("a request that is too large for a group of controllers is refused, and the others are answered")
def test_a_decision_that_is_too_large_is_refused_and_the_others_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        journal = GroupJournal(str(tmp_path), "g", MEMBERS[0], MEMBERS, hooks=None, tls=None)
        thread: Any = Agreeing()
        journal._thread, journal._loop = thread, asyncio.get_running_loop()
        journal._status = Status(leads=True)
        small = Decision(events=(IdApplied("c", "b", 1, Replica("a:1", "a:1;1")),))
        large = Decision(events=(Cleaned("b", tuple(range(ENTRY_BYTES_MAX))),))

        def decide(decision: Decision) -> Any:
            return journal.carry_out(lambda state: decision)

        asked = asyncio.gather(decide(small), decide(large), decide(small), return_exceptions=True)
        carrying = asyncio.create_task(journal._carry_out_all())
        first, refused, last = await asked
        carrying.cancel()
        assert (first, last) == (small, small)
        assert isinstance(refused, ServerError)
        assert refused.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert len(thread.entries) == 1
        assert len(thread.entries[0]) < ENTRY_BYTES_MAX

    asyncio.run(main())


@pytest.mark.shows("a controller whose disk is full at its first start begins once there is room")
def test_one_that_cannot_write_its_first_words_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(OsFiles):
        left = 2

        def write_file(self, path: str, content: bytes) -> None:
            if self.left:
                self.left -= 1
                raise OSError(errno.ENOSPC, "No space left on device", path)
            super().write_file(path, content)

    async def hello(name: str) -> Hello:
        return Hello(name, "g", Beginning.FRESH)

    async def main() -> None:
        files, began = Full(), asyncio.Event()
        journal = GroupJournal(str(tmp_path), "g", MEMBERS[0], MEMBERS, hooks=None, tls=None, files=files)
        monkeypatch.setattr(group_journal, "RETRY_S", 0.0)
        monkeypatch.setattr(journal, "_ask_hello", hello)
        monkeypatch.setattr(journal, "_start", began.set)
        journal.open()
        journal.begin()
        async with asyncio.timeout(LIMIT_S):
            await began.wait()
        await journal.close()
        assert files.left == 0
        log = RaftLog(str(tmp_path))
        log.open()
        assert log.standing == FOUNDING

    asyncio.run(main())


def test_while_the_others_are_silent_they_are_asked_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def silent(name: str) -> None:
        asked.append(name)

    async def main() -> None:
        journal = GroupJournal(str(tmp_path), "g", MEMBERS[0], MEMBERS, hooks=None, tls=None)
        monkeypatch.setattr(group_journal, "ASK_S", 3600.0)
        monkeypatch.setattr(journal, "_ask_hello", silent)
        journal.open()
        journal.begin()
        for _ in range(20):
            await asyncio.sleep(0)
        await journal.close()

    asyncio.run(main())
    assert len(asked) == 1
