"""Which parked messages have left an acting slave for another broker, so that none leaves, or is delivered, again.

How far delay levels, timers and half messages came is saved at intervals: after a kill the messages that left since
then would leave once more, or be delivered by the master. So each is noted as it leaves, by its place and time in the
log, which are the same on all brokers of the name; the master takes the notes with the rest of what was done in its
place.

Rule: a kill loses no note; a loss of power may. Only parked messages are noted, as they are delivered only once."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from rocketspark.broker import topic_names
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.message.record import Record

log = LimitedLog("rocketspark.broker.replication")

# Far more than leave between two notes of progress; the older half goes then.
COUNT_MAX = 100_000
PARKED = frozenset(
    name.encode() for name in (topic_names.SCHEDULE_TOPIC, topic_names.TIMER_TOPIC, topic_names.HALF_TOPIC)
)
# Physical offset and store time: behind a cut another message may lie in the same place.
_NOTE = struct.Struct(">QQ")

Note = tuple[int, int]


class LeftMessages:
    """The notes of one broker. `path`: their file, read at once; it exists once a message left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: dict[Note, None] = {}
        with contextlib.suppress(FileNotFoundError):
            self._notes = dict.fromkeys(_unpacked(path.read_bytes()))

    def __len__(self) -> int:
        return len(self._notes)

    def has(self, kept: Record) -> bool:
        """Tell whether a message left for another broker."""
        return bool(self._notes) and kept.topic in PARKED and (kept.position, kept.store_time_ms) in self._notes

    def add(self, kept: Record) -> None:
        """Note that another broker has the message now."""
        if kept.topic in PARKED:
            self._write([(kept.position, kept.store_time_ms)])

    def all(self) -> bytes:
        """Return the notes, for the master."""
        return _packed(self._notes)

    def take(self, notes: bytes) -> None:
        """Add a slave's notes."""
        self._write([note for note in _unpacked(notes) if note not in self._notes])

    def _write(self, notes: list[Note]) -> None:
        if not notes:
            return
        content = _packed(notes)
        self._notes.update(dict.fromkeys(notes))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if len(self._notes) > COUNT_MAX:
                self._notes = dict.fromkeys(list(self._notes)[-COUNT_MAX // 2 :])
                made = self._path.with_suffix(".new")
                made.write_bytes(self.all())
                os.replace(made, self._path)
            else:
                self._append(content)
        except OSError as e:
            log.error("%s cannot be written, so what left may leave again after a kill: %s", self._path, e.strerror)

    def _append(self, notes: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            torn = file.tell() % _NOTE.size
            if torn:
                file.truncate(file.tell() - torn)
            file.write(notes)


def _packed(notes: Iterable[Note]) -> bytes:
    return b"".join(_NOTE.pack(*note) for note in notes)


def _unpacked(content: bytes) -> Iterator[Note]:
    """Return the notes in these bytes; a kill may have cut the last one off."""
    return _NOTE.iter_unpack(content[: len(content) - len(content) % _NOTE.size])
