"""The workloads and the checker of the simulation over real processes: clients here, servers wherever they run.

Rule: what clients see is noted as the simulation notes it (`tests.simulation.histories`), by the one clock that all
processes of a machine share; `tests.simulation.checker` judges, and nothing here does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.simulation import checker
from tests.simulation.checker import SETTLED_WITHIN_S
from tests.simulation.histories import History, Sent, ends_of, gather
from tests.simulation.workloads import Operation, Workload, draw_members, draw_operations

from rocketspark import AsyncProducer, Message

ROOT = Path(__file__).parents[2]
PRODUCERS = 3
# Of the plain sends one of so many waits for no copy and no disk (WAIT=false): nothing is promised of it.
UNWAITED_OF = 7
LOOK_S = 1.0
# Longer than any run: what is drawn is left off when the faults are over.
HORIZON_S = 7200.0


class Client:
    """One client, by its name, as a workload knows it."""

    def __init__(self, name: str) -> None:
        self.name = name


class RealWorld:
    """What clients note, and when. `began`: by the machine's clock that never goes back; `out`: a file for it too."""

    def __init__(self, began: float | None = None, out: Path | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self.history: list[dict[str, Any]] = []
        self._out = None if out is None else out.open("a", encoding="utf-8")

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began

    def record(self, kind: str, **fields: Any) -> None:
        """Note one line of the history."""
        line = {"t": self.now_s, "kind": kind, **fields}
        self.history.append(line)
        if self._out is not None:
            # Who writes it may be killed at any moment.
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()


@dataclasses.dataclass
class RealCluster:
    """What clients are told."""

    namesrv_address: str


class _Unwaited:
    """A producer whose sends wait for nobody. `bodies`: of what it sent."""

    def __init__(self, producer: AsyncProducer, bodies: set[str]) -> None:
        self._producer, self._bodies = producer, bodies

    async def send(self, message: Message) -> Any:
        self._bodies.add(checker.body_of(message.body.decode()))
        return await self._producer.send(msgspec.structs.replace(message, wait_store_ok=False))


class RealWorkload(Workload):
    """The clients of the simulation in real time."""

    def __init__(self, world: RealWorld, namesrv: str, *, retries: int) -> None:
        super().__init__(world, RealCluster(namesrv), retries=retries)  # type: ignore[arg-type]
        self._unwaited: set[str] = set()

    def now_ms(self) -> int:
        """True time, in ms since 1970."""
        return time.time_ns() // 1_000_000

    def note(self, value: Any) -> None:
        """Note it; an answer to a send that waited for nobody is no acknowledgement."""
        if isinstance(value, Sent) and value.is_ok and value.bodies[0] in self._unwaited:
            value = value._replace(status="UNWAITED")
        super().note(value)

    async def _do(self, node: Any, producer: Any, transactions: Any, operation: Operation) -> None:
        if operation["kind"] == "send" and operation["number"] % UNWAITED_OF == 0:
            producer = _Unwaited(producer, self._unwaited)
        await super()._do(node, producer, transactions, operation)


class Run:
    """Clients at a cluster, until `acts` is done and everything has settled; then the checker's word.

    Args:
        namesrv: where clients find it.
        stores: of the brokers, by name.
        chance: what is drawn.
        a_second: how many operations.
        allowed: whether what breaks a rule is known of a server that is not ours, by rule and line.
    """

    def __init__(
        self,
        namesrv: str,
        stores: dict[str, Path],
        folder: Path,
        chance: random.Random,
        *,
        retries: int,
        a_second: float = 6.0,
        members_s: float = 40.0,
        allowed: Callable[[str, str], bool] = lambda rule, line: False,
    ) -> None:
        self.world = RealWorld()
        self._stores, self._folder, self._allowed = stores, folder, allowed
        self._namesrv = namesrv
        self.work = RealWorkload(self.world, namesrv, retries=retries)
        self._operations = draw_operations(
            chance, clients=PRODUCERS, count=int(HORIZON_S * a_second), begin_s=1.0, end_s=HORIZON_S
        )
        self._members = draw_members(chance, end_s=members_s)
        self._halted = False
        self._busy = PRODUCERS
        self._told: list[Path] = []

    def _until_halted(self, name: str) -> Iterator[Operation]:
        for operation in self._operations:
            if self._halted:
                break
            if operation["client"] == name:
                yield operation
        self._busy -= 1

    async def _killed(self, member: Operation) -> None:
        """Be a member in a process of its own that is killed at its time."""
        out = self._folder / f"member-{member['name']}.jsonl"
        self._told.append(out)
        await asyncio.sleep(max(0.0, member["from"] - self.world.now_s))
        about = {"namesrv": self._namesrv, "began": self.world.began, "out": str(out), "member": member}
        command = [sys.executable, "-m", "tests.support.real_world", json.dumps(about)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
        try:
            while self.world.now_s < member["until"] and not self.work.stopped:
                await asyncio.sleep(0.1)
        finally:
            process.kill()
            process.wait()

    async def judge(self, acts: Callable[[RealWorld], None], wait_whole: Callable[[], Any]) -> dict[str, int]:
        """Run it; `acts` and `wait_whole`, in a thread, do what is done to the servers and wait for them at the end.

        Raises PromiseBroken, and leaves the history in the folder.
        """
        running = []
        for number in range(PRODUCERS):
            name = f"producer-{number}"
            running.append(self.work.produce(Client(name), self._until_halted(name)))  # type: ignore[arg-type]
        for member in self._members:
            consume = self._killed(member) if member["dies"] else self.work.consume(Client(member["name"]), member)  # type: ignore[arg-type]
            running.append(consume)
        tasks = [asyncio.ensure_future(each) for each in running]
        doing = asyncio.ensure_future(self._do(acts, wait_whole))
        try:
            # A client that fails is the end of it: nobody has what it was to see.
            waiting = {doing, *tasks}
            while not doing.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            self.work.stopped = True
            await asyncio.gather(*tasks)
            await self._until_equal()
            history = gather(self._lines(), self._stores)
        finally:
            doing.cancel()
            self.work.stopped = self._halted = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            (self._folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self._lines()))
        checker.raise_for(await asyncio.to_thread(self._broken, history))
        return _counted(history)

    async def _do(self, acts: Callable[[RealWorld], None], wait_whole: Callable[[], Any]) -> None:
        await asyncio.to_thread(acts, self.world)
        self._halted = True
        while self._busy:
            await asyncio.sleep(0.1)
        self.world.record("faults end")
        await asyncio.to_thread(wait_whole)
        await self._settle()

    def _lines(self) -> list[dict[str, Any]]:
        lines = list(self.world.history)
        for path in self._told:
            text = path.read_text("utf-8") if path.exists() else ""
            # The last may be cut.
            lines += [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return sorted(lines, key=lambda line: line["t"])

    def _broken(self, history: History) -> dict[str, list[str]]:
        found = checker.broken(history)
        kept = {rule: [line for line in lines if not self._allowed(rule, line)] for rule, lines in found.items()}
        return {rule: lines for rule, lines in kept.items() if lines}

    async def _settle(self) -> None:
        """Wait until nothing is left to come, which the checker says, or the bound is over."""
        # Slaves may lack the newest yet.
        one = dict(list(self._stores.items())[:1])
        end_s = self.world.now_s + SETTLED_WITHIN_S
        while self.world.now_s < end_s:
            await asyncio.sleep(LOOK_S)
            self.world.history = [line for line in self.world.history if line.get("what") != "committed"]
            await self.work.commits(Client("asker"))  # type: ignore[arg-type]
            found = await asyncio.to_thread(lambda: self._broken(gather(self._lines(), one)))
            if not found.keys() - {"it settles"}:
                self.world.record("settled")
                return
        checker.raise_for(found)

    async def _until_equal(self) -> None:
        """Nothing of ours is stored any more; slaves have the rest in a moment."""
        for _ in range(60):
            if len(await asyncio.to_thread(ends_of, self._stores)) == 1:
                return
            await asyncio.sleep(0.5)


def _counted(history: History) -> dict[str, int]:
    found = Counter(f"{sent.way} acknowledged" for sent in history.sent if sent.is_ok)
    found["acknowledged"] = sum(found.values())
    found["not answered"] = sum(not sent.status and sent.way != "oneway" for sent in history.sent)
    found["reads"] = len(history.reads)
    found["faults"] = len(history.faults)
    return dict(found)


def main() -> None:
    """Be one member of a group, until killed."""
    about = json.loads(sys.argv[1])
    world = RealWorld(about["began"], Path(about["out"]))
    work = RealWorkload(world, about["namesrv"], retries=0)
    # Who started it ends it; by itself only if that one is gone.
    member = about["member"] | {"from": 0.0, "until": about["member"]["until"] + 60.0}
    asyncio.run(work.consume(Client(member["name"]), member))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
