"""Many at once: nothing is lost, doubled or out of order, whoever sends and however it is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.live.support import (
    TOPIC,
    broker,
    connected,
    create,
    pairs,
    pull_header,
    pulled,
    records,
    run,
    send_header,
)
from tests.support.patience import LIMIT_MS

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullReply, SendReply
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer

SENDERS = 4
EACH = 3000
WINDOW = 64
QUEUES = 3


async def produce(peer: Peer, sender: int) -> list[tuple[int, int, int]]:
    """Send with a window in flight; returns (queue, offset, number) of each message."""
    stored = []
    room = asyncio.Semaphore(WINDOW)

    async def one(n: int) -> None:
        queue_id = n % QUEUES
        header = send_header(TOPIC, queue_id, pairs={"TAGS": "ab"[n % 2], "KEYS": f"{sender}-{n}"})
        reply = await peer.request(RequestCode.SEND_MESSAGE_V2, header, b"%d %d" % (sender, n), timeout_ms=LIMIT_MS)
        room.release()
        stored.append((queue_id, reply.raise_for_code("send").header(SendReply).queue_offset, n))

    async with asyncio.TaskGroup() as group:
        for n in range(EACH):
            await room.acquire()
            group.create_task(one(n))
    return stored


async def consume(peer: Peer, queue_id: int, count: int, expression: str) -> list[tuple[int, bytes]]:
    """Follow a queue by held pulls up to an offset: (offset, body) of each message."""
    got: list[tuple[int, bytes]] = []
    offset = 0
    while offset < count:
        header = pull_header(TOPIC, queue_id, offset, sys_flag=6, suspend_ms=500, subscription=expression)
        reply = await peer.request(RequestCode.PULL_MESSAGE, header, timeout_ms=LIMIT_MS)
        assert reply.code in (0, 19, 20), reply
        got += [(m.queue_offset, m.body) for m in records(reply)]
        offset = reply.header(PullReply).next_offset
    return got


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_senders_and_followers_at_once(tmp_path: Path, flush: str) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_disk_type=flush, log_file_bytes=1 << 20) as server:
            async with connected(server.address) as peer:
                await create(peer, queues=QUEUES)
            total = SENDERS * EACH // QUEUES
            async with asyncio.TaskGroup() as group:
                peers = [await dial(server.address) for _ in range(SENDERS + 2 * QUEUES)]
                follow = [
                    group.create_task(consume(peers[SENDERS + i], i % QUEUES, total, "*" if i < QUEUES else "a"))
                    for i in range(2 * QUEUES)
                ]
                senders = [group.create_task(produce(peers[n], n)) for n in range(SENDERS)]
            stored = {
                (queue_id, offset): b"%d %d" % (sender, n)
                for sender, task in enumerate(senders)
                for queue_id, offset, n in task.result()
            }
            assert len(stored) == SENDERS * EACH
            for queue_id in range(QUEUES):
                wanted = [(offset, stored[queue_id, offset]) for offset in range(total)]
                assert follow[queue_id].result() == wanted
                tagged = [(o, body) for o, body in wanted if int(body.split()[1]) % 2 == 0]
                assert follow[QUEUES + queue_id].result() == tagged
                # One sender's messages of a queue keep their order.
                for sender in range(SENDERS):
                    numbers = [int(b.split()[1]) for _, b in wanted if b.split()[0] == b"%d" % sender]
                    assert numbers == sorted(numbers)
            for peer in peers:
                peer.close()
        # And all of it is there after a restart.
        async with broker(tmp_path, log_file_bytes=1 << 20) as server, connected(server.address) as peer:
            for queue_id in range(QUEUES):
                assert server.store.queue_range(TOPIC, queue_id) == (0, total)
            (last,) = await pulled(peer, TOPIC, 0, total - 1)
            assert last.body == stored[0, total - 1]
            assert pairs(last)["KEYS"].encode().replace(b"-", b" ") == last.body

    run(main(), 600)
