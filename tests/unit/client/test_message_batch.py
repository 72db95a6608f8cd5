"""A batch of messages as columns equals its messages, whichever way it was made, cut and looked at."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.client.consumer.test_fast_decode import RECORDS

from rocketspark import MessageBatch, MessageQueue, ReceivedMessage
from rocketspark.arrow.message_columns import COLUMNS
from rocketspark.arrow.row_by_row import VALUES
from rocketspark.client.message_batch import without_namespace
from rocketspark.errors import UsageError
from rocketspark.protocol.message import compression, record, sysflags

pytestmark = pytest.mark.shows(
    "MessageBatch: columns equal what messages give, of records with odd properties and hosts, cut, masked, pickled, "
    "as Arrow, pandas and Polars; what has to be decoded is",
)

QUEUE = MessageQueue("t", "b", 3)
OF_MESSAGE: dict[str, Callable[[ReceivedMessage], Any]] = {
    "bodies": lambda m: m.body,
    "topics": lambda m: m.topic,
    "tags": lambda m: m.tag,
    "keys": lambda m: m.keys,
    "message_ids": lambda m: m.message_id,
    "properties": lambda m: m.properties,
    "queue_ids": lambda m: m.queue_id,
    "queue_offsets": lambda m: m.queue_offset,
    "physical_offsets": lambda m: m.physical_offset,
    "stored_bytes": lambda m: m.stored_bytes,
    "born_times_ms": lambda m: m.born_time_ms,
    "store_times_ms": lambda m: m.store_time_ms,
    "flags": lambda m: m.flag,
    "reconsume_times": lambda m: m.reconsume_times,
}


def assert_equals(batch: MessageBatch, messages: list[ReceivedMessage]) -> None:
    """Columns first: they are of records that nobody made messages of."""
    for name, of_message in OF_MESSAGE.items():
        column = getattr(batch, name)
        found = column if isinstance(column, list) else column.tolist()
        assert found == [of_message(m) for m in messages], name
    assert len(batch) == len(messages)
    assert list(batch.queues) == list(dict.fromkeys(m.queue for m in messages))
    for queue in batch.queues:
        offsets = [m.queue_offset for m in messages if m.queue == queue]
        assert batch.first_offsets[queue] == min(offsets)
        assert batch.next_offsets[queue] == max(offsets) + 1
    assert [batch[at] for at in range(len(messages))] == messages


def of_queue(records: list[bytes]) -> bytes:
    """Records as one queue has them, with bodies that are as they were sent."""
    made = []
    for stored in records:
        fields = record.decode(stored)._replace(topic=b"t", queue_id=3)._asdict()
        sys_flag = fields["sys_flag"] & sysflags.TRANSACTION_MASK
        made.append(
            record.encode(
                **{name: value for name, value in fields.items() if name not in ("size", "version", "crc")}
                | {"sys_flag": sys_flag}
            )
        )
    return b"".join(made)


@pytest.mark.hypothesis
@settings(max_examples=150)
@given(records=st.lists(RECORDS, max_size=8), cut=st.data())
def test_columns_equal_messages(records: list[bytes], cut: st.DataObject) -> None:
    data = of_queue(records)
    messages = record.decode_messages(data, "b")
    made = MessageBatch.of_records(data, QUEUE)
    assert made is not None
    assert_equals(made, messages)
    count = len(messages)
    first, end = cut.draw(st.integers(-2, count + 1)), cut.draw(st.integers(-2, count + 1))
    mask = cut.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    step = cut.draw(st.sampled_from([1, 2, -1]))

    def fresh() -> MessageBatch:
        found = MessageBatch.of_records(data, QUEUE)
        assert found is not None
        return found

    assert_equals(fresh()[first:end:step], messages[first:end:step])
    masked = [m for m, wanted in zip(messages, mask, strict=True) if wanted]
    assert_equals(fresh()[mask], masked)
    assert_equals(fresh()[np.array(mask, bool)], masked)
    assert_equals(pickle.loads(pickle.dumps(fresh())), messages)
    # Of several parts, some of them messages, cut through all of them.
    several = MessageBatch.of_parts([fresh(), messages, fresh()[:0], fresh()])
    assert_equals(several, messages * 3)
    several = MessageBatch.of_parts([fresh(), messages, fresh()])
    assert_equals(several[first : count + max(end, 0)], (messages * 3)[first : count + max(end, 0)])
    several = MessageBatch.of_parts([messages, fresh()])
    assert_equals(several[mask + mask], masked * 2)
    assert fresh() == MessageBatch(messages)


@pytest.mark.hypothesis
@settings(max_examples=60)
@given(records=st.lists(RECORDS, min_size=1, max_size=5))
def test_tables_equal_messages(records: list[bytes]) -> None:
    data = of_queue(records)
    messages = record.decode_messages(data, "b")
    made = MessageBatch.of_records(data, QUEUE)
    assert made is not None
    table = MessageBatch.of_parts([made, messages]).to_arrow()
    assert table.column_names == list(COLUMNS)
    by_messages = MessageBatch(messages * 2).to_arrow()
    assert table.equals(by_messages)
    assert [row["body"] for row in table.to_pylist()] == [m.body for m in messages] * 2
    assert table["queueOffset"].to_pylist() == [VALUES["queueOffset"](m) for m in messages] * 2


def test_tables_of_some_columns() -> None:
    data = record.encode(topic=b"t", queue_id=3, queue_offset=7, position=0, body=b"x", properties=b"TAGS\x01a\x02")
    batch = MessageBatch.of_records(data, QUEUE)
    assert batch is not None
    assert batch.to_arrow(["tag", "queueOffset"]).to_pylist() == [{"tag": "a", "queueOffset": 7}]
    assert batch.to_pandas(["tag", "queueOffset"]).to_dict("records") == [{"tag": "a", "queueOffset": 7}]
    assert batch.to_polars(["tag", "queueOffset"]).to_dicts() == [{"tag": "a", "queueOffset": 7}]
    assert MessageBatch().to_arrow(["body"]).to_pylist() == []
    with pytest.raises(UsageError, match="there is no column 'tags': the columns are topic, broker"):
        batch.to_arrow(["tags"])


def one(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"topic": b"t", "queue_id": 3, "queue_offset": 7, "position": 0, "body": b"x" * 50}
    return record.encode(**fields | {"properties": b""} | changes)


@pytest.mark.parametrize(
    "data",
    [
        one(body=compression.deflate(b"x")[0], sys_flag=sysflags.COMPRESSED | sysflags.COMPRESSION_ZLIB),
        one(sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP),
        one(topic=b"u"),
        one().replace(b"xx", b"xy", 1),
        one()[:-1],
        b"\x00\x00",
    ],
)
def test_what_has_to_be_decoded_is_left_to_the_decoder(data: bytes) -> None:
    assert MessageBatch.of_records(one() + data, QUEUE) is None


def test_a_batch_stays_what_it_was() -> None:
    batch = MessageBatch.of_records(one() + one(queue_offset=8), QUEUE)
    assert batch is not None
    assert repr(batch) == f"<MessageBatch of 2 messages from {QUEUE}>"
    # The consumer finishes messages by these: a batch whose offsets were changed would stay in work for ever.
    for numbers in (batch.queue_offsets, batch.stored_bytes, batch[:1].queue_offsets, MessageBatch(batch).flags):
        with pytest.raises(ValueError, match="read-only"):
            numbers[0] = 99
    assert batch.queue_offsets.tolist() == [7, 8]
    batch = MessageBatch.of_records(one() + one(queue_offset=8), QUEUE)
    assert batch is not None
    messages = list(batch)
    messages[0].reconsume_times += 1
    assert batch.reconsume_times.tolist() == [1, 0]
    assert batch[0] is messages[0]


@pytest.mark.parametrize(("space", "topic"), [("ns", "t"), ("", "ns%t"), ("other", "ns%t")])
def test_a_namespace_is_taken_off_columns_and_messages(space: str, topic: str) -> None:
    data = one(topic=b"ns%t") + one(topic=b"ns%t", queue_offset=8)
    batch = MessageBatch.of_records(data, MessageQueue("ns%t", "b", 3))
    assert batch is not None
    whole = without_namespace(MessageBatch.of_parts([batch, record.decode_messages(data, "b")]), space)
    assert isinstance(whole, MessageBatch)
    assert (whole.topics, whole.queues) == ([topic] * 4, [MessageQueue(topic, "b", 3)])
    assert [m.topic for m in whole] == [topic] * 4
    assert [m.topic for m in without_namespace(record.decode_messages(data, "b"), space)] == [topic] * 2


@pytest.mark.parametrize(("wanted", "says"), [([True], "as many truth values"), ([0, 1], "as many truth values")])
def test_what_no_part_is(wanted: Any, says: str) -> None:
    batch = MessageBatch.of_records(one() + one(queue_offset=8), QUEUE)
    assert batch is not None
    with pytest.raises(UsageError, match=says):
        batch[wanted]
    with pytest.raises(IndexError, match="message 2 of a batch of 2"):
        batch[2]
