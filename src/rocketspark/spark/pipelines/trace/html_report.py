"""The trace report as one HTML file that needs nothing else. Rule: text from a message is escaped; the file appears
whole or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape as escaped_markup
from pathlib import Path
from string import Template

from rocketspark.model.text import shown
from rocketspark.spark.pipelines.trace.figures import Latency, Slow, TraceReport
from rocketspark.spark.pipelines.trace.plots import plots

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
    """Return the whole page. Raises ConfigError without matplotlib."""
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
    page = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
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
    return f"{_time(begin)} to {_time(end)} UTC"


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
            *(m.message_id, m.topic, m.group, m.keys, _time(m.sent_ms), m.end_to_end_ms, m.store_to_consume_ms),
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


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def escape(text: str) -> str:
    """The whole text for a page: neither markup nor what no eye sees."""
    return escaped_markup(shown(text, characters_max=len(text)))
