"""How the benchmarks sum up rounds."""

from __future__ import annotations

import pytest
from bench.report import Figure, Row, percentile, rates_row, ratio_of, show, values_row


@pytest.mark.parametrize(
    ("pairs", "less_is_better", "ratio"),
    [
        ([(30.0, 10.0)], False, 3.0),
        ([(30.0, 10.0)], True, 1 / 3),
        # The median of the rounds' own ratios (2, 1, 8), not the ratio of medians (30 over 10).
        ([(20.0, 10.0), (30.0, 30.0), (40.0, 5.0)], False, 2.0),
        ([(20.0, 10.0), (30.0, 0.0)], False, 2.0),
        ([(0.0, 10.0)], True, None),
        ([], False, None),
    ],
)
def test_a_ratio_is_the_median_of_the_rounds_own(
    pairs: list[tuple[float, float]], less_is_better: bool, ratio: float | None
) -> None:
    assert ratio_of(pairs, less_is_better=less_is_better) == (pytest.approx(ratio) if ratio is not None else None)


def test_a_row_of_rates_tells_what_each_cost() -> None:
    pairs = [
        (Figure(done=2000, seconds=2.0, server_cpu_s=1.0, tool_cpu_s=0.2), Figure(1000, 2.0, 3.0, 0.1)),
        (Figure(3000, 1.0, 0.6, 0.5), Figure(1000, 1.0, 1.0, 0.1)),
        (Figure(1000, 1.0, 0.5, 0.1), Figure(1000, 4.0, 4.0, 0.1)),
    ]
    assert rates_row("sends", "msg/s", pairs) == Row(
        name="sends",
        ours=1000,
        peer=500,
        unit="msg/s",
        ratio=3.0,
        us_each=pytest.approx(500),
        peer_us_each=pytest.approx(3000),
        cores=pytest.approx(0.5),
        peer_cores=pytest.approx(1.0),
        # The tool at its busiest: it must never be the bottleneck.
        tool_cores=pytest.approx(0.5),
    )


def test_without_a_peer_there_is_no_ratio() -> None:
    row = rates_row("sends", "msg/s", [(Figure(100, 1.0, 0.01), None)])
    assert (row.ours, row.peer, row.ratio, row.us_each, row.peer_us_each) == (100, None, None, pytest.approx(100), None)
    assert values_row("memory", "MiB", [(3.0, None)]) == Row("memory", 3.0, None, "MiB", None)


def test_less_memory_is_ahead() -> None:
    assert values_row("memory", "MiB", [(30.0, 1500.0)], less_is_better=True).ratio == 50


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_rows_as_they_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row("send, 64 in flight, 128 B", 170_000.4, 98_000, "msg/s", 1.735, 5.91, 12.04, 0.98, 1.42, 0.06)
    show([row, Row("server command until ready", 337.2, None, "ms"), Row("clean stop", 0.5, None, "s")])
    heading, sends, ready, stop = capsys.readouterr().out.splitlines()
    assert heading.split() == "case ours java unit ratio us each CPU s/s tool".split()
    shown = "send, 64 in flight, 128 B 170,000 98,000 msg/s 1.74x 5.91 / 12.0 0.98 / 1.42 0.06"
    assert sends.split() == shown.split()
    assert ready.split() == "server command until ready 337 ms".split()
    assert stop.split() == "clean stop 0.50 s".split()
