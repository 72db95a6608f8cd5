"""One connection: requests and replies both ways, time-outs, losses, and a side that does not keep to the rules."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.live.support import run, until
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.errors import ConnectionLost, FrameError, NoReply, NotSent, ServerError, StoreFull
from rocketspark.protocol import frames, headers
from rocketspark.protocol.frames import Frame
from rocketspark.transport import outgoing, pending_requests
from rocketspark.transport import peer as peers
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import Parts, Reply, reply
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import Bounds

ECHO, SLOW, FAIL, REFUSE, NEVER, LATER, BIG, TYPED, WORK, PARTED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 4001


class Pair:
    """A server with some handlers, and a client's connection to it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes]] = []
        self.closed: list[Peer] = []
        self.release = asyncio.Event()
        self.big = bytes(1 << 20)
        self.routes = routes = Routes()
        routes.add(ECHO, self.echo)
        routes.add(SLOW, self.slow)
        routes.add(FAIL, self.fail)
        routes.add(REFUSE, self.refuse)
        routes.add(NEVER, lambda peer, request, body: None)
        routes.add(LATER, self.later)
        routes.add(BIG, lambda peer, request, body: reply(request.opaque, body=self.big))
        routes.add(PARTED, self.parted)
        routes.add(TYPED, self.typed, headers.QueueHeader)
        self.server = Server(routes, on_close=self.closed.append)

    def echo(self, peer: Peer, request: Any, body: bytes) -> bytes:
        self.seen.append((request.code, body))
        return reply(request.opaque, header={"said": "yes"}, body=body)

    def parted(self, peer: Peer, request: Any, body: bytes) -> Parts:
        whole = reply(request.opaque, body=self.big)
        cut = len(whole) - len(self.big)
        body_view = memoryview(self.big)
        return Parts(whole[:cut], (body_view[:700_001], body_view[700_001:]))

    async def slow(self, peer: Peer, request: Any, body: bytes) -> bytes:
        await self.release.wait()
        if body == b"fail":
            raise StoreFull("no room")
        return reply(request.opaque, body=body)

    def fail(self, peer: Peer, request: Any, body: bytes) -> bytes:
        raise RuntimeError("broken handler")

    def refuse(self, peer: Peer, request: Any, body: bytes) -> bytes:
        raise ServerError(17, "no such topic")

    def later(self, peer: Peer, request: Any, body: bytes) -> None:
        peer.loop.call_later(0.01, peer.send, reply(request.opaque, body=b"later"))

    def typed(self, peer: Peer, request: Any, body: bytes) -> bytes:
        return reply(request.opaque, header=request.ext)


@asynccontextmanager
async def pair(routes: Routes | None = None, **arguments: Any) -> AsyncIterator[tuple[Pair, Peer]]:
    made = Pair()
    await made.server.start("127.0.0.1", 0)
    peer = await dial(made.server.address, routes, **arguments)
    try:
        yield made, peer
    finally:
        peer.abort()
        await made.server.close()


@asynccontextmanager
async def raw(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def frame_of(reader: asyncio.StreamReader) -> Frame:
    head = await asyncio.wait_for(reader.readexactly(4), 120)
    return frames.decode(head + await asyncio.wait_for(reader.readexactly(int.from_bytes(head, "big")), 120))


def test_many_requests_in_flight_each_get_their_own_reply() -> None:
    async def main() -> None:
        async with pair() as (_, peer):
            replies = await asyncio.gather(*(peer.request(ECHO, None, b"%d" % n) for n in range(500)))
            assert [r.body for r in replies] == [b"%d" % n for n in range(500)]
            assert all((r.code, r.remark) == (0, None) for r in replies)
            assert msg_ext(replies[0]) == {"said": "yes"}

    run(main())


def msg_ext(answer: Reply) -> dict[str, str]:
    import msgspec

    found: dict[str, str] = msgspec.json.decode(answer.ext)
    return found


def test_replies_may_come_in_any_order_and_later() -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            slow = peer.ask(SLOW, None, b"slow")
            later = peer.ask(LATER, None)
            assert (await peer.request(ECHO, None, b"quick")).body == b"quick"
            assert (await later).body == b"later"
            assert not slow.done()
            made.release.set()
            assert (await slow).body == b"slow"

    run(main())


def test_both_sides_may_ask() -> None:
    async def main() -> None:
        routes = Routes()
        routes.add(9, lambda peer, request, body: reply(request.opaque, body=b"from client " + body))
        async with pair(routes) as (made, peer):
            assert (await peer.request(ECHO, None, b"a")).body == b"a"
            (other,) = made.server.peers
            replies = await asyncio.gather(
                *(other.request(9, None, b"%d" % n) for n in range(20)),
                *(peer.request(ECHO, None, b"%d" % n) for n in range(20)),
            )
            assert [r.body for r in replies[:20]] == [b"from client %d" % n for n in range(20)]
            assert [r.body for r in replies[20:]] == [b"%d" % n for n in range(20)]
            # What this side does not serve.
            assert (await other.request(77)).code == 3

    run(main())


def test_one_way_requests_are_carried_out_and_never_answered() -> None:
    async def main() -> None:
        async with pair() as (made, peer), raw(made.server) as (reader, writer):
            for code in (ECHO, SLOW, FAIL, REFUSE, TYPED, 4711):
                writer.write(frames.encode(Frame(code=code, opaque=code, flag=2, body=b"silent")))
                binary = Frame(code=code, opaque=code, flag=2, body=b"silent", serialization=frames.BINARY)
                writer.write(frames.encode(binary))
            made.release.set()
            writer.write(frames.encode(Frame(code=ECHO, opaque=99, body=b"asked")))
            answer = await frame_of(reader)
            assert (answer.opaque, answer.body) == (99, b"asked")
            assert made.seen == [(ECHO, b"silent")] * 2 + [(ECHO, b"asked")]
            peer.oneway(ECHO, None, b"ours")
            await until(lambda: made.seen[-1] == (ECHO, b"ours"))

    run(main())


def test_what_a_handler_raises_becomes_a_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            answer = await peer.request(REFUSE)
            assert (answer.code, answer.remark) == (17, "no such topic")
            answer = await peer.request(FAIL)
            assert (answer.code, answer.remark) == (1, "RuntimeError: broken handler")
            made.release.set()
            answer = await peer.request(SLOW, None, b"fail")
            assert (answer.code, answer.remark) == (1, "StoreFull: no room")
            assert (await peer.request(ECHO, None, b"on")).body == b"on"

    run(main())
    assert [r.levelname for r in caplog.records if "failed" in r.message] == ["ERROR", "WARNING"]


def test_a_missing_or_wrong_header_field_is_named() -> None:
    async def main() -> None:
        async with pair() as (_, peer):
            for ext, field in (({"topic": "T"}, "queueId"), ({"topic": "T", "queueId": "x"}, "queueId"), ({}, "topic")):
                answer = await peer.request(TYPED, ext)
                assert (answer.code, field in (answer.remark or "")) == (1, True)
            good = await peer.request(TYPED, headers.QueueHeader(topic="T", queue_id=4))
            assert good.header(headers.QueueHeader) == headers.QueueHeader(topic="T", queue_id=4)
            with pytest.raises(FrameError, match="OffsetReply"):
                good.header(headers.OffsetReply)

    run(main())


@pytest.mark.shows("broker: unknown codes are answered")
def test_unknown_codes_get_the_protocol_s_own_answer() -> None:
    async def main() -> None:
        async with pair() as (_, peer):
            for code in (0, -5, 4711, 200050, 2**31 - 1):
                answer = await peer.request(code)
                assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    run(main())


@pytest.mark.parametrize("code", [ECHO, 4711])
def test_binary_requests_are_answered_in_json(code: int) -> None:
    async def main() -> None:
        async with pair() as (made, _), raw(made.server) as (reader, writer):
            asked = Frame(
                code=code, opaque=-7, body=b"binary", serialization=frames.BINARY, language="CPP", version=317
            )
            writer.write(frames.encode(asked))
            answer = await frame_of(reader)
            assert (answer.serialization, answer.opaque, answer.flag) == (frames.JSON, -7, 1)
            assert (answer.language, answer.version) == ("JAVA", frames.VERSION)
            assert (answer.code, answer.body) == ((0, b"binary") if code == ECHO else (3, b""))

    run(main())


def test_binary_replies_are_read() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await frame_of(reader)
            answer = Frame(
                code=0, opaque=asked.opaque, flag=1, ext={"offset": "7"}, body=b"b", serialization=frames.BINARY
            )
            # A reply nobody asked for is dropped.
            writer.write(frames.encode(Frame(code=0, opaque=4711, flag=1)) + frames.encode(answer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        peer = await dial(f"127.0.0.1:{port}")
        answer = await peer.request(30)
        assert answer.header(headers.OffsetReply).offset == 7
        assert answer.body == b"b"
        peer.close()
        server.close()

    run(main())


def test_the_keys_of_a_request_may_stand_in_any_order() -> None:
    async def main() -> None:
        async with pair() as (made, _), raw(made.server) as (reader, writer):
            written = [
                b'{"code":8,"extFields":{"topic":"T","queueId":"1"},"opaque":1}',
                b'{"opaque":2,"extFields":{"queueId":1,"topic":"T"},"code":8}',
                b' { "code" : 8 , "extFields" : {"topic":"T","queueId":"1"}, "opaque" : 3 } ',
                b'{"code":"8","extFields":{"topic":"T","queueId":"1"},"opaque":"4"}',
                b'{"code":8,"language":"GO","x":{"code":9},"extFields":{"topic":"T","queueId":"1"},"opaque":5}',
            ]
            for header in written:
                writer.write(frames.join(header))
            for n in range(1, 6):
                answer = await frame_of(reader)
                assert (answer.code, answer.opaque, answer.ext) == (0, n, {"topic": "T", "queueId": "1"}), answer
            # Nothing but a code.
            writer.write(frames.join(b'{"code":1}', b"bare"))
            assert (await frame_of(reader)).body == b"bare"

    run(main())


def test_no_reply_in_time() -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            started = time.perf_counter()
            with pytest.raises(NoReply, match=f"5 to {made.server.address}: no reply within 50 ms") as e:
                await peer.request(NEVER, timeout_ms=50)
            assert 0.04 < time.perf_counter() - started < 50
            assert e.value.address == made.server.address
            # A reply that comes too late is dropped; the connection goes on.
            with pytest.raises(NoReply):
                await peer.request(SLOW, timeout_ms=20)
            made.release.set()
            assert (await peer.request(ECHO, None, b"on")).body == b"on"
            assert not peer._pending

    run(main())


def test_time_outs_that_are_looked_at_together_end_each_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_requests, "SWEPT_MS_MIN", 10)

    async def main() -> None:
        async with pair() as (made, peer):
            long, short, middle = (asyncio.ensure_future(peer.request(SLOW, timeout_ms=ms)) for ms in (9e5, 30, 60))
            for each in (short, middle):
                with pytest.raises(NoReply):
                    await each
                assert not long.done()
            made.release.set()
            assert (await long).code == 0
            with pytest.raises(NoReply):
                await peer.request(NEVER, timeout_ms=30)

    run(main())


@pytest.mark.shows("60,000 small sends at once on one connection")
def test_a_client_reads_replies_while_the_server_waits_for_it_to() -> None:
    async def main() -> None:
        async with pair() as (_, peer):
            body = bytes(60_000)
            # Both directions are full: neither side gets rid of what it writes unless the client reads.
            replies = await asyncio.gather(*(peer.ask(ECHO, None, body) for _ in range(600)))
            assert all(r.body == body for r in replies)
            assert peer.is_writable

    run(main())


def test_requests_in_flight_when_the_connection_ends() -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            futures = [peer.ask(NEVER, None) for _ in range(3)]
            await peer.request(ECHO)
            next(iter(made.server.peers)).abort()
            for future in futures:
                with pytest.raises(ConnectionLost, match="may have been carried out"):
                    await future
            await peer.wait_closed()
            assert not peer.is_open
            for act in (lambda: peer.ask(ECHO, None), lambda: peer.oneway(ECHO)):
                with pytest.raises(NotSent, match="no connection to"):
                    act()
            with pytest.raises(NotSent):
                await peer.request(ECHO)
            peer.send(b"dropped")
            peer.close()
            assert len(made.closed) == 1

    run(main())


def test_a_reply_with_a_code_is_returned_or_raised() -> None:
    answer = Reply(17, "no topic", b"{}", b"", "h:1")
    assert answer.raise_for_code("route", 17) is answer
    with pytest.raises(ServerError, match="route: code 17 from h:1: no topic") as e:
        answer.raise_for_code("route")
    assert (e.value.code, e.value.remark, e.value.retriable) == (17, "no topic", True)
    assert not ServerError(13, None).retriable


GARBLED = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c403035f"),
    "zeros": bytes(64),
    "negative length": struct.pack(">i", -1) + bytes(20),
    "oversize length": struct.pack(">ii", (16 << 20) + 1, 10),
    "header beyond the frame": struct.pack(">ii", 20, 17) + bytes(16),
    "no json": frames.join(b"hello"),
    "json array": frames.join(b"[1,2]"),
    "no code": frames.join(b'{"opaque":1}'),
    "no utf-8": frames.join(b'{"code":"\xff"}'),
    "deep": frames.join(b'{"code":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "unknown form": frames.join(b"{}", serialization=9),
    "binary garbage": frames.join(b"\xff" * 30, serialization=1),
    "empty binary": frames.join(b"", serialization=1),
}


@pytest.mark.parametrize("data", GARBLED.values(), ids=list(GARBLED))
def test_a_broken_frame_ends_its_connection_alone_with_one_line(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with pair() as (made, peer), raw(made.server) as (reader, writer):
            future = peer.ask(SLOW, None, b"waiting")
            # What came before the broken frame is answered.
            writer.write(frames.encode(Frame(code=ECHO, opaque=1, body=b"before")))
            assert (await frame_of(reader)).body == b"before"
            writer.write(data)
            assert await asyncio.wait_for(reader.read(), 120) == b""
            await until(lambda: len(made.server.peers) == 1)
            made.release.set()
            assert (await future).body == b"waiting"
            assert (await peer.request(ECHO, None, b"on")).body == b"on"

    run(main())
    (line,) = [r for r in caplog.records if r.name.startswith("rocketspark")]
    assert "sent a broken frame" in line.message
    assert line.exc_info is None


def test_a_connection_that_ends_within_a_frame() -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            data = frames.encode(Frame(code=ECHO, body=bytes(1000)))
            for size in (1, 4, 7, 8, 50, len(data) - 1):
                async with raw(made.server) as (_, writer):
                    writer.write(data[:size])
                    await writer.drain()
                await until(lambda: len(made.server.peers) == 1)
            assert made.seen == []
            assert (await peer.request(ECHO, None, b"on")).body == b"on"

    run(main())


def test_a_frame_that_trickles_in_is_served() -> None:
    async def main() -> None:
        async with pair() as (made, _), raw(made.server) as (reader, writer):
            data = frames.encode(Frame(code=ECHO, opaque=3, body=b"trickle")) * 2
            for i in range(0, len(data), 7):
                writer.write(data[i : i + 7])
                await writer.drain()
                await asyncio.sleep(0)
            assert [(await frame_of(reader)).body for _ in range(2)] == [b"trickle"] * 2

    run(main())


def test_the_largest_frames_pass_both_ways() -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            body = bytes(range(256)) * (62 << 10)
            answer = await peer.request(ECHO, None, body)
            assert answer.body == body
            with pytest.raises(FrameError, match="send smaller messages"):
                await peer.request(ECHO, None, bytes(16 << 20))
            assert (await peer.request(ECHO, None, b"on")).body == b"on"
            # A reply over the limit is not written: the asker is told.
            made.big = bytes(16 << 20)
            answer = await peer.request(BIG)
            assert (answer.code, "over the limit" in (answer.remark or "")) == (1, True)

    run(main())


def test_a_peer_that_does_not_read_is_not_read_from_and_then_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outgoing, "STALLED_WRITE_S", 0.3)

    async def main() -> None:
        async with pair() as (made, peer), raw(made.server) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            asked = 60
            for n in range(asked):
                writer.write(frames.encode(Frame(code=BIG, opaque=n)))
            await until(lambda: any(not p.is_writable for p in made.server.peers))
            assert (await peer.request(ECHO, None, b"on")).body == b"on"
            await until(lambda: len(made.server.peers) == 1)
            assert (await peer.request(ECHO, None, b"on")).body == b"on"

    run(main())
    assert "does not read its replies" in caplog.text


@pytest.mark.shows("flow control and limits: bounded memory per connection")
@pytest.mark.parametrize("code", [BIG, PARTED])
def test_pipelined_requests_with_large_replies_wait_for_the_reader(code: int) -> None:
    async def main() -> None:
        async with pair() as (made, _), raw(made.server) as (reader, writer):
            count = 60
            for n in range(count):
                writer.write(frames.encode(Frame(code=code, opaque=n)))
            writer.write(frames.encode(Frame(code=ECHO, opaque=count, body=b"last")))
            (asking,) = [p for p in made.server.peers if p.remote_port == writer.get_extra_info("sockname")[1]]
            await until(lambda: not asking.is_writable)
            # 60 MiB are asked for; what is made of them is bounded, the rest is held as requests.
            assert asking._transport is not None
            assert asking._transport.get_write_buffer_size() < 12 << 20
            assert made.seen == []
            found = [await frame_of(reader) for _ in range(count + 1)]
            assert [f.opaque for f in found] == list(range(count + 1))
            assert all(f.body == made.big for f in found[:-1])
            assert made.seen == [(ECHO, b"last")]

    run(main())


def test_a_handler_that_worked_for_long_lets_the_others_have_a_turn() -> None:
    async def main() -> None:
        served: list[int] = []

        def work(peer: Peer, request: Any, body: bytes) -> bytes:
            served.append(request.opaque)
            peer.rest()
            return reply(request.opaque)

        async with pair() as (made, _), raw(made.server) as (reader, writer):
            made.routes.add(WORK, work)
            turns: list[int] = []
            loop = asyncio.get_running_loop()

            def turn() -> None:
                turns.append(len(served))
                if len(served) < 20:
                    loop.call_soon(turn)

            turn()
            # In one write: 20 that work for long, the last of them followed by one that does not.
            asked = [frames.encode(Frame(code=WORK, opaque=n)) for n in range(20)]
            writer.write(b"".join([*asked, frames.encode(Frame(code=ECHO, opaque=20, body=b"last"))]))
            found = [await frame_of(reader) for _ in range(21)]
            assert [f.opaque for f in found] == list(range(21))
            # No turn of the loop served two of them.
            assert all(after - before <= 1 for before, after in pairwise(turns))
            # Reading goes on.
            writer.write(frames.encode(Frame(code=ECHO, opaque=21)))
            assert (await frame_of(reader)).opaque == 21

    run(main())


@pytest.mark.shows("a read full of short requests leaves turns to others: 5 ms, 8 tasks")
def test_many_requests_of_one_read_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is short, all of them together are not: 1,500 of a read took up to a second."""

    async def main() -> None:
        served: list[int] = []
        # 1 ms each.
        monkeypatch.setattr(peers, "machine", like(machine, perf_counter=lambda: len(served) / 1000))

        def work(peer: Peer, request: Any, body: bytes) -> bytes:
            served.append(request.opaque)
            return reply(request.opaque)

        async with pair() as (made, _), raw(made.server) as (reader, writer):
            made.routes.add(WORK, work)
            turns: list[int] = []
            loop = asyncio.get_running_loop()

            def turn() -> None:
                turns.append(len(served))
                if len(served) < 600:
                    loop.call_soon(turn)

            turn()
            writer.write(b"".join(frames.encode(Frame(code=WORK, opaque=n)) for n in range(600)))
            assert [(await frame_of(reader)).opaque for _ in range(600)] == list(range(600))
            assert max(after - before for before, after in pairwise(turns)) <= peers.TURN_S * 1000 + 2

    run(main())


@pytest.mark.shows("a read full of short requests leaves turns to others: 5 ms, 8 tasks")
def test_few_of_the_requests_of_one_read_are_begun_in_tasks_in_one_turn() -> None:
    """What 900 of them did first was done in one turn: 0.8 s of resets of offsets."""

    async def main() -> None:
        begun: list[int] = []

        async def work(peer: Peer, request: Any, body: bytes) -> bytes:
            begun.append(request.opaque)
            await asyncio.sleep(0)
            return reply(request.opaque)

        async with pair() as (made, _), raw(made.server) as (reader, writer):
            made.routes.add(WORK, work)
            turns: list[int] = []
            loop = asyncio.get_running_loop()

            def turn() -> None:
                turns.append(len(begun))
                if len(begun) < 200:
                    loop.call_soon(turn)

            turn()
            writer.write(b"".join(frames.encode(Frame(code=WORK, opaque=n)) for n in range(200)))
            assert sorted([(await frame_of(reader)).opaque for _ in range(200)]) == list(range(200))
            assert begun == list(range(200))
            assert max(after - before for before, after in pairwise(turns)) <= peers.TASKS_IN_TURN

    run(main())


def test_a_peer_that_reads_slowly_gets_everything() -> None:
    async def main() -> None:
        async with pair() as (made, _), raw(made.server) as (reader, writer):
            for n in range(20):
                writer.write(frames.encode(Frame(code=BIG, opaque=n)))
            await until(lambda: any(not p.is_writable for p in made.server.peers))
            for n in range(20):
                answer = await frame_of(reader)
                assert (answer.opaque, len(answer.body)) == (n, 1 << 20)
            await until(lambda: all(p.is_writable for p in made.server.peers))

    run(main())


def test_replies_in_parts_keep_their_place_among_others() -> None:
    async def main() -> None:
        async with pair() as (made, _), raw(made.server) as (reader, writer):
            made.big = bytes(range(256)) * 4096
            # Whole, in parts and refused, in one read; then a broken frame, before which all is answered.
            codes = [ECHO, PARTED, REFUSE, PARTED, ECHO, PARTED]
            sent = b"".join(frames.encode(Frame(code=code, opaque=n)) for n, code in enumerate(codes))
            one_way = frames.encode(Frame(code=PARTED, opaque=9, flag=frames.ONEWAY_FLAG))
            writer.write(sent + one_way + struct.pack(">ii", 12, 8) + b"no JSON.")
            found = [await frame_of(reader) for _ in codes]
            assert [f.opaque for f in found] == list(range(len(codes)))
            assert [f.body == made.big for f in found] == [code == PARTED for code in codes]
            assert await reader.read() == b""

    run(main())


def test_an_idle_connection_is_closed_an_active_one_is_not() -> None:
    async def main() -> None:
        routes = Routes()
        routes.add(ECHO, lambda peer, request, body: reply(request.opaque))
        server = Server(routes, idle_s=1.5)
        await server.start("127.0.0.1", 0)
        idle, active = await dial(server.address), await dial(server.address)
        while idle.is_open:
            await active.request(ECHO)
            await asyncio.sleep(0.02)
        assert active.is_open
        active.close()
        await server.close()

    run(main())


def test_a_server_without_an_idle_time_looks_for_unfinished_frames_alone() -> None:
    async def main() -> None:
        server = Server(Routes(), idle_s=math.inf, bounds=Bounds(unfinished_s=0.02))
        await server.start("127.0.0.1", 0)
        peer = await dial(server.address)
        late = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, late.set)
        await late.wait()
        assert peer.is_open
        peer.close()
        await server.close()

    run(main())


def test_a_server_that_closes_answers_what_it_has_and_ends_all_connections() -> None:
    async def main() -> None:
        async with pair() as (made, peer):
            assert (await peer.request(ECHO, None, b"x")).body == b"x"
            others = [await dial(made.server.address) for _ in range(5)]
            await until(lambda: len(made.server.peers) == 6)
            await made.server.close()
            await asyncio.gather(*(p.wait_closed() for p in (peer, *others)))
            assert made.server.peers == set()
            with pytest.raises(NotSent):
                await dial(made.server.address, timeout_ms=200)
            await made.server.close()

    run(main())
