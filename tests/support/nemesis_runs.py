"""Whole runs over real processes: a cluster is drawn, clients work on it, an attacker strikes, the checker judges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.workloads import BATCHED, DELAYED, ENDED, KEYED, PLAIN, POPPED, TIMED
from tests.support.attacks import Attacked, Nemesis
from tests.support.failovers import QUEUES, Answered, ReplicaSet, wait_for_topics
from tests.support.real_world import RealWorld, Run

from rocketspark.admin.operations import Admin

TOPICS = (PLAIN, KEYED, BATCHED, DELAYED, TIMED, ENDED, POPPED)


def run_of(found: ReplicaSet, folder: Path, chance: random.Random, retries: int, **more: Any) -> Run:
    """Clients for a set of brokers, whose topics are made."""
    with Admin(found.namesrv) as operations:
        for topic in TOPICS:
            operations.create_topic(topic, queue_count=QUEUES)
    wait_for_topics(found, *TOPICS)
    stores = {f"broker-{number}": member.store for number, member in enumerate(found.members)}
    if "J" in found.kinds:
        more["allowed"] = _of_official
    return Run(found.namesrv, stores, folder, chance, retries=retries, **more)


def _of_official(rule: str, line: str) -> bool:
    """Tell whether official brokers of 5.5.0 do so too, each time that one takes over (docs/develop/missing.md).

    It delivers again what was due just before, also what was recalled; and gives popped messages out again from the
    group's older offsets, each as a copy in the retry topic, which other masters give out later.
    """
    if rule == "later messages come once and in time":
        return " times to " in line or " was recalled " in line
    return rule == "popped is out of sight"


class Watched(Answered):
    """The answers of a run."""

    def __init__(self, world: RealWorld) -> None:
        self._world = world
        self._looked = 0
        self._answered_s: list[float] = []

    @property
    def answered_s(self) -> Sequence[float]:
        for line in self._world.history[self._looked :]:
            if line.get("what") == "sent" and line["status"] == "SEND_OK":
                self._answered_s.append(self._world.began + line["ended_s"])
            self._looked += 1
        return self._answered_s


Act = Callable[[ReplicaSet, Answered], float]


def failed_over(
    found: ReplicaSet, folder: Path, chance: random.Random, acts: Sequence[Act], done: Callable[[str, float], None]
) -> dict[str, int]:
    """Do all acts, one after the other, beside clients that work all the time; `done`: each with its seconds.

    Raises PromiseBroken; returns what was counted.
    """

    def do(world: RealWorld) -> None:
        watched = Watched(world)
        watched.wait_for_answers(30)
        for act in acts:
            world.record("fault", what=act.__name__, node="")
            done(act.__name__, act(found, watched))
            world.record("mended", what=act.__name__, node="")
            watched.wait_for_answers(chance.randrange(1, 60))

    run = run_of(found, folder, chance, 2, a_second=10.0, members_s=8.0 * len(acts))
    return asyncio.run(run.judge(do, lambda: found.wait_in_sync(len(found.kinds))))


def attacked(
    folder: Path, chance: random.Random, kinds: Sequence[str], faults: int, say: Callable[[str], None], **more: Any
) -> None:
    """Draw a cluster of one of these kinds, and strike it so often. Raises PromiseBroken."""
    drawn = chance.choice(kinds)
    controllers = chance.choice([1, 1, 3])
    controller: Any = "ours" if "J" not in drawn else chance.choice(["ours", "official"])
    config: dict[str, Any] = {"flushDiskType": chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"])}
    if chance.random() < 0.3:
        config["minInSyncReplicas"] = 2
    retries = chance.choice([0, 2, 2])
    by = f"{controllers} of DLedger's" if controller == "official" else f"{controllers} of ours"
    say(f"{drawn}, controllers: {by}, {config}, retries {retries}")
    found = Attacked(folder, drawn, controller, config, controllers=controllers)
    try:
        run = run_of(found, folder, chance, retries, **more)

        def acts(world: RealWorld) -> None:
            nemesis = Nemesis(found, chance, world)
            for _ in range(faults):
                say(nemesis.strike())
                if chance.random() < 0.6:
                    found.wait_in_sync(len(drawn))

        counted = asyncio.run(run.judge(acts, lambda: found.wait_in_sync(len(drawn))))
        say(f"{counted}, epoch {found.state().epoch}")
    finally:
        found.close()
