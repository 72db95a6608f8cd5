"""How results are summed up and shown: a row per case, ours beside the peer, the ratio last.

Rule: figures of one row come from the same run, peers in turn; a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

PROGRESS_EVERY_S = 10.0
_told_at = time.monotonic()


class Row(NamedTuple):
    """One case. `ratio` above 1: ours is ahead. `peer` None where there is none.

    Where a server's processor time was measured: `us_each` and `peer_us_each` for each message or request, `cores` and
    `peer_cores` in processor seconds per second, and `tool_cores` the same of the load tool. Where the clients' costs
    were measured: `client_us` and `client_bytes` for each message, the processor's time and the memory asked for.
    """

    name: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None = None
    us_each: float | None = None
    peer_us_each: float | None = None
    cores: float | None = None
    peer_cores: float | None = None
    tool_cores: float | None = None
    client_us: float | None = None
    peer_client_us: float | None = None
    client_bytes: float | None = None
    peer_client_bytes: float | None = None


class Figure(NamedTuple):
    """One round of one peer: how many were done, in how many seconds, processor seconds of server and tool."""

    done: int
    seconds: float
    server_cpu_s: float
    tool_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Per second."""
        return self.done / self.seconds


def ratio_of(pairs: Sequence[tuple[float, float]], *, less_is_better: bool = False) -> float | None:
    """The median of each pair's ratio, ours first; above 1 ours is ahead. None if the peer has none."""
    found = [p / o if less_is_better else o / p for o, p in pairs if (o if less_is_better else p)]
    return statistics.median(found) if found else None


def values_row(
    name: str, unit: str, pairs: Sequence[tuple[float, float | None]], *, less_is_better: bool = False
) -> Row:
    """A row of plain values, one pair per round."""
    whole = [(o, p) for o, p in pairs if p is not None]
    return Row(
        name,
        statistics.median(o for o, _ in pairs),
        statistics.median(p for _, p in whole) if whole else None,
        unit,
        ratio_of(whole, less_is_better=less_is_better),
    )


def rates_row(name: str, unit: str, pairs: Sequence[tuple[Figure, Figure | None]]) -> Row:
    """A row of rates with what they cost, one pair per round."""
    row = values_row(name, unit, [(o.rate, p.rate if p else None) for o, p in pairs])
    mine, peers = [o for o, _ in pairs], [p for _, p in pairs if p]
    return row._replace(
        us_each=_median_us(mine),
        peer_us_each=_median_us(peers),
        cores=_median_cores(mine),
        peer_cores=_median_cores(peers),
        tool_cores=max(f.tool_cpu_s / f.seconds for f in [*mine, *peers]) or None,
    )


def _median_us(figures: list[Figure]) -> float | None:
    found = [f.server_cpu_s / f.done * 1e6 for f in figures if f.done]
    return statistics.median(found) if found else None


def _median_cores(figures: list[Figure]) -> float | None:
    return statistics.median(f.server_cpu_s / f.seconds for f in figures) if figures else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of all lie at or below."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def show(rows: Sequence[Row], *, heading: bool = True, peer: str = "java") -> None:
    """Print rows; with `heading` the columns' names first."""
    _clear_progress()
    if heading:
        columns = f"{'case':42} {'ours':>12} {peer:>12} {'unit':>7} {'ratio':>7}"
        client = f" {'client us':>13} {'client B':>13}" if any(row.client_us is not None for row in rows) else ""
        print(f"{columns} {'us each':>13} {'CPU s/s':>11} {'tool':>5}{client}")
    for row in rows:
        ratio = f"{row.ratio:6.2f}x" if row.ratio is not None else ""
        text = f"{row.name:42} {_number(row.ours):>12} {_number(row.peer):>12} {row.unit:>7} {ratio:>7}"
        each, cores = _two(row.us_each, row.peer_us_each), _two(row.cores, row.peer_cores)
        tool = "" if row.tool_cores is None else f"{row.tool_cores:.2f}"
        us, size = _two(row.client_us, row.peer_client_us), _two(row.client_bytes, row.peer_client_bytes)
        print(f"{text} {each:>13} {cores:>11} {tool:>5} {us:>13} {size:>13}".rstrip(), flush=True)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def _two(mine: float | None, peer: float | None) -> str:
    if mine is None and peer is not None:
        return f"- / {_short(peer)}"
    return " / ".join(_short(v) for v in (mine, peer) if v is not None)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def progress(text: str) -> None:
    """Tell on stderr what is being done: on a terminal in one line, else every 10 s."""
    global _told_at
    if sys.stderr.isatty():
        print(f"\r\033[K  … {text}", end="", file=sys.stderr, flush=True)
    elif time.monotonic() - _told_at >= PROGRESS_EVERY_S:
        _told_at = time.monotonic()
        print(f"  … {text}", file=sys.stderr, flush=True)


def _clear_progress() -> None:
    global _told_at
    _told_at = time.monotonic()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
