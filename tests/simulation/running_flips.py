"""Bits that flip in what a running broker reads: log, consume queue, key index, timer log.

Rule: what a flip hits is known from the files before it. It hurts that alone: no reader stops at it or is led past
others, nothing is given as another message, and a replica that is whole gives all once it is elected.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.simulation.checker import PromiseBroken
from tests.simulation.flips import TOPIC, all_of
from tests.simulation.histories import log_of, records_of
from tests.simulation.nodes import BROKER, Cluster
from tests.simulation.world import Node, World, wait_until

from rocketspark import AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, Message, ReceivedMessage
from rocketspark.errors import RocketSparkError
from rocketspark.store.consumequeue.consume_queue import UNIT_BYTES
from rocketspark.store.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES
from rocketspark.store.index.key_hashes import key_hash
from rocketspark.store.timers.timer_log import UNIT_BYTES as TIMER_BYTES

TIMED = "timed"
FIRST, SECOND, TIMERS = 120, 20, 30
DUE_S = 40.0
# By folder: how often it is drawn.
FOLDERS = {"commitlog": 3, "consumequeue": 3, "index": 2, "timerlog": 2}


async def alone(world: World) -> dict[str, Any]:
    """One broker: readers that come later, a group that reads on, keys and timers."""
    run = _Run(world, replicas=1)
    node = run.cluster.brokers[0]
    await run.begin()
    await run.flip(node)
    await run.go_on()
    await run.check(may_lose=True)
    if world.random("again").random() < 0.5:
        node.kill()
        await asyncio.sleep(1)
        await run.cluster.start_server(node).wait_ready()
        await run.check(may_lose=True)
    await run.cluster.stop()
    return run.outcome()


async def of_a_replica(world: World) -> dict[str, Any]:
    """One of two brokers: what was hit is with the other, whole; what it lacks itself is passed over, no more."""
    run = _Run(world, replicas=2)
    cluster = run.cluster
    await run.begin()
    node = world.random("which").choice(cluster.brokers)
    await run.flip(node)
    await run.go_on()
    await run.check(may_lose=await cluster.master() is node)
    other = next(broker for broker in cluster.brokers if broker is not node)
    for killed in (node, other):
        killed.kill()
        left = next(broker for broker in cluster.brokers if broker is not killed)
        while await cluster.master() is not left:
            await asyncio.sleep(0.1)
        await run.check(may_lose=left is node)
        cluster.restart(killed)
        await cluster.wait_in_sync(2)
    await cluster.stop()
    return run.outcome()


class _Run:
    """What was sent to a cluster, what came of it, and what was hit."""

    def __init__(self, world: World, *, replicas: int) -> None:
        self.world = world
        self.cluster = Cluster(world, replicas=replicas, flush_disk_type="SYNC_FLUSH", timers_enabled=True)
        self.sent: dict[str, tuple[int, int]] = {}
        self.timed: set[str] = set()
        self.came: Counter[str] = Counter()
        self.listened: set[str] = set()
        self.strange: list[str] = []
        # Messages, keys and timers whose bytes were hit.
        self.hit: set[str] = set()
        # Of these what a reader that went on was given while they were damaged.
        self.may_lack: set[str] = set()
        self.slots: set[int] = set()
        self.timers_hit: set[str] = set()
        self.flips: list[dict[str, Any]] = []

    async def begin(self) -> None:
        await self.cluster.start()
        await self._send("sender", FIRST, TIMERS)
        self.world.node("timed-listeners").start(lambda node: self._listen(TIMED, "timed-listeners"))
        await asyncio.sleep(5)

    async def go_on(self) -> None:
        """Send more, and wait until all timers are due."""
        self.world.node("listeners").start(lambda node: self._listen(TOPIC, "listeners"))
        await self._send("sender-again", SECOND, 0)
        await wait_until(self.world, DUE_S + 15)

    async def _send(self, name: str, count: int, timers: int) -> None:
        async def send(node: Node) -> None:
            async with AsyncProducer(
                self.cluster.namesrv_address, "senders", send_timeout_ms=3000, retries=20
            ) as producer:
                for number in range(timers):
                    after_ms = int((DUE_S - self.world.now_s) * 1000) + number % 5 * 1000
                    await producer.send(Message(TIMED, _content(f"d{number}"), delay_ms=after_ms))
                    self.timed.add(f"d{number}")
                for number in range(len(self.sent), len(self.sent) + count):
                    result = await producer.send(Message(TOPIC, _content(f"m{number}"), keys=[f"k{number}"]))
                    self.sent[f"m{number}"] = result.queue.queue_id, result.queue_offset

        await self.world.node(name).run(send)

    async def _listen(self, topic: str, group: str) -> None:
        async def listen(message: ReceivedMessage) -> bool:
            body = self._body(message)
            self.came[body] += 1
            if topic == TOPIC:
                self.listened.add(body)
            return True

        consumer = AsyncPushConsumer(
            self.cluster.namesrv_address, group, consume_from="first", rebalance_interval_ms=5000
        )
        consumer.subscribe(topic)
        consumer.listen(listen)
        async with consumer:
            await asyncio.sleep(600)

    def _body(self, message: ReceivedMessage) -> str:
        """Return a message's name; one whose body is damaged, and says so, has none."""
        if message.body_error:
            return ""
        body = message.body.decode("utf-8", "replace")
        name = body.partition(" ")[0]
        topic = {"m": TOPIC, "d": TIMED}.get(name[:1])
        if topic != message.topic or not name[1:].isdecimal() or message.body != _content(name):
            self.strange.append(f"{body[:40]} at {message.topic} {message.queue_id} {message.queue_offset}")
        return name

    # -- what is hit ---------------------------------------------------------------------------------------------

    async def flip(self, node: Node) -> None:
        """Flip bits of what a broker that runs has on its disk, and look by which messages."""
        chance, store = self.world.random("flips"), self.cluster.store(node)
        drawn = [self._draw(chance, store) for _ in range(chance.choice([1, 1, 2, 3]))]
        self.flips = self.world.planned("flips", drawn)
        for flip in self.flips:
            self._note_hit(store, flip)
        for flip in self.flips:
            self.world.record("flip", node=node.name, **flip)
            node.disk.flip(store / flip["path"], flip["at"], flip["bit"])
        self.world.states["bits flipped"] += len(self.flips)
        await asyncio.sleep(1)

    def _draw(self, chance: random.Random, store: Path) -> dict[str, Any]:
        folder = chance.choice([name for name, weight in FOLDERS.items() for _ in range(weight)])
        bit = chance.randrange(8)
        if not (store / folder).exists():
            # A slave may have no timers of its own yet.
            folder = "commitlog"
        match folder:
            case "commitlog":
                begin, log = log_of(store)
                at = begin + chance.randrange(len(log))
                path, at = _file_of(store / folder, at)
            case "consumequeue":
                number = chance.randrange(4)
                count = sum(1 for queue, _ in self.sent.values() if queue == number)
                path, at = _file_of(store / folder / TOPIC / str(number), chance.randrange(count * UNIT_BYTES))
            case "index":
                path = min((store / folder).iterdir())
                end = (
                    HEADER_BYTES
                    + 4 * BROKER["index_slots"]
                    + ENTRY_BYTES * HEADER.unpack(_read(path, 0, HEADER_BYTES))[5]
                )
                at = chance.randrange(HEADER_BYTES, end)
            case _:
                path, at = _file_of(store / folder, chance.randrange(TIMERS * TIMER_BYTES))
        return {"path": str(path.relative_to(store)), "at": at, "bit": bit}

    def _note_hit(self, store: Path, flip: dict[str, Any]) -> None:
        path, at = store / flip["path"], flip["at"]
        match path.relative_to(store).parts[0]:
            case "commitlog":
                position = int(path.name) + at
                found = max(
                    (one for one in records_of(store) if one.position <= position), key=lambda one: one.position
                )
                self.hit.add(found.body.partition(" ")[0])
            case "index":
                self.slots.add(_slot_of(path, at))
            case "timerlog":
                self.timers_hit.add("a unit")

    # -- what is promised ----------------------------------------------------------------------------------------

    async def check(self, *, may_lose: bool) -> None:
        reader = self.world.node("reader")
        there, keys = await reader.run(self._read)
        hit = self.hit if may_lose else set[str]()
        self.may_lack |= hit
        broken = []
        if self.strange:
            broken.append(f"what is given is what was sent ({len(self.strange)}): {self.strange[:3]}")
        for how, lost in {
            "read": {body for body, at in self.sent.items() if there.get(at) != body},
            "listened to": set(self.sent) - self.listened,
            "found by key": {body for body in self.sent if body not in keys and self._slot(body) not in self.slots},
        }.items():
            if more := lost - (self.may_lack if how == "listened to" else hit):
                broken.append(f"damage takes nothing else with it: {len(more)} not {how}: {sorted(more)[:5]}")
        late = self.timed - set(self.came) - self.may_lack
        if len(late) > len(self.timers_hit):
            broken.append(f"damage takes no other timers with it ({len(late)}): {sorted(late)[:5]}")
        if lost := self.timed - set(self.came):
            self.world.states["timers lost by flips"] += len(lost)
        if twice := {body for body in self.timed if self.came[body] > 1}:
            broken.append(f"a timer comes once: {sorted(twice)[:5]}")
        if broken:
            raise PromiseBroken("; ".join([*broken, f"flips: {self.flips}, hit: {sorted(self.hit)}"]))

    @staticmethod
    def _slot(body: str) -> int:
        return key_hash(f"{TOPIC}#k{body[1:]}") % BROKER["index_slots"]

    async def _read(self, node: Node) -> tuple[dict[tuple[int, int], str], set[str]]:
        """Read every queue until nothing more comes for some seconds, and look for each key."""
        found: dict[tuple[int, int], str] = {}
        keys: set[str] = set()
        async with AsyncPullConsumer(self.cluster.namesrv_address, "checkers", auto_commit=False) as consumer:
            async for message in all_of(consumer, TOPIC):
                found[message.queue_id, message.queue_offset] = self._body(message)
            for body in self.sent:
                try:
                    answer = await consumer.query_message(TOPIC, f"k{body[1:]}")
                except RocketSparkError:
                    continue
                for message in answer:
                    if (name := self._body(message)) and name != body:
                        self.strange.append(f"{name} is found by the key of {body}")
                    keys.add(name)
        return found, keys

    def outcome(self) -> dict[str, Any]:
        return {"sent": len(self.sent), "hit": len(self.hit), "timers": sum(self.came[body] for body in self.timed)}


def _content(body: str) -> bytes:
    return f"{body} {'x' * (int(body[1:]) % 7 * 300)}".encode()


def _file_of(folder: Path, at: int) -> tuple[Path, int]:
    """Return the file of a folder that has a byte of the whole, and where."""
    path = max(path for path in folder.iterdir() if int(path.name) <= at)
    return path, at - int(path.name)


def _read(path: Path, at: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(count)


def _slot_of(path: Path, at: int) -> int:
    """Return the slot of an index file whose chain has a byte."""
    slots = BROKER["index_slots"]
    if at < HEADER_BYTES + 4 * slots:
        return (at - HEADER_BYTES) // 4
    begin = at - (at - HEADER_BYTES - 4 * slots) % ENTRY_BYTES
    return ENTRY.unpack(_read(path, begin, ENTRY_BYTES))[0] % slots
