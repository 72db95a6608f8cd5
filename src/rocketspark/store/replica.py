"""The receiving half of a store: the raw bytes of another broker's log, cut anywhere.

Rule: three ends: received, whole records, readable. What is received becomes readable record by record, through the
code that recovery uses; until a record is whole its size is held back, so that no kill leaves a part that looks whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from rocketspark.errors import RecordError, ReplicationError, StoreFull
from rocketspark.model.text import string_hash
from rocketspark.protocol.light_queues import MARK
from rocketspark.protocol.message import properties, record, record_layout, sysflags
from rocketspark.protocol.message.record_layout import (
    BLANK_BYTES_MIN,
    FIXED_BYTES_V4,
    HOST_FLAGS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGICS,
    RECORD_BYTES_MIN,
    SIZE_BYTES,
    Buffer,
)
from rocketspark.store.commitlog.commit_log import CommitLog, another_size, plausible
from rocketspark.store.compaction.compaction_store import CompactionStore
from rocketspark.store.consumequeue.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore, offset_behind
from rocketspark.store.deleted_topics import DeletedTopics
from rocketspark.store.doubts import doubt_newest
from rocketspark.store.files import store_number
from rocketspark.store.index.index_service import PENDING_MAX, IndexService
from rocketspark.store.index.key_hashes import Pending
from rocketspark.store.recovery import Replay, index_late
from rocketspark.store.settings import StoreSettings

_log = logging.getLogger("rocketspark.store")

# Damage of the master's is searched for the next record over so many bytes.
RESYNC_BYTES_MAX = 8 << 20
_HEAD = record_layout.only("size", "magic", "position")
_PLACE_BYTES = _HEAD.size
_DISPATCHED = record_layout.only("size", "magic", "queue_id", "queue_offset", "sys_flag", "store_time_ms", "body_bytes")
# So much of the log is copied at once to look at its records.
_PIECE_BYTES = 256 << 10
# Records with these go through the code of recovery.
_NOT_PLAIN = HOST_FLAGS | sysflags.INNER_BATCH | sysflags.TRANSACTION_MASK
_TAG_CODES_MAX = 10_000
_MARKS = [magic.to_bytes(4, "big", signed=True) for magic in MAGICS]
_TAGS, _KEYS, _UNIQUE_ID = (name.encode() for name in (properties.TAGS, properties.KEYS, properties.UNIQUE_ID))


class ReplicaReceiver:
    """The receiving half of a store; Store opens the files it works on."""

    log: CommitLog
    consume_queues: ConsumeQueueStore
    compaction: CompactionStore
    index_service: IndexService | None
    _deletions: DeletedTopics
    _pending: list[Pending] | None
    _queues_by_bytes: dict[tuple[bytes, int], ConsumeQueue]
    _last_time_ms: int
    began_empty: bool
    number: int | None
    shared_ends: list[tuple[int, store_number.Ends]]
    settings: StoreSettings
    # Everything before it was received; whole records end at `_whole`, where the next one's size is held back.
    _received = 0
    _whole = 0
    _held_back = b""
    # Bytes of records that were given up lie before it.
    _dirty_end = 0
    # A file that ends there, within a record: that is damaged, or the master's files are of another size.
    _cut_at = -1
    # Where the first bytes of this stream lie: there a record must begin.
    _stream_from = -1
    _visible_end: int | None
    # Called after the log was cut back.
    cut_happened: Callable[[], None] = staticmethod(lambda: None)

    # -- the log's raw bytes

    @property
    def end_position(self) -> int:
        """The end of the log's bytes, including those of a record that is not whole yet."""
        return max(self.log.written, self._received)

    @property
    def file_bytes(self) -> int:
        """The size of a log file in bytes."""
        return self.log.file_bytes

    def log_bytes(self, position: int, count_max: int) -> memoryview:
        """Return up to `count_max` raw bytes of the log from a position on, not beyond the file's end; empty where
        there are none.
        """
        log, start = self.log, position - position % self.log.file_bytes
        count = min(count_max, start + log.file_bytes - position, log.written - position)
        if count <= 0 or position < log.min_position:
            return memoryview(b"")
        return log.mapped_files.get(start).view[position - start : position - start + count]

    def record_begins(self, position: int) -> bool:
        """Tell whether a whole record or the blank rest of a file begins there, or the log ends there."""
        log = self.log
        if log.is_replica:
            self.dispatch_received()
        if position == log.written:
            return True
        if not log.min_position <= position < log.written:
            return False
        return log.record_at(position) is not None or log.is_blank(position)

    # -- from role to role

    def become_replica(self) -> None:
        """Take no messages from here on, only the bytes of another broker's log (`append_raw`)."""
        if self.number is not None:
            self.number = None
            self.shared_ends = []
            store_number.forget_number(self.settings.root)
        self.log.take_copies(True)
        self._dirty_end = 0
        self._received = self._whole = self._stream_from = self.log.written
        self._held_back = b""
        self._arrived: dict[ConsumeQueue, None] = {}
        self._tag_codes: dict[bytes, int] = {}
        self._replay = self._new_replay()
        doubt_newest(self.log, self.consume_queues)

    def _new_replay(self) -> Replay:
        deleted = self._deletions.positions
        return Replay(self.consume_queues, self.index_service, None, deleted, from_start=True, live=True)

    def become_master(self) -> None:
        """Take messages from here on: the bytes of a record that is not whole are given up, what else was received
        becomes readable.
        """
        if not self.log.is_replica:
            return
        self.dispatch_received()
        self._replay.finish(self.log.written)
        whole = self.cut_partial_record()
        if self._dirty_end > whole:
            # Behind a shorter record of its own they might look like another one.
            self.log.cut(whole, self._dirty_end)
        self.forget_deletions_beyond(whole)
        self._received = self._dirty_end = 0
        self.began_empty = self.began_empty and whole == 0
        self.log.take_copies(False)

    # -- receiving

    def cut_partial_record(self) -> int:
        """Give up the bytes of a record that is not whole, before another connection brings more. Returns the log's
        end.
        """
        if not self.log.is_replica:
            return self.log.written
        if self._received > self._whole:
            # The rest is overwritten by what comes next; its size was never there.
            self._dirty_end = max(self._dirty_end, self._received)
        self._held_back = b""
        self._received = self._stream_from = self._whole
        return self._whole

    def append_raw(self, position: int, data: Buffer) -> None:
        """Append bytes of the master's log at its end, cut anywhere but at most up to a file's end.

        Messages in them are there for readers after `dispatch_received`.
        A log without any record begins at any file's start. Raises ReplicationError if they do not continue the log,
        StoreFull or StoreUnwritable if they cannot be written; whole records before that stay.
        """
        log = self.log
        if not log.is_replica:
            raise ReplicationError("this broker takes messages itself: it copies no other's log")
        end = self.end_position
        if position != end:
            if position < 0 or end > log.min_position or position % log.file_bytes:
                raise ReplicationError(f"bytes at {position} do not continue the log, which ends at {end}")
            log.begin_at(position)
            self.consume_queues.min_position = self.consume_queues.expired_position = position
            self._received = self._whole = self._stream_from = position
        start = position - position % log.file_bytes
        if position + len(data) > start + log.file_bytes:
            raise another_size(f"{len(data)} bytes at {position} lie over the end of a file of {log.file_bytes} bytes")
        if not len(data):
            return
        view = log.room_for_bytes(position, len(data))
        at = position - start
        held = min(max(self._whole + SIZE_BYTES - position, 0), len(data))
        if held:
            self._held_back += bytes(data[:held])
            view[at : at + held] = bytes(held)
        view[at + held : at + len(data)] = data[held:]
        self._received = position + len(data)
        self._find_whole(view, start)

    def _find_whole(self, view: memoryview, start: int) -> None:
        """Move the end of whole records on, and hold back the size of the one that is not whole."""
        log = self.log
        whole, received, file_end = self._whole, self._received, start + log.file_bytes
        if start == self._cut_at <= received - _PLACE_BYTES:
            if _HEAD.unpack_from(view)[2] != start:
                raise another_size(f"a record of the master lies over {start}, the end of a file here")
            self._cut_at = -1
        size = int.from_bytes(self._held_back, "big")
        head, last = _HEAD.unpack_from, received - _PLACE_BYTES
        while received - whole >= BLANK_BYTES_MIN or whole < received == file_end:
            at = whole - start
            if whole != self._whole:
                size = int.from_bytes(view[at : at + SIZE_BYTES], "big")
            magic = int.from_bytes(view[at + SIZE_BYTES : at + 2 * SIZE_BYTES], "big", signed=True)
            following = whole + size
            if magic in MAGICS and RECORD_BYTES_MIN <= size <= file_end - whole:
                if received - whole < _PLACE_BYTES:
                    break
                if _HEAD.unpack_from(view, at)[2] == whole:
                    if following > received:
                        break
                    whole = following
                    # Those after it, whose sizes stand in the file.
                    while whole <= last:
                        size, magic, stated = head(view, whole - start)
                        following = whole + size
                        if stated != whole or following > received or size < RECORD_BYTES_MIN or magic not in MAGICS:
                            break
                        whole = following
                    continue
            elif magic == MAGIC_BLANK and size == file_end - whole:
                if file_end > received:
                    break
                whole = file_end
                break
            elif magic == MAGIC_BLANK and size >= BLANK_BYTES_MIN:
                raise another_size(f"a file of the master ends at {whole + size}, none of {log.file_bytes} bytes does")
            found = self._after_damage(view, start, whole)
            if found < 0:
                break
            if found == file_end and (magic in MAGICS or file_end - whole < BLANK_BYTES_MIN):
                self._cut_at = file_end
            whole = found
        if whole > self._whole:
            # Only now the first of them counts, for whoever reads the log after a kill.
            begun, held_back, self._whole = self._whole, self._held_back, whole
            self._hold_back(view, start)
            view[begun - start : begun - start + SIZE_BYTES] = held_back

    def _hold_back(self, view: memoryview, start: int) -> None:
        at, count = self._whole - start, min(self._received - self._whole, SIZE_BYTES)
        self._held_back = bytes(view[at : at + count])
        view[at : at + count] = bytes(count)

    def _after_damage(self, view: memoryview, start: int, at: int) -> int:
        """Return where the log goes on after bytes that are no record; -1 if that is not here yet.

        Raises ReplicationError if a stream begins with such bytes, or nothing follows for long.
        """
        log, received = self.log, self._received
        if at == self._stream_from:
            self._refuse(view, start, at)
            raise ReplicationError(
                f"the bytes at {at} begin no record: the log of the master is not the one that this one is a copy of up"
                " to there; remove this store's files to copy it anew"
            )
        following = log.next_mark(at)
        while following + RECORD_BYTES_MIN <= received and following < start + log.file_bytes:
            size = int.from_bytes(view[following - start : following - start + SIZE_BYTES], "big")
            if following + size > received or size < RECORD_BYTES_MIN:
                following = log.next_mark(following)
                continue
            break
        else:
            if received == start + log.file_bytes:
                following = received
            elif received - at > RESYNC_BYTES_MAX:
                self._refuse(view, start, at)
                raise ReplicationError(
                    f"{RESYNC_BYTES_MAX} bytes of the master's log from {at} on hold no record: check the master's disk"
                )
            else:
                return -1
        log.damaged = (*log.damaged, (at, following))
        _log.error("%d bytes of the master's log at %d are no record: they are passed over", following - at, at)
        return following

    def _refuse(self, view: memoryview, start: int, at: int) -> None:
        """Forget what was received from a position on."""
        self._dirty_end = max(self._dirty_end, self._received)
        self._received = max(self._whole, at)
        view[at - start : at - start + SIZE_BYTES] = bytes(SIZE_BYTES)
        if at == self._whole:
            self._held_back = b""

    # -- from the log into queues and index

    def dispatch_received(self) -> None:
        """Put the whole records that were received into queues and index. Raises StoreFull, StoreUnwritable."""
        log = self.log
        position, whole = log.written, self._whole
        try:
            while position < whole:
                start = position - position % log.file_bytes
                view = log.mapped_files.get(start).view
                position = self._dispatch_file(view, start, position, min(whole, start + log.file_bytes))
        finally:
            if self.index_service is not None and len(self.index_service.pending) >= PENDING_MAX:
                try:
                    self.index_service.write_pending()
                except StoreFull:
                    pass  # The keys are kept in memory.

    def _dispatch_file(self, view: memoryview, start: int, position: int, end: int) -> int:
        log, piece_bytes = self.log, _PIECE_BYTES
        while position < end:
            at = position - start
            if log.damaged and log.is_damaged(position):
                position = log.written = next(b for a, b in log.damaged if a <= position < b)
                continue
            if log.file_bytes - at < FIXED_BYTES_V4:
                break
            size, magic, _ = _HEAD.unpack_from(view, at)
            if magic not in MAGICS:
                break
            count = size if log.damaged else min(max(size, piece_bytes), end - position)
            after = self._dispatch_plain(bytes(view[at : at + count]), position)
            if after > position:
                piece_bytes = _PIECE_BYTES
            else:
                # Others may follow: only then is little copied in vain.
                piece_bytes = size
                time_ms = self._dispatch_any(view, at, position, size)
                if time_ms > self._last_time_ms:
                    self._last_time_ms = time_ms
                after += size
            position = log.written = after
        # Else the blank rest of the file.
        log.written = end
        return end

    def _dispatch_plain(self, data: bytes, position: int) -> int:
        """Put the plain records of known queues that `data` begins with, at a position; returns where they end."""
        log, unpack, by_bytes, find = self.log, _DISPATCHED.unpack_from, self._queues_by_bytes, properties.find
        deleted, arrived, codes, pending = self._deletions.positions, self._arrived, self._tag_codes, self._pending
        at, data_bytes, newest_ms, light = 0, len(data), self._last_time_ms, self.consume_queues.light
        try:
            while data_bytes - at >= RECORD_BYTES_MIN:
                size, magic, queue_id, queue_offset, sys_flag, time_ms, body_bytes = unpack(data, at)
                following = at + size
                if (
                    magic != MAGIC_V1
                    or sys_flag & _NOT_PLAIN
                    or not 0 <= body_bytes <= size - RECORD_BYTES_MIN
                    or following > data_bytes
                ):
                    break
                topic_at = at + FIXED_BYTES_V4 + body_bytes + 1
                properties_at = topic_at + data[topic_at - 1] + 2
                queue = by_bytes.get((data[topic_at : properties_at - 2], queue_id))
                if (
                    queue is None
                    or queue.next != queue_offset
                    or queue.rare
                    or properties_at > following
                    or (light and MARK in data[properties_at:following])
                    or (deleted and position < deleted.get(queue.topic, 0))
                ):
                    break
                stored = data[properties_at:following]
                tags = find(stored, _TAGS) if _TAGS in stored else None
                code = 0
                if tags:
                    code = codes[tags] if tags in codes else self._tag_code(tags)
                unit_at = queue.at
                if unit_at >= queue.limit:
                    unit_at = queue.make_room()
                delay_ms = queue.delay_ms
                UNIT.pack_into(queue.map, unit_at, position, size, code if delay_ms is None else time_ms + delay_ms)
                queue.at = unit_at + UNIT_BYTES
                queue.counted = queue.next = queue_offset + 1
                if pending is not None:
                    keys = find(stored, _KEYS) if _KEYS in stored else None
                    pending.append((queue.keys, position, time_ms, find(stored, _UNIQUE_ID), keys, tags))
                arrived[queue] = None
                if time_ms > newest_ms:
                    newest_ms = time_ms
                at = following
                position += size
        finally:
            log.written, self._last_time_ms = position, newest_ms
        return position

    def _tag_code(self, tags: bytes) -> int:
        codes = self._tag_codes
        if len(codes) >= _TAG_CODES_MAX:
            codes.clear()
        code = codes[tags] = string_hash(tags.decode("utf-8", "replace"))
        return code

    def _dispatch_any(self, view: memoryview, at: int, position: int, size: int) -> int:
        """Put a record of any kind into queue and index; returns its store time in ms, 0 if it cannot be right."""
        try:
            found = record.decode(view[at : at + size], check_crc=False)
        except RecordError as e:
            _log.error("the record at %d of the master's log is in no queue: %s", position, e)
            return 0
        if not plausible(found.queue_id, found.queue_offset, found.store_time_ms, found.topic):
            _log.error("the record at %d of the master's log is in no queue: its fields cannot be right", position)
            return 0
        self._replay.put(found)
        queue = self._queues_by_bytes.get((found.topic, found.queue_id))
        if queue is not None:
            queue.counted = queue.next
            self._arrived[queue] = None
        self._arrived |= dict.fromkeys(self._replay.take_light())
        return found.store_time_ms

    def take_arrived(self) -> list[tuple[str, int, int]]:
        """Return (topic, queue id, next offset) of the queues that received messages since the last call."""
        arrived, self._arrived = self._arrived, {}
        return [(queue.name, queue.queue_id, queue.next) for queue in arrived]

    # -- deleted topics

    def forget_deletions_beyond(self, end: int) -> None:
        """Forget deletions of topics that lie beyond `end`, where the log ends now: another log is to follow there.

        A slave that is behind knows of deletions further on in its master's log; if the master is lost, that part may
        be lost too.
        """
        try:
            self._deletions.cut(end)
        except StoreFull:
            pass  # For this run it counts all the same.

    def take_deletions(self, positions: Mapping[str, int]) -> None:
        """Delete the queues of topics that the master deleted. `positions`: by topic, where the master's log ended
        then.

        Messages stored after that, in a new topic of the same name, stay readable; those before it, also ones that are
        still to come, are in no queue. Raises StoreFull, StoreUnwritable.
        """
        known, low = self._deletions.positions, self.log.min_position
        new = {topic: at for topic, at in positions.items() if at > max(known.get(topic.encode(), 0), low)}
        if not new:
            return
        self._deletions.add_all(new, low)
        for topic in new:
            self.compaction.delete(topic)
        for topic in self.consume_queues.finish_deletions(new):
            if new[topic] < self.log.written:
                self._dispatch_again(topic.encode(), new[topic])

    def take_queue_ends(self, topic: str, ends: Mapping[int, int]) -> None:
        """Have queues that are empty here begin where the master's end. Raises StoreFull, StoreUnwritable."""
        if self.log.is_replica:
            self.consume_queues.begin(topic, ends)

    def take_kind(self, topic: str, *, is_batch: bool) -> None:
        """Make a topic's queues batch queues or simple ones, as its master says; messages may have come before the
        topic's settings.

        Raises StoreFull, StoreUnwritable.
        """
        queues, name = self.consume_queues, topic.encode()
        queues.set_kind(name, is_batch=is_batch)
        position = queues.wrong_since(name)
        if position is not None:
            queues.delete_topics((topic,))
            queues.set_kind(name, is_batch=is_batch)
            self._dispatch_again(name, max(position, self.log.min_position))

    def put_again(self, positions: Iterable[int]) -> None:
        """Put the records at these physical offsets, ascending, into queues; they are in the index already."""
        replay = Replay(self.consume_queues, None, None, {}, from_start=True, live=True)
        for position in positions:
            data = self.log.record_at(position)
            if data is not None:
                found = record.decode(data, check_crc=False)
                replay.put(found, light=False)
                queue = self._queues_by_bytes[found.topic, found.queue_id]
                queue.counted = queue.next

    def _dispatch_again(self, topic: bytes, position: int) -> None:
        """Put the records of a topic from a position on into its queues; they are in the index already."""
        log, replay = self.log, Replay(self.consume_queues, None, None, {}, from_start=True)
        while position < log.written:
            data = log.record_at(position)
            if data is None:
                position = log.next_file(position)
                continue
            with suppress(RecordError):  # It was told when it came.
                replay.put_of(topic, record.decode(data, check_crc=False))
            position += len(data)
        replay.finish(log.written)

    # -- taking back

    def truncate(self, position: int) -> None:
        """Cut log, queues and index at `position`, where a record must begin, while the store is open as a replica.

        Raises ReplicationError if no record begins there, StoreFull or StoreUnwritable if files cannot be changed.
        """
        log = self.log
        if not log.is_replica:
            raise ReplicationError("only a copy is cut: this broker takes messages itself")
        self.dispatch_received()
        if position >= self._whole:
            self.cut_partial_record()
            if position > self._whole:
                raise ReplicationError(f"the log ends at {self._whole}, before {position}")
            return
        if not self.record_begins(position):
            raise ReplicationError(f"the log cannot be cut at {position}: no record begins there")
        self._cut_all(position)

    def _cut_all(self, position: int) -> None:
        log, index = self.log, self.index_service
        self._prepare_to_cut(position)
        log.cut(position, max(self._received, self._whole, self._dirty_end))
        self._received = self._whole = self._stream_from = position
        self._held_back = b""
        self._arrived.clear()
        self.consume_queues.cut(position)
        if index is not None:
            index.cut(position)
        last = self._last_before(position)
        self._last_time_ms = last if last >= 0 else 0
        self._replay = self._new_replay()
        self.cut_happened()

    def _prepare_to_cut(self, position: int) -> None:
        """Note on the disk that the log may end there. Store does it."""
        raise NotImplementedError

    def _last_before(self, position: int) -> int:
        """Return the newest store time that a unit before a physical offset leads to; -1 without any."""
        ends = [queue.unit(queue.next - 1)[0] for queue in self.consume_queues.loaded() if queue.next > queue.min]
        return max(map(self.log.store_time_at, ends), default=-1)

    def newest_record(self, end: int | None = None) -> tuple[int, bytes] | None:
        """Return (position, bytes) of the last record before `end`, the log's by default; None if none begins near."""
        log, end = self.log, self.log.written if end is None else end
        if end <= log.min_position:
            return None
        start = (end - 1) - (end - 1) % log.file_bytes
        begin = max(start, end - RESYNC_BYTES_MAX)
        tail = bytes(log.mapped_files.get(start).view[begin - start : end - start])
        at = len(tail)
        while (at := max(tail.rfind(mark, 0, at) for mark in _MARKS)) >= 0:
            # A record states its own position: what looks like one in a body does not.
            found = log.record_at(begin + at - SIZE_BYTES)
            if found is not None:
                return begin + at - SIZE_BYTES, bytes(found)
        return None

    def mend(self, begin: int, records: bytes) -> bool:
        """Write the master's bytes `records` over damage, or what is in doubt, that begins at `begin` and is as long.

        False if there is no such damage any more: the log was cut meanwhile, its file was removed, or this store became
        a master.
        """
        log, end = self.log, begin + len(records)
        if not log.is_replica or not log.may_be_mended(begin, end):
            return False
        late: list[record.Record] = []
        at = begin
        while at < end:
            # A file after the other; the unused end of one is no record.
            start, file_end = at - at % log.file_bytes, log.next_file(at)
            piece = memoryview(records)[at - begin : min(end, file_end) - begin]
            log.mapped_files.get(start).view[at - start : at - start + len(piece)] = piece
            while piece and not record_layout.is_blank(piece, 0, file_end - at):
                late.append(record.decode(piece))
                at, piece = at + late[-1].size, piece[late[-1].size :]
            at += len(piece)
        # Not flushed by itself: after a power cut it is found, and mended, again.
        log.note_mended(begin, end)
        if begin < log.written:
            for found in late:
                # Where the queues were made anew since, they left it out.
                self._replay.put_late(found)
            if self.index_service is not None:
                index_late(log, self.index_service, self._replay, begin, late)
        return True

    # -- what readers see

    def visible_next(self, queue: ConsumeQueue) -> int:
        """Return the next offset of a queue as its readers see it."""
        return offset_behind(queue, self._visible_end, self.log.written)
