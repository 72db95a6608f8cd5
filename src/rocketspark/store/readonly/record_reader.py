"""Records at known places of the log, side by side in one buffer, and proven. Rule: an unproven record is left out.

A record is proven if size, place, queue, queue offset and topic agree with its unit and its parts fit together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise, starmap
from typing import NamedTuple

import numpy as np

from rocketspark.protocol.message import checksums, record_crc, record_layout, sysflags
from rocketspark.protocol.message.record_layout import (
    CRC_MASK,
    FIXED_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    Ints,
)
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.consumequeue.consume_queue_ext import ADDRESS_MAX
from rocketspark.store.consumequeue.consume_queue_store import SCHEDULE_TOPIC
from rocketspark.store.readonly.log_scan import RECORD_BYTES_MAX, LogScan
from rocketspark.store.readonly.queue_units import QueueFiles, QueueUnits

RECORDS_PER_PIECE = 16_384
BYTES_PER_PIECE = 8 << 20
# Bytes between two records up to which reading them too is quicker than a call of its own.
_GAP_BYTES = 4096

_HEAD = record_layout.head_type("size", "magic", "crc", "queue_id", "queue_offset", "position", "sys_flag")
_BODY_LENGTH = np.dtype(record_layout.PLACES["body_bytes"].kind)

# Called for missing messages [first, end), with the reason; it raises, or they are skipped.
Lost = Callable[[int, int, str], None]


class RecordPiece(NamedTuple):
    """Records in queue order, each of which begins at one of `starts` in `buffer`; valid until the next piece is asked
    for.
    """

    buffer: bytearray
    starts: Ints
    sizes: Ints


class RecordReader:
    """Reads the records of one queue's range. `check_crc`: bodies are compared with their CRC (0.2 us a record)."""

    def __init__(self, queue: QueueFiles, log: LogScan, lost: Lost, *, check_crc: bool) -> None:
        self._queue = queue
        self._log = log
        self._lost = lost
        self._check_crc = check_crc
        self._topic = queue.topic.encode()
        self._buffer = bytearray(1 << 20)

    def pieces(self, codes: frozenset[int] | None = None) -> Iterator[RecordPiece]:
        """Yield the records, some thousands at a time. With `codes`, most records with other tags codes are left
        out.
        """
        queue = self._queue
        following = queue.first
        if queue.batch or queue.topic == SCHEDULE_TOPIC:
            codes = None  # There the code is not that of each message's tag.
        for units in queue.units():
            ends = units.offsets + units.counts
            before = np.concatenate(([following], ends[:-1]))
            for i in np.flatnonzero(units.offsets > before).tolist():
                self._lost(int(before[i]), int(units.offsets[i]), "the store knows no place of theirs")
            following = int(ends[-1])
            chosen = self._readable(units)
            if codes is not None and units.codes is not None:
                taken = np.isin(units.codes, list(codes)) | (units.codes <= ADDRESS_MAX)
                if queue.is_tiered:
                    # It does not tell batch queues from others: a batch has no tag, and those within it have their own.
                    taken |= (units.counts > 1) | (units.codes == 0)
                chosen &= taken
            yield from self._read(units if chosen.all() else units.only(chosen))
        if following < queue.next:
            self._lost(following, queue.next, "the queue's files end before")

    def _readable(self, units: QueueUnits) -> Ints:
        """Return a mask of the units that can lead to a record; gaps lead to none. Reports the others."""
        oldest = self._log.min_position
        gone = (units.sizes != GAP_SIZE) & (units.positions < oldest)
        right = (units.sizes >= RECORD_BYTES_MIN) & (units.sizes <= RECORD_BYTES_MAX) & (units.positions >= 0)
        self._tell(units, gone & right, "deleted")
        wrong = ~right & (units.sizes != GAP_SIZE)
        self._tell(
            units,
            wrong,
            "their consume queue is damaged; a copy of the store without consumequeue/ is read by the log alone",
        )
        found: Ints = right & ~gone
        return found

    def _tell(self, units: QueueUnits, which: Ints, why: str) -> None:
        """Report the messages of some units, those in a row together."""
        places = np.flatnonzero(which)
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            if len(run):
                first, last = int(run[0]), int(run[-1])
                self._lost(int(units.offsets[first]), int(units.offsets[last] + units.counts[last]), why)

    def _read(self, units: QueueUnits) -> Iterator[RecordPiece]:
        if not len(units.offsets):
            return
        positions, sizes = units.positions, units.sizes
        between = positions[1:] - positions[:-1] - sizes[:-1]
        apart = (between < 0) | (between > _GAP_BYTES)
        # A file that is gone must not take the next one's records with it.
        apart |= np.diff(np.searchsorted(self._log.starts, positions, "right")) != 0
        steps = sizes.copy()
        steps[1:] += np.where(apart, 0, between)
        ends = np.cumsum(steps)
        starts = ends - sizes
        begin = 0
        while begin < len(starts):
            base = int(starts[begin])
            end = int(np.searchsorted(ends, base + BYTES_PER_PIECE, "right"))
            end = max(begin + 1, min(end, begin + RECORDS_PER_PIECE, len(starts)))
            here = slice(begin, end)
            breaks = np.flatnonzero(apart[begin : end - 1]) + 1
            piece = self._piece(units.only(here), starts[here] - base, breaks.tolist(), int(ends[end - 1]) - base)
            if len(piece.starts):
                yield piece
            begin = end

    def _piece(self, units: QueueUnits, starts: Ints, breaks: list[int], total: int) -> RecordPiece:
        if len(self._buffer) < total:
            self._buffer = bytearray(total)
        view = memoryview(self._buffer)
        bounds = [0, *breaks, len(starts)]
        for first, following in pairwise(bounds):
            at = int(starts[first])
            end = int(starts[following]) if following < len(starts) else total
            count = self._log.read_into(int(units.positions[first]), view[at:end])
            if count < end - at:
                view[at + count : end] = bytes(end - at - count)
        good = self._proven(units, starts)
        if self._queue.is_tiered:
            units, starts, good = self._without_copies(units, starts, good)
        if good.all():
            return RecordPiece(self._buffer, starts, units.sizes)
        # The log as it is by now: a broker may have removed files meanwhile.
        gone = ~good & (units.positions < LogScan(self._log.directories, self._log.place).min_position)
        self._tell(units, gone, "deleted")
        self._tell(units, ~good & ~gone, "damaged, or cut off, in the log or their consume queue")
        return RecordPiece(self._buffer, starts[good], units.sizes[good])

    def _without_copies(self, units: QueueUnits, starts: Ints, good: Ints) -> tuple[QueueUnits, Ints, Ints]:
        """Leave out records that an earlier unit led to: RocketMQ's tier has a batch once for each of its messages."""
        again = good & (self._at(starts, _HEAD)["queue_offset"] < units.offsets) & (units.offsets != self._queue.first)
        return (units.only(~again), starts[~again], good[~again]) if again.any() else (units, starts, good)

    def _proven(self, units: QueueUnits, starts: Ints) -> Ints:
        """Return a mask of the records that are whole and are those that their units name."""
        heads = self._at(starts, _HEAD)
        magic = heads["magic"]
        good: Ints = (heads["size"] == units.sizes) & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
        right_offset = heads["queue_offset"] == units.offsets
        if self._queue.is_tiered:
            inner = heads["sys_flag"] & sysflags.INNER_BATCH != 0
            right_offset |= inner & (heads["queue_offset"] < units.offsets)
        good &= (heads["queue_id"] == self._queue.queue_id) & right_offset
        good &= heads["position"] == units.positions
        if not good.all():
            rows = np.flatnonzero(good)
            good[rows] = self._fits(starts[rows], heads[rows])
        else:
            good &= self._fits(starts, heads)
        return good

    def _fits(self, starts: Ints, heads: Ints) -> Ints:
        """Return, for each record, whether its parts fit together and topic and CRC are right. The fields of
        `heads` are right already.
        """
        if not len(starts):
            return np.zeros(0, np.bool_)
        ends = starts + heads["size"]
        body = starts + FIXED_BYTES_V4 + record_layout.v6_bytes(heads["sys_flag"])
        long = heads["magic"] == MAGIC_V2
        topic = self._topic
        after_topic = body + 1 + long + len(topic)
        # Lengths beyond the record make the rest meaningless: those rows are looked at with a body of nothing.
        lengths = self._at(np.minimum(body, ends) - _BODY_LENGTH.itemsize, _BODY_LENGTH).astype(np.int64)
        good: Ints = (lengths >= 0) & (after_topic + lengths + PROPERTIES_LENGTH_BYTES <= ends)
        if not good.all():
            rows = np.flatnonzero(good)
            good[rows] = self._fits(starts[rows], heads[rows])
            return good
        body_end = body + lengths
        after_topic = after_topic + lengths
        stated = self._at(body_end, np.dtype("u1")).astype(np.int64)
        if long.any():
            stated = np.where(long, self._at(body_end, np.dtype(">u2")), stated)
        good &= stated == len(topic)
        good &= after_topic + PROPERTIES_LENGTH_BYTES + self._at(after_topic, np.dtype(">u2")) == ends
        width = 8 if len(topic) >= 8 else 4 if len(topic) >= 4 else 1
        for part in {*range(0, len(topic) - width + 1, width), len(topic) - width}:
            wanted = int.from_bytes(topic[part : part + width], "little")
            good &= self._at(after_topic - len(topic) + part, np.dtype(f"<u{width}")) == wanted
        if self._check_crc:
            good &= self._crcs_right(body, body_end, heads["crc"])
            good &= self._record_crcs_right(starts, ends)
        return good

    def _record_crcs_right(self, starts: Ints, ends: Ints) -> Ints:
        """Return, for each whole record, whether its CRC is right, where there is one (enabledAppendPropCRC)."""
        right = np.ones(len(starts), np.bool_)
        mark = int.from_bytes(record_crc.NAME[:8], "little")
        view = memoryview(self._buffer)
        for i in np.flatnonzero(self._at(ends - record_crc.BYTES, np.dtype("<u8")) == mark).tolist():
            right[i] = record_crc.is_right(view[starts[i] : ends[i]])
        return right

    def _at(self, places: Ints, kind: np.dtype) -> Ints:
        """Return the values at places of the buffer; without a copy where the places are equally far apart."""
        steps = np.diff(places[:2])
        if len(steps) and steps[0] > 0 and (np.diff(places) == steps[0]).all():
            return np.ndarray((len(places),), kind, self._buffer, int(places[0]), (int(steps[0]),))
        found: Ints = np.ndarray((len(self._buffer) - kind.itemsize + 1,), kind, self._buffer, 0, (1,))[places]
        return found

    def _crcs_right(self, body: Ints, body_end: Ints, stored: Ints) -> Ints:
        view = memoryview(self._buffer)
        first, length, count = int(body[0]), int(body_end[0] - body[0]), len(body)
        step = int(body[1]) - first if count > 1 else 0
        if (
            0 < step >= length
            and first + count * step <= len(view)
            and (body_end == first + length + step * np.arange(count)).all()
            and (np.diff(body) == step).all()
        ):
            # Of one size, one distance apart: 130 ns each instead of 190.
            rows = struct.Struct(f"{length}s{step - length}x").iter_unpack(view[first : first + count * step])
            crcs = list(starmap(checksums.crc32, rows))
        else:
            crcs = [checksums.crc32(view[at:end]) for at, end in zip(body.tolist(), body_end.tolist(), strict=True)]
        found = np.array(crcs, np.int64) & CRC_MASK
        # A stored CRC of 0 is not checked (rule: CommitLog, 5.x).
        right: Ints = (found == stored) | (stored == 0)
        return right
