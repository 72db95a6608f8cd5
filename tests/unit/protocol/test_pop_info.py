"""The texts of a pop's reply, and the bits of a batch acknowledgement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import FrameError, ProtocolError
from rocketspark.protocol import pop_info
from rocketspark.protocol.json import batch_ack
from rocketspark.protocol.json.batch_ack import AckedBatch, BatchAck

OFFSETS = st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=5)
SOURCES = st.dictionaries(st.tuples(st.sampled_from("012"), st.integers(0, 99)), OFFSETS, max_size=4)


def test_the_texts_are_as_rocketmq_writes_them() -> None:
    assert pop_info.start_offset_item("0", 3, 17) == "0 3 17"
    assert pop_info.message_offsets_item("2", 0, [4, 5, 9]) == "2 0 4,5,9"
    assert pop_info.order_count_item("0", 1, 2) == "0 1 2"
    assert pop_info.message_order_count_item("0", 1, 8, 2) == "0 qo1%8 2"
    assert pop_info.parse_order_counts("0 1 2;0 qo1%8 3") == {("0", "1"): 2, ("0", "qo1%8"): 3}


@given(SOURCES)
def test_offsets_come_back(found: dict[tuple[str, int], list[int]]) -> None:
    messages = ";".join(pop_info.message_offsets_item(flag, queue, offsets) for (flag, queue), offsets in found.items())
    assert pop_info.parse_message_offsets(messages) == found
    starts = ";".join(pop_info.start_offset_item(flag, queue, offsets[0]) for (flag, queue), offsets in found.items())
    assert pop_info.parse_start_offsets(starts) == {source: offsets[0] for source, offsets in found.items()}


@pytest.mark.parametrize("text", ["0 1", "0 1 2 3", "0 1 x", "0 1 2;0 1 3", "0 1 " + "9" * 5000, "x", "0 1 ٣"])
def test_other_texts_are_refused(text: str) -> None:
    for parse in (pop_info.parse_start_offsets, pop_info.parse_message_offsets):
        with pytest.raises(FrameError):
            parse(text)


@given(st.text(alphabet="01 ;,-9qo%x", max_size=20))
def test_any_text_is_a_value_or_a_frame_error(text: str) -> None:
    for parse in (pop_info.parse_start_offsets, pop_info.parse_message_offsets, pop_info.parse_order_counts):
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
    assert batch_ack.decode(short) == batch_ack.decode(long) == expected
    assert batch_ack.decode(batch_ack.encode(expected)) == expected
    assert batch_ack.encode(expected) == short
    assert list(batch.offsets(0, 100)) == [7, 8, 16]
    assert list(batch.offsets(8, 15)) == [8]
    assert batch_ack.bits_of(7, [16, 7, 8]) == JAVA_BITS


@given(st.integers(0, 50), st.sets(st.integers(0, 300), max_size=20), st.integers(-5, 400), st.integers(-5, 400))
def test_offsets_outside_the_queue_are_left_out(start: int, offsets: set[int], low: int, high: int) -> None:
    offsets = {start + o for o in offsets}
    batch = AckedBatch(group="g", topic="T", start_offset=start, bits=batch_ack.bits_of(start, sorted(offsets)))
    assert list(batch.offsets(low, high)) == sorted(o for o in offsets if low <= o <= high)


def test_bits_that_are_no_base64_are_refused() -> None:
    for text in ("%", "A", "ä"):
        with pytest.raises(ProtocolError, match="base64"):
            list(AckedBatch(group="g", topic="T", bits=text).offsets(0, 9))
    assert not list(AckedBatch(group="g", topic="T").offsets(0, 9))
