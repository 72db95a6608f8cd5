"""How results are shown: a row per case, ours beside the peer, the ratio last."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One case. `ratio` above 1: ours is ahead. `peer` None where there is none."""

    name: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None = None


def show(rows: list[Row], *, heading: bool = True, peer: str = "java") -> None:
    """Print rows; with `heading` the columns' names first."""
    if heading:
        print(f"{'case':44} {'ours':>14} {peer:>14} {'unit':>8} {'ratio':>7}")
    for row in rows:
        other = f"{row.peer:14,.0f}" if row.peer is not None else " " * 14
        ratio = f"{row.ratio:6.2f}x" if row.ratio is not None else ""
        print(f"{row.name:44} {row.ours:14,.0f} {other} {row.unit:>8} {ratio}", flush=True)
