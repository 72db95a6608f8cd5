"""A store that lost its messages goes on behind what its second tier has, which stays readable."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from pathlib import Path

import pytest
from tests.live.support import TOPIC, connected, create, create_group, run, send, sent, until
from tests.live.test_broker_batch_queues import BATCHED
from tests.live.test_tiered import COUNT, filled, numbers, tiered, uploaded

from rocketspark.broker.storage import tiering
from rocketspark.errors import StoreUnwritable
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import MaxOffsetHeader, OffsetReply, TopicHeader
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.tiered import owner
from rocketspark.store.tiered.segments import FolderSegments

pytestmark = pytest.mark.shows("second tier: a store that was lost goes on behind what the tier has")


@pytest.mark.parametrize("attributes", ["", BATCHED])
@pytest.mark.parametrize("what", ["everything", "held tier", "all but topics"])
def test_a_lost_store_goes_on_behind_its_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, attributes: str
) -> None:
    monkeypatch.setattr(owner, "LEASE_S", 0.5)
    monkeypatch.setattr(tiering, "STOP_S", 0.1 if what == "held tier" else 10)

    async def main() -> None:
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1, attributes=attributes)
            await filled(peer)
            await uploaded(server)
        if what == "all but topics":
            shutil.move(tmp_path / "store/config/topics.json", tmp_path)
        shutil.rmtree(tmp_path / "store")
        if what == "all but topics":
            (tmp_path / "store/config").mkdir(parents=True)
            shutil.move(tmp_path / "topics.json", tmp_path / "store/config")
        if what == "held tier":
            held = next((tmp_path / "tier").rglob("owner.json"))
            held.write_text(json.dumps({"owner": "0123@killed:/store", "sign": 9, "store": "killed:/store"}))
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create_group(peer)
            found = server._tiering
            assert found is not None
            if what == "held tier":
                await create(peer, queues=1, attributes=attributes)
                assert (await send(peer, b"early")).code == ResponseCode.SERVICE_NOT_AVAILABLE
                await until(lambda: found.tier is not None and not found.tier.is_read_only)
            elif what == "everything":
                await create(peer, queues=1, attributes=attributes)
                found._wanted.set()
            # Before anything is sent.
            await until(lambda: server.store.queue_range(TOPIC, 0) == (0, COUNT))
            assert await numbers(peer) == list(range(COUNT))
            assert await sent(peer, b"%4d" % COUNT) == COUNT
            assert await numbers(peer) == list(range(COUNT + 1))
            # Old messages state places in the lost log: Spark would take those behind the new one's end for gone.
            told = await peer.request(RequestCode.GET_MAX_OFFSET, MaxOffsetHeader(topic=TOPIC, queue_id=0))
            end = told.header(OffsetReply)
            assert (end.offset, end.log_end) == (COUNT + 1, None)
            await uploaded(server, COUNT + 1)
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await until(lambda: server._tiering is not None and server._tiering.tier is not None)
            assert await sent(peer, b"%4d" % (COUNT + 1)) == COUNT + 1
            assert await numbers(peer) == list(range(COUNT + 2))

    run(main())


def test_sends_to_an_empty_store_wait_for_its_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_look, is_broken = threading.Event(), False
    before = FolderSegments.whole

    def slow(self: FolderSegments, key: str) -> bytes | None:
        may_look.wait(60)
        if is_broken:
            raise StoreUnwritable("no such device")
        return before(self, key)

    async def main() -> None:
        nonlocal is_broken
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await filled(peer)
            await uploaded(server)
        shutil.rmtree(tmp_path / "store")
        monkeypatch.setattr(FolderSegments, "whole", slow)
        monkeypatch.setattr(tiering, "STOP_S", 0)
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            reply = await send(peer, b"early")
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "not known yet" in str(reply.remark)
            may_look.set()
            await until(lambda: server._tiering is not None and server._tiering.tier is not None)
            assert await sent(peer, b"%4d" % COUNT) == COUNT
        # A tier that cannot be read stops no send.
        shutil.rmtree(tmp_path / "store")
        is_broken = True
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await until(lambda: server._tiering is not None and server._tiering.failures > 0)
            assert await sent(peer, b"first") == 0

    run(main())


def test_a_deleted_topic_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await filled(peer)
            await uploaded(server)
            assert server._tiering is not None
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
            await create(peer, queues=1)
            assert await sent(peer, b"   0") == 0
            await uploaded(server, 1)
            assert await numbers(peer) == [0]

    run(main())


def test_a_full_disk_that_takes_no_lost_queue_does_not_keep_others_from_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, is_full = OsFiles.reserve, True

    def reserve(self: OsFiles, path: str, at: int, count: int) -> None:
        if is_full and f"/{TOPIC}/" in path:
            raise OSError(errno.ENOSPC, "full")
        before(self, path, at, count)

    async def main() -> None:
        nonlocal is_full
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await filled(peer)
            await uploaded(server)
        shutil.rmtree(tmp_path / "store")
        monkeypatch.setattr(OsFiles, "reserve", reserve)
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            for topic in (TOPIC, "other"):
                await create(peer, topic, queues=1)
            assert await sent(peer, b"x", "other") == 0
            found = server._tiering
            assert found is not None
            await until(lambda: found.tier is not None and found.tier.find("other", 0) is not None)
            assert (found.failures, server.store.queue_range(TOPIC, 0)) == (0, (0, 0))
            is_full = False
            found._wanted.set()
            await until(lambda: server.store.queue_range(TOPIC, 0) == (0, COUNT))

    run(main())
