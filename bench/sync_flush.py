"""Sends that are on disk before they are answered: flushDiskType=SYNC_FLUSH on both sides, stores on one disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.measure import compare
from bench.peers import Servers, apache, both, end_rows, ours
from bench.plan import Plan
from bench.raw import send, warm_up
from bench.report import Row, show

WINDOWS = (1, 64, 256)
CONFIG = {"flushDiskType": "SYNC_FLUSH"}
IN_MEMORY = ("tmpfs", "ramfs")


def run(plan: Plan) -> list[Row]:
    """One row per window: messages per second, ours first."""
    rows: list[Row] = []
    with both(plan.alone, ours(config=CONFIG | plan.config), apache(CONFIG)) as (mine, java):
        tell_disk(mine)
        warm_up(mine, java, plan.of((1, 64, 256), (64,), ()), plan.of(2.0, 1.0, 0.05))
        for window in WINDOWS:
            act = partial(send, window=window, seconds=plan.of(1.5, 0.5, 0.05))
            rows.append(compare(f"SYNC_FLUSH, {window} in flight, 128 B", "msg/s", plan.rounds(5), mine, java, act))
            show(rows[-1:], heading=len(rows) == 1)
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends


def tell_disk(servers: Servers) -> None:
    """A store in memory flushes at once: say so."""
    kind = file_system(servers.store)
    if kind in IN_MEMORY:
        print(f"  stores lie on {kind}, where a flush costs nothing: set TMPDIR to a folder on a disk")


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, name
    return kind
