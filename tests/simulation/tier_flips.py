"""Bits that flip in a second tier, a folder or objects: what they hit is lost at most, where the tier alone has it.

Rule: nothing is given as another message, no reader stops, by tags or without, and of messages no more are lost than
records of the tier were hit.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.checker import PromiseBroken
from tests.simulation.flips import TOPIC, all_of
from tests.simulation.nodes import Cluster
from tests.simulation.parts.compacted import CUT
from tests.simulation.parts.tiered import SETTINGS
from tests.simulation.world import Main, Node, World

from rocketspark import AsyncProducer, AsyncPullConsumer, Message, ReceivedMessage
from rocketspark.broker.tiered_settings import FORCE

if TYPE_CHECKING:
    from tests.support.objects_in_memory import Objects

COUNT, TAGS = 160, ("a", "b")


async def folder(world: World) -> dict[str, Any]:
    """A tier in a folder."""
    run = _Run(world, _Folder())
    return await run.whole()


async def objects(world: World) -> dict[str, Any]:
    """A tier in an object store."""
    # Not before: pyarrow is for those alone that have such a tier.
    from tests.simulation.object_store import PlayedStore, install

    store = PlayedStore([])
    install(store)
    return await _Run(world, _Objects(store)).whole()


class _Folder:
    def names(self) -> list[str]:
        return sorted(str(path) for path in Path("tier").rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        return Path(name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        with open(name, "r+b") as file:
            file.write(content)


class _Objects:
    def __init__(self, store: Objects) -> None:
        self._store = store

    def names(self) -> list[str]:
        return sorted(self._store.content)

    def read(self, name: str) -> bytes:
        return self._store.content[name]

    def write(self, name: str, content: bytes) -> None:
        self._store.content[name] = content


def _content(body: str) -> bytes:
    return f"{body} {'x' * (int(body[1:]) % 7 * 300)}".encode()


class _Run:
    """What was sent to a broker, and what of it is read from the tier."""

    def __init__(self, world: World, tier: _Folder | _Objects) -> None:
        self.world, self.tier = world, tier
        chance = world.random("settings")
        settings = {**SETTINGS, **CUT, "flush_disk_type": "SYNC_FLUSH"}
        # What the store has too is read from it then.
        self.is_forced = chance.random() < 0.3
        if self.is_forced:
            settings["tier"] = msgspec.structs.replace(SETTINGS["tier"], tiered_storage_level=FORCE)
        self.cluster = Cluster(world, **settings)
        self.node = self.cluster.brokers[0]
        self.sent: dict[str, tuple[int, int]] = {}
        self.strange: list[str] = []

    async def whole(self) -> dict[str, Any]:
        await self.cluster.start()
        await self.world.node("sender").run(self._send)
        # Until all is in the tier, and old files of the log are gone.
        await asyncio.sleep(25)
        flips = self._flip()
        if self.world.random("again").random() < 0.5:
            self.node.kill()
            await asyncio.sleep(1)
            await self.cluster.start_server(self.node).wait_ready()
        self._check(flips, {how: await self.world.node(f"reader {how}").run(self._read(how)) for how in ("*", *TAGS)})
        await self.cluster.stop()
        return {"sent": len(self.sent), "flips": len(flips)}

    async def _send(self, node: Node) -> None:
        async with AsyncProducer(self.cluster.namesrv_address, "senders", retries=20) as producer:
            for number in range(COUNT):
                message = Message(TOPIC, _content(f"m{number}"), tag=TAGS[number % 2])
                result = await producer.send(message)
                self.sent[f"m{number}"] = result.queue.queue_id, result.queue_offset

    def _flip(self) -> list[dict[str, Any]]:
        chance = self.world.random("flips")
        names = [name for name in self.tier.names() if f"/{TOPIC}/" in name]
        drawn = [self._draw(chance, names) for _ in range(chance.choice([1, 1, 2, 3]))]
        flips = self.world.planned("flips", drawn)
        for flip in flips:
            content = bytearray(self.tier.read(flip["name"]))
            content[flip["at"]] ^= 1 << flip["bit"]
            self.tier.write(flip["name"], bytes(content))
            self.world.record("flip", **flip)
        self.world.states["bits flipped"] += len(flips)
        return flips

    def _draw(self, chance: random.Random, names: list[str]) -> dict[str, Any]:
        kind = chance.choice(["/COMMIT_LOG/", "/CONSUME_QUEUE/"])
        name = chance.choice([name for name in names if kind in name])
        return {"name": name, "at": chance.randrange(len(self.tier.read(name))), "bit": chance.randrange(8)}

    def _read(self, how: str) -> Main:
        async def read(node: Node) -> set[str]:
            async with AsyncPullConsumer(self.cluster.namesrv_address, "checkers", auto_commit=False) as reader:
                messages = all_of(reader, TOPIC, expression=how)
                return {self._body(message) async for message in messages}

        return read

    def _body(self, message: ReceivedMessage) -> str:
        name = message.body.partition(b" ")[0].decode("utf-8", "replace")
        at = message.queue_id, message.queue_offset
        if message.body_error:
            self.strange.append(f"a damaged body at {at}")
        elif self.sent.get(name) != at or message.body != _content(name):
            self.strange.append(f"{name[:40]} at {at}")
        return name

    def _check(self, flips: list[dict[str, Any]], found: dict[str, set[str]]) -> None:
        broken = [f"what is given is what was sent: {self.strange[:3]}"] if self.strange else []
        most = sum("/COMMIT_LOG/" in flip["name"] for flip in flips)
        lost = set(self.sent) - found["*"]
        if len(lost) > most:
            broken.append(f"damage takes nothing else with it: {len(lost)} lost, {most} were hit: {sorted(lost)[:5]}")
        by_tags = {body for body in self.sent if body not in found[TAGS[int(body[1:]) % 2]]}
        if len(by_tags) > most:
            broken.append(f"damage takes nothing else with it by tags: {len(by_tags)}: {sorted(by_tags)[:5]}")
        self.world.states["messages lost by flips"] += len(lost)
        if broken:
            raise PromiseBroken("\n".join([*broken, f"flips: {flips}"]))
