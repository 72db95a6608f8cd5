"""A topic of which the newest message of each key is kept: it is written, read from its begin, compacted, and cut."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, rule
from tests.simulation.disk import replace_everywhere
from tests.simulation.histories import kind
from tests.simulation.parts.audit import Look, look_at_last, look_often
from tests.simulation.parts.part import Part, Step, of_kind, times

from rocketspark import AsyncProducer, Message, MessageQueue
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.client import validators

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

# Not one of `checker.ONCE`: what deletes a key has no body, and so no name.
TOPIC, QUEUES, KEYS = "k-compacted", 2, 7
# The newest messages come from the file that is written: it is never removed, all others are soon.
CUT: dict[str, Any] = {"reserved_hours": 0, "delete_when": ";".join(f"{hour:02d}" for hour in range(24))}
SETTINGS: dict[str, Any] = {
    "compaction_interval_ms": 4000,
    "compaction_log_bytes": 20_480,
    "compaction_units_bytes": 4096,
}


@kind
class Put(NamedTuple):
    """A value that was sent for a key, or a deletion of it. `offset`: -1 if nobody knows whether it is there."""

    key: str
    queue: int
    offset: int
    began_s: float
    ended_s: float
    deletes: bool


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    return [
        {
            "kind": "put",
            "at": at,
            "body": f"k{number}",
            "key": chance.randrange(KEYS),
            "bytes": chance.choice([10, 1000, 3000]),
            "deletes": chance.random() < 0.15,
        }
        for number, at in enumerate(times(chance, 110, end_s))
    ]


def begin() -> None:
    """Let producers send an empty body, as a program of its own protocol can."""
    check = validators.check_body

    def checked(topic: str, body: bytes, *more: Any) -> None:
        if body or topic != TOPIC:
            check(topic, body, *more)

    replace_everywhere(check, checked)


async def prepare(operator: AsyncAdmin) -> None:
    await operator.create_topic(TOPIC, queue_count=QUEUES, attributes="+cleanup.policy=COMPACTION")


def start(work: Workload, steps: list[Step]) -> list[Any]:
    world = work.world
    return [
        world.node("keys-reader").start(lambda node: look_often(work, node, TOPIC)),
        world.node("keys-sender").start(lambda node: _send(work, node, of_kind(steps, "put"))),
    ]


async def _send(work: Workload, node: Node, steps: list[Step]) -> None:
    async with AsyncProducer(
        work.cluster.namesrv_address, "p-keys-senders", send_timeout_ms=2000, retries=work.retries
    ) as producer:

        async def put(step: Step) -> None:
            key, began_s = f"key{step['key']}", work.world.now_s
            queue = MessageQueue(TOPIC, work.cluster.name, step["key"] % QUEUES)
            body = "" if step["deletes"] else step["body"]
            content = f"{body} ".encode() + b"x" * step["bytes"] if body else b""
            message = Message(TOPIC, content, keys=key)
            sent = await work.sent("compacted", node, (body,), lambda: producer.send(message, queue=queue))
            is_ok = sent is not None and sent.status.name == "SEND_OK"
            offset = sent.queue_offset if sent is not None and is_ok else -1
            work.note(Put(key, queue.queue_id, offset, began_s, work.world.now_s, step["deletes"]))

        await work.in_turn(steps, put)


async def _finish(work: Workload) -> None:
    await look_at_last(work, TOPIC)


PART = Part(draw, start, finish=_finish, settings=SETTINGS, begin=begin, prepare=prepare, alone=CUT)


# -- what is promised --------------------------------------------------------------------------------------------


def _puts(view: View) -> dict[tuple[int, str], list[Put]]:
    found: dict[tuple[int, str], list[Put]] = defaultdict(list)
    for put in view.history.more.get("put", ()):
        found[put.queue, put.key].append(put)
    return found


def _looks(view: View) -> Iterator[tuple[Look, str, Put, list[Put], list[int]]]:
    """Yield each look with each key, its newest value of which was known, what else was sent, and what was read."""
    puts = _puts(view)
    for look in view.history.more.get("look", ()):
        read: dict[str, list[int]] = defaultdict(list)
        for offset, key in look.items:
            read[key].append(offset)
        for (queue, key), sent in puts.items() if look.topic == TOPIC else ():
            known = [put for put in sent if put.offset >= 0 and put.ended_s < look.began_s]
            newest = max(known, key=lambda put: put.offset, default=None)
            # A broker that lost its power may not have got its last messages back yet.
            if queue == look.queue and newest is not None and (newest.offset < look.end or look.is_last):
                yield look, key, newest, sent, read[key]


@rule
def the_newest_of_each_key_is_kept(view: View) -> Iterator[str]:
    """Who reads a topic with compaction finds the last acknowledged value of each key at its offset, or a newer one."""
    for look, key, newest, sent, read in _looks(view):
        # One that is newer may have deleted it meanwhile, also if nobody was told that it did.
        is_deleted = any(put.deletes and (put.offset < 0 or put.offset > newest.offset) for put in sent)
        if not newest.deletes and not is_deleted and max(read, default=-1) < newest.offset:
            yield f"{key} of {look.began_s:.3f} has {read} in {look.queue}, not {newest.offset} of {newest.ended_s:.3f}"


@rule
def a_key_that_was_deleted_does_not_come_back(view: View) -> Iterator[str]:
    """Where the message that deletes a key is gone, those before it are too; until then it is read after them."""
    for look, key, newest, _, read in _looks(view):
        # While files are exchanged a reader may have read the one, and then not the other.
        if look.is_last and newest.deletes and read and max(read) < newest.offset:
            yield f"{key} was deleted at {newest.offset} of {look.queue}, and has {read} again"
