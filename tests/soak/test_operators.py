"""Clients and operators at random on a broker that is killed and ended at random, SOAK_OPERATOR_CYCLES (60) times.

Clients send (plain, delayed, timers), pull, commit, pop and acknowledge; operators delete and make topics and groups,
reset and clone offsets. Throughout no message of a deleted topic reaches a reader of the topic made anew, and none that
was acknowledged comes again to its group. Every sixth time all is read to the end: each queue holds what was sent in
its order, each delayed message once, and each group gets everything.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import Popped, ack, messages, pop, real_topic
from tests.live.support import broker, connected, create, create_group, pull, records, run, send, sent

from rocketspark.broker.server import BrokerServer
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.groups import CloneOffsetsHeader, DeleteGroupHeader, ResetOffsetHeader
from rocketspark.protocol.message import record
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("clients and operators at random under kills: nothing lost, mixed up or twice")

TOPICS = ("t0", "t1", "a_t0")
PULLING, POPPING = ("A", "A2"), ("P", "P2")
QUEUES = 2
SMALL_FILES = {
    "log_file_bytes": 1 << 20,
    "queue_file_bytes": 20 * 100,
    "index_slots": 500,
    "index_entries": 2000,
    "timer_log_file_bytes": 52 * 200,
}
LOOK_EACH = 6
DELAYED = b"-d"


class World:
    """What was sent, and what each group was given, beside the broker that holds it."""

    server: BrokerServer
    peer: Peer

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.sent = {t: [list[bytes]() for _ in range(QUEUES)] for t in TOPICS}
        self.delayed = {t: set[bytes]() for t in TOPICS}
        self.of_before: set[bytes] = set()
        self.pulled: dict[tuple[str, str], set[bytes]] = {}
        self.popped: dict[tuple[str, str], dict[bytes, bool]] = {}
        # Whose messages were popped when, by which handle, for the line of a failure; None where the broker was killed.
        self.history: list[tuple[str, bytes, float, str, bool] | None] = []
        # Where a group was deleted, what it had acknowledged may come again.
        self.deleted: set[tuple[str, str]] = set()

    # -- clients -------------------------------------------------------------------------------------------------

    async def send_some(self) -> None:
        topic, queue_id = self.random.choice(TOPICS), self.random.randrange(QUEUES)
        for _ in range(self.random.randint(1, 20)):
            self.count += 1
            body = b"%s-%d" % (topic.encode(), self.count)
            await sent(self.peer, body, topic, queue_id)
            self.sent[topic][queue_id].append(body)

    async def send_delayed(self) -> None:
        topic, queue_id = self.random.choice(TOPICS), self.random.randrange(QUEUES)
        self.count += 1
        body = b"%s%s%d" % (topic.encode(), DELAYED, self.count)
        pairs = self.random.choice([{"DELAY": "1"}, {"TIMER_DELAY_MS": f"{self.random.randint(100, 3000)}"}])
        (await send(self.peer, body, topic, queue_id, pairs=pairs)).raise_for_code("send")
        self.delayed[topic].add(body)

    async def pull_some(self) -> None:
        await self.read(self.random.choice(PULLING), self.random.choice(TOPICS), self.random.randrange(QUEUES), 40)

    async def read(self, group: str, topic: str, queue_id: int, count_max: int) -> int:
        """Pull from where the group is, and commit; returns how many messages came."""
        known = await self.peer.request(
            RequestCode.QUERY_CONSUMER_OFFSET,
            headers.QueryConsumerOffsetHeader(group=group, topic=topic, queue_id=queue_id),
        )
        offset = known.header(headers.OffsetReply).offset if known.code == 0 else 0
        reply = await pull(self.peer, topic, queue_id, offset, group=group, sys_flag=6)
        moved = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
        if reply.code in moved and (to := reply.header(headers.PullReply).next_offset) != offset:
            reply = await pull(self.peer, topic, queue_id, to, group=group, sys_flag=6)
        if reply.code != 0:
            return 0
        found = records(reply)[:count_max]
        assert not [m.body for m in found if m.body in self.of_before]
        self.pulled.setdefault((group, topic), set()).update(m.body for m in found)
        header = headers.UpdateConsumerOffsetHeader(
            group=group, topic=topic, queue_id=queue_id, commit_offset=found[-1].queue_offset + 1
        )
        (await self.peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).raise_for_code("commit")
        return len(found)

    async def pop_some(self) -> None:
        await self.pop(
            self.random.choice(POPPING),
            self.random.choice(TOPICS),
            invisible_time_ms=self.random.choice([300, 1500]),
            acknowledged=self.random.choice([0, 0.5, 1]),
            count_max=self.random.choice([1, 7, 32]),
        )

    async def pop(self, group: str, topic: str, *, acknowledged: float, **how: int) -> None:
        reply = await pop(self.peer, topic, group=group, **how)
        given = self.popped.setdefault((group, topic), {})
        found: list[Popped] = [] if reply.code else messages(reply, topic)
        for message in found:
            assert message.body not in self.of_before
            assert not given.get(message.body) or (group, topic) in self.deleted, (
                message.handle,
                [one and one[2:] for one in self.history if one is None or one[:2] == (group, message.body)],
            )
            given.setdefault(message.body, False)
            if self.random.random() < acknowledged:
                done = await ack(self.peer, message, topic, group=group, topic=real_topic(message, topic, group))
                given[message.body] = given[message.body] or done.code == 0
            self.history.append((group, message.body, time.time(), message.handle, given[message.body]))

    # -- operators -----------------------------------------------------------------------------------------------

    async def remake_topic(self) -> None:
        topic = self.random.choice(TOPICS)
        deleted = await self.peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=topic))
        deleted.raise_for_code("delete")
        # What is delayed comes to the topic made anew, or is dropped: both are RocketMQ's.
        self.of_before.update(body for queue in self.sent[topic] for body in queue)
        self.sent[topic], self.delayed[topic] = [[] for _ in range(QUEUES)], set()
        for table in (self.pulled, self.popped):
            for key in [key for key in table if key[1] == topic]:
                del table[key]
        self.deleted = {key for key in self.deleted if key[1] != topic}
        if self.random.random() < 0.5:
            raise Killed
        await create(self.peer, topic, QUEUES)

    async def remake_group(self) -> None:
        group = self.random.choice(POPPING)
        header = DeleteGroupHeader(group=group, clean_offsets=True)
        (await self.peer.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).raise_for_code("delete")
        for topic in TOPICS:
            self.popped.pop((group, topic), None)
            self.deleted.add((group, topic))
        await create_group(self.peer, group)

    async def reset(self) -> None:
        group, topic = self.random.choice(PULLING), self.random.choice(TOPICS)
        header = ResetOffsetHeader(group=group, topic=topic, time_ms=0, force=True)
        (await self.peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).raise_for_code("reset")
        self.pulled.pop((group, topic), None)

    async def clone(self) -> None:
        topic, (source, target) = self.random.choice(TOPICS), PULLING
        header = CloneOffsetsHeader(source=source, target=target, topic=topic)
        (await self.peer.request(RequestCode.CLONE_GROUP_OFFSET, header)).raise_for_code("clone")
        if self.server._offsets.of(source, topic):
            self.pulled[target, topic] = set(self.pulled.get((source, topic), set()))

    async def rest(self) -> None:
        await asyncio.sleep(self.random.random() * 0.6)

    async def work(self) -> None:
        """Do 20 to 120 things at random."""
        ways: dict[Callable[[], Coroutine[Any, Any, None]], int] = {
            self.send_some: 35,
            self.send_delayed: 10,
            self.pull_some: 20,
            self.pop_some: 20,
            self.remake_topic: 3,
            self.remake_group: 2,
            self.reset: 2,
            self.clone: 2,
            self.rest: 6,
        }
        for way in self.random.choices(list(ways), list(ways.values()), k=self.random.randint(20, 120)):
            await way()

    # -- the look at all of it -----------------------------------------------------------------------------------

    def stored(self, topic: str, queue_id: int) -> list[bytes]:
        store, bodies = self.server.store, list[bytes]()
        at, end = store.queue_range(topic, queue_id)
        while at < end:
            found = store.read(topic, queue_id, at, 256, 1 << 20)
            bodies += [one.body for view in found.records for one in record.decode_all(view)]
            at = found.next_offset
        return bodies

    async def look(self) -> None:
        """Everything delayed has come; each queue and each group has all."""
        for topic in TOPICS:
            due_s = time.monotonic() + 30
            while True:
                queues = [self.stored(topic, queue_id) for queue_id in range(QUEUES)]
                came = [body for queue in queues for body in queue if DELAYED in body]
                if self.delayed[topic] <= set(came):
                    break
                assert time.monotonic() < due_s, (topic, self.delayed[topic] - set(came))
                await asyncio.sleep(0.05)
            assert len(came) == len(set(came)), topic
            assert [[body for body in queue if DELAYED not in body] for queue in queues] == self.sent[topic]
            everything = {body for queue in queues for body in queue}
            for group in PULLING:
                for queue_id in range(QUEUES):
                    while await self.read(group, topic, queue_id, 1000):
                        pass
                assert everything <= self.pulled.get((group, topic), set()), (group, topic)
            for group in POPPING:
                due_s = time.monotonic() + 30
                while missed := everything - {b for b, done in self.popped.get((group, topic), {}).items() if done}:
                    assert time.monotonic() < due_s, (group, topic, missed)
                    await self.pop(group, topic, acknowledged=1, invisible_time_ms=3000, count_max=32)


class Killed(Exception):
    """The broker is to be killed now."""


async def cycles(root: Path, seed: int, count: int, say: Callable[[str], None]) -> None:
    world = World(seed)
    for cycle in range(1, count + 1):
        look = cycle % LOOK_EACH == 0
        settings = SMALL_FILES | {"retry_topics_v2": world.random.random() < 0.3}
        async with broker(root, **settings) as world.server, connected(world.server.address) as world.peer:
            for topic in TOPICS:
                if world.server._topics.get(topic) is None:
                    await create(world.peer, topic, QUEUES)
            for group in PULLING + POPPING:
                await create_group(world.peer, group)
            try:
                await (world.look() if look else world.work())
                killed = not look and world.random.random() < 0.6
            except Killed:
                killed = True
            if killed:
                await world.server.kill()
                world.history.append(None)
        if look:
            say(f"cycle {cycle}: {world.count} messages, all there")


@pytest.mark.soak
def test_nothing_is_lost_mixed_up_or_twice_whatever_operators_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nSOAK_SEED={seed}")
    run(cycles(tmp_path, seed, int(os.environ.get("SOAK_OPERATOR_CYCLES", "60")), say), 3600)
