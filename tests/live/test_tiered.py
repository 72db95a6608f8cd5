"""Messages in the second tier: clients read them as if they were in the store, and a broken tier holds nothing up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    connected,
    create,
    create_group,
    pull,
    pulled,
    records,
    run,
    sent,
    settings,
    until,
)
from tests.live.test_broker_retention import Disk

from rocketspark import machine
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.tiered_settings import PLUG_IN, TieredSettings
from rocketspark.errors import ServerError, StoreUnwritable
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import OffsetReply, PullReply, TimeReply, TopicHeader
from rocketspark.protocol.message import record
from rocketspark.store.tiered.segments import FolderSegments
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("second tier: old messages are read from a folder by offset, time, key, tags and pop")

COUNT = 300


@asynccontextmanager
async def tiered(root: Path, disk: Disk | None = None, **tier: Any) -> AsyncIterator[BrokerServer]:
    """A broker with small log files, all closed ones of which may go at once, if `disk` says that it is crowded."""
    values: dict[str, Any] = {
        "tiered_store_file_path": str(root / "tier"),
        "tiered_store_commit_log_max_size": 40_000,
        "tiered_store_consume_queue_max_size": 20 * 64,
        "tiered_store_index_file_max_hash_slot_num": 50,
        "tiered_store_index_file_max_index_num": 200,
        "tiered_store_group_commit_timeout": 0,
    }
    server = BrokerServer(
        settings(
            root / "store",
            log_file_bytes=65536,
            queue_file_bytes=1000,
            clean_pause_ms=0,
            clean_interval_ms=3_600_000,
            flush_interval_ms=20,
            reserved_hours=0,
            metrics_exporter="PROM",
            metrics_port=0,
            store_plug_in=PLUG_IN,
            tier=TieredSettings(**values | tier),
        ),
        disk_used=disk or Disk(),
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def filled(peer: Peer, first: int = 0, count: int = COUNT) -> None:
    for n in range(first, first + count):
        await sent(
            peer, b"%4d" % n + bytes(1024), pairs={"KEYS": f"k{n} all", "TAGS": "AB"[n % 2], "UNIQ_KEY": f"U{n}"}
        )


async def uploaded(server: BrokerServer, count: int = COUNT) -> None:
    await until(lambda: server.store.flushed_position == server.store.written_position)

    def found() -> bool:
        tiering = server._tiering
        assert tiering is not None
        tiering._wanted.set()
        queue = tiering.tier.find(TOPIC, 0) if tiering.tier is not None else None
        return queue is not None and queue.next == count

    await until(found)


async def numbers(peer: Peer, offset: int = 0, **changes: Any) -> list[int]:
    """The messages from an offset on, as a consumer reads them."""
    found: list[int] = []
    while True:
        reply = await pull(peer, TOPIC, 0, offset, **changes)
        if reply.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert reply.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        found += [int(each.body[:4]) for each in records(reply)] if reply.code == 0 else []
        offset = reply.header(PullReply).next_offset


def figures(server: BrokerServer) -> dict[str, dict[Any, Any]]:
    """The metrics of the tier: values by labels, by name."""
    assert server._metrics is not None
    families = [family for family in server._metrics.collect().families if "tiered" in family.name]
    return {family.name: {tuple(sorted(labels.items())): n for labels, n in family.rows} for family in families}


async def asked(peer: Peer, code: int, header: Any, answer: Any) -> Any:
    return (await peer.request(code, header)).raise_for_code("asked").header(answer)


async def clean(server: BrokerServer, disk: Disk) -> int:
    disk.used = 76.0
    removed = await server._file_cleaning.clean()
    disk.used = 0.0
    return removed


@pytest.mark.shows("second tier: tieredStorageLevel says what is read from it though the store has it too")
@pytest.mark.parametrize("level", ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"])
def test_messages_that_the_store_has_too_are_read_as_the_level_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    async def main() -> None:
        async with tiered(tmp_path, tiered_storage_level=level) as server, connected(server.address) as peer:
            tiering = server._tiering
            assert tiering is not None
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            assert await numbers(peer) == list(range(COUNT))
            in_memory = tiering.read_counts.get(TOPIC, 0)
            assert in_memory == (COUNT if level == "FORCE" else 0)
            # Nothing of the log counts as in memory.
            server.settings.memory_percent = 0
            assert await numbers(peer) == list(range(COUNT))
            assert tiering.read_counts.get(TOPIC, 0) - in_memory == (0 if level == "NOT_IN_DISK" else COUNT)
            # What is popped is the same.
            found: list[int] = []
            while len(found) < COUNT:
                found += await popped(peer, 32)
            assert found == list(range(COUNT))
            before = dict(tiering.read_counts)

            def broken(path: str, position: int, count: int) -> bytes:
                raise StoreUnwritable("no such device")

            assert tiering.tier is not None
            monkeypatch.setattr(tiering.tier._segments, "read", broken)
            assert tiering.cache is not None
            tiering.cache.forget((TOPIC, 0))
            if level != "NOT_IN_DISK":
                reply = await pull(peer, TOPIC, 0, 0)
                assert (reply.code, "no such device" in str(reply.remark)) == (ResponseCode.SYSTEM_BUSY, True)
            # The reader asks again, and the store serves what it has.
            assert await numbers(peer) == list(range(COUNT))
            assert tiering.read_counts == before

    run(main())


def test_a_topic_made_anew_shows_nothing_of_the_one_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered(tmp_path, tiered_storage_level="FORCE") as server, connected(server.address) as peer:
            tiering = server._tiering
            assert tiering is not None
            assert tiering._task is not None
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            assert await numbers(peer) == list(range(COUNT))
            # The tier does not hear of the deletion.
            tiering._task.cancel()
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
            await create(peer, queues=1)
            await filled(peer, COUNT)
            assert await numbers(peer) == list(range(COUNT, 2 * COUNT))

    run(main())


def test_old_messages_are_read_from_the_tier(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            began = int(time.time() * 1000)
            await filled(peer, 0, 100)
            middle = int(time.time() * 1000)
            await asyncio.sleep(0.005)
            await filled(peer, 100, COUNT - 100)
            await uploaded(server)
            assert await clean(server, disk) == 5
            low = server.store.stored_range(TOPIC, 0)[0]
            assert 200 < low < COUNT
            await check(peer, began, middle)
            told = figures(server)
            own = (("file_type", "commit_log"), ("topic", TOPIC))
            assert told["rocketmq_tiered_store_messages_dispatch"] == {own: COUNT}
            assert told["rocketmq_tiered_store_messages_out"][own[1:]] >= low
            asked_for, hit = (told[f"rocketmq_tiered_store_read_ahead_cache_{n}"][()] for n in ("access", "hit"))
            assert asked_for > hit > 0
            assert told["rocketmq_tiered_store_read_ahead_cache_bytes"][()] > 200_000
            assert told["rocketspark_tiered_store_failures"] == {(): 0}
            assert "rocketmq_tiered_store_dispatch_behind" not in told
        # After a start, too; the table of the tier may be gone.
        for lost in (False, True):
            if lost:
                for path in (tmp_path / "store/config").glob("tieredStoreMetadata.json*"):
                    path.unlink()
            async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
                await uploaded(server)
                await check(peer, began, middle)

    async def check(peer: Peer, began: int, middle: int) -> None:
        assert await numbers(peer) == list(range(COUNT))
        assert await numbers(peer, 7, bulk=True, count_max=1000) == list(range(7, COUNT))
        assert await numbers(peer, subscription="A", sys_flag=4) == list(range(0, COUNT, 2))
        reply = await pull(peer, TOPIC, 0, 250)
        assert reply.header(PullReply).min_offset == 0
        queue = headers.QueueHeader(topic=TOPIC, queue_id=0)
        assert (await asked(peer, RequestCode.GET_MIN_OFFSET, queue, OffsetReply)).offset == 0
        first = (await asked(peer, RequestCode.GET_EARLIEST_MSG_STORETIME, queue, TimeReply)).time_ms
        assert began <= first <= middle
        for time_ms, expected in ((0, 0), (middle + 1, 100), (1 << 60, COUNT)):
            header = headers.SearchOffsetHeader(topic=TOPIC, queue_id=0, time_ms=time_ms)
            assert (await asked(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, OffsetReply)).offset == expected
        await create_group(peer, "resets")
        for time_ms, expected in ((0, 0), (middle + 1, 100)):
            wanted = headers.ResetOffsetHeader(group="resets", topic=TOPIC, queue_id=-1, time_ms=time_ms, force=True)
            reset = await peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wanted)
            assert reset.raise_for_code("reset").body.endswith(b":%d}}" % expected)
        for key, expected_numbers in (("k3", [3]), ("k299", [299]), ("k", None), ("all", list(range(236, 300)))):
            found = headers.QueryMessageHeader(topic=TOPIC, key=key, count_max=64, begin_ms=0, end_ms=1 << 60)
            reply = await peer.request(RequestCode.QUERY_MESSAGE, found)
            told = [int(m.body[:4]) for m in record.decode_all(reply.body)] if reply.code == 0 else None
            assert told == expected_numbers, key

    run(main())


async def popped(peer: Peer, count: int, invisible_ms: int = 600_000) -> list[int]:
    header = headers.PopHeader(
        group=GROUP,
        topic=TOPIC,
        queue_id=-1,
        count_max=count,
        invisible_time_ms=invisible_ms,
        poll_time_ms=20_000,
        born_time_ms=int(time.time() * 1000),
        init_mode=0,
    )
    reply = (await peer.request(RequestCode.POP_MESSAGE, header, timeout_ms=30_000)).raise_for_code("pop")
    return [int(m.body[:4]) for m in record.decode_all(reply.body)]


def test_old_messages_are_popped_from_the_tier_and_come_again(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            assert await clean(server, disk) == 5
            found = await popped(peer, 3, invisible_ms=1)
            assert found == [0, 1, 2]
            while len(found) < COUNT + 3:
                found += await popped(peer, 32)
            # The first three were not acknowledged in time: read from the tier once more, and put into the retry topic.
            assert sorted(found) == sorted([*range(COUNT), 0, 1, 2])

    run(main())


class Broken(FolderSegments):
    """A folder that fails while `broken`; appends leave half of their bytes then."""

    broken = False

    def append(self, key: str, at: int, content: bytes) -> None:
        if self.broken:
            super().append(key, at, content[: len(content) // 2])
            raise StoreUnwritable("no space in the tier")
        super().append(key, at, content)

    def read(self, key: str, at: int, count: int) -> bytes:
        if self.broken:
            raise StoreUnwritable("no route to the tier")
        return super().read(key, at, count)


@pytest.mark.shows("second tier: while it is broken sends go on, no log file goes, and readers are told to ask again")
def test_a_broken_tier_holds_no_send_and_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk, tiered_store_read_cache_size=0) as server, connected(server.address) as peer:
            tiering = server._tiering
            assert tiering is not None
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer, 0, 100)
            await uploaded(server, 100)
            assert await clean(server, disk) == 1
            assert tiering.tier is not None
            low = server.store.stored_range(TOPIC, 0)[0]
            segments = tiering.tier._segments = Broken(str(tmp_path / "tier"))
            assert dict(segments.sizes(""))
            for queue in tiering.tier.queues.values():
                queue.log._store = queue.units._store = segments
            Broken.broken = True
            tiering.cache.forget((TOPIC, 0))
            await filled(peer, 100, COUNT - 100)
            tiering._wanted.set()
            await until(lambda: tiering._failures > 1)
            await until(lambda: server.store.flushed_position == server.store.written_position)
            # Only what is in the tier may go.
            assert await clean(server, disk) == 0
            assert server.store.stored_range(TOPIC, 0)[0] == low
            reply = await pull(peer, TOPIC, 0, 0)
            assert (reply.code, "no route to the tier" in str(reply.remark)) == (ResponseCode.SYSTEM_BUSY, True)
            assert [int(m.body[:4]) for m in await pulled(peer, TOPIC, 0, low, count_max=1)] == [low]
            Broken.broken = False
            await uploaded(server)
            assert await clean(server, disk) == 4
            assert await numbers(peer) == list(range(COUNT))

    run(main())


@pytest.mark.shows("second tier: a topic that is deleted goes from it too, one made anew begins there at 0")
def test_a_deleted_topic_goes_from_the_tier(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer, 0, 20)
            await uploaded(server, 20)
            header = TopicHeader(topic=TOPIC)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).raise_for_code("delete")
            await create(peer, queues=1)
            await filled(peer, 100, 5)
            await uploaded(server, 5)
            assert await numbers(peer) == [100, 101, 102, 103, 104]
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).raise_for_code("delete")
            tiering = server._tiering
            assert tiering is not None
            assert tiering.tier is not None
            tiering._wanted.set()
            await until(lambda: not tiering.tier.queues)
            left = {p.name for p in (tmp_path / "tier").rglob("*") if p.is_file()}
            assert left == {"owner.json", "owner.lock"}

    run(main())


def test_what_was_stored_by_a_clock_that_was_ahead_is_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        waits = {"tiered_store_group_commit_timeout": 60_000}
        async with tiered(tmp_path, **waits) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            with monkeypatch.context() as patched:
                patched.setattr(machine, "time", lambda: time.time() + 3600)
                await filled(peer, count=3)
            await filled(peer, 3, 3)
            await uploaded(server, 6)

    run(main())


@pytest.mark.shows("second tier: segments that are too old go, all but the last of a queue")
def test_the_tier_has_a_retention_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        off = {"tiered_store_delete_file_enable": False}
        async with tiered(tmp_path, **off) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            tier = server._tiering.tier if server._tiering is not None else None
            assert tier is not None
            queue = tier.queues[TOPIC, 0]
            assert tier.expire(int(time.time() * 1000) + 1, 1) is False
            assert tier.expire(int(time.time() * 1000) + 1, 0) is True
            assert len(queue.log.entries) == 1
            assert 250 < queue.low < COUNT
            assert queue.units.start // 20 <= queue.low
            # The store still has them.
            assert (await numbers(peer))[0] == 0

    run(main())


@pytest.mark.shows("second tier: a topic has a time of its own there (reserve.time), also after its store was lost")
def test_a_topic_has_a_time_of_its_own_in_the_tier(tmp_path: Path) -> None:
    at_once = {"tiered_store_file_reserved_time": 0, "tiered_store_delete_file_interval": 1}

    async def looked(server: BrokerServer) -> int:
        """The first offset in the tier, after one more look for what is too old."""
        tiering = server._tiering
        assert tiering is not None
        before = tiering._expired_ms

        def is_done() -> bool:
            tiering._wanted.set()
            return tiering._expired_ms > before

        await until(is_done)
        assert tiering.tier is not None
        return tiering.tier.queues[TOPIC, 0].low

    async def main() -> None:
        async with tiered(tmp_path, **at_once) as server, connected(server.address) as peer:
            with pytest.raises(ServerError, match=r"reserve\.time '1h' is no number of ms"):
                await create(peer, queues=1, attributes="+reserve.time=1h")
            await create(peer, queues=1, attributes="+reserve.time=3600000")
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            assert await looked(server) == 0
        os.rename(tmp_path / "store", tmp_path / "lost")
        async with tiered(tmp_path, **at_once) as server, connected(server.address) as peer:
            assert await looked(server) == 0  # Nobody has made the topic again.
            await create(peer, queues=1, attributes="+reserve.time=3600000")
            assert await looked(server) == 0
            await create(peer, queues=1, attributes="+reserve.time=-1")
            assert await looked(server) > 250

    run(main())


def files(root: Path) -> list[tuple[Path, int]]:
    return sorted((p, p.stat().st_size) for p in (root / "tier").rglob("*") if p.suffix not in (".json", ".lock"))


def test_a_tier_of_another_store_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer, 0, 20)
            await uploaded(server, 20)
        os.rename(tmp_path / "store", tmp_path / "old")
        before = files(tmp_path)
        other = {"tiered_store_file_path": str(tmp_path / "other")}
        async with tiered(tmp_path, **other) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer, 50, 5)
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            tiering = server._tiering
            assert tiering is not None
            await until(lambda: tiering.tier is not None and tiering.tier.queues[TOPIC, 0].left)
            assert await numbers(peer) == [50, 51, 52, 53, 54]
            assert await tiering.kept_from() == server.store.written_position
        assert files(tmp_path) == before

    run(main())
