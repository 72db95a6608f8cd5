"""Latency fault tolerance: the tables, who is left alone, who is the least bad."""

from __future__ import annotations

import pytest

from rocketspark.client.producer.latency_faults import FAULT_TABLES, FaultTable, LatencyFaults, table_of
from rocketspark.errors import ConfigError

pytestmark = pytest.mark.shows("retries by code table, settable; statuses; two tables of fault tolerance, detector")

PAUSES_S = {
    "4.x": {49: 0, 50: 0, 100: 0, 549: 0, 550: 30, 1000: 60, 2000: 120, 3000: 180, 14_999: 180, 15_000: 600},
    "5.x": {49: 0, 50: 0, 100: 0, 549: 0, 550: 2, 1799: 2, 1800: 5, 3000: 6, 5000: 10, 14_999: 10, 15_000: 30},
}


@pytest.mark.parametrize("name", FAULT_TABLES)
def test_how_long_a_slow_broker_is_left_alone(name: str) -> None:
    for latency_ms, pause_s in PAUSES_S[name].items():
        faults = LatencyFaults(FAULT_TABLES[name])
        faults.sent("a", latency_ms, 100.0)
        assert faults.is_available("a", 100.0 + pause_s)
        assert faults.is_available("a", 100.0 + pause_s - 0.001) == (pause_s == 0), latency_ms


@pytest.mark.parametrize(("name", "pause_s"), [("4.x", 600), ("5.x", 10)])
def test_a_failure_counts_as_a_slow_send(name: str, pause_s: float) -> None:
    faults = LatencyFaults(FAULT_TABLES[name])
    faults.failed("a", 3, 0.0, unreachable=True)
    assert not faults.is_available("a", pause_s - 0.001)
    assert faults.is_available("a", pause_s)
    assert faults.unreachable == {"a"}
    faults.sent("a", 1, 1.0)
    assert faults.is_available("a", 1.0)
    assert not faults.unreachable


def test_the_least_bad_is_of_the_better_half() -> None:
    faults = LatencyFaults(FAULT_TABLES["4.x"])
    assert faults.least_bad("abcd", 0.0) is None
    for name, latency_ms in zip("abcd", (4000, 1000, 600, 20_000), strict=True):
        faults.sent(name, latency_ms, 0.0)
    assert {faults.least_bad("abcd", 1.0) for _ in range(8)} == {"c", "b"}
    assert {faults.least_bad("ad", 1.0) for _ in range(4)} == {"a"}
    faults.failed("c", 1, 0.0, unreachable=True)
    assert {faults.least_bad("bc", 1.0) for _ in range(4)} == {"b"}
    faults.keep(lambda name: name != "b")
    assert faults.least_bad("b", 1.0) is None


def test_tables_that_cannot_be() -> None:
    assert table_of(FaultTable((1, 2), (3, 4), 5)).pause_ms(2) == 4
    with pytest.raises(ConfigError, match=r"4.x, 5.x"):
        table_of("6.x")
    with pytest.raises(ConfigError, match="rising"):
        table_of(FaultTable((2, 1), (3, 4), 5))
    with pytest.raises(ConfigError, match="as many"):
        table_of(FaultTable((1, 2), (3,), 5))
