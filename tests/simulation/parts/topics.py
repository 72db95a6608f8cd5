"""Topics that an operator makes, changes, deletes and makes anew while clients send to them and read them."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checker import View, rule
from tests.simulation.histories import Sent, kind
from tests.simulation.parts.audit import Held, audit
from tests.simulation.parts.part import Part, Step, members, of_kind, times

from rocketspark import Message
from rocketspark.admin.operations import AsyncAdmin

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPICS = ("p-life-0", "p-life-1")
GROUPS = {"pull": "p-life-pull", "push": "p-life-push"}
QUEUES_MAX = 5
BOTH = 6
# A slave takes its master's tables each 3 s: who is elected before knows a topic as it was.
TABLES_S = 5.0


@kind
class Changed(NamedTuple):
    """What an operator did to a topic. `how`: delete, make, perm or queues; `is_ok`: it was told that it is done."""

    topic: str
    how: str
    value: int
    began_s: float
    ended_s: float
    is_ok: bool


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    found: list[Step] = [
        {"kind": "send", "at": at, "body": f"l{number}", "topic": chance.choice(TOPICS)}
        for number, at in enumerate(times(chance, 80, end_s))
    ]
    for at in times(chance, chance.randint(3, 8), end_s - 4):
        topic, what = chance.choice(TOPICS), chance.choice(["delete", "delete", "perm", "queues", "queues"])
        value = {"perm": chance.choice([2, 4, 4]), "queues": chance.randint(1, QUEUES_MAX)}.get(what, 0)
        found.append({"kind": "change", "at": at, "topic": topic, "what": what, "value": value})
        # Not long after it is there again, or to be written again.
        back_s = round(at + chance.choice([0.05, 1.0, 4.0]), 3)
        if what != "queues":
            what, value = ("make", chance.randint(1, QUEUES_MAX)) if what == "delete" else ("perm", BOTH)
            found.append({"kind": "change", "at": back_s, "topic": topic, "what": what, "value": value})
    found += [{"kind": "change", "at": end_s + 4, "topic": topic, "what": "last", "value": 0} for topic in TOPICS]
    return sorted(found, key=lambda step: step["at"]) + members(chance, "life", sorted(GROUPS), end_s)


def start(work: Workload, steps: list[Step]) -> list[Any]:
    world = work.world
    return [
        *work.begin_readers(of_kind(steps, "member"), GROUPS, TOPICS),
        world.node("life-sender").start(lambda node: _send(work, node, of_kind(steps, "send"))),
        world.node("life-operator").start(lambda node: _operate(work, of_kind(steps, "change"))),
    ]


async def _send(work: Workload, node: Node, steps: list[Step]) -> None:
    def message_of(step: Step) -> Message:
        return Message(step["topic"], f"{step['body']} ".encode())

    await work.send_messages(node, "life-senders", "life", steps, message_of)


async def _operate(work: Workload, steps: list[Step]) -> None:
    async def change(step: Step) -> None:
        if step["what"] != "last":
            await _change(work, step["topic"], step["what"], step["value"])
            return
        # At the end it is there, and all that it holds may be read.
        for what, value in (("queues", QUEUES_MAX), ("perm", BOTH)):
            while not await _change(work, step["topic"], what, value):
                await asyncio.sleep(1)

    await work.in_turn(steps, change)


async def _change(work: Workload, topic: str, what: str, value: int) -> bool:
    from tests.simulation.workloads import ERRORS

    began_s, is_ok = work.world.now_s, True
    try:
        async with AsyncAdmin(work.cluster.namesrv_address, timeout_ms=3000) as operator:
            match what:
                case "delete":
                    await operator.delete_topic(topic)
                case "make" | "queues":
                    await operator.create_topic(topic, queue_count=value, force=True)
                case "perm":
                    await operator.create_topic(topic, perm=value)
    except ERRORS as e:
        is_ok = False
        work.world.record("not changed", topic=topic, what=what, error=str(e)[:200])
    work.note(Changed(topic, what, value, began_s, work.world.now_s, is_ok))
    work.world.states[f"topics: {what}"] += is_ok
    return is_ok


async def _finish(work: Workload) -> None:
    await work.world.node("life-auditor").run(lambda node: audit(work, TOPICS))


PART = Part(draw, start, dict.fromkeys(TOPICS, 3), _finish, {"auto_create_topic": False})


# -- what is promised --------------------------------------------------------------------------------------------


def _held(view: View) -> list[Held]:
    return [one for one in view.history.more.get("held", ()) if one.topic in TOPICS]


def _changes(view: View) -> dict[str, list[Changed]]:
    found: dict[str, list[Changed]] = defaultdict(list)
    for change in view.history.more.get("changed", ()):
        found[change.topic].append(change)
    return found


def _is_sure(view: View, change: Changed) -> bool:
    """Tell whether all brokers know of a change, so that it is not undone by whoever is master."""
    return change.is_ok and view.is_calm(change.began_s - TABLES_S, change.ended_s + TABLES_S, but="life-")


@rule
def a_topic_holds_what_was_sent_to_it_since_it_was_made(view: View) -> Iterator[str]:
    """Nothing acknowledged since is missing, and nothing of the topic that was deleted is there again."""
    held: dict[str, dict[tuple[int, int], str]] = {topic: {} for topic in TOPICS}
    for one in _held(view):
        held[one.topic][one.queue, one.offset] = one.body
    for topic, changes in _changes(view).items():
        deletes = [change for change in changes if change.how == "delete"]
        deleted_s = max((change.ended_s for change in deletes), default=0.0)
        sure_s = max((change.began_s for change in deletes if _is_sure(view, change)), default=0.0)
        for sent in view.history.sent:
            if sent.way != "life" or not sent.is_ok or sent.place is None or sent.place[0] != topic:
                continue
            body, place = sent.bodies[0], sent.place[1:]
            if sent.began_s > deleted_s and held[topic].get(place) != body:
                yield f"{body} was acknowledged at {sent.place}, where {held[topic].get(place, 'nothing')} is"
            if sent.ended_s < sure_s and body in held[topic].values():
                yield f"{body} of {topic} was sent at {sent.ended_s:.3f}, deleted at {sure_s:.3f}, and is there"


@rule
def groups_are_given_what_a_topic_holds(view: View) -> Iterator[str]:
    """What a topic holds at the end was given to each group that reads it, whatever it was before."""
    read = {(one.group, one.body) for one in view.history.reads}
    groups = {one.group for one in view.history.reads if one.group in GROUPS.values()}
    for one in _held(view):
        for group in sorted(groups):
            if (group, one.body) not in read:
                yield f"{group} was never given {one.body} of {one.topic} at {one.queue} {one.offset}"


@rule
def what_is_deleted_takes_nothing(view: View) -> Iterator[str]:
    """No send is acknowledged to a topic that is deleted. Its permission brokers leave to routes, as RocketMQ's do."""
    for topic, changes in _changes(view).items():
        for change, after in zip(changes, [*changes[1:], None], strict=True):
            if change.how != "delete":
                continue
            until_s = after.began_s if after is not None else 1e9
            for sent in view.history.sent:
                is_taken = sent.is_ok and _is_within(sent, topic, change.ended_s, until_s)
                if is_taken and _is_sure(view, change) and view.is_calm(sent.began_s, sent.ended_s, but="life-"):
                    yield f"{sent.bodies[0]} was taken at {sent.began_s:.3f} by {topic}, gone at {change.ended_s:.3f}"


def _is_within(sent: Sent, topic: str, begin_s: float, end_s: float) -> bool:
    return sent.place is not None and sent.place[0] == topic and begin_s < sent.began_s and sent.ended_s < end_s
