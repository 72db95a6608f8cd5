"""Checks the rows of an Arrow batch, column by column. Rule: a row that RocketMQ would refuse is an error before it
leaves.

No Python object is made per row: Arrow checks and joins whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rocketspark.client import validators
from rocketspark.errors import MessageIllegal
from rocketspark.protocol.message import properties
from rocketspark.tables.option_values import COMMIT_PREFIX

# The most rows and bytes of bodies in a part of an Arrow batch, so that the memory for it is bounded.
PART_ROWS_MAX = 16_384
PART_BYTES_MAX = 8 << 20
# Columns whose text goes into the properties, in stored order, with the property's name.
_TEXTS = {"tag": properties.TAGS, "keys": properties.KEYS, "shardingKey": properties.SHARDING_KEY}
# Columns that ask for a later delivery, with the property's name.
_DELAYS = {
    "delayLevel": properties.DELAY,
    "delayMs": properties.TIMER_DELAY_MS,
    "deliverTime": properties.TIMER_DELIVER_MS,
}
_MARKS = "[\x01\x02]"
# The characters that Python counts as blanks, besides the space.
_BLANKS = r"\t-\r\x{1c}-\x{1f}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"


@cache
def _system_names() -> pa.Array:
    # Not with the module: pyarrow's `array` imports pandas, 0.2 s that a read need not wait.
    return pa.array(sorted(properties.SYSTEM_NAMES))


def parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return the batch in parts of bounded size, in order."""
    at, count = 0, batch.num_rows
    body = batch.column(batch.schema.get_field_index("body"))
    lengths = pc.binary_length(body).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    while at < count:
        before = int(ends[at - 1]) if at else 0
        end = int(np.searchsorted(ends, before + PART_BYTES_MAX, "right"))
        end = min(max(end, at + 1), at + PART_ROWS_MAX, count)
        yield batch.slice(at, end - at)
        at = end


class Text(NamedTuple):
    """The value of a property for all rows: the text `before`, which they share, followed by each row's text in
    `column`, if there is one.
    """

    before: str
    column: pa.Array | None = None


def _check_target(topic: str) -> str:
    """Return a topic if rows may be sent to it. Raises MessageIllegal, also for a commit topic of exactly-once writes:
    one row among its records makes them unreadable.
    """
    if topic.startswith(COMMIT_PREFIX):
        raise MessageIllegal(f"topic {topic!r} holds the records of exactly-once writes: name another")
    return validators.check_target(topic)


class CheckedRows:
    """The checked rows of an Arrow batch, as columns. Raises MessageIllegal.

    `bodies`: binary; `topics`: text, None if the option topic names the topic; `texts`: columns that become properties,
    by the property's name, in stored order, null where a row has none; `pairs`: the rows' own properties in stored
    form, or None; `flags`: int32, or None; `delayed`: which rows ask for a later delivery, or None; `queue_ids`:
    bigint, or None; `brokers`: text, or None. `leave_out`: names of properties that `pairs` goes without.
    """

    def __init__(self, batch: pa.RecordBatch, topic: str | None, leave_out: Sequence[str] = ()) -> None:
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.count = batch.num_rows
        self.topic = None if topic is None else _check_target(topic)
        self.bodies = self._bodies()
        self.topics = self._topics() if topic is None else None
        self.texts: dict[str, pa.Array | Text] = {}
        for name, stored in _TEXTS.items():
            if (column := self._text(name)) is not None:
                self.texts[stored] = column
        self.delayed = self._delays()
        self.pairs = self._pairs(leave_out)
        flags = self._column("flag", pa.int32())
        self.flags: NDArray[np.int32] | None = None if flags is None else flags.fill_null(0).to_numpy()
        self.queue_ids = self._column("queueId", pa.int64())
        self.brokers = self._column("broker", pa.string())

    def _column(self, name: str, kind: pa.DataType) -> pa.Array | None:
        """Return the column as `kind`; None if it is not there, or all null."""
        column = self._columns.get(name)
        if column is None or column.null_count == len(column):
            return None
        return self._valid(name, column) if pa.types.is_string(kind) else column.cast(kind)

    @staticmethod
    def _valid(name: str, column: pa.Array) -> pa.StringArray:
        """Return the column as valid text, which Spark does not promise: a cast of bytes may be none."""
        try:
            return column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            raise MessageIllegal(f"a row's {name} is no UTF-8 text; only a body may be of any bytes") from None

    def _bodies(self) -> pa.BinaryArray:
        column = self._columns["body"]
        if column.null_count:
            raise MessageIllegal("a row has no body: it is null; leave such rows out")
        column = column.cast(pa.binary())
        if self.count:
            sizes = pc.min_max(pc.binary_length(column))
            if sizes["min"].as_py() == 0:
                raise MessageIllegal("a row's body is empty; RocketMQ takes none such: leave such rows out")
            if (longest := sizes["max"].as_py()) > validators.BODY_BYTES_MAX:
                raise MessageIllegal(
                    f"a row's body has {longest} bytes; at most {validators.BODY_BYTES_MAX} are allowed"
                )
        return column

    def _topics(self) -> pa.Array:
        column = self._valid("topic", self._columns["topic"])
        if column.null_count:
            raise MessageIllegal("a row's topic is null: name it, or set the option topic")
        for name in pc.unique(column).to_pylist():
            _check_target(name)
        return column

    def _text(self, name: str) -> pa.Array | None:
        column = self._columns.get(name)
        if column is None or column.null_count == len(column):
            return None
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            keys = self._valid(name, pc.list_flatten(column))
            if keys.null_count or pc.any(pc.match_substring_regex(keys, f"^$|[ {_BLANKS}]")).as_py():
                raise MessageIllegal(
                    "a row's keys hold a null, an empty one or one with a blank: RocketMQ parts keys by blanks"
                )
            column = pc.binary_join(column.cast(pa.list_(pa.string())), " ")
        column = self._valid(name, column)
        if pc.any(pc.match_substring_regex(column, _MARKS)).as_py():
            raise MessageIllegal(f"a row's {name} holds the character 0x01 or 0x02, which RocketMQ does not allow")
        if name == "keys" and pc.any(pc.match_substring_regex(column, f"^ | $|  |[{_BLANKS}]")).as_py():
            # Blanks of other kinds, or too many: such texts are rare.
            split = [None if text is None else " ".join(text.split()) for text in column.to_pylist()]
            column = pa.array(split, pa.string())
        empty = pc.equal(column, "")
        if pc.any(empty).as_py():
            column = pc.if_else(empty, pa.scalar(None, pa.string()), column)
        return None if column.null_count == len(column) else column

    def _delays(self) -> NDArray[np.bool_] | None:
        """Add the properties that ask for a later delivery; return which rows have one."""
        asked = np.zeros(self.count, np.int8)
        for name, stored in _DELAYS.items():
            if self._columns.get(name) is not None and pa.types.is_timestamp(self._columns[name].type):
                column = self._column(name, pa.timestamp("us", "UTC"))
                # Upwards: not before its time.
                values = None if column is None else -((-_whole(column)) // 1000)
            else:
                column = self._column(name, pa.int64())
                values = None if column is None else _whole(column)
            if column is None or values is None:
                continue
            if (values < 0).any():
                least = int(values.min())
                if name == "deliverTime":
                    raise MessageIllegal(
                        "a row's deliverTime is before 1970: a past one is delivered at once, null too"
                    )
                raise MessageIllegal(f"a row's {name} is {least}: 0 or null is none, more is a delay")
            given = values > 0
            if given.any():
                asked += given
                self.texts[stored] = pa.array(values, mask=~given).cast(pa.string())
        if not asked.any():
            return None
        if asked.max() > 1:
            raise MessageIllegal("a row asks for several of delayLevel, delayMs and deliverTime: give it one")
        return asked > 0

    def _pairs(self, leave_out: Sequence[str]) -> pa.BinaryArray | None:
        """Return the rows' own properties as stored. RocketMQ's names, as a read gives them, and nulls are left out."""
        column = self._columns.get("properties")
        if column is None or column.null_count == len(column):
            return None
        if pa.types.is_map(column.type):
            names, values, offsets = column.keys, column.items, column.offsets.to_numpy()
        else:
            raise MessageIllegal(f"the column properties is {column.type}, not a map of texts")
        first = int(offsets[0])
        names = self._valid("properties", names.slice(first, int(offsets[-1]) - first))
        values = self._valid("properties", values.slice(first, int(offsets[-1]) - first))
        offsets = offsets - first
        hidden_names = _system_names()
        if leave_out:
            hidden_names = pa.concat_arrays([hidden_names, pa.array(leave_out, pa.string())])
        kept = pc.and_(pc.is_valid(values), pc.invert(pc.is_in(names, value_set=hidden_names)))
        if column.null_count:
            hidden = np.repeat(column.is_null().to_numpy(zero_copy_only=False), np.diff(offsets))
            kept = pc.and_(kept, pa.array(~hidden))
        keeps = kept.to_numpy(zero_copy_only=False)
        if not keeps.any():
            return None
        names, values = names.filter(kept), values.filter(kept)
        if pc.any(pc.equal(values, "")).as_py():
            name = names.filter(pc.equal(values, ""))[0].as_py()
            raise MessageIllegal(f"a row's property {name!r} has no value; leave it out")
        for column_of in (names, values):
            wrong = pc.match_substring_regex(column_of, "^$|" + _MARKS)
            if pc.any(wrong).as_py():
                name = names.filter(wrong)[0].as_py()
                raise MessageIllegal(
                    f"a row's property {name!r}: names and values may not hold 0x01 and 0x02, nor may a name be empty"
                )
        ends = np.concatenate(([0], np.cumsum(keeps)))[offsets]
        return regrouped(_flat(names, values), ends)


def _flat(names: pa.Array, values: pa.Array) -> pa.BinaryArray:
    """Return each name with its value as they are stored."""
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(
        names.cast(pa.binary()), pa.scalar(b"\x01"), values.cast(pa.binary()), pa.scalar(b"\x02"), nothing
    )


def regrouped(column: pa.BinaryArray, ends: NDArray[np.int64]) -> pa.BinaryArray:
    """Join neighbouring values of a column: row i of the result is made of the rows `ends[i]` to `ends[i + 1]`, which
    are not copied.
    """
    offsets = offsets_of(column)[ends].astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(offsets), column.buffers()[2] or pa.py_buffer(b"")]
    )


def offsets_of(column: pa.BinaryArray) -> NDArray[np.int32]:
    """Return the position in the data buffer of a binary or text column at which each row begins, and at last the end
    of the last row.
    """
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _whole(column: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = column.cast(pa.int64()).fill_null(0).to_numpy()
    return found
