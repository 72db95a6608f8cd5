"""Times from the intended moment: a stall is counted for every send that was due in it."""

from __future__ import annotations

import pytest
from bench.intended import OpenLoop, percentiles
from hypothesis import given
from hypothesis import strategies as st

MS = 1_000_000

pytestmark = pytest.mark.shows(
    "latency free of coordinated omission: an open loop with intended send times, p50, p99, p99.9"
)


class Clock:
    """A clock that moves by sleep, and by what a send takes."""

    def __init__(self) -> None:
        self.ns = 5 * MS

    def __call__(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        # Never woken before its time, as the machine's.
        self.ns += max(round(seconds * 1e9), 1)


def test_a_stall_is_counted_for_all_that_were_due_in_it() -> None:
    clock = Clock()
    loop = OpenLoop(1000, 1.0, clock, clock.sleep)

    def send(number: int) -> None:
        # Each takes 0.1 ms; one of them stalls for 100 ms.
        clock.ns += 100 * MS if number == 500 else MS // 10
        loop.ended(number)

    loop.drive(send)
    found = loop.result()
    # The stalled one, and those behind it until the sender has caught up: 100 ms at 0.9 ms a send.
    late = [max(100.0 - 0.9 * k, 0.1) for k in range(1000 - 500)]
    expected = sorted([0.1] * 500 + late)
    assert found["count"] == 1000
    assert found["failed"] == 0
    assert found["p50_us"] == pytest.approx(1000 * expected[500])
    assert found["p99_us"] == pytest.approx(1000 * expected[990])
    assert found["p999_us"] == pytest.approx(1000 * expected[999])
    # A closed loop would have had one send of 1,000 above 0.1 ms.
    assert sum(ms > 1 for ms in expected) > 100


def test_sends_leave_at_even_times_and_late_ones_at_once() -> None:
    clock = Clock()
    loop = OpenLoop(1000, 0.01, clock, clock.sleep)
    left: list[int] = []

    def send(number: int) -> None:
        left.append(clock.ns - 5 * MS)
        clock.ns += 3 * MS if number == 2 else 0
        loop.ended(number)

    loop.drive(send)
    assert [ns / MS for ns in left] == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9]
    assert loop.due_ns(9) == 14 * MS


def test_a_failed_send_counts_as_the_whole_round() -> None:
    clock = Clock()
    loop = OpenLoop(100, 1.0, clock, clock.sleep)

    def send(number: int) -> None:
        if number == 7:
            raise ConnectionError("refused at once")
        loop.ended(number, ConnectionError("refused") if number == 8 else None)

    loop.drive(send)
    found = loop.result()
    assert (found["count"], found["failed"]) == (98, 2)
    assert found["seconds"] == pytest.approx(0.99)
    assert found["p50_us"] == 0
    assert found["p99_us"] == found["p999_us"] == pytest.approx(990_000)


def test_what_is_told_twice_counts_once() -> None:
    clock = Clock()
    loop = OpenLoop(1000, 0.002, clock, clock.sleep)

    def send(number: int) -> None:
        loop.ended(0)  # A message that a listener gets twice.
        clock.ns += MS // 2
        loop.ended(number, ConnectionError("refused") if number == 0 else None)

    loop.drive(send)
    found = loop.result()
    assert (found["count"], found["failed"], found["p50_us"]) == (2, 0, 500)


@given(
    rate=st.floats(1, 100_000),
    count=st.integers(1, 300),
    took_ns=st.lists(st.integers(0, 20 * MS), min_size=1, max_size=20),
    behind_ns=st.integers(0, 5 * MS),
)
def test_a_time_is_what_the_sends_before_left_of_it_and_its_own(
    rate: float, count: int, took_ns: list[int], behind_ns: int
) -> None:
    """The model: each send leaves when it is due or when the one before let go, and is answered some time after."""
    clock = Clock()
    loop = OpenLoop(rate, (count + 0.5) / rate, clock, clock.sleep)
    start = clock.ns
    free, expected = start, []
    for number in range(loop.count):
        due = start + int(number * 1_000_000_000 / rate)
        free = max(free, due) + took_ns[number % len(took_ns)]
        expected.append((free + behind_ns - due) / 1000)

    def send(number: int) -> None:
        clock.ns += took_ns[number % len(took_ns)]
        held = clock.ns
        clock.ns += behind_ns
        loop.ended(number)
        clock.ns = held

    loop.drive(send)
    found = loop.result()
    assert {k: found[k] for k in ("p50_us", "p99_us", "p999_us")} == pytest.approx(percentiles(sorted(expected)))


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (1, (0, 0, 0)),
        (2, (1, 1, 1)),
        (100, (50, 99, 99)),
        (1000, (500, 990, 999)),
        (200_000, (100_000, 198_000, 199_800)),
    ],
)
def test_percentiles(count: int, found: tuple[int, int, int]) -> None:
    assert tuple(percentiles(range(count)).values()) == found
