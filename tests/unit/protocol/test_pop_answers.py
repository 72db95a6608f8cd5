"""Receipt handles from a pop's answer: those that RocketMQ's client makes of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import FrameError, ProtocolError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol import pop_answers
from rocketspark.protocol.json import pop_records
from rocketspark.protocol.json.pop_records import AckedBatch, BatchAck
from rocketspark.protocol.pop_answers import Popped, ReceiptHandle, give_handles, real_topic, with_new_time

pytestmark = pytest.mark.shows(
    "`SimpleConsumer`, `AsyncSimpleConsumer`: receive, acknowledge, change the invisible time, several topics "
    "with filters, also changed while pops wait, order, a receive that is cancelled"
)


def message(topic: str, queue_id: int, offset: int, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic,
        body=b"x",
        tag=None,
        keys=(),
        properties=properties,
        broker_name="b",
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=0,
        stored_bytes=1,
        message_id="m",
        offset_message_id="o",
        born_time_ms=1,
        born_host="h",
        store_time_ms=1,
        store_host="h",
    )


def popped(starts: str, offsets: str, counts: str | None = None) -> Popped:
    return Popped("b", "g", 1000, 60_000, 3, starts, offsets, counts)


def test_messages_of_the_topic_and_of_both_retry_topics() -> None:
    own = "4 1000 60000 3 1 b 0 6"
    messages = [
        message("t", 2, 10),
        message("t", 2, 12),
        # As a broker sends it that keeps the retry topic's name, and one that does not.
        message("%RETRY%g+t", 0, 7),
        message("t", 0, 5, POP_CK=own),
        # An application's own property is no handle.
        message("t", 2, 13, POP_CK="1 2 3 4 1 other 0 1"),
    ]
    give_handles(messages, popped("0 2 10;2 0 7;1 0 4", "0 2 10,12,13;2 0 7;1 0 6"))
    assert [m.receipt_handle for m in messages] == [
        "10 1000 60000 3 0 b 2 10",
        "10 1000 60000 3 0 b 2 12",
        "7 1000 60000 3 2 b 0 7",
        own,
        "10 1000 60000 3 0 b 2 13",
    ]
    assert [(m.topic, m.read_from) for m in messages] == [
        ("t", None),
        ("t", None),
        ("t", "%RETRY%g+t"),
        ("t", "%RETRY%g_t"),
        ("t", None),
    ]


def test_attempts_of_ordered_messages_are_counted() -> None:
    messages = [message("t", 1, 5), message("t", 1, 6), message("t", 2, 5)]
    counts = "0 1 1;0 2 4;0 qo1%5 3;0 qo1%6 1"
    give_handles(messages, popped("0 1 5;0 2 5", "0 1 5,6;0 2 5", counts))
    assert [m.reconsume_times for m in messages] == [3, 1, 4]


@pytest.mark.parametrize(
    ("starts", "offsets"),
    [("", ""), ("0 1 5", ""), ("0 1", "0 1 5"), ("0 1 5;0 1 6", "0 1 5"), ("0 1 x", "0 1 5"), ("1 1 5", "1 1 5")],
)
def test_an_answer_that_does_not_fit_is_an_error(starts: str, offsets: str) -> None:
    with pytest.raises(ProtocolError, match="pop"):
        give_handles([message("t", 1, 5)], popped(starts, offsets))


def test_a_new_invisible_time_is_a_check_point_of_its_own() -> None:
    handle = ReceiptHandle.decode("10 1000 60000 3 1 b 2 12 99")
    assert with_new_time(handle, 5000, 7000, 4).encode() == "12 5000 7000 4 1 b 2 12 99"
    assert handle.next_visible_ms == 61_000


def test_names_of_retry_topics() -> None:
    assert [real_topic("t", "g", flag) for flag in "012"] == ["t", "%RETRY%g_t", "%RETRY%g+t"]


_NUMBERS = st.integers(0, 2**63 - 1)
_HANDLES: Any = st.builds(
    ReceiptHandle,
    start_offset=_NUMBERS,
    pop_time_ms=_NUMBERS,
    invisible_time_ms=_NUMBERS,
    revive_queue_id=st.integers(0, 999),
    retry_flag=st.sampled_from("012"),
    broker_name=st.text(st.characters(exclude_characters=" ", exclude_categories=("Cs",)), min_size=1, max_size=20),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=_NUMBERS,
    physical_offset=st.integers(-1, 2**63 - 1),
)


@given(_HANDLES)
def test_a_handle_is_what_was_written(handle: ReceiptHandle) -> None:
    assert ReceiptHandle.decode(handle.encode()) == handle


@given(st.text(st.sampled_from("0123456789 -ab+\x00\u00b2"), max_size=60))
def test_any_text_is_a_handle_or_an_error_of_ours(text: str) -> None:
    with suppress(ProtocolError):
        ReceiptHandle.decode(text)


OFFSETS = st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=5)
SOURCES = st.dictionaries(st.tuples(st.sampled_from("012"), st.integers(0, 99)), OFFSETS, max_size=4)


def test_the_texts_are_as_rocketmq_writes_them() -> None:
    assert pop_answers.start_offset_item("0", 3, 17) == "0 3 17"
    assert pop_answers.message_offsets_item("2", 0, [4, 5, 9]) == "2 0 4,5,9"
    assert pop_answers.order_count_item("0", 1, 2) == "0 1 2"
    assert pop_answers.message_order_count_item("0", 1, 8, 2) == "0 qo1%8 2"
    assert pop_answers.parse_order_counts("0 1 2;0 qo1%8 3") == {("0", "1"): 2, ("0", "qo1%8"): 3}


@given(SOURCES)
def test_offsets_come_back(found: dict[tuple[str, int], list[int]]) -> None:
    messages = ";".join(
        pop_answers.message_offsets_item(flag, queue, offsets) for (flag, queue), offsets in found.items()
    )
    assert pop_answers.parse_message_offsets(messages) == found
    starts = ";".join(
        pop_answers.start_offset_item(flag, queue, offsets[0]) for (flag, queue), offsets in found.items()
    )
    assert pop_answers.parse_start_offsets(starts) == {source: offsets[0] for source, offsets in found.items()}


@pytest.mark.parametrize("text", ["0 1", "0 1 2 3", "0 1 x", "0 1 2;0 1 3", "0 1 " + "9" * 5000, "x", "0 1 ٣"])
def test_other_texts_are_refused(text: str) -> None:
    for parse in (pop_answers.parse_start_offsets, pop_answers.parse_message_offsets):
        with pytest.raises(FrameError):
            parse(text)


@given(st.text(alphabet="01 ;,-9qo%x", max_size=20))
def test_any_text_is_a_value_or_a_frame_error(text: str) -> None:
    for parse in (pop_answers.parse_start_offsets, pop_answers.parse_message_offsets, pop_answers.parse_order_counts):
        try:
            parse(text)
        except FrameError:
            continue


# Bits of Java's BitSet.toByteArray() in base64: {0, 1, 9}.
JAVA_BITS = "AwI="


def test_both_dialects_of_a_batch_ack_are_read() -> None:
    short = b'{"brokerName":"b","acks":[{"c":"g","t":"T","r":"1","so":7,"q":2,"rq":3,"pt":11,"it":60000,"b":"AwI="}]}'
    long = (
        b'{"acks":[{"consumerGroup":"g","topic":"T","retry":"1","startOffset":7,"queueId":2,"reviveQueueId":3,'
        b'"popTime":11,"invisibleTime":60000,"bitSet":"AwI="}],"brokerName":"b"}'
    )
    batch = AckedBatch(
        group="g",
        topic="T",
        retry_flag="1",
        start_offset=7,
        queue_id=2,
        revive_queue_id=3,
        pop_time_ms=11,
        invisible_time_ms=60000,
        bits=JAVA_BITS,
    )
    expected = BatchAck(broker_name="b", acks=[batch])
    assert pop_records.decode_batch_ack(short) == pop_records.decode_batch_ack(long) == expected
    assert pop_records.decode_batch_ack(pop_records.encode_batch_ack(expected)) == expected
    assert pop_records.encode_batch_ack(expected) == short
    assert list(batch.offsets(0, 100)) == [7, 8, 16]
    assert list(batch.offsets(8, 15)) == [8]
    assert pop_records.bits_of(7, [16, 7, 8]) == JAVA_BITS


@given(st.integers(0, 50), st.sets(st.integers(0, 300), max_size=20), st.integers(-5, 400), st.integers(-5, 400))
def test_offsets_outside_the_queue_are_left_out(start: int, offsets: set[int], low: int, high: int) -> None:
    offsets = {start + o for o in offsets}
    batch = AckedBatch(group="g", topic="T", start_offset=start, bits=pop_records.bits_of(start, sorted(offsets)))
    assert list(batch.offsets(low, high)) == sorted(o for o in offsets if low <= o <= high)


def test_bits_that_are_no_base64_are_refused() -> None:
    for text in ("%", "A", "ä"):
        with pytest.raises(ProtocolError, match="base64"):
            list(AckedBatch(group="g", topic="T", bits=text).offsets(0, 9))
    assert not list(AckedBatch(group="g", topic="T").offsets(0, 9))
