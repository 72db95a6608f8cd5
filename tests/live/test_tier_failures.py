"""A second tier that hangs, is not mounted, or is another broker's, and kills beside it: nothing is unreadable, read
twice or passed over, and nothing else waits for it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.support import TOPIC, broker, connected, create, create_group, pull, pulled, run, sent, until
from tests.live.test_broker_retention import Disk
from tests.live.test_replication import pair
from tests.live.test_tiered import COUNT, asked, clean, files, filled, numbers, popped, tiered, uploaded

from rocketspark import Producer, read_table
from rocketspark.broker.pop import revive
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.storage import tier_reads, tiering
from rocketspark.broker.tiered_settings import PLUG_IN, TieredSettings
from rocketspark.errors import RocketSparkError, StoreUnwritable
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import OffsetReply, QueueHeader, TopicHeader
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.tiered import owner
from rocketspark.store.tiered.segments import FolderSegments
from rocketspark.store.tiered.tier import Tier
from rocketspark.testing import run_server_process


async def filled_and_cleaned(server: BrokerServer, peer: Any, disk: Disk) -> int:
    """Fill a topic whose oldest messages only the tier has then; return the first one that the store has."""
    await create(peer, queues=1)
    await create_group(peer)
    await filled(peer)
    await uploaded(server)
    assert await clean(server, disk) == 5
    return server.store.stored_range(TOPIC, 0)[0]


@contextmanager
def hanging(root: Path) -> Iterator[None]:
    """Let all reads of the tier's records hang, as those of a network file system may."""
    pipes = [path for path in (root / "tier").rglob("COMMIT_LOG/*") if path.is_file()]
    for path in pipes:
        path.rename(f"{path}.kept")
        os.mkfifo(path)
    try:
        yield
    finally:
        for path in pipes:
            # Who waits for a writer reads nothing.
            os.close(os.open(path, os.O_RDWR))
            path.unlink()
            Path(f"{path}.kept").rename(path)


@pytest.mark.shows("second tier: one that hangs holds no send, no read of the store, and a stop only some seconds")
def test_a_tier_that_hangs_holds_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_reads, "READ_S", 0.2)
    monkeypatch.setattr(tiering, "STOP_S", 0.3)

    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk, tiered_store_read_cache_size=0) as server, connected(server.address) as peer:
            low = await filled_and_cleaned(server, peer, disk)
            with hanging(tmp_path):
                for _ in range(6):
                    reply = await pull(peer, TOPIC, 0, 0)
                    assert (reply.code, "has not answered" in str(reply.remark)) == (ResponseCode.SYSTEM_BUSY, True)
                await sent(peer, b"%4d" % COUNT)
                assert [int(m.body[:4]) for m in await pulled(peer, TOPIC, 0, COUNT)] == [COUNT]
                for key, unique in ((f"U{low + 1}", True), (f"k{low + 1}", False)):
                    found = headers.QueryMessageHeader(
                        topic=TOPIC, key=key, count_max=64, begin_ms=0, end_ms=1 << 60, unique=unique
                    )
                    assert (await peer.request(RequestCode.QUERY_MESSAGE, found)).code == ResponseCode.SUCCESS
                began = time.monotonic()
                await server.close()
                assert time.monotonic() - began < 20
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            assert await numbers(peer) == list(range(COUNT + 1))

    run(main())


@pytest.mark.shows("second tier: a folder that is not mounted is waited for, and nothing is written in its place")
def test_a_tier_that_is_not_mounted_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_reads, "KNOWN_S", 0.1)

    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            low = await filled_and_cleaned(server, peer, disk)
        (tmp_path / "tier").rename(tmp_path / "away")
        (tmp_path / "tier").mkdir()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await create(peer, "new", queues=1)
            await sent(peer, b"   0", "new")
            assert server._tiering is not None
            await until(lambda: server._tiering is not None and server._tiering._failures)
            # Neither is anything told that would move a reader past old messages.
            queue = QueueHeader(topic=TOPIC, queue_id=0)
            assert (await peer.request(RequestCode.GET_MIN_OFFSET, queue)).code == ResponseCode.SYSTEM_BUSY
            search = headers.SearchOffsetHeader(topic=TOPIC, queue_id=0, time_ms=0)
            reply = await peer.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
            assert reply.code == ResponseCode.SYSTEM_BUSY
            assert (await pull(peer, TOPIC, 0, 0)).code == ResponseCode.SYSTEM_BUSY
            assert [int(m.body[:4]) for m in await pulled(peer, TOPIC, 0, low, count_max=1)] == [low]
            assert (
                await asked(peer, RequestCode.GET_MIN_OFFSET, QueueHeader(topic="new", queue_id=0), OffsetReply)
            ).offset == 0
            assert await clean(server, disk) == 0
            assert list((tmp_path / "tier").iterdir()) == []
            (tmp_path / "tier").rmdir()
            (tmp_path / "away").rename(tmp_path / "tier")
            await uploaded(server)
            assert (await asked(peer, RequestCode.GET_MIN_OFFSET, queue, OffsetReply)).offset == 0
            assert await numbers(peer) == list(range(COUNT))

    run(main())


@pytest.mark.shows(
    "mended: popped messages that the second tier alone has were given up if their time ran out before it was open"
)
def test_popped_messages_wait_for_a_tier_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "RETRY_MS_MAX", 50)
    monkeypatch.setattr(revive, "RE_PUT_S", (1,))

    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await filled_and_cleaned(server, peer, disk)
            found = await popped(peer, 3, invisible_ms=1500)
            assert found == [0, 1, 2]
            due_ms = int(time.time() * 1000) + 1500
        (tmp_path / "tier").rename(tmp_path / "away")
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            services: Any = server._services
            reviving = services._pops._revive
            await until(lambda: reviving._clock() > due_ms and reviving.messages._asked)
            # Neither does a look for what retention removed end them.
            points = reviving._in_flight.check_points
            before = len(list(points))
            assert reviving._gone.look(reviving._clock() + 600_000) is False
            assert len(list(points)) == before > 0
            (tmp_path / "away").rename(tmp_path / "tier")
            await uploaded(server)
            while len(found) < COUNT + 3:
                found += await popped(peer, 32)
            assert sorted(found) == sorted([*range(COUNT), 0, 1, 2])

    run(main())


@pytest.mark.shows(
    "mended: second tier: one queue that could not be read there kept all others from being read and copied"
    " from a start on"
)
def test_a_queue_that_cannot_be_read_is_waited_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, is_broken = FolderSegments.read, True

    def checked(self: FolderSegments, key: str, at: int, count: int) -> bytes:
        if is_broken and f"/{TOPIC}/" in key:
            raise StoreUnwritable(f"{key} cannot be read", retriable=True)
        return read(self, key, at, count)

    monkeypatch.setattr(tiering, "RETRY_MS_MAX", 50)

    async def main() -> None:
        nonlocal is_broken
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await create(peer, "other", queues=1)
            await sent(peer, b"x", "other")
            await filled_and_cleaned(server, peer, disk)
        before = [row for row in files(tmp_path) if TOPIC in row[0].parts]
        monkeypatch.setattr(FolderSegments, "read", checked)
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            found: Any = server._tiering
            await until(lambda: found.tier)
            assert list(found.tier.unread) == [(TOPIC, 0)]
            assert [m.body for m in await pulled(peer, "other", 0, 0)] == [b"x"]
            await filled(peer, COUNT, 5)
            await sent(peer, b"y", "other")
            await until(lambda: found.tier.queues["other", 0].next == 2)
            # Nobody is moved past what the tier has, and nothing is begun anew there.
            queue = QueueHeader(topic=TOPIC, queue_id=0)
            assert (await peer.request(RequestCode.GET_MIN_OFFSET, queue)).code == ResponseCode.SYSTEM_BUSY
            assert (await pull(peer, TOPIC, 0, 0)).code == ResponseCode.SYSTEM_BUSY
            assert await clean(server, disk) == 0
            assert [row for row in files(tmp_path) if TOPIC in row[0].parts] == before
            is_broken = False
            await uploaded(server, COUNT + 5)
            assert (await asked(peer, RequestCode.GET_MIN_OFFSET, queue, OffsetReply)).offset == 0
            assert await numbers(peer) == list(range(COUNT + 5))

    run(main())


@pytest.mark.shows("second tier: offsets that are asked for while it opens are told once it is open")
def test_offsets_wait_until_the_tier_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, may_open = threading.Event(), threading.Event()
    sizes = FolderSegments.sizes

    def slow(self: FolderSegments, prefix: str) -> Iterator[tuple[str, int]]:
        opening.set()
        may_open.wait(60)
        return sizes(self, prefix)

    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await filled_and_cleaned(server, peer, disk)
        monkeypatch.setattr(FolderSegments, "sizes", slow)
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await until(opening.is_set)
            queue = QueueHeader(topic=TOPIC, queue_id=0)
            waits = [
                peer.request(RequestCode.GET_MIN_OFFSET, queue),
                peer.request(
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    headers.SearchOffsetHeader(topic=TOPIC, queue_id=0, time_ms=0),
                ),
            ]
            threading.Timer(0.1, may_open.set).start()
            for reply in waits:
                assert (await reply).raise_for_code("asked").header(OffsetReply).offset == 0

    run(main())


@pytest.mark.shows("second tier: a topic made anew keeps its old messages once the deletion before it is forgotten")
def test_a_forgotten_deletion_takes_nothing_from_the_tier(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create(peer, "other", queues=1)
            await sent(peer)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
            await filled_and_cleaned(server, peer, disk)
            assert server.store.made_at(TOPIC) is not None
            header = TopicHeader(topic="other")
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).raise_for_code("delete")
            assert server.store.made_at(TOPIC) is None
            assert server._tiering is not None
            await server._tiering.round()
            assert await numbers(peer) == list(range(COUNT))

    run(main())


@pytest.mark.shows(
    "second tier: who finds keys there that another store wrote looks anew at what there is, and goes on"
)
def test_keys_of_another_store_hold_nothing_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await filled(peer, 0, 250)
            found: Any = server._tiering
            await uploaded(server, 250)
            await until(lambda: found.tier.keys.segments.end and len(found.tier.keys._growing) == 1)
            keys = found.tier.keys.segments
            shutil.copy(tmp_path / "tier" / keys.key(0), tmp_path / "tier" / keys.key(keys.end))
            await filled(peer, 250, 250)
            await until(lambda: found.failures and not found._failures)

    run(main())


@pytest.mark.shows("mended: a second tier whose disk was full removed nothing, and nothing while one queue failed")
@pytest.mark.parametrize("what", ["/tier/", "/tier/.*/broken/"])
def test_what_cannot_be_copied_keeps_nothing_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write_pieces, write_file = OsFiles.write_pieces, OsFiles.write_file
    is_full = False

    def check(path: str) -> None:
        if is_full and re.search(what, path) and not path.endswith("/owner.json"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def pieces(self: OsFiles, path: str, *given: Any) -> None:
        check(path)
        write_pieces(self, path, *given)

    def file(self: OsFiles, path: str, *given: Any) -> None:
        check(path)
        write_file(self, path, *given)

    monkeypatch.setattr(OsFiles, "write_pieces", pieces)
    monkeypatch.setattr(OsFiles, "write_file", file)
    monkeypatch.setattr(owner, "SIGN_S", 0.01)

    async def main() -> None:
        nonlocal is_full
        off = {"tiered_store_delete_file_enable": False}
        async with tiered(tmp_path, **off) as server, connected(server.address) as peer:
            for topic in ("broken", TOPIC):
                await create(peer, topic, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(server)
            found: Any = server._tiering
            is_full = True
            await sent(peer, b"x", "broken")
            await filled(peer, COUNT, 1)
            await until(lambda: found._failures)
            low = found.tier.queues[TOPIC, 0].low
            at_once = {"file_reserved_time": 0, "delete_file_interval": 1, "delete_file_enable": True}
            changes = {f"tiered_store_{name}": value for name, value in at_once.items()}
            server.settings.tier = msgspec.structs.replace(server.settings.tier, **changes)
            found._wanted.set()
            await until(lambda: found.tier.queues[TOPIC, 0].low > low)
            assert found._failures
            is_full = False
            await uploaded(server, COUNT + 1)

    run(main())


@pytest.mark.shows("second tier: where files may be written and not removed, what is new is copied all the same")
def test_what_cannot_be_removed_keeps_nothing_from_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Tier, *given: Any) -> bool:
        # One segment in each round, of very many.
        raise StoreUnwritable("the oldest segment cannot be removed", retriable=True)

    monkeypatch.setattr(Tier, "expire", denied)

    async def main() -> None:
        async with tiered(tmp_path, tiered_store_delete_file_interval=1) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await filled(peer)
            await uploaded(server)
            assert server._tiering is not None
            await until(lambda: server._tiering is not None and server._tiering.failures)

    run(main())


@pytest.mark.shows(
    "mended: second tier: a segment that could not be removed, and three queues that could not be copied, kept all"
    " other queues from being copied, and removed, for as long"
)
@pytest.mark.parametrize("what", ["dropped", "expired", "copied"])
def test_queues_that_fail_hold_no_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    append, remove = FolderSegments.append, FolderSegments.remove
    is_broken = what == "copied"

    def check(key: str) -> None:
        if is_broken and "/broken" in key:
            raise StoreUnwritable(f"{key} is not to be changed", retriable=True)

    def appended(self: FolderSegments, key: str, at: int, content: bytes) -> None:
        check(key) if what == "copied" else None
        append(self, key, at, content)

    def removed(self: FolderSegments, key: str) -> None:
        check(key)
        remove(self, key)

    monkeypatch.setattr(FolderSegments, "append", appended)
    monkeypatch.setattr(FolderSegments, "remove", removed)
    monkeypatch.setattr(tiering, "RETRY_MS_MAX", 50)
    broken = [f"broken{number}" for number in range(4)]

    async def main() -> None:
        nonlocal is_broken
        hours = {"tiered_store_file_reserved_time": 0, "tiered_store_delete_file_interval": 1}
        sizes = {"tiered_store_commit_log_max_size": 2000, **(hours if what == "expired" else {})}
        async with tiered(tmp_path, **sizes) as server, connected(server.address) as peer:
            found: Any = server._tiering
            for topic in (*broken, TOPIC):
                await create(peer, topic, queues=1)
            is_broken = True
            for topic in broken:
                for _ in range(3):
                    await sent(peer, bytes(1200), topic)
            if what == "dropped":
                await until(lambda: [q.next for q in found.tier.queues.values()] == [3] * 4 if found.tier else False)
                for topic in broken:
                    await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic))
            await until(lambda: found.failures)
            await filled(peer)
            await uploaded(server)
            if what == "expired":
                await until(lambda: found.tier.queues[TOPIC, 0].low > COUNT - 10)
            assert found._failures
            is_broken = False
            done = {"dropped": lambda: len(found.tier.queues) == 1, "expired": lambda: not found._failures}
            await until(done.get(what, lambda: len(found.tier.queues) == 5 and not found.behind))

    run(main())


@pytest.mark.shows("second tier: a store that lost its log serves what the tier has before its queues, nothing twice")
def test_a_lost_log_leaves_what_the_tier_has(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await filled_and_cleaned(server, peer, disk)
        shutil.rmtree(tmp_path / "store/commitlog")
        before = files(tmp_path)
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            assert server._tiering is not None
            await until(lambda: server._tiering is not None and server._tiering.tier is not None)
            low = server.store.stored_range(TOPIC, 0)[0]
            assert 0 < low < COUNT
            assert await numbers(peer, bulk=True, count_max=1000) == list(range(low))
            await filled(peer, COUNT, 5)
            assert await numbers(peer) == [*range(low), *range(COUNT, COUNT + 5)]
            await server._tiering.round()
            assert await numbers(peer) == [*range(low), *range(COUNT, COUNT + 5)]
            assert files(tmp_path) == before

    run(main())


@pytest.mark.shows("second tier: two brokers with one name and one folder: the second leaves it to the first")
def test_two_brokers_on_one_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "SIGN_S", 0.1)

    async def main() -> None:
        async with tiered(tmp_path) as first, connected(first.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer, 0, 20)
            await uploaded(first, 20)
            changes = {"store_plug_in": PLUG_IN, "tier": first.settings.tier, "flush_interval_ms": 20}
            async with broker(tmp_path / "second", **changes) as second, connected(second.address) as other:
                await create(other, queues=1)
                await create_group(other)
                assert second._tiering is not None
                # Until it has seen the other one live it may be that one, with its store lost, and takes no messages.
                await until(lambda: second._tiering is not None and not second._tiering._may_be_lost())
                await filled(other, 100, 5)
                await until(lambda: second._tiering is not None and second._tiering._failures)
                assert "two brokers of one cluster and name need tiers of their own" in caplog.text
                assert await numbers(other) == [100, 101, 102, 103, 104]
                await filled(peer, 20, 10)
                await uploaded(first, 30)
                assert await second._tiering.kept_from() == second.store.min_position

    run(main())


async def seen(server: BrokerServer, count: int) -> None:
    await until(lambda: server._tiering is not None and server._tiering.tier is not None)

    def look() -> bool:
        found = server._tiering
        assert found is not None
        assert found.tier is not None
        found._wants_more = True
        found._wanted.set()
        queue = found.tier.find(TOPIC, 0)
        return queue is not None and queue.next == count

    await until(look)


async def read(peer: Any, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [int(m.body[:4]) for m in await pulled(peer, TOPIC, 0, len(found))]
    return found


async def removed(server: BrokerServer, peer: Any, count: int) -> None:
    await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
    await until(lambda: server.store.stored_range(TOPIC, 0)[0] > count - 100)


@pytest.mark.shows("second tier: a slave reads from it, by offset and time, what it has removed itself")
def test_a_slave_reads_what_its_master_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "FOLLOW_MS", 600_000)
    monkeypatch.setattr(tiering, "FOLLOW_MS_MIN", 20)
    tier = TieredSettings(
        tiered_store_file_path=str(tmp_path / "tier"),
        tiered_store_commit_log_max_size=40_000,
        tiered_store_consume_queue_max_size=20 * 64,
        tiered_store_group_commit_timeout=0,
    )
    changes = {"flush_interval_ms": 20, "reserved_hours": 0, "clean_interval_ms": 100, "clean_pause_ms": 0}

    async def main() -> None:
        async with (
            pair(tmp_path, store_plug_in=PLUG_IN, tier=tier, **changes) as p,
            connected(p.master.address) as peer,
        ):
            await create(peer, queues=1)
            await create_group(peer)
            await filled(peer)
            await uploaded(p.master)
            await removed(p.master, peer, COUNT)
            before = files(tmp_path)
            async with connected(p.slave.address) as reader:
                await seen(p.slave, COUNT)
                await removed(p.slave, reader, COUNT)
                assert await read(reader, COUNT) == list(range(COUNT))
                search = headers.SearchOffsetHeader(topic=TOPIC, queue_id=0, time_ms=0)
                assert (await asked(reader, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search, OffsetReply)).offset == 0
                assert files(tmp_path) == before
                # What is uploaded later stays on the slave until that has seen it in the tier.
                await filled(peer, COUNT, COUNT)
                await uploaded(p.master, 2 * COUNT)
                await until(lambda: p.slave.store.queue_range(TOPIC, 0)[1] == 2 * COUNT)
                assert p.slave._tiering is not None
                assert await p.slave._tiering.kept_from() < p.slave.store.written_position
                await seen(p.slave, 2 * COUNT)
                await removed(p.slave, reader, 2 * COUNT)
                assert await read(reader, 2 * COUNT) == list(range(2 * COUNT))
                # The master is gone: its slave tells where the tier begins.
                await p.stop(0)
                assert [int(m.body[:4]) for m in await pulled(reader, TOPIC, 0, 0, count_max=2)] == [0, 1]
                queue = QueueHeader(topic=TOPIC, queue_id=0)
                assert (await asked(reader, RequestCode.GET_MIN_OFFSET, queue, OffsetReply)).offset == 0

    run(main())


@pytest.mark.shows("second tier: a server that is killed while it uploads and removes loses and doubles nothing")
def test_a_killed_server_goes_on_with_its_tier(tmp_path: Path) -> None:
    config = {
        "messageStorePlugIn": PLUG_IN,
        "tieredStoreFilePath": tmp_path / "tier",
        "tieredStoreGroupCommitTimeout": 50,
        "tieredStoreCommitLogMaxSize": 100_000,
        "tieredStoreIndexFileMaxHashSlotNum": 100,
        "tieredStoreIndexFileMaxIndexNum": 500,
        "mappedFileSizeCommitLog": 65_536,
        "mappedFileSizeConsumeQueue": 2000,
        "fileReservedTime": 0,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "cleanResourceInterval": 100,
        "deleteCommitLogFilesInterval": 0,
    }
    acked: list[int] = []
    killed = threading.Event()
    with run_server_process(tmp_path / "store", config=config) as server:

        def kill() -> None:
            first = tmp_path / "store/commitlog/00000000000000000000"
            while not acked or first.exists() or len(acked) % 1000 < 700:
                time.sleep(0.005)
            server.kill()
            killed.set()

        thread = threading.Thread(target=kill)
        thread.start()
        with Producer(server.namesrv, "p", retries=0) as producer:
            while not killed.is_set():
                number = len(acked)
                try:
                    producer.send("killed", b"%d" % number + bytes(400), keys=f"k{number}", timeout_ms=2000)
                except RocketSparkError:
                    break
                acked.append(number)
        thread.join()
        server.restart()
        # At once: the reader must not be told where the store begins.
        table = read_table(server.namesrv, "killed")
        found = sorted(int(body.rstrip(b"\0")) for body in table["body"].to_pylist())
        # The last one was stored, or not.
        assert found in (acked, [*acked, len(acked)])
