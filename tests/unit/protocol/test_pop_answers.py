"""Receipt handles from a pop's answer: those that RocketMQ's client makes of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ProtocolError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.pop_answers import Popped, give_handles, with_new_time
from rocketspark.protocol.receipt_handle import ReceiptHandle
from rocketspark.protocol.retry_topics import real_topic


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
