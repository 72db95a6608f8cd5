"""What `make bench-spark` reckons with: the bodies, and who used the processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bench.spark_kafka import BODY_BYTES, Round, body_of, us_a_row
from bench.spark_peers import Usage, processes

pytestmark = pytest.mark.shows(
    "`make bench-spark` beside the Kafka connector: read 3.4x, stream 1.5x, Parquet 2.3x, store 3.0x, write 1.1x"
)


def test_bodies_are_different_and_of_one_size() -> None:
    made = {body_of(number) for number in range(2000)}
    assert len(made) == 2000
    assert {len(body) for body in made} == {BODY_BYTES}
    # sha2(cast(7 as string), 512) of Spark.
    assert body_of(7).startswith(b"f05210c5b4263f0ec4c3995bdab458d81d3953f354a9109520f159db1e8800bcd45b97c56dce90")


def test_processor_time_by_who_used_it() -> None:
    rounds = [Round(1_000_000, 1.0, Usage(0.1 * k, 0.5, 0.2)) for k in (1, 9, 2)]
    found = us_a_row(rounds)
    assert {k: round(v, 6) for k, v in found.items()} == {"broker": 0.2, "JVM": 0.5, "Python": 0.2, "all": 0.9}
    assert Usage(3.0, 2.0, 1.0).since(Usage(1.0, 0.5, 1.0)) == (2.0, 1.5, 0.0)


def test_processes_below_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = processes(os.getpid())
        assert found[0].pid == os.getpid()
        assert child.pid in {p.pid for p in found if p.parent == os.getpid() and not p.is_java}
    finally:
        child.communicate(b"\n")
