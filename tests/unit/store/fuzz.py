"""A store that is written to, damaged and opened again, all by one seed. Rule: what it was told is kept, or said.

After whatever a seed does: what was acknowledged and is undamaged is read again; nothing is read that was not
acknowledged, or in another place; a start succeeds or says why not and leaves the log as it was; appends go on.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rocketspark.errors import ConfigError, RocketSparkError, StoreError
from rocketspark.protocol.message import record, sysflags
from rocketspark.store import Store, StoreSettings
from rocketspark.store.files import checkpoint
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.settings import ManualClock

FILE_BYTES = 8192
NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
HOST = bytes.fromhex("7f00000100002a9f")
TOPICS = ("A", "B", "C", "SCHEDULE_TOPIC_XXXX", "BQ")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES, errno.EDQUOT)


class FailingFiles(OsFiles):
    """Each call fails now and then while `rate` is above 0; nothing waits for a disk."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.rate = 0.0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ("rate", "maps_max", "populate") or not callable(found):
            return found
        rate, rng = self.rate, self._rng

        def call(*args: Any, **more: Any) -> Any:
            if rate and rng.random() < rate:
                number = rng.choice(ERRORS)
                raise OSError(number, os.strerror(number), str(args[0])[-60:])
            return found(*args, **more)

        return call

    def sync_map(self, mapped: Any, at: int, end: int) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...


class Row(NamedTuple):
    """An acknowledged message: its queue and offset, how many it stands for, its bytes and place."""

    topic: str
    queue_id: int
    offset: int
    count: int
    body: bytes
    position: int
    end: int


class Run:
    """One seed. `wide`: with damage of every file, queue extensions and deleted topics, too."""

    def __init__(self, seed: int, folder: Path, *, wide: bool = False) -> None:
        self.wide = wide
        self.rng = random.Random(seed)
        self.root = folder / "store"
        self.copy = folder / "older"
        self.killed = folder / "killed"
        self.files = FailingFiles(self.rng)
        self.rows: list[Row] = []
        self.story: list[str] = []
        self.damage: list[tuple[int, int]] = []
        # Whether what was done to queues, or to the index, can be noticed.
        self.noticed = self.indexed = True
        self.count = 0
        self.topics: list[str] = list(TOPICS)
        # (position, body) of messages of deleted topics: they come back (`revived`) if the note of that is lost, or is
        # of a place behind the log's end: it may be that of another log.
        self.deleted: set[tuple[int, bytes]] = set()
        self.revived = False
        # Whether a file is there that its queue alone refuses, when it is read first.
        self.refused = False
        self.ext = wide and self.rng.random() < 0.5

    def open(self) -> Store:
        settings = StoreSettings(
            root=str(self.root),
            log_file_bytes=FILE_BYTES,
            queue_file_units=20,
            index_slots=16,
            index_entries=60,
            batch_queue_file_units=8,
            queue_ext=self.ext,
            queue_ext_file_bytes=1024,
        )
        store = Store(settings, store_host=HOST, clock=ManualClock(NOW_MS), files=self.files)
        store.batch_topics = ["BQ"]
        store.simple_topics = TOPICS[:3]
        store.open()
        return store

    def put(self, store: Store) -> None:
        rng = self.rng
        self.count += 1
        topic, queue_id, number = rng.choice(self.topics), rng.randrange(3), self.count
        body = b"%s-%d-%d-" % (topic.encode(), queue_id, number) + b"z" * rng.choice((0, 10, 100, 700))
        stored = b"UNIQ_KEY\x01K%d\x02" % number
        count, sys_flag = 1, 0
        if topic == "BQ" and rng.random() < 0.7:
            count, sys_flag = rng.randrange(1, 5), sysflags.INNER_BATCH | sysflags.NEED_UNWRAP
            stored += b"INNER_NUM\x01%d\x02" % count
        position, offset, end = store.append(
            topic.encode(), queue_id, body, stored, 0, b"K%d" % number, None, None, NOW_MS + number, 0, sys_flag,
            NOW_MS, BORN,
        )  # fmt: skip
        self.rows.append(Row(topic, queue_id, offset, count, body, position, end))

    def flush(self, store: Store) -> None:
        store.flush_log()
        store.flush_queues()
        store.flush_indexes()
        store.write_checkpoint()

    def write(self, store: Store, count: int) -> None:
        """Appends and flushes; whatever fails is an error of the store's."""
        copied = self.rng.randrange(count)
        for i in range(count):
            try:
                self.put(store)
                if self.rng.random() < 0.03:
                    self.flush(store)
            except StoreError:
                continue
            if i == copied:
                try:
                    self.flush(store)
                except StoreError:
                    continue
                shutil.copytree(self.root, self.copy)
            if self.wide and self.rng.random() < 0.01:
                self.delete(store)

    def delete(self, store: Store) -> None:
        topic = self.rng.choice(self.topics)
        self.story.append(f"deleted: {topic}")
        try:
            store.delete_topic(topic)
        except StoreError as e:
            # Some of it may be there.
            self.story.append(f"not deleted: {e}")
            self.topics = [t for t in self.topics if t != topic] or ["none"]
            self.noticed, self.revived = False, True
        self.deleted.update((r.position, r.body) for r in self.rows if r.topic == topic)
        self.rows = [r for r in self.rows if r.topic != topic]
        if topic == "BQ":
            store.make_batch_topic(topic)

    def go(self) -> None:
        rng = self.rng
        store = self.open()
        if rng.random() < 0.4:
            self.files.rate = rng.choice((0.01, 0.05, 0.3))
            self.story.append(f"calls fail: {self.files.rate}")
        self.write(store, rng.choice((5, 30, 80)))
        self.stop(store)
        kinds = [self.flip, self.fill, self.cut, self.swap, self.remove, self.older, self.truncate]
        if self.wide:
            kinds += [
                self.flip_other,
                self.flip_other,
                self.fill_other,
                self.fill_other,
                self.remove_log,
                self.lengthen,
            ]
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            rng.choice(kinds)()
        if rng.random() < 0.2:
            self.files.rate = 0.05
            self.story.append("calls fail at the start")
            try:
                store = self.open()
                self.stop(store, kill=True)
            except RocketSparkError:
                pass
            self.files.rate = 0.0
        before = self.log_bytes()
        expected = self.expected()
        try:
            store = self.open()
        except RocketSparkError as e:
            refusal, after = str(e), self.log_bytes()
            if len(refusal) < 20:
                raise
            for row in expected:
                assert after[row.position : row.end] == before[row.position : row.end], "destroyed by a refused start"
            return
        # Damage that changes nothing leaves what it hits.
        try:
            found = self.check(store, expected)
        except ConfigError:
            if not self.refused:
                raise
            store.close()
            return
        if not self.noticed or self.refused:
            store.close()
            return
        self.rows = [r for r in self.rows if r.position in found]
        for _ in range(20):
            self.put(store)
        self.check(store, self.rows)
        store.close()
        store = self.open()
        self.check(store, self.rows)
        store.close()

    def stop(self, store: Store, *, kill: bool = False) -> None:
        """By a kill or by `close`, which may fail."""
        if kill or self.rng.random() < 0.5:
            self.story.append("killed")
            shutil.rmtree(self.killed, ignore_errors=True)
            shutil.copytree(self.root, self.killed)
            self.files.rate = 0.0
            try:
                store.close()
            except StoreError:
                pass
            shutil.rmtree(self.root)
            shutil.move(self.killed, self.root)
            return
        try:
            store.close()
            self.story.append("closed")
        except StoreError as e:
            self.story.append(f"close: {e}")
        self.files.rate = 0.0

    # -- damage

    def log_files(self) -> list[Path]:
        return sorted(p for p in (self.root / "commitlog").iterdir() if len(p.name) == 20)

    def log_bytes(self) -> bytes:
        found = b""
        for path in self.log_files():
            found = found.ljust(int(path.name), b"\0") + path.read_bytes().ljust(FILE_BYTES, b"\0")
        return found

    def change(self, path: Path, at: int, content: bytes) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(content)
        if path.parent.name == "commitlog":
            self.damage.append((int(path.name) + at, int(path.name) + at + len(content)))
        self.story.append(f"{path.relative_to(self.root)}: {len(content)} bytes at {at}")

    def flip(self) -> None:
        """A bit of a record that some check covers."""
        if self.rows:
            row = self.rng.choice(self.rows)
            at = row.position + self.rng.choice((*range(12), *range(28, 36), *range(88, 88 + len(row.body))))
            path = self.root / "commitlog" / f"{at - at % FILE_BYTES:020d}"
            old = path.read_bytes()[at % FILE_BYTES :][:1] if path.exists() else b""
            if old:
                self.change(path, at % FILE_BYTES, bytes([old[0] ^ 1 << self.rng.randrange(7)]))

    def fill(self) -> None:
        """A stretch of the log, from the head of a record on: what no check covers is not told from what was sent."""
        if self.rows:
            at = self.rng.choice(self.rows).position + self.rng.randrange(8)
            path = self.root / "commitlog" / f"{at - at % FILE_BYTES:020d}"
            size = path.stat().st_size if path.exists() else 0
            count = min(self.rng.choice((8, 50, 512, 4096)), size - at % FILE_BYTES)
            if count > 0:
                self.change(path, at % FILE_BYTES, self.rng.choice((b"\0", b"\xff")) * count)

    def cut(self) -> None:
        """The log ends earlier: the last file is shorter."""
        files = [p for p in self.log_files() if any(r.position >= int(p.name) for r in self.rows)]
        if files:
            used = max(r.end for r in self.rows) - int(files[-1].name)
            at = self.rng.randrange(used + 1)
            os.truncate(files[-1], at)
            self.damage.append((int(files[-1].name) + at, int(files[-1].name) + FILE_BYTES))
            self.story.append(f"{files[-1].name} cut at {at}")

    def swap(self) -> None:
        """Two files of the log in each other's place."""
        files = [p for p in self.log_files() if p.stat().st_size == FILE_BYTES]
        if len(files) > 1:
            one, other = self.rng.sample(files, 2)
            content = one.read_bytes()
            self.change(one, 0, other.read_bytes())
            self.change(other, 0, content)

    def others(self) -> list[Path]:
        """Every file but the log's."""
        found = [p for p in self.root.rglob("*") if p.is_file() and p.parent.name != "commitlog"]
        return sorted(p for p in found if p.name not in ("lock",))

    def unnoticed(self, path: Path) -> None:
        if path.name in ("storeFiles.json", "deletedTopics.json"):
            self.noticed, self.revived = False, True
        if "index" in path.parts:
            self.indexed = False

    def remove(self) -> None:
        path = self.rng.choice(self.others())
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            if path.parent != self.root:
                path = path.parent
        self.unnoticed(path / "index" if path.name == "config" else path)
        if path.name == "config":
            self.noticed, self.revived = False, True
        self.story.append(f"removed: {path.relative_to(self.root)}")
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def older(self) -> None:
        """A file as it was before, from a backup perhaps."""
        path = self.rng.choice(self.others())
        copy = self.copy / path.relative_to(self.root)
        if copy.exists():
            self.unnoticed(path)
            shutil.copy(copy, path)
            self.story.append(f"older: {path.relative_to(self.root)}")

    def truncate(self) -> None:
        path = self.rng.choice(self.others())
        self.unnoticed(path)
        os.truncate(path, self.rng.randrange(path.stat().st_size + 1))
        self.story.append(f"truncated: {path.relative_to(self.root)} to {path.stat().st_size}")

    def used(self, path: Path) -> int:
        return len(path.read_bytes().rstrip(b"\0"))

    def flip_other(self) -> None:
        """A bit of a queue, of the index, of the checkpoint or of a table."""
        path = self.rng.choice(self.others())
        if count := self.used(path):
            at = self.rng.randrange(count)
            self.unnoticed(path)
            self.change(path, at, bytes([path.read_bytes()[at] ^ 1 << self.rng.randrange(8)]))

    def fill_other(self) -> None:
        path = self.rng.choice(self.others())
        if count := self.used(path):
            at = self.rng.randrange(count)
            self.unnoticed(path)
            # RocketMQ writes its six numbers without a check: one that is too late hides keys that were not written.
            self.indexed = self.indexed and path.name != "checkpoint"
            self.change(path, at, self.rng.choice((b"\0", b"\xff")) * min(self.rng.choice((4, 46, 200)), count - at))

    def remove_log(self) -> None:
        """A file of the log: with others behind it, all before it counts as removed."""
        files = self.log_files()
        if len(files) > 1:
            path = self.rng.choice(files)
            begin = int(path.name)
            self.damage.append((0 if path != files[-1] else begin, begin + FILE_BYTES))
            path.unlink()
            self.revived = True
            self.story.append(f"removed: {path.name}")

    def lengthen(self) -> None:
        path = self.rng.choice([*self.others(), *self.log_files()])
        self.unnoticed(path)
        self.refused = True
        os.truncate(path, path.stat().st_size + self.rng.choice((1, 20, 4096)))
        self.story.append(f"longer: {path.relative_to(self.root)}")

    # -- what has to hold

    def whole(self, row: Row) -> bool:
        return not any(begin < row.end and row.position < end for begin, end in self.damage)

    def expected(self) -> list[Row]:
        """The acknowledged rows that are still to be read (rule: cut only at an end that nothing covers)."""
        whole = self.whole
        covered = checkpoint.read(str(self.root / "checkpoint")).queues_position
        for row in self.rows:
            if row.position % FILE_BYTES == 0 and whole(row):
                covered = max(covered, row.position)
        kept: list[Row] = []
        for n, row in enumerate(self.rows):
            if whole(row):
                kept.append(row)
            elif row.position >= covered or not any(r.position <= covered and whole(r) for r in self.rows[n + 1 :]):
                break
        return kept

    def check(self, store: Store, expected: list[Row]) -> set[int]:
        """Positions of what was read."""
        known = {(r.topic, r.queue_id, r.offset): r for r in self.rows}
        found: set[int] = set()
        for topic, ids in store.queues().items():
            for queue_id in ids:
                at, end = store.queue_range(topic, queue_id)
                while at < end:
                    read = store.read(topic, queue_id, at, 8, 1 << 20)
                    assert read.next_offset > at, f"{topic} {queue_id} stands at {at}"
                    for got in (r for piece in read.records for r in record.decode_all(piece)):
                        if self.revived and (got.position, got.body) in self.deleted:
                            continue
                        row = known.get((topic, queue_id, got.queue_offset))
                        assert row is not None, f"{topic} {queue_id}: {got.queue_offset} was never acknowledged"
                        assert (got.body, got.position) == (row.body, row.position), f"{row} is another one: {got}"
                        found.add(got.position)
                    at = read.next_offset
        if self.noticed:
            lost = [r for r in expected if r.position not in found]
            assert not lost, f"lost: {lost[:3]}"
        if self.noticed and self.indexed:
            # No check covers the properties, which hold the keys: a record whose last ones were cut may be read.
            keyed = [r for r in expected if self.whole(r)]
            for row in self.rng.sample(keyed, min(len(keyed), 10)):
                key = row.body.split(b"-")[2].decode()
                hits = store.query(row.topic, f"K{key}", 10, 0, 1 << 60, "U")
                assert row.position in [record.decode(v).position for v in hits], f"no key leads to {row}"
        return found


def run(seed: int, folder: Path, told: Callable[[str], None] = print, *, wide: bool = False) -> None:
    """Raises what a seed brings up, with what it did. `wide`: see `Run`."""
    one = Run(seed, folder, wide=wide)
    try:
        one.go()
    except BaseException as e:
        told(f"seed {seed}: {one.story}")
        raise AssertionError(f"seed {seed}: {one.story}: {e!r}") from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)
