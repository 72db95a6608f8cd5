"""A tier in an object store whose requests fail, or are carried out and never answered, and whose broker is killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from pyarrow import fs
from tests.unit.store.tiered.test_kills import MESSAGES, check

from rocketspark.errors import StoreUnwritable
from rocketspark.store.tiered.object_segments import ObjectSegments
from rocketspark.store.tiered.queue_tier import QueueTier
from rocketspark.store.tiered.tier import Tier, TierSettings

pytestmark = pytest.mark.shows(
    "second tier in an object store: requests that fail, or are carried out unanswered, and kills lose nothing"
)

T = TypeVar("T")


class Objects:
    """What ObjectSegments needs of a pyarrow FileSystem, in memory. A share `rate` of the requests fails; of these
    every other one is carried out all the same.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.rate = 0.0
        self.content: dict[str, bytes] = {}

    def _asked(self, carry_out: Callable[[], T]) -> T:
        if self.chance.random() < self.rate:
            if self.chance.random() < 0.5:
                carry_out()
            raise OSError("no answer")
        return carry_out()

    def get_file_info(self, asked: Any) -> Any:
        def info(path: str) -> Any:
            found = self.content.get(path)
            kind = fs.FileType.NotFound if found is None else fs.FileType.File
            return SimpleNamespace(path=path, size=None if found is None else len(found), type=kind)

        if isinstance(asked, str):
            return self._asked(lambda: info(asked))
        below = f"{asked.base_dir}/"
        return self._asked(lambda: [info(path) for path in self.content if path.startswith(below)])

    def delete_file(self, path: str) -> None:
        def delete() -> None:
            if self.content.pop(path, None) is None:
                raise FileNotFoundError(path)

        self._asked(delete)

    def open_output_stream(self, path: str) -> Any:
        return _Stream(lambda content: self._asked(lambda: self.content.update({path: content})))

    def open_input_file(self, path: str) -> Any:
        content = self.content[path]
        return _Stream(lambda _: None, lambda count, at: self._asked(lambda: content[at : at + count]))


class _Stream:
    def __init__(self, close: Callable[[bytes], None], read_at: Callable[[int, int], bytes] | None = None) -> None:
        self._close, self.read_at = close, read_at
        self._content = b""

    def __enter__(self) -> _Stream:
        return self

    def write(self, content: bytes) -> None:
        self._content += content

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._close(self._content)


class Run:
    """One seed: uploads, kills and removals; after each what was uploaded is there."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.objects = Objects(self.chance)
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
