"""Where offsets are stored: on brokers, in what order they are told; in a file, Java's text, replaced as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.client.connection.instance import Instance
from rocketspark.client.consumer.offsets import BrokerOffsets, LocalOffsets, decode_offsets, encode_offsets
from rocketspark.errors import ConfigError, ProtocolError, TransportError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import UpdateConsumerOffsetHeader

pytestmark = pytest.mark.shows(
    "concurrent and ordered listeners, broadcast with offsets in Java's file, SQL92, time-outs of calls, "
    "bounds per queue and topic, pause, retries, dead letters"
)

A0, A1 = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)
TEXT = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:5,'
    b'{"brokerName":"broker-a","queueId":1,"topic":"t"}:7}}'
)


def made(folder: Path) -> LocalOffsets:
    instance = Instance("127.0.0.1:9")
    instance.client_id = "10.0.0.1@DEFAULT"
    return LocalOffsets(str(folder), instance, "g")


def test_the_text_is_java_s() -> None:
    assert encode_offsets({A1: 7, A0: 5}) == TEXT
    assert decode_offsets(TEXT) == {A0: 5, A1: 7}


def test_kept_and_read_again(tmp_path: Path) -> None:
    async def run() -> None:
        store = made(tmp_path)
        await store.load()
        assert await store.committed(A0) is None
        assert await store.commit({A0: 4}) == {}
        assert await store.commit({A0: 5, A1: 7}) == {}
        path = tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
        assert path.read_bytes() == TEXT
        assert decode_offsets(path.with_name("offsets.json.bak").read_bytes()) == {A0: 4}
        again = made(tmp_path)
        await again.load()
        assert (await again.committed(A0), await again.committed(A1)) == (5, 7)
        # A file that was torn: the one before still counts.
        path.write_bytes(TEXT[:40])
        torn = made(tmp_path)
        await torn.load()
        assert await torn.committed(A0) == 4
        path.with_name("offsets.json.bak").write_bytes(b"nothing")
        with pytest.raises(ConfigError, match="mend the file, or remove it"):
            await made(tmp_path).load()

    asyncio.run(run())


@pytest.mark.shows("mended: broadcast offsets: commits at once collide on one temporary file")
def test_commits_at_once_are_all_kept(tmp_path: Path) -> None:
    async def run() -> None:
        store = made(tmp_path)
        for i in range(20):
            failed = await asyncio.gather(store.commit({A0: i}), store.commit({A1: i}), store.commit({A0: i + 1}))
            assert failed == [{}, {}, {}]
        giving_up = asyncio.create_task(store.commit({A0: 100}))
        await asyncio.sleep(0)
        giving_up.cancel()
        assert await store.commit({A1: 100}) == {}
        again = made(tmp_path)
        await again.load()
        assert (await again.committed(A0), await again.committed(A1)) == (100, 100)
        assert {p.name for p in again.path.parent.iterdir()} == {"offsets.json", "offsets.json.bak"}

    asyncio.run(run())


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "10.0.0.1@DEFAULT").write_text("a file where the folder should be")

    async def run() -> None:
        failed = await made(tmp_path).commit({A0: 1})
        assert list(failed) == [A0]
        assert isinstance(failed[A0], OSError)

    asyncio.run(run())


queues = st.builds(MessageQueue, st.text(max_size=8), st.text(max_size=8), st.integers(0, 1 << 30))


@given(st.dictionaries(queues, st.integers(0, 1 << 60), max_size=5))
def test_there_and_back(offsets: dict[MessageQueue, int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


@given(st.binary(max_size=60))
def test_any_bytes_are_offsets_or_an_error(data: bytes) -> None:
    try:
        decode_offsets(data)
    except ProtocolError:
        pass


class HeldPeer:
    """A connection that notes commits and answers one when `answer` is called."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, bool]] = []
        self.values: list[int] = []
        self.waiting: list[asyncio.Future[Any]] = []

    def oneway(self, code: int, header: UpdateConsumerOffsetHeader) -> None:
        assert code == RequestCode.UPDATE_CONSUMER_OFFSET
        self.told.append((header.topic, header.queue_id, False))

    async def request(self, code: int, header: UpdateConsumerOffsetHeader, *, timeout_ms: float) -> Any:
        assert code == RequestCode.UPDATE_CONSUMER_OFFSET
        self.told.append((header.topic, header.queue_id, True))
        self.values.append(header.commit_offset)
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            future.set_result(mock.Mock())


def on(topic: str, *ids: int) -> dict[MessageQueue, int]:
    return {MessageQueue(topic, "broker-a", i): 10 + i for i in ids}


ROUTES = mock.Mock(leader=lambda queue: queue.broker_name)


def broker_offsets(peer: HeldPeer) -> BrokerOffsets:
    found = mock.AsyncMock(return_value=peer)
    return BrokerOffsets(mock.Mock(peer_of=found, peer_in_use=lambda queue: peer, routes=ROUTES), "g")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.shows(
    "of the first two commits of a group to a topic that come at once a 5.5.0 broker forgets one (its own race)"
)
@pytest.mark.parametrize("oneway", [False, True])
def test_a_broker_is_told_one_queue_of_a_topic_before_the_others(oneway: bool) -> None:
    async def run() -> None:
        peer = HeldPeer()
        store = broker_offsets(peer)
        offsets = on("t", 0, 1, 2) | on("u", 4, 5)
        tasks = [asyncio.create_task(store.commit(offsets, oneway=oneway))]
        # Of queues that are given up one by one.
        tasks += [asyncio.create_task(store.commit(on("t", n), oneway=oneway)) for n in (3, 4)]
        await settle()
        assert peer.told == [("t", 0, True), ("u", 4, True)]
        peer.answer()
        await settle()
        others = [("t", 1), ("t", 2), ("t", 3), ("t", 4), ("u", 5)]
        assert sorted(peer.told[2:]) == [(topic, n, not oneway) for topic, n in others]
        peer.answer()
        assert await asyncio.gather(*tasks) == [{}, {}, {}]
        # From now on all at once.
        task = asyncio.create_task(store.commit(offsets, oneway=oneway))
        await settle()
        assert len(peer.told) == 12
        peer.answer()
        assert await task == {}

    asyncio.run(run())


def test_a_first_commit_that_fails_lets_the_others_go_on_at_once() -> None:
    async def run() -> None:
        peer = HeldPeer()
        store = broker_offsets(peer)
        tasks = [asyncio.create_task(store.commit(on("t", n))) for n in range(4)]
        await settle()
        peer.waiting.pop().set_exception(TransportError("as the test wants it"))
        await settle()
        assert [queue_id for _, queue_id, _ in peer.told] == [0, 1, 2, 3]
        peer.answer()
        assert [len(failed) for failed in await asyncio.gather(*tasks)] == [1, 0, 0, 0]

    asyncio.run(run())


@pytest.mark.shows(
    "mended: an offset that waited for its turn, or a pull for its connection, was committed after a newer one"
)
def test_an_offset_is_read_when_its_turn_comes() -> None:
    async def run() -> None:
        peer = HeldPeer()
        now: dict[int, int | None] = {0: 10, 1: 11, 2: 12}
        commit = broker_offsets(peer).commit(on("t", 0, 1, 2), latest=lambda queue: now[queue.queue_id])
        task = asyncio.create_task(commit)
        while not peer.waiting:
            await asyncio.sleep(0)
        # One moved on, one was given up.
        now.update({0: 20, 1: 21, 2: None})
        peer.answer()
        while len(peer.told) < 2:
            await asyncio.sleep(0)
        peer.answer()
        assert await task == {}
        assert peer.values == [10, 21]

    asyncio.run(run())


def test_commits_of_a_queue_follow_each_other_with_what_is_the_latest_then() -> None:
    async def run() -> None:
        peer = HeldPeer()
        store = broker_offsets(peer)
        now = [10]
        tasks = [asyncio.create_task(store.commit(on("t", 0), latest=lambda _: now[0])) for _ in range(3)]
        await settle()
        assert peer.values == [10]
        now[0] = 30
        tasks[1].cancel()
        peer.answer()
        await settle()
        assert peer.values == [10, 30]
        peer.answer()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert (found[0], type(found[1]), found[2]) == ({}, asyncio.CancelledError, {})
        assert store._telling == {}

    asyncio.run(run())


def test_a_commit_that_is_given_up_while_it_waits_lets_the_next_one_pass_nobody() -> None:
    async def run() -> None:
        peer = HeldPeer()
        store = broker_offsets(peer)
        made = asyncio.create_task(store.commit(on("t", 0)))
        await settle()
        peer.answer()
        await made
        first, second = (asyncio.create_task(store.commit(on("t", 0))) for _ in range(2))
        await settle()
        second.cancel()
        await settle()
        third = asyncio.create_task(store.commit(on("t", 0)))
        await settle()
        # The first one is not answered yet.
        assert len(peer.told) == 2
        peer.answer()
        assert await first == {}
        await settle()
        assert len(peer.told) == 3
        peer.answer()
        assert await third == {}
        assert store._telling == {}

    asyncio.run(run())


def test_a_broker_that_hangs_holds_up_no_other() -> None:
    async def run() -> None:
        hung, other = HeldPeer(), HeldPeer()

        async def peer_of(queue: MessageQueue) -> HeldPeer:
            return hung if queue.broker_name == "broker-a" else other

        offsets = on("t", 0, 1) | {MessageQueue("t", "broker-b", i): i for i in (0, 1)}
        task = asyncio.create_task(BrokerOffsets(mock.Mock(peer_of=peer_of, routes=ROUTES), "g").commit(offsets))
        while len(other.told) < 2:
            await asyncio.sleep(0)
            other.answer()
        assert (len(hung.told), task.done()) == (1, False)
        task.cancel()

    asyncio.run(run())
