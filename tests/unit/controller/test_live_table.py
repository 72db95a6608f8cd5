"""Which brokers live: heartbeats, silence, connections that end, a process that stood still."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.controller import live_table
from rocketspark.controller.elections import LogEnd
from rocketspark.controller.live_table import Broker, Clock, LiveTable
from rocketspark.protocol.headers.controller import ReplicaHeartbeatHeader

ONE, TWO = Broker("c", "b", 1), Broker("c", "b", 2)


class Table(LiveTable):
    """A table whose time a test sets."""

    def __init__(self) -> None:
        self.at_ms = 0
        super().__init__(lambda: self.at_ms)

    def beat(self, broker: Broker = ONE, connection: object = "x", timeout_ms: int | None = 3000, **more: int) -> bool:
        header = ReplicaHeartbeatHeader(
            cluster_name=broker.cluster, broker_name=broker.broker_name, address="a:1", timeout_ms=timeout_ms, **more
        )
        return self.heard(header, broker.broker_id, connection)


def test_a_broker_is_silent_after_its_own_time() -> None:
    table = Table()
    table.beat()
    table.beat(TWO, "y", timeout_ms=None)
    table.at_ms = 3000
    assert (table.alive(*ONE), table.expire()) == (True, [])
    table.at_ms = 3001
    assert (table.alive(*ONE), table.alive(*TWO)) == (False, True)
    assert table.expire() == [ONE]
    assert table.expire() == []
    table.at_ms = 10_001
    assert table.expire() == [TWO]


def test_a_broker_goes_with_the_last_connection_that_brought_its_heartbeats() -> None:
    table = Table()
    table.beat(connection="first")
    table.beat(TWO, "first")
    table.beat(connection="second")
    assert table.closed("other") == []
    assert table.closed("first") == [TWO]
    assert table.alive(*ONE)
    assert table.closed("second") == [ONE]
    assert not table.alive(*ONE)
    assert table.closed("second") == []


def test_the_end_of_a_connection_after_a_new_one_is_no_end() -> None:
    table = Table()
    table.beat(connection="old")
    table.at_ms = 4000
    assert table.expire() == [ONE]
    table.beat(connection="new")
    assert table.closed("old") == []
    assert table.alive(*ONE)


def test_the_end_of_a_log_only_rises() -> None:
    table = Table()
    table.beat(epoch=2, max_offset=10, election_priority=5)
    table.beat(epoch=2, max_offset=9)
    assert table.log_end(*ONE) == LogEnd(2, 10, (1 << 31) - 1)
    table.beat(epoch=1, max_offset=99, election_priority=3)
    assert table.log_end(*ONE) == LogEnd(2, 10, 3)
    table.beat(epoch=3, max_offset=1, election_priority=3)
    assert table.log_end(*ONE) == LogEnd(3, 1, 3)
    table.closed("x")
    table.beat(epoch=1, max_offset=1)
    assert table.log_end(*ONE)[:2] == (1, 1)
    assert table.log_end(*TWO) == LogEnd()


def test_the_log_of_another_process_may_end_before() -> None:
    """Its machine lost its power, say, and the connection of the process before is open still."""
    table = Table()
    table.beat(epoch=2, max_offset=10, asker=1)
    table.beat(epoch=2, max_offset=9, asker=1)
    assert table.log_end(*ONE) == LogEnd(2, 10, (1 << 31) - 1, gives_word=True)
    table.beat(epoch=2, max_offset=7, asker=2, may_lack=True)
    assert table.log_end(*ONE) == LogEnd(2, 7, (1 << 31) - 1, may_lack=True, gives_word=True)


def test_a_broker_has_time_to_be_heard_after_the_start() -> None:
    table = Table()
    table.beat(TWO, "y", timeout_ms=3000)
    assert (table.alive(*ONE), table.may_live(*ONE)) == (False, True)
    table.at_ms = 10_001
    assert not table.may_live(*ONE)
    # As long as the others of its name may be silent.
    table.beat(TWO, "y", timeout_ms=20_000)
    assert table.may_live(*ONE)
    # One that was heard and went had its time.
    table.beat(connection="x")
    table.closed("x")
    assert not table.may_live(*ONE)


def test_brokers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_table, "BROKERS_MAX", 2)
    table = Table()
    assert [table.beat(Broker("c", "b", n)) for n in (1, 2, 3, 1)] == [True, True, False, True]
    table.at_ms = 4000
    assert len(table.expire()) == 2
    assert table.beat(Broker("c", "b", 3))


def test_time_stands_while_the_process_does() -> None:
    at_s = 100.0
    clock = Clock(lambda: at_s)
    assert clock.now_ms() == 0
    at_s += 0.5
    assert (clock.now_ms(), clock.tick()) == (500, 500)
    at_s += 3600
    assert (clock.now_ms(), clock.tick()) == (2000, 2000)
    at_s += 0.25
    assert clock.tick() == 2250


BEATS = st.tuples(st.just("beat"), st.integers(1, 3), st.integers(0, 3))
ENDS = st.tuples(st.just("close"), st.integers(0, 3), st.just(0))
WAITS = st.tuples(st.just("wait"), st.integers(0, 5000), st.just(0))


@given(st.lists(st.one_of(BEATS, ENDS, WAITS), max_size=40))
def test_any_order_of_heartbeats_and_ends(steps: list[tuple[str, int, int]]) -> None:
    table = Table()
    heard: dict[int, tuple[int, set[int]]] = {}
    for what, number, connection in steps:
        if what == "beat":
            table.beat(Broker("c", "b", number), connection)
            heard[number] = table.at_ms, heard.get(number, (0, set()))[1] | {connection}
        elif what == "close":
            gone = [n for n, (_, by) in heard.items() if by == {number}]
            assert sorted(b.broker_id for b in table.closed(number)) == sorted(gone)
            heard = {n: (at, by - {number}) for n, (at, by) in heard.items() if n not in gone}
        else:
            table.at_ms += number
            silent = [n for n, (at, _) in heard.items() if table.at_ms - at > 3000]
            assert sorted(b.broker_id for b in table.expire()) == sorted(silent)
            heard = {n: each for n, each in heard.items() if n not in silent}
        assert [n for n in (1, 2, 3) if table.alive("c", "b", n)] == sorted(heard)
