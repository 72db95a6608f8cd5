"""Lite topics: written, read by members that come, leave and die, and removed once nobody writes to them."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, rule
from tests.simulation.histories import kind
from tests.simulation.parts.part import Part, Step, members, of_kind, sends

from rocketspark import AsyncLitePushConsumer, AsyncLiteSimpleConsumer, Message, ReceivedMessage
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.protocol import lite_topics

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, QUEUES = "p-lite", 2
NAMES = ("red", "green", "blue")
GROUPS = {"simple": "p-lite-simple", "push": "p-lite-push"}
# After so many minutes without a message a lite topic goes; by then each was read.
EXPIRATION_MINUTES = 2
# Until it is looked whether they went, and for the message with which each begins anew.
EXPIRED_S, ANEW_S = 80.0, 90.0
INVISIBLE_S = 6.0
SETTINGS: dict[str, Any] = {
    "lmq": True,
    "multi_dispatch": True,
    "lite_expiration_check_ms": 5000,
    "lite_expiration_ms_min": 0,
}


@kind
class Came(NamedTuple):
    """A message of a lite topic that a member was given. `offset`: in its lite topic."""

    group: str
    client: str
    name: str
    offset: int
    body: str
    at_s: float


@kind
class Taken(NamedTuple):
    """A message of a lite topic that a member acknowledged, whatever the broker said."""

    group: str
    body: str


@kind
class Remained(NamedTuple):
    """The lite topics that the master knew once all were too old."""

    names: tuple[str, ...]


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    # Some at once, so that more than one waits.
    drawn = [step | {"name": chance.choice(NAMES)} for step in sends(chance, "i", 30, end_s)]
    found = [step | {"body": f"{step['body']}.{part}"} for step in drawn for part in range(chance.choice([1, 1, 3, 5]))]
    return found + members(chance, "lite", sorted(GROUPS), end_s)


async def prepare(operator: AsyncAdmin) -> None:
    expiration = f"+lite.topic.expiration={EXPIRATION_MINUTES}"
    await operator.create_topic(TOPIC, queue_count=QUEUES, message_type="LITE", attributes=expiration)
    for group in GROUPS.values():
        await operator.put_group(group, GroupSettings(attributes=f"+lite.bind.topic={TOPIC}"))


def start(work: Workload, steps: list[Step]) -> list[Any]:
    reading = {"simple": partial(_receive, work), "push": partial(_listen, work)}
    return [
        *(work.begin(member, reading[member["how"]]) for member in of_kind(steps, "member")),
        work.world.node("lite-sender").start(lambda node: _send(work, node, of_kind(steps, "send"))),
    ]


async def _send(work: Workload, node: Node, steps: list[Step]) -> None:
    def message_of(step: Step) -> Message:
        return Message(TOPIC, f"{step['body']} ".encode(), lite_topic=step["name"])

    await work.send_messages(node, "p-lite-senders", "lite", steps, message_of)


async def _subscribe(consumer: AsyncLiteSimpleConsumer | AsyncLitePushConsumer, is_over: Callable[[], bool]) -> None:
    from tests.simulation.workloads import ERRORS

    for name in NAMES:
        while not is_over():
            try:
                await consumer.subscribe_lite(name)
                break
            except ERRORS:
                await asyncio.sleep(0.5)


async def _receive(work: Workload, node: Node, is_over: Callable[[], bool]) -> None:
    from tests.simulation.workloads import ERRORS

    group = GROUPS["simple"]
    async with AsyncLiteSimpleConsumer(
        work.cluster.namesrv_address, group, TOPIC, invisible_ms=INVISIBLE_S * 1000
    ) as consumer:
        await _subscribe(consumer, is_over)
        while not is_over():
            for message in await work.tried(consumer.receive(4, timeout_ms=1000)):
                body = _came(work, group, node, message)
                # Some are left to come again the first time.
                if zlib.crc32(body.encode()) % 8 == 0 and message.reconsume_times == 0:
                    continue
                _take(work, group, body)
                try:
                    await consumer.ack(message)
                except ERRORS as e:
                    work.world.record("not acknowledged", body=body, error=str(e)[:200])


async def _listen(work: Workload, node: Node, is_over: Callable[[], bool]) -> None:
    group = GROUPS["push"]

    async def listen(message: ReceivedMessage) -> bool:
        body = _came(work, group, node, message)
        is_taken = zlib.crc32(body.encode()) % 8 != 1 or message.reconsume_times > 0
        if is_taken:
            _take(work, group, body)
        return is_taken

    consumer = AsyncLitePushConsumer(work.cluster.namesrv_address, group, TOPIC)
    consumer.listen(listen)
    async with consumer:
        await _subscribe(consumer, is_over)
        while not is_over():
            await asyncio.sleep(0.5)


def _came(work: Workload, group: str, node: Node, message: ReceivedMessage) -> str:
    body = message.body.decode().split(" ")[0]
    where = str(message.lite_topic), message.queue_offset
    work.note(Came(group, node.name, *where, body, work.world.now_s))
    return body


def _take(work: Workload, group: str, body: str) -> None:
    work.note(Taken(group, body))
    work.world.states["lite topics begun anew"] += body.startswith("anew")


async def _finish(work: Workload) -> None:
    cluster = work.cluster
    master = cluster.brokers[0] if cluster.council is None else await cluster.master()
    assert master is not None
    known = master.processes[0].server.store.queues()
    work.note(Remained(tuple(sorted(name for name in known if lite_topics.is_lite(name)))))
    steps = [{"at": 0.0, "body": f"anew-{name}", "name": name} for name in NAMES]
    await work.world.node("lite-sender-again").run(lambda node: _send(work, node, steps))
    # Each group takes each of them.
    wanted, until_s = len(NAMES) * len(GROUPS), work.world.now_s + ANEW_S
    while work.world.states["lite topics begun anew"] < wanted and work.world.now_s < until_s:
        await asyncio.sleep(0.5)


PART = Part(draw, start, {}, _finish, SETTINGS, quiet_s=EXPIRED_S, prepare=prepare)


# -- what is promised --------------------------------------------------------------------------------------------


@rule
def each_message_of_a_lite_topic_comes(view: View) -> Iterator[str]:
    """Each acknowledged message is given to a member of each group that subscribed, until one acknowledges it."""
    taken: dict[str, set[str]] = defaultdict(set)
    for one in view.history.more.get("taken", ()):
        taken[one.group].add(one.body)
    for sent, _, body in view.acknowledged("lite"):
        for group in GROUPS.values():
            # A clock that is ahead has lite topics expire before they are read.
            if body not in taken[group] and not view.are_clocks_wrong:
                yield f"{body} of {sent.ended_s:.3f} was never taken by {group}"


@rule
def a_lite_topic_keeps_its_order(view: View) -> Iterator[str]:
    """A group is given no message of a lite topic before those that are before it there."""
    first: dict[tuple[str, str], dict[int, Came]] = defaultdict(dict)
    for came in view.history.more.get("came", ()):
        if not came.body.startswith("anew"):
            first[came.group, came.name].setdefault(came.offset, came)
    for (group, name), by_offset in first.items():
        for before, after in pairwise(by_offset.values()):
            if after.offset < before.offset:
                yield f"{group} was given {before.offset} of {name}, {after.offset} at {after.at_s:.3f}"


@rule
def a_lite_topic_without_messages_goes(view: View) -> Iterator[str]:
    """Nothing of a lite topic is left once its last message is older than its topic says."""
    for remained in view.history.more.get("remained", ()):
        if remained.names and not view.are_clocks_wrong:
            yield f"{list(remained.names)} are left"
