"""Timer messages over real sockets in real seconds: delivery, recall, restart, kill."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    TOPIC,
    broker,
    connected,
    create,
    cut_power,
    pairs,
    pull,
    pulled,
    records,
    run,
    send,
    sent,
    settings,
    until,
)
from tests.support.patience import in_time
from tests.support.ports import server_ports

from rocketspark.broker.server import BrokerServer
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header, SendReply
from rocketspark.protocol.timers import RecallHandle, RecallHeader, decode_handle
from rocketspark.testing.process import run_server_process
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("timer messages, rolling, recall, in RocketMQ's files")

GROUP = "P"


class RecallReply(Header, kw_only=True, rename={"message_id": "msgId", "region": "MSG_REGION"}):
    """Reply to a recall."""

    message_id: str | None = None
    region: str


def now_ms() -> int:
    return int(time.time() * 1000)


async def recall(peer: Peer, handle: str, topic: str = TOPIC) -> Reply:
    header = RecallHeader(group=GROUP, topic=topic, handle=handle)
    return await peer.request(RequestCode.RECALL_MESSAGE, header)


async def arrived(peer: Peer, count: int, queue_id: int = 0) -> list[tuple[str, int]]:
    """(body, store time) of the first messages of a queue, waited for by held pulls."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        reply = await pull(peer, TOPIC, queue_id, len(found), sys_flag=6, suspend_ms=1000)
        if reply.code != ResponseCode.PULL_NOT_FOUND:
            found += [(m.body.decode(), m.store_time_ms) for m in records(reply.raise_for_code("pull"))]
    return found


def test_messages_come_in_their_second(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder) as server, connected(server.address) as peer:
            await create(peer)
            began = now_ms()
            asked = {"sec": began + 2000, "ms": began + 300, "deliver": began + 1200}
            await sent(peer, b"sec", pairs={"TIMER_DELAY_SEC": "2", "TAGS": "A"})
            await sent(peer, b"ms", pairs={"TIMER_DELAY_MS": "300"})
            await sent(peer, b"deliver", pairs={"TIMER_DELIVER_MS": str(asked["deliver"])})
            await sent(peer, b"past", pairs={"TIMER_DELIVER_MS": str(began)})
            found = await arrived(peer, 4)
            assert found[0][0] == "past"
            assert {body for body, _ in found} == {"sec", "ms", "deliver", "past"}
            for body, stored_ms in found[1:]:
                # A second of precision, and something for a busy machine.
                assert asked[body] <= stored_ms < asked[body] + 1000 + 1000, (body, stored_ms - asked[body])
            assert [stored_ms for _, stored_ms in found] == sorted(stored_ms for _, stored_ms in found)
            last = next(m for m in await pulled(peer) if m.body == b"sec")
            assert pairs(last)["REAL_TOPIC"] == TOPIC
            assert int(pairs(last)["TIMER_DEQUEUE_MS"]) >= asked["sec"]
            # By tag as well: the delivered record has its own code.
            assert [m.body for m in await pulled(peer, TOPIC, 0, 0, subscription="A")] == [b"sec"]

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_an_idle_broker_makes_no_timer_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
        assert not (tmp_path / "timerwheel").exists()
        assert not (tmp_path / "config/timercheck").exists()

    run(main())


def test_a_recalled_message_never_comes(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder, recall_enabled=True) as server, connected(server.address) as peer:
            await create(peer)
            plain = (await send(peer, b"plain", pairs={"UNIQ_KEY": "K0"})).header(SendReply)
            assert plain.recall_handle is None
            handles = []
            for n in range(3):
                reply = (await send(peer, b"%d" % n, pairs={"UNIQ_KEY": f"K{n}", "TIMER_DELAY_MS": "1500"})).header(
                    SendReply
                )
                assert reply.recall_handle is not None
                handles.append(reply.recall_handle)
            handle = decode_handle(handles[1])
            assert handle == RecallHandle(TOPIC, "broker-a", handle.deliver_ms, "K1")
            assert handle.deliver_ms % 1000 == 1
            again = await recall(peer, handles[1])
            assert (again.code, again.header(RecallReply)) == (0, RecallReply(message_id="K1", region="DefaultRegion"))
            assert [body for body, _ in await arrived(peer, 3)] == ["plain", "0", "2"]
            late = await recall(peer, handles[0])
            assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_what_may_not_be_recalled_is_told(tmp_path: Path) -> None:
    def handle(**changes: Any) -> str:
        values: dict[str, Any] = {"topic": TOPIC, "broker_name": "broker-a", "deliver_ms": now_ms() + 5000}
        return RecallHandle(**values | {"message_id": "K"} | changes).encode()

    # As 5.5.0 answers them, in the order of its checks.
    rows = [
        (handle(), "NoSuch", 17, "recall failed, the topic[NoSuch] not exist"),
        ("", TOPIC, 604, "recall handle is invalid"),
        ("no base64!", TOPIC, 604, "recall handle is invalid"),
        (handle(topic="Other"), TOPIC, 604, "recall failed, topic not match"),
        (handle(broker_name="broker-b"), TOPIC, 604, "recall failed, broker service not available"),
        (handle(deliver_ms=now_ms() - 1), TOPIC, 604, "recall failed, timestamp invalid"),
        (handle(deliver_ms=now_ms() + 300_000_000), TOPIC, 604, "recall failed, timestamp invalid"),
    ]

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            reply = await recall(peer, handle())
            assert (reply.code, reply.remark) == (16, "recall failed, operation is forbidden")
            server.settings.recall_enabled = True
            for text, topic, code, remark in rows:
                reply = await recall(peer, text, topic)
                assert (reply.code, reply.remark) == (code, remark)
                assert reply.header(RecallReply).region == "DefaultRegion"
            # It would be stored, and delivered, as a message of its own.
            for made in ("K\x02DELAY\x011", "K\x02TIMER_OUT_MS\x011", "K\x02TIMER_DEL_UNIQKEY\x01V"):
                reply = await recall(peer, handle(message_id=made))
                assert (reply.code, reply.remark) == (604, "recall handle is invalid")
            reply = await peer.request(
                370, {"topic": TOPIC, "recallHandle": handle(), "producerGroup": "g\x02DELAY\x011"}
            )
            assert (reply.code, reply.remark) == (604, "recall handle is invalid")
            for system in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"):
                assert (await recall(peer, handle(topic=system), system)).code == 16
            server.settings.broker_permission = 4
            assert (await recall(peer, handle())).code == 0
            server.settings.recall_when_not_writable = False
            assert (await recall(peer, handle())).code == 14

    run(main())


def test_timer_messages_can_be_turned_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, timers_enabled=False) as server, connected(server.address) as peer:
            await create(peer)
            reply = await send(peer, pairs={"TIMER_DELAY_SEC": "1"})
            assert (reply.code, reply.remark) == (
                1,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )

    run(main())


@pytest.mark.parametrize("sync", [False, True])
def test_a_stopped_broker_delivers_after_its_start(tmp_path: Path, sync: bool) -> None:
    changes = {"flush_disk_type": "SYNC_FLUSH"} if sync else {}

    async def main() -> None:
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            await create(peer)
            reply = (await send(peer, b"due", pairs={"TIMER_DELAY_MS": "100"})).header(SendReply)
            assert reply.recall_handle is not None
            await sent(peer, b"waits", pairs={"TIMER_DELAY_SEC": "3600"})
        await asyncio.sleep(1.2)
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            assert [body for body, _ in await arrived(peer, 1)] == ["due"]
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            assert [m.body for m in await pulled(peer)] == [b"due"]

    run(main())


def test_a_killed_broker_delivers_each_once(tmp_path: Path) -> None:
    async def main(address: str, count: int, offset: int) -> list[str]:
        async with connected(address) as peer:
            if count:
                await create(peer)
                for n in range(count):
                    wait_ms = 1 + n * 3000 // count
                    await sent(peer, b"%d" % n, pairs={"UNIQ_KEY": f"K{n}", "TIMER_DELAY_MS": str(wait_ms)})
                return []
            return [body for body, _ in await arrived(peer, offset)]

    with run_server_process(tmp_path / "store", **server_ports(), config={"brokerName": "broker-a"}) as server:
        run(main(server.broker, 600, 0))
        for pause_s in (0.4, 0.7):
            time.sleep(pause_s)
            server.kill()
            server.restart()
        found = run(main(server.broker, 0, 600))
        assert sorted(map(int, found)) == list(range(600))


@pytest.mark.shows(
    "what waits of timer messages that a power cut took is gone: others that come to stand in their places are neither "
    "set aside nor twice nor late"
)
@pytest.mark.parametrize("body", [b"another, and longer", b"x"])
def test_what_stands_where_the_power_took_a_timer_message_comes_in_its_time(tmp_path: Path, body: bytes) -> None:
    async def main() -> None:
        server = BrokerServer(settings(tmp_path, flush_interval_ms=3_600_000))
        await server.start()
        async with connected(server.address) as peer:
            await create(peer)
            flushed = server.store.flush_log()
            for number in range(3):
                later = {"TIMER_DELIVER_MS": str(now_ms() + 4000), "UNIQ_KEY": f"old{number}"}
                await sent(peer, b"x", pairs=later)
            await until(lambda: len(server._wheel._known) > 0 and server._wheel._offset == 3)
            await server.kill()
        cut_power(tmp_path, flushed)
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert server.store.written_position == flushed
            for number in range(3):
                soon = {"TIMER_DELIVER_MS": str(now_ms() + 1000), "UNIQ_KEY": f"new{number}"}
                await sent(peer, body, pairs=soon)
            assert [text for text, _ in await arrived(peer, 3)] == [body.decode()] * 3
            # What came before it, with an id of its own, is due behind all that might come of the old ones.
            last = {"TIMER_DELIVER_MS": str(now_ms() + 4000), "UNIQ_KEY": "last"}
            await sent(peer, b"last", pairs=last)
            assert [text for text, _ in await arrived(peer, 4)] == [body.decode()] * 3 + ["last"]
            assert server._quarantine.entries() == []

    run(main())
