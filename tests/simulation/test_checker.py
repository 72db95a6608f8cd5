"""What the checker's rules say of histories made by hand, where a seed once had them judge wrongly."""

from __future__ import annotations

import pytest
from tests.simulation.checker import View, popped_is_out_of_sight
from tests.simulation.histories import History, Read


def pop(at_s: float, topic: str = "t-pop") -> Read:
    return Read("pop", "pop", "pop-0", "", "m", (topic, 0, 0), at_s, at_s, invisible_s=8.0)


@pytest.mark.parametrize(
    ("stood", "again_s", "count"),
    [
        ((), 27.5, 1),
        # Popped at 20 by a clock that shows 19: due at 27 by the right time, which it shows again from 24 on, or 29 on.
        ((19.0, 24.0, "broker-a-1"), 26.5, 1),
        ((19.0, 24.0, "broker-a-1"), 27.5, 0),
        ((19.0, 29.0, "broker-a-1"), 27.9, 1),
        ((19.0, 29.0, "broker-a-1"), 29.1, 0),
        ((19.0, 24.0, "producer-1"), 27.5, 1),
        ((21.0, 24.0, "broker-a-1"), 27.5, 1),
    ],
)
def test_an_invisible_time_goes_by_the_clock_that_noted_it(
    stood: tuple[float, float, str] | tuple[()], again_s: float, count: int
) -> None:
    history = History(
        sent=[],
        ended=[],
        recalled=[],
        reads=[pop(20.0), pop(again_s, "%RETRY%pop_t-pop")],
        acked=[],
        committed=[],
        faults=[],
        troubles_s=[],
        troubles=[],
        stands=[stood] if stood else [],
        more={},
        logs={},
        stored={},
    )
    assert len(list(popped_is_out_of_sight(View(history)))) == count
