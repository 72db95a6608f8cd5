"""How many fields an encoded request holds, and what becomes of one that holds too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocketspark.proxy.checks import FIELDS_MAX, REQUEST_BYTES_MAX
from rocketspark.proxy.service import FIELD_BYTES, Reader
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.crowds import IN_TURN, SMALL_BYTES, Kind, count_fields
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused

pytestmark = pytest.mark.shows("a gRPC request of millions of empty messages is refused before it is decoded")

SEND = Kind(messages.SendMessageRequest.DESCRIPTOR)


def counted(data: bytes, kind: Kind = SEND) -> int:
    return list(count_fields(data, kind))[-1]


def test_fields_are_counted_as_deep_as_they_may_be_many() -> None:
    assert counted(b"") == 0
    assert counted(b"\x0a\x00" * 5) == 5
    request = messages.SendMessageRequest(messages=[{"topic": {"name": "orders"}, "body": b"x" * 1000}])
    assert counted(request.SerializeToString()) == 3
    for i in range(100):
        request.messages[0].user_properties[f"k{i}"] = "v"
    assert counted(request.SerializeToString()) == 103
    # What is small counts as one with what it may have many of, what is not is looked into.
    request.messages[0].system_properties.keys.extend(["k"] * 10)
    assert counted(request.SerializeToString()) == 114
    request.messages[0].system_properties.keys.extend([""] * 1000)
    assert counted(request.SerializeToString()) == 1114
    settings = messages.TelemetryCommand(settings={"publishing": {"topics": [{}] * 500}})
    assert counted(settings.SerializeToString(), Kind(messages.TelemetryCommand.DESCRIPTOR)) == 502


@pytest.mark.parametrize(
    ("rpc", "small"),
    [
        ("SendMessage", messages.SendMessageRequest(messages=[{"system_properties": {"keys": [""] * 126}}])),
        ("Telemetry", messages.TelemetryCommand(settings={"publishing": {"topics": [{}] * 120}})),
        ("Telemetry", messages.TelemetryCommand(settings={"subscription": {"subscriptions": [{}] * 120}})),
        # A key's tag as a number of three bytes.
        ("SendMessage", b"\x0a\xff\x01" + b"\x1a\xfc\x01" + b"\x92\x80\x00\x00" * 63),
    ],
)
def test_a_crowd_in_small_pieces_is_refused_too(rpc: str, small: Any) -> None:
    data = small if isinstance(small, bytes) else small.SerializeToString()
    # Each is below what is looked into; what they hold comes together.
    assert len(data) < SMALL_BYTES + 8
    with pytest.raises(Refused, match="fields"):
        read(rpc, data * (FIELDS_MAX // 60))


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"\x0a", 1),
        (b"\x0a\x80", 1),
        (b"\xff" * 50, 1),
        (b"\x0a\x00\x0a\xff\xff\xff\xff\x0f", 2),
        (b"\x0b\x08\x01\x0c", 3),
        (b"\x0d1234\x09123456780\x01", 3),
        (b"\x0f\x0f", 1),
        # A message within that says that it is longer than the one around it.
        (b"\x0a\x02\x22\x7f\x0a\x00", 2),
    ],
)
def test_what_is_no_message_is_counted_up_to_its_fault(data: bytes, count: int) -> None:
    assert counted(data) == count


def test_others_have_their_turn_meanwhile() -> None:
    assert list(count_fields(b"\x0a\x00" * (2 * IN_TURN + 1), SEND)) == [IN_TURN, 2 * IN_TURN, 2 * IN_TURN + 1]


def read(rpc: str, data: bytes, take: Callable[[int], None] = lambda size: None) -> Any:
    return asyncio.run(Reader(rpc).read(data, take))


def test_a_request_of_too_many_fields_is_never_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader("SendMessage")
    monkeypatch.setattr(reader, "_decode", lambda data: pytest.fail("it was decoded"))
    with pytest.raises(Refused, match=f"more than {FIELDS_MAX} fields") as caught:
        asyncio.run(reader.read(b"\x0a\x00" * (FIELDS_MAX + 1), lambda size: None))
    assert caught.value.code == Code.MESSAGE_CORRUPTED
    for rpc, data in (
        ("AckMessage", b"\x1a\x00" * (FIELDS_MAX + 1)),
        ("Telemetry", b"\x12\x00" * (FIELDS_MAX + 1)),
        ("QueryRoute", b"x" * (REQUEST_BYTES_MAX + 1)),
    ):
        with pytest.raises(Refused, match=r"at most|more than") as caught:
            read(rpc, data)
        assert caught.value.code == Code.BAD_REQUEST


def test_what_fields_take_counts_before_they_are_decoded() -> None:
    taken: list[int] = []
    assert len(read("SendMessage", b"\x0a\x00" * 4096, taken.append).messages) == 4096
    assert taken == [4096 * FIELD_BYTES]
    assert len(read("SendMessage", b"\x0a\x00" * 100, taken.append).messages) == 100
    assert len(taken) == 1


def test_bytes_that_are_no_request_are_refused() -> None:
    with pytest.raises(Refused, match="no SendMessageRequest") as caught:
        read("SendMessage", b"\x0a\x05x")
    assert caught.value.code == Code.BAD_REQUEST
