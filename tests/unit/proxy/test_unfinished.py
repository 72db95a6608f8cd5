"""gRPC messages that are not whole: counted however the bytes come, and bounded before anybody says who sends them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.proxy.test_port import behind, until

from rocketspark.proxy.port import PENDING_OF_HOST_MAX
from rocketspark.proxy.server import WAITING_MAX
from rocketspark.proxy.wire.http2 import CALL_BYTES, UnfinishedMessages
from rocketspark.transport.server_bounds import Bounds
from rocketspark.transport.tls.first_bytes import PREFACE

pytestmark = pytest.mark.shows("unfinished gRPC messages, reflection")

END, PADDED = 1, 8


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def prefixed(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + b"x" * size


class Call:
    """One call as its client writes it, and what of it is not whole."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.written = b""
        # As a model: bytes since the last whole message; None before the call and after its end.
        self.open: bytes | None = None

    def data(self, part: bytes, padding: int | None, end: bool) -> bytes:
        self.written += part
        self.open = None if self.open is None and not part else (self.open or b"") + part
        while (
            self.open is not None
            and len(self.open) >= 5
            and len(self.open) >= 5 + int.from_bytes(self.open[1:5], "big")
        ):
            self.open = self.open[5 + int.from_bytes(self.open[1:5], "big") :] or None
        if end:
            self.open = None
        payload = part if padding is None else bytes([padding]) + part + b"\0" * padding
        return frame(0, self.stream, payload, (END if end else 0) | (0 if padding is None else PADDED))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 2), st.booleans()),
        st.tuples(
            st.just("data"),
            st.integers(0, 2),
            st.lists(st.integers(0, 40), max_size=3),
            st.integers(0, 50),
            st.none() | st.integers(0, 9),
            st.booleans(),
        ),
        st.tuples(st.just("reset"), st.integers(0, 2)),
        st.tuples(st.just("other"), st.integers(0, 30)),
    ),
    max_size=20,
)


@settings(max_examples=200)
# The padding's length stands alone at a read's end, and so does the padding.
@example([("begin", 0, False), ("data", 0, [4], 20, 3, False), ("data", 0, [], 0, 0, True)], [33, 34, 1])
@given(STEPS, st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_it_counts_what_is_not_whole_however_the_bytes_come(steps: list[tuple[Any, ...]], cuts: list[int]) -> None:
    calls, data = [Call(1), Call(3), Call(5)], PREFACE
    for what, value, *more in steps:
        if what == "begin":
            if calls[value].open is None and not more[0]:
                calls[value].open = b""
            data += frame(1, calls[value].stream, b"\x83", 4 | more[0])
        elif what == "data":
            sizes, kept, padding, end = more
            part = b"".join(prefixed(size) for size in sizes)[:kept]
            data += calls[value].data(part, padding, end)
        elif what == "reset":
            calls[value].open = None
            data += frame(3, calls[value].stream, b"\0\0\0\x08")
        else:
            data += frame(8, 0, b"y" * value)
    held = sum(CALL_BYTES + len(call.open) for call in calls if call.open is not None)
    whole, pieces = UnfinishedMessages(), UnfinishedMessages()
    whole.feed(data)
    at = 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        pieces.feed(data[at : at + size])
        at += size
    assert whole.held == pieces.held == held
    assert (whole.oldest is None) == (held == 0)
    assert whole.oldest == pieces.oldest


BEGUN = PREFACE + frame(1, 1, b"\x83", 4) + frame(0, 1, b"\0" + (8 << 20).to_bytes(4, "big"))


def test_all_connections_together_hold_so_much_and_the_one_that_began_first_ends() -> None:
    async def main() -> None:
        async with behind(bounds=Bounds(unfinished_bytes=3 << 20)) as found, contextlib.AsyncExitStack() as stack:
            readers = []
            for _ in range(4):
                reader, writer = await asyncio.open_connection("127.0.0.1", found.port.server.port)
                stack.callback(writer.close)
                readers.append(reader)
                writer.write(BEGUN + frame(0, 1, b"x" * 16384) * 56)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                count = len(readers)
                await until(lambda: len(found.made) == count and (count == 4 or len(found.made[-1].came) > 900_000))  # noqa: B023
            with contextlib.suppress(ConnectionError):
                assert await readers[0].read() == b""
            assert found.port.server.bounds.ended == {"unfinished": 1, "slow": 0, "unread": 0}
            await until(lambda: len(found.port.clients.open) == 3)

    asyncio.run(main())


def test_a_message_has_so_much_time_and_a_call_without_one_too() -> None:
    async def main() -> None:
        async with behind(bounds=Bounds(unfinished_s=0.2)) as found, contextlib.AsyncExitStack() as stack:
            for begun in (BEGUN, PREFACE + frame(1, 1, b"\x83", 4)):
                reader, writer = await asyncio.open_connection("127.0.0.1", found.port.server.port)
                stack.callback(writer.close)
                writer.write(begun)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            assert found.port.server.bounds.ended["slow"] == 2

    asyncio.run(main())


def test_there_are_never_so_many_calls_without_a_message_that_grpc_cancels_others() -> None:
    # Sixty hosts have as many more that wait for the loop as one may.
    assert Bounds().unfinished_bytes / CALL_BYTES + 60 * PENDING_OF_HOST_MAX < WAITING_MAX
