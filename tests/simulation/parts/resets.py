"""Offsets of groups that an operator sets, of one that polls, one that listens, one that pops, while they read."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, body_of, rule
from tests.simulation.histories import Stored, kind
from tests.simulation.parts.part import Part, Step, members, of_kind, sends, times

from rocketspark import MessageQueue
from rocketspark.admin.cluster_client import ClusterClient
from rocketspark.client.connection import client_api
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.groups import ResetOffsetHeader
from rocketspark.protocol.json.metadata import decode_offsets

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload

TOPIC = "p-reset"
GROUPS = {"pull": "p-reset-pull", "push": "p-reset-push", "pop": "p-reset-pop"}
QUEUES = 2
# A slave takes its master's tables each 3 s: an offset that was set later is not with who is elected then.
TABLES_S = 5.0
# Before anything is done.
REFUSALS = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@kind
class Reset(NamedTuple):
    """An operator set a group's offset in a queue. `offset`: None if no broker said what it did."""

    group: str
    queue: int
    offset: int | None
    how: str
    time_ms: int
    began_s: float
    ended_s: float
    is_ok: bool

    def may_explain(self, offset: int, at_s: float) -> bool:
        """Tell whether a reader may have been sent to an offset by it."""
        return self.began_s <= at_s and self.offset in (None, offset)


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    found = sends(chance, "r", 80, end_s)
    for at in times(chance, chance.randint(2, 6), end_s):
        how = chance.choice(["time", "offset", "offset", "end"])
        step = {"kind": "reset", "at": at, "how": how, "group": chance.choice(sorted(GROUPS.values()))}
        step |= {"queue": chance.randrange(QUEUES), "share": round(chance.random(), 3)}
        found.append(step | {"back_s": round(chance.uniform(0, 20), 3)})
    return found + members(chance, "reset", sorted(GROUPS), end_s)


def start(work: Workload, steps: list[Step]) -> list[Any]:
    world = work.world
    return [
        *work.begin_readers(of_kind(steps, "member"), GROUPS, [TOPIC]),
        world.node("reset-sender").start(lambda node: work.send_each(node, TOPIC, QUEUES, of_kind(steps, "send"))),
        world.node("reset-operator").start(lambda node: _operate(work, of_kind(steps, "reset"))),
    ]


async def _operate(work: Workload, steps: list[Step]) -> None:
    from tests.simulation.workloads import ERRORS

    async def reset(step: Step) -> None:
        queue, began_s = MessageQueue(TOPIC, work.cluster.name, step["queue"]), work.world.now_s
        header = ResetOffsetHeader(group=step["group"], topic=TOPIC, force=True)
        told: dict[int, int] = {}
        # Nothing is asked of a broker before it is there to answer: then it may have done it.
        is_asked = False
        try:
            async with ClusterClient(work.cluster.namesrv_address, timeout_ms=3000) as client:
                masters = await client._masters(None, None)
                peer = await client._broker(masters[0].address)
                match step["how"]:
                    case "time":
                        header.time_ms = work.now_ms() - int(step["back_s"] * 1000)
                    case "offset":
                        end = await client_api.max_offset(peer, queue)
                        header.queue_id, header.offset = queue.queue_id, int(end * step["share"])
                is_asked = True
                reply = await peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_ms=3000)
                reply.raise_for_code("reset")
                told = {queue.queue_id: offset for queue, offset in decode_offsets(reply.body).items()}
        except ERRORS as e:
            is_asked = is_asked and not (isinstance(e, ServerError) and e.code in REFUSALS)
            work.world.record("not reset", error=str(e)[:200])
        now_s = work.world.now_s
        for number in told or (range(QUEUES) if is_asked else ()):
            if header.queue_id in (-1, number):
                offset = told.get(number)
                given = step["group"], number, offset, step["how"], header.time_ms
                work.note(Reset(*given, began_s, now_s, offset is not None))
                work.world.states["resets of offsets"] += offset is not None

    await work.in_turn(steps, reset)


PART = Part(draw, start, {TOPIC: QUEUES})


# -- what is promised --------------------------------------------------------------------------------------------


def _resets(view: View) -> dict[tuple[str, int], list[Reset]]:
    found: dict[tuple[str, int], list[Reset]] = defaultdict(list)
    for reset in view.history.more.get("reset", ()):
        found[reset.group, reset.queue].append(reset)
    return found


@rule
def reads_go_back_by_resets_alone(view: View) -> Iterator[str]:
    """Who holds a queue reads each of its offsets, one after the other, but where an operator sends it."""
    resets = _resets(view)
    sessions: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for read in view.history.reads:
        if read.group == GROUPS["pull"] and read.place[0] == TOPIC:
            sessions[read.session, read.place[1]].append(read)
    for (session, queue), reads in sessions.items():
        for before, after in pairwise(reads):
            at = after.place[2]
            if at == before.place[2] + 1:
                continue
            if not any(reset.may_explain(at, after.at_s) for reset in resets[GROUPS["pull"], queue]):
                yield f"{session} read {TOPIC} {queue} at {before.place[2]}, then {at}, where no reset sends it"


@rule
def resets_are_followed(view: View) -> Iterator[str]:
    """A group reads all from where an operator set it, and passes over nothing that no operator had it pass over."""
    resets = _resets(view)
    read: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in view.history.reads:
        read[one.group, one.body].append(one.at_s)
    for queue, records in view.of_queue(TOPIC).items():
        for group in {one.group for one in view.history.reads if one.group in GROUPS.values()}:
            yield from _followed(view, group, queue, records, resets[group, queue], read)


def _followed(
    view: View,
    group: str,
    queue: int,
    records: list[Stored],
    resets: list[Reset],
    read: dict[tuple[str, str], list[float]],
) -> Iterator[str]:
    for one in records:
        if not read[group, body_of(one.body)] and not _is_passed(one.offset, resets):
            yield f"{group} was never given {body_of(one.body)} at {queue} {one.offset}, and no reset passes over it"
    is_jumped = view.are_clocks_wrong
    for reset in resets:
        if reset.offset is None or not view.is_calm(reset.began_s - TABLES_S, reset.ended_s + TABLES_S, but="reset-"):
            continue
        later = [other for other in resets if other is not reset and other.ended_s >= reset.began_s]
        for one in records[reset.offset :]:
            given = any(at_s >= reset.began_s for at_s in read[group, body_of(one.body)])
            if not given and not _is_passed(one.offset, later):
                yield f"{group} was set to {queue} {reset.offset} at {reset.began_s:.3f} and not given {one.offset}"
        if reset.how == "time" and not is_jumped:
            before = records[reset.offset - 1].stored_ms if reset.offset else 0
            if before >= reset.time_ms or any(one.stored_ms < reset.time_ms for one in records[reset.offset :]):
                yield f"{group} was set to {queue} {reset.offset} by {reset.time_ms}, which is another message's time"


def _is_passed(offset: int, resets: Iterable[Reset]) -> bool:
    return any(reset.offset is None or reset.offset > offset for reset in resets)
