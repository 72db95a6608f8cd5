"""A topic whose messages are in light queues too: what each of these holds at the end is what the log says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, rule
from tests.simulation.histories import kind
from tests.simulation.parts.audit import Held
from tests.simulation.parts.part import Part, Step, of_kind, sends

from rocketspark import AsyncPullConsumer, Message, MessageQueue, RocketSparkError

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, QUEUES = "p-light", 2
NAMES = ("%LMQ%p-one", "%LMQ%p-two", "%LMQ%p-three")


@kind
class Named(NamedTuple):
    """A message of the topic, and the light queues that it names."""

    body: str
    names: tuple[str, ...]


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    return [
        step | {"names": chance.sample(NAMES, chance.randint(1, 3)), "bytes": chance.choice([10, 2000])}
        for step in sends(chance, "j", 90, end_s)
    ]


def start(work: Workload, steps: list[Step]) -> list[Any]:
    return [work.world.node("light-sender").start(lambda node: _send(work, node, of_kind(steps, "send")))]


async def _send(work: Workload, node: Node, steps: list[Step]) -> None:
    def message_of(step: Step) -> Message:
        work.note(Named(step["body"], tuple(step["names"])))
        body = f"{step['body']} ".encode() + b"x" * step["bytes"]
        return Message(TOPIC, body, properties={"INNER_MULTI_DISPATCH": ",".join(step["names"])})

    await work.send_messages(node, "p-light-senders", "light", steps, message_of)


async def _finish(work: Workload) -> None:
    await work.world.node("light-reader").run(lambda node: _read(work))


async def _read(work: Workload) -> None:
    """Read all of each light queue. Raises RocketSparkError if not all of it can be read."""
    async with AsyncPullConsumer(work.cluster.namesrv_address, "p-light-readers", auto_commit=False) as consumer:
        await consumer.queues(TOPIC)
        for name in NAMES:
            queue = MessageQueue(name, work.cluster.name, 0)
            at, end = await consumer.begin_offset(queue), await consumer.end_offset(queue)
            await consumer.assign([queue])
            await consumer.seek(queue, at)
            while at < end:
                messages = await consumer.poll(5000)
                if not messages:
                    raise RocketSparkError(f"{name} ends at {end} and can be read up to {at}")
                for message in messages:
                    work.note(Held(name, 0, message.queue_offset, message.body.decode().split(" ")[0]))
                    at = message.queue_offset + 1


PART = Part(draw, start, {TOPIC: QUEUES}, _finish, settings={"lmq": True, "multi_dispatch": True})


# -- what is promised --------------------------------------------------------------------------------------------


@rule
def a_light_queue_holds_what_names_it(view: View) -> Iterator[str]:
    """A light queue has each message of the log that names it once, in the log's order, at offsets without a gap."""
    names = {one.body: one.names for one in view.history.more.get("named", ())}
    stored = [one for one in view.records if one.topic == TOPIC]
    for name in NAMES if names else ():
        held = [one for one in view.history.more.get("held", ()) if one.topic == name]
        begin = held[0].offset if held else 0
        if [one.offset for one in held] != list(range(begin, begin + len(held))):
            yield f"{name} is read at {[one.offset for one in held]}"
        wanted = [body for one in stored if name in names[body := one.body.partition(" ")[0]]]
        found = [one.body for one in held]
        # Once old log files are removed either may begin later.
        count = min(len(wanted), len(found)) if begin else len(wanted)
        if found[len(found) - count :] != wanted[len(wanted) - count :] or (not begin and len(found) != count):
            yield f"{name} holds {found} from {begin} on, and the log {wanted}"
