"""Pops under attack: many consumers at once, consumers that come and go, odd handles."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from tests.live.pop_support import BROKER, Popped, ack, messages, pop, popped
from tests.live.support import GROUP, TOPIC, broker, connected, create, run, sent, until

from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.pop_records import AckedBatch, BatchAck, bits_of, encode_batch_ack


def test_many_consumers_get_every_message_once(tmp_path: Path) -> None:
    count = 2000

    async def main() -> None:
        given: list[bytes] = []

        async def consume(address: str, number: int) -> None:
            async with connected(address) as peer:
                while len(given) < count:
                    size = (1, 3, 32)[number % 3]
                    found = await popped(peer, count_max=size, poll_time_ms=500, invisible_time_ms=3_600_000)
                    given.extend(m.body for m in found)
                    for message in found[: number % 2 * size]:
                        (await ack(peer, message)).raise_for_code("ack")

        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            consumers = [asyncio.create_task(consume(server.address, n)) for n in range(8)]
            for at in range(0, count, 50):
                await asyncio.gather(*(sent(peer, b"%d" % n, TOPIC, n % 4) for n in range(at, at + 50)))
            await asyncio.gather(*consumers)
            assert sorted(given, key=int) == [b"%d" % n for n in range(count)]

    run(main())


def test_no_message_is_lost_where_consumers_come_and_go(tmp_path: Path) -> None:
    count = 300

    async def main() -> None:
        acked: set[bytes] = set()

        async def consume(address: str, number: int) -> None:
            turn = number
            while len(acked) < count:
                turn += 1
                async with connected(address) as peer:
                    waiting = asyncio.create_task(pop(peer, count_max=8, poll_time_ms=300, invisible_time_ms=1500))
                    if turn % 3 == 0:
                        # Gone before its reply came, or with it.
                        await asyncio.sleep(turn % 7 / 1000)
                        peer.abort()
                        await asyncio.gather(waiting, return_exceptions=True)
                        continue
                    for message in messages(await waiting):
                        (await ack(peer, message)).raise_for_code("ack")
                        acked.add(message.body)

        async with broker(tmp_path, revive_interval_ms=200) as server, connected(server.address) as peer:
            await create(peer)
            consumers = [asyncio.create_task(consume(server.address, n)) for n in range(5)]
            for n in range(count):
                await sent(peer, b"%d" % n, TOPIC, n % 4)
            await asyncio.gather(*consumers)
            assert acked == {b"%d" % n for n in range(count)}

    run(main())


# What a client may send for a handle; none harms more than its own request.
HANDLES = [
    "",
    " ",
    "x",
    "0 0 0 0 0 broker-a 0 0",
    "0 0 0 0 7 broker-a 0 0",
    "9223372036854775807 9223372036854775807 9223372036854775807 7 0 b 0 0",
    "99999999999999999999 0 0 0 0 b 0 0",
    "-1 -1 -1 -1 0 b 0 0",
    "0 0 0 -9 0 b 0 0",
    "0 0 0 999 0 b 0 0",
    "0 0 0 12345 0 b 0 0 1 2 3",
    "\u0660 0 0 0 0 b 0 0",
    "a " * 3000,
]


def test_odd_handles_harm_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(2):
                await sent(peer, b"%d" % n)
            found = await popped(peer, group="H")
            for text in HANDLES:
                odd = found[0]._replace(handle=text)
                replies = [
                    await ack(peer, odd, topic=TOPIC, group="H", offset=offset) for offset in (0, 2, -1, 1 << 62)
                ]
                assert {r.code for r in replies} <= {0, 13, 29, 208}, (text, replies)
                values = {"topic": TOPIC, "group": "H", "queue_id": 0, "handle": text, "offset": 1}
                for invisible in (0, -5, 1 << 62):
                    header = headers.ChangeInvisibleTimeHeader(**values, invisible_time_ms=invisible)
                    changed = await peer.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
                    assert changed.code in (0, 29), (text, changed)
            assert server._pop_state.count(TOPIC, "H", 0) == 2
            for message in found:
                (await ack(peer, message, group="H")).raise_for_code("ack")
            assert server._pop_state.count(TOPIC, "H", 0) == 0
            await sent(peer, b"2")
            assert [m.body for m in await popped(peer, group="H")] == [b"2"]

    run(main())


def test_a_batch_of_very_many_bits_takes_no_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for at in range(0, 4000, 500):
                await asyncio.gather(*(sent(peer, b"%d" % n, TOPIC, 0) for n in range(at, at + 500)))

            async def acked(order: bool) -> int:
                message = (await popped(peer, TOPIC, 0, order=order))[0]
                start, pop_time, _, revive_queue_id, *_ = message.handle.split(" ")
                batch = AckedBatch(
                    group=GROUP,
                    topic=TOPIC,
                    start_offset=int(start),
                    revive_queue_id=int(revive_queue_id),
                    pop_time_ms=int(pop_time),
                    bits=bits_of(0, list(range(16_000))),
                )
                body = encode_batch_ack(BatchAck(broker_name=BROKER, acks=[batch] * 4096))
                began_s = time.process_time()
                reply = await peer.request(RequestCode.BATCH_ACK_MESSAGE, body=body, timeout_ms=60_000)
                assert time.process_time() - began_s < 2
                return reply.code

            assert await acked(order=False) == 0
            assert server._pop_state.count(TOPIC, GROUP, 0) == 0
            assert await acked(order=True) == 29

    run(main())


def test_messages_of_a_topic_made_anew_are_not_taken_for_those_popped_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=100) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(3):
                await sent(peer, b"%d" % n)
            assert len(await popped(peer, invisible_time_ms=1000)) == 3
            delete = headers.TopicHeader(topic=TOPIC)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, delete)).raise_for_code("delete")
            await create(peer)
            await sent(peer, b"3")
            for message in await popped(peer):
                (await ack(peer, message)).raise_for_code("ack")
            await until(lambda: server._pop_state.count(TOPIC, GROUP, 0) == 0)
            assert await popped(peer) == []

    run(main())


def test_retries_and_revive_queues_of_other_settings_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        changes: dict[str, Any] = {"revive_interval_ms": 100}
        async with (
            broker(tmp_path, retry_topics_v2=True, revive_queue_count=8, **changes) as server,
            connected(server.address) as peer,
        ):
            await create(peer)
            for n in range(9):
                await sent(peer, b"%d" % n)
            # Each has a revive queue of its own; the first is in its retry topic when the broker ends.
            assert len(await popped(peer, count_max=1, invisible_time_ms=0)) == 1
            for _ in range(8):
                assert len(await popped(peer, count_max=1, invisible_time_ms=2500)) == 1
            await until(lambda: server.store.stored_range(f"%RETRY%{GROUP}+{TOPIC}", 0)[1] == 1)
            assert len(server.store.queues().get(server._pops.topic, ())) == 1
        async with broker(tmp_path, revive_queue_count=1, **changes) as server, connected(server.address) as peer:
            header = headers.NotificationHeader(group=GROUP, topic=TOPIC, queue_id=-1, poll_time_ms=0, born_time_ms=0)
            reply = await peer.request(RequestCode.NOTIFICATION, header)
            assert reply.header(headers.NotificationReply).has_message
            found: list[Popped] = []
            while len(found) < 9:
                found += await popped(peer, poll_time_ms=5000)
            assert sorted(m.body for m in found) == [b"%d" % n for n in range(9)]

    run(main())
