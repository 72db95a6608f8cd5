"""One index file: its header, its slots, its entries in chains. Rule: see `index_service`, which has all of them."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rocketspark.store.files.mapped_file_queue import MappedFiles

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = 40
ENTRY = struct.Struct(">iqii")
ENTRY_BYTES = 20
RESERVE_STEP_BYTES = 1 << 20
# Of entries ahead: fewer are not worth a call.
POPULATE_BYTES_MIN, POPULATE_BYTES_MAX = 256 << 10, 8 << 20
_SLOT = struct.Struct(">i")
# Entries that are looked at together, and at most.
_PIECE_COUNT, _LOOKED_AT_MAX = 1 << 17, 1 << 20
_log = logging.getLogger("rocketspark.store")
_ENTRIES = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_INT_MAX = 0x7FFFFFFF
# A look for a key that goes on for long makes a pause after so many entries, a ms or two.
ENTRIES_PER_TURN = 2048
PAUSE = -1


class IndexFile:
    """One index file: header, slots, entries. `count` is the number of the next entry, 1 in an empty file."""

    def __init__(self, path: str, slots: int, entries: int, maps: MappedFiles) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self.files = maps.files
        # Held outside the cache of maps: there are few index files and the last is always in use.
        self.map = self.files.map(path, scattered=True)
        self._entries_at = HEADER_BYTES + 4 * slots
        self._slot_view = np.frombuffer(self.map, ">i4", slots, HEADER_BYTES)
        self._entry_view = np.frombuffer(self.map, _ENTRIES, entries, self._entries_at)
        (
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_position,
            self.end_position,
            self.used_slots,
            self.count,
        ) = HEADER.unpack_from(self.map)
        if not 1 <= self.count <= entries:
            self.count = 1
        self.reserved = 0
        self.flushed_count = self.count
        self._populated = self._populate_from = self.count

    @property
    def room(self) -> int:
        """Return the number of entries that still fit. Entry 0 is never used."""
        return int(self.entries - self.count)

    def reserve(self, count: int) -> None:
        """Reserve blocks for the next `count` entries. Raises OSError if the disk is full."""
        end = self._entries_at + (self.count + count) * ENTRY_BYTES
        if end > self.reserved:
            step = max(end, min(self.reserved + RESERVE_STEP_BYTES, self._entries_at + self.entries * ENTRY_BYTES))
            at = self.reserved if self.reserved else 0
            self.files.reserve(self.path, at, step - at)
            self.reserved = step

    def populate_ahead(self) -> None:
        """Bring the pages for the next entries into memory: four times as many as were written since the last call. For
        another thread.
        """
        count = self.count
        ahead = min(4 * (count - self._populate_from) * ENTRY_BYTES, POPULATE_BYTES_MAX)
        self._populate_from = count
        begin = max(count, self._populated)
        end = min(count + ahead // ENTRY_BYTES, self.entries)
        if (end - begin) * ENTRY_BYTES >= POPULATE_BYTES_MIN:
            at = self._entries_at
            self.files.populate(self.map, at + begin * ENTRY_BYTES, at + end * ENTRY_BYTES, for_map=False)
            self._populated = end

    def write(
        self,
        keys: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
    ) -> None:
        """Add entries, for which there must be room, oldest first. Entries first, header last: a kill between
        leaves slots that point nowhere or entries that no slot knows, and both are mended by recovery."""
        first, count = self.count, len(keys)
        numbers = np.arange(first, first + count, dtype=np.int32)
        slots = keys % np.int32(self.slots)
        # By slot, those of one slot in their order: numbers sort five times as quickly as a stable argsort.
        both = slots.astype(np.int64) << 32 | np.arange(count)
        both.sort()
        order, sorted_slots = both & 0xFFFFFFFF, both >> 32
        repeated = np.empty(count, bool)
        repeated[0] = False
        np.equal(sorted_slots[1:], sorted_slots[:-1], out=repeated[1:])
        previous = self._slot_view[sorted_slots].astype(np.int32)
        previous[(previous < 0) | (previous >= first)] = 0
        sorted_numbers = numbers[order]
        previous[repeated] = sorted_numbers[:-1][repeated[1:]]
        fresh_slots = int(np.count_nonzero(previous == 0))
        begin = self.begin_time_ms
        seconds = np.clip((times - begin) // 1000, 0, _INT_MAX) if begin > 0 else np.zeros(count, np.int64)
        if first == 1 and count > 1:
            # Only the first entry counts from the begin inherited of the file before.
            seconds[1:] = np.clip((times[1:] - times[0]) // 1000, 0, _INT_MAX)
        rows = self._entry_view[first : first + count]
        rows["hash"] = keys
        rows["position"] = positions
        rows["seconds"] = seconds
        unsorted = np.empty(count, np.int32)
        unsorted[order] = previous
        rows["previous"] = unsorted
        if first == 1:
            self.begin_time_ms, self.begin_position = int(times[0]), int(positions[0])
        self.end_time_ms, self.end_position = int(times[-1]), int(positions[-1])
        self.used_slots += fresh_slots
        self.count = first + count
        self.write_header()
        newest = np.empty(count, bool)
        newest[-1] = True
        np.logical_not(repeated[1:], out=newest[:-1])
        self._slot_view[sorted_slots[newest]] = sorted_numbers[newest]

    def write_header(self) -> None:
        HEADER.pack_into(
            self.map,
            0,
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_position,
            self.end_position,
            self.used_slots,
            self.count,
        )

    def chain(self, key: int) -> Iterator[tuple[int, int]]:
        """Yield (physical offset, approximate store time in ms) of every entry with that hash, newest first.

        Now and then PAUSE is yielded, for the caller to let others work, as a chain may be as long as the file.
        """
        number = int(self._slot_view[key % self.slots])
        above = self.count
        left = ENTRIES_PER_TURN
        # A chain only ever goes down; a damaged one ends.
        while 0 < number < above:
            above = number
            left -= 1
            if not left:
                left = ENTRIES_PER_TURN
                yield PAUSE, 0
            found, position, seconds, number = ENTRY.unpack_from(self.map, self._entries_at + number * ENTRY_BYTES)
            if found == key:
                # The first entry's seconds count from the begin inherited of the file before; it is the begin itself.
                yield position, self.begin_time_ms + (seconds * 1000 if above > 1 else 0)

    def drop_from(self, position: int) -> None:
        """Remove the entries at or after a physical offset; if the file is damaged, its slots are made anew."""
        count = self.count
        whole = True
        above = _INT_MAX << 32
        while count > 1:
            found = ENTRY.unpack_from(self.map, self._entries_at + (count - 1) * ENTRY_BYTES)
            blank = found == (0, 0, 0, 0)
            if found[1] < position and not blank:
                break
            count -= 1
            slot_at = HEADER_BYTES + 4 * (found[0] % self.slots if found[0] >= 0 else 0)
            if blank or found[0] < 0 or found[1] > above or not 0 <= found[3] < count:
                whole = False
                continue
            above = found[1]
            _SLOT.pack_into(self.map, slot_at, found[3])
            if found[3] == 0:
                self.used_slots -= 1
        if count == self.count:
            return
        self.count = count
        # Without entries: all before `position` are in the files before this one.
        last = ENTRY.unpack_from(self.map, self._entries_at + (count - 1) * ENTRY_BYTES)
        self.end_position = last[1] if count > 1 else position
        self.flushed_count = -1  # Others may come in their place.
        if not whole:
            self._remake_slots()
        self.write_header()

    def mend_end(self) -> None:
        """Remove entries at the end that the header counts, but that were not written, or not whole: they are all
        zero.
        """
        rows = self._entry_view[1 : self.count]
        if not len(rows) or rows[-1].tobytes().strip(b"\0"):
            return
        written = np.flatnonzero((rows["position"] != 0) | (rows["hash"] != 0))
        # The last may be torn.
        self._cut(int(written[-1]) + 1 if len(written) else 1)

    def _cut(self, count: int) -> None:
        self.count = count
        self.end_position = int(self._entry_view[count - 1]["position"]) if count > 1 else 0
        self.flushed_count = -1
        self._remake_slots()
        self.write_header()

    def mend_old_sectors(self) -> bool:
        """Mend what is old in the file after a power cut, though it was flushed; True if entries were removed.

        Entries from the first unwritten one on are removed; the slots are made anew if an entry is in no chain. Only
        the newest million entries are looked at, which takes some 0.2 s.
        """
        oldest = max(1, self.count - _LOOKED_AT_MAX)
        led_to = np.zeros(self.count, bool)
        for begin in range(oldest, self.count, _PIECE_COUNT):
            rows = self._entry_view[begin : min(begin + _PIECE_COUNT, self.count)]
            odd = (rows["position"] < self.begin_position) | ((rows["position"] == 0) & (rows["hash"] == 0))
            if odd.any() or rows["hash"].min() < 0:
                self._cut(begin + int((odd | (rows["hash"] < 0)).argmax()))
                return True
            for numbers in (rows["previous"], self._slot_view[rows["hash"] % self.slots]):
                led_to[numbers[(numbers > 0) & (numbers < self.count)]] = True
        if not led_to[oldest:].all():
            self.flushed_count = -1
            self._remake_slots()
            self.write_header()
            _log.warning("%s has slots of before: they are made anew from its entries; check the disk", self.path)
        return False

    def _remake_slots(self) -> None:
        numbers = np.arange(1, self.count, dtype=np.int32)
        rows = self._entry_view[1 : self.count]
        self._slot_view[:] = 0
        # Of several values for one slot the last stays.
        self._slot_view[rows["hash"] % self.slots] = numbers
        self.used_slots = int(np.count_nonzero(self._slot_view))

    def sync(self) -> None:
        """Put the entries, slots and header on the disk. Raises OSError."""
        count = self.count
        if count != self.flushed_count:
            self.files.sync_map(self.map, 0, self._entries_at + count * ENTRY_BYTES)
            self.flushed_count = count
