"""Segments in a row: all records, or all units, of one queue, as one run of bytes.

Rule: in memory a segment grows only after its bytes are durable. A list of segments is replaced, never changed, so that
other threads may read it. Nothing is written while a segment behind the end may still be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from rocketspark.errors import StoreUnwritable
from rocketspark.store.tiered.layout import NO_TIME, SegmentEntry, SegmentKind, segment_key
from rocketspark.store.tiered.segments import FAILURES_MAX, SegmentStore, TierTaken


class FlatFile:
    """A run of bytes in segments. `bytes_max`: of one segment."""

    def __init__(self, store: SegmentStore, cluster: str, path: str, kind: SegmentKind, bytes_max: int) -> None:
        self._store = store
        self._cluster = cluster
        self.path = path
        self.kind = kind
        self._bytes_max = bytes_max
        self.entries: tuple[SegmentEntry, ...] = ()
        # Where segments begin that lie behind the end, and are still to be removed.
        self._left: list[int] = []
        # And of those before the first: nobody reads them any more.
        self._expired: list[int] = []

    # -- where it stands

    @property
    def start(self) -> int:
        """The first byte that is there."""
        return self.entries[0].base_offset if self.entries else 0

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return self.entries[-1].base_offset + self.entries[-1].size if self.entries else 0

    def key(self, base: int) -> str:
        """Return the name of the segment that begins there."""
        return segment_key(self._cluster, self.path, self.kind, base)

    def take_over(self, sizes: dict[int, int], known: dict[int, SegmentEntry]) -> None:
        """Begin with the segments that were found. `sizes`: by where they begin; `known`: what the table says of them.

        Of segments with a hole between only those behind it are kept. One without a byte counts if it is the last.
        """
        self._left.clear()
        self._expired.clear()
        kept: list[SegmentEntry] = []
        for base in sorted(sizes):
            if kept and kept[-1].base_offset + kept[-1].size != base:
                kept = []
            entry = known.get(base) or SegmentEntry(path=self.path, type=int(self.kind), base_offset=base)
            if entry.size != sizes[base]:
                # It has grown since: its times are looked for.
                entry = msgspec.structs.replace(entry, size=sizes[base], begin_ms=NO_TIME, end_ms=NO_TIME)
            kept.append(entry)
        self.entries = tuple(kept)

    def begin_at(self, base: int, now_ms: int, left: Iterable[int] = ()) -> None:
        """Begin an empty run at a byte. `left`: where segments begin that are removed before it is written to."""
        assert not self.entries
        self._left.extend(left)
        self.entries = (self._new(base, now_ms),)

    def _new(self, base: int, now_ms: int) -> SegmentEntry:
        return SegmentEntry(path=self.path, type=int(self.kind), base_offset=base, created_ms=now_ms)

    def cut(self, end: int) -> None:
        """Let the run end at a byte within it; what lies behind goes, or is written over, before more is appended."""
        while len(self.entries) > 1 and self.entries[-1].base_offset >= end:
            self._left.append(self.entries[-1].base_offset)
            self.entries = self.entries[:-1]
        if self.entries:
            last = self.entries[-1]
            size = max(end - last.base_offset, 0)
            self.entries = (*self.entries[:-1], msgspec.structs.replace(last, size=size))

    # -- bytes

    def append(self, pieces: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Append pieces, each with its store time in ms; none is divided between segments. Raises StoreFull,
        StoreUnwritable; what was written before that stays.
        """
        pending: list[bytes] = []
        size = first_ms = last_ms = 0
        for piece, time_ms in pieces:
            if self.entries[-1].size + size + len(piece) > self._bytes_max and (size or self.entries[-1].size):
                self._write(pending, first_ms, last_ms)
                pending, size = [], 0
                self.roll(now_ms)
            if not pending:
                first_ms = last_ms = time_ms
            first_ms, last_ms = min(first_ms, time_ms), max(last_ms, time_ms)
            pending.append(piece)
            size += len(piece)
        self._write(pending, first_ms, last_ms)

    def _write(self, pieces: list[bytes], first_ms: int, last_ms: int) -> None:
        if not pieces:
            return
        self._remove_left()
        last, content = self.entries[-1], b"".join(pieces)
        self._store.append(self.key(last.base_offset), last.size, content)
        grown = msgspec.structs.replace(
            last,
            size=last.size + len(content),
            begin_ms=min(first_ms, last.begin_ms),
            end_ms=last_ms if last.end_ms == NO_TIME else max(last_ms, last.end_ms),
        )
        self.entries = (*self.entries[:-1], grown)

    def _remove_left(self) -> None:
        while self._left:
            # The last first, so that what a failure leaves follows the others.
            self._store.remove(self.key(max(self._left)))
            self._left.remove(max(self._left))

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the last one is empty."""
        if self.entries[-1].size:
            self.entries = (*self.entries, self._new(self.end, now_ms))

    def read(self, at: int, count: int) -> bytes:
        """Return bytes [at, at + count), fewer only at the end. Raises StoreUnwritable, also if they are gone."""
        found = []
        for entry in self.entries:
            first, behind = entry.base_offset, entry.base_offset + entry.size
            if first <= at < behind and count > 0:
                part = self._store.read(self.key(first), at - first, min(count, behind - at))
                if len(part) < min(count, behind - at):
                    raise StoreUnwritable(f"{self.key(first)} ends before byte {behind - first} of the tier")
                found.append(part)
                at += len(part)
                count -= len(part)
        if not found and count:
            raise StoreUnwritable(f"{self.path}: byte {at} is not in the tier any more")
        return found[0] if len(found) == 1 else b"".join(found)

    # -- removal

    def expire(self, before_ms: int) -> None:
        """Remove the oldest segments whose messages are all older, but for the last one.

        Raises StoreUnwritable; a later call goes on.
        """
        while len(self.entries) > 1 and self.entries[0].end_ms < before_ms:
            self._leave_first()
        self._remove_expired()

    def expire_below(self, at: int) -> None:
        """Remove the oldest segments that end at or before a byte, but for the last.

        Raises StoreUnwritable; a later call goes on.
        """
        while len(self.entries) > 1 and self.entries[1].base_offset <= at:
            self._leave_first()
        self._remove_expired()

    def _leave_first(self) -> None:
        self._expired.append(self.entries[0].base_offset)
        self.entries = self.entries[1:]

    def _remove_expired(self) -> None:
        """Remove what nobody reads any more, also behind a segment that cannot be removed."""
        failed: list[StoreUnwritable] = []
        for base in list(self._expired):
            try:
                self._store.remove(self.key(base))
            except TierTaken:
                raise
            except StoreUnwritable as e:
                failed.append(e)
                # It is tried last from now on, as only a few failures are waited for.
                self._expired.append(base)
            self._expired.remove(base)
            if len(failed) >= FAILURES_MAX:
                break
        if failed:
            raise failed[0]

    def destroy(self) -> None:
        """Remove all segments. Raises StoreUnwritable; a later call goes on."""
        self._remove_expired()
        self._remove_left()
        for entry in reversed(self.entries):
            self._store.remove(self.key(entry.base_offset))
            self.entries = self.entries[:-1]

    def table(self) -> Iterator[tuple[int, SegmentEntry]]:
        """Yield the rows of the table, by where the segments begin."""
        for entry in self.entries:
            yield entry.base_offset, entry
