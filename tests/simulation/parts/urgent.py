"""A topic whose messages have priorities, sent faster than its group pops them."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, rule
from tests.simulation.histories import kind
from tests.simulation.parts.part import Part, Step, members, of_kind, sends

from rocketspark import AsyncSimpleConsumer, Message
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.protocol.pop_answers import ReceiptHandle

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, QUEUES, GROUP = "p-urgent", 4, "p-urgent-pop"
# More than there are queues: the last one has all that is more urgent.
PRIORITIES = 6
INVISIBLE_S = 8.0
# What is stored is seen once the replicas have it.
SEEN_MS = 500


@kind
class Popped(NamedTuple):
    """A message that was popped, when by the broker's clock. `is_new`: for the first time, as far as brokers know."""

    client: str
    body: str
    queue: int
    popped_ms: int
    at_s: float
    is_new: bool


@kind
class Served(NamedTuple):
    """A message of the topic that a member acknowledged, whatever the broker said."""

    body: str


@kind
class Urged(NamedTuple):
    """A message that was sent with a priority."""

    body: str
    priority: int


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    found = [
        step | {"body": f"{step['body']}.{part}", "priority": chance.randrange(PRIORITIES)}
        for step in sends(chance, "w", 16, end_s - 5)
        for part in range(chance.choice([1, 3, 10]))
    ]
    return found + members(chance, "urgent", ["pop"], end_s)


async def prepare(operator: AsyncAdmin) -> None:
    await operator.create_topic(TOPIC, queue_count=QUEUES, message_type="PRIORITY")


def start(work: Workload, steps: list[Step]) -> list[Any]:
    return [
        *(work.begin(member, partial(_pop, work)) for member in of_kind(steps, "member")),
        work.world.node("urgent-sender").start(lambda node: _send(work, node, of_kind(steps, "send"))),
    ]


async def _send(work: Workload, node: Node, steps: list[Step]) -> None:
    def message_of(step: Step) -> Message:
        work.note(Urged(step["body"], step["priority"]))
        return Message(TOPIC, f"{step['body']} ".encode(), priority=step["priority"])

    await work.send_messages(node, "p-urgent-senders", "urgent", steps, message_of)


async def _pop(work: Workload, node: Node, is_over: Callable[[], bool]) -> None:
    from tests.simulation.workloads import ERRORS

    async with AsyncSimpleConsumer(
        work.cluster.namesrv_address, GROUP, consume_from="first", invisible_ms=INVISIBLE_S * 1000
    ) as consumer:
        consumer.subscribe(TOPIC)
        while not is_over():
            for message in await work.tried(consumer.receive(2, timeout_ms=1000)):
                body, handle = message.body.decode().split(" ")[0], ReceiptHandle.decode(str(message.receipt_handle))
                is_new = handle.retry_flag == "0" and message.reconsume_times == 0
                about = node.name, body, message.queue_id, handle.pop_time_ms, work.world.now_s, is_new
                work.note(Popped(*about))
                # Some are left to come again the first time.
                if zlib.crc32(body.encode()) % 10 == 0 and is_new:
                    continue
                work.note(Served(body))
                try:
                    await consumer.ack(message)
                except ERRORS as e:
                    work.world.record("not acknowledged", body=body, error=str(e)[:200])
            await asyncio.sleep(0.3)


PART = Part(draw, start, settings={}, prepare=prepare, quiet_s=20.0)


# -- what is promised --------------------------------------------------------------------------------------------


@rule
def a_priority_is_a_queue(view: View) -> Iterator[str]:
    """A message lies in the queue of its priority's number, or in the last one, and is popped until it is taken.

    What was popped before a clock was set back, or on a broker whose clock was ahead, comes again so much later.
    """
    priority = {one.body: one.priority for one in view.history.more.get("urged", ())}
    done = {one.body for one in view.history.more.get("served", ())}
    has_jumped = any(fault["what"] == "clock" for fault in view.history.faults)
    for stored in (one for records in view.of_queue(TOPIC).values() for one in records):
        body = stored.body.partition(" ")[0]
        if stored.queue != min(priority[body], QUEUES - 1):
            yield f"{body} of priority {priority[body]} is in queue {stored.queue}"
        if body not in done and not has_jumped:
            yield f"{body} at {stored.queue} {stored.offset} was never taken"


@rule
def the_most_urgent_is_popped_first(view: View) -> Iterator[str]:
    """While all is well no message is popped before a more urgent one that was there."""
    first: dict[str, Popped] = {}
    count: dict[str, int] = defaultdict(int)
    for one in view.history.more.get("popped", ()):
        first.setdefault(one.body, one)
        count[one.body] += 1
    stored = {body: view.of_body[TOPIC, body] for body in first}
    begun = {sent.bodies[0]: sent.began_s for sent in view.history.sent if sent.way == "urgent"}
    if view.are_clocks_wrong:
        return
    for one in first.values():
        for other in first.values():
            if other.queue <= one.queue or other.popped_ms <= one.popped_ms or not (one.is_new and other.is_new):
                continue
            if len(stored[other.body]) != 1 or stored[other.body][0].stored_ms > one.popped_ms - SEEN_MS:
                continue
            if view.is_calm(begun[other.body] - 1, other.at_s + 1):
                yield f"{one.body} of queue {one.queue} was popped before {other.body} of queue {other.queue}"
