"""A broker that runs out of disk, and clients of messages that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    TOPIC,
    beat,
    connected,
    create,
    name_server,
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

from rocketspark import AsyncPullConsumer, MessageQueue
from rocketspark.broker.server import BrokerServer
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullReply
from rocketspark.protocol.message import batch
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("by age at the hour, by disk use, by force; writes refused on a full disk")

FILE_BYTES = 65536
EVER_MS = 1 << 60


class Disk:
    used = 0.0

    def __call__(self, path: str) -> float:
        return self.used


@asynccontextmanager
async def small_broker(root: Path, disk: Disk, **changes: Any) -> AsyncIterator[BrokerServer]:
    values = {"log_file_bytes": FILE_BYTES, "queue_file_bytes": 1000, "clean_interval_ms": 100, "clean_pause_ms": 0}
    values |= {"flush_interval_ms": 20}
    server = BrokerServer(settings(root, **values | changes), disk_used=disk)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def filled(peer: Peer, server: BrokerServer, count: int = 200) -> None:
    """So many messages of 1 KiB in one queue, each with a key, on the disk."""
    await create(peer)
    for n in range(count):
        await sent(peer, b"%4d" % n + bytes(1024), pairs={"KEYS": f"k{n}"})
    await until(lambda: server.store.flushed_position == server.store.written_position)


def test_messages_past_their_time(tmp_path: Path) -> None:
    """The request 329 removes them at any hour; readers, time search and keys see a queue that begins later."""

    async def main() -> None:
        async with (
            small_broker(tmp_path, Disk(), reserved_hours=0, delete_when="") as server,
            connected(server.address) as peer,
            connected(server.address) as reader,
        ):
            await filled(peer, server)
            held = server.store.read(TOPIC, 0, 0, 5, 9999).records
            before = [bytes(piece) for piece in held]
            (await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)).raise_for_code("clean")
            low = await until(lambda: server.store.queue_range(TOPIC, 0)[0])
            # Offsets rise first, then the files go one by one.
            await until(lambda: server.store.min_position == server.store.written_position // FILE_BYTES * FILE_BYTES)
            assert server.store.queue_range(TOPIC, 0)[0] == low
            # What a reply still being written refers to stays.
            assert [bytes(piece) for piece in held] == before

            answer = await pull(reader, TOPIC, 0, low - 1)
            assert (answer.code, answer.remark) == (21, "OFFSET_TOO_SMALL")
            found = answer.header(PullReply)
            assert (found.next_offset, found.min_offset, found.max_offset) == (low, low, 200)
            assert [r.queue_offset for r in await pulled(reader, TOPIC, 0, low)] == list(range(low, low + 32))

            queue = headers.QueueHeader(topic=TOPIC, queue_id=0)
            answer = await peer.request(RequestCode.GET_MIN_OFFSET, queue)
            assert answer.header(headers.OffsetReply).offset == low
            for key, count in (("k0", 0), (f"k{low - 1}", 0), (f"k{low}", 1)):
                asked = headers.QueryMessageHeader(topic=TOPIC, key=key, count_max=32, begin_ms=0, end_ms=EVER_MS)
                answer = await peer.request(RequestCode.QUERY_MESSAGE, asked)
                assert (answer.code == 0, len(records(answer))) == (count > 0, count)
            assert await sent(peer, b"on") == 200
        # Also after a start.
        async with small_broker(tmp_path, Disk(), delete_when="") as server, connected(server.address) as peer:
            assert (await pull(peer, TOPIC, 0, 0)).header(PullReply).next_offset == low
            assert [r.queue_offset for r in await pulled(peer, TOPIC, 0, low)] == list(range(low, low + 32))

    run(main())


@pytest.mark.shows("retention: a reader below the minimum")
def test_a_consumer_behind_the_oldest_goes_on_from_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server() as names:
            namesrv = names.address
            changes = {"reserved_hours": 0, "delete_when": "", "namesrv_addresses": namesrv}
            async with small_broker(tmp_path, Disk(), **changes) as server, connected(server.address) as peer:
                await filled(peer, server)
                async with AsyncPullConsumer(namesrv, "late", consume_from="first") as consumer:
                    queue = MessageQueue(TOPIC, server.settings.broker_name, 0)
                    await consumer.assign([queue])
                    (await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)).raise_for_code("clean")
                    low = await until(lambda: server.store.queue_range(TOPIC, 0)[0])
                    await consumer.seek(queue, 3)
                    got: list[int] = []
                    while len(got) < 200 - low:
                        got += [m.queue_offset for m in await consumer.poll(500)]
                    assert got == list(range(low, 200))

    run(main())


def test_a_full_disk(tmp_path: Path) -> None:
    """Every way in answers code 14 and says why, reads go on; with space again messages are taken again."""
    disk = Disk()

    async def main(folder: Path) -> None:
        disk.used = 0.0
        async with (
            small_broker(folder, disk, clean_by_force=False, delay_levels="1s") as server,
            connected(server.address) as peer,
        ):
            await filled(peer, server, 3)
            half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "A" * 32}
            prepared = await send(peer, b"half", TOPIC, 0, sys_flag=4, pairs=half)
            assert prepared.code == 0
            assert await sent(peer, b"later", TOPIC, 0, pairs={"DELAY": "1"}) == 0
            disk.used = 91
            end = server.store.written_position
            await until(lambda: server.store.log.refused)
            for body, options in (
                (b"plain", {}),
                (b"delayed", {"pairs": {"DELAY": "1"}}),
                (b"half", {"sys_flag": 4, "pairs": half | {"UNIQ_KEY": "B" * 32}}),
                (batch.encode([batch.BatchItem(0, b"1", b"")] * 2), {"batch": True}),
            ):
                answer = await send(peer, body, TOPIC, 0, **options)
                assert answer.code == 14
                assert answer.remark is not None
                assert answer.remark.startswith("service not available now: the disk is full: 91 % of the disk of ")
            assert server.store.written_position == end
            assert len(await pulled(peer, TOPIC, 0, 0)) == 3
            await beat(peer)
            # The delayed message is due meanwhile: it waits.
            disk.used = 90
            await until(lambda: server.store.log.refused is None)
            assert await until(lambda: server.store.queue_range(TOPIC, 0)[1] == 4)
            assert (await pulled(peer, TOPIC, 0, 3))[0].body == b"later"
            assert await sent(peer, b"again") == 4

    in_time(lambda folder: run(main(folder)), tmp_path)


def test_by_force_while_messages_flow(tmp_path: Path) -> None:
    """The oldest go though they are young, beside a sender and a reader: what is there is read in order."""
    disk = Disk()

    async def main() -> None:
        async with (
            small_broker(tmp_path, disk) as server,
            connected(server.address) as peer,
            connected(server.address) as reader,
        ):
            await create(peer)
            disk.used = 86
            seen: list[int] = []
            moved = 0

            async def read() -> None:
                nonlocal moved
                at = 0
                while at < 1500:
                    answer = await pull(reader, TOPIC, 0, at, sys_flag=6, suspend_ms=3000)
                    seen.extend(r.queue_offset for r in records(answer))
                    moved += answer.code == 21
                    at = answer.header(PullReply).next_offset
                    if len(seen) == 32:
                        # Falls behind until what it would read next is gone.
                        await until(lambda: server.store.queue_range(TOPIC, 0)[0] > 32)

            reading = asyncio.create_task(read())
            for n in range(1500):
                await sent(peer, b"%d" % n + bytes(1024))
                if n % 100 == 0:
                    await until(lambda: server.store.flushed_position == server.store.written_position)
            await reading
            assert seen == sorted(set(seen))
            assert seen[-1] == 1499
            assert server.store.min_position > 0
            assert len(seen) < 1500
            assert moved >= 1

    run(main())
