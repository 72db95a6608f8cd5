"""The properties of light queues: what a message asks for, what its record states, and texts of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.protocol import light_queues
from rocketspark.protocol.light_queues import LightUnit, names_in, units_of, wanted, with_offsets
from rocketspark.protocol.message import properties

# Properties as the official broker 5.5.0 stored them: two queues; one name twice; names that are no light queues.
CAPTURED = [
    (
        b"INNER_MULTI_QUEUE_OFFSET\x010,0\x02WAIT\x01true\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02",
        [("a", 0), ("b", 0)],
    ),
    (b"INNER_MULTI_QUEUE_OFFSET\x013,3\x02TAGS\x01t\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%a\x02", [("a", 3)]),
    (b"INNER_MULTI_QUEUE_OFFSET\x011,2,\x02INNER_MULTI_DISPATCH\x01%LMQ%b,%LMQ%a,other\x02", [("b", 1), ("a", 2)]),
    (b"INNER_MULTI_QUEUE_OFFSET\x01\x02INNER_MULTI_DISPATCH\x01plain\x02", []),
    (b"INNER_MULTI_QUEUE_OFFSET\x01,,5\x02INNER_MULTI_DISPATCH\x01,,%LMQ%a\x02", [("a", 5)]),
]


@pytest.mark.parametrize(("stored", "places"), CAPTURED)
def test_what_the_official_broker_stored(stored: bytes, places: list[tuple[str, int]]) -> None:
    assert units_of(b"base", stored) == [LightUnit(b"%LMQ%" + name.encode(), at) for name, at in places]


def test_names_end_as_java_splits_them() -> None:
    assert names_in(b"%LMQ%a,,") == [b"%LMQ%a"]
    assert names_in(b",,%LMQ%a") == [b"", b"", b"%LMQ%a"]
    assert names_in(b",") == []


@pytest.mark.parametrize(
    "topic", [b"%RETRY%g", b"%DLQ%g", b"rmq_sys_wheel_timer", b"RMQ_SYS_TRANS_HALF_TOPIC", b"%LMQ%a"]
)
def test_parked_and_returned_messages_enter_none(topic: bytes) -> None:
    stored = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    assert wanted(topic, stored) == []
    assert wanted(b"base", stored) == [b"%LMQ%a"]
    assert with_offsets(stored + b"INNER_MULTI_QUEUE_OFFSET\x019\x02", []) == stored


def test_a_list_is_stored_without_what_rocketmq_stops_over() -> None:
    stored = b"k\x01v\x02INNER_MULTI_DISPATCH\x01,%LMQ%a,other,%LMQ%a,%LMQ%\xff\x02"
    assert wanted(b"base", stored) == [b"%LMQ%a"]
    assert with_offsets(stored, [LightUnit(b"%LMQ%a", 7)]) == (
        b"k\x01v\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x017\x02"
    )


NAMES = st.lists(st.sampled_from([b"%LMQ%a", b"%LMQ%b", b"%LMQ%", b"x", b"", b"%LMQ%\xff", b"%LMQ%o/d"]), max_size=6)


@given(st.binary(max_size=80), NAMES, st.binary(max_size=30).filter(lambda b: not {1, 2} & set(b)))
def test_any_text_is_read_and_what_is_written_is_read_back(rest: bytes, names: list[bytes], offsets: bytes) -> None:
    stored = properties.without(rest, (light_queues.DISPATCH, light_queues.OFFSETS))
    stored += b"INNER_MULTI_DISPATCH\x01%b\x02INNER_MULTI_QUEUE_OFFSET\x01%b\x02" % (b",".join(names), offsets)
    for unit in units_of(b"base", stored):
        assert unit.name in names
        assert unit.queue_offset >= 0
    units = [LightUnit(name, at) for at, name in enumerate(wanted(b"base", stored))]
    written = with_offsets(stored, units)
    assert units_of(b"base", written) == units
    left = (light_queues.DISPATCH, light_queues.OFFSETS)
    assert properties.pairs_of(properties.without(written, left)) == properties.pairs_of(
        properties.without(stored, left)
    )


@pytest.mark.parametrize(
    ("topic", "group"),
    [("T", "g"), ("%LMQ%a@b", "g"), ("T", "%LMQ%GID_x@@@y"), ("%LMQ%a@b", "%LMQ%GID_x@@@y"), ("T", "")],
)
def test_a_key_of_offsets_is_split_beside_the_at_signs_of_light_names(topic: str, group: str) -> None:
    assert light_queues.topic_and_group(f"{topic}@{group}") == (topic, group)
