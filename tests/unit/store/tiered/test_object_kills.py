"""A tier in an object store whose requests fail, or are carried out and never answered, and whose broker is killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.objects_in_memory import Objects
from tests.unit.store.tiered.test_kills import MESSAGES, check

from rocketspark.errors import StoreUnwritable
from rocketspark.store.tiered.object_segments import ObjectSegments
from rocketspark.store.tiered.queue_tier import QueueTier
from rocketspark.store.tiered.tier import Tier, TierSettings

pytestmark = pytest.mark.shows(
    "second tier in an object store: requests that fail, or are carried out unanswered, and kills lose nothing"
)

T = TypeVar("T")


class FailingObjects(Objects):
    """A share `rate` of the requests fails; of these every other one is carried out all the same."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.rate = 0.0

    def asked(self, carry_out: Callable[[], T]) -> T:
        if self.chance.random() < self.rate:
            if self.chance.random() < 0.5:
                carry_out()
            raise OSError("no answer")
        return carry_out()


class Run:
    """One seed: uploads, kills and removals; after each what was uploaded is there."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.objects = FailingObjects(self.chance)
        self.settings = TierSettings(
            str(folder),
            "c",
            "b",
            log_bytes=self.chance.choice([1000, 2000, 5000]),
            queue_bytes=20 * self.chance.choice([5, 13]),
            index_slots=5,
            index_entries=30,
        )
        self.tier = self.opened()
        self.done = 0

    def opened(self) -> Tier:
        tier = Tier(self.settings, ObjectSegments(self.objects, "bucket/tier"))
        tier.open()
        return tier

    def queue(self) -> QueueTier:
        return self.tier.find("t", 0) or self.tier.begin("t", 0, 0, None, 0)

    def tried(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except StoreUnwritable:
            return False
        return True

    def kill(self) -> None:
        self.tier.close()
        if not any(self.tried(lambda: setattr(self, "tier", self.opened())) for _ in range(5)):
            self.objects.rate = 0.0
            self.tier = self.opened()

    def upload(self) -> None:
        queue, tier = self.queue(), self.tier
        assert queue.next >= self.done
        # A failed upload may have brought some.
        self.done = queue.next
        following = self.done + self.chance.randrange(1, 40)
        if self.tried(lambda: tier.append(queue, MESSAGES[self.done : following], 5)):
            self.done = min(following, len(MESSAGES))
            self.tried(lambda: tier.upload_keys(6))
            if self.chance.random() < 0.5:
                tier.save(7)

    def remove(self) -> None:
        while self.tier.find("t", 0) is not None:
            self.tried(lambda: self.tier.drop("t", 0))
            self.objects.rate *= 0.9
            if self.chance.random() < 0.3:
                self.kill()
        self.done = 0

    def go(self) -> None:
        for _ in range(self.chance.randrange(3, 20)):
            self.objects.rate = self.chance.choice([0.0, 0.1, 0.3, 0.6])
            self.remove() if self.done == len(MESSAGES) or self.chance.random() < 0.1 else self.upload()
            if self.chance.random() < 0.3:
                self.kill()
                found = self.tier.find("t", 0)
                assert (found.next if found is not None else 0) >= self.done
            self.objects.rate = 0.0
        self.tier.upload_keys(8)
        check(self.tier, self.done)
        self.tier.close()


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_nothing_that_was_uploaded_is_lost(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            Run(seed, folder).go()
        except BaseException as e:
            raise AssertionError(f"seed {seed}: {e!r}") from e


class LateObjects(Objects):
    """A share of the writes is given up; these are carried out later, at any time and in any order."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance, self.late = chance, list[Callable[[], object]]()

    def write(self, path: str, content: bytes) -> None:
        if self.chance.random() < 0.4:
            self.late.append(lambda: super(LateObjects, self).write(path, content))
            raise OSError("no answer")
        super().write(path, content)

    def some_come(self) -> None:
        self.chance.shuffle(self.late)
        for _ in range(self.chance.randrange(len(self.late) + 1)):
            self.late.pop()()


@pytest.mark.shows("mended: an upload to an object store that was given up, and came late, cut what was uploaded since")
def test_an_upload_that_was_given_up_and_comes_late_takes_nothing() -> None:
    wanted = bytes(range(256))
    for seed in range(300):
        objects = LateObjects(chance := random.Random(seed))
        segments = ObjectSegments(objects, "bucket/tier")
        end = following = 0
        while end < len(wanted):
            # More each time, as messages come; all of it again where what belongs to it could not be written.
            following = min(following + chance.randrange(20), len(wanted))
            try:
                segments.append("s", end, wanted[end:following])
            except StoreUnwritable:
                continue
            if chance.random() < 0.8:
                end = following
            objects.some_come()
            whole = Objects()
            whole.content = objects.content
            found = ObjectSegments(whole, "bucket/tier")
            assert found.read("s", 0, 1000)[:end] == wanted[:end], seed
            assert dict(found.sizes("s/")).get("s", 0) >= end, seed


@pytest.mark.shows(
    "mended: second tier in an object store: uploads of a broker that was started again, or had lost the tier to"
    " another one, came late and cut what was uploaded since"
)
def test_uploads_of_an_earlier_owner_take_nothing_whenever_they_come() -> None:
    wanted = bytes(range(256))
    for seed in range(300):
        objects = LateObjects(chance := random.Random(seed))
        owners: list[tuple[ObjectSegments, int]] = []
        # By owner, up to where it has tried to upload.
        tried: dict[ObjectSegments, int] = {}
        end = 0
        for number in range(1, 5):
            segments = ObjectSegments(objects, "bucket/tier")
            segments.taken(number)
            found = dict(segments.sizes("s/")).get("s", 0)
            assert found >= end, seed
            end = following = found
            for _ in range(chance.randrange(1, 8)):
                following = min(following + chance.randrange(1, 20), len(wanted))
                if end < following and uploaded(segments, end, wanted[end:following]) and chance.random() < 0.8:
                    end = following
                if owners and chance.random() < 0.5:
                    # An earlier one goes on with what it knows: with what it tried, or more.
                    earlier, at = chance.choice(owners)
                    tried[earlier] += chance.randrange(1, 60)
                    uploaded(earlier, at, wanted[at : tried[earlier]])
                objects.some_come()
                whole = Objects()
                whole.content = objects.content
                fresh = ObjectSegments(whole, "bucket/tier")
                assert fresh.read("s", 0, 1000)[:end] == wanted[:end], seed
                assert dict(fresh.sizes("s/")).get("s", 0) >= end, seed
            owners.append((segments, end))
            tried[segments] = following


def uploaded(segments: ObjectSegments, at: int, content: bytes) -> bool:
    try:
        segments.append("s", at, content)
    except StoreUnwritable:
        return False
    return True


def test_an_earlier_owner_removes_nothing_that_a_later_one_wrote() -> None:
    objects = Objects()
    first, second = ObjectSegments(objects, "bucket/tier"), ObjectSegments(objects, "bucket/tier")
    first.taken(1)
    first.append("s", 0, b"old")
    second.taken(2)
    assert dict(second.sizes("s/")) == {"s": 3}
    second.remove("s")
    second.append("s", 0, b"anew")
    first.append("s", 3, b"er")
    first.remove("s")
    assert (dict(first.sizes("s/")), second.read("s", 0, 9)) == ({"s": 4}, b"anew")


def test_parts_that_are_named_by_their_positions_are_read_and_gone_on_with() -> None:
    objects = Objects()
    for at, content in ((0, b"0123"), (2, b"abcd"), (6, b"ef"), (9, b"behind a hole")):
        objects.content[f"bucket/tier/s/{at:020d}"] = content
    segments = ObjectSegments(objects, "bucket/tier")
    assert (dict(segments.sizes("s/")), segments.read("s", 0, 99)) == ({"s": 8}, b"01abcdef")
    segments.append("s", 7, b"new")
    segments.append("s", 10, b"er")
    for found in (segments, ObjectSegments(objects, "bucket/tier")):
        assert (dict(found.sizes("s/")), found.read("s", 1, 99)) == ({"s": 12}, b"1abcdenewer")
    segments.remove("s")
    assert objects.content == {}
