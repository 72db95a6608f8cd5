"""Which messages of another member are late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rocketspark.controller.group.links import Letter, Links

pytestmark = pytest.mark.shows("three controllers: a member with an empty, old, full or damaged disk")


def test_a_message_is_late_by_its_number_and_of_a_process_that_ended_by_the_way_of_the_next() -> None:
    links = Links("g", "n0", lambda name, is_open: None, hooks=None, tls=None)
    first, second, third = (SimpleNamespace(is_open=True) for _ in range(3))

    def taken(peer: Any, start: int, number: int) -> bool:
        letter = Letter("g", "n1", "n0", start, number, {})
        return links.read(peer, msgspec.msgpack.encode(letter), ("n1",)) is not None

    assert [taken(first, 100, 1), taken(first, 100, 1), taken(second, 100, 2), taken(first, 100, 2)] == [
        *(True, False),
        *(True, False),
    ]
    # Its next process has an earlier clock: until the way of the one before has ended here it may be that one that is
    # late.
    assert not taken(third, 50, 1)
    second.is_open = False
    # What the earlier process said before is late for ever.
    assert not taken(first, 100, 2)
    assert [taken(third, 50, 2), taken(third, 50, 2), taken(third, 50, 3)] == [True, False, True]
    # A later clock is a later process.
    assert taken(first, 101, 1)
