"""One store writes a tier: another one waits until the owner released it, or is not heard of any more."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketspark import machine
from rocketspark.errors import StoreFull, StoreUnwritable
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.tiered.owner import LEASE_S, SIGN_S, TierOwner
from rocketspark.store.tiered.segments import FolderSegments, HeldSegments, TierTaken

pytestmark = pytest.mark.shows("second tier: of two brokers with one name and one folder only one writes there")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(machine, "monotonic", lambda: now[0])
    return now


def owner(root: Path, store: str, tier: str = "tier") -> TierOwner:
    (root / store / "config").mkdir(parents=True, exist_ok=True)
    place = str(root / tier)
    return TierOwner(str(root / store), place, "c/b", FolderSegments(place), OsFiles())


def test_one_store_writes(tmp_path: Path, clock: list[float]) -> None:
    first, second = owner(tmp_path, "one"), owner(tmp_path, "two")
    first.hold()
    for _ in range(8):
        with pytest.raises(TierTaken, match=r"the store .*/one writes there: two brokers"):
            second.hold()
        # As long as the owner signs.
        clock[0] += SIGN_S
        first.hold()
    # After a kill it goes on at once.
    owner(tmp_path, "one").hold()
    with pytest.raises(TierTaken):
        second.hold()
    clock[0] += LEASE_S - 1
    with pytest.raises(TierTaken):
        second.hold()
    clock[0] += 2
    second.hold()
    # One that was held up for longer than that finds that it is no owner any more.
    with pytest.raises(TierTaken, match="/two writes there"):
        first.hold()
    second.release()
    first.hold()
    with pytest.raises(TierTaken):
        second.hold()


@pytest.mark.parametrize("every_s", [0.05, SIGN_S / 4, SIGN_S / 3, SIGN_S - 1])
def test_a_store_that_looks_more_often_than_it_signs_keeps_the_tier(
    tmp_path: Path, clock: list[float], every_s: float
) -> None:
    first, second = owner(tmp_path, "one"), owner(tmp_path, "two")
    first.hold()
    end = clock[0] + 3 * LEASE_S
    while clock[0] < end:
        clock[0] += every_s
        first.hold()
        with pytest.raises(TierTaken):
            second.hold()
    assert second.other_lives


def test_a_tier_that_is_not_there_is_not_made_anew(tmp_path: Path, clock: list[float]) -> None:
    one = owner(tmp_path, "one")
    with pytest.raises(StoreUnwritable, match="no master has written there, or the tier is not mounted"):
        one.look()
    one.hold()
    one.look()
    (tmp_path / "tier").rename(tmp_path / "away")
    (tmp_path / "tier").mkdir()
    clock[0] += SIGN_S
    for each in (one, owner(tmp_path, "one")):
        with pytest.raises(StoreUnwritable, match="is the tier mounted"):
            each.hold()
    with pytest.raises(StoreUnwritable, match="is the tier mounted"):
        FolderSegments(str(tmp_path / "tier")).append("c/b/t/0/COMMIT_LOG/x", 0, b"x")
    assert list((tmp_path / "tier").iterdir()) == []
    owner(tmp_path, "one", "another").hold()
    (tmp_path / "tier").rmdir()
    (tmp_path / "away").rename(tmp_path / "tier")
    clock[0] += SIGN_S
    one.hold()


def test_a_store_that_was_halted_takes_nothing_from_the_one_that_took_the_tier_over(tmp_path: Path) -> None:
    (tmp_path / "c/b").mkdir(parents=True)
    halted, other = FolderSegments(str(tmp_path)), FolderSegments(str(tmp_path))
    first, second = "c/b/t/0/COMMIT_LOG/1", "c/b/t/0/COMMIT_LOG/2"
    halted.append(first, 0, b"one")
    assert dict(other.sizes("c/b")) == {first: 3}
    other.append(first, 3, b"two")
    other.append(second, 0, b"three")
    for key, at in ((first, 3), (second, 0)):
        for _ in range(2):
            with pytest.raises(StoreUnwritable, match="another store has written there"):
                halted.append(key, at, b"x")
            halted.remove(key)
    assert [other.read(key, 0, 99) for key in (first, second)] == [b"onetwo", b"three"]
    # Once it knows what is there it goes on; what lies behind an upload that failed is its own.
    assert dict(halted.sizes("c/b")) == {first: 6, second: 5}
    halted.append(first, 6, b"four")
    halted.append(second, 3, b"e")
    halted.remove(second)
    assert dict(other.sizes("c/b")) == {first: 10}


@pytest.mark.shows(
    "mended: second tier: a broker that was halted in the midst of a copy wrote on once another one had taken the tier"
    " over"
)
def test_who_could_not_sign_for_long_writes_no_more_before_it_takes_the_tier_anew(
    tmp_path: Path, clock: list[float]
) -> None:
    first, second = owner(tmp_path, "one"), owner(tmp_path, "two")
    with pytest.raises(TierTaken):
        first.keep()
    first.hold()
    taken = first.number
    for _ in range(8):
        clock[0] += SIGN_S - 1
        first.keep()
        first.hold()
    assert first.number == taken
    # Nobody had the tier meanwhile, but it cannot know.
    clock[0] += LEASE_S - 1
    for _ in range(2):
        with pytest.raises(TierTaken, match="no sign could be written"):
            first.keep()
    first.hold()
    assert first.number > taken
    first.keep()
    with pytest.raises(TierTaken):
        second.hold()
    clock[0] += LEASE_S
    second.hold()
    assert second.number > first.number
    # It does not free what is another one's.
    first.release()
    for each in (first.keep, first.hold):
        with pytest.raises(TierTaken):
            each()
    second.keep()


def test_of_two_that_find_nobody_at_once_one_takes_the_tier(tmp_path: Path) -> None:
    at_once, one_by_one = threading.Barrier(2, timeout=60), threading.Lock()

    class Both(FolderSegments):
        looks = 0

        @contextmanager
        def alone(self, key: str, *, is_first: bool = False) -> Iterator[bool]:
            yield False  # As an object store, or a file system without locks.

        def whole(self, key: str) -> bytes | None:
            self.looks += 1
            found = super().whole(key)
            if self.looks <= 2:
                at_once.wait()  # Both have looked; then both have written.
            return super().whole(key) if self.looks == 2 else found

        def put(self, key: str, content: bytes) -> None:
            with one_by_one:
                super().put(key, content)

    held = list[str]()

    def hold(store: str) -> None:
        taking = owner(tmp_path, store)
        taking._segments = Both(str(tmp_path / "tier"))
        try:
            taking.hold()
            held.append(store)
        except TierTaken:
            pass

    threads = [threading.Thread(target=hold, args=(store,)) for store in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(held) == 1
    owner(tmp_path, held[0]).hold()
    with pytest.raises(TierTaken):
        owner(tmp_path, "two" if held == ["one"] else "one").hold()


class Halting(OsFiles):
    """A disk at which the process stands still once, before its next cut of a file."""

    meanwhile: Callable[[], None] | None = None

    def create(self, path: str, size: int, *, keep: bool = False) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().create(path, size, keep=keep)


@pytest.mark.shows(
    "second tier: a broker that stands still in the midst of a write to a folder, or whose clock stood still too, cuts"
    " off nothing that another one wrote meanwhile"
)
def test_who_stands_still_in_a_write_keeps_the_next_owner_waiting(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "sleep", lambda seconds: None)
    key, files = "c/b/t/0/COMMIT_LOG/x", Halting()
    first, second = owner(tmp_path, "one"), owner(tmp_path, "two")
    first._segments._files = files  # type: ignore[attr-defined]
    ours, others = HeldSegments(first._segments, first.keep), HeldSegments(second._segments, second.keep)
    first.hold()
    with pytest.raises(TierTaken):
        second.hold()

    def stand_still() -> None:
        clock[0] += 2 * LEASE_S
        with pytest.raises(TierTaken, match="in the midst of a write there"):
            second.hold()

    files.meanwhile = stand_still
    ours.append(key, 0, b"one")
    second.hold()
    assert dict(others.sizes("c/b/t")) == {key: 3}
    others.append(key, 3, b"two")
    # The first one's clock stood still as well, so its own sign seems young to it.
    clock[0] = 100.0
    for _ in range(2):
        with pytest.raises(TierTaken):
            ours.append(key, 3, b"x")
        with pytest.raises(TierTaken):
            ours.remove(key)
        first.release()
    assert others.read(key, 0, 99) == b"onetwo"
    second.keep(True)


def test_a_folder_without_locks_is_written_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Unlocked(OsFiles):
        def lock(self, path: str) -> int:
            raise OSError(errno.ENOLCK, "No locks available")

    one = owner(tmp_path, "one")
    one._segments._files = Unlocked()  # type: ignore[attr-defined]
    one.hold()
    held = HeldSegments(one._segments, one.keep)
    for at in range(2):
        held.append("c/b/t/0/COMMIT_LOG/x", at, b"x")
    assert held.read("c/b/t/0/COMMIT_LOG/x", 0, 9) == b"xx"
    assert caplog.text.count("cannot be locked") == 1


def test_on_a_full_disk_an_owner_signs_and_another_takes_over(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = owner(tmp_path, "one"), owner(tmp_path, "another-store-with-a-longer-name")
    first.hold()

    def full(self: OsFiles, path: str, content: bytes, **_: object) -> None:
        if "/tier/" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        write_file(self, path, content)

    write_file = OsFiles.write_file
    monkeypatch.setattr(OsFiles, "write_file", full)
    signed = tmp_path / "tier/c/b/owner.json"
    # As an earlier version left it.
    signed.write_bytes(signed.read_bytes().rstrip())
    for _ in range(5):
        clock[0] += SIGN_S
        first.hold()
        with pytest.raises(TierTaken):
            second.hold()
    assert second.other_lives
    first.release()
    second.hold()
    with pytest.raises(TierTaken):
        first.hold()
    # What has no room in one sector is not written in part.
    with pytest.raises(StoreFull):
        FolderSegments(str(tmp_path / "tier")).put("c/b/owner.json", bytes(513))
    assert len(signed.read_bytes()) == 512
