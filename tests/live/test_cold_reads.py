"""A group that reads old messages from the disk waits once it has read its share; those that read new ones do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.support import GROUP, TOPIC, broker, connected, create, create_group, pull, pulled, records, run, sent

from rocketspark.broker.consumers import cold_reads
from rocketspark.broker.consumers.long_polling import NO_QUEUE
from rocketspark.broker.storage import log_memory
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("cold reads: a group over its share waits for the next interval, with no error")


async def report(peer: Peer) -> Any:
    reply = await peer.request(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, None)
    return msgspec.json.decode(reply.raise_for_code("report").body)


async def limit(peer: Peer, text: str) -> tuple[int, str | None]:
    reply = await peer.request(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, text.encode())
    return reply.code, reply.remark


def test_a_group_waits_for_the_next_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "INTERVAL_S", 3600.0)
    # A machine with memory for the newest message alone.
    monkeypatch.setattr(log_memory.os, "sysconf", {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 1}.__getitem__)

    async def main() -> None:
        settings = {"cold_flow_control": True, "hot_memory_percent": 100, "group_cold_bytes_max": 4000}
        async with broker(tmp_path, **settings) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for i in range(10):
                await sent(peer, b"%d" % i * 500)
            assert len(await pulled(peer, TOPIC, 0, 0, count_max=4)) == 4
            sizes = (await report(peer))["runtimeTable"][GROUP]["coldAcc"]
            assert 2000 < sizes < 4000
            assert len(await pulled(peer, TOPIC, 0, 4, count_max=4)) == 4
            # Over its share: the next cold pulls wait, those of the newest message and of others do not.
            waiting = [asyncio.ensure_future(pull(peer, TOPIC, 0, 6, count_max=2)) for _ in range(2)]
            assert [m.queue_offset for m in await pulled(peer, TOPIC, 0, 9)] == [9]
            await create_group(peer, "others")
            assert len(await pulled(peer, TOPIC, 0, 0, group="others", count_max=1)) == 1
            # 8 at most of what is far behind.
            assert len(await pulled(peer, TOPIC, 0, 0, group="TOOLS_CONSUMER")) == 8
            assert server._long_polling.waiting == 2
            assert not any(w.done() for w in waiting)
            # What arrives ends no waiting pull.
            await sent(peer, b"new")
            assert not any(w.done() for w in waiting)

            # A new interval: the first of two reads what it asked for, whose limit it reaches; the second one message.
            assert await limit(peer, f"{GROUP}=1000") == (0, None)
            server._cold_reads.next_interval()
            for waiter in list(server._long_polling._waiting[NO_QUEUE]):
                server._long_polling._expire(waiter)
            assert [[m.queue_offset for m in records(await w)] for w in waiting] == [[6, 7], [6]]
            found = await report(peer)
            assert found["configTable"] == {GROUP: 1000}
            assert found["cgColdReadThreshold"] == 4000
            assert found["globalColdReadThreshold"] == 100 << 20
            assert found["globalAcc"] == found["runtimeTable"][GROUP]["coldAcc"] > 1000

            # Without the limit it goes on at once.
            removed = await peer.request(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, None, GROUP.encode())
            assert removed.code == 0
            assert len(await pulled(peer, TOPIC, 0, 7, count_max=1)) == 1

    run(main())


def test_limits_that_are_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await limit(peer, "a=5\nb=-1") == (29, "b=-1: bytes are needed")
            assert await limit(peer, "a=many") == (29, "a=many: bytes are needed")
            assert (await limit(peer, f"a={1 << 63}"))[0] == 29
            assert await limit(peer, "") == (0, None)
            assert (await report(peer))["configTable"] == {}

    run(main())
