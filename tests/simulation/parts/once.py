"""Batches written exactly once as Spark's sink does it, without Spark: drivers that die at any call, two at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from tests.simulation.checker import View, rule
from tests.simulation.histories import kind
from tests.simulation.parts.audit import audit
from tests.simulation.parts.part import Part, Step, of_kind, times
from tests.simulation.world import wait_until

from rocketspark.spark.exactly_once import TaskAttempt
from rocketspark.spark.exactly_once import batch_commit as writing
from rocketspark.tables.options import WriteOptions, parse_write

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

# Not "p-": its messages are no producer's, so that other rules do not know them.
TOPIC, QUEUES = "x-once", 3
BATCHES, TASKS, ROWS = 6, 2, 15
DRIVERS = ("once-driver-1", "once-driver-2")


@kind
class Done(NamedTuple):
    """A driver was told that a batch is committed."""

    driver: str
    batch: int
    at_s: float


def draw(chance: random.Random, end_s: float) -> list[Step]:
    """Draw when each batch is ready, when a driver dies (at a call soon after), and when a second one runs."""
    found = [{"kind": "batch", "at": at, "number": number} for number, at in enumerate(times(chance, BATCHES, end_s))]
    for batch in found[:]:
        # Most as they write a batch, which takes them some hundred calls.
        if chance.random() < 0.7:
            calls = int(chance.choice([chance.uniform(1, 60), chance.uniform(1, 300)]))
            at = round(batch["at"] - 0.001, 3)
            found.append({"kind": "death", "at": at, "driver": chance.choice(DRIVERS), "calls": calls})
    if chance.random() < 0.6:
        at = round(chance.uniform(2, end_s / 2), 3)
        found.append({"kind": "second", "at": at, "until": round(at + chance.uniform(5, 30), 3)})
    return sorted(found, key=lambda step: step["at"])


class _Query:
    """What drivers share as Spark's do: the checkpoint, and the batches that are ready."""

    def __init__(self, work: Workload, batches: list[Step]) -> None:
        self.work = work
        self.committed = 0
        self.ready = [step["at"] for step in batches]
        self.options: WriteOptions = parse_write(
            {
                "namesrv": work.cluster.namesrv_address,
                "topic": TOPIC,
                "delivery": "exactly-once",
                "transactionalId": "once",
                "sendTimeoutMs": "2000",
                "commitTimeoutMs": "10000",
                "maxBatchBytes": "2048",
            }
        )

    async def drive(self, node: Node, until_s: float = 1e9) -> None:
        """Write each batch from the checkpoint on, again where it fails."""
        world = self.work.world
        from tests.simulation.workloads import ERRORS

        while self.committed < len(self.ready) and world.now_s < until_s:
            batch = self.committed
            await wait_until(world, self.ready[batch])
            try:
                await self._write(node, batch)
            except ERRORS as e:
                world.record("not written", node=node.name, batch=batch, error=str(e)[:200])
                world.states["exactly once: writes that failed"] += 1
                await asyncio.sleep(0.5)
                continue
            self.work.note(Done(node.name, batch, world.now_s))
            world.states["exactly once: batches"] += 1
            self.committed = max(self.committed, batch + 1)

    async def _write(self, node: Node, batch: int) -> None:
        async with writing._opened(self.options) as commit_log:
            await commit_log.make()
        sends = [
            writing._send_attempt(rows_of(batch, task), self.options, TaskAttempt("q", batch, task))
            for task in range(TASKS)
        ]
        sent = await asyncio.gather(*sends)
        async with writing._opened(self.options) as commit_log:
            await commit_log.find()
            await writing._Commit(commit_log, self.options, sent, batch).run()


def rows_of(batch: int, task: int) -> Iterator[pa.RecordBatch]:
    for begin in range(0, ROWS, 5):
        bodies = [f"{batch}.{task}.{row} ".encode() + b"x" * 200 for row in range(begin, begin + 5)]
        yield pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})


def start(work: Workload, steps: list[Step]) -> list[Any]:
    query = _Query(work, of_kind(steps, "batch"))
    operator = work.world.node("once-operator")

    async def die(step: Step) -> None:
        node = work.world.node(step["driver"])
        node.kill_at_call(step["calls"])

    async def watch(node: Node) -> None:
        """Start the first driver again when it died, until all is written."""
        while query.committed < len(query.ready):
            driver = work.world.node(DRIVERS[0])
            if not driver.processes:
                driver.start(query.drive)
            await asyncio.sleep(0.5)

    async def second(step: Step) -> None:
        driver = work.world.node(DRIVERS[1])
        driver.start(lambda node: query.drive(node, step["until"]))

    return [
        operator.start(watch),
        operator.start(lambda node: work.in_turn(of_kind(steps, "death"), die)),
        operator.start(lambda node: work.in_turn(of_kind(steps, "second"), second)),
    ]


async def _finish(work: Workload) -> None:
    await work.world.node("once-auditor").run(lambda node: audit(work, [TOPIC]))


PART = Part(draw, start, {TOPIC: QUEUES}, _finish)


@rule
def each_row_is_there_once(view: View) -> Iterator[str]:
    """Each row of a batch that a driver was told is committed is in the topic once; no row is there twice."""
    held = Counter(one.body for one in view.history.more.get("held", ()) if one.topic == TOPIC)
    for body, count in held.items():
        if count > 1:
            yield f"row {body} is there {count} times"
    for batch in sorted({done.batch for done in view.history.more.get("done", ())}):
        wanted = {f"{batch}.{task}.{row}" for task in range(TASKS) for row in range(ROWS)}
        if missing := wanted - held.keys():
            yield f"{len(missing)} rows of batch {batch} are missing: {sorted(missing)[:3]}"
