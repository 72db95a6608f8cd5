"""Rows to messages as a batch send holds them. Rule: a row that RocketMQ would refuse is an error before it leaves.

One lean loop makes all rows of an Arrow batch: some 2 us each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.client import validate
from rocketspark.errors import MessageIllegal
from rocketspark.model import Message
from rocketspark.protocol import properties
from rocketspark.protocol.message_ids import unique_ids

# size magic crc flag bodyLength, as in protocol.batch.
_HEAD = struct.Struct(">iiiii")
# Spark columns whose text goes into the properties, with the property's name.
_TEXT_PROPERTIES = {"tag": properties.TAGS, "keys": properties.KEYS, "shardingKey": properties.SHARDING_KEY}


class Rows:
    """The rows of an Arrow batch, checked. Columns that the batch lacks are None.

    `topics`, `sharding_keys`, `brokers`, `queue_ids`, `delay_levels`: a value or None per row.
    """

    def __init__(self, batch: pa.RecordBatch, topic: str | None) -> None:
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.count = batch.num_rows
        self.bodies = self._bodies()
        self.topics = self._topics(topic)
        self._texts = {name: self._text(name) for name in _TEXT_PROPERTIES if name in self._columns}
        self._pairs = self._list("properties")
        self._flags = self._list("flag")
        self.sharding_keys = self._texts.get("shardingKey")
        self.brokers = self._list("broker") if "queueId" in self._columns else None
        self.queue_ids = self._list("queueId")
        self.delay_levels = self._list("delayLevel")

    def _list(self, name: str) -> list[Any] | None:
        column = self._columns.get(name)
        return None if column is None or column.null_count == len(column) else column.to_pylist()

    def _bodies(self) -> list[bytes]:
        column = self._columns["body"]
        if column.null_count:
            raise MessageIllegal("a row has no body: it is null; leave such rows out")
        if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
            column = column.cast(pa.binary())
        if self.count and pc.min(pc.binary_length(column)).as_py() == 0:
            raise MessageIllegal("a row's body is empty; RocketMQ takes none such: leave such rows out")
        longest = pc.max(pc.binary_length(column)).as_py() if self.count else 0
        if longest > validate.BODY_BYTES_MAX:
            raise MessageIllegal(f"a row's body has {longest} bytes; at most {validate.BODY_BYTES_MAX} are allowed")
        bodies: list[bytes] = column.to_pylist()
        return bodies

    def _topics(self, topic: str | None) -> list[str] | str:
        if topic is not None:
            return validate.check_target(topic)
        topics = self._columns["topic"].to_pylist()
        for name in set(topics):
            if name is None:
                raise MessageIllegal("a row's topic is null: name it, or set the option topic")
            validate.check_target(name)
        return list(topics)

    def _text(self, name: str) -> list[str | None] | None:
        column = self._columns[name]
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            keys = column.flatten().cast(pa.string())
            if keys.null_count or pc.any(pc.match_substring_regex(keys, r"^$|\s")).as_py():
                raise MessageIllegal(
                    "a row's keys hold a null, an empty one or one with a blank: RocketMQ parts keys by blanks"
                )
            column = pc.binary_join(column.cast(pa.list_(pa.string())), " ")
        column = column.cast(pa.string())
        if column.null_count == len(column):
            return None
        if pc.any(pc.match_substring_regex(column, "[\x01\x02]")).as_py():
            raise MessageIllegal(f"a row's {name} holds the character 0x01 or 0x02, which RocketMQ does not allow")
        texts: list[str | None] = column.to_pylist()
        return texts

    def _properties(self, row: int) -> dict[str, str]:
        """The row's own properties; RocketMQ's names, as a read gives them, are left out."""
        pairs = self._pairs[row] if self._pairs is not None else None
        return {k: v for k, v in pairs or () if v is not None and k not in properties.SYSTEM_NAMES}

    def items(self) -> Iterator[bytes]:
        """Each row as an item of a batch send's body. Raises MessageIllegal for properties that break a rule."""
        texts = [(f"{_TEXT_PROPERTIES[name]}\x01", column) for name, column in self._texts.items() if column]
        next_id, pack = unique_ids.next, _HEAD.pack
        for row, body in enumerate(self.bodies):
            text = f"UNIQ_KEY\x01{next_id()}\x02WAIT\x01true\x02"
            for name, column in texts:
                if value := column[row]:
                    text = f"{text}{name}{value}\x02"
            if self._pairs is not None and (own := self._properties(row)):
                for name, value in own.items():
                    if not value:
                        raise MessageIllegal(f"a row's property {name!r} has no value; leave it out")
                text += properties.encode(own)
            stored = text.encode()
            if len(stored) > properties.BYTES_MAX:
                raise MessageIllegal(
                    f"a row's properties, keys and tag take {len(stored)} bytes; {properties.BYTES_MAX} are allowed"
                )
            flag = self._flags[row] or 0 if self._flags is not None else 0
            head = pack(22 + len(body) + len(stored), 0, 0, flag, len(body))
            yield b"".join((head, body, len(stored).to_bytes(2, "big"), stored))

    def message(self, row: int) -> Message:
        """One row as a message of its own, for what a batch cannot hold."""
        text = {name: column[row] for name, column in self._texts.items() if column}
        return Message(
            topic=self.topics if isinstance(self.topics, str) else self.topics[row],
            body=self.bodies[row],
            tag=text.get("tag") or None,
            keys=(text.get("keys") or "").split(),
            properties=self._properties(row),
            sharding_key=text.get("shardingKey") or None,
            delay_level=self.delay_levels[row] or 0 if self.delay_levels else 0,
            flag=self._flags[row] or 0 if self._flags else 0,
        )
