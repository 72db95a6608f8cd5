"""Finding records by their place in the log, and by key. Rule: nothing here writes; records are slices of the log."""

from __future__ import annotations

from collections.abc import Generator

from rocketspark.errors import RecordError
from rocketspark.model.steps import finished
from rocketspark.protocol.message import properties as props
from rocketspark.protocol.message import record, record_layout
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.index.index_file import PAUSE
from rocketspark.store.index.index_service import IndexService

# Records that a look for a key decodes before it makes a pause, some ms where each has thousands of keys.
LOOKS_PER_TURN = 32
_TAGS, _KEYS = props.TAGS.encode(), props.KEYS.encode()
_UNIQUE_ID = props.UNIQUE_ID.encode()


class RecordLookup:
    """The part of a store that needs no queue; Store opens the files it works on."""

    log: CommitLog
    index_service: IndexService | None
    # Readers see what lies before both.
    _confirmed_end: int | None = None
    _flushed_end: int | None = None
    _visible_end: int | None = None

    def show_up_to(self, position: int | None) -> None:
        """Let readers see only messages whose records lie wholly before a physical offset, up to which replicas hold
        the log; None: all.
        """
        self._confirmed_end = position
        self._show()

    def show_flushed(self, position: int | None) -> None:
        """Let readers see only what lies before a physical offset, up to which the log is on the disk; None: all."""
        self._flushed_end = position
        self._show()

    def _show(self) -> None:
        self._visible_end = min((e for e in (self._confirmed_end, self._flushed_end) if e is not None), default=None)

    @property
    def shown_end(self) -> int:
        """The physical offset up to which readers see the log."""
        return self.log.written if self._visible_end is None else self._visible_end

    def shown_at(self, position: int) -> memoryview | None:
        """Return the whole record at a physical offset; None if none begins there, or readers do not see it yet."""
        found = self.log.record_at(position)
        end = self._visible_end
        return None if found is None or (end is not None and position + len(found) > end) else found

    def copied_at(self, position: int) -> memoryview | None:
        """Return what a replica copies from a physical offset, whether readers see it yet or not: the whole record, or
        the mark that says that the rest of the log file is unused; None if there is neither.
        """
        log = self.log
        if (found := log.record_at(position)) is not None:
            return found
        if not log.min_position <= position < log.next_file(position) <= log.written or log.is_damaged(position):
            return None
        return log.slice(position, record_layout.BLANK_BYTES_MIN) if log.is_blank(position) else None

    def query(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        kind: str = "K",
        *,
        unconfirmed: bool = False,
    ) -> list[memoryview]:
        """Return records with a key, newest first, stored within [begin_ms, end_ms].

        `kind`: "K" a word of KEYS or the unique id, "U" the unique id, "T" the tags. `unconfirmed`: also what readers
        do not see yet.
        """
        return finished(self.query_steps(topic, key, count_max, begin_ms, end_ms, kind, unconfirmed=unconfirmed))

    def query_steps(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        kind: str = "K",
        *,
        unconfirmed: bool = False,
    ) -> Generator[None, None, list[memoryview]]:
        """Do what `query` does, in steps: it yields now and then while it looks for long, as many keys may have one
        hash.
        """
        if self.index_service is None:
            return []
        wanted = key.encode()
        topic_bytes = topic.encode()
        found: list[memoryview] = []
        taken: set[int] = set()
        before, looks = -1, 0
        for position in self.index_service.find(topic, key, begin_ms, end_ms, tag=kind == "T"):
            if len(found) >= count_max:
                break
            if position == before or position in taken:
                continue  # One message may have several entries.
            looks += 1
            if position == PAUSE or looks % LOOKS_PER_TURN == 0:
                # Views hold maps of the log, which may have to go meanwhile.
                view = None
                found = [memoryview(bytes(each)) for each in found]
                yield
                if position == PAUSE:
                    continue
            before = position
            view = self.log.record_at(position) if unconfirmed else self.shown_at(position)
            if view is None or not begin_ms <= record_layout.store_time_of(view) <= end_ms:
                continue
            try:
                message = record.decode(view, check_crc=False)
            except RecordError:
                continue
            if message.topic == topic_bytes and _has_key(message.properties, wanted, kind):
                found.append(view)
                taken.add(position)
        return found


def _has_key(properties: bytes, wanted: bytes, kind: str) -> bool:
    if kind == "T":
        return props.find(properties, _TAGS) == wanted
    if props.find(properties, _UNIQUE_ID) == wanted:
        return True
    if kind == "U":
        return False
    keys = props.find(properties, _KEYS)
    return keys is not None and wanted in keys and wanted in keys.split(b" ")
