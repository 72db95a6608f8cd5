"""The flights demo's own parts: its messages, and that its check finds what differs."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from examples.flights import report, source
from examples.flights.check import BY_DAY, BY_MONTH, Check, check, delays
from examples.flights.cluster import gist
from examples.flights.replay import Replayed
from examples.flights.summaries import Summary
from rich.console import Console

from rocketspark import MessageQueue

COUNT = 3000


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return source.load(COUNT)


@pytest.fixture(scope="module")
def read(flights: pd.DataFrame) -> pd.DataFrame:
    """What Spark would have written, each plane in a queue of its own."""
    rows = flights.copy()
    rows["broker"] = "broker-a"
    rows["queueId"] = rows["tailnum"].fillna("").map(lambda tail: sum(map(ord, tail)) % 8)
    rows["queueOffset"] = rows.groupby("queueId").cumcount()
    return rows


def summaries_of(flights: pd.DataFrame) -> list[Summary]:
    return [Summary(**row) for row in delays(flights, BY_MONTH).to_dict("records")]


def run_check(
    folder: Path, source_rows: pd.DataFrame, read: pd.DataFrame, days: pd.DataFrame, consumed: list[Summary]
) -> list[Check]:
    read.astype({"month": "int64"}).assign(batch=0).to_parquet(folder / "flights", partition_cols=["month", "batch"])
    days.assign(batch=0).to_parquet(folder / "delays", partition_cols=["batch"])
    replayed = Replayed(len(source_rows), {})
    return check(source_rows, replayed, str(folder / "flights"), str(folder / "delays"), len(consumed), consumed)


def test_all_flights_are_there_in_order_of_departure() -> None:
    flights = source.load()
    assert len(flights) == 336_776
    assert int(flights["dep_delay"].count()) == 328_521
    assert flights["time_hour"].is_monotonic_increasing
    assert list(flights["row"]) == list(range(336_776))


def test_a_flight_as_message(flights: pd.DataFrame) -> None:
    message = next(source.messages(flights, "run-1"))
    assert (message.topic, message.tag, message.keys) == ("flights", "UA", ["UA1545-2013-01-01"])
    assert (message.sharding_key, message.properties) == ("N14228", {"run": "run-1"})
    body = msgspec.json.decode(message.body)
    assert list(body) == source.COLUMNS
    assert (body["dep_delay"], body["dest"], body["time_hour"]) == (2, "IAH", "2013-01-01T10:00:00Z")


def test_gaps_become_null_and_a_flight_without_a_plane_has_a_key_of_its_own(flights: pd.DataFrame) -> None:
    nameless = flights[flights["tailnum"].isna()].head(1)
    (message,) = source.messages(nameless, "run-1")
    body = msgspec.json.decode(message.body)
    assert body["tailnum"] is None
    assert body["dep_delay"] is None
    assert message.sharding_key == f"{body['carrier']}{body['flight']}"


def test_starting_offsets_are_by_topic_broker_and_queue() -> None:
    replayed = Replayed(3, {MessageQueue("flights", "broker-a", 0): 7, MessageQueue("flights", "broker-b", 2): 0})
    assert replayed.as_starting_offsets() == {"flights": {"broker-a": {"0": 7}, "broker-b": {"2": 0}}}


def test_the_check_passes_what_is_right(tmp_path: Path, flights: pd.DataFrame, read: pd.DataFrame) -> None:
    shuffled = read.sample(frac=1, random_state=1)
    checks = run_check(tmp_path, flights, shuffled, delays(flights, BY_DAY), summaries_of(flights))
    assert [c for c in checks if not c.passed] == []
    assert len(checks) == 22


def _lose_a_flight(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.iloc[1:]


def _double_a_flight(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows, rows.iloc[[5]]])


def _change_a_value(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(distance=rows["distance"].where(rows["row"] != 17, 1))


def _swap_two_values(rows: pd.DataFrame) -> pd.DataFrame:
    changed = rows.reset_index(drop=True)
    changed.loc[[3, 4], "dest"] = changed.loc[[4, 3], "dest"].to_numpy()
    return changed


def _swap_a_planes_flights(rows: pd.DataFrame) -> pd.DataFrame:
    changed = rows.reset_index(drop=True)
    pair = changed.index[changed["tailnum"] == changed["tailnum"].value_counts().index[0]][:2]
    changed.loc[pair, "queueOffset"] = changed.loc[pair[::-1], "queueOffset"].to_numpy()
    return changed


@pytest.mark.shows("demo: a wrong figure ends it with an error")
@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (_lose_a_flight, {"flights in Parquet", "flights of month 1", "checksum of all flights"}),
        (_double_a_flight, {"flights in Parquet", "flights of month 1", "checksum of all flights"}),
        (_change_a_value, {"checksum of all flights"}),
        (_swap_two_values, {"checksum of all flights"}),
        (_swap_a_planes_flights, {"planes out of order"}),
    ],
)
def test_the_check_finds_wrong_flights(
    tmp_path: Path,
    flights: pd.DataFrame,
    read: pd.DataFrame,
    spoil: Callable[[pd.DataFrame], pd.DataFrame],
    found: set[str],
) -> None:
    checks = run_check(tmp_path, flights, spoil(read), delays(flights, BY_DAY), summaries_of(flights))
    assert found <= {c.what for c in checks if not c.passed}


def test_the_check_finds_wrong_delays_and_summaries(tmp_path: Path, flights: pd.DataFrame, read: pd.DataFrame) -> None:
    days = delays(flights, BY_DAY)
    days.loc[0, "late"] += 1
    consumed = summaries_of(flights)
    consumed[2] = msgspec.structs.replace(consumed[2], delay_minutes=consumed[2].delay_minutes + 1)
    failed = {c.what for c in run_check(tmp_path, flights, read, days, consumed[:-1]) if not c.passed}
    assert failed == {
        "checksum of these delays",
        "summaries published",
        "summaries consumed",
        "checksum of the summaries",
    }


def test_the_report_shows_what_differs(tmp_path: Path, flights: pd.DataFrame) -> None:
    consumed = summaries_of(flights)
    checks = [Check("good", 1, 1), Check("bad <one>", 1, 2)]
    page = tmp_path / "report.html"
    report.write_page(page, tmp_path / "delays.png", consumed, source.carrier_names(), {"Replay": 1.25}, checks)
    text = page.read_text()
    assert '<tr class="bad"><td>bad &lt;one&gt;</td><td>1</td><td>2</td></tr>' in text
    assert "<td>Replay</td><td>1.2</td>" in text
    assert "United Air Lines" in text
    assert 'src="delays.png"' in text


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    full_year = [Summary(c, m, 100, 90, 9000, 80) for c in source.carrier_names() for m in range(1, 13)]
    console = Console(width=80, file=io.StringIO())
    console.print(report.delay_table(full_year, source.carrier_names()))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[-1] for line in lines if "Dec" in line] == ["Dec"]
    assert sum(line.split()[-12:] == ["100"] * 12 for line in lines) == 16


def test_an_error_of_spark_is_shown_by_the_line_that_says_what_is_wrong() -> None:
    stream = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back.\n"
    state = "=== Streaming Query ===\nIdentifier: [id = 1]\n\nCurrent State: INITIALIZING\nThread State: RUNNABLE"
    assert gist(stream + state) == stream.strip()
    assert gist("Traceback (most recent call last):\n  ...\nValueError: no such queue\n") == "ValueError: no such queue"
    assert gist("") == "an error without a text"
