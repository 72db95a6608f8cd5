"""How the benchmark tells that memory grows with the messages."""

from __future__ import annotations

import pytest
from bench.flat import GROWN_MIB_MAX, Look, grown, growth, way_rows

# The first quarter warms up: 30 MiB more.
FLAT = [Look(1_000_000 * n, 60.0 + min(n, 5) * 6, 50_000 + min(n, 5), 40.0) for n in range(1, 21)]
LEAK = [look._replace(client_mib=look.client_mib + look.count * 16 / (1 << 20)) for look in FLAT]


def test_what_a_client_takes_to_warm_up_is_no_growth() -> None:
    assert growth(FLAT) == (FLAT[4], FLAT[19])
    assert not grown(FLAT)
    assert [row.ours for row in way_rows("send", FLAT)] == [20_000_000, 90.0, 90.0, 0.0, 0.0, 0.0]


def test_bytes_that_stay_a_message_are_growth() -> None:
    assert grown(LEAK)
    rows = {row.name.partition(": ")[2]: row.ours for row in way_rows("send", LEAK)}
    assert rows["kept a message"] == pytest.approx(16)
    assert LEAK[19].client_mib - LEAK[4].client_mib > GROWN_MIB_MAX


def test_one_round_has_no_growth() -> None:
    assert growth(FLAT[:1]) == (FLAT[0], FLAT[0])
    assert not grown(FLAT[:1])
