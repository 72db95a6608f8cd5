"""The plot, the table and the HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.box import SIMPLE
from rich.table import Table

from examples.flights.check import Check
from examples.flights.summaries import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Flights from New York, 2013</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
  table {{ border-collapse: collapse; margin: 1rem 0 }}
  td, th {{ padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right }}
  td:first-child, th:first-child {{ text-align: left }}
  img {{ max-width: 100% }}
  .bad {{ color: #b00; font-weight: bold }}
</style>
<h1>Flights from New York, 2013</h1>
<p>{count:,} flights went through topic <code>flights</code>, Spark and topic <code>flight-delays</code>.</p>
<img src="{plot}" alt="Departure delays by carrier and month, and by day">
<h2>Mean departure delay in minutes</h2>
{delays}
<h2>Stages</h2>
{stages}
<h2>Checks against the source data</h2>
{checks}
</html>
"""


def delay_table(summaries: Sequence[Summary], names: Mapping[str, str]) -> Table:
    """Mean departure delay in minutes, carriers down and months across."""
    table = Table(title="Mean departure delay in minutes, from topic flight-delays", box=None, padding=(0, 0, 0, 1))
    table.add_column("carrier", no_wrap=True)
    for month in MONTHS:
        table.add_column(month, justify="right", min_width=3)
    for carrier, cells in _cells(summaries).items():
        table.add_row(f"{carrier} {names.get(carrier, '')}", *cells)
    return table


def _cells(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    cells: dict[str, list[str]] = {}
    for summary in summaries:
        row = cells.setdefault(summary.carrier, [""] * 12)
        row[summary.month - 1] = f"{summary.mean_delay_minutes:.0f}"
    return cells


def stage_table(seconds: Mapping[str, float]) -> Table:
    """How long each stage took."""
    table = Table(title="Stages", show_footer=True, box=SIMPLE)
    table.add_column("stage", footer="all")
    table.add_column("seconds", footer=f"{sum(seconds.values()):.1f}", justify="right")
    for name, took in seconds.items():
        table.add_row(name, f"{took:.1f}")
    return table


def plot(summaries: Sequence[Summary], delays_path: str, path: Path) -> None:
    """Write a PNG: a map of carriers and months, and the mean delay of each day per airport."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 2])
    _plot_months(figure, top, summaries)
    _plot_days(bottom, delays_path)
    figure.savefig(path, dpi=120)


def _plot_months(figure: Figure, axes: Axes, summaries: Sequence[Summary]) -> None:
    rows = pd.DataFrame([(s.carrier, s.month, s.mean_delay_minutes) for s in summaries], columns=["c", "m", "delay"])
    grid = rows.pivot(index="c", columns="m", values="delay").reindex(columns=range(1, 13))
    image = axes.imshow(grid, aspect="auto", cmap="YlOrRd", vmin=0, vmax=40)
    axes.set_xticks(range(12), MONTHS)
    axes.set_yticks(range(len(grid)), grid.index)
    axes.set_title("Mean departure delay by carrier and month")
    figure.colorbar(image, ax=axes, label="minutes", extend="both")


def _plot_days(axes: Axes, delays_path: str) -> None:
    days = pd.read_parquet(delays_path).groupby(["origin", "month", "day"])[["delay_minutes", "departed"]].sum()
    for origin, of_origin in (days["delay_minutes"] / days["departed"]).groupby("origin"):
        moving = of_origin.rolling(7, center=True).mean()
        dates = [pd.Timestamp(2013, month, day) for _, month, day in moving.index]
        axes.plot(dates, moving.to_numpy(), label=origin, linewidth=1.2)
    axes.set_title("Mean departure delay by airport, over 7 days")
    axes.set_ylabel("minutes")
    axes.legend()
    axes.grid(alpha=0.3)


def write_page(
    path: Path,
    plot_path: Path,
    summaries: Sequence[Summary],
    names: Mapping[str, str],
    seconds: Mapping[str, float],
    checks: Sequence[Check],
) -> None:
    """Write the HTML report."""
    delays = [["Carrier", *MONTHS], *([f"{c} {names.get(c, '')}", *cells] for c, cells in _cells(summaries).items())]
    stages = [["Stage", "Seconds"], *([name, f"{took:.1f}"] for name, took in seconds.items())]
    checked = [["Figure", "Expected", "Found"], *([c.what, str(c.expected), str(c.found)] for c in checks)]
    page = PAGE.format(
        count=sum(s.flights for s in summaries),
        plot=plot_path.name,
        delays=_html(delays),
        stages=_html(stages),
        checks=_html(checked, {i for i, c in enumerate(checks, 1) if not c.passed}),
    )
    path.write_text(page, "utf-8")


def _html(rows: list[list[str]], bad: set[int] | None = None) -> str:
    lines = []
    for number, row in enumerate(rows):
        cell = "td" if number else "th"
        mark = ' class="bad"' if bad and number in bad else ""
        cells = "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row)
        lines.append(f"<tr{mark}>{cells}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
