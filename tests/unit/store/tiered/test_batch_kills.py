"""Records of several messages in a tier that fails, or is cut off, at any step: each is there whole, once."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import Phase, given, settings
from tests.unit.store.tiered.test_kills import STEPS, Steps, played

from rocketspark.protocol.message import record, sysflags
from rocketspark.store.tiered.queue_tier import NewUnit
from rocketspark.store.tiered.tier import Tier

pytestmark = pytest.mark.shows("second tier: of a batch whose upload was cut off nothing counts until it is made again")
COUNTS = [1 + number * 5 % 9 for number in range(481)]
BORDERS = [0, *accumulate(COUNTS)]


def several(number: int) -> NewUnit:
    made = record.encode(
        topic=b"t",
        queue_id=0,
        queue_offset=BORDERS[number],
        position=number * 1000,
        sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
        body=b"%d" % number * (number % 7 + 1),
        properties=b"INNER_NUM\x01%d\x02KEYS\x01key%d\x02" % (COUNTS[number], number),
        born_host=b"\x7f\0\0\x01\0\0\0\x01",
        store_host=b"\x7f\0\0\x01\0\0\0\x01",
        store_time_ms=1000 + number,
        born_time_ms=1000,
    )
    return NewUnit(memoryview(made), 0, 1000 + number, COUNTS[number])


BATCHES = [several(number) for number in range(len(COUNTS))]


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS)
def test_batches_are_there_whole_or_not_at_all(steps: Steps) -> None:
    played(steps, BATCHES, BORDERS, check)


def check(tier: Tier, done: int) -> None:
    queue = tier.find("t", 0)
    for number in range(0, done, 5) if queue is not None else ():
        for offset in range(BORDERS[number], BORDERS[number + 1]):
            stored = queue.stretch(offset, 3, 3000).record(offset)
            assert stored is not None
            assert record.decode(stored).body == b"%d" % number * (number % 7 + 1)
        for upper in (False, True):
            assert queue.offset_at_time(1000 + number, upper) == BORDERS[number]
