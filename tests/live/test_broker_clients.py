"""Heartbeats, members and their changes, locks of queues."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import cast

import pytest
from tests.live.support import GROUP, TOPIC, Called, beat, broker, connected, create, run, until
from tests.support.patience import in_time

from rocketspark import machine
from rocketspark.client.connection import client_api
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import HeartbeatReply
from rocketspark.protocol.json import bodies, java_json
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("order: queue locks")

CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
TOLD = (CHANGED, headers.ConsumerListHeader(group=GROUP))


async def consumers(peer: Peer, group: str = GROUP) -> Reply:
    return await peer.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ConsumerListHeader(group=group))


async def ids(peer: Peer) -> list[str]:
    return java_json.decode((await consumers(peer)).raise_for_code("list").body, bodies.ConsumerList).consumer_id_list


def test_a_heartbeat_makes_the_group_and_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            reply = await consumers(peer)
            assert (reply.code, reply.remark) == (1, "no consumer for this group, G")
            answer = await beat(peer, client_id="c1")
            assert answer.header(HeartbeatReply) == HeartbeatReply(heartbeat_v2=True, subscription_changed=True)
            assert await ids(peer) == ["c1"]
            retry = server._topics.get("%RETRY%G")
            assert retry is not None
            assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
            assert server._groups.table[GROUP].retry_max_times == 16
            await beat(peer, client_id="c1", group="Broadcast", message_model="BROADCASTING")
            assert server._topics.get("%RETRY%Broadcast") is not None
            await beat(peer, client_id="c1", group=None, producer="P")
            assert [c.client_id for c in server._clients.producers["P"].values()] == ["c1"]

    run(main())


@pytest.mark.shows("heartbeat, consumer list, notify of changes")
def test_every_member_is_told_when_one_joins_or_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = Called(CHANGED), Called(CHANGED)
        async with broker(tmp_path) as server, connected(server.address, one.routes) as first:
            await beat(first, client_id="c1")
            # The one that joined is told too.
            assert await one.next() == TOLD
            await beat(first, client_id="c1")
            async with connected(server.address, two.routes) as second:
                await beat(second, client_id="c2")
                assert (await one.next(), await two.next()) == (TOLD, TOLD)
                assert sorted(await ids(first)) == ["c1", "c2"]
                await beat(second, client_id="c2")
                leave = headers.UnregisterClientHeader(client_id="c2", consumer_group=GROUP)
                (await second.request(RequestCode.UNREGISTER_CLIENT, leave)).raise_for_code("leave")
                assert await one.next() == TOLD
                assert await ids(first) == ["c1"]
                await beat(second, client_id="c2")
                assert (await one.next(), await two.next()) == (TOLD, TOLD)
            # A connection that ends takes its member with it.
            assert await one.next() == TOLD
            assert await ids(first) == ["c1"]
            # Repeated heartbeats and a member that left are no news to anybody.
            assert one.came.empty()
            assert two.came.empty()

    run(main())


@pytest.mark.shows("heartbeat, consumer list, notify of changes")
def test_a_member_whose_connection_broke_without_an_end_counts_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path) as server,
            connected(server.address) as before,
            connected(server.address) as after,
            connected(server.address) as other,
        ):
            await beat(before, client_id="c1")
            await beat(other, client_id="c2")
            # The network was cut: for two minutes the broker cannot know that nobody is behind the first connection.
            await beat(after, client_id="c1")
            assert await ids(other) == ["c1", "c2"]

    run(main())


@pytest.mark.shows("heartbeat, consumer list, notify of changes")
def test_a_list_that_has_a_member_twice_is_shared_by_members() -> None:
    class Broker:
        async def request(self, *given: object, **named: object) -> Reply:
            told = bodies.ConsumerList(consumer_id_list=["c1", "c2", "c1"])
            return Reply(0, None, b"", bodies.encode(told), "")

    assert run(client_api.consumer_list(cast(Peer, Broker()), GROUP)) == ["c1", "c2"]


def test_a_changed_subscription_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = Called(CHANGED), Called(CHANGED)
        async with (
            broker(tmp_path) as server,
            connected(server.address, one.routes) as first,
            connected(server.address, two.routes) as second,
        ):
            await beat(first, client_id="c1", version=1)
            assert await one.next() == TOLD
            await beat(second, client_id="c2", version=1)
            assert (await one.next(), await two.next()) == (TOLD, TOLD)
            await beat(second, client_id="c2", topics={TOPIC: "a"}, version=2)
            assert (await one.next(), await two.next()) == (TOLD, TOLD)
            # An older subscription than the one known changes nothing.
            await beat(first, client_id="c1", version=1)
            await beat(first, client_id="c1", topics={TOPIC: "a", "Other": "*"}, version=3)
            assert (await one.next(), await two.next()) == (TOLD, TOLD)
            assert server._clients.consumers[GROUP].subscriptions[TOPIC].expression == "a"
            assert one.came.empty()

    run(main())


def test_telling_can_be_off(tmp_path: Path) -> None:
    async def main() -> None:
        one = Called(CHANGED)
        async with (
            broker(tmp_path, notify_group_changes=False) as server,
            connected(server.address, one.routes) as first,
            connected(server.address) as second,
        ):
            await beat(first, client_id="c1")
            await beat(second, client_id="c2")
            assert sorted(await ids(first)) == ["c1", "c2"]
            assert one.came.empty()

    run(main())


def test_a_client_that_connects_anew_is_one_member(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server:
            async with connected(server.address) as old:
                await beat(old, client_id="c1", producer="P")
            async with connected(server.address) as new:
                await beat(new, client_id="c1", producer="P")
                await until(lambda: len(server._clients.consumers[GROUP].clients) == 1)
                assert await ids(new) == ["c1"]
                assert len(server._clients.producers["P"]) == 1
            await until(lambda: not server._clients.consumers and not server._clients.producers)

    run(main())


def test_a_silent_client_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await beat(peer, client_id="c1", producer="P")
            await beat(other, client_id="c2")
            (first,) = [c for c in server._clients.consumers[GROUP].clients.values() if c.client_id == "c1"]
            list(server._clients.expire_steps(first.beat_ms + 120_000))
            assert len(await ids(other)) == 2
            first.beat_ms -= 1
            server._clients.producers["P"][first.peer].beat_ms -= 1
            (second,) = [c for c in server._clients.consumers[GROUP].clients.values() if c.client_id == "c2"]
            second.beat_ms += 1000
            list(server._clients.expire_steps(first.beat_ms + 120_001))
            assert await ids(other) == ["c2"]
            assert "P" not in server._clients.producers

    run(main())


def test_heartbeats_that_are_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for body in (b"", b"{}", b"[]", b"\xff", b'{"clientID":"c","consumerDataSet":[{}]}', b'{"a":' * 5000):
                reply = await peer.request(RequestCode.HEART_BEAT, None, body)
                assert (reply.code, "no Heartbeat" in (reply.remark or "")) == (1, True), body[:20]
            bad = b'{"clientID":"c","consumerDataSet":[{"groupName":"bad group"}]}'
            assert (await peer.request(RequestCode.HEART_BEAT, None, bad)).code == 29
            assert server._clients.consumers == {}
            await beat(peer)

    run(main())


async def lock(peer: Peer, client: str, *queues: int, release: bool = False) -> list[int]:
    body = bodies.LockRequest(
        client_id=client,
        consumer_group=GROUP,
        mq_set=[bodies.QueueBody(broker_name="broker-a", queue_id=q, topic=TOPIC) for q in queues],
    )
    code = RequestCode.UNLOCK_BATCH_MQ if release else RequestCode.LOCK_BATCH_MQ
    reply = (await peer.request(code, None, bodies.encode(body))).raise_for_code("lock")
    if release:
        assert reply.body == b""
        return []
    return sorted(q.queue_id for q in java_json.decode(reply.body, bodies.LockReply).lock_ok_mq_set)


def test_a_queue_has_one_holder(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with broker(folder, lock_expiry_ms=800) as server, connected(server.address) as peer:
            await create(peer)
            assert await lock(peer, "c1", 0, 1) == [0, 1]
            assert await lock(peer, "c2", 0, 1, 2) == [2]
            assert await lock(peer, "c1", 1, 2) == [1]
            await lock(peer, "c2", 0, 1, release=True)
            assert await lock(peer, "c2", 0, 1) == []
            await lock(peer, "c1", 0, release=True)
            assert await lock(peer, "c2", 0, 1) == [0]
            # A holder that says nothing any more loses its queue.
            await asyncio.sleep(0.9)
            assert await lock(peer, "c3", 0, 1, 2) == [0, 1, 2]
            assert await lock(peer, "c1", 0) == []
            reply = await peer.request(RequestCode.LOCK_BATCH_MQ, None, b"nope")
            assert (reply.code, "no LockRequest" in (reply.remark or "")) == (1, True)

    in_time(lambda folder: run(main(folder)), tmp_path)


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_clock_that_jumps_takes_no_lock_and_no_member_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    """Set forward, a second member got the queue that the first works on; set back, a dead one's stayed locked."""
    wall, passed_s = time.time, 0.0
    steady = time.monotonic

    async def main() -> None:
        nonlocal passed_s
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await beat(peer, client_id="c1", producer="P")
            assert await lock(peer, "c1", 0) == [0]
            monkeypatch.setattr(machine, "time", lambda: wall() + jump_s)
            monkeypatch.setattr(machine, "monotonic", lambda: steady() + passed_s)
            assert await lock(peer, "c2", 0) == []
            server._expire_clients()
            assert await ids(peer) == ["c1"]
            assert "P" in server._clients.producers
            told = await peer.request(RequestCode.GET_ALL_PRODUCER_INFO)
            (row,) = json.loads(told.body)["data"]["P"]
            assert abs(row["lastUpdateTimestamp"] / 1000 - wall() - jump_s) < 60
            passed_s = 61.0
            assert await lock(peer, "c2", 0) == [0]

    run(main())
