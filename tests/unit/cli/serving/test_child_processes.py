"""The processes that one `server` starts: their folders, and that they come back."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.cli.serving import child_processes
from rocketspark.cli.serving.child_processes import (
    BEATS,
    MISSED_BEATS_MAX,
    ChildProcess,
    store_folders,
    unserved_stores,
)

LAYOUTS = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3)]


@pytest.mark.shows("`server` with other --brokers or --replicas than before names the stores that nobody serves")
@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("now", LAYOUTS)
def test_stores_that_nobody_serves_are_found(tmp_path: Path, before: tuple[int, int], now: tuple[int, int]) -> None:
    made = store_folders(tmp_path, "broker-a", *before)
    for folder in (*made, tmp_path / "namesrv", tmp_path / "secure", tmp_path / "controller"):
        (folder / "config").mkdir(parents=True)
    for folder in made:
        (folder / "commitlog").mkdir()
    served = store_folders(tmp_path, "broker-a", *now)
    assert unserved_stores(tmp_path, served) == []
    for folder in made:
        (folder / "commitlog" / f"{0:020d}").touch()
    assert unserved_stores(tmp_path, served) == [folder for folder in made if folder not in served]


def test_a_store_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert unserved_stores(tmp_path / "none", store_folders(tmp_path / "none", "b", 2, 1)) == []
    assert store_folders(tmp_path, "b", 2, 1) == [tmp_path / "b-0", tmp_path / "b-1"]


def test_one_that_died_comes_back_once_a_process_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = [1, OSError(errno.EAGAIN, "no process"), OSError(errno.EMFILE, "no descriptor"), None]

    async def play() -> None:
        back = asyncio.Event()

        async def made(*words: str, **options: Any) -> Any:
            outcome = outcomes.pop(0)
            if isinstance(outcome, OSError):
                raise outcome
            stdout = asyncio.StreamReader()
            stdout.feed_data(b"ready proxy=127.0.0.1:8081\n")
            if outcome is None:
                back.set()
            ended = asyncio.Event()
            return SimpleNamespace(
                stdout=stdout, pid=0, returncode=outcome, terminate=ended.set,
                wait=lambda: ended.wait() if outcome is None else asyncio.sleep(0, outcome),
            )  # fmt: skip

        monkeypatch.setattr(asyncio, "create_subprocess_exec", made)
        monkeypatch.setattr(child_processes, "RESTART_PAUSE_S", 0)
        child = ChildProcess("the proxy", "proxy", lambda port: [], 0)
        await child.start()
        child.keep()
        await asyncio.wait_for(back.wait(), 10)
        await child.stop()

    asyncio.run(play())


class Standing:
    """A process whose beats are played: each read takes one, and None is a second without one."""

    def __init__(self, beats: list[bytes | None]) -> None:
        self.beats = iter(beats)
        self.pid, self.returncode, self.killed = 7, None, False
        self.stdout = self

    async def readline(self) -> bytes:
        return b"ready proxy=127.0.0.1:8081\n"

    async def read(self, count: int) -> bytes:
        beat = next(self.beats)
        if beat is None:
            raise TimeoutError
        return beat

    def kill(self) -> None:
        self.killed = True

    async def wait(self) -> int:
        if not self.killed and next(self.beats, None) is not None:
            raise AssertionError("it was no longer watched while it beat")
        return -9 if self.killed else 0


ALMOST: list[bytes | None] = [None] * (MISSED_BEATS_MAX - 1)


@pytest.mark.shows(
    "a proxy that `server` or `proxy --processes` started, and that stands still, is killed and comes back"
)
def test_one_that_stands_still_is_killed_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Standing([b"\n", *ALMOST, b"\n\n", *ALMOST, b""])
    hung = Standing([b"\n", *ALMOST, None])
    processes = [slow, hung]
    environments: list[Any] = []

    async def play() -> None:
        all_began = asyncio.Event()

        async def made(*words: str, env: dict[str, str], **options: Any) -> Any:
            environments.append(env)
            if processes:
                return processes.pop(0)
            all_began.set()
            return Standing([b""])

        monkeypatch.setattr(asyncio, "create_subprocess_exec", made)
        monkeypatch.setattr(child_processes, "RESTART_PAUSE_S", 0)
        child = ChildProcess("the proxy", "proxy", lambda port: [], 0, beats=True)
        await child.start()
        child.keep()
        await asyncio.wait_for(all_began.wait(), 60)
        assert child._keeper is not None
        child._keeper.cancel()

    asyncio.run(play())
    assert (slow.killed, hung.killed) == (False, True)
    assert {env[BEATS] for env in environments} == {"1"}


def test_one_that_is_not_asked_to_beat_may_stand_still() -> None:
    child = ChildProcess("broker-a", "broker", lambda port: [], 0)
    process = Standing([])
    assert asyncio.run(child._ended(process)) == 0  # type: ignore[arg-type]
    assert not process.killed
