"""A topic is made anew while its deletion waits for the disk, or after a full disk broke the deletion off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import TOPIC, broker, connected, create, pulled, run, send, sent, until

from rocketspark.broker.server import BrokerServer
from rocketspark.errors import StoreFull
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import TopicHeader
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("a topic made anew while its deletion is under way has none of the old messages")

LIGHT: dict[str, Any] = {"lmq": True, "multi_dispatch": True}
LITE = f"%LMQ%${TOPIC}$a"


async def delete(peer: Peer) -> Reply:
    return await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))


def full(data: Any) -> None:
    raise StoreFull("no room")


async def break_off_deletion(server: BrokerServer, peer: Peer) -> None:
    """Have a full disk break the topic's deletion off."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server._topics.unsaved, "_write", full)
        assert (await delete(peer)).code != 0


async def made(server: BrokerServer, peer: Peer) -> None:
    """The topic with messages, one of them in a lite topic, and an offset."""
    await create(peer, TOPIC, 1)
    await sent(peer, b"old", TOPIC, 0, pairs={"INNER_MULTI_DISPATCH": LITE})
    for _ in range(4):
        await sent(peer, b"old", TOPIC, 0)
    server._offsets.commit("g", TOPIC, 0, 5)


@pytest.mark.parametrize("by", ["send", "request", "list"])
def test_a_topic_that_is_made_while_the_deletion_waits_for_the_disk(tmp_path: Path, by: str) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, **LIGHT) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await made(server, peer)
            removed = asyncio.Event()

            async def saved() -> None:
                await removed.wait()

            unsaved = server._topics.unsaved
            unsaved.saved = saved  # type: ignore[method-assign]
            deletion = asyncio.ensure_future(delete(peer))
            await until(lambda: server._topics.get(TOPIC) is None)
            del unsaved.saved  # type: ignore[method-assign]
            if by == "request":
                await create(other, TOPIC, 1, attributes="+queue.type=BatchCQ")
            elif by == "list":
                row = b'{"topicName":"%b","readQueueNums":1,"writeQueueNums":1,"perm":6}' % TOPIC.encode()
                body = b'{"topicConfigList":[%b]}' % row
                await other.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
            assert await sent(other, b"new", TOPIC, 0) == 0
            removed.set()
            (await deletion).raise_for_code("delete")
            assert [found.body for found in await pulled(other, TOPIC, 0, 0)] == [b"new"]
            assert server._offsets.get("g", TOPIC, 0) is None
            assert server.store.queue_range(LITE, 0) == (0, 0)

    run(main())


def test_a_topic_that_is_made_after_a_full_disk_broke_its_deletion_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with broker(tmp_path, **LIGHT) as server, connected(server.address) as peer:
            await made(server, peer)
            await break_off_deletion(server, peer)
            # As long as it cannot be ended no other topic takes its place.
            real = server.store.delete_topic
            monkeypatch.setattr(server.store, "delete_topic", full)
            assert (await send(peer, b"new", TOPIC, 0)).code != 0
            assert server._topics.get(TOPIC) is None
            monkeypatch.setattr(server.store, "delete_topic", real)
            assert await sent(peer, b"new", TOPIC, 0) == 0
            assert [found.body for found in await pulled(peer, TOPIC, 0, 0)] == [b"new"]
            assert server._offsets.get("g", TOPIC, 0) is None
            assert server.store.queue_range(LITE, 0) == (0, 0)

    run(main())


def test_a_topic_that_another_master_made_keeps_its_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await made(server, peer)
            await break_off_deletion(server, peer)
            # As one does that is elected, and knows the topic by messages alone.
            server._topics.find_missing({TOPIC: [0]})
            assert len(await pulled(peer, TOPIC, 0, 0)) == 5

    run(main())
