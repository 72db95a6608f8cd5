"""A topic with batch queues, whose batches are one record each: it is read through the whole run, and at its end."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, body_of, rule
from tests.simulation.histories import kind
from tests.simulation.parts.audit import audit
from tests.simulation.parts.part import Part, Step, of_kind, sends

from rocketspark import AsyncProducer, AsyncPullConsumer, Message, MessageQueue
from rocketspark.admin.operations import AsyncAdmin

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, QUEUES = "p-batched", 2


@kind
class Given(NamedTuple):
    """A message that was given to who reads on through the whole run."""

    queue: int
    offset: int


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    return [
        step | {"count": chance.choice([1, 2, 5, 20]), "bytes": chance.choice([10, 500])}
        for step in sends(chance, "i", 90, end_s)
    ]


async def prepare(operator: AsyncAdmin) -> None:
    await operator.create_topic(TOPIC, queue_count=QUEUES, attributes="+queue.type=BatchCQ")


def start(work: Workload, steps: list[Step]) -> list[Any]:
    return [
        work.world.node("batched-reader").start(lambda node: _read_on(work, node)),
        work.world.node("batched-sender").start(lambda node: _send(work, node, of_kind(steps, "send"))),
    ]


async def _send(work: Workload, node: Node, steps: list[Step]) -> None:
    async with AsyncProducer(
        work.cluster.namesrv_address, "p-batched-senders", send_timeout_ms=2000, retries=work.retries
    ) as producer:

        async def send(step: Step) -> None:
            queue = MessageQueue(TOPIC, work.cluster.name, step["number"] % QUEUES)
            bodies = tuple(f"{step['body']}.{part}" for part in range(step["count"]))
            batch = [Message(TOPIC, f"{body} ".encode() + b"x" * step["bytes"]) for body in bodies]
            if len(batch) > 1:
                await work.sent("batched", node, bodies, lambda: producer.send_batch(batch, queue=queue))
            else:
                await work.sent("batched", node, bodies, lambda: producer.send(batch[0], queue=queue))

        await work.in_turn(steps, send)


async def _read_on(work: Workload, node: Node) -> None:
    async with AsyncPullConsumer(work.cluster.namesrv_address, "p-batched-readers", auto_commit=False) as consumer:
        queues = [MessageQueue(TOPIC, work.cluster.name, queue_id) for queue_id in range(QUEUES)]
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, 0)
        while not work.stopped:
            for message in await work.tried(consumer.poll(1000)):
                work.read("p-batched", "p-batched", node, "", message, work.world.now_s)
                work.note(Given(message.queue_id, message.queue_offset))


async def _finish(work: Workload) -> None:
    await work.world.node("batched-auditor").run(lambda node: audit(work, [TOPIC]))


PART = Part(draw, start, finish=_finish, prepare=prepare)


# -- what is promised --------------------------------------------------------------------------------------------


@rule
def a_batch_queue_holds_what_its_log_says(view: View) -> Iterator[str]:
    """A batch queue is read whole: each message of its records, at offsets without a gap."""
    held: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for one in view.history.more.get("held", ()):
        if one.topic == TOPIC:
            held[one.queue].append((one.offset, one.body))
    for queue, stored in view.of_queue(TOPIC).items():
        wanted = [(one.offset, body_of(one.body)) for one in stored]
        begin = wanted[0][0]
        if [offset for offset, _ in wanted] != list(range(begin, begin + len(wanted))):
            yield f"the log has {[offset for offset, _ in wanted]} of queue {queue}"
        if held[queue] != wanted:
            yield f"queue {queue} is read as {held[queue]}, and the log has {wanted}"


@rule
def who_reads_a_batch_queue_on_is_led_past_no_message(view: View) -> Iterator[str]:
    """Who reads a batch queue from its begin on is given each offset, however its brokers end."""
    given: dict[int, list[int]] = defaultdict(list)
    for one in view.history.more.get("given", ()):
        given[one.queue].append(one.offset)
    for queue, offsets in given.items():
        before = -1
        for offset in offsets:
            if offset > before + 1:
                yield f"queue {queue}: {offset} was given after {before}"
            before = offset
