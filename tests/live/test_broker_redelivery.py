"""Messages that come later: delay levels, and what consumers send back, until they are dead letters."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    create_group,
    pairs,
    pull,
    pulled,
    run,
    send,
    send_header,
    sent,
    until,
)
from tests.support.patience import LIMIT_MS, in_time

from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import message_ids
from rocketspark.protocol.message.record import Record
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("retries and dead letters of the broker", "the levels, settable, after a restart")

RETRY = "%RETRY%G"
DLQ = "%DLQ%G"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
FAST = {"delay_levels": "1s 2s 1h"}


async def back(peer: Peer, message: Record, **changes: Any) -> Reply:
    values: dict[str, Any] = {"physical_offset": message.position, "group": GROUP, "delay_level": 0}
    header = headers.SendBackHeader(**values | changes)
    return await peer.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def one(peer: Peer, topic: str, queue_id: int = 0, offset: int = 0, *, wait_ms: int = LIMIT_MS) -> Record:
    """The message at an offset, waited for."""
    (found, *_) = await pulled(peer, topic, queue_id, offset, sys_flag=6, suspend_ms=wait_ms)
    return found


def parked(server: Any, level: int) -> int:
    found: int = server.store.queue_range(SCHEDULE, level - 1)[1]
    return found


def test_a_delayed_message_comes_when_it_is_due_as_it_was_sent(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder, **FAST) as server, connected(server.address) as peer:
            await create(peer)
            given = {"DELAY": "1", "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U1", "mine": "v"}
            reply = await send(peer, b"later", TOPIC, 3, pairs=given, flag=9)
            # The reply tells where the message is parked, under the queue id it was sent to.
            answer = reply.raise_for_code("send").header(headers.SendReply)
            assert (answer.queue_id, answer.queue_offset) == (3, 0)
            assert parked(server, 1) == 1
            assert (await pull(peer, TOPIC, 3)).code == 19

            # In the schedule topic: queue = level - 1, due time in the place of the tags' hash.
            (waiting,) = await pulled(peer, SCHEDULE, 0)
            assert pairs(waiting).items() >= {**given, "REAL_TOPIC": TOPIC, "REAL_QID": "3"}.items()
            assert message_ids.offset_message_id(waiting.store_host, waiting.position) == answer.message_id
            queue = server.store.consume_queues.find(SCHEDULE, 0)
            assert queue is not None
            assert queue.unit(0)[2] == waiting.store_time_ms + 1000

            message = await one(peer, TOPIC, 3)
            late_ms = message.store_time_ms - waiting.store_time_ms - 1000
            assert 0 <= late_ms < 2000
            assert (message.body, message.flag, message.queue_offset) == (b"later", 9, 0)
            assert (message.born_time_ms, message.born_host) == (waiting.born_time_ms, waiting.born_host)
            # DELAY and REAL_* stay, as 5.5.0 leaves them.
            assert pairs(message) == pairs(waiting)
            assert [m.body for m in await pulled(peer, TOPIC, 3, subscription="a")] == [b"later"]

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_levels_beyond_the_highest_are_the_highest(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, **FAST) as server, connected(server.address) as peer:
            await create(peer)
            for level in ("3", "4", "99", "999999999999"):
                await sent(peer, pairs={"DELAY": level})
            assert (parked(server, 3), parked(server, 4)) == (4, 0)
            for level in ("0", "-1", "x"):
                await sent(peer, pairs={"DELAY": level})
            assert len(await pulled(peer)) == 3

    run(main())


def test_many_delayed_messages_come_in_order_each_once(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder, **FAST) as server, connected(server.address) as peer:
            await create(peer)
            rows = [(send_header(pairs={"DELAY": str(1 + n % 2)}), b"%d" % n) for n in range(200)]
            asked = [peer.ask(RequestCode.SEND_MESSAGE_V2, header, body) for header, body in rows]
            for reply in await asyncio.gather(*asked):
                reply.raise_for_code("send")
            await until(lambda: server.store.queue_range(TOPIC, 0)[1] == 200)
            await asyncio.sleep(0.1)
            got: list[bytes] = []
            while len(got) < 200:
                got += [m.body for m in await pulled(peer, TOPIC, 0, len(got))]
            assert got == [b"%d" % n for n in (*range(0, 200, 2), *range(1, 200, 2))]
            assert server.store.queue_range(TOPIC, 0)[1] == 200

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_parked_messages_outlive_a_restart_and_come_once(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder, **FAST) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, b"first", pairs={"DELAY": "1"})
            await one(peer, TOPIC)
            await sent(peer, b"second", pairs={"DELAY": "1"})
        assert b'"offsetTable":{1:1' in (folder / "config" / "delayOffset.json").read_bytes()
        async with broker(folder, **FAST) as server, connected(server.address) as peer:
            assert (await one(peer, TOPIC, 0, 1)).body == b"second"
        await asyncio.sleep(0)
        async with broker(folder, **FAST) as server, connected(server.address) as peer:
            # One that was due while the broker was down comes at once.
            await sent(peer, b"third", pairs={"DELAY": "1"})
        await asyncio.sleep(1.05)
        async with broker(folder, **FAST) as server, connected(server.address) as peer:
            started_ms = time.time() * 1000
            third = await one(peer, TOPIC, 0, 2)
            assert third.body == b"third"
            assert third.store_time_ms - started_ms < 900
            assert server.store.queue_range(TOPIC, 0) == (0, 3)

    in_time(lambda folder: run(main(folder)), tmp_path)


@pytest.mark.shows("send-back, retry topic, dead letters")
def test_a_message_sent_back_comes_again_through_the_retry_topic(tmp_path: Path) -> None:
    async def main() -> None:
        # Level 3 is the first retry's: one second here.
        async with broker(tmp_path, delay_levels="1h 1h 1s 1s") as server, connected(server.address) as peer:
            await create(peer)
            await beat(peer)
            given = {"TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U1", "mine": "v"}
            await sent(peer, b"work", pairs=given, flag=5, sys_flag=0x301)
            (original,) = await pulled(peer)
            reply = await back(peer, original, origin_message_id="X", origin_topic=TOPIC)
            assert (reply.code, reply.body) == (0, b"")
            assert parked(server, 3) == 1

            again = await one(peer, RETRY)
            first_id = message_ids.offset_message_id(original.store_host, original.position)
            stored = pairs(again)
            assert (again.body, again.flag, again.sys_flag, again.reconsume_times) == (b"work", 5, 0x301, 1)
            assert (again.born_time_ms, again.born_host) == (original.born_time_ms, original.born_host)
            assert (
                stored.items()
                >= {
                    **given,
                    "RETRY_TOPIC": TOPIC,
                    "ORIGIN_MESSAGE_ID": first_id,
                    "WAIT": "false",
                    "DELAY": "3",
                    "REAL_TOPIC": RETRY,
                    "REAL_QID": "0",
                }.items()
            )

            # Once more: the level grows, the first topic and id stay.
            (await back(peer, again)).raise_for_code("back")
            assert parked(server, 4) == 1
            third = await one(peer, RETRY, 0, 1)
            stored = pairs(third)
            assert third.reconsume_times == 2
            assert (stored["RETRY_TOPIC"], stored["ORIGIN_MESSAGE_ID"], stored["DELAY"]) == (TOPIC, first_id, "4")
            assert third.properties.count(b"REAL_TOPIC") == third.properties.count(b"DELAY") == 1

    run(main())


def test_the_consumer_may_choose_the_level(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, delay_levels="1s 1h 1h 1h 1h 1h") as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
            (message,) = await pulled(peer)
            for level in (2, 5, 99):
                (await back(peer, message, delay_level=level)).raise_for_code("back")
            assert [parked(server, level) for level in (1, 2, 3, 5, 6)] == [0, 1, 0, 1, 1]
            (await back(peer, message, delay_level=1)).raise_for_code("back")
            assert (await one(peer, RETRY)).reconsume_times == 1

    run(main())


def test_a_message_that_failed_too_often_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for times in (0, 2, 3, 15, 16, 17):
                await sent(peer, b"%d" % times, reconsume_times=times, pairs={"UNIQ_KEY": f"U{times}"})
            messages = await pulled(peer)
            # Given up at once, whatever the times.
            (await back(peer, messages[0], delay_level=-1)).raise_for_code("back")
            assert (await back(peer, messages[1], max_reconsume_times=3)).code == 0
            (await back(peer, messages[2], max_reconsume_times=3)).raise_for_code("back")
            # 16 is the group's own limit.
            for message in messages[3:]:
                (await back(peer, message)).raise_for_code("back")
            dead = await pulled(peer, DLQ)
            assert [m.body for m in dead] == [b"0", b"3", b"16", b"17"]
            assert [m.reconsume_times for m in dead] == [1, 4, 17, 18]
            assert parked(server, 5) == parked(server, 18) == 1
            config = server._topics.get(DLQ)
            assert config is not None
            assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
            stored = pairs(dead[0])
            first_id = message_ids.offset_message_id(messages[0].store_host, messages[0].position)
            wanted = {"RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": first_id, "UNIQ_KEY": "U0", "DELAY": "0"}
            assert stored.items() >= wanted.items()

    run(main())


def test_a_dead_letter_that_fails_again_stays_where_it_is(tmp_path: Path) -> None:
    """A group that read its own dead letters and failed had each stored anew at once, without end."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await create_group(peer)
            await sent(peer, b"bad")
            (failed,) = await pulled(peer)
            assert (await back(peer, failed, delay_level=-1)).code == 0
            dead = await one(peer, DLQ)
            for level in (-1, 0):
                assert (await back(peer, dead, delay_level=level, max_reconsume_times=0)).code == 0
            assert server.store.queue_range(DLQ, 0) == (0, 1)
            # Another group's goes to that one's.
            await create_group(peer, "other")
            assert (await back(peer, dead, delay_level=-1, group="other")).code == 0
            assert server.store.queue_range("%DLQ%other", 0) == (0, 1)

    run(main())


def test_send_backs_that_cannot_be(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, auto_create_group=False) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer)
            (message,) = await pulled(peer, group="TOOLS_CONSUMER")
            reply = await back(peer, message)
            assert (reply.code, (reply.remark or "")[:31]) == (26, "subscription group not exist, G")
            for position in (message.position + 1, -1, 2**40, message.position + message.size):
                reply = await back(peer, message, group="TOOLS_CONSUMER", physical_offset=position)
                assert (reply.code, "look message by offset failed" in (reply.remark or "")) == (1, True), position
            # A group without retry queues: answered, nothing done.
            server._groups.table["TOOLS_CONSUMER"].retry_queue_nums = 0
            (await back(peer, message, group="TOOLS_CONSUMER")).raise_for_code("back")
            assert server._topics.get("%RETRY%TOOLS_CONSUMER") is None

    run(main())


def test_a_consumer_s_own_resend_ends_as_a_dead_letter_too(tmp_path: Path) -> None:
    """A client that cannot send back sends to the retry topic itself, saying how often it failed."""

    async def main() -> None:
        async with broker(tmp_path, **FAST) as server, connected(server.address) as peer:
            own = {"RETRY_TOPIC": TOPIC, "DELAY": "1"}
            await sent(peer, b"again", RETRY, 0, reconsume_times=2, max_reconsume_times=2, pairs=own)
            assert parked(server, 1) == 1
            await sent(peer, b"dead", RETRY, 0, reconsume_times=3, max_reconsume_times=2, pairs=own)
            assert [m.body for m in await pulled(peer, DLQ)] == [b"dead"]
            await sent(peer, b"dead too", RETRY, 0, reconsume_times=17)
            assert [m.body for m in await pulled(peer, DLQ)] == [b"dead", b"dead too"]
            assert (await one(peer, RETRY)).body == b"again"

    run(main())


def test_a_sync_flush_broker_answers_send_backs_once_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_ms=60_000) as server,
            connected(server.address) as peer,
        ):
            await sent(peer)
            (message,) = await pulled(peer)
            (await back(peer, message)).raise_for_code("back")
            assert server.store.flushed_position == server.store.written_position

    run(main())


def test_a_send_back_is_measured_as_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await sent(peer)
            (message,) = await pulled(peer)
            measured: list[float] = []
            monkeypatch.setattr(server._send._stats, "put_took", measured.append)
            server._send.time_puts(2)
            (await back(peer, message)).raise_for_code("back")
            assert await sent(peer) == 1
            (await back(peer, message)).raise_for_code("back")
            assert len(measured) == 2

    run(main())


def test_what_is_odd_or_near_the_limit_comes_back(tmp_path: Path) -> None:
    """A value with 0x01 in it; properties with little room left."""

    async def main() -> None:
        async with broker(tmp_path, delay_levels="1h 1h 1s") as server, connected(server.address) as peer:
            await create(peer)
            await create_group(peer)
            texts = ["UNIQ_KEY\x01U1\x02mine\x01a\x01b\x02", "mine\x01" + "x" * 32_400 + "\x02"]
            for n, text in enumerate(texts):
                await sent(peer, b"%d" % n, properties=text)
                (message,) = await pulled(peer, TOPIC, 0, n)
                (await back(peer, message)).raise_for_code("send back")
            for n, text in enumerate(texts):
                again = await one(peer, RETRY, 0, n, wait_ms=60_000)
                assert (again.body, again.reconsume_times) == (b"%d" % n, 1)
                assert text.encode() in again.properties
                assert pairs(again)["RETRY_TOPIC"] == TOPIC

    run(main())
