"""The compaction log of one queue: records copied from the commit log, and of closed segments the newest of each key
alone (CompactionLog, 5.x).

Rule: readers see one row of segments or the next, never a mixture; a kill at any step of a compaction leaves the old
segments or the new ones. New ones are made in folders `compacting`; a note there says that they are whole, and which
old ones go: from then on whoever opens the log finishes the exchange.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

from rocketspark.errors import StoreUnwritable
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.message import properties, record_layout
from rocketspark.store.compaction.segments import Places, Segment, Unit, unit_of
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles, failure, make_folder, remove_file

_log = logging.getLogger("rocketspark.store")
_damaged = LimitedLog("rocketspark.store")
_KEYS = properties.KEYS.encode()
_COMPACTING = "compacting"
_NOTE = "exchange.json"
# Bytes of records that a compaction writes at once.
_PIECE_BYTES = 1 << 20


class _GivenUpError(Exception):
    """The compaction that runs is not to go on."""


class Kept(NamedTuple):
    """What a read of a compaction log gives: records, their number and bytes, the offset to go on from."""

    records: list[memoryview]
    messages: int
    size: int
    next_offset: int


def key_of(stored: memoryview) -> bytes:
    """Return the KEYS of a record, which count as one key however many words they are; b"" without any."""
    return (properties.find(record_layout.properties_of(stored), _KEYS) or b"").strip()


class CompactionLog:
    """The log of one queue. `segments`: replaced whole, so that a reader goes on with those that it began with."""

    def __init__(self, places: Places, files: OsFiles) -> None:
        self._places = places
        self._files = files
        self.segments: tuple[Segment, ...] = ()
        # How often a compaction that runs had to be given up.
        self._cuts = 0
        self._ended = False
        # For who replaces them, or writes files.
        self._lock = threading.Lock()
        # The offset after the last message of the queue that was looked at; those without a key are not copied.
        self.next = 0

    def open(self, oldest: int, *, crashed: bool) -> None:
        """Find the files. Raises StoreFull, StoreUnwritable.

        `oldest`: of the queue; what is damaged, and behind it, is copied once more if the queue has it still.
        `crashed`: the last run was killed.
        """
        try:
            self._finish_exchange()
            names = self._names(self._places.log)
            for base in names ^ self._names(self._places.units):
                if base in names:
                    continue  # Its units are made anew.
                _log.warning("%s/%020d has no second file: it is removed", self._places.log, base)
                remove_file(f"{self._places.log}/{base:020d}")
                remove_file(f"{self._places.units}/{base:020d}")
            if names and not os.path.isdir(self._places.units):
                make_folder(self._files, self._places.units)
            found = []
            for base in sorted(names):
                if not os.path.exists(f"{self._places.log}/{base:020d}"):
                    continue
                self._fill_up(f"{self._places.units}/{base:020d}", self._places.units_bytes)
                self._fill_up(f"{self._places.log}/{base:020d}", self._places.log_bytes)
                found.append(Segment(self._places, base, self._files))
        except OSError as e:
            raise failure(e, "open", self._places.log) from e
        kept: list[Segment] = []
        # All but the last two were flushed before the next was made.
        whole = [
            segment.load(check=crashed and segment in found[-2:], closed=segment is not found[-1]) for segment in found
        ]
        for index, segment in enumerate(found):
            kept.append(segment)
            if not whole[index]:
                _log.warning("%s was damaged: %d messages of it are there", segment.log_path, segment.count)
                following = next((each.unit(0).offset for each in found[index + 1 :] if each.count), None)
                if following is None or following > oldest:
                    break
        for segment in found[len(kept) :]:
            segment.remove()
        self.segments = tuple(kept)
        self.next = max((segment.last_offset for segment in kept), default=-1) + 1

    def _fill_up(self, path: str, size: int) -> None:
        # A larger one was made when the settings said so.
        found = os.path.getsize(path) if os.path.exists(path) else 0
        self._files.create(path, max(size, found), keep=True)

    @staticmethod
    def _names(folder: str) -> set[int]:
        try:
            return {int(name) for name in os.listdir(folder) if len(name) == 20 and name.isascii() and name.isdigit()}
        except FileNotFoundError:
            return set()

    # -- reading

    @property
    def min(self) -> int:
        """The offset of the oldest message; `next` without any."""
        for segment in self.segments:
            if segment.count:
                return segment.unit(0).offset
        return self.next

    @property
    def newest(self) -> memoryview | None:
        """The newest message; None without any, or if it is damaged."""
        for segment in reversed(self.segments):
            if segment.count:
                unit = segment.unit(segment.count - 1)
                return segment.record(unit) if segment.has(unit) else None
        return None

    @property
    def on_disk_until(self) -> int:
        """The offset before which all that was copied is on the disk."""
        return next((at for segment in self.segments if (at := segment.unflushed) is not None), self.next)

    def units(self, offset: int) -> Iterator[tuple[Segment, Unit]]:
        """Yield the messages from an offset on, as far as they are copied."""
        for segment in self.segments:
            count = segment.count
            for index in range(segment.index_of(offset), count):
                yield segment, segment.unit(index)

    def read(
        self,
        offset: int,
        end: int,
        limits: tuple[int, int, int],
        codes: frozenset[int] | None,
        accepts: Callable[[memoryview], bool | None] | None,
        so_far: tuple[int, int],
    ) -> Kept:
        """Return the messages from an offset on that are left, up to offset `end`; see `MessageReader.read`.

        `limits`: messages, bytes, messages looked at. `so_far`: messages and bytes that count already.
        """
        count_max, bytes_max, looks = limits
        looks = max(looks, 1)
        count, total = so_far
        records = []
        for segment, unit in self.units(offset):
            if unit.offset >= end:
                break
            if not looks or (count and (total + unit.size > bytes_max or count >= count_max)):
                end = unit.offset
                break
            looks -= 1
            if not segment.has(unit):
                _damaged.warning(
                    "the message at offset %d of %s is damaged on the disk: it is left out, and the one before it of"
                    " its key is kept if that is still there",
                    unit.offset,
                    self._places.log,
                )
                continue
            if codes is not None and unit.code not in codes:
                continue
            stored = segment.record(unit)
            passes = True if accepts is None else accepts(stored)
            if passes is None:
                end = unit.offset
                break
            if passes:
                records.append(stored)
                count += 1
                total += unit.size
        return Kept(records, count - so_far[0], total - so_far[1], end)

    def offset_at(self, time_ms: int) -> int | None:
        """Return the offset of the first message stored at a time in ms or later; None if none of these was."""
        for segment in self.segments:
            index = segment.index_at(time_ms)
            if index < segment.count:
                return segment.unit(index).offset
        return None

    def time_ms(self, offset: int) -> int:
        """Return the store time of one message; -1 if it is not there."""
        unit = next((unit for _, unit in self.units(offset)), None)
        return unit.time_ms if unit is not None and unit.offset == offset else -1

    # -- writing

    def append(self, records: Sequence[memoryview], following: int) -> bool:
        """Copy records of the queue, in its order, up to the one before offset `following`; those without a key, and
        those that are there, are passed over. False, and nothing done, while segments are exchanged, or after `end`.
        Raises StoreFull, StoreUnwritable.
        """
        wanted = [stored for stored in records if unit_of(stored, 0).offset >= self.next and key_of(stored)]
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._ended:
                return False
            for made in self._appended(self._places, self.segments, wanted):
                self.segments = made
        finally:
            # What was written before a failure counts: it may be the reason why files of the commit log go.
            self.next = max([self.next, *(segment.last_offset + 1 for segment in self.segments[-2:])])
            self._lock.release()
        self.next = max(self.next, following)
        return True

    def _appended(
        self, places: Places, segments: tuple[Segment, ...], records: Sequence[memoryview]
    ) -> Iterator[tuple[Segment, ...]]:
        """Write records behind those that are there; yields the row of segments each time that it has another one."""
        at = 0
        while at < len(records):
            last = segments[-1] if segments else None
            end, (count_max, bytes_left) = at, last.room() if last is not None else (0, 0)
            # One write for as many as there is room for.
            while end < len(records) and end - at < count_max and len(records[end]) <= bytes_left:
                bytes_left -= len(records[end])
                end += 1
            if last is not None and end > at:
                last.append(records[at:end])
                at = end
            elif len(records[at]) + record_layout.BLANK_BYTES_MIN > places.log_bytes:
                _log.error("a message is larger than compactionMappedFileSize: %s keeps it not", places.log)
                at += 1
            else:
                segments = self._with_another(places, segments)
                yield segments

    def _with_another(self, places: Places, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        base = 0
        if segments:
            segments[-1].close()
            base = segments[-1].base + max(places.log_bytes, len(segments[-1].view))
        for segment in segments[:-1]:
            self._flush(segment)
        return (*segments, Segment.make(places, base, self._files))

    def flush(self) -> None:
        """Put what was copied on the disk. May run beside `append`. Raises StoreFull, StoreUnwritable."""
        for segment in self.segments:
            self._flush(segment)

    @staticmethod
    def _flush(segment: Segment) -> None:
        try:
            segment.flush()
        except FileNotFoundError:
            pass  # It was compacted, or the topic deleted, meanwhile.
        except OSError as e:
            raise failure(e, "flush", segment.log_path) from e

    def cut(self, following: int) -> None:
        """Forget messages from an offset on. A compaction that runs is given up. Raises StoreFull,
        StoreUnwritable."""
        kept: list[Segment] = []
        with self._lock:
            for segment in self.segments:
                count = segment.index_of(following)
                if count < segment.count:
                    segment.cut(count)
                if count or not kept:
                    kept.append(segment)
                else:
                    segment.remove()
            self.segments = tuple(kept)
            self._cuts += 1
        self.next = min(self.next, following)

    def give_up(self) -> None:
        """Have a compaction that runs end soon, with nothing done."""
        self._cuts += 1

    def end(self) -> None:
        """Change no file any more, in any thread: the topic is deleted, or another log takes its files."""
        with self._lock:
            self._ended = True
            self._cuts += 1

    # -- compaction

    def compact(self, done: int, keys_max: int, until: int | None = None) -> int:
        """Keep of each key in closed segments the newest message alone, and none with an empty body, where messages
        after offset `done` came; `until`: only in segments with messages before this offset alone. Returns the offset
        up to which it is done; `done` if there is nothing to do.

        At most about `keys_max` keys at once; the rest in the next call. For a thread, one at a time; `append` and
        reads go on beside it. Raises StoreFull, StoreUnwritable.
        """
        cuts, closed = self._cuts, self.segments[:-1]
        if until is not None:
            closed = tuple(takewhile(lambda segment: segment.last_offset < until, closed))
        if self._ended:
            return done
        newest: dict[bytes, int] = {}
        upto, end = done, 0
        for index, segment in enumerate(closed):
            if segment.last_offset <= done:
                continue
            if end and len(newest) + segment.count > keys_max:
                break
            if cuts != self._cuts:
                return done
            for at in range(segment.index_of(done + 1), segment.count):
                unit = segment.unit(at)
                upto = unit.offset
                if segment.has(unit):
                    newest[key_of(segment.record(unit))] = unit.offset
            end = index + 1
        if not end:
            return done
        old = closed[:end]
        # Older ones of a key that came again are found here as well: each new message may have replaced one of them.
        if not all(self._stays(segment, unit, newest) for segment in old for unit in _units(segment)):
            try:
                self._replace(old, newest, cuts)
            except _GivenUpError:
                return done  # What is left of the old ones is compacted next time.
        return upto

    @staticmethod
    def _stays(segment: Segment, unit: Unit, newest: dict[bytes, int]) -> bool:
        stored = segment.record(unit)
        if not segment.has(unit):
            return False
        return unit.offset >= newest.get(key_of(stored), -1) and record_layout.body_bytes_of(stored) > 0

    def _replace(self, old: Sequence[Segment], newest: dict[bytes, int], cuts: int) -> None:
        with self._unless_given_up(cuts):
            try:
                self._finish_exchange()  # One that failed may have moved some files.
            except OSError as e:
                raise failure(e, "exchange the segments in", self._places.log) from e
        new = self._rewritten(old, newest, cuts)
        with self._unless_given_up(cuts):
            following = self.segments[len(old)].base
            if new and new[-1].base >= following:
                _log.error("%s is not compacted: segments of the size that is set now take more room", self._places.log)
                return
            self._exchange(old, new)

    @contextmanager
    def _unless_given_up(self, cuts: int) -> Iterator[None]:
        """Keep others from the files, but only for a moment: the event loop may wait. Raises _GivenUpError."""
        with self._lock:
            if cuts != self._cuts:
                raise _GivenUpError
            yield

    def _rewritten(self, old: Sequence[Segment], newest: dict[bytes, int], cuts: int) -> tuple[Segment, ...]:
        # None of the old ones has a message that finds no room in a new one.
        places = self._places.below(_COMPACTING)._replace(
            log_bytes=max(self._places.log_bytes, *(len(segment.view) for segment in old)),
            units_bytes=max(self._places.units_bytes, *(segment.units_bytes for segment in old)),
        )
        new: tuple[Segment, ...] = ()
        piece: list[memoryview] = []
        size = 0
        for segment in old:
            for unit in _units(segment):
                if self._stays(segment, unit, newest):
                    piece.append(segment.record(unit))
                    size += unit.size
                if size > _PIECE_BYTES:
                    with self._unless_given_up(cuts):
                        for made in self._appended(places, new, piece):
                            new = made
                    piece, size = [], 0
            if cuts != self._cuts:
                raise _GivenUpError
        with self._unless_given_up(cuts):
            for made in self._appended(places, new, piece):
                new = made
            if new:
                new[-1].close()
        try:
            if new:
                for segment in new:
                    segment.flush()
                for folder in (self._places.log, self._places.units):
                    self._files.sync_directory(folder)
        except FileNotFoundError:
            raise _GivenUpError from None  # The topic was deleted.
        except OSError as e:
            raise failure(e, "flush", places.log) from e
        return new

    def _exchange(self, old: Sequence[Segment], new: tuple[Segment, ...]) -> None:
        note: dict[str, object] = {"old": [segment.base for segment in old], "new": [segment.base for segment in new]}
        config_files.write(f"{self._places.log}/{_COMPACTING}/{_NOTE}", config_files.sealed(note), self._files)
        try:
            self._finish_exchange()
        except OSError as e:
            raise failure(e, "exchange the segments in", self._places.log) from e
        for segment in new:
            segment.moved(self._places)
        self.segments = (*new, *self.segments[len(old) :])

    def _finish_exchange(self) -> None:
        """Do what a note of an exchange says, as far as it is not done; without one, remove what a compaction left."""
        places = self._places
        beside = places.below(_COMPACTING)
        path = f"{beside.log}/{_NOTE}"
        try:
            note = config_files.unsealed(config_files.read(path) or "{}")
            old, new = ([int(base) for base in note.get(name, ())] for name in ("old", "new"))
        except (ValueError, TypeError, AttributeError, json.JSONDecodeError):
            old, new = [], []
        # Units of a topic whose deletion a kill broke off are gone.
        if old and os.path.isdir(places.units):
            for source, target in ((beside.log, places.log), (beside.units, places.units)):
                for base in new:
                    if os.path.exists(f"{source}/{base:020d}"):
                        self._files.replace(f"{source}/{base:020d}", f"{target}/{base:020d}")
                for base in set(old) - set(new):
                    remove_file(f"{target}/{base:020d}")
                self._files.sync_directory(target)
        self._clear(beside)

    def _clear(self, places: Places) -> None:
        for folder in (places.log, places.units):
            try:
                if os.path.isdir(folder):
                    self._files.remove_tree(folder)
            except OSError as e:
                raise StoreUnwritable(f"cannot remove {folder}: {e.strerror}") from e


def _units(segment: Segment) -> Iterator[Unit]:
    return (segment.unit(index) for index in range(segment.count))
