"""A group whose listener fails: how often it is given a message, and what becomes of it then."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.checker import View, body_of, rule
from tests.simulation.parts.part import Part, Step, members, of_kind, sends

from rocketspark import ReceivedMessage

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, GROUP, QUEUES = "p-fail", "p-fail-push", 2
# Attempts after the first; a message whose listener fails more often is a dead letter.
RETRIES = 2
DEAD = f"%DLQ%{GROUP}"


def failures(body: str) -> int:
    """Return how often the listener fails for a message; beyond RETRIES it is for ever."""
    return [0, 0, 1, 2, 99, 99][zlib.crc32(body.encode()) % 6]


def draw(chance: random.Random, end_s: float) -> list[Step]:
    return sends(chance, "d", 40, end_s - 5) + members(chance, "fail", ["push"], end_s)


def start(work: Workload, steps: list[Step]) -> list[Any]:
    sender = work.world.node("fail-sender")
    return [
        *(work.begin(member, partial(_consume, work)) for member in of_kind(steps, "member")),
        sender.start(lambda node: work.send_each(node, TOPIC, QUEUES, of_kind(steps, "send"))),
    ]


async def _consume(work: Workload, node: Node, is_over: Callable[[], bool]) -> None:
    async def listen(message: ReceivedMessage) -> bool:
        work.read("fail", GROUP, node, "", message, work.world.now_s)
        return message.reconsume_times >= failures(body_of(message.body.decode()))

    await work.listened(is_over, GROUP, [TOPIC], listen, max_reconsume_times=RETRIES)


# Levels 3 and 4 are those of the first attempts again; the first three are as ever.
PART = Part(draw, start, {TOPIC: QUEUES}, settings={"delay_levels": "1s 5s 10s 4s 3s 3s"})


@rule
def failed_messages_are_tried_again_until_they_are_dead(view: View) -> Iterator[str]:
    """Each attempt is made, and no other; what failed in the last is a dead letter, and nothing else is."""
    attempts: dict[str, list[int]] = defaultdict(list)
    last_s: dict[str, float] = {}
    for read in view.history.reads:
        if read.group == GROUP:
            attempts[read.body].append(read.times)
            last_s[read.body] = read.at_s
    for records in view.of_queue(TOPIC).values():
        for stored in records:
            body = body_of(stored.body)
            sent, found = view.sent_of[body], attempts[body]
            dead = len(view.of_body.get((DEAD, body), ()))
            wanted = list(range(min(failures(body), RETRIES) + 1))
            told = f"{body}, which fails {failures(body)} times, was tried as {sorted(found)} and is dead {dead} times"
            if missing := set(wanted) - set(found):
                yield f"{told}; not tried as {sorted(missing)}"
            if (failures(body) > RETRIES) != bool(dead) and (not dead or _is_calm(view, sent.began_s, last_s[body])):
                yield told
            # Where a broker did not answer an attempt may be made again, here or by another member.
            is_once = len(view.of_body[TOPIC, body]) == 1
            if (
                is_once
                and _is_calm(view, sent.began_s, last_s.get(body, 1e9))
                and (sorted(found) != wanted or dead > 1)
            ):
                yield f"{told}, and all was well"


def _is_calm(view: View, begin_s: float, end_s: float) -> bool:
    return view.is_calm(begin_s - 5, end_s + 5)
