"""Calls wait for the loop in one line: what one connection, and one host, put there is bounded by what was answered."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.test_port import Kept, behind, dial, until
from tests.unit.proxy.test_unfinished import END, frame, prefixed

from rocketspark.proxy import port as port_module
from rocketspark.proxy.wire.http2 import Frames, UnfinishedMessages
from rocketspark.transport.tls.first_bytes import PREFACE
from rocketspark.transport.tls.settings import TlsSettings

pytestmark = pytest.mark.shows("gRPC: a flood of calls has nobody else's cancelled, and does not grow")

HEADERS, RST_STREAM = 1, 3
MESSAGE = prefixed(3)


def call(stream: int) -> bytes:
    return frame(HEADERS, stream, b"head") + frame(0, stream, MESSAGE, END)


def came(kept: Kept) -> int:
    """The calls that the server got, whole."""
    return kept.came.count(MESSAGE)


@given(st.integers(0, 5), st.integers(1, 9), st.lists(st.integers(1, 30), max_size=8), st.integers(0, 12))
def test_what_is_left_for_later_is_taken_then(calls_max: int, frames_max: int, cuts: list[int], count: int) -> None:
    """In whatever pieces it comes."""
    data = PREFACE + b"".join(call(2 * number + 1) for number in range(count)) + frame(6, 0, b"8 octets")
    messages, begun, held = UnfinishedMessages(), list[int](), b""
    while data or held:
        size = cuts.pop() if cuts else len(data)
        held, data = held + data[:size], data[size:]
        at = messages.feed(held, calls_max, frames_max)
        assert len(messages.begun) <= calls_max + 1
        # All frames have their heads of nine bytes.
        assert at == len(held) or len(messages.begun) == calls_max + 1 or at <= frames_max * 17 + len(PREFACE)
        begun += messages.begun
        held = held[at:]
    assert begun == [2 * number + 1 for number in range(count)]
    assert messages.held == 0


def test_frames_that_carry_nothing_let_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read may hold tens of thousands, and hold the loop for a twentieth of a second."""
    monkeypatch.setattr(port_module, "FRAMES_IN_TURN", 8)
    taken, feed = list[int](), UnfinishedMessages.feed

    def noted(self: UnfinishedMessages, data: bytes, *bounds: float) -> int:
        taken.append(feed(self, data, *bounds))
        return taken[-1]

    async def run() -> None:
        monkeypatch.setattr(UnfinishedMessages, "feed", noted)
        nothing, last = frame(8, 0, b"\0\0\0\1") * 2000, frame(6, 0, b"the last")
        async with behind() as b:
            _, writer = await dial(b.port)
            writer.write(PREFACE + nothing + last)
            kept = await b.one()
            await until(lambda: kept.came.endswith(last))
            assert kept.came == PREFACE + nothing + last
            assert max(taken) <= len(PREFACE) + 8 * len(frame(8, 0, b"\0\0\0\1")) + len(last)
            # What ends in the midst of it leaves nothing.
            writer.write(nothing)
            await until(lambda: len(kept.came) > len(PREFACE + nothing + last))
            kept.transport.abort()
            await until(lambda: not b.port.clients.open)

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=12))), st.data()
)
def test_frames_are_told_in_whatever_pieces_they_come(
    frames: list[tuple[int, int, int, bytes]], cut: st.DataObject
) -> None:
    data = b"".join(frame(kind, stream, payload, flags) for kind, flags, stream, payload in frames)
    reader, found = Frames(), list[tuple[int, int, int]]()
    while data:
        size = cut.draw(st.integers(1, len(data)))
        found += reader.feed(data[:size])
        data = data[size:]
    assert found == [(kind, flags, stream) for kind, flags, stream, _ in frames]


def test_calls_wait_in_their_connection_until_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "PENDING_MAX", 3)
    monkeypatch.setattr(port_module, "PENDING_OF_HOST_MAX", 5)

    async def run() -> None:
        async with behind() as b:
            _, first = await dial(b.port)
            first.write(PREFACE + b"".join(call(2 * number + 1) for number in range(9)))
            one = await b.one()
            await until(lambda: came(one) == 4)
            _, second = await dial(b.port)
            second.write(PREFACE + b"".join(call(2 * number + 1) for number in range(9)))
            await until(lambda: len(b.made) == 2)
            other = b.made[1]
            # One past the bound, as it is noticed with the call that is too many.
            await until(lambda: came(other) == 2)
            clients = b.port.clients
            assert (clients.pending, len(clients.waiting)) == ({"127.0.0.1": 6}, 2)
            one.transport.write(b"".join(frame(HEADERS, stream) for stream in (1, 3, 5)))
            await until(lambda: came(one) + came(other) > 7)
            for number in range(9):
                one.transport.write(frame(HEADERS, 2 * number + 1))
                other.transport.write(frame(RST_STREAM, 2 * number + 1))
                await asyncio.sleep(0)
            await until(lambda: came(one) == came(other) == 9)
            first.close()
            second.close()
            await until(lambda: not clients.open)
            assert (clients.pending, clients.waiting) == ({}, {})

    asyncio.run(run())


def test_calls_from_one_network_of_ipv6_wait_as_those_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "PENDING_OF_HOST_MAX", 2)

    async def run() -> None:
        async with behind(tls=TlsSettings(proxy_networks="127.0.0.1")) as b:
            for number in (1, 2):
                _, writer = await dial(b.port)
                writer.write(f"PROXY TCP6 2001:db8::{number} 2001:db8::9 4711 443\r\n".encode())
                writer.write(PREFACE + b"".join(call(2 * each + 1) for each in range(9)))
                await b.one()
            clients = b.port.clients
            await until(lambda: len(clients.waiting) == 2)
            # One past the bound, as it is noticed with the call that is too many.
            assert clients.pending == {"2001:db8::/64": 4}

    asyncio.run(run())


def test_a_call_that_was_ended_or_given_up_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "GIVEN_UP_S", 0.0)

    async def run() -> None:
        async with behind() as b:
            _, writer = await dial(b.port)
            writer.write(PREFACE + frame(HEADERS, 1, b"head") + frame(0, 1, MESSAGE[:4]) + call(3) + call(5))
            kept = await b.one()
            [relay] = b.port.clients.open
            await until(lambda: relay.pending_count == 2)
            # The first one before it was whole, as one that nobody serves.
            kept.transport.write(frame(HEADERS, 1, b"status", END) + frame(0, 3, b"answer"))
            await until(lambda: relay.pending_count == 1)
            writer.write(frame(0, 1, MESSAGE[4:], END) + frame(RST_STREAM, 5, bytes(4)))
            await until(lambda: not relay.pending_count)
            assert not b.port.clients.pending
            assert relay.unfinished_frame is None
            writer.close()

    asyncio.run(run())


def test_calls_whose_messages_are_to_come_are_begun_slowly_and_whole_ones_of_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server begins each of them, in one line with all others, and answers nothing until its message is there."""
    monkeypatch.setattr(port_module, "PENDING_MAX", 5)
    monkeypatch.setattr(port_module, "PENDING_OF_HOST_MAX", 8)
    monkeypatch.setattr(port_module, "ENTERED_SLOWLY", 2)
    monkeypatch.setattr(port_module, "ENTER_S", 3600.0)
    begun = [frame(HEADERS, 2 * number + 1, b"head") for number in range(40)]

    async def run() -> None:
        async with behind() as b:
            clients = b.port.clients
            (_, first), (_, second) = await dial(b.port), await dial(b.port)
            first.write(PREFACE + b"".join(begun))
            kept = await b.one()
            await until(lambda: clients.slowed.total() == 1)
            # Of the last one the head of its frame.
            slowly = PREFACE + b"".join(begun[: 5 + 2 - 1]) + begun[6][:9]
            await until(lambda: len(kept.came) >= len(slowly))
            assert kept.came == slowly
            # Whole ones of the host do not wait, then its others do here too.
            second.write(PREFACE + call(1) + call(3) + b"".join(begun[2:]))
            await until(lambda: clients.slowed.total() == 2)
            other = next(each for each in b.made if each is not kept)
            slowly = PREFACE + call(1) + call(3) + begun[2] + begun[3][:9]
            await until(lambda: len(other.came) >= len(slowly))
            assert other.came == slowly
            # All come in the end, also where messages stand behind further calls.
            for name in ("PENDING_MAX", "PENDING_OF_HOST_MAX"):
                monkeypatch.setattr(port_module, name, 1000)
            messages = b"".join(frame(0, 2 * number + 1, MESSAGE, END) for number in range(40))
            first.write(messages)
            for relay in list(clients.open):
                relay.go_on()
            whole = PREFACE + b"".join(begun) + messages
            await until(lambda: len(kept.came) >= len(whole))
            assert kept.came == whole
            for each in b.made:
                each.transport.abort()
            await until(lambda: not (clients.open or clients.unfinished or clients.slowed))

    asyncio.run(run())
