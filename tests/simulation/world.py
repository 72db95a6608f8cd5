"""A world: machines with clocks, disks and addresses, the processes that run on them, and what is noted of it all.

Rule: everything follows from the seed. What is drawn for one purpose comes from a stream of its own, so that one fault
more or less changes nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.simulation import loop as loops
from tests.simulation.disk import SimDisk, forget_locks
from tests.simulation.loop import Clock, Scheduler, SimLoop, Strand
from tests.simulation.network import Network

# 2026-01-01, by the clock of a machine that was never set.
BEGIN_S = 1_767_225_600.0
LIMIT_S = 3600.0

_STATES = {"kill": "kills", "power loss": "losses of power", "halt": "halts", "spared": "faults spared"}

Main = Callable[["Node"], Awaitable[Any]]


class NodeDied(Exception):
    """The process that was waited for was killed."""


class Process:
    """A program on a machine: a loop, its threads, its connections. It ends when `main` does, or is killed."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name
        self.scheduler = node.world.scheduler
        self.pid = node.world.next_pid()
        self.is_dead = self.is_halted = False
        self.strands: list[Strand] = []
        self.set_aside: list[Strand] = []
        self.listening: list[Any] = []
        self.loop = SimLoop(self)
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        # Of servers: `nodes.serve` sets them.
        self.is_ready = False
        self.server: Any = None
        self.stop_wanted: asyncio.Event | None = None
        self._is_through = False
        self._waiting: list[Callable[[], None]] = []

    def start(self, main: Main) -> None:
        async def run() -> Any:
            return await main(self.node)

        self.loop.run_main(run(), self._done)

    def stop(self) -> None:
        """Ask a server to stop, as SIGTERM does; one that has not begun to serve is killed."""
        if self.stop_wanted is None or not self.is_ready:
            self.end(silent=False)
        else:
            self.loop.call_outside(self.stop_wanted.set)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self.error is None:
            self.result = task.result()
        self._is_through = True
        self.end(silent=False)

    def end(self, *, silent: bool) -> None:
        """Be no more; nothing of it ever runs again. `silent`: nobody is told, as the machine is gone too."""
        if self.has_ended:
            return
        self.has_ended = self.is_dead = True
        self.node.world.keep.append(self)
        self.node.world.network.end_process(self, silent=silent)
        self.node.processes.remove(self)
        if self.error is None and not self._is_through:
            self.error = NodeDied(f"{self.name} on {self.node.name} was killed")
        for tell in self._waiting:
            tell()

    async def wait_ready(self) -> None:
        """Wait until it serves. Raises what it raised if it ends before."""
        while not self.is_ready:
            if self.has_ended:
                await self.wait()
            await asyncio.sleep(0.01)

    async def wait(self) -> Any:
        """Return what `main` returned, once it did. Raises what it raised; NodeDied."""
        if not self.has_ended:
            own = asyncio.get_running_loop()
            assert isinstance(own, SimLoop)
            ended: asyncio.Future[None] = own.create_future()
            self._waiting.append(lambda: own.call_outside(_set, ended))
            await ended
        if self.error is not None:
            raise self.error
        return self.result


async def wait_until(world: World, at_s: float) -> None:
    """Wait for a time of the world, which may be over."""
    await asyncio.sleep(max(0.0, at_s - world.now_s))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Node:
    """A machine."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.name = world, name
        self.ip = f"10.0.{number >> 8}.{number & 255}"
        self.clock = Clock(world.scheduler, BEGIN_S)
        self.disk = SimDisk(self, world.folder / name)
        self.processes: list[Process] = []
        self.is_up = True
        self.boots = 0
        self._port = 40_000
        self._calls_left: int | None = None
        self._call_power = False

    @property
    def boot_id(self) -> str:
        """What /proc says of this run of the machine."""
        return f"{self.ip}-{self.boots}"

    def __repr__(self) -> str:
        return f"Node({self.name})"

    def next_port(self) -> int:
        self._port += 1
        return self._port

    def start(self, main: Main, name: str = "") -> Process:
        """Run a program; it is not waited for."""
        assert self.is_up, f"{self.name} is down"
        process = Process(self, name or getattr(main, "__name__", "main"))
        self.processes.append(process)
        process.start(main)
        return process

    async def run(self, main: Main) -> Any:
        """Run a program, return what it returned."""
        return await self.start(main).wait()

    # -- faults --------------------------------------------------------------------------------------------------

    def count_call(self) -> None:
        """Note a call of the system; it may be the last one."""
        if self._calls_left is None:
            return
        self._calls_left -= 1
        if self._calls_left <= 0:
            self._calls_left = None
            strand = loops.current_strand()
            self.power_loss() if self._call_power else self.kill()
            if strand is not None and strand.process.is_dead:
                strand.scheduler.give_way()

    def kill_at_call(self, count: int, *, power: bool = False) -> None:
        """Die at a system call, the next one with 1, never with 0; `power`: with all that is not synced."""
        self._calls_left, self._call_power = count or None, power

    def kill(self) -> None:
        """SIGKILL for all that runs here."""
        if self.processes:
            self.world.record("kill", node=self.name)
        self._end_all(silent=False)

    def power_loss(self) -> None:
        """Lose power: nobody is told, and the disk has what was synced. The machine is up again with `boot`."""
        if not self.is_up:
            return
        if not self.world.may_lose_power(self):
            self.kill()
            return
        self.world.record("power loss", node=self.name)
        self._end_all(silent=True)
        self.is_up = False
        self.disk.lose_power()

    def wipe(self) -> None:
        """Lose the disk too; nothing runs."""
        self._end_all(silent=False)
        self.disk.wipe()

    def boot(self) -> None:
        """Be up again."""
        if not self.is_up:
            self.is_up = True
            self.boots += 1

    def _end_all(self, *, silent: bool) -> None:
        self._calls_left = None
        for process in list(self.processes):
            process.end(silent=silent)
        forget_locks(self.disk.root)

    def halt(self) -> None:
        """SIGSTOP; packets wait."""
        self.world.record("halt", node=self.name)
        for process in self.processes:
            process.is_halted = True

    def go_on(self) -> None:
        """SIGCONT."""
        for process in self.processes:
            process.is_halted = False
            aside, process.set_aside = process.set_aside, []
            for strand in aside:
                strand.wake()


def mutated(drawn: list[Any], mutation: str) -> list[Any]:
    """Return a plan whose faults are moved, made longer or shorter, or done again; as it is without a mutation."""
    if not mutation or not all(isinstance(step, dict) and {"at", "seconds"} <= step.keys() for step in drawn):
        return drawn
    chance, found = random.Random(f"{mutation}/mutation"), []
    for step in drawn:
        found.append(step)
        if chance.random() < 0.4:
            at = max(0.0, round(step["at"] + chance.uniform(-1.5, 1.5), 3))
            moved = step | {"at": at, "seconds": round(step["seconds"] * chance.uniform(0.4, 2.0), 3)}
            if chance.random() < 0.7:
                found.pop()
            found.append(moved)
    return sorted(found, key=lambda step: float(step["at"]))


class World:
    """Everything of one seed. `folder`: for the disks, empty."""

    def __init__(self, seed: Any, folder: Path) -> None:
        # "7m3" is seed 7 with the faults of its plan moved by mutation 3.
        self.mutation = str(seed) if "m" in str(seed) and str(seed)[:1].isdigit() else ""
        seed = self.mutation.partition("m")[0] or seed
        self.seed, self.folder = seed, folder
        self.scheduler = Scheduler(seed)
        self.history: list[dict[str, Any]] = []
        self.logs: list[str] = []
        self.troubles: list[str] = []
        # What the cluster went through, counted.
        self.states: Counter[str] = Counter()
        # What is dead is not collected: its `finally` would run.
        self.keep: list[Any] = []
        # What of the plan is done, by its part; all of what is not named.
        self.only: dict[str, list[int]] = {}
        self.plan: dict[str, Any] = {}
        self.nodes: dict[str, Node] = {}
        self.by_ip: dict[str, Node] = {}
        self._pid = 1000
        # For a look at what two runs do not have in common.
        self.keep_packets = bool(os.environ.get("SIMULATION_PACKETS"))
        self.packets: list[str] = []
        self._packets = 0
        self._packets_sum = 0
        self.network = Network(self)
        # Whether a promise covers it; who draws faults says so. Else the processes are killed alone.
        self.may_lose_power: Callable[[Node], bool] = lambda node: True

    @property
    def now_s(self) -> float:
        """True seconds since the world began."""
        return self.scheduler.now_s

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def node(self, name: str) -> Node:
        """Return the machine of this name, made at its first mention."""
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = Node(self, name, len(self.nodes) + 1)
            self.by_ip[found.ip] = found
        return found

    def planned(self, part: str, drawn: list[Any]) -> list[Any]:
        """Note a part of the plan; returns what of it is to be done."""
        kept = self.only.get(part)
        drawn = self.plan[part] = mutated(drawn, self.mutation)
        return drawn if kept is None else [drawn[number] for number in kept if number < len(drawn)]

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Have something done at a time."""
        self.scheduler.at(when_s, call)

    def record(self, kind: str, **fields: Any) -> None:
        """Note one line of the history."""
        if kind in _STATES:
            self.states[_STATES[kind]] += 1
        self.history.append({"t": round(self.now_s, 6), "kind": kind, **fields})

    def trace(self, source: tuple[str, int], target: tuple[str, int], data: bytes) -> None:
        """Note what was sent to whom, and when."""
        self._packets += 1
        when = int(self.scheduler.now_s * 1e7) ^ source[1] << 16 ^ target[1]
        self._packets_sum = zlib.crc32(data, (self._packets_sum ^ when) & 0xFFFFFFFF)
        if self.keep_packets:
            self.packets.append(f"{self.scheduler.now_s:.9f} {source} {target} {data!r}")

    def unhandled(self, process: Process, context: dict[str, Any]) -> None:
        """Hear of an error that nobody took."""
        error = context.get("exception")
        self.troubles.append(f"{self.now_s:.3f} {process.node.name}: {context.get('message')} {error!r}")

    def digest(self) -> str:
        """Return what two runs of a seed have in common: all of it."""
        found = hashlib.sha256()
        for line in self.history:
            found.update(json.dumps(line, sort_keys=True, default=repr).encode())
        found.update(b"%d %.9f %d %d" % (self.scheduler.turns, self.now_s, self._packets, self._packets_sum))
        return found.hexdigest()

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, Any]], limit_s: float = LIMIT_S) -> Any:
        """Run a scenario in a machine of its own until it ends. Raises what it raises."""
        loops.set_scheduler(self.scheduler)
        process: Process

        async def main(node: Node) -> Any:
            return await scenario(self)

        process = self.node("operator").start(main, "scenario")
        process._waiting.append(self._stop)
        try:
            self.scheduler.run(limit_s)
        finally:
            loops.set_scheduler(None)
        if process.error is not None:
            raise process.error
        return process.result

    def _stop(self) -> None:
        self.scheduler.stopped = True
