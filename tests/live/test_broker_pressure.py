"""A broker that is behind: what it refuses and with which words, and that nothing refused was stored."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import TOPIC, broker, connected, create, pull, records, run, send, send_header, sent, until
from tests.support.patience import LIMIT_S, in_time

from rocketspark.broker.operations import fast_failure
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.connections import dial
from rocketspark.transport.request_frames import request

pytestmark = pytest.mark.shows("SYSTEM_BUSY when the broker is behind, a maximum of connections")


def test_requests_that_waited_too_long_are_refused_by_kind_and_not_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, refuse_when_behind=True) as server, connected(server.address) as peer:
            await create(peer)
            lag_s = 0.0
            # As in a turn of the loop that has gone on for so long.
            server._fast_failure.overload.waited = lambda: lag_s  # type: ignore[method-assign]
            assert await sent(peer, b"first") == 0
            lag_s = 0.25
            refused = await send(peer, b"late")
            assert refused.code == 2
            assert (refused.remark or "").startswith(
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 25"
            )
            assert [r.body for r in records(await pull(peer))] == [b"first"]
            lag_s = 6.0
            assert [(await send(peer)).code, (await pull(peer)).code] == [2, 2]
            update = b"waitTimeMillsInSendQueue=7000\nwaitTimeMillsInPullQueue=6500\n"
            (await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, update)).raise_for_code("update")
            assert await sent(peer, b"second") == 1
            lag_s = 8.0
            assert (await send(peer)).code == 2
            update = b"brokerFastFailureEnable=false"
            (await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, update)).raise_for_code("update")
            assert await sent(peer, b"third") == 2
            assert [r.body for r in records(await pull(peer))] == [b"first", b"second", b"third"]

    run(main())


def test_when_puts_are_slow_those_who_wait_for_their_turn_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder, refuse_when_behind=True) as server, connected(server.address) as peer:
            await create(peer)
            accept = server._send._put_message.accept

            def slow(*args: Any, **options: Any) -> Any:
                time.sleep(0.03)
                return accept(*args, **options)

            monkeypatch.setattr(server._send._put_message, "accept", slow)
            server._send.time_puts(1)
            host, port = server.address.split(":")
            lines = [socket.create_connection((host, int(port)), 10) for _ in range(40)]
            await until(lambda: len(server._server.peers) == 41)
            for number, line in enumerate(lines):
                # All at once as the loop sees it, which does not run meanwhile.
                line.sendall(request(310, send_header(TOPIC, 0), b"x", opaque=number))
            answers = await asyncio.to_thread(lambda: [frames.decode(_whole(line)) for line in lines])
            codes = [answer.code for answer in answers]
            assert set(codes) == {0, 2}
            # Those of the first 200 ms are served, and of 200 more that could have been a hiccup.
            assert codes.count(0) >= 2
            assert all("TIMEOUT_CLEAN_QUEUE" in (a.remark or "") for a in answers if a.code == 2)
            assert server.store.queue_range(TOPIC, 0)[1] == codes.count(0)
            monkeypatch.undo()
            for line in lines:
                line.close()

    in_time(lambda folder: run(main(folder)), tmp_path)


def _whole(line: socket.socket) -> bytes:
    """One frame."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        data += line.recv(1 << 16) or pytest.fail("the connection ended")
    return data


def test_after_a_slow_put_sends_are_refused_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_failure, "SLOW_PUT_PAUSE_S", 60.0)

    async def main() -> None:
        async with (
            broker(tmp_path, slow_put_ms=150, refuse_when_behind=True) as server,
            connected(server.address) as peer,
        ):
            await create(peer)
            accept = server._send._put_message.accept

            def slow(*args: Any, **options: Any) -> Any:
                time.sleep(0.16)
                return accept(*args, **options)

            monkeypatch.setattr(server._send._put_message, "accept", slow)
            server._send.time_puts(1)
            assert await sent(peer, b"slow") == 0
            monkeypatch.undo()
            answer = await send(peer)
            assert (answer.code, answer.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")
            assert [r.body for r in records(await pull(peer))] == [b"slow"]
            server._fast_failure.put_took(1)
            assert await sent(peer, b"fast") == 1

    run(main())


def test_with_sync_flush_no_more_wait_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH", "waiting_sends_max": 3, "flush_timeout_ms": 30_000}
        async with broker(tmp_path, **settings) as server, connected(server.address) as peer:
            await create(peer)
            go_on, flush_log = threading.Event(), server.store.flush_log

            def late() -> int:
                go_on.wait(120)
                return flush_log()

            monkeypatch.setattr(server.store, "flush_log", late)
            try:
                waiting = [asyncio.ensure_future(send(peer, b"%d" % n)) for n in range(3)]
                await until(lambda: server._fast_failure.overload.refusing)
                answer = await send(peer)
                assert (answer.code, answer.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
            finally:
                go_on.set()
            assert [a.code for a in await asyncio.gather(*waiting)] == [0, 0, 0]
            assert await sent(peer) == 3

    run(main())


def test_a_client_that_half_closes_gets_the_replies_that_wait_for_the_flush(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_disk_type="SYNC_FLUSH") as server, connected(server.address) as peer:
            await create(peer)
            other = await dial(server.address)
            waiting = [asyncio.ensure_future(send(other, b"%d" % n)) for n in range(5)]
            await asyncio.sleep(0)
            other._write_soon()
            assert other._transport is not None
            other._transport.write_eof()
            assert [a.code for a in await asyncio.gather(*waiting)] == [0] * 5
            await other.wait_closed()

    run(main())


def test_connections_beyond_the_maximum_are_closed_and_the_maximum_may_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, connections_max=1) as server, connected(server.address) as peer:
            await create(peer)
            second = await dial(server.address)
            await asyncio.wait_for(second.wait_closed(), LIMIT_S)
            (await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxConnections=2")).raise_for_code("update")
            async with connected(server.address) as third:
                assert await sent(third) == 0

    run(main())
