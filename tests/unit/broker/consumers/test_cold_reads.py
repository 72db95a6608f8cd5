"""Flow control of cold reads: who has read enough, limits that are set, grow and shrink."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.consumers import cold_reads
from rocketspark.broker.consumers.cold_reads import ColdReads
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError

pytestmark = pytest.mark.shows("cold reads: limits of groups and of all, set by an operator or adapted")


def reads(**changes: object) -> ColdReads:
    values: dict[str, object] = {"cold_flow_control": True, "group_cold_bytes_max": 100, "cold_bytes_max": 250}
    return ColdReads(BrokerSettings(**values | changes))  # type: ignore[arg-type]


def intervals(cold: ColdReads, count: int, **sizes: int) -> list[int]:
    """The limit of group g after each of so many intervals in which groups read as much as `sizes` say."""
    limits = []
    for _ in range(count):
        for group, size in sizes.items():
            cold.add(group, size)
        cold.next_interval()
        limits.append(cold.report()["configTable"].get("g||adaptive", 100))
    return limits


def test_tools_and_the_broker_s_own_groups_are_never_slowed() -> None:
    cold = reads()
    for group in ("TOOLS_CONSUMER", "CID_RMQ_SYS_x", "SCHEDULE_CONSUMER", "DEFAULT_CONSUMER"):
        cold.add(group, 10_000)
        assert not cold.is_over(group)
    cold.add("g", 1)
    assert not cold.is_over("g")


def test_it_is_off_by_default() -> None:
    cold = ColdReads(BrokerSettings())
    cold.add("g", 1 << 40)
    assert not cold.is_over("g")


def test_a_limit_grows_while_there_is_room() -> None:
    adapts = reads(cold_limits_adapt=True, cold_limits_pid=False, cold_bytes_max=10_000)
    assert intervals(adapts, 4, g=1000) == [150, 225, 337, 505]
    # A limit that an operator set does not grow, one that was not reached stays.
    adapts.set_limits({"g": 120})
    assert intervals(adapts, 2, g=1000) == [505, 505]
    adapts.remove_limit("g")
    assert intervals(adapts, 1, g=5) == [505]
    # All together read too much: the largest shrink, and none below the common limit.
    assert intervals(adapts, 9, g=1, h=10_001)[:2] == [404, 323]
    assert intervals(adapts, 9, g=1, h=10_001)[-1] == 100


def test_limits_follow_the_last_ten_intervals() -> None:
    adapts = reads(cold_limits_adapt=True, cold_bytes_max=10_000)
    # What is steered to is 8,000: nothing is known before ten intervals.
    assert intervals(adapts, 11, g=1000) == [100] * 9 + [150, 225]
    lowered = intervals(adapts, 12, g=9999)
    assert lowered[0] == 337
    assert lowered[-1] < max(lowered)
    # Off: what grew is forgotten.
    adapts._settings.cold_limits_adapt = False
    assert intervals(adapts, 1, g=1) == [100]


def test_a_group_that_reads_nothing_cold_for_a_minute_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000
    monkeypatch.setattr(cold_reads, "now_ms", lambda: now)
    cold = reads()
    cold.add("g", 7)
    assert cold.report()["runtimeTable"] == {"g": {"coldAcc": 7, "createTimeMills": now, "lastColdReadTimeMills": now}}
    now += 59_999
    cold.next_interval()
    assert cold.report()["runtimeTable"]["g"]["coldAcc"] == 0
    now += 1
    cold.next_interval()
    assert not cold.report()["runtimeTable"]
    # A clock that is set back keeps nobody for ever.
    cold.add("g", 7)
    now -= 10_000_000
    cold.next_interval()
    assert not cold.report()["runtimeTable"]


def test_limits_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "LIMITS_MAX", 2)
    cold = reads()
    cold.set_limits({"a": 1, "b": 2})
    cold.set_limits({"a": 3})
    with pytest.raises(ServerError, match="at most 2 groups"):
        cold.set_limits({"a": 4, "c": 1})
    assert cold.report()["configTable"] == {"a": 3, "b": 2}


acts = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(0, 120)),
    st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(0, 300)),
    st.tuples(st.just("remove"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("next"), st.just(""), st.just(0)),
)


@given(st.lists(acts, max_size=40))
def test_who_is_over(steps: list[tuple[str, str, int]]) -> None:
    cold = reads()
    read: dict[str, int] = defaultdict(int)
    limits: dict[str, int] = {}
    seen = set()
    for act, group, size in steps:
        if act == "add":
            cold.add(group, size)
            read[group] += size
            seen.add(group)
        elif act == "set":
            cold.set_limits({group: size})
            limits[group] = size
        elif act == "remove":
            cold.remove_limit(group)
            limits.pop(group, None)
        else:
            cold.next_interval()
            read.clear()
        total = sum(read.values())
        for name in "abc":
            over = read[name] >= limits.get(name, 100) or total >= 250
            assert cold.is_over(name) == (name in seen and over)
        assert cold.report()["globalAcc"] == total
