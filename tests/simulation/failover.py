"""A broker name under faults, with the plainest of checks: what was acknowledged is there, once, where it was said."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.simulation.nodes import Cluster
from tests.simulation.plan import Faults, draw_faults
from tests.simulation.world import Node, World

from rocketspark import AsyncProducer, AsyncPullConsumer, Message, MessageQueue, RocketSparkError, SendStatus

# Time enough for some elections: a broker that is silent is missed after 5 s.
FAULTS_FROM_S, FAULTS_UNTIL_S, CALM_S = 2.0, 20.0, 8.0
SETTLE_S = 90.0


class Lost(AssertionError):
    """A promise was broken."""


async def failover_hard(world: World) -> dict[str, Any]:
    """With faults that come together with losses of power."""
    return await failover(world, hard=True)


async def failover(world: World, *, hard: bool = False, controllers: int = 1) -> dict[str, Any]:
    """Senders and a reader beside faults; then everything is mended and has to agree."""
    chance = world.random("plan")
    replicas = chance.choice([2, 2, 2, 3])
    settings: dict[str, Any] = {
        "flush_disk_type": chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
        "in_sync_replicas_min": chance.choice([1, 1, 2]),
    }
    world.plan["cluster"] = {"replicas": replicas, **settings}
    cluster = Cluster(world, replicas=replicas, controllers=controllers, **settings)
    senders = [world.node(f"sender-{number}") for number in range(chance.randint(1, 3))]
    reader = world.node("reader")
    drawn = draw_faults(chance, cluster, [*senders, reader], begin_s=FAULTS_FROM_S, end_s=FAULTS_UNTIL_S)
    faults = world.planned("faults", drawn)
    await cluster.start()
    sent: dict[str, tuple[int, int]] = {}
    tried: set[str] = set()
    read: dict[tuple[int, int], str] = {}
    until_s = FAULTS_UNTIL_S + CALM_S

    async def send(node: Node) -> None:
        pauses = world.random(f"{node.name} pauses")
        async with AsyncProducer(
            cluster.namesrv_address, "senders", send_timeout_ms=1500, retries=pauses.choice([0, 2, 5])
        ) as producer:
            number = 0
            while world.now_s < until_s:
                number += 1
                body = f"{node.name}:{number}"
                tried.add(body)
                try:
                    result = await producer.send(Message("t", body.encode() + b" " * pauses.choice([0, 0, 2000])))
                except (RocketSparkError, OSError) as e:
                    world.record("not sent", body=body, error=str(e)[:150])
                else:
                    at = result.queue.queue_id, result.queue_offset
                    world.record("sent", body=body, at=at, status=result.status.name)
                    if result.status is SendStatus.SEND_OK:
                        sent[body] = at
                await asyncio.sleep(pauses.choice([0.01, 0.05, 0.2, 0.5]))

    async def follow(node: Node) -> None:
        async with AsyncPullConsumer(
            cluster.namesrv_address, "readers", consume_from="first", commit_interval_ms=1000
        ) as consumer:
            consumer.subscribe("t")
            while world.now_s < until_s + 2:
                try:
                    found = await consumer.poll(500)
                except (RocketSparkError, OSError) as e:
                    world.record("not read", error=str(e)[:150])
                    await asyncio.sleep(0.5)
                    continue
                for message in found:
                    at, body = (message.queue_id, message.queue_offset), message.body.decode().strip()
                    world.record("read", body=body, at=at)
                    if read.setdefault(at, body) != body:
                        raise Lost(f"{at} was {read[at]} and is {body}")

    running = [node.start(send) for node in senders] + [reader.start(follow)]
    await Faults(cluster, hard=hard).run(faults)
    mended_s = world.now_s
    if controllers > 1:
        assert cluster.council is not None
        await cluster.council.make_whole(SETTLE_S)
    await cluster.wait_in_sync(replicas, SETTLE_S)
    world.record("settled", after=round(world.now_s - mended_s, 3))
    for process in running:
        await process.wait()
    await cluster.wait_in_sync(replicas, SETTLE_S, shown=True)
    there = await reader.run(lambda node: read_all(cluster))
    check(sent, tried, read, there)
    await asyncio.sleep(1)
    compare_logs(cluster)
    await cluster.stop()
    return {"sent": len(sent), "tried": len(tried), "read": len(read), "faults": len(faults)}


async def read_all(cluster: Cluster) -> dict[tuple[int, int], str]:
    """Read every queue from its begin to its end."""
    found: dict[tuple[int, int], str] = {}
    async with AsyncPullConsumer(cluster.namesrv_address, "checkers", auto_commit=False) as consumer:
        queues: list[MessageQueue] = await _known(consumer)
        ends = {queue.queue_id: await consumer.end_offset(queue) for queue in queues}
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        while len(found) < sum(ends.values()):
            messages = await consumer.poll(5000)
            if not messages:
                raise Lost(f"{sum(ends.values())} messages are said to be there, {len(found)} come")
            for message in messages:
                found[message.queue_id, message.queue_offset] = message.body.decode().strip()
    return found


async def _known(consumer: AsyncPullConsumer) -> list[MessageQueue]:
    """Return the topic's queues, once a NameServer that was down has heard of them again."""
    for _ in range(int(SETTLE_S)):
        try:
            return await consumer.queues("t")
        except RocketSparkError:
            await asyncio.sleep(1)
    return await consumer.queues("t")


def check(
    sent: dict[str, tuple[int, int]],
    tried: set[str],
    read: dict[tuple[int, int], str],
    there: dict[tuple[int, int], str],
) -> None:
    places = defaultdict(list)
    for at, body in there.items():
        places[body].append(at)
    lost = {body: at for body, at in sent.items() if there.get(at) != body}
    if lost:
        told = {body: (at, there.get(at), places.get(body)) for body, at in list(lost.items())[:5]}
        raise Lost(f"{len(lost)} acknowledged messages are not where they were: {told}")
    gone = {at: body for at, body in read.items() if there.get(at) != body}
    if gone:
        raise Lost(f"{len(gone)} messages that were read are no more: {dict(list(gone.items())[:5])}")
    strange = set(places) - tried
    if strange:
        raise Lost(f"nobody sent {sorted(strange)[:5]}")


def compare_logs(cluster: Cluster) -> None:
    """Hold the logs of all replicas against each other, byte by byte."""
    logs = {}
    for node in cluster.brokers:
        folder = cluster.store(node) / "commitlog"
        logs[node.name] = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    names = sorted(logs)
    for name in names[1:]:
        for file in logs[names[0]].keys() & logs[name].keys():
            one, other = logs[names[0]][file], logs[name][file]
            if one != other:
                at = next(at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
                told = f"{one[at - 8 : at + 60].hex()} and {other[at - 8 : at + 60].hex()}"
                raise Lost(f"the logs of {names[0]} and {name} differ at {int(file) + at}: {told}")


async def slave_lost_power(world: World) -> None:
    """A slave's machine is gone without a word, and is elected when the master's process is killed a moment later."""
    loss = await _Loss.of_slave(world)
    await loss.ended(back_after_s=0.5)


async def slave_lost_power_and_is_back_first(world: World) -> None:
    """As above, but the one that holds all is back last, so that nobody can be asked what is lacking."""
    loss = await _Loss.begun(world)
    loss.second.power_loss()
    await asyncio.sleep(0.1)
    loss.first.kill()
    await asyncio.sleep(0.1)
    loss.cluster.restart(loss.second)
    await asyncio.sleep(8)
    # Nor does its process forget what its machine lost.
    loss.second.kill()
    await asyncio.sleep(0.5)
    loss.cluster.restart(loss.second)
    await asyncio.sleep(3)
    loss.cluster.restart(loss.first)
    await loss.ended()


async def slave_lost_its_disk(world: World) -> None:
    """As above, but the slave is back with nothing, so that its number is nobody's any more."""
    loss = await _Loss.of_slave(world, wipes=True)
    await loss.ended(back_after_s=0.5)


async def slave_is_lost_for_ever(world: World) -> None:
    """As above, but the slave is never back: the one that was killed goes on, with all that it holds."""
    loss = await _Loss.of_slave(world)
    await loss.ended(in_sync=1)


async def slave_has_copied_what_it_lost(world: World) -> None:
    """Who lost its power, and has all again, is elected as any other and waits for nobody."""
    loss = await _Loss.begun(world)
    loss.second.power_loss()
    await asyncio.sleep(0.5)
    loss.cluster.restart(loss.second)
    # It looks each 5 s.
    await asyncio.sleep(20)
    loss.first.kill()
    loss.first = loss.second
    await loss.ended(in_sync=1)


async def master_lost_power_and_is_back_first(world: World) -> None:
    """The master's machine is gone and back at once, and the slave, killed meanwhile, holds what it lost."""
    loss = await _Loss.begun(world, loses=0)
    loss.second.power_loss()
    await loss.first_is_killed(for_s=8, then_s=0.2)
    await loss.ended()


class _Loss:
    """Two brokers in sync, of which the second is to lose its power, and what was sent to them."""

    def __init__(self, cluster: Cluster, first: Node, second: Node) -> None:
        self.cluster, self.first, self.second = cluster, first, second
        self.sent: dict[str, tuple[int, int]] = {}

    @classmethod
    async def begun(cls, world: World, *, loses: int = 1) -> _Loss:
        """Start a cluster and send; the slave is to lose its power, or with 0 the master."""
        cluster = Cluster(world, replicas=2, flush_interval_ms=600_000)
        await cluster.start()
        master = await cluster.master()
        assert master is not None
        brokers = [master, next(node for node in cluster.brokers if node is not master)]
        loss = cls(cluster, brokers[1 - loses], brokers[loses])
        # As after hours: the folders of the store are on the disk.
        await loss.second.run(_sync_folders)
        await loss._send("sender", map(str, range(30)))
        return loss

    @classmethod
    async def of_slave(cls, world: World, *, wipes: bool = False) -> _Loss:
        """Have a slave's machine gone without a word, with its disk perhaps, and the master's process killed soon."""
        loss = await cls.begun(world)
        loss.second.power_loss()
        if wipes:
            loss.second.wipe()
        await loss.first_is_killed(for_s=0.1)
        return loss

    async def _send(self, name: str, bodies: Iterable[str], **options: Any) -> None:
        """Send from a machine of its own, and keep where it came to lie."""

        async def send(node: Node) -> None:
            async with AsyncProducer(self.cluster.namesrv_address, "senders", **options) as producer:
                for body in bodies:
                    result = await producer.send(Message("t", body.encode()))
                    self.sent[body] = result.queue.queue_id, result.queue_offset

        await self.cluster.world.node(name).run(send)

    async def first_is_killed(self, *, for_s: float, then_s: float = 0.0) -> None:
        """Kill the other's process; `then_s`: after so long the machine that lost its power is back."""
        await asyncio.sleep(0.1)
        self.first.kill()
        if then_s:
            await asyncio.sleep(then_s)
            self.cluster.restart(self.second)
        await asyncio.sleep(for_s)
        self.cluster.restart(self.first)

    async def ended(self, *, back_after_s: float | None = None, in_sync: int = 2) -> None:
        """Wait until all is well again, send one more, and look for all that was sent."""
        if back_after_s is not None:
            await asyncio.sleep(back_after_s)
            self.cluster.restart(self.second)
        async with asyncio.timeout(SETTLE_S):
            while await self.cluster.master() is not self.first:
                await asyncio.sleep(0.1)
        # The controller knows its master before that one has begun.
        await asyncio.sleep(3)
        await self.cluster.wait_in_sync(in_sync, SETTLE_S)
        await self._send("last sender", ["last"], retries=5)
        reader = self.cluster.world.node("reader")
        check(self.sent, set(self.sent), {}, await reader.run(lambda node: read_all(self.cluster)))


async def _sync_folders(node: Node) -> None:
    for folder, _, files in os.walk(node.disk.root):
        for path in [folder, *(f"{folder}/{name}" for name in files)]:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
