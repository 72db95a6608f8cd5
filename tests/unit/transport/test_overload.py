"""What is refused when a server is behind: by wait, by reason; never replies, never what cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.live.support import run

from rocketspark.protocol import frames
from rocketspark.protocol.frames import BINARY, JSON, Frame
from rocketspark.protocol.headers import NoHeader
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import Overload, Received

pytestmark = pytest.mark.shows("SYSTEM_BUSY when the broker is behind, a maximum of connections")

SEND, PULL, OTHER = 10, 11, 12


def received(code: int, opaque: int = 1, flag: int = 0, serialization: int = JSON) -> Received:
    data = frames.encode(Frame(code=code, opaque=opaque, flag=flag, serialization=serialization))
    (item,) = frames.Splitter().feed(data)
    return item


def overload(**limits_s: float) -> Overload:
    made = Overload(lambda opaque, remark: b"%d %b" % (opaque, remark.encode()), now=lambda: 100.0)
    made.limit_waits({{"send": SEND, "pull": PULL}[name]: limit for name, limit in limits_s.items()})
    return made


@pytest.mark.parametrize("serialization", [JSON, BINARY])
def test_a_request_is_refused_once_it_waited_as_long_as_its_code_may(serialization: int) -> None:
    flow = overload(send=0.2, pull=5.0)
    assert flow.least_s == 0.2
    items = [received(code, code, serialization=serialization) for code in (SEND, PULL, OTHER)]
    assert flow.sift(items, 0.199) == (items, [])
    remark = b"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: "
    remark += b"%d"
    assert flow.sift(items, 0.2) == (items[1:], [b"10 " + remark % (200, 2)])
    assert flow.sift(items, 7.0) == (items[2:], [b"10 " + remark % (7000, 2), b"11 " + remark % (7000, 1)])
    assert flow.refused_count == 3


def test_a_wait_counts_once_its_turn_went_on_for_as_long_again() -> None:
    now = [0.0]
    soon: list[Callable[[], None]] = []
    flow = Overload(lambda opaque, remark: b"", now=lambda: now[0], call_soon=soon.append)
    flow.limit_waits({SEND: 0.25})

    def waited(now_s: float) -> float:
        now[0] = now_s
        return flow.waited()

    # What is read at 10.25 may be late by one hiccup; at 10.5 it is not.
    assert [waited(s) for s in (10, 10.125, 10.25, 10.375, 10.5, 11)] == [0, 0.125, 0, 0, 0.5, 1]
    assert len(soon) == 1
    soon.pop()()
    assert [waited(s) for s in (11.5, 12, 12.5)] == [0, 0, 1]
    soon.pop()()
    # A turn right after another is not watched at once.
    assert [waited(s) for s in (20, 20.001)] == [0, pytest.approx(0.001)]
    soon.pop()()
    assert [waited(s) for s in (20.005, 20.009, 20.015)] == [0, 0, 0]
    assert len(soon) == 1
    assert waited(20.515) == 0
    assert waited(20.765) == pytest.approx(0.75)


def test_without_limits_nothing_is_refused() -> None:
    flow = overload()
    assert flow.least_s == float("inf")
    assert flow.sift([received(SEND)], 1e9) == ([received(SEND)], [])


def test_a_reason_refuses_its_codes_until_it_ends() -> None:
    flow = overload(send=0.2)
    flow.refuse([SEND], "disk", "the disk")
    flow.refuse([SEND], "flush", "the flush")
    assert flow.refusing
    assert flow.sift([received(SEND, 3), received(PULL)], 0.0) == ([received(PULL)], [b"3 the disk"])
    flow.refuse([SEND], "disk", None)
    assert flow.sift([received(SEND, 4)], 0.0) == ([], [b"4 the flush"])
    flow.refuse([SEND], "flush", None)
    assert not flow.refusing
    assert flow.sift([received(SEND)], 0.0) == ([received(SEND)], [])


def test_one_way_requests_go_without_a_word_and_replies_and_garbage_stay() -> None:
    flow = overload(send=0.2)
    reply_item, broken = received(SEND, flag=frames.RESPONSE_FLAG), (JSON, b"no json", b"")
    items = [received(SEND, flag=frames.ONEWAY_FLAG), reply_item, broken, (9, b"", b"")]
    assert flow.sift(items, 1.0) == (items[1:], [])


def test_the_log_says_so_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now_s = 100.0
    flow = Overload(lambda opaque, remark: b"", now=lambda: now_s)
    flow.limit_waits({SEND: 0.2})
    for now_s in (100.0, 100.5, 100.9, 101.0):  # noqa: B007
        flow.sift([received(SEND), received(SEND)], 0.25)
    assert [r.message for r in caplog.records] == [
        "2 requests refused (SYSTEM_BUSY), 2 so far: they waited for 250 ms",
        "2 requests refused (SYSTEM_BUSY), 8 so far: they waited for 250 ms",
    ]


def test_a_server_serves_what_is_in_time_and_refuses_the_rest_of_a_long_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.transport.peer.SLICE", 4)

    async def main() -> None:
        lag_s = 0.0

        def slow(peer: Peer, request: Any, body: bytes) -> bytes:
            nonlocal lag_s
            lag_s += 0.03
            return reply(request.opaque, body=body)

        routes = Routes()
        routes.add(SEND, slow, NoHeader)
        routes.add(PULL, lambda peer, request, body: reply(request.opaque, body=body), NoHeader)
        routes.overload = Overload(lambda opaque, _: reply(opaque, 2), now=lambda: lag_s)
        routes.overload.limit_waits({SEND: 0.2})
        server = Server(routes)
        await server.start("127.0.0.1", 0)
        peer = await dial(server.address)
        # One write is one read here. By this clock four sends take 0.12 s: after eight they are late, after sixteen
        # that is no hiccup any more.
        asked = [peer.ask(code, None, b"%d" % n) for n, code in enumerate([SEND] * 20 + [PULL])]
        answers = await asyncio.gather(*asked)
        assert [a.code for a in answers] == [0] * 16 + [2] * 4 + [0]
        assert answers[-1].body == b"20"
        lag_s = 0.0
        assert (await peer.request(SEND)).code == 0
        peer.close()
        await server.close()

    run(main())
