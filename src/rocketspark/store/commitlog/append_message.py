"""The writing half of the store: one message, a run of plain ones, a batch.

Rule: the record goes into the log first, then its unit into the queue, then its keys to the index; a failure before
the record is whole leaves nothing behind. Every way writes the bytes of `record.encode`: `_append_rare` by calling it,
`append` and `append_run` by a pack of their own each, as a call for it costs 6 to 13 %, `append_layout` by columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import MessageIllegal, StoreError
from rocketspark.protocol import light_queues
from rocketspark.protocol.message import checksums, record, record_crc, record_layout, sysflags
from rocketspark.protocol.message.properties import BYTES_MAX as PROPERTIES_BYTES_MAX
from rocketspark.protocol.message.record_layout import (
    CRC_MASK,
    FIXED_BYTES_V4,
    HOST_FLAGS,
    HOST_V4_BYTES,
    MAGIC_V1,
    SIZE_BYTES,
)
from rocketspark.store.commitlog import batch_append
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.commitlog.dispatch import enters_index, enters_light, enters_queue
from rocketspark.store.consumequeue.batch_consume_queue import inner_count
from rocketspark.store.consumequeue.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore
from rocketspark.store.index.index_service import KEYS_LONG, PENDING_MAX, READY_MAX, IndexService
from rocketspark.store.index.key_hashes import BatchKeys, Pending
from rocketspark.store.settings import StoreSettings

# Clears the host bits of a sys flag.
_HOSTS_V4 = ~HOST_FLAGS
_PREPARED = sysflags.TRANSACTION_PREPARED
_PACK_UNIT = UNIT.pack_into
_PACK_V4 = record_layout.FIXED_V4.pack_into
# Lengths of properties as they stand in a record; a table is half the cost of packing.
_LENGTH2 = [n.to_bytes(2, "big") for n in range(2048)]


class BatchMessage(NamedTuple):
    """One message for `append_batch`, or for the general way of `append`; see there for the fields."""

    body: bytes | memoryview
    properties: bytes
    tags_code: int = 0
    unique_id: bytes | None = None
    keys: bytes | None = None
    tags: bytes | None = None
    flag: int = 0


# A message for `append_run`: a tuple, as one with named fields costs 5 % of a run, and for that each is read by
# unpacking it.
PlainMessage = tuple[
    ConsumeQueue,  # its queue, a `plain_queue`
    bytes | memoryview,  # body
    bytes,  # topic and properties as `record.after_body` puts them
    int,  # tags code
    bytes | None,  # unique id
    bytes | None,  # keys
    bytes | None,  # tags
    int,  # flag
    int,  # sys flag
    int,  # time born, in ms
    int,  # reconsume times
]


class MessageAppender:
    """The writing half of a store; Store opens the files it works on."""

    settings: StoreSettings
    store_host: bytes
    log: CommitLog
    consume_queues: ConsumeQueueStore
    index_service: IndexService | None
    _host_v6: bool
    _light: bool
    # Light queues that grew; who reads it empties it.
    light_grown: list[str]
    # Called with the name of a light queue before a message enters it.
    before_light: Callable[[str], None] | None = None
    _body_bytes_max: int
    _last_time_ms: int
    _pending: list[Pending] | None
    _queues_by_bytes: dict[tuple[bytes, int], ConsumeQueue]

    def limit_bodies(self, bytes_max: int) -> None:
        """Change how large a message's body may be (maxMessageSize)."""
        self.settings.message_bytes_max = self._body_bytes_max = bytes_max

    def append(
        self,
        topic: bytes,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        unique_id: bytes | None,
        keys: bytes | None,
        tags: bytes | None,
        now_ms: int,
        flag: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        *,
        again: bool = False,
    ) -> tuple[int, int, int]:
        """Store one message: record, queue unit and index keys in this call.

        `tags_code`: Java hash of the tags, 0 without (for the schedule topic the delivery time is put in its
        place); `unique_id`, `keys`, `tags`: the property values as bytes, for the index. Hosts are packed.
        The store time is `now_ms`, or that of the record before if that is later. `again`: the message was stored
        before, whatever the limit of bodies was then.

        Sixteen arguments, as every send comes by here: with a frozen struct of them in their place an append took 10 %
        longer, with a named tuple 34 % (2.0 us as it is; bodies of 128 bytes, one run in turns).

        Returns (physical offset, queue offset, position after the record). Raises MessageIllegal if it is too
        large, StoreFull, StoreUnwritable; nothing is stored then.
        """
        queue = self._queues_by_bytes.get((topic, queue_id))
        if queue is None:
            queue = self.consume_queues.make(topic, queue_id)
        pending = self._pending
        if pending is not None and (len(pending) >= PENDING_MAX or (keys is not None and len(keys) > KEYS_LONG)):
            self.index_service.write_pending()  # type: ignore[union-attr]
        body_length = len(body)
        properties_length = len(properties)
        if (body_length > self._body_bytes_max and not again) or properties_length > PROPERTIES_BYTES_MAX:
            raise self._too_large(queue, body_length, properties_length)
        if (
            sys_flag & _PREPARED
            or len(born_host) != HOST_V4_BYTES
            or queue.rare
            or self._host_v6
            or (self._light and light_queues.MARK in properties)
        ):
            message = BatchMessage(body, properties, tags_code, unique_id, keys, tags, flag)
            return self._append_rare(
                queue, message, now_ms, sys_flag, born_time_ms, born_host, reconsume_times, prepared_position
            )
        # Room first, in queue and log: what fails here has written nothing.
        at = queue.at
        if at >= queue.limit:
            at = queue.make_room()
        log = self.log
        size = queue.fixed_bytes + body_length + properties_length
        position = log.written
        end = position + size
        if end > log.limit:
            log.make_room(size)
            position = log.written
            end = position + size
        if queue.delay_ms is not None:
            # From the clock, not from the store time: that stands still while the clock is set back.
            tags_code = queue.unit_code(tags_code, now_ms)
        if now_ms < self._last_time_ms:
            now_ms = self._last_time_ms
        else:
            self._last_time_ms = now_ms
        queue_offset = queue.next
        start = position - log.base
        # Fixed part last, its body length last of all: a kill in between leaves no record that looks whole.
        log.map[start + FIXED_BYTES_V4 : start + size] = b"".join(
            (
                body,
                queue.suffix,
                _LENGTH2[properties_length] if properties_length < 2048 else properties_length.to_bytes(2, "big"),
                properties,
            )
        )
        _PACK_V4(
            log.map, start, size, MAGIC_V1, checksums.crc32(body) & CRC_MASK, queue_id, flag, queue_offset,
            position, sys_flag & _HOSTS_V4, born_time_ms, born_host, now_ms, self.store_host, reconsume_times,
            prepared_position, body_length,
        )  # fmt: skip
        _PACK_UNIT(queue.map, at, position, size, tags_code)
        queue.at = at + UNIT_BYTES
        queue.next = queue_offset + 1
        queue.stored_bytes += size
        if pending is not None:
            pending.append((queue.keys, position, now_ms, unique_id, keys, tags))
        log.written = end
        return position, queue_offset, end

    def plain_queue(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """Return the queue to hand to `append_run`; None if there is none yet, or if its messages have to go through
        `append`.

        The queue may be used until `queue_index.generation` changes.
        """
        queue = self._queues_by_bytes.get((topic, queue_id))
        if queue is None or queue.rare or queue.delay_ms is not None or self._host_v6:
            return None
        return queue

    def append_run(self, messages: Iterable[PlainMessage], now_ms: int, born_host: bytes) -> list[tuple[int, int]]:
        """Store several plain messages, as `append` does one by one.

        Their queues are those of `plain_queue`, `born_host` is IPv4, and none is transactional. Returns (physical
        offset, queue offset) of each that was stored: all, or those before the first that cannot be. To learn why, call
        `append` with that one: nothing of it is stored yet.
        """
        if self.index_service is not None and self.index_service.is_due():
            try:
                self.index_service.write_pending()
            except StoreError:
                return []
        return self._append_run(messages, now_ms, born_host)

    def _append_run(
        self, messages: Iterable[PlainMessage], now_ms: int, born_host: bytes, limit: int | None = None
    ) -> list[tuple[int, int]]:
        """Append plain messages up to physical offset `limit`, if the caller has made room up to there.

        Another thread that stops the log takes its room away: a run that began with room is written whole all the same.
        """
        placed: list[tuple[int, int]] = []
        done = placed.append
        log, pending = self.log, self._pending
        store_host, body_bytes_max = self.store_host, self._body_bytes_max
        if now_ms < self._last_time_ms:
            now_ms = self._last_time_ms
        else:
            self._last_time_ms = now_ms
        crc32, pack = checksums.crc32, _PACK_V4
        position, limit = log.written, log.limit if limit is None else limit
        for queue, body, rest, code, unique_id, keys, tags, flag, sys_flag, born_time_ms, reconsume_times in messages:
            # Room first, as in `append`; the order of the writes is the same too.
            body_length = len(body)
            size = FIXED_BYTES_V4 + body_length + len(rest)
            at = queue.at
            end = position + size
            if at >= queue.limit or end > limit:
                try:
                    if at >= queue.limit:
                        at = queue.make_room()
                    if end > limit:
                        log.make_room(size)
                        position, limit = log.written, log.limit
                        end = position + size
                except (StoreError, MessageIllegal):
                    break
            if body_length > body_bytes_max:
                break
            queue_offset = queue.next
            start = position - log.base
            if isinstance(body, bytes):
                log.map[start + FIXED_BYTES_V4 : start + size] = body + rest
            else:
                log.map[start + FIXED_BYTES_V4 + body_length : start + size] = rest
                log.map[start + FIXED_BYTES_V4 : start + FIXED_BYTES_V4 + body_length] = body
            pack(
                log.map, start, size, MAGIC_V1, crc32(body) & CRC_MASK, queue.queue_id, flag, queue_offset, position,
                sys_flag & _HOSTS_V4, born_time_ms, born_host, now_ms, store_host, reconsume_times, 0, body_length,
            )  # fmt: skip
            _PACK_UNIT(queue.map, at, position, size, code)
            queue.at = at + UNIT_BYTES
            queue.next = queue_offset + 1
            queue.stored_bytes += size
            if pending is not None:
                pending.append((queue.keys, position, now_ms, unique_id, keys, tags))
            log.written = end
            done((position, queue_offset))
            position = end
        return placed

    def _append_rare(
        self,
        queue: ConsumeQueue,
        message: BatchMessage,
        now_ms: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_position: int,
        limit: int | None = None,
    ) -> tuple[int, int, int]:
        """`append` for IPv6 hosts, topics over 127 bytes, records that enter no queue or light ones too, and queues
        that are `rare`.

        The caller has looked at the sizes. `limit`: see `_append_run`.
        """
        body, properties, tags_code, unique_id, keys, tags, flag = message
        queued = enters_queue(sys_flag)
        light: list[ConsumeQueue] = []
        if self._light and light_queues.MARK in properties:
            light = self._light_queues(queue.topic, properties) if enters_light(sys_flag) else []
            units = [light_queues.LightUnit(each.topic, each.next) for each in light]
            properties = light_queues.with_offsets(properties, units)
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise self._too_large(queue, len(body), len(properties))
        if self.settings.append_record_crc:
            properties = record_crc.with_room(properties)
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise self._too_large(queue, len(body), len(properties))
        pending = self._pending
        if queued:
            queue.make_room_for(1)
        log = self.log
        host_bits = record_layout.host_flags(born_host, self.store_host)
        v6_bytes = record_layout.FIXED[host_bits].size - FIXED_BYTES_V4
        size = queue.fixed_bytes + v6_bytes + len(body) + len(properties)
        if log.written + size > (log.limit if limit is None else limit):
            log.make_room(size)
        position = log.written
        tags_code = queue.unit_code(tags_code, now_ms)
        self._last_time_ms = now_ms = max(now_ms, self._last_time_ms)
        queue_offset = queue.next if queued else 0
        encoded = record.encode(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            position=position,
            body=bytes(body),
            properties=properties,
            flag=flag,
            sys_flag=sys_flag,
            born_time_ms=born_time_ms,
            born_host=born_host,
            store_time_ms=now_ms,
            store_host=self.store_host,
            reconsume_times=reconsume_times,
            prepared_position=prepared_position,
        )
        if self.settings.append_record_crc:
            encoded = record_crc.sealed(encoded)
        start = position - log.base
        log.map[start + SIZE_BYTES : start + size] = encoded[SIZE_BYTES:]
        log.map[start : start + SIZE_BYTES] = encoded[:SIZE_BYTES]
        if queued:
            queue.put(position, size, tags_code, now_ms, inner_count(sys_flag, properties))
            queue.stored_bytes += size
            for each in light:
                each.put(position, size, tags_code, now_ms)
                self.light_grown.append(each.name)
        if pending is not None and enters_index(sys_flag):
            pending.append((queue.keys, position, now_ms, unique_id, keys, tags))
        log.written = position + size
        return position, queue_offset, position + size

    def _light_queues(self, topic: bytes, properties: bytes, count: int = 1) -> list[ConsumeQueue]:
        """Return the light queues of a message, each with room for `count` units; names that no folder can have are
        left out.

        Raises StoreFull, StoreUnwritable.
        """
        consume_queues, found = self.consume_queues, []
        for name in light_queues.wanted(topic, properties):
            if consume_queues.can_have(name):
                if self.before_light is not None:
                    self.before_light(name.decode())
                queue = consume_queues.make(name, light_queues.QUEUE_ID)
                queue.make_room_for(count)
                found.append(queue)
        return found

    def _light_room(self, topic: bytes, messages: Sequence[BatchMessage]) -> int:
        """Make room in light queues for a batch; return by how much its properties may grow, 0 if there are none.

        Raises as `_light_queues`.
        """
        added = 0
        for message in messages if self._light else ():
            if light_queues.MARK in message.properties:
                count = len(self._light_queues(topic, message.properties, len(messages)))
                added += len(light_queues.OFFSETS) + 3 + 20 * count
        return added

    def _too_large(self, queue: ConsumeQueue, body_bytes: int, properties_bytes: int) -> MessageIllegal:
        what = (
            f"properties of {properties_bytes} bytes, at most {PROPERTIES_BYTES_MAX} are stored"
            if properties_bytes > PROPERTIES_BYTES_MAX
            else f"a body of {body_bytes} bytes, at most {self.settings.message_bytes_max} (maxMessageSize) are stored"
        )
        return MessageIllegal(f"message for topic {queue.name!r} has {what}", topic=queue.name)

    def append_batch(
        self,
        topic: bytes,
        queue_id: int,
        messages: Sequence[BatchMessage],
        now_ms: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> list[tuple[int, int, int]]:
        """Store messages one after another in one queue and one log file, or none of them.

        Returns (physical offset, queue offset, position after the record) of each. Raises as `append` does.
        """
        queue = self._queues_by_bytes.get((topic, queue_id)) or self.consume_queues.make(topic, queue_id)
        host_bits = record_layout.host_flags(born_host, self.store_host)
        fixed_bytes = record_layout.record_bytes(0, len(topic), 0, host_bits)
        total = fixed_bytes * len(messages)
        crc_bytes = record_crc.BYTES + 1 if self.settings.append_record_crc else 0
        for message in messages:
            body_length, properties_length = len(message.body), len(message.properties) + crc_bytes
            if body_length > self.settings.message_bytes_max or properties_length > PROPERTIES_BYTES_MAX:
                raise self._too_large(queue, body_length, properties_length)
            total += body_length + properties_length
        light_bytes = self._light_room(topic, messages)
        total += light_bytes
        # Keys are written before the batch, never within it: a full disk must not end it half-way.
        if self.index_service is not None and len(self.index_service.pending) + len(messages) > PENDING_MAX:
            self.index_service.write_pending()
        queue.make_room_for(len(messages))
        if self.log.written + total > self.log.limit:
            self.log.make_room(total)
        limit = self.log.written + total
        if (
            host_bits
            or queue.rare
            or queue.delay_ms is not None
            or light_bytes
            or sys_flag & sysflags.TRANSACTION_PREPARED
        ):
            return [
                self._append_rare(queue, m, now_ms, sys_flag, born_time_ms, born_host, reconsume_times, 0, limit)
                for m in messages
            ]
        suffix, properties_field = queue.suffix, record_layout.properties_field
        run = [
            (
                queue, m.body, suffix + properties_field(m.properties), m.tags_code, m.unique_id, m.keys, m.tags,
                m.flag, sys_flag, born_time_ms, reconsume_times,
            )
            for m in messages
        ]  # fmt: skip
        placed = self._append_run(run, now_ms, born_host, limit)
        ends = [position for position, _ in placed[1:]] + [self.log.written]
        return [(position, offset, end) for (position, offset), end in zip(placed, ends, strict=True)]

    def takes_layouts(self, topic: bytes, queue_id: int) -> bool:
        """Tell whether `append_layout` can write to this queue, which is made if there is none. Raises StoreError."""
        if (topic, queue_id) not in self._queues_by_bytes:
            self.consume_queues.make(topic, queue_id)
        return self.plain_queue(topic, queue_id) is not None

    def append_layout(
        self,
        topic: bytes,
        queue_id: int,
        layout: batch_append.Batch,
        dispatched: tuple[NDArray[np.int64], BatchKeys],
        now_ms: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        commits: batch_append.Commits | None = None,
    ) -> tuple[NDArray[np.int64], int, int]:
        """Store a batch from its layout, as `append_batch` does from messages, where `takes_layouts`; takes some 0.5 us
        a message.

        `dispatched`: the messages' tags codes for the queue, and their keys for the index. `commits`: for a batch of
        commits, what of their half messages a record needs. Returns (physical offsets, first queue offset, position
        after the last record). Raises as `append` does; nothing is stored then.
        """
        codes, keys = dispatched
        queue = self._queues_by_bytes[topic, queue_id]
        for lengths, bytes_max in (
            (layout.body_bytes, self._body_bytes_max),
            (layout.properties_bytes, PROPERTIES_BYTES_MAX),
        ):
            if int(lengths.max()) > bytes_max:
                row = int(lengths.argmax())
                raise self._too_large(queue, int(layout.body_bytes[row]), int(layout.properties_bytes[row]))
        log, count = self.log, layout.message_count
        sizes = batch_append.sizes(layout, len(queue.suffix))
        total = int(sizes.sum())
        index = self.index_service
        if index is not None and (index.ready_count >= READY_MAX or len(index.pending) >= PENDING_MAX):
            index.write_pending()
        queue.make_room_for(count)
        if log.written + total > log.limit:
            log.make_room(total)
        self._last_time_ms = now_ms = max(now_ms, self._last_time_ms)
        begin, first = log.written, queue.next
        head = record_layout.FIXED_V4.pack(
            0, MAGIC_V1, 0, queue_id, 0, 0, 0, sys_flag & _HOSTS_V4, born_time_ms, born_host, now_ms, self.store_host,
            0, 0, 0,
        )  # fmt: skip
        positions = begin + np.cumsum(sizes) - sizes
        log.put(begin, batch_append.records(layout, queue.suffix, head, positions, first, commits))
        queue.put_all(positions, sizes, codes)
        queue.stored_bytes += total
        if index is not None:
            index.add_batch(queue.keys, keys, positions, now_ms)
        log.written = begin + total
        return positions, first, begin + total
