"""Who closes the connection before the broker comes to a change has given it up; what was begun is carried out."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import struct
from pathlib import Path

import pytest
from tests.live.support import TOPIC, broker, connected, create, pulled, run, sent, until

from rocketspark.errors import ConnectionLost
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import ONEWAY_FLAG, Frame, Splitter, encode
from rocketspark.protocol.headers import TopicHeader

pytestmark = pytest.mark.shows(
    "mended: a deletion given up while the broker stood still took the messages of the topic made in its place"
)


def given_up(port: int, *, flag: int = 0, half: bool = False, reset: bool = False) -> socket.socket:
    """Ask for the topic's deletion and end the connection, or half of it, or by a reset, before the broker can read."""
    asker = socket.create_connection(("127.0.0.1", port))
    if reset:
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asker.sendall(encode(Frame(code=RequestCode.DELETE_TOPIC_IN_BROKER, flag=flag, ext={"topic": TOPIC})))
    asker.shutdown(socket.SHUT_WR)
    if not half:
        asker.close()
    return asker


def test_a_deletion_is_carried_out_for_who_still_waits_or_never_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        caplog.set_level(logging.WARNING, "rocketspark.broker")
        async with broker(tmp_path) as server, connected(server.address) as peer:
            port = int(server.address.rpartition(":")[2])
            await create(peer, queues=1)
            await sent(peer, b"kept")

            given_up(port)
            refused = "was not carried out: its connection had ended"
            await until(lambda: refused in caplog.text or TOPIC not in server._topics.table)
            assert [one.body for one in await pulled(peer)] == [b"kept"]

            with given_up(port, half=True) as asker:
                answer = await asyncio.to_thread(asker.makefile("rb").read)
            ((_, head, _),) = Splitter().feed(answer)
            told = json.loads(head)
            assert (told["code"], told["remark"]) == (
                ResponseCode.SYSTEM_BUSY,
                "not carried out: the connection had ended before it was begun",
            )
            assert [one.body for one in await pulled(peer)] == [b"kept"]

            # Nobody waits for the answer of a one-way request, so its sender gave nothing up.
            given_up(port, flag=ONEWAY_FLAG)
            await until(lambda: TOPIC not in server._topics.table)

    run(main())


def test_what_becomes_of_a_change_is_told_once_though_its_connection_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        caplog.set_level(logging.WARNING)
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            is_begun, goes_on = asyncio.Event(), asyncio.Event()

            async def fails() -> None:
                is_begun.set()
                await goes_on.wait()
                raise OSError("no such disk")

            for _ in range(8):
                given_up(int(server.address.rpartition(":")[2]), reset=True)
            refused = "was not carried out: its connection had ended"
            await until(lambda: caplog.text.count(refused) == 8)
            monkeypatch.setattr(server._topics.unsaved, "saved", fails)
            async with connected(server.address) as asker:
                asked = asyncio.ensure_future(
                    asker.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))
                )
                await is_begun.wait()
                (at_work,) = (one for one in server._server.peers if one._tasks)
                at_work.abort()
                with pytest.raises(ConnectionLost):
                    await asked
            await at_work.wait_closed()
            goes_on.set()
            await until(lambda: "OSError: no such disk" in caplog.text)
            gc.collect()
            assert [one.getMessage().splitlines()[0] for one in caplog.records if one.levelno >= logging.ERROR] == [
                f"request {RequestCode.DELETE_TOPIC_IN_BROKER} of {at_work.address} failed"
            ]

    run(main())


def test_a_deletion_that_was_begun_is_carried_out_though_its_connection_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        path = tmp_path / "audit.log"
        async with broker(tmp_path, audit_path=str(path)) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await sent(peer, b"old")
            is_saved, saved = asyncio.Event(), server._topics.unsaved.saved

            async def later() -> None:
                await is_saved.wait()
                await saved()

            monkeypatch.setattr(server._topics.unsaved, "saved", later)
            async with connected(server.address) as asker:
                asked = asyncio.ensure_future(
                    asker.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))
                )
                await until(lambda: TOPIC not in server._topics.table)
                (at_work,) = (one for one in server._server.peers if one._tasks)
                # As a reset does; one that only ends is served for a while.
                at_work.abort()
                with pytest.raises(ConnectionLost):
                    await asked
            await at_work.wait_closed()
            is_saved.set()
            await until(lambda: TOPIC not in server.store.queues(), 10)
        # The audit has what came of it, though nobody was answered.
        assert [json.loads(line)["outcome"] for line in path.read_text().splitlines()[-2:]] == ["done", "done"]

    run(main())
