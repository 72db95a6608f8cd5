"""What each kind of test costs: seconds on the clock and of the processor, summed by folder, one table at the end.

Rule: the processor's time is that of this process and of every process it started, also those that live on (servers,
JVMs, Spark); what a shared one does counts for the tests that run just then.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PROC = Path("/proc")


class Kin:
    """The processor seconds of this process and of all it started."""

    def __init__(self) -> None:
        self._known: set[tuple[int, str]] = set()
        self._lost = 0.0
        self._last = 0.0

    def seconds(self) -> float:
        own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        used = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + self._of_the_living()
        # What a process used that nobody of us waited for is not told any more.
        self._lost = max(self._lost, self._last - used)
        self._last = used + self._lost
        return self._last

    def _of_the_living(self) -> float:
        """Those that live; without /proc they count once they have ended."""
        parents, used = self._processes()
        # A daemon's parent is gone; it stays one of ours.
        family = {os.getpid()} | {pid for pid, (_, start) in parents.items() if (pid, start) in self._known}
        found = 0
        while found != len(family):
            found = len(family)
            family |= {pid for pid, (parent, _) in parents.items() if parent in family}
        family.discard(os.getpid())
        self._known = {(pid, parents[pid][1]) for pid in family}
        return sum(used[pid] for pid in family)

    @staticmethod
    def _processes() -> tuple[dict[int, tuple[int, str]], dict[int, float]]:
        """Parent and start of each process, and the seconds of it and of what it waited for."""
        parents, used = {}, {}
        for name in os.listdir(PROC) if PROC.exists() else ():
            if not name.isdigit():
                continue
            try:
                fields = (PROC / name / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1]), fields[19]
            used[int(name)] = sum(map(int, fields[11:15])) / TICKS
        return parents, used


def kind_of(node_id: str) -> str:
    """The folder of a test: `unit`, `live`, `spark`, `spark/pipelines` ..."""
    parts = node_id.partition("::")[0].split("/")
    return "/".join(parts[1:3]) if parts[1:2] == ["spark"] and len(parts) > 3 else parts[1]


class Costs:
    """The plugin: a worker adds up, and the run's own process prints the sums of all."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        self._kin = Kin()
        self._now: tuple[str, str] | None = None
        self._at = 0.0, 0.0

    def _turn(self, node_id: str | None) -> None:
        """Book what was used since the last file was begun."""
        file = node_id.partition("::")[0] if node_id else ""
        if self._now and self._now[0] == file:
            return
        clock, processor = time.monotonic(), self._kin.seconds()
        if self._now:
            kind = self.kinds[self._now[1]]
            kind[1] += clock - self._at[0]
            kind[2] += processor - self._at[1]
        self._now = (file, kind_of(node_id)) if node_id else None
        self._at = clock, processor

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._turn(item.nodeid)
        self.kinds[kind_of(item.nodeid)][0] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._turn(None)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.kinds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, sums in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self.kinds[name] = [have + more for have, more in zip(self.kinds[name], sums, strict=True)]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        rows = sorted(self.kinds.items(), key=lambda row: -row[1][2])
        if sum(clock for _, (_, clock, _) in rows) < 60:
            return
        terminalreporter.section("seconds by kind of test")
        terminalreporter.line(f"{'kind':20} {'tests':>6} {'clock':>8} {'processor':>10}")
        total = ("all", [sum(sums) for sums in zip(*self.kinds.values(), strict=True)])
        for name, (count, clock, processor) in [*rows, total]:
            terminalreporter.line(f"{name:20} {count:6.0f} {clock:8.0f} {processor:10.0f}")
