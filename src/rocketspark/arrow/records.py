"""Records of the log, as brokers send or store them, to Arrow columns without a Python object per message.

Rule: rows equal what `protocol.record.decode_messages` makes of the same bytes; only wanted columns are decoded. A
batch of records for which there is no quick way goes through `decode_messages`: one with compressed or broken inner
batches, with a property named twice in one row, or with texts that are no UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.arrow.decode_request import DecodeFindings, DecodeRequest, RowFilter
from rocketspark.arrow.message_columns import COLUMNS, constant, gather, numbers, schema_of, times, times_us
from rocketspark.arrow.properties import Properties, split_keys
from rocketspark.arrow.row_by_row import batch_of, slow_batches
from rocketspark.errors import RecordError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import compression, properties, record_layout, sysflags
from rocketspark.protocol.message.message_ids import unpack_host
from rocketspark.protocol.message.record_layout import HOST_V4_BYTES, HOST_V6_BYTES, PLACES, Buffer, Ints
from rocketspark.protocol.message.record_places import INNER, Items, Records, Span, at, find_records, items_of
from rocketspark.protocol.message.record_rows import RecordRows

# The bytes of a host as one value: those of IPv4 compare like numbers.
_HOST_V4, _HOST_V6 = f"<u{HOST_V4_BYTES}", f"V{HOST_V6_BYTES}"
_HEX = np.frombuffer(b"".join(b"%02X" % i for i in range(256)), np.uint16)


def batches(
    buffer: Buffer, asked: DecodeRequest, spans: Sequence[Span] | None = None, *, starts: Ints | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a buffer as rows; more than one batch only where bodies inflate to much.

    Args:
        asked: the columns and rows that are wanted.
        spans: byte ranges [start, end) of whole records, ascending; all of the buffer by default.
        starts: where each record begins, ascending, if the caller knows; then there are no spans.

    Raises RecordError for bytes that are no records, and what `asked.findings` raises.
    """
    if starts is None:
        found = [find_records(buffer, span) for span in ([(0, len(buffer))] if spans is None else spans)]
        starts = np.concatenate(found) if found else np.zeros(0, np.int64)
    rows = _Rows(buffer, starts, asked.broker, asked.topic)
    rows.check()
    try:
        rows = rows.unwrapped().within(asked)
        chosen = rows.chosen(asked.wanted)
        arrays = {name: chosen.column(name) for name in asked.columns if name != "body"}
    except (_NoQuickWay, pa.ArrowInvalid):
        yield from slow_batches(buffer, starts.tolist(), asked)
        return
    if asked.whole:
        _tell_missing(rows.offsets, asked)
    spoiled = chosen.with_wrong_crc(asked.findings) if asked.check_crc else {}
    schema = schema_of(tuple(asked.columns))
    if "body" not in asked.columns:
        yield pa.RecordBatch.from_arrays([arrays[name] for name in asked.columns], schema=schema)
        return
    for first, bodies in chosen.bodies(asked, spoiled):
        count = len(bodies)
        made = [bodies if name == "body" else arrays[name].slice(first, count) for name in asked.columns]
        yield pa.RecordBatch.from_arrays(made, schema=schema)


def decode(
    buffer: Buffer, spans: Sequence[Span] | None = None, columns: Sequence[str] = tuple(COLUMNS), **how: Any
) -> pa.RecordBatch:
    """Decode the records of a buffer into one batch. `spans`: byte ranges of whole records, by default all of the
    buffer; `how`: further fields of a DecodeRequest.

    Raises RecordError, also for bodies that inflate to more than fits into one batch.
    """
    asked = DecodeRequest(columns, **how)
    found = batches(buffer, asked, spans)
    only = next(found)
    if next(found, None) is not None:
        most = asked.inflated_bytes_max
        raise RecordError(f"the bodies inflate to more than {most} bytes: decode them in several batches")
    return only


def table(
    parts: Sequence[tuple[RecordRows, str, str] | Sequence[ReceivedMessage]], columns: Sequence[str] | None = None
) -> pa.Table:
    """Return one table of records and of messages, in their order. Raises KeyError for a name that is no column.

    `parts`: rows of plain records with their broker and topic, or messages; `columns`: names of COLUMNS, all unless
    given.
    """
    names = tuple(COLUMNS if columns is None else columns)
    schema = schema_of(names)
    made: list[pa.RecordBatch] = []
    for part in parts:
        if isinstance(part, tuple):
            rows, broker, topic = part
            made += batches(rows.buffer, DecodeRequest(names, broker, topic), starts=rows.starts)
        else:
            made.append(batch_of(part, names))
    return pa.Table.from_batches(made, schema)


def _tell_missing(offsets: Ints, asked: DecodeRequest) -> None:
    """Report the offsets of the range that are not among ascending offsets."""
    first, end = asked.offset_first, asked.offset_end
    if len(offsets) == end - first:
        return
    edges = np.concatenate(([first - 1], offsets, [end]))
    for place in np.flatnonzero(np.diff(edges) > 1).tolist():
        asked.findings.missing(int(edges[place]) + 1, int(edges[place + 1]))


class _NoQuickWay(Exception):
    """Raised for rows that have to be decoded one by one."""


def _replaced(stored: pa.Array, where: Ints, values: list[bytes | None]) -> pa.Array:
    """Return `stored` with `values` in the rows where `where` is true."""
    made = pa.array(values, pa.binary())
    return made if len(made) == len(stored) else pc.replace_with_mask(stored, pa.array(where), made)


class _Rows(RecordRows):
    """Rows whose columns are made as Arrow arrays."""

    def __init__(
        self, buffer: Buffer, starts: Ints, broker: str, topic: str | None, items: Items | None = None
    ) -> None:
        super().__init__(buffer, starts, items)
        self._broker = broker
        self._topic = topic

    def _of(self, starts: Ints, items: Items | None) -> _Rows:
        return _Rows(self._buffer, starts, self._broker, self._topic, items)

    def unwrapped(self) -> _Rows:
        """Return the rows with a row for each message of an inner batch. Raises _NoQuickWay."""
        flags = self.sys_flags
        inner = flags & INNER == INNER
        if not inner.any():
            return self
        if (flags[inner] & sysflags.COMPRESSED).any():
            raise _NoQuickWay
        body, body_end, *_ = self._parts
        stored, end = self._properties_at
        bases = self._properties.find(properties.INNER_BASE).to_pylist()
        flag, crc = self.number("flag"), self.number("crc")
        found = Records(inner, body, body_end, stored, end, self.offsets, flag, flags, crc, bases)
        items = items_of(self._buffer, found)
        if items is None:
            raise _NoQuickWay
        return self._of(self._starts[items.records], items)

    def within(self, asked: DecodeRequest) -> _Rows:
        """Return the rows within the offsets and log positions asked for; only ascending ones, if so asked."""
        offsets = self.offsets
        outside = (offsets < asked.offset_first) | (offsets >= asked.offset_end)
        if asked.position_end is not None:
            outside |= self.number("position") >= asked.position_end
        if asked.ascending and len(offsets) > 1:
            tops = np.maximum.accumulate(np.where(outside, asked.offset_first - 1, offsets))
            outside[1:] |= offsets[1:] <= tops[:-1]
        return self.only(~outside)

    def chosen(self, wanted: RowFilter) -> _Rows:
        """Return the rows that are wanted."""
        rows = self
        if not wanted.any_time:
            stored = times_us(self.number("store_time_ms"))
            rows = rows.only((stored >= wanted.stored_us[0]) & (stored <= wanted.stored_us[1]))
        if wanted.tags is not None:
            rows = rows.only(np.asarray(pc.is_in(rows.tag(), pa.array(sorted(wanted.tags), pa.string()))))
        if wanted.key is not None:
            rows = rows.only(rows.with_key(wanted.key))
        if wanted.accepts_record is not None:
            rows = rows.only(rows.accepted(wanted.accepts_record))
        return rows

    def with_key(self, key: str) -> Ints:
        """Return, for each row, whether it has the key."""
        found = self._properties.find(properties.KEYS)
        # Most have no such text in their keys at all; the others are cut at blanks.
        holding = np.array(pc.fill_null(pc.match_substring(found, key), False), bool)
        places = np.flatnonzero(holding)
        cut = split_keys(found.take(pa.array(places))).to_pylist()
        holding[places] = [key in keys for keys in cut]
        return holding

    def accepted(self, accepts: Callable[[bytes], bool]) -> Ints:
        """Return, for each row, whether a test accepts its stored properties, which takes some us a row."""
        view = memoryview(self._buffer)
        places = zip(*[part.tolist() for part in self._properties_at], strict=True)
        return np.array([accepts(bytes(view[start:end])) for start, end in places], bool)

    def with_wrong_crc(self, findings: DecodeFindings) -> dict[int, bytes | None]:
        """Return the rows whose body does not match its CRC, and the bytes in its place."""
        body, body_end = self._bodies_at
        return {
            i: findings.spoiled(
                int(self.offsets[i]), f"the body's CRC is not {crc}", bytes(self._bytes[body[i] : body_end[i]])
            )
            for i, crc in self.wrong_crcs()
        }

    # -- columns -------------------------------------------------------------------------------------------------

    def column(self, name: str) -> pa.Array:
        """Return one column of the rows."""
        make: Callable[[_Rows], pa.Array] | None = _MADE_BY.get(name)
        if make is not None:
            return make(self)
        arrow_kind = COLUMNS[name]
        return numbers(self.number(_NUMBERS[name]).astype(arrow_kind.to_pandas_dtype()), arrow_kind)

    def topic(self) -> pa.Array:
        if self._topic is not None:
            return constant(self._topic, len(self))
        if self._items is not None:
            # Rows of one batch share its text, and slices may not overlap.
            records, of_rows = np.unique(self._starts, return_inverse=True)
            return _Rows(self._buffer, records, self._broker, None).topic().take(pa.array(of_rows))
        _, _, topic, topic_end, _ = self._parts
        return gather(self._buffer, topic, topic_end, pa.string())

    def broker(self) -> pa.Array:
        return constant(self._broker, len(self))

    def bodies(self, asked: DecodeRequest, given: Mapping[int, bytes | None]) -> Iterator[tuple[int, pa.Array]]:
        """Return runs of inflated bodies: (first row, bodies), one at least. `given`: bodies to take for some rows."""
        body, body_end = self._bodies_at
        stored = gather(self._buffer, body, body_end, pa.binary())
        packed = (self.sys_flags & sysflags.COMPRESSED) != 0
        if given:
            packed[list(given)] = True
        if not packed.any():
            yield 0, stored
            return
        view = memoryview(self._buffer)
        first = size = 0
        held: list[bytes | None] = []
        for i in np.flatnonzero(packed).tolist():
            one = given[i] if i in given else self._inflated(i, view[body[i] : body_end[i]], asked.findings)
            size += len(one or b"")
            if held and size > asked.inflated_bytes_max:
                yield first, _replaced(stored[first:i], packed[first:i], held)
                first, size, held = i, len(one or b""), []
            held.append(one)
        yield first, _replaced(stored[first:], packed[first:], held)

    def _inflated(self, row: int, stored: memoryview, findings: DecodeFindings) -> bytes | None:
        data = bytes(stored)
        try:
            return compression.inflate(data, int(self.sys_flags[row]))
        except RecordError as e:
            return findings.spoiled(int(self.offsets[row]), str(e), data)

    @cached_property
    def _properties(self) -> Properties:
        return Properties(gather(self._buffer, *self._properties_at, pa.binary()))

    def properties(self) -> pa.Array:
        maps = self._properties.maps()
        if maps is None:
            raise _NoQuickWay
        return maps

    def tag(self) -> pa.Array:
        return self._properties.find(properties.TAGS)

    def keys(self) -> pa.Array:
        return split_keys(self._properties.find(properties.KEYS))

    def message_id(self) -> pa.Array:
        found = self._properties.find(properties.UNIQUE_ID)
        return pc.coalesce(found, self.offset_message_id()) if found.null_count else found

    def offset_message_id(self) -> pa.Array:
        return self._by_host_form("store_host", self._offset_ids)

    def _offset_ids(self, hosts: Ints, rows: Ints) -> pa.Array:
        width = hosts.dtype.itemsize
        raw = np.empty((len(rows), width + 8), np.uint8)
        raw[:, :width] = hosts.view(np.uint8).reshape(len(rows), width)
        raw[:, width:] = self.number("position")[rows].astype(">i8").view(np.uint8).reshape(-1, 8)
        text = _HEX[raw]
        digits = 2 * raw.shape[1]
        bounds = np.arange(0, len(rows) * digits + 1, digits, dtype=np.int32)
        return pa.StringArray.from_buffers(len(rows), pa.py_buffer(bounds), pa.py_buffer(text))

    def born_host(self) -> pa.Array:
        return self._by_host_form("born_host", self._host_texts)

    def store_host(self) -> pa.Array:
        return self._by_host_form("store_host", self._host_texts)

    def store_time(self) -> pa.Array:
        return times(self.number("store_time_ms"))

    def born_time(self) -> pa.Array:
        return times(self.number("born_time_ms"))

    def _host_texts(self, hosts: Ints, rows: Ints) -> pa.Array:
        # One host sent or stored them all, mostly.
        if len(rows) and (hosts == hosts[0]).all():
            return constant(unpack_host(hosts[:1].tobytes()), len(rows))
        kind = pa.binary(hosts.dtype.itemsize)
        coded = pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(hosts.view(np.uint8))]).dictionary_encode()
        return pa.array([unpack_host(host) for host in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)

    def _by_host_form(self, host: str, make: Callable[[Ints, Ints], pa.Array]) -> pa.Array:
        """Return `make(host bytes, rows)` of the rows with IPv4 and those with IPv6, put together."""
        v6 = (self.sys_flags & _HOST_FLAG[host]) != 0
        place = PLACES[host]
        places = self._starts + (place.at + self._v6_bytes(place.hosts))
        if not v6.any():
            return make(at(self._bytes, _HOST_V4)[places], np.arange(len(self)))
        made = []
        order = []
        for kind, rows in ((_HOST_V4, np.flatnonzero(~v6)), (_HOST_V6, np.flatnonzero(v6))):
            if len(rows):
                made.append(make(at(self._bytes, kind)[places[rows]], rows))
                order.append(rows)
        if len(made) == 1:
            return made[0]
        return pa.concat_arrays(made).take(pa.array(np.argsort(np.concatenate(order))))


_MADE_BY: dict[str, Callable[[_Rows], pa.Array]] = {
    "topic": _Rows.topic,
    "broker": _Rows.broker,
    "messageId": _Rows.message_id,
    "tag": _Rows.tag,
    "keys": _Rows.keys,
    "properties": _Rows.properties,
    "bornTime": _Rows.born_time,
    "storeTime": _Rows.store_time,
    "bornHost": _Rows.born_host,
    "storeHost": _Rows.store_host,
    "offsetMessageId": _Rows.offset_message_id,
}
# The columns that are a number of the record's fixed part as it is.
_NUMBERS = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "logPosition": "position",
}
_HOST_FLAG = {field.name: field.v6 for field in record_layout.FIELDS if field.v6}
