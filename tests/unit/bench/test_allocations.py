"""Allocated bytes a message: what two runs of a process tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.allocations import NotCounted, bytes_each, each_of, is_countable, total_of

# As bench.perf answers; each message takes a body of 1,000 bytes and drops it.
CLIENT = """
import json, sys
for line in sys.stdin:
    count = int(float(line))
    for _ in range(count):
        bytearray(1000)
    print(json.dumps({"count": count}))
"""


def test_the_difference_of_two_runs_is_the_messages_own() -> None:
    # Both have 5,000 bytes of the start.
    assert each_of((10, 5_000 + 10 * 70), (110, 5_000 + 110 * 70)) == 70
    assert each_of((10, 5_000), (10, 6_000)) is None


def test_the_last_summary_counts() -> None:
    output = b"\n\x1b[01;32mMemory usage summary:\x1b[0;0m heap total: 75, heap peak: 7, stack peak: 9\n warning\n"
    assert total_of(output) == 75
    assert total_of(output + output.replace(b"75", b"980")) == 980


@pytest.mark.skipif(not is_countable(), reason="the machine has no libmemusage")
def test_a_process_that_allocates_a_body_a_message(tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    found = bytes_each([sys.executable, "-S", "-c", CLIENT], log_path, 1000, 9000)
    assert found == pytest.approx(1060, abs=60)
    assert b"heap total" in log_path.read_bytes()


@pytest.mark.skipif(not is_countable(), reason="the machine has no libmemusage")
def test_a_client_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotCounted, match="it broke"):
        bytes_each([sys.executable, "-S", "-c", "raise SystemExit('it broke')"], tmp_path / "log", 1, 2)
