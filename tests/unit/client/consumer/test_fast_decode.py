"""The quick way of decoding a pull reply yields what the general way yields, errors too."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketspark.errors import RecordError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.message import batch, compression, record, sysflags

V6 = bytes(15) + b"\x01" + b"\x00\x00\x2a\x2b"
V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x2b"


def general(data: bytes, broker_name: str) -> list[ReceivedMessage]:
    """The same by the functions for single records."""
    found: list[ReceivedMessage] = []
    for one in record.decode_all(data):
        message = record.to_message(one, broker_name)
        if one.sys_flag & sysflags.INNER_BATCH and one.sys_flag & sysflags.NEED_UNWRAP:
            found.extend(record._unwrap(one, message))
        else:
            found.append(message)
    return found


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8)
PROPERTIES = st.one_of(
    st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "é"]), TEXTS, max_size=5).map(
        lambda pairs: "".join(f"{k}\x01{v}\x02" for k, v in pairs.items()).encode()
    ),
    st.binary(max_size=30),
)
RECORDS = st.builds(
    record.encode,
    topic=st.sampled_from([b"t", b"topic-2", b"x" * 130, b"\xff"]),
    queue_id=st.integers(0, 9),
    queue_offset=st.integers(0, 1 << 40),
    position=st.integers(0, 1 << 40),
    body=st.one_of(st.binary(max_size=40), st.just(compression.deflate(b"z" * 50)[0])),
    properties=PROPERTIES,
    flag=st.integers(-5, 5),
    sys_flag=st.sampled_from([0, 0, 0, 0x8, 0x301]),
    born_time_ms=st.integers(0, 1 << 45),
    born_host=st.sampled_from([V4, V4, V6]),
    store_time_ms=st.integers(0, 1 << 45),
    store_host=st.sampled_from([V4, V4, V6]),
    reconsume_times=st.integers(0, 20),
    prepared_position=st.integers(0, 1 << 40),
)


@pytest.fixture(autouse=True, params=[1, record.MANY], ids=["many", "few"])
def least(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one record on they are decoded as many are, or one by one."""
    monkeypatch.setattr(record, "MANY", request.param)


def outcome(data: bytes, quick: bool) -> list[ReceivedMessage] | str:
    try:
        return record.decode_messages(data, "b") if quick else general(data, "b")
    except RecordError:
        return "RecordError"


SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(st.lists(RECORDS, max_size=4))
def test_equal_on_records_of_all_kinds(records: list[bytes]) -> None:
    data = b"".join(records)
    assert outcome(data, quick=True) == outcome(data, quick=False)


@SETTINGS
@given(st.lists(RECORDS, min_size=1, max_size=2), st.data())
def test_equal_on_broken_records(records: list[bytes], data: st.DataObject) -> None:
    broken = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    assert outcome(cut, quick=True) == outcome(cut, quick=False)
    assert outcome(bytes(broken), quick=True) == outcome(bytes(broken), quick=False)


def test_inner_batches_among_plain_records() -> None:
    inner = batch.encode([batch.BatchItem(i, b"%d" % i, b"TAGS\x01A\x02") for i in range(3)])
    outer = record.encode(
        topic=b"t",
        queue_id=0,
        queue_offset=7,
        position=0,
        body=inner,
        properties=b"INNER_NUM\x013\x02INNER_BASE\x017\x02",
        sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
    )
    plain = record.encode(topic=b"t", queue_id=0, queue_offset=10, position=0, body=b"p", properties=b"")
    found = record.decode_messages(memoryview(outer + plain), "b")
    assert [(m.queue_offset, m.body, m.tag) for m in found] == [
        (7, b"0", "A"),
        (8, b"1", "A"),
        (9, b"2", "A"),
        (10, b"p", None),
    ]


PLAIN = st.builds(
    record.encode,
    topic=st.just(b"t"),
    queue_id=st.integers(0, 9),
    queue_offset=st.integers(0, 1 << 40),
    position=st.integers(0, 1 << 40),
    body=st.one_of(st.binary(max_size=40), st.just(b"x" * 3000)),
    properties=PROPERTIES,
    flag=st.integers(-5, 5),
    born_time_ms=st.integers(0, 1 << 45),
    store_time_ms=st.integers(0, 1 << 45),
    reconsume_times=st.integers(0, 20),
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PLAIN, max_size=40))
def test_equal_on_many_plain_records(records: list[bytes]) -> None:
    data = b"".join(records)
    inflation = record.Inflation(1 << 20)
    found = record.decode_messages(data, "b", inflation)
    assert inflation.at == len(data)
    if inflation.places is not None:
        assert inflation.places == ([m.queue_offset for m in found], [m.stored_bytes for m in found])
    assert [pickle.loads(pickle.dumps(message)) for message in found] == found == general(data, "b")


def test_a_message_that_is_kept_keeps_little_else() -> None:
    records = [
        record.encode(topic=b"t", queue_id=0, queue_offset=i, position=i, body=b"x" * 100, properties=b"a\x01b\x02")
        for i in range(1000)
    ]
    kept = record.decode_messages(b"".join(records), "b")[500]
    waiting: object = kept._rest
    assert isinstance(waiting, tuple)
    assert sum(len(part) for part in waiting if isinstance(part, bytes)) <= 4096
    assert (kept.properties, kept.physical_offset) == ({"a": "b"}, 500)
    # What it was read from is given back with the first look, but for its own head and properties.
    assert kept._rest is not waiting
    assert sum(len(part) for part in kept._rest if isinstance(part, bytes)) < 100
    kept.settle()
    assert not [part for part in kept._rest if isinstance(part, bytes)]


LATE = [name for name in dir(ReceivedMessage) if isinstance(getattr(ReceivedMessage, name), property)]


def one() -> ReceivedMessage:
    stored = b"TAGS\x01A\x02KEYS\x01k l\x02UNIQ_KEY\x01id\x02"
    (message,) = record.decode_messages(
        record.encode(topic=b"t", queue_id=3, queue_offset=4, position=5, body=b"b", properties=stored), "broker"
    )
    return message


def test_a_field_that_is_set_before_any_is_read_stays_as_it_was_set() -> None:
    message, other = one(), one()
    message.reconsume_times = 7
    message.tag = None
    message.properties["a"] = "b"
    message.keys = ()
    assert (message.reconsume_times, message.tag, message.keys, message.queue_id) == (7, None, (), 3)
    assert message.properties == other.properties | {"a": "b"}
    assert (other.reconsume_times, other.tag, other.keys, other.message_id) == (0, "A", ("k", "l"), "id")


@pytest.mark.parametrize("looked_at", [(), ("tag",), ("properties", "store_host"), tuple(LATE)])
def test_copies_share_no_field_however_much_was_looked_at(looked_at: tuple[str, ...]) -> None:
    message = one()
    for name in looked_at:
        getattr(message, name)
    copies = [copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))]
    copies.append(message.__replace__(flag=0))
    for each in copies:
        assert each == message == one()
        each.queue_id, each.topic, each.receipt_handle = 8, "other", "handle"
    assert [each.queue for each in copies] == [MessageQueue("other", "broker", 8)] * 4
    assert message == one()
    assert message.queue == MessageQueue("t", "broker", 3)


def test_a_message_is_no_struct_to_who_looks_at_it() -> None:
    message = one()
    assert dict(message.__rich_repr__()) == message._values()
    assert repr(message).startswith("ReceivedMessage(body=b'b', body_error=None, born_host='127.0.0.1:0', ")
    assert ReceivedMessage(**{k: v for k, v in message._values().items() if k not in LATE_ONLY}) == message
    with pytest.raises(AttributeError, match="tags"):
        message.tags = "A"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="tags"):
        _ = message.tags  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unexpected keyword argument 'tags'"):
        ReceivedMessage(tags="A")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing"):
        ReceivedMessage(topic="t", body=b"")  # type: ignore[call-arg]


# What no call of the class takes.
LATE_ONLY = ("body_error", "read_from", "receipt_handle")


def test_python_s_collector_looks_at_no_message() -> None:
    message = one()
    assert not gc.is_tracked(message)
    assert not gc.is_tracked(copy.copy(message))


def test_large_bodies_are_kept_once() -> None:
    body = b"x" * 3000
    records = [
        record.encode(topic=b"t", queue_id=0, queue_offset=i, position=i, body=body, properties=b"") for i in range(40)
    ]
    for message in record.decode_messages(b"".join(records), "b"):
        waiting: Any = message._rest
        assert sum(len(part) for part in waiting if isinstance(part, bytes)) < 100
        assert (message.body, message.physical_offset) == (body, message.queue_offset)
