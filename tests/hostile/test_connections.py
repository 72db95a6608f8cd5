"""Attacks on what connections may hold, each beside a normal client on the same broker."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.hostile.beside import beside, request
from tests.live.support import TOPIC, connected, pull_header, run, until

from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame

pytestmark = pytest.mark.shows(
    "bounds of connections, frames, headers, held pulls, unread replies, log lines, on brokers, NameServers "
    "and controllers: each row of docs/develop/bounds.md is an attack beside a normal client"
)

# The head of a frame of 16 MiB, whose header has 10 bytes.
BEGIN = (16 << 20).to_bytes(4, "big") + (10).to_bytes(4, "big")


def lines(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in r.getMessage() for r in caplog.records)


def pull_frame(opaque: int, offset: int = 0, suspend_ms: int = 60_000) -> bytes:
    """A pull that is held if there is nothing."""
    header = pull_header(TOPIC, 0, offset, sys_flag=6, suspend_ms=suspend_ms)
    return request(RequestCode.PULL_MESSAGE, headers.to_ext(header), opaque=opaque)


def test_frames_that_drip(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rocketspark")

    async def main() -> None:
        async with beside(tmp_path, unfinished_frame_ms=400) as under:
            strangers = [await under.raw() for _ in range(20)]
            # The first bytes of a length, and a large frame, a byte at a time.
            for number, raw in enumerate(strangers):
                await raw.write(BEGIN[:2] if number % 2 else BEGIN + b"x")

            async def drip() -> None:
                while True:
                    for raw in strangers:
                        raw.writer.write(b"\0")
                    await asyncio.sleep(0.05)

            dripping = asyncio.ensure_future(drip())
            assert await asyncio.gather(*(raw.closed() for raw in strangers)) == [True] * 20
            dripping.cancel()
        assert 1 <= lines(caplog, "no whole one") <= 20

    run(main())


def test_large_frames_that_do_not_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with beside(tmp_path, unfinished_bytes_max=4 << 20) as under:
            strangers = [await under.raw() for _ in range(12)]
            for raw in strangers:
                await raw.write(BEGIN + bytes(1 << 20))
            await until(lambda: under.server._server.bounds.ended["unfinished"] >= 8)
            assert under.server._server.bounds._unfinished_bytes <= 4 << 20
            # Oldest first, and the last ones are still open.
            assert await strangers[0].closed()
            assert not strangers[-1].is_closed

    run(main())


def test_more_connections_than_one_address_may_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rocketspark")

    async def main() -> None:
        async with beside(tmp_path, connections_per_address_max=20) as under:
            strangers = [await under.raw() for _ in range(60)]
            await until(lambda: under.server._server.refused == 41)
            assert len(under.server._server.peers) == 20
            for raw in strangers:
                raw.close()
            await until(lambda: len(under.server._server.peers) == 1)
            # Places that were given back are taken again.
            again = await under.raw()
            assert (await again.ask(request(9999))).code == 3
        assert lines(caplog, "connectionsPerAddressMax") <= 3

    run(main())


def test_connections_that_come_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with beside(tmp_path) as under:
            for _ in range(10):
                strangers = [await under.raw() for _ in range(30)]
                for number, raw in enumerate(strangers):
                    if number % 3 == 0:
                        raw.writer.write(request(RequestCode.GET_BROKER_RUNTIME_INFO))
                    elif number % 3 == 1:
                        raw.writer.write(b"GET / HTTP/1.1\r\n\r\n")
                    raw.close()
            await until(lambda: len(under.server._server.peers) == 1)
            await until(lambda: under.server._server.bounds._by_host == {"127.0.0.1": 1})

    run(main())


def test_half_closed_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.transport.peer.HALF_CLOSED_S", 0.3)

    async def main() -> None:
        async with beside(tmp_path) as under:
            strangers = [await under.raw() for _ in range(20)]
            for number, raw in enumerate(strangers):
                # With something held, with half a frame, with nothing.
                raw.writer.write((pull_frame(1), BEGIN, b"")[number % 3])
                raw.writer.write_eof()
            for raw in strangers:
                assert await raw.closed()
            await until(lambda: len(under.server._server.peers) == 1)
            assert under.server._long_polling.waiting == 0

    run(main())


def test_replies_that_nobody_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with beside(tmp_path, unread_bytes_max=8 << 20, pull_bytes_max=1 << 20) as under:
            async with connected(under.address) as peer:
                header = headers.SendHeader(
                    producer_group="P", topic=TOPIC, queue_id=0, sys_flag=0, born_time_ms=1, flag=0, properties=""
                )
                (await peer.request(RequestCode.SEND_MESSAGE_V2, header, bytes(1 << 20))).raise_for_code("send")
            strangers = [await under.raw() for _ in range(6)]
            for raw in strangers:
                raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
                raw.writer.write(b"".join(pull_frame(n) for n in range(200)))
            bounds = under.server._server.bounds
            await until(lambda: bounds.ended["unread"] >= 3)
            # Those that are closed go in a later turn, and others may have been written to meanwhile.
            await until(lambda: sum(p.unread_bytes for p in under.server._server.peers) <= 8 << 20)

    run(main())


def test_requests_in_flight_on_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.transport.peer.TASKS_MAX", 10)

    async def main() -> None:
        async with beside(tmp_path) as under:
            raw = await under.raw()
            most = 0
            for number in range(300):
                body = b'{"groupName":"crowd-%d"}' % (number % 3)
                raw.writer.write(request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body, opaque=number))
            for _ in range(300):
                await raw.next()
                most = max([most, *(len(p._tasks) for p in under.server._server.peers)])
            assert 0 < most <= 10

    run(main())


@pytest.mark.shows("no request holds the loop for long; bytes of requests in work, held requests by host")
def test_pulls_held_in_all_and_for_one_connection(tmp_path: Path) -> None:
    async def main() -> None:
        # One host has three quarters of all.
        async with beside(tmp_path, held_pulls_of_connection_max=20, held_pulls_max=60) as under:
            strangers = [await under.raw() for _ in range(4)]
            for raw in strangers:
                raw.writer.write(b"".join(pull_frame(n) for n in range(30)))
            answers = [await raw.next() for raw in strangers for _ in range(10)]
            assert {a.code for a in answers} == {2}
            assert {"too many pulls are held" in (a.remark or "") for a in answers} == {True}
            await until(lambda: under.server._long_polling.waiting == 45)
            weights = under.server._long_polling.weights
            assert (weights.total, weights.of_hosts) == (45, {"127.0.0.1": 45})
            for raw in strangers:
                raw.close()
            await until(lambda: under.server._long_polling.waiting == 0)
            # Both bounds may change meanwhile.
            async with connected(under.address) as peer:
                text = b"heldPullsMax=1\nheldPullsPerConnectionMax=1\n"
                (await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, text)).raise_for_code("update")
            raw = await under.raw()
            raw.writer.write(pull_frame(1) + pull_frame(2))
            assert (await raw.next()).opaque == 2

    run(main())


def binary(pairs: int, length: int = 1) -> bytes:
    """A frame with a binary header of so many fields."""
    ext = {f"k{n}": "v" * length for n in range(pairs)}
    return frames.encode(Frame(code=34, ext=ext, serialization=frames.BINARY))


@pytest.mark.parametrize(
    "frame",
    [
        request(34, {f"k{n}": "" for n in range(2000)}),
        binary(2000),
        binary(2, 600_000),
        frames.join(b'{"code":34,"remark":"' + b"x" * (1 << 20) + b'"}'),
        frames.join(b'{"code":34,"extFields":' + b'{"a":' * 5000 + b"}" * 5000 + b"}"),
        (b"\xff" * 8),
        BEGIN[:4] + b"\x00\xff\xff\xff",
    ],
    ids=["fields", "binary fields", "binary bytes", "bytes", "depth", "length", "header length"],
)
def test_headers(tmp_path: Path, caplog: pytest.LogCaptureFixture, frame: bytes) -> None:
    caplog.set_level(logging.WARNING, "rocketspark")

    async def main() -> None:
        async with beside(tmp_path) as under:
            for _ in range(15):
                raw = await under.raw()
                await raw.write(frame)
                if frame[:4] != BEGIN[:4]:
                    assert await raw.closed()
                else:
                    raw.close()
        assert lines(caplog, "sent a broken frame") <= 10

    run(main())


def test_a_value_full_of_colons_is_no_crowd_of_fields() -> None:
    frames.check_header(request(34, {"properties": '{"a":"b"},' * 2000})[8:])


def test_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rocketspark")

    async def main() -> None:
        async with beside(tmp_path) as under:
            raw = await under.raw()
            for number in range(500):
                raw.writer.write(request(20_000 + number % 7, opaque=number))
                raw.writer.write(request(RequestCode.SEND_MESSAGE_V2, {"a": "\x1b[2J\n"}, opaque=number))
            for _ in range(1000):
                await raw.next()
        assert len(caplog.records) < 60
        assert "\x1b" not in caplog.text

    run(main())
