"""Bits that flip in a broker's tables, checkpoints and timer files while it is down: it starts and says so, or goes on.

Rule: JSON has no checksums, in RocketMQ's form, so a number or a name that is another one by a bit is believed. What it
says of a queue, a group or a topic is hit; a text that is none any more is hit nowhere, as the version before is there.
Log, timers and what other entries say are never hit.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.simulation.checker import PromiseBroken
from tests.simulation.flips import all_of
from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World, wait_until

from rocketspark import AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, Message, ReceivedMessage
from rocketspark.admin.operations import AsyncAdmin

TOPIC, TIMED, DELAYED, GROUP = "t", "timed", "delayed", "readers"
FIRST, SECOND, TIMERS, LATER = 60, 20, 20, 6
DUE_S = 45.0
# Those that are written anew while readers commit and operators change something.
WRITTEN = ("topics.json", "consumerOffset.json", "subscriptionGroup.json")
TABLES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json", "timermetrics")
# By file, below the store: how often it is drawn.
FILES = {"timerwheel": 4, "config/timercheck": 2, "timerlog": 2, "checkpoint": 1, **{f"config/{t}": 2 for t in TABLES}}
_SLOT_BYTES = 32


async def alone(world: World) -> dict[str, Any]:
    """One broker, killed or stopped; what is hit is no more than its entry."""
    run = _Run(world)
    await run.begin()
    await run.flip()
    await run.go_on()
    run.check()
    await run.cluster.stop()
    return {"sent": len(run.sent), "read": len(run.there), "timers": sum(run.came[body] for body in run.timed)}


async def while_running(world: World) -> dict[str, Any]:
    """One broker that runs, and writes its tables anew meanwhile; what is read back at its next start is looked at."""
    run = _Run(world)
    await run.begin()
    await run.flip_running()
    await run.go_on()
    run.check()
    await run.cluster.stop()
    return {"sent": len(run.sent), "read": len(run.there)}


class _Run:
    """What was sent to a broker, what came of it, and what was hit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = Cluster(world, flush_disk_type="SYNC_FLUSH", timers_enabled=True)
        self.node = self.cluster.brokers[0]
        self.sent: dict[str, tuple[int, int]] = {}
        self.timed: set[str] = set()
        self.came: Counter[str] = Counter()
        # What the group was given.
        self.given: Counter[str] = Counter()
        self.there: dict[tuple[int, int], str] = {}
        # Entries of tables that say something else now, by table.
        self.hit: dict[str, set[str]] = {}
        self.flips: list[dict[str, Any]] = []

    async def begin(self) -> None:
        """Send, have a group read some of it, and wait until its tables are on the disk."""
        await self.cluster.start()
        await self._send(FIRST)
        await self.world.node("timed-sender").run(self._send_later)
        await self.world.node("first-reader").run(lambda node: self._read_some(node, FIRST // 2))
        await asyncio.sleep(self.world.random("pause").uniform(6, 12))

    async def go_on(self) -> None:
        """Start the broker again, send more, and wait until all is due and read."""
        await self.cluster.start_server(self.node).wait_ready()
        if not self._is_topic_hit(TOPIC):
            await self._send(SECOND)
        for topic in (TIMED, DELAYED):
            self.world.node(f"{topic}-listeners").start(partial(self._listen, topic))
        self.world.node("second-reader").start(lambda node: self._read_some(node, 10_000))
        await wait_until(self.world, DUE_S + 25)
        await self.world.node("checker").run(self._read_all)

    async def _send(self, count: int) -> None:
        async def send(node: Node) -> None:
            async with AsyncProducer(self.cluster.namesrv_address, "senders", retries=20) as producer:
                for number in range(len(self.sent), len(self.sent) + count):
                    result = await producer.send(Message(TOPIC, f"m{number}".encode()))
                    self.sent[f"m{number}"] = result.queue.queue_id, result.queue_offset

        await self.world.node("sender").run(send)

    async def _send_later(self, node: Node) -> None:
        async with AsyncProducer(self.cluster.namesrv_address, "senders") as producer:
            for number in range(TIMERS):
                after_ms = int((DUE_S - self.world.now_s) * 1000) + number % 7 * 1000
                await producer.send(Message(TIMED, f"d{number}".encode(), delay_ms=after_ms))
                self.timed.add(f"d{number}")
            for number in range(LATER):
                # 30 s and a minute.
                await producer.send(Message(DELAYED, f"l{number}".encode(), delay_level=4 + number % 2))
                self.timed.add(f"l{number}")

    async def _read_some(self, node: Node, count: int) -> None:
        async with AsyncPullConsumer(
            self.cluster.namesrv_address, GROUP, consume_from="first", commit_interval_ms=1000
        ) as consumer:
            consumer.subscribe(TOPIC)
            while count > 0:
                for message in await consumer.poll(500, count_max=5):
                    self.given[message.body.decode()] += 1
                    count -= 1
                # So that there is an earlier version of the table of offsets.
                await asyncio.sleep(0.5)

    async def _listen(self, topic: str, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> bool:
            self.came[message.body.decode()] += 1
            return True

        consumer = AsyncPushConsumer(self.cluster.namesrv_address, f"{topic}-listeners", consume_from="first")
        consumer.subscribe(topic)
        consumer.listen(listen)
        async with consumer:
            await asyncio.sleep(600)

    async def _read_all(self, node: Node) -> None:
        async with AsyncPullConsumer(self.cluster.namesrv_address, "checkers", auto_commit=False) as consumer:
            async for message in all_of(consumer, TOPIC, polls=4, poll_ms=1000):
                self.there[message.queue_id, message.queue_offset] = message.body.decode("utf-8", "replace")

    # -- what is hit ---------------------------------------------------------------------------------------------

    async def flip(self) -> None:
        """End the broker and flip bits of its files."""
        chance, store = self.world.random("flips"), self.cluster.store(self.node)
        if chance.random() < 0.5:
            self.node.kill()
        else:
            process = self.node.processes[0]
            process.stop()
            await process.wait()
        # Of a table that was saved once alone there is none before it, and the start says so.
        there = [name for name in FILES if (store / name).exists() and not _is_only(store / name)]
        drawn = [self._draw(chance, store, there) for _ in range(chance.choice([1, 1, 2, 3]))]
        self.flips = self.world.planned("flips", drawn)
        for flip in self.flips:
            path = store / flip["path"]
            before = path.read_bytes() if path.name in TABLES else b""
            self.world.record("flip", node=self.node.name, **flip)
            self.node.disk.flip(path, flip["at"], flip["bit"])
            if path.name in TABLES:
                self.hit.setdefault(path.name, set()).update(_changed(before, path.read_bytes()))
        self.world.states["bits flipped"] += len(self.flips)
        self.world.states["entries of tables hit"] += sum(map(len, self.hit.values()))
        await asyncio.sleep(1)

    async def flip_running(self) -> None:
        """Flip bits of tables, each in the file or in its `.bak`, while they are written anew, and end the broker."""
        chance, store = self.world.random("flips"), self.cluster.store(self.node)
        reader = self.world.node("reader between").start(lambda node: self._read_some(node, 10_000))
        are_backups = {name: chance.random() < 0.3 for name in WRITTEN}
        steps = [self._draw_running(chance, are_backups) for _ in range(chance.randint(2, 5))]
        self.flips = self.world.planned("flips", steps)
        flipped: dict[str, tuple[bytes, bytes]] = {}
        for number, flip in enumerate(self.flips):
            await asyncio.sleep(flip["after_s"])
            path = store / flip["path"]
            if path.exists() and path.with_name(f"{path.name.removesuffix('.bak')}.bak").exists():
                before = path.read_bytes()
                self.node.disk.flip(path, int(flip["share"] * len(before)), flip["bit"])
                flipped[flip["path"]] = before, path.read_bytes()
                self.world.record("flip", **flip)
                self.world.states["bits flipped"] += 1
            if flip["is_changed"]:
                await self.world.node("operator").run(lambda node, number=number: self._change(number))
        await asyncio.sleep(chance.uniform(0, 7))
        self._end(is_killed=chance.random() < 0.7)
        while self.node.processes:
            await asyncio.sleep(0.1)
        reader.end(silent=False)
        for name, (before, after) in flipped.items():
            # What was written anew since is right.
            if (path := store / name).read_bytes() == after and path.name in TABLES:
                self.hit.setdefault(path.name, set()).update(_changed(before, after))
                self.world.states["tables with a flip at the start"] += 1
        await asyncio.sleep(1)

    @staticmethod
    def _draw_running(chance: random.Random, are_backups: dict[str, bool]) -> dict[str, Any]:
        name = chance.choice(WRITTEN)
        return {
            "after_s": round(chance.uniform(0.5, 6), 3),
            "path": f"config/{name}{'.bak' if are_backups[name] else ''}",
            "share": chance.random(),
            "bit": chance.randrange(8),
            "is_changed": chance.random() < 0.6,
        }

    async def _change(self, number: int) -> None:
        """Have tables of topics and groups written anew."""
        async with AsyncAdmin(self.cluster.servers_address) as operator:
            await operator.create_topic(f"other-{number}")
            await operator.put_group(f"others-{number}")

    def _end(self, *, is_killed: bool) -> None:
        self.node.kill() if is_killed else self.node.processes[0].stop()

    def _draw(self, chance: random.Random, store: Path, there: list[str]) -> dict[str, Any]:
        """Draw a bit of a file, one of each file at most."""
        name = chance.choice([name for name in there for _ in range(FILES[name])])
        there.remove(name)
        path = store / name
        if path.is_dir():
            path = min(path.iterdir())
        match name:
            case "timerwheel":
                at = chance.choice(_slots(path)) + chance.randrange(_SLOT_BYTES)
            case "timerlog":
                at = chance.randrange(TIMERS * 52)
            case "config/timercheck" | "checkpoint":
                at = chance.randrange(56)
            case _:
                at = chance.randrange(path.stat().st_size)
        return {"path": str(path.relative_to(store)), "at": at, "bit": chance.randrange(8)}

    def _is_topic_hit(self, *topics: str) -> bool:
        return self._is_hit("topics.json", *(f"/{topic}/" for topic in topics))

    def _is_hit(self, table: str, *names: str) -> bool:
        return any(name in entry for entry in self.hit.get(table, ()) for name in names)

    # -- what is promised ----------------------------------------------------------------------------------------

    def check(self) -> None:
        broken = []
        if lost := {body for body, at in self.sent.items() if self.there.get(at) != body}:
            broken.append(f"damage takes no messages with it ({len(lost)}): {sorted(lost)[:5]}")
        is_hit = self._is_hit("consumerOffset.json", f"/{TOPIC}@{GROUP}/") or self._is_hit(
            "subscriptionGroup.json", f"/{GROUP}/"
        )
        if (passed := set(self.sent) - set(self.given)) and not is_hit and not self._is_topic_hit(TOPIC):
            broken.append(f"a group passes over nothing ({len(passed)}): {sorted(passed)[:5]}")
        late = {body for body in self.timed if not self.came[body]}
        if self._is_hit("delayOffset.json", "/") or self._is_hit(
            "topics.json", f"/{DELAYED}/", "/SCHEDULE_TOPIC_XXXX/"
        ):
            late = {body for body in late if body.startswith("d")}
        if self._is_topic_hit(TIMED, "rmq_sys_wheel_timer"):
            late = {body for body in late if body.startswith("l")}
        if late and not any(flip["path"].startswith("timerlog") for flip in self.flips):
            broken.append(f"damage takes no timers with it ({len(late)}): {sorted(late)[:5]}")
        if twice := {body for body in self.timed if self.came[body] > 1 and body.startswith("d")}:
            broken.append(f"a timer comes once ({len(twice)}): {sorted(twice)[:5]}")
        if broken:
            raise PromiseBroken("; ".join([*broken, f"flips: {self.flips}, hit: {self.hit}"]))


def _is_only(path: Path) -> bool:
    return path.name in TABLES and not path.with_name(f"{path.name}.bak").exists()


def _slots(path: Path) -> list[int]:
    """Return where a wheel has slots that were written."""
    numbers = np.fromfile(path, ">i8").reshape(-1, _SLOT_BYTES // 8)[:, 0]
    return [int(row) * _SLOT_BYTES for row in np.flatnonzero(numbers)]


def _changed(before: bytes, after: bytes) -> set[str]:
    """Return the entries of a table, by their way from the top, that say something else; none if it is no table now."""
    try:
        one, other = _entries(json.loads(before)), _entries(json.loads(after))
    except ValueError:
        return set()
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def _entries(table: Any, way: str = "") -> dict[str, Any]:
    if isinstance(table, dict):
        return {name: found for key in table for name, found in _entries(table[key], f"{way}/{key}").items()}
    return {way: table}
