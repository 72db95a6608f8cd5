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


def opened(folder: Path, objects: Objects, entries: int = 1000) -> Tier:
    sizes = {"log_bytes": 4000, "queue_bytes": 20 * 50, "index_slots": 5, "index_entries": entries}
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


def keys_of(tier: Tier) -> set[int]:
    return {number for number in range(0, COUNT, 3) if tier.query("t", f"key{number}", 5, 0, 1 << 60)}


@pytest.mark.shows(
    "mended: second tier: a bit that flipped in the head of its key index took the keys of all later files, for good,"
    " and one in a slot ended each search"
)
def test_flipped_bits_of_a_key_index_hurt_what_they_hit_alone(tmp_path: Path) -> None:
    objects = Objects()
    tier = opened(tmp_path, objects, entries=61)
    queue = tier.begin("t", 0, 0, None, 0)
    for at in range(0, COUNT, 10):
        tier.append(queue, MESSAGES[at : at + 10], 5)
        tier.upload_keys(5)
    tier.save(6)
    tier.close()
    paths = sorted((path for path in objects.content if "INDEX" in path), key=lambda path: path.rsplit("/", 2)[1][8:])
    assert len(paths) == 3
    # Of the head, the slots and the first entry, as the others are like it.
    for bit in range(0, (28 + 5 * 8 + 28) * 8, 11):
        hurt = Objects()
        hurt.content = dict(objects.content)
        path = paths[bit % 5 % 3]
        content = bytearray(hurt.content[path])
        content[bit // 8] ^= 1 << bit % 8
        hurt.content[path] = bytes(content)
        flipped = opened(tmp_path, hurt, entries=61)
        found = keys_of(flipped)
        # Of a file, which has 30 messages, one of five slots, or one entry.
        assert len(found) >= len(range(0, COUNT, 3)) - 5, (path, bit)
        flipped.upload_keys(7)
        assert set(hurt.content) == set(objects.content), bit
        flipped.close()


def test_a_growing_key_file_with_a_flipped_count_is_full(tmp_path: Path) -> None:
    objects = Objects()
    tier = opened(tmp_path, objects)
    queue = tier.begin("t", 0, 0, None, 0)
    tier.append(queue, MESSAGES[:COUNT], 5)
    tier.close()
    (path,) = (tmp_path / "tiered_index_file").iterdir()
    content = bytearray(path.read_bytes())
    content[24] ^= 0x80
    path.write_bytes(content)
    again = opened(tmp_path, objects)
    assert keys_of(again) == set(range(0, COUNT, 3))
    found = again.find("t", 0)
    assert found is not None
    again.append(found, MESSAGES[COUNT : COUNT + 5], 5)
    assert again.upload_keys(7)
    assert keys_of(again) == set(range(0, COUNT, 3))
    again.close()
