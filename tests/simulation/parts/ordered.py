"""A group that listens in order: members that come, leave and die, and a listener that takes its time and fails."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, body_of, rule
from tests.simulation.histories import kind
from tests.simulation.parts.part import Part, Step, members, of_kind, sends

from rocketspark import ReceivedMessage

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, GROUP, QUEUES = "p-order", "p-order-push", 3
# For so long a broker keeps the lock of a client that died.
LOCK_KEPT_S = 60.0


@kind
class Worked(NamedTuple):
    """A call of the listener. `ended_s`: -1 as it begins."""

    client: str
    queue: int
    offset: int
    body: str
    began_s: float
    ended_s: float
    is_ok: bool


def draw(chance: random.Random, end_s: float) -> list[Step]:
    found = sends(chance, "o", 60, end_s) + members(chance, "order", ["push"], end_s)
    for number in range(chance.randint(2, 5)):
        begin_s = chance.uniform(2, end_s - 5)
        member = {"kind": "member", "name": f"order-more-{number}", "how": "push", "dies": chance.random() < 0.3}
        found.append(member | {"from": round(begin_s, 3), "until": round(begin_s + chance.uniform(2, 15), 3)})
    return found


def start(work: Workload, steps: list[Step]) -> list[Any]:
    sender = work.world.node("order-sender")
    return [
        *(work.begin(member, partial(_consume, work)) for member in of_kind(steps, "member")),
        sender.start(lambda node: work.send_each(node, TOPIC, QUEUES, of_kind(steps, "send"))),
    ]


async def _consume(work: Workload, node: Node, is_over: Callable[[], bool]) -> None:
    tried: set[str] = set()

    async def listen(message: ReceivedMessage) -> bool:
        body, began_s = body_of(message.body.decode()), work.world.now_s
        about = node.name, message.queue_id, message.queue_offset, body, began_s
        work.note(Worked(*about, -1.0, False))
        turn = zlib.crc32(body.encode())
        await asyncio.sleep([0, 0.1, 0.5, 2.0][turn % 4])
        # Some fail the first time that a member has them.
        is_ok = turn % 5 != 0 or body in tried
        tried.add(body)
        work.note(Worked(*about, work.world.now_s, is_ok))
        return is_ok

    await work.listened(is_over, GROUP, [TOPIC], listen, ordered=True, suspend_ms=500)


PART = Part(draw, start, {TOPIC: QUEUES}, settings={"strict_locks": True}, quiet_s=LOCK_KEPT_S + 25)


def _calls(view: View) -> dict[int, list[Worked]]:
    """Return by queue the calls that ended, or those that did not if their client died in them."""
    begun: dict[tuple[str, int, int, float], Worked] = {}
    for worked in view.history.more.get("worked", ()):
        begun[worked.client, worked.queue, worked.offset, worked.began_s] = worked
    found: dict[int, list[Worked]] = defaultdict(list)
    for worked in begun.values():
        found[worked.queue].append(worked)
    return {queue: sorted(calls, key=lambda call: call.began_s) for queue, calls in found.items()}


@rule
def in_order_each_is_done_before_the_next(view: View) -> Iterator[str]:
    """A listener in order is given a message once those before it in its queue were taken; at the end all were."""
    for queue, records in view.of_queue(TOPIC).items():
        done: dict[int, float] = {}
        for call in _calls(view).get(queue, ()):
            if call.is_ok:
                done[call.offset] = min(call.ended_s, done.get(call.offset, 1e12))
        for stored in records:
            if stored.offset not in done:
                yield f"{body_of(stored.body)} at {queue} {stored.offset} was never taken"
        for call in _calls(view).get(queue, ()):
            if call.offset and done.get(call.offset - 1, 1e12) > call.began_s:
                yield f"{call.client} was given {queue} {call.offset} at {call.began_s:.3f} before the one before it"


@rule
def no_two_work_on_one_queue(view: View) -> Iterator[str]:
    """A queue that is read in order has one call at a time, whoever makes it."""
    for queue, calls in _calls(view).items():
        for before, after in pairwise(calls):
            if before.ended_s > after.began_s and view.is_calm(
                before.began_s - LOCK_KEPT_S, after.began_s, but="order-"
            ):
                yield (
                    f"{after.client} began {queue} {after.offset} at {after.began_s:.3f}, while {before.client} was at"
                    f" {before.offset} until {before.ended_s:.3f}"
                )
