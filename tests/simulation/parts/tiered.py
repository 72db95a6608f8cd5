"""A topic that is copied to a second tier, which all brokers reach, or cannot reach for a while: a folder, or objects.

Where no other clients are the brokers keep little of their logs, so that most of the topic is in the tier alone.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.simulation import loop
from tests.simulation.checker import View, rule
from tests.simulation.parts.audit import Held, audit
from tests.simulation.parts.compacted import CUT
from tests.simulation.parts.part import Part, Step, members, of_kind, sends
from tests.simulation.world import wait_until

from rocketspark.broker.tiered_settings import PLUG_IN, TieredSettings
from rocketspark.errors import RocketSparkError, StoreUnwritable
from rocketspark.store.tiered import owner
from rocketspark.store.tiered.segments import FolderSegments

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node, World

TOPIC, QUEUES = "p-tier", 2
GROUPS = {"pull": "p-tier-pull", "push": "p-tier-push", "pop": "p-tier-pop"}
# How a tier is away: its calls fail; they have no answer until it is back; they are done, and the answer is lost.
AWAY = ("fails", "hangs", "does not answer")
SETTINGS: dict[str, Any] = {
    "store_plug_in": PLUG_IN,
    "tier": TieredSettings(
        # Below the folder that a run is in.
        tiered_store_file_path="tier",
        tiered_store_commit_log_max_size=16_384,
        tiered_store_consume_queue_max_size=20 * 16,
        tiered_store_index_file_max_hash_slot_num=50,
        tiered_store_index_file_max_index_num=100,
        tiered_store_group_commit_timeout=2000,
        tiered_store_group_commit_count=8,
        tiered_store_read_cache_size=16_384,
    ),
}


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    found = [step | {"bytes": chance.choice([0, 1000, 3000])} for step in sends(chance, "y", 100, end_s)]
    for _ in range(chance.choice([0, 1, 2, 3])):
        step = {"kind": "away", "at": round(chance.uniform(5, end_s - 12), 3), "how": chance.choice(AWAY)}
        found.append(step | {"seconds": round(chance.uniform(0.5, 12), 3)})
    # A group that begins late reads from the tier.
    late_s = {how: chance.choice([0.0, 20.0, 35.0]) for how in sorted(GROUPS)}
    for member in members(chance, "tier", sorted(GROUPS), end_s):
        member["from"] = max(member["from"], late_s[member["how"]])
        if not member["until"] or member["until"] > member["from"]:
            found.append(member)
    return found


def draw_with_objects(chance: random.Random, end_s: float) -> list[Step]:
    """Draw the same, and at times that the store holds up requests until nobody waits for them any more."""
    found = draw(chance, end_s)
    if chance.random() < 0.5:
        step = {"kind": "away", "at": round(chance.uniform(5, end_s - 12), 3), "how": "hangs"}
        found.append(step | {"seconds": round(chance.uniform(12, 35), 3)})
    return found


_away: list[str] = []
# What is called once it is there again.
_backs: list[Callable[[World], None]] = []


def begin() -> None:
    """Have the folder be away while `_away` says so."""
    _shorten_leases()
    for name in ("sizes", "append", "read", "remove", "whole", "put"):
        setattr(FolderSegments, name, _reached(name, getattr(FolderSegments, name)))


def begin_with_objects() -> None:
    """Have brokers find their tier in an object store, whose requests go over the network, and are made in its way."""
    # Not before: pyarrow is for those alone that have such a tier.
    from tests.simulation.object_store import PlayedStore, install

    _shorten_leases()
    store = PlayedStore(_away)
    install(store)
    _backs.append(store.come_back)


def _shorten_leases() -> None:
    """Let a broker take the tier over within a run, while requests of the one before are on their way."""
    owner.SIGN_S, owner.LEASE_S = 2.0, 6.0


def _reached(name: str, call: Any) -> Any:
    def reach(self: FolderSegments, *arguments: Any) -> Any:
        if loop.current_process() is None:
            return call(self, *arguments)
        while "hangs" in _away:
            time.sleep(0.1)
        if "fails" in _away:
            raise StoreUnwritable(f"the tier is away: {name}")
        found = call(self, *arguments)
        if "does not answer" in _away:
            raise StoreUnwritable(f"the tier is away: no answer to {name}")
        return found

    return reach


def start(work: Workload, steps: list[Step]) -> list[Any]:
    world = work.world
    return [
        *work.begin_readers(of_kind(steps, "member"), GROUPS, [TOPIC]),
        world.node("tier-sender").start(lambda node: work.send_each(node, TOPIC, QUEUES, of_kind(steps, "send"))),
        *(
            world.node("tier-folder").start(lambda node, step=step: _be_away(node, step))
            for step in of_kind(steps, "away")
        ),
    ]


async def _be_away(node: Node, step: Step) -> None:
    world = node.world
    await wait_until(world, step["at"])
    world.record("fault", what=f"tier {step['how']}", node=node.name)
    _away.append(step["how"])
    await wait_until(world, step["at"] + step["seconds"])
    _away.remove(step["how"])
    for back in _backs:
        back(world)
    world.record("mended", what=f"tier {step['how']}", node=node.name)


async def _finish(work: Workload) -> None:
    try:
        await work.world.node("tier-auditor").run(lambda node: audit(work, [TOPIC]))
    except RocketSparkError as e:
        work.world.record("not all read", error=str(e))


PART = Part(draw, start, {TOPIC: QUEUES}, _finish, SETTINGS, begin=begin, alone=CUT)
OBJECTS = PART._replace(draw=draw_with_objects, begin=begin_with_objects)


# -- what is promised --------------------------------------------------------------------------------------------


def _held(view: View) -> list[Held]:
    return [one for one in view.history.more.get("held", ()) if one.topic == TOPIC]


@rule
def what_only_the_tier_has_is_read_by_offset(view: View) -> Iterator[str]:
    """Each acknowledged message is read at its offset at the end, whether the store has it or the tier alone."""
    held = {(one.queue, one.offset): one.body for one in _held(view)}
    for sent in view.history.sent:
        if sent.way == TOPIC and sent.is_ok and sent.place is not None:
            (body,), place = sent.bodies, sent.place[1:]
            if held.get(place) != body:
                yield f"{body} of {sent.ended_s:.3f} was acknowledged at {place}, where {held.get(place)} is read"


@rule
def groups_are_given_what_only_the_tier_has(view: View) -> Iterator[str]:
    """What a tiered topic holds was given to each of its groups, whenever it left the store."""
    read: dict[str, set[str]] = defaultdict(set)
    for one in view.history.reads:
        read[one.group].add(one.body)
    for how, group in GROUPS.items():
        if how == "pop" and view.hold_pops_for_long:
            continue
        for one in _held(view):
            if group in read and one.body not in read[group]:
                yield f"{group} was never given {one.body} at {one.queue} {one.offset}"
