"""Replies to pops become messages with handles, whatever they hold; a bad record harms itself alone."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.errors import FrameError
from rocketspark.model import subscribe
from rocketspark.protocol.headers import PopReply, to_ext
from rocketspark.protocol.message import batch, compression, record, sysflags
from rocketspark.proxy.consuming.popped import Popped
from rocketspark.proxy.consuming.popped import popped as read_popped
from rocketspark.proxy.consuming.receive import Receives, Wanted
from rocketspark.proxy.message_form import fill
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Encoding
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "ReceiveMessage: filters, long polling, attempts to dead letters, order with `attempt_id`; a receive that "
    "is cancelled gives back what comes for it"
)

TOLD = PopReply(
    pop_time_ms=1000, invisible_time_ms=60_000, revive_queue_id=3, start_offsets="0 1 5", message_offsets="0 1 5,6,7"
)


def popped(*given: Any) -> list[Popped]:
    return list(read_popped(*given))


def stored(offset: int = 5, body: bytes = b"body", topic: bytes = b"T", **fields: object) -> bytes:
    given = {"properties": b"UNIQ_KEY\x01id\x02", "queue_id": 1, "position": offset * 100} | fields
    return record.encode(topic=topic, queue_offset=offset, body=body, **given)  # type: ignore[arg-type]


def test_a_handle_has_nine_fields() -> None:
    (one,) = popped(TOLD, stored(6), "broker-a")
    assert one.pairs["POP_CK"] == "5 1000 60000 3 0 broker-a 1 6 600"


def test_a_spoiled_record_is_left_out_alone() -> None:
    spoiled = bytearray(stored(6, body=b"spoiled"))
    spoiled[spoiled.index(b"spoiled")] ^= 1
    found = popped(TOLD, stored(5) + bytes(spoiled) + stored(7), "broker-a")
    assert [one.record.queue_offset for one in found] == [5, 7]
    assert [one.record.queue_offset for one in popped(TOLD, stored(5) + b"\x00" * 200, "broker-a")] == [5]


def test_a_record_of_a_queue_that_is_not_told_is_left_out() -> None:
    assert popped(TOLD, stored(5, queue_id=2), "broker-a") == []
    assert popped(TOLD, stored(5, topic=b"%RETRY%G_T"), "broker-a") == []


def test_a_message_that_came_again_has_the_brokers_handle_and_a_producers_text_is_none() -> None:
    told = PopReply(
        pop_time_ms=1000, invisible_time_ms=60_000, revive_queue_id=3,
        start_offsets="0 1 5;2 0 8", message_offsets="0 1 5;2 0 8",
    )  # fmt: skip
    own = b"POP_CK\x018 1000 60000 3 2 broker-a 0 8\x02"
    (one,) = popped(told, stored(8, queue_id=0, properties=own), "broker-a")
    assert one.pairs["POP_CK"] == "8 1000 60000 3 2 broker-a 0 8 800"
    (one,) = popped(TOLD, stored(5, properties=own), "broker-a")
    assert one.pairs["POP_CK"] == "5 1000 60000 3 0 broker-a 1 5 500"


def test_attempts_of_an_ordered_pop_are_those_that_it_tells() -> None:
    told = PopReply(
        revive_queue_id=999, start_offsets="0 1 5", message_offsets="0 1 5,6", order_counts="0 1 1;0 qo1%6 4"
    )
    found = popped(told, stored(5) + stored(6), "broker-a")
    assert [one.record.reconsume_times for one in found] == [1, 4]


def test_messages_of_a_stored_batch_come_one_by_one() -> None:
    inner = batch.encode([batch.BatchItem(0, b"a", b"UNIQ_KEY\x01x\x02"), batch.BatchItem(0, b"b", b"")])
    body, flags = compression.deflate(inner)
    flags |= sysflags.INNER_BATCH | sysflags.NEED_UNWRAP
    whole = stored(5, body=body, sys_flag=flags, properties=b"INNER_BASE\x015\x02INNER_NUM\x012\x02")
    found = popped(PopReply(start_offsets="0 1 5", message_offsets="0 1 5"), whole, "broker-a")
    assert [(one.record.queue_offset, one.record.body, one.handle.queue_offset) for one in found] == [
        (5, b"a", 5),
        (6, b"b", 5),
    ]


def test_a_stored_batch_that_comes_again_gives_its_handle_to_each_message() -> None:
    inner = batch.encode([batch.BatchItem(0, b"a", b"UNIQ_KEY\x01x\x02"), batch.BatchItem(0, b"b", b"POP_CK\x01x\x02")])
    own = "4 1000 60000 3 1 broker-a 1 4"
    whole = stored(
        4, body=inner, sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP,
        properties=b"INNER_BASE\x017\x02POP_CK\x01%b\x02" % own.encode(),
    )  # fmt: skip
    told = PopReply(
        pop_time_ms=1000, invisible_time_ms=60_000, revive_queue_id=3, start_offsets="1 1 4", message_offsets="1 1 4"
    )
    found = popped(told, whole, "broker-a")
    assert [(one.record.body, one.handle.encode()) for one in found] == [(b"a", f"{own} 400"), (b"b", f"{own} 400")]


def whole(offset: int, *tags: bytes, **fields: object) -> bytes:
    inner = batch.encode([batch.BatchItem(0, tag, b"TAGS\x01%b\x02" % tag) for tag in tags])
    flags = sysflags.INNER_BATCH | sysflags.NEED_UNWRAP
    return stored(offset, body=inner, sys_flag=flags, properties=b"INNER_BASE\x01%d\x02" % offset, **fields)


@pytest.mark.shows("mended: a batch of 32,767 messages stored as one record held a proxy up for seconds")
def test_a_batch_without_attempts_left_becomes_a_dead_letter_once() -> None:
    told = PopReply(start_offsets="0 1 5", message_offsets="0 1 5,8,9")
    records = (
        whole(5, b"x", b"y", b"x", reconsume_times=3)
        + whole(8, b"x", reconsume_times=2)
        + whole(9, b"x", b"x", reconsume_times=3)
    )
    calls = mock.Mock()
    wanted = mock.Mock(filter=subscribe("T", "x"), attempts_max=3, group="G", topic="T")
    good = Receives._sifted(mock.Mock(_calls=calls), wanted, popped(told, records, "broker-a"))
    assert [one.handle.queue_offset for one in good] == [8]
    [(wrong, dead)] = [call.args for call in calls.put_aside.call_args_list]
    assert (wrong, [held.handle.queue_offset for held, _ in dead]) == ([], [5, 9])


def test_a_batch_is_acknowledged_for_its_tags_only_if_none_of_its_messages_is_wanted() -> None:
    told = PopReply(start_offsets="0 1 5", message_offsets="0 1 5,7,9")
    found = popped(told, whole(5, b"x", b"y") + whole(7, b"z", b"y") + whole(9, b"y"), "broker-a")
    calls = mock.Mock()
    wanted = mock.Mock(filter=subscribe("T", "x || w"), attempts_max=16, group="G", topic="T")
    good = Receives._sifted(mock.Mock(_calls=calls), wanted, found)
    assert [one.record.body for one in good] == [b"x"]
    [(wrong, dead)] = [call.args for call in calls.put_aside.call_args_list]
    assert [held.handle.queue_offset for held in wrong] == [7, 9]
    assert dead == []


def message_of(one: Any) -> Any:
    made = messages.Message()
    fill(made, one.record, "T", one.pairs, 0)
    return made


def test_what_does_not_inflate_is_delivered_as_it_is() -> None:
    (one,) = popped(TOLD, stored(body=b"no zlib", sys_flag=1), "broker-a")
    made = message_of(one)
    assert (made.body, made.system_properties.body_encoding) == (b"no zlib", Encoding.GZIP)
    (one,) = popped(TOLD, stored(body=zlib.compress(b"x"), sys_flag=1), "broker-a")
    made = message_of(one)
    assert (made.body, made.system_properties.body_encoding) == (b"x", Encoding.IDENTITY)


_INT = st.integers(-(1 << 31), (1 << 31) - 1)
_LONG = st.integers(-(1 << 63), (1 << 63) - 1)
_NAMES = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"POP_CK", b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"_SYS_MSG_PRIORITY_", b"DELAY",
     b"__SHARDINGKEY", b"TRAN_MSG", b"__BORNHOST", b"DLQ_ORIGIN_TOPIC", b"DLQ_ORIGIN_MESSAGE_ID", b"INNER_BASE", b"a"]
)  # fmt: skip
_VALUES = st.binary(max_size=12) | _LONG.map(lambda n: str(n).encode()) | st.just(b"5 1000 60000 3 2 broker-a 0 8")
_PROPERTIES = st.binary(max_size=60) | st.lists(st.tuples(_NAMES, _VALUES), max_size=6).map(
    lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)
)


@settings(max_examples=300, deadline=None)
@given(
    properties=_PROPERTIES, body=st.binary(max_size=40), topic=st.binary(min_size=1, max_size=8), sys_flag=_INT,
    flag=_INT, reconsume_times=_INT, born_time_ms=_LONG, store_time_ms=_LONG, position=_LONG, now_ms=_LONG,
    hosts=st.sampled_from([(b"\xff" * 8, b"\x00" * 8), (b"\xff" * 20, b"\x01" * 20), (b"\x7f" * 8, b"\xff" * 20)]),
)  # fmt: skip
def test_any_record_becomes_a_message(
    properties: bytes, body: bytes, topic: bytes, now_ms: int, hosts: tuple[bytes, bytes], **fields: int
) -> None:
    born_host, store_host = hosts
    data = record.encode(
        topic=topic, queue_id=1, queue_offset=5, body=body, properties=properties, born_host=born_host,
        store_host=store_host, **fields,
    )  # fmt: skip
    for told in (TOLD, PopReply(start_offsets="2 0 8;0 1 5", message_offsets="0 1 5;2 0 8", pop_time_ms=1000)):
        for one in popped(told, data, "broker-a"):
            answer = messages.ReceiveMessageResponse()
            fill(answer.message, one.record, "T", one.pairs, now_ms)
            read = messages.ReceiveMessageResponse.FromString(answer.SerializeToString())
            assert read.message.system_properties.receipt_handle == one.handle.encode()


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=200),
    texts=st.tuples(*[st.none() | st.text("0123456789 ;,qo%-x", max_size=20)] * 3),
)
def test_any_reply_is_read_or_refused(data: bytes, texts: tuple[str | None, str | None, str | None]) -> None:
    starts, offsets, counts = texts
    with contextlib.suppress(FrameError):
        popped(PopReply(start_offsets=starts, message_offsets=offsets, order_counts=counts), stored(5) + data, "b")


def test_what_a_message_lacks_is_not_there() -> None:
    (one,) = popped(TOLD, stored(5), "broker-a")
    system = message_of(one).system_properties
    names = ("tag", "message_group", "trace_context", "lite_topic", "priority", "delivery_timestamp")
    assert [name for name in names if system.HasField(name)] == []
    (one,) = popped(TOLD, stored(5, properties=b"__SHARDINGKEY\x01g\x02"), "broker-a")
    assert message_of(one).system_properties.message_group == "g"


@pytest.mark.shows("mended: a batch of 32,767 messages stored as one record held a proxy up for seconds")
def test_a_long_batch_is_read_in_turns_and_given_back_once() -> None:
    count = 2000
    inner = batch.encode([batch.BatchItem(0, b"x", b"")] * count)
    whole = stored(
        5, body=inner, sys_flag=sysflags.INNER_BATCH | sysflags.NEED_UNWRAP, properties=b"INNER_BASE\x015\x02"
    )
    far_ms = 1 << 45
    told = PopReply(pop_time_ms=far_ms, invisible_time_ms=1, start_offsets="0 1 5", message_offsets="0 1 5")
    answer = Reply(0, None, msgspec.json.encode(to_ext(told)), whole, "b:1")

    async def main() -> None:
        unused: Any = None
        given_back: list[Any] = []
        calls: Any = SimpleNamespace(
            give_back=lambda held, had, at_once: given_back.extend(held), put_aside=lambda wrong, dead: None
        )
        receives: Any = Receives(ProxySettings(namesrv="n"), unused, unused, calls, unused)
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(answer)
        peer = SimpleNamespace(ask=lambda code, header, timeout_ms: answered)
        receives._broker_name, receives._peer = mock.AsyncMock(return_value="b"), mock.AsyncMock(return_value=peer)
        client: Any = SimpleNamespace(host="1.2.3.4")
        wanted = Wanted(client, False, 16, "T", "G", "b", 32, 1000, 1000, False, subscribe("T", "*"), None)

        async def turns_of(task: asyncio.Future[Any], most: int) -> int:
            turns = 0
            while not task.done() and turns < most:
                turns += 1
                await asyncio.sleep(0)
            return turns

        reading = asyncio.ensure_future(receives._pop(wanted))
        assert await turns_of(reading, 10 * count) >= count // 256
        assert len(await reading) == count
        left = asyncio.ensure_future(receives._pop(wanted))
        assert await turns_of(left, 5) == 5
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        (held,) = given_back
        assert (held.handle.queue_offset, held.topic) == (5, "T")

    asyncio.run(main())
