"""The report of the pipeline `trace` as one HTML file that needs nothing else, with its plots. Rule: text from messages
is escaped, and drawn as it is, never read as mathematics; the file appears whole or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape as escaped_markup
from pathlib import Path
from string import Template
from typing import Any

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.spark.pipelines.parts.trace_records import QUANTILES, Deliveries, Latency, Moment, Slow, TraceReport

# The content of a cell: text or a number; or, written as it is, HTML made here.
Cell = str | int | float | None


def write_html(report: TraceReport, path: str | Path) -> None:
    """Write the report to a file, replacing it. Raises ConfigError without matplotlib, OSError."""
    text = html(report)
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def html(report: TraceReport) -> str:
    """Return the whole page of a report. Raises ConfigError without matplotlib."""
    figures = []
    for caption, png in plots(report).items():
        data, name = base64.b64encode(png).decode("ascii"), escape(caption)
        figures.append(
            f'<figure><figcaption>{name}</figcaption><img alt="{name}" src="data:image/png;base64,{data}"></figure>'
        )
    success = "From the begin of the send to the end of the first listener that took it with success."
    no_success = "Handed to a listener, but no success was traced: failed each time, dead, or still under way."
    kinds = [*report.records.items(), ("malformed", report.malformed)]
    tables = [
        _deliveries(report),
        _sends(report),
        _transactions(report),
        _messages("The slowest messages", success, report.slowest),
        _messages("Not consumed", no_success, report.unconsumed),
        _table("Records", "", ["record", "count"], kinds, texts=1),
    ]
    page = Template((Path(__file__).parent / "trace_page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(f"Message traces: {report.trace_topic}"),
        range=escape(_range(report)),
        cards=_cards(report),
        figures="\n".join(figures),
        tables="\n".join(tables),
    )


def _range(report: TraceReport) -> str:
    begin = report.since_ms if report.since_ms is not None else report.first_ms
    end = report.until_ms if report.until_ms is not None else report.last_ms
    if begin is None or end is None:
        return "No traces."
    return f"{_utc(begin)} to {_utc(end)} UTC"


def _cards(report: TraceReport) -> str:
    sent, failed_sends = sum(s.messages for s in report.sends), sum(s.failed for s in report.sends)
    deliveries, failed = sum(d.deliveries for d in report.deliveries), sum(d.failed for d in report.deliveries)
    slowest = max((d.end_to_end_ms.p99 for d in report.deliveries if d.end_to_end_ms.p99 is not None), default=None)
    cards: list[tuple[str, Cell, bool]] = [
        ("messages sent", sent, False),
        ("sends failed", failed_sends, failed_sends > 0),
        ("deliveries", deliveries, False),
        ("deliveries failed", failed, failed > 0),
        ("retries", sum(d.retried for d in report.deliveries), False),
        ("not consumed", sum(d.unconsumed for d in report.deliveries), any(d.unconsumed for d in report.deliveries)),
        ("worst 99 % end to end, ms", slowest, False),
    ]
    if report.malformed:
        cards.append(("malformed records", report.malformed, True))
    shown = "".join(
        f'<div class="card{" bad" if bad else ""}"><b>{_text(value) or "-"}</b>{escape(name)}</div>'
        for name, value, bad in cards
    )
    return f'<div class="cards">{shown}</div>'


_LATENCIES = ("50 %", "90 %", "99 %", "99.9 %", "max")


def _quantiles(latency: Latency) -> tuple[Cell, ...]:
    return (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)


def _deliveries(report: TraceReport) -> str:
    counts = [
        (
            *(d.topic or "(send not traced)", d.group, d.messages, d.deliveries, d.retried, d.most_retries, d.failed),
            ", ".join(f"{count:,} {name}" for name, count in d.failures.items()),
            *(d.unfinished, d.unconsumed, d.delayed, d.clock_skew),
        )
        for d in report.deliveries
    ]
    names = ["topic", "group", "messages", "deliveries", "retried", "most retries", "failed", "why"]
    names += ["unfinished", "not consumed", "delayed", "clock skew"]
    latencies = [
        (d.topic or "(send not traced)", d.group, what, latency.measured, *_quantiles(latency))
        for d in report.deliveries
        for what, latency in (
            ("end to end", d.end_to_end_ms),
            ("stored to first listener", d.store_to_consume_ms),
            ("listener", d.listener_ms),
        )
        if latency.measured
    ]
    note = "End to end: from the begin of the send to the end of the first listener with success. Stored: as RocketMQ"
    note += " estimates it, in the middle of the send. Delayed messages are left out of both."
    return _table("Consumers", "", names, counts, texts=2, bad=("failed", "not consumed")) + _table(
        "Latency, ms", note, ["topic", "group", "what", "measured", *_LATENCIES], latencies, texts=3
    )


def _sends(report: TraceReport) -> str:
    rows = [(s.topic, s.group, s.messages, s.failed, s.bytes, *_quantiles(s.cost_ms)) for s in report.sends]
    names = ["topic", "producer group", "messages", "failed", "bytes", *_LATENCIES]
    return _table("Producers", "Latency of sends in ms.", names, rows, texts=2, bad=("failed",))


def _transactions(report: TraceReport) -> str:
    rows = [
        (
            *(t.topic, t.group, t.committed, t.rolled_back, t.unknown, t.checked, t.open),
            *_quantiles(t.half_to_end_ms),
        )
        for t in report.transactions
    ]
    names = ["topic", "producer group", "committed", "rolled back", "unknown", "by a check", "no end", *_LATENCIES]
    note = "Latency in ms from the send to the last end."
    return _table("Transactions", note, names, rows, texts=2, bad=("unknown", "no end"))


def _messages(title: str, note: str, messages: list[Slow]) -> str:
    rows = [
        (
            *(m.message_id, m.topic, m.group, m.keys, _utc(m.sent_ms), m.end_to_end_ms, m.store_to_consume_ms),
            *(m.deliveries, m.failed, m.last_failure),
        )
        for m in messages
    ]
    names = ["message id", "topic", "group", "keys", "sent", "end to end, ms", "stored to listener, ms"]
    names += ["deliveries", "failed", "last failure"]
    return _table(title, note, names, rows, texts=5, bad=("failed",), identified=True)


def _table(
    title: str,
    note: str,
    names: list[str],
    rows: Iterable[tuple[Cell, ...]],
    *,
    texts: int,
    bad: tuple[str, ...] = (),
    identified: bool = False,
) -> str:
    """Return a table; nothing without rows. `texts`: how many columns are at the left; `bad`: those red unless 0."""
    rows = list(rows)
    if not rows:
        return ""

    def cell(number: int, value: Cell) -> str:
        kinds = ["t"] if number < texts or isinstance(value, str) else []
        if identified and number == 0:
            kinds.append("id")
        if names[number] in bad and value:
            kinds.append("bad")
        return f'<td class="{" ".join(kinds)}">{_text(value)}</td>'

    head = "".join(f'<th class="{"t" if n < texts else ""}">{escape(name)}</th>' for n, name in enumerate(names))
    body = "".join(f"<tr>{''.join(cell(n, value) for n, value in enumerate(row))}</tr>" for row in rows)
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>{escape(title)}</h2>{said}<div class="wide">{table}</div>'


def _text(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}".removesuffix(".0")
    return escape(value)


def _utc(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def escape(text: str) -> str:
    """Return a text in a form that is safe in HTML: its markup is escaped, and invisible characters are written out."""
    return escaped_markup(shown(text, characters_max=len(text)))


# Okabe and Ito's.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
RED, GREY = "#c0392b", "#c9d1d9"
LINES_MAX = len(COLOURS)
LABEL_MAX = 48
SIZE = (9.2, 3.6)


def check_installed() -> None:
    """Raise ConfigError, which names what to install, if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("the HTML report needs matplotlib: pip install 'rocketspark[pipelines]', or leave --html out")


def plots(report: TraceReport) -> dict[str, bytes]:
    """Return the plots that have something to show, by title, each as the bytes of a PNG. Raises ConfigError without
    matplotlib.
    """
    check_installed()
    makers: dict[str, Callable[[TraceReport], bytes | None]] = {
        "How long messages took, from send to consumed": curves,
        "Latency over time": over_time,
        "What was sent and what failed, over time": volume,
        "Where the time goes": breakdown,
    }
    made = {title: make(report) for title, make in makers.items()}
    return {title: png for title, png in made.items() if png is not None}


def curves(report: TraceReport) -> bytes | None:
    """Plot latency by percentile, on an axis where each further nine takes as much room."""
    measured = _busiest(report.deliveries)
    if not measured:
        return None
    figure, axes = _figure()
    shown = [(q, i) for i, q in enumerate(QUANTILES) if q < 1.0]
    places = [_nines(q) for q, _ in shown]
    for colour, d in zip(COLOURS, measured, strict=False):
        curve = d.end_to_end_ms.curve
        # The largest stands where the next nine would.
        values = [max(curve[i], 0.5) for _, i in shown] + [max(curve[-1], 0.5)]
        axes.plot([*places, _nines(0.9999)], values, color=colour, marker="o", markersize=3, label=_label(d))
    ticks = {0.0: "min", 0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "max"}
    axes.set_xticks([_nines(q) for q in ticks], list(ticks.values()))
    _latency_axis(axes, [v for d in measured for v in d.end_to_end_ms.curve])
    return _png(figure, axes)


def over_time(report: TraceReport) -> bytes | None:
    """Plot for each topic and group the 99th percentile of the latency, and dashed the median, by the time at which
    messages were sent.
    """
    lines: dict[tuple[str, str], list[Moment]] = {}
    for m in report.timeline:
        if m.topic and m.p99 is not None:
            lines.setdefault((m.topic, m.group), []).append(m)
    if not lines:
        return None
    busiest = sorted(lines, key=lambda place: -sum(m.messages for m in lines[place]))[:LINES_MAX]
    figure, axes = _figure()
    for colour, place in zip(COLOURS, busiest, strict=False):
        of = lines[place]
        times = [_time(m.start_ms) for m in of]
        name = _short(" → ".join(place))
        axes.plot(
            times, [max(m.p99 or 0, 0.5) for m in of], color=colour, marker="o", markersize=3, label=f"{name} 99 %"
        )
        axes.plot(times, [max(m.p50 or 0, 0.5) for m in of], color=colour, linestyle="--", linewidth=1, label="50 %")
    _latency_axis(axes, [v for place in busiest for m in lines[place] for v in (m.p50 or 0, m.p99 or 0)])
    _time_axis(axes, report)
    return _png(figure, axes)


def volume(report: TraceReport) -> bytes | None:
    """Plot how many messages were sent in each step; below, if there are any, failed sends, failed deliveries and
    retries.
    """
    steps = sorted({m.start_ms for m in report.timeline})
    if not steps:
        return None
    sends = {m.start_ms: m for m in report.timeline if not m.topic}
    troubles = _troubles(report, sends, steps)
    figure, axes, *below = _figure(height=SIZE[1] + (1.8 if troubles else 0), below=bool(troubles))
    width = report.step_ms / 86_400_000
    counts = [sends[s].messages if s in sends else 0 for s in steps]
    axes.bar([_time(s) for s in steps], counts, width=width, align="edge", color=GREY, label="sent")
    middle = [_time(s + report.step_ms // 2) for s in steps]
    for lower in below:
        for (name, colour), values in troubles.items():
            lower.plot(middle, values, color=colour, marker="o", markersize=3, label=name)
    for panel in (axes, *below):
        panel.set_ylabel(f"in {_span(report.step_ms)}")
        panel.set_ylim(bottom=0)
    _time_axis((axes, *below)[-1], report)
    return _png(figure, axes, *below)


def _troubles(report: TraceReport, sends: Mapping[int, Any], steps: Sequence[int]) -> dict[tuple[str, str], list[int]]:
    """Return, by name and colour, the number of each kind of failure and retry in each step, without kinds that never
    happened.
    """
    delivered = [m for m in report.timeline if m.topic]
    troubles = {
        ("failed sends", RED): [sends[s].failed if s in sends else 0 for s in steps],
        ("failed deliveries", COLOURS[1]): [sum(m.failed for m in delivered if m.start_ms == s) for s in steps],
        ("retries", COLOURS[0]): [sum(m.retried for m in delivered if m.start_ms == s) for s in steps],
    }
    return {name: values for name, values in troubles.items() if any(values)}


def breakdown(report: TraceReport) -> bytes | None:
    """Plot the median and the 99th percentile of each part of a message's way: the send, the wait for a listener, the
    listener.
    """
    measured = [d for d in _busiest(report.deliveries) if d.topic]
    if not measured:
        return None
    figure, axes = _figure(height=1.4 + 0.75 * len(measured))
    costs = {s.topic: s.cost_ms for s in sorted(report.sends, key=lambda s: s.messages)}
    parts: list[tuple[str, str, Callable[[Deliveries], Any]]] = [
        ("send", COLOURS[0], lambda d: costs.get(d.topic)),
        ("stored to first listener", COLOURS[4], lambda d: d.store_to_consume_ms),
        ("listener", COLOURS[2], lambda d: d.listener_ms),
    ]
    values = []
    for shift, (name, colour, of) in enumerate(parts):
        for row, d in enumerate(measured):
            latency = of(d)
            if latency is None or not latency.measured:
                continue
            low, high = max(latency.p50, 0.5), max(latency.p99, 0.5)
            values += [low, high]
            y = row + (shift - 1) * 0.26
            axes.plot([low, high], [y, y], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
            axes.plot([low], [y], color=colour, marker="o", linestyle="", label=name if row == 0 else None)
            axes.plot([high], [y], color=colour, marker="|", markersize=11, markeredgewidth=2, linestyle="")
    axes.set_yticks(range(len(measured)), [_label(d) for d in measured])
    axes.invert_yaxis()
    _latency_axis(axes, values, axis="x")
    axes.set_xlabel("ms: point 50 %, bar to 99 %")
    return _png(figure, axes)


def _busiest(deliveries: Sequence[Deliveries]) -> list[Deliveries]:
    measured = [d for d in deliveries if d.end_to_end_ms.measured]
    return sorted(measured, key=lambda d: (-d.messages, d.topic, d.group))[:LINES_MAX]


def _nines(quantile: float) -> float:
    return -math.log10(1 - quantile)


def _label(d: Deliveries) -> str:
    return _short(f"{d.topic} → {d.group}")


def _short(text: str) -> str:
    clean = "".join(c if c.isprintable() and shown(c) == c else "?" for c in text)
    cut = clean if len(clean) <= LABEL_MAX else clean[: LABEL_MAX - 1] + "…"
    # Between two of them would be a formula.
    return cut.replace("$", r"\$")


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _span(step_ms: int) -> str:
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if step_ms % size_ms == 0:
            return f"{step_ms // size_ms} {unit}"
    return f"{step_ms} ms"


def _figure(height: float = SIZE[1], *, below: bool = False) -> tuple[Any, ...]:
    """Return a figure and its axes; with `below` two, one above the other, of one time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not pyplot: that keeps figures, and is no good in threads.
    figure: Any = Figure(figsize=(SIZE[0], height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1 + below, 1, sharex=True, squeeze=False, height_ratios=[2, 1][: 1 + below])[:, 0]
    for axes in panels:
        axes.grid(True, color="#e6e9ec", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, *panels


def _latency_axis(axes: Any, values: Sequence[float], axis: str = "y") -> None:
    """Set an axis of latencies: from 0; by powers of ten where values are far apart."""
    positive = [max(v, 0.5) for v in values] or [1.0]
    which = getattr(axes, f"{axis}axis")
    if max(positive) / min(positive) > 50:
        getattr(axes, f"set_{axis}scale")("log")
        which.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        getattr(axes, f"set_{axis}lim")(0, max(positive) * 1.08)
    getattr(axes, f"set_{axis}label")("ms")


def _time_axis(axes: Any, report: TraceReport) -> None:
    from matplotlib import dates

    locator: Any = dates.AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel(f"sent at (UTC), steps of {_span(report.step_ms)}")


def _png(figure: Any, *panels: Any) -> bytes:
    from matplotlib import rc_context

    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            legend = axes.legend(handles, labels, fontsize=8, frameon=False, **place)
            for text in legend.get_texts():
                text.set_parse_math(False)
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            text.set_parse_math(False)
    out = io.BytesIO()
    with rc_context({"text.parse_math": False}):
        figure.savefig(out, format="png")
    return out.getvalue()
