"""Runs seeds: each in a child of this process, so that each begins with the same memory, and nothing is left of it.

python -m tests.simulation.run --scenario NAME --seed N
"""

from __future__ import annotations

# ruff: noqa: E402
from tests.simulation import replaced

replaced.replace_all()

import argparse
import gc
import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.simulation import disk
from tests.simulation.loop import current_process, number_objects
from tests.simulation.seeds import run_many
from tests.simulation.world import World

LONG = ("history", "logs", "packets")
# Whose scenarios tests ask for: read before children are made, so that none reads them.
OF_TESTS = ("failover", "flips", "group", "group_mutants", "mixed", "mutants", "parts.alone", "rack", "regressions")
OF_TESTS += ("grpc_users", "proxies", "table_flips", "tier_flips", "world_checks")
Scenario = Callable[[World], Coroutine[Any, Any, Any]]


def folder_of_disks() -> str | None:
    """Where disks are: in memory if possible."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# What a line of the log says that a cluster went through.
STATES = {
    "is master in epoch": "elections",
    "was slave": "slaves that became masters",
    "machine stopped before all was flushed": "masters that gave way after a power cut",
    "could be elected, and the others' logs be cut": "numbers given up",
    "are damaged, the first at": "damaged logs",
    "are mended with the master's": "stretches mended",
    "made anew from the log": "queues made anew",
    "cannot be flushed": "failed flushes",
    "holds less than it did": "replicas that hold less",
    "has no new master": "elections without a master",
    "was compacted": "queues compacted",
    "log files removed": "removals of old log files",
    "the second tier can be reached again": "failures of the second tier",
    "second tier is taken over": "second tiers taken over",
    "lite topics are removed": "removals of lite topics",
}


class _Lines(logging.Handler):
    def __init__(self, world: World, level: int) -> None:
        super().__init__()
        self.world = world
        self.told = level

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:
            text = str(record.msg)
        for mark, state in STATES.items():
            if mark in text:
                self.world.states[state] += 1
        if record.levelno < self.told:
            return
        process = current_process()
        where = process.node.name if process is not None else "-"
        self.world.logs.append(f"{self.world.now_s:10.4f} {where:12} {record.levelname[0]} {text}")
        if record.exc_info and record.exc_info[0] is not None:
            self.world.logs.append("".join(traceback.format_exception(*record.exc_info)))


_warm: list[Any] = []


def run_here(
    scenario: Scenario,
    seed: Any,
    *,
    level: int = logging.WARNING,
    limit_s: float = 3600.0,
    only: dict[str, list[int]] | None = None,
    keep: list[Any] | None = None,
) -> dict[str, Any]:
    """Run one seed in this process, which is of no use afterwards; returns what came of it."""
    gc.disable()
    replaced.begin(seed)
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=folder_of_disks()))
    # Paths are the same in each run, and so is the order of a set of them.
    os.chdir(folder)
    began = time.process_time()
    world = World(seed, Path("disks"))
    world.only = only or {}
    logger = logging.getLogger("rocketspark")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    lines = _Lines(world, level)
    logger.addHandler(lines)
    if keep is not None:
        keep.append(world)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    error, result = "", None
    try:
        result = world.run(scenario, limit_s)
    except BaseException as e:
        error = "".join(traceback.format_exception(e))
    logger.removeHandler(lines)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "seed": seed,
        "error": error,
        "result": result,
        "plan": world.plan,
        "digest": world.digest(),
        "simulated_s": world.now_s,
        "cpu_s": time.process_time() - began,
        "turns": world.scheduler.turns,
        "troubles": world.troubles,
        "states": world.states,
        "history": world.history,
        "logs": world.logs,
        "packets": world.packets,
    }


def run_seed(scenario: Scenario, seed: Any, *, brief: bool = False, **more: Any) -> dict[str, Any]:
    """Run one seed in a child. `brief`: without history and log if it went well."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            outcome = run_here(scenario, seed, **more)
            if brief and not outcome["error"]:
                outcome["history"] = outcome["logs"] = []
            with os.fdopen(write, "wb") as file:
                file.write(json.dumps(outcome, default=repr).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    if not content:
        return {"seed": seed, "error": "the child ended without a word", "digest": "", "simulated_s": 0, "cpu_s": 0}
    found: dict[str, Any] = json.loads(content)
    return found


def scenario_named(name: str) -> Scenario:
    """Return the coroutine function `name` of tests/simulation/scenarios.py, or module:name."""
    module, _, function = name.rpartition(":")
    found: Scenario = getattr(importlib.import_module(module or "tests.simulation.scenarios"), function)
    return found


def prepare() -> None:
    """Make ready for children: what they would all import, and do, once."""
    importlib.import_module("tests.simulation.nodes").install()
    importlib.import_module("tests.simulation.scenarios")
    disk.install()
    number_objects()
    here = os.getcwd()
    # What is made at the first use is made once, for all.
    warmed = run_here(importlib.import_module("tests.simulation.scenarios").pair, "warm", keep=_warm)
    assert not warmed["error"], warmed["error"]
    os.chdir(here)
    gc.freeze()


def run_named(name: str, seed: Any, **more: Any) -> dict[str, Any]:
    """Run one seed of a scenario by its name, without the history of one that went well."""
    return run_seed(scenario_named(name), seed, brief=True, **more)


def serve() -> int:
    """Run what each line asks for, [[scenario, seed], ...], and answer each seed with a line, until the input ends."""
    for module in OF_TESTS:
        importlib.import_module(f"tests.simulation.{module}")
    prepare()
    for line in sys.stdin:
        for name, seed in json.loads(line):
            show(run_seed(scenario_named(name), seed), 0, as_json=True)
    return 0


def _seed(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run")
    parser.add_argument("--scenario", default="single", help="of scenarios.py, or module:function")
    parser.add_argument(
        "--seed", type=_seed, action="append", help="one seed, or 7m3, a mutation of 7; may be repeated"
    )
    parser.add_argument("--each", action="append", default=[], help="SCENARIO@SEED, in place of both; may be repeated")
    parser.add_argument("--seeds", help="FIRST-LAST: many, of which those that fail are told")
    parser.add_argument("--cpu-seconds", type=float, default=0.0, help="begin no more after so much of a processor")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no more after so long")
    parser.add_argument("--steer", type=int, default=0, help="then so many mutations of each seed with a rare state")
    parser.add_argument("--shrink", action="store_true", help="leave out what a failure does not need")
    parser.add_argument("--only", action="append", default=[], help="PART=0,3: these steps of a part of the plan alone")
    parser.add_argument("--log", default="WARNING", help="the level of the log that is shown")
    parser.add_argument("--history", action="store_true", help="show log and history")
    parser.add_argument("--json", action="store_true", help="one line of JSON a seed")
    parser.add_argument("--serve", action="store_true", help="run what standard input asks for")
    wanted = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets are gone through in the same order everywhere.
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    if wanted.serve:
        return serve()
    pairs = [(wanted.scenario, seed) for seed in wanted.seed or [1]]
    if wanted.each:
        pairs = [(name, int(seed)) for name, _, seed in (each.rpartition("@") for each in wanted.each)]
    scenarios = {name: scenario_named(name) for name, _ in pairs}
    prepare()
    if wanted.seeds:
        first, _, last = wanted.seeds.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        tally = run_many(
            run_named,
            wanted.scenario,
            numbers,
            limit_s=wanted.cpu_seconds,
            wall_s=wanted.seconds,
            shrinks=wanted.shrink,
            steered=wanted.steer,
        )
        print(tally.text())
        return 1 if tally.failed else 0
    only = {part: [int(n) for n in kept.split(",") if n] for part, _, kept in (o.partition("=") for o in wanted.only)}
    failed = 0
    for number, (name, seed) in enumerate(pairs):
        outcome = run_seed(scenarios[name], seed, level=getattr(logging, wanted.log), only=only)
        failed += bool(outcome["error"])
        show(outcome, number, as_json=wanted.json, with_history=wanted.history)
    return 1 if failed else 0


def show(outcome: dict[str, Any], number: int, *, as_json: bool, with_history: bool = False) -> None:
    """Print what came of a seed."""
    if packets := outcome.pop("packets", None):
        Path(os.environ["SIMULATION_PACKETS"]).with_suffix(f".{number}").write_text("\n".join(packets))
    if as_json:
        print(json.dumps({name: value for name, value in outcome.items() if name not in LONG}), flush=True)
        return
    lines = []
    if with_history:
        told = [(line["t"], " ".join(f"{k}={v}" for k, v in line.items() if k != "t")) for line in outcome["history"]]
        lines = [f"{at:10.4f} {'-':12} - {text}" for at, text in told]
        # Log and history by time; of the same time the log first.
        lines = sorted(outcome["logs"] + lines, key=lambda line: (line[:10], line[10:24] == " -"))
    for line in [*lines, outcome["error"], *outcome.get("troubles", [])]:
        if line:
            print(line)
    for part, steps in outcome.get("plan", {}).items():
        print(f"{part}:", *(steps if isinstance(steps, list) else [steps]), sep="\n  ")
    print({name: value for name, value in outcome.items() if name not in (*LONG, "error", "troubles", "plan")})


if __name__ == "__main__":
    sys.exit(main())
