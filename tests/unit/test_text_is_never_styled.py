"""Text from messages is escaped wherever people or programs look at it: one property for each kind of place."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.hostile_texts import ANY, MARK, TEXTS, unseen

import rocketspark
from rocketspark.cli import message_forms, stored_messages
from rocketspark.cli.operate import print_json, print_table
from rocketspark.model.limited_log import LOGGERS, ShownFormatter
from rocketspark.model.text import in_file_name, shown, shown_json

pytest.importorskip("pyspark")

from rocketspark.spark.pipelines import trace_report
from rocketspark.spark.pipelines.parts.archive_manifest import partition_folder
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.report import show

pytestmark = pytest.mark.shows("text from messages is never executed or styled")

QUICK = settings(max_examples=50)


@given(ANY)
def test_shown_leaves_nothing_unseen_and_is_its_own_form(text: str) -> None:
    once = shown(text, characters_max=len(text))
    assert unseen(once) == set()
    assert shown(once, characters_max=len(once)) == once
    if not unseen(text):
        assert len(once) >= len(text)


@given(
    st.recursive(ANY | st.integers() | st.none(), lambda inner: st.dictionaries(ANY, inner, max_size=3), max_leaves=5)
)
def test_json_is_escaped_and_means_the_same(value: Any) -> None:
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return
    text = shown_json(encoded)
    assert unseen(text) == set()
    assert msgspec.json.decode(text) == msgspec.json.decode(encoded)


@given(ANY, ANY)
def test_names_of_files_hold_nothing_unseen_and_stay_apart(one: str, other: str) -> None:
    folder = partition_folder(one, "2026-01-01T00")
    assert unseen(folder) == set()
    assert folder.count("/") == 1
    assert (folder == partition_folder(other, "2026-01-01T00")) == (one == other)
    assert unseen(in_file_name(one)) == set()


@pytest.mark.parametrize("text", TEXTS)
def test_tables_and_results(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = {text: text, "list": [text], "table": {text: text}}
    print_table(("a", "b"), [(text, text)])
    show({"value": text, "rows": [row], text: text})
    out = capsys.readouterr().out
    assert MARK in out
    assert unseen(out, allowed="\n") == set()
    # Markup is shown as it stands.
    assert "[bold red]" in out if "[bold" in text else True
    if "\ud800" not in text:
        show({"value": text, "rows": [row]}, json=True)
        print_json(row)
        lines = capsys.readouterr().out.splitlines()
        assert [unseen(line) for line in lines] == [set(), set()]
        assert [json.loads(line) for line in lines] == [{"value": text, "rows": [row]}, row]


@QUICK
@given(ANY)
@example(TEXTS[3])
def test_consumed_messages(text: str) -> None:
    message: Any = SimpleNamespace(
        **dict.fromkeys(("topic", "broker_name", "message_id", "offset_message_id", "tag", "born_host"), text),
        **dict.fromkeys(("queue_id", "queue_offset", "born_time_ms", "store_time_ms", "reconsume_times", "flag"), 1),
        keys=[text],
        properties={text: text},
        store_host=text,
        physical_offset=1,
        body_error=text,
        body=text.encode("utf-8", "surrogatepass"),
    )
    for form in stored_messages.BodyForm:
        lines = stored_messages.message_lines(message, form)
        assert [line for line in lines if unseen(line, allowed="\t")] == []
    # Its other cells are shown by print_table.
    assert unseen(stored_messages.message_row(message)[-1]) == set()
    assert unseen(message_forms.as_text(message), allowed="\t") == set()
    if not any("\ud800" <= c <= "\udfff" for c in text):
        line = message_forms.as_json(message)
        assert unseen(line) == set()
        assert json.loads(line)["properties"] == {text: text}


@QUICK
@given(ANY)
def test_progress_and_logs_are_one_line(text: str) -> None:
    out = io.StringIO()
    Progress("dlq", out).say(text)
    record = logging.LogRecord("rocketspark", logging.ERROR, "", 0, "topic %s", (text,), None)
    line = ShownFormatter("%(levelname)s %(message)s").format(record)
    assert out.getvalue().count("\n") == 1
    assert unseen(out.getvalue(), allowed="\n") == unseen(line) == set()


def test_every_logger_of_ours_escapes_what_it_is_given(caplog: pytest.LogCaptureFixture) -> None:
    source = Path(rocketspark.__file__).parent
    named = re.compile(r"(?:getLogger|LimitedLog)\(\"(rocketspark[a-z_.]*)\"")
    names = {name for path in source.rglob("*.py") for name in named.findall(path.read_text())}
    assert names == set(LOGGERS)
    for name in names:
        logger = logging.getLogger(name)
        with caplog.at_level(logging.INFO, name):
            logger.warning("topic %s of %d, %s", TEXTS[0], 5, ValueError(TEXTS[3]))
            logger.warning("topic %(t)s", {"t": TEXTS[5]})
        (first, second) = caplog.records
        assert unseen(first.getMessage()) == unseen(second.getMessage()) == set()
        assert r"topic mark\x1b[31mred\x1b[0m of 5, mark\r\nERROR" in first.getMessage()
        caplog.clear()


def test_a_traceback_keeps_its_lines_and_nothing_else() -> None:
    try:
        raise ValueError("bad \x1b[31m\nERROR forged")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), __import__("sys").exc_info())
    text = ShownFormatter("%(message)s").format(record)
    assert "\nValueError: bad \\x1b[31m" in text
    assert unseen(text, allowed="\n") == set()


@QUICK
@given(ANY)
@example(TEXTS[9])
def test_pages(text: str) -> None:
    cell = trace_report._text(text)
    assert unseen(cell) == set()
    assert not re.search("[<>\"']", cell)


@pytest.mark.parametrize("text", [*TEXTS, "$x$", "$$", r"\$x$", "$" * 60])
def test_plots_take_a_text_for_no_formula(text: str) -> None:
    from matplotlib.cbook import is_math_text
    from matplotlib.figure import Figure

    label = trace_report._short(text)
    assert unseen(label) == set()
    figure = Figure()
    axes = figure.add_subplot()
    axes.set_title(label)
    figure.savefig(io.BytesIO(), format="png")
    assert is_math_text(label.replace(r"\$", "")) is False


@pytest.mark.parametrize("text", TEXTS)
def test_labels_of_metrics(text: str) -> None:
    from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
    from prometheus_client.exposition import generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from rocketspark.transport.metrics.families import label_texts

    class One:
        def collect(self) -> list[GaugeMetricFamily]:
            family = GaugeMetricFamily("m", "h", labels=["topic"])
            family.add_metric(label_texts({"topic": text}, ["topic"]), 1)
            return [family]

    registry = CollectorRegistry()
    registry.register(One())
    page = generate_latest(registry).decode()
    assert unseen(page, allowed="\n") == set()
    (family,) = text_string_to_metric_families(page)
    assert family.samples[0].labels["topic"] == shown(text)
