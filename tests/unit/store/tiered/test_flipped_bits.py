"""Bits that flip in a second tier: what they hit is passed over or found again, and nothing else is held up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.objects_in_memory import Objects
from tests.unit.store.tiered.test_kills import MESSAGES

from rocketspark.protocol.message import record
from rocketspark.store.get_message import GetStatus
from rocketspark.store.tiered.cold_cache import ColdCache
from rocketspark.store.tiered.object_segments import ObjectSegments
from rocketspark.store.tiered.tier import Tier, TierSettings

COUNT = 120
RIGHT = [record.decode(message.record).body for message in MESSAGES[:COUNT] if message.record is not None]


def filled(folder: Path) -> Objects:
    """Return a store with a queue, in some segments of records and of units."""
    objects = Objects()
    tier = opened(folder, objects)
    queue = tier.begin("t", 0, 0, None, 0)
    for at in range(0, COUNT, 30):
        tier.append(queue, MESSAGES[at : at + 30], 5)
    tier.close()
    return objects


def opened(folder: Path, objects: Objects) -> Tier:
    sizes = {"log_bytes": 4000, "queue_bytes": 20 * 50, "index_slots": 5, "index_entries": 1000}
    tier = Tier(TierSettings(str(folder), "c", "b", **sizes), ObjectSegments(objects, "bucket/tier"))
    tier.open()
    return tier


def read(tier: Tier, codes: frozenset[int] | None) -> dict[int, record.Record]:
    """Read the queue as a consumer does, from the oldest message on."""
    cache, found, queue = ColdCache(tier, 2000), dict[int, record.Record](), tier.find("t", 0)
    assert queue is not None
    offset = queue.low
    for _ in range(10 * COUNT):
        if offset >= queue.next:
            return found
        answer = cache.read(("t", 0), offset, 32, 1 << 20, codes, None)
        if answer is None:
            cache.load(("t", 0), offset)
            continue
        assert answer.next_offset > offset
        assert answer.records or codes is not None or answer.status is GetStatus.REMOVED
        for stored in answer.records:
            # As a client: one that cannot be read ends the whole answer.
            message = record.decode(stored)
            found[message.queue_offset] = message
        offset = answer.next_offset
    raise AssertionError(f"held up at {offset}")


@pytest.mark.shows(
    "mended: second tier: bits that flipped in it held up all who read there, or were given out: what is damaged is"
    " read from the store, or passed over where it is gone, and what leads to messages is found again"
)
def test_flipped_bits_of_a_tier_hurt_what_they_hit_alone(tmp_path: Path) -> None:
    objects = filled(tmp_path)
    for seed in range(300):
        chance = random.Random(seed)
        hurt = Objects()
        hurt.content = dict(objects.content)
        path = chance.choice([path for path in sorted(hurt.content) if "INDEX" not in path])
        at, content = chance.randrange(len(hurt.content[path])), bytearray(hurt.content[path])
        content[at] ^= 1 << chance.randrange(8)
        before = opened(tmp_path, hurt)
        hurt.content[path] = bytes(content)
        flipped = opened(tmp_path, hurt)
        if (queue := flipped.find("t", 0)) is None or queue.next < COUNT:
            # The last unit, or its record: who writes makes the upload again, and who reads waits for it.
            flipped = before
        found = read(flipped, chance.choice([None, frozenset(message.code for message in MESSAGES)]))
        lost = set(range(COUNT)) - set(found)
        assert len(lost) <= ("COMMIT_LOG" in path), (seed, path, at, lost)
        assert {number: found[number].body for number in found} == {number: RIGHT[number] for number in found}, seed
        assert flipped.query("t", f"key{chance.randrange(COUNT)}", 5, 0, 1 << 60) is not None
        queue = flipped.find("t", 0)
        assert queue is not None
        assert queue.offset_at_time(1050, False) <= COUNT
        for each in {before, flipped}:
            each.close()
