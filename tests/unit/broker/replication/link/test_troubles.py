"""Troubles between two logs: counted each time, told once, and again when they are new."""

from __future__ import annotations

import pytest

from rocketspark.broker.replication.link.troubles import PEERS_MAX, Troubles
from rocketspark.errors import ConfigError, FrameError, ReplicationError, StoreFull

pytestmark = pytest.mark.shows(
    "another file size, a log that diverges, is ahead or removed, foreign protocols, garbage, frames of any "
    "size, peers that stall or do not read"
)


def test_each_is_counted_and_only_what_is_new_is_told(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    troubles = Troubles(lambda: now)
    ahead, other = ReplicationError("it is ahead", reason="ahead"), FrameError("no frame")
    for _ in range(5):
        troubles.note("a", ahead)
    troubles.note("b", ahead)
    troubles.note("a", other)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["a", "b", "a"]
    caplog.clear()
    # Between good reports nonsense may come for ever: a line a minute.
    for step in range(600):
        now = step * 0.2
        troubles.ended("a")
        troubles.note("a", other)
    assert len(caplog.records) == 1
    now = 300.0
    troubles.note("a", other)
    assert len(caplog.records) == 1
    troubles.ended("a")
    troubles.note("a", other)
    assert len(caplog.records) == 2
    assert troubles.counts == {"ahead": 6, "frame": 603}


def test_a_long_text_is_whole_and_control_characters_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    Troubles().note("a", ReplicationError("x" * 400 + "\n" + "end"))
    assert caplog.messages == ["replication with a: " + "x" * 400 + "\\nend"]


def test_many_peers_are_not_remembered_for_ever() -> None:
    troubles = Troubles()
    for number in range(PEERS_MAX * 2):
        troubles.note(str(number), ReplicationError("x"))
    assert len(troubles._told) == PEERS_MAX


def test_what_each_error_counts_as() -> None:
    troubles = Troubles()
    full = StoreFull("no room", needed_bytes=1, free_bytes=0)
    for error in (FrameError("f"), ConfigError("c"), full, ReplicationError("r", reason="state")):
        troubles.note("a", error)
    assert troubles.counts == {"frame": 1, "address": 1, "store": 1, "state": 1}
