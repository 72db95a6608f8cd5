"""A master is killed with messages in flight: its slave delivers again what was not acknowledged, and only that."""

from __future__ import annotations

from pathlib import Path

from tests.java import pop_by_hand
from tests.java.apache import committed_offset
from tests.java.apache_pair import caught_up, until
from tests.java.pop_by_hand import GROUP, TOPIC, TooSlowError, are_back, fly, pop, prepare, retries
from tests.support.failovers import ReplicaSet
from tests.support.patience import in_time


def popped_messages_survive(folder: Path, kinds: str) -> None:
    """`kinds`: of the master and its slave, P ours or J official."""
    in_time(lambda own: _survive(own, kinds), folder, spoiled=TooSlowError)


def _survive(folder: Path, kinds: str) -> None:
    pair = ReplicaSet(folder, kinds, config=pop_by_hand.CONFIG)
    try:
        master, slave = pair.members
        prepare(master)
        # The slave has to know of topic and group, which it asks for now and then.
        expected = fly(master, "")
        until(lambda: caught_up(master.broker), what="the slave")
        if kinds[1] == "J":
            # It goes on where its copy of the offsets says.
            until(lambda: committed_offset(slave.broker, GROUP, TOPIC, 0) == 10, what="the offsets")
        master.kill()
        until(lambda: pair.state().master == slave.broker, what="an election")
        until(lambda: are_back(slave, expected), what="all that is to come again")
        bodies = [r.body.decode() for r in retries(slave)]
        # An official broker that takes over delivers again what was due in its last seconds, acknowledged or not.
        assert set(bodies) >= set(expected) if kinds[1] == "J" else sorted(bodies) == sorted(expected)
        assert pop(slave, 32) == []
    finally:
        pair.close()
