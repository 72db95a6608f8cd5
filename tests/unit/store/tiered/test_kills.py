"""A tier whose store fails or whose broker is killed at any step: what was appended is read again, once."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rocketspark.errors import StoreUnwritable
from rocketspark.protocol.message import record
from rocketspark.store.commitlog.dispatch import tags_code
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.tiered.layout import UNIT
from rocketspark.store.tiered.queue_tier import NewUnit
from rocketspark.store.tiered.tier import Tier, TierSettings

pytestmark = pytest.mark.shows("second tier: kills and failed or torn uploads at any step lose and double nothing")


class Objects:
    """A store of segments in memory. The `fails_in`-th call from now on fails, an append after part of its bytes."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.fails_in = -1
        self.part = 0

    def _call(self) -> bool:
        self.fails_in -= 1
        return self.fails_in == 0

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        yield from [(key, len(found)) for key, found in self.content.items() if key.startswith(prefix)]

    def probe(self, key: str, size: int) -> int:
        return size

    def append(self, key: str, at: int, content: bytes) -> None:
        before = self.content.get(key, b"")
        assert len(before) >= at, "a hole"
        failed = self._call()
        self.content[key] = before[:at] + (content[: self.part] if failed else content)
        if failed:
            raise StoreUnwritable("no route")

    def read(self, key: str, at: int, count: int) -> bytes:
        if self._call():
            raise StoreUnwritable("no route")
        return self.content[key][at : at + count]

    def remove(self, key: str) -> None:
        if self._call():
            raise StoreUnwritable("no route")
        self.content.pop(key, None)


def message(number: int) -> NewUnit:
    made = record.encode(
        topic=b"t",
        queue_id=0,
        queue_offset=number,
        position=number * 1000,
        body=b"%d" % number * (number % 7 + 1),
        properties=b"KEYS\x01key%d\x02UNIQ_KEY\x01U%d\x02TAGS\x01T%d\x02" % (number, number, number),
        born_host=b"\x7f\0\0\x01\0\0\0\x01",
        store_host=b"\x7f\0\0\x01\0\0\0\x01",
        store_time_ms=1000 + number,
        born_time_ms=1000,
    )
    return NewUnit(memoryview(made), tags_code(b"T%d" % number), 1000 + number)


MESSAGES = [message(number) for number in range(400)]
Steps = list[tuple[int, int, int, bool, bool]]
STEPS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 9), st.integers(0, 3000), st.booleans(), st.booleans()), max_size=12
)


def opened(root: Path, objects: Objects, files: OsFiles | None = None) -> Tier:
    sizes = {"log_bytes": 2000, "queue_bytes": 20 * 13, "index_slots": 5, "index_entries": 30}
    tier = Tier(TierSettings(str(root), "c", "b", **sizes), objects, files)
    tier.open()
    return tier


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS)
def test_nothing_is_lost_or_doubled(steps: Steps) -> None:
    played(steps, MESSAGES, range(len(MESSAGES) + 1), check, upload_keys=True)


def played(
    steps: Steps,
    units: list[NewUnit],
    borders: Sequence[int],
    check: Callable[[Tier, int], None],
    *,
    upload_keys: bool = False,
) -> None:
    """Append units through failures and kills. `borders`: the offset before each unit, and behind the last; `check` is
    called with how many there must be.
    """
    with tempfile.TemporaryDirectory() as folder:
        objects, done, most = Objects(), 0, 0
        tier = opened(Path(folder), objects)
        for count, fails_in, part, killed, saved in steps:
            queue = tier.find("t", 0) or tier.begin("t", 0, 0, None, 0)
            assert queue.next == borders[done]
            objects.fails_in, objects.part = fails_in, part
            most = min(max(most, done + count), len(units))
            try:
                tier.append(queue, units[done : done + count], 5)
                done = min(done + count, len(units))
                if upload_keys:
                    tier.upload_keys(6)
                if saved:
                    tier.save(7)
            except StoreUnwritable:
                pass
            objects.fails_in = -1
            if killed:
                tier.close()
                tier = opened(Path(folder), objects)
                found = tier.find("t", 0)
                here = borders.index(found.next if found is not None else 0)
                # What an upload had finished before it failed counts, too.
                assert done <= here <= most
                done = most = here
            check(tier, done)
        tier.close()


def check(tier: Tier, done: int) -> None:
    queue, offset = tier.find("t", 0), 0
    while queue is not None and offset < done:
        stretch = queue.stretch(offset, 50, 3000)
        for at in range(offset, min(stretch.next, done)):
            stored, source = stretch.record(at), MESSAGES[at].record
            assert stored is not None
            assert source is not None
            assert record.decode(stored).body == record.decode(source).body
            assert stretch.units[at - offset][2] == MESSAGES[at].code
        offset = stretch.next
    for number in range(0, done, 17):
        (found,) = tier.query("t", f"key{number}", 5, 0, 1 << 60)
        assert record.decode(memoryview(found)).queue_offset == number


def test_times_that_the_table_has_stay_and_the_others_are_found(tmp_path: Path) -> None:
    objects = Objects()
    tier = opened(tmp_path, objects)
    queue = tier.begin("t", 0, 0, None, 0)
    tier.append(queue, MESSAGES[:40], 5)
    tier.save(7)
    tier.append(queue, MESSAGES[40:80], 5)
    tier.close()
    again = opened(tmp_path, objects)
    found = again.find("t", 0)
    assert found is not None
    times = [(e.begin_ms, e.end_ms) for e in found.units.entries]
    # The segments of units that were full when the table was written.
    assert times[:3] == [(1000, 1012), (1013, 1025), (1026, 1038)]
    assert [begin_ms for begin_ms, _ in times[3:]] == [1039, 1052, 1065, 1078]
    again.close()


@pytest.mark.shows("second tier: a segment that could not be removed is not forgotten, and what is left is read")
def test_what_could_not_be_removed_is_removed_later(tmp_path: Path) -> None:
    class Unremovable(Objects):
        def read(self, key: str, at: int, count: int) -> bytes:
            return self.content[key][at : at + count]

    lows = set()
    for fails_in in range(1, 9):
        objects = Unremovable()
        tier = opened(tmp_path / str(fails_in), objects)
        queue = tier.begin("t", 0, 0, None, 0)
        tier.append(queue, MESSAGES[:150], 5)
        objects.fails_in = fails_in
        with suppress(StoreUnwritable):
            queue.expire(1100)
        objects.fails_in = -1
        for at in range(queue.low, queue.next):
            assert queue.stretch(at, 1, 3000).record(at) is not None, (fails_in, at)
        queue.expire(1100)
        lows.add(queue.low)
        kept = {run.key(entry.base_offset) for run in (queue.log, queue.units) for entry in run.entries}
        assert set(objects.content) == kept, fails_in
        # The units of removed messages go too, a whole segment at a time.
        assert 0 < queue.units.start <= queue.low * UNIT.size < queue.units.entries[1].base_offset
        tier.close()
    assert len(lows) == 1
    assert 0 not in lows


class Limited(OsFiles):
    """Files may not grow while `is_full`."""

    is_full = True

    def create(self, path: str, size: int, *, keep: bool = False) -> None:
        super().create(path, 0 if self.is_full else size, keep=keep)
        if self.is_full:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)


@pytest.mark.shows(
    "mended: the second tier stops for good once a file of its key index could not be made",
    "mended: each attempt to copy while the key index cannot be written makes the second tier larger",
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_key_index_that_could_not_be_made_is_made_later(tmp_path: Path, restarted: bool) -> None:
    objects, files = Objects(), Limited()
    tier = opened(tmp_path, objects, files)
    queue = tier.begin("t", 0, 0, None, 0)
    for _ in range(3):
        with pytest.raises(StoreUnwritable, match="may not be so large"):
            tier.append(queue, MESSAGES[:20], 5)
    files.is_full = False
    if restarted:
        tier.close()
        tier = opened(tmp_path, objects, files)
        queue = tier.find("t", 0) or tier.begin("t", 0, 0, None, 0)
    tier.append(queue, MESSAGES[:20], 5)
    check(tier, 20)
    assert queue.log.end == sum(len(each.record or b"") for each in MESSAGES[:20])
    tier.close()
