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
import itertools
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
from tests.simulation.world import World

LONG = ("history", "logs", "packets")
Scenario = Callable[[World], Coroutine[Any, Any, Any]]


def folder_of_disks() -> str | None:
    """Where disks are: in memory if possible."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _Lines(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        from tests.simulation.loop import current_process

        process = current_process()
        where = process.node.name if process is not None else "-"
        try:
            text = record.getMessage()
        except Exception:
            text = record.msg
        self.world.logs.append(f"{self.world.now_s:10.4f} {where:12} {record.levelname[0]} {text}")
        if record.exc_info and record.exc_info[0] is not None:
            self.world.logs.append("".join(traceback.format_exception(*record.exc_info)))


def run_here(scenario: Scenario, seed: Any, *, level: int = logging.WARNING, limit_s: float = 3600.0) -> dict[str, Any]:
    """Run one seed in this process, which is of no use afterwards; returns what came of it."""
    gc.disable()
    replaced.begin(seed)
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=folder_of_disks()))
    # Paths are the same in each run, and so is the order of a set of them.
    os.chdir(folder)
    began = time.process_time()
    world = World(seed, Path("disks"))
    logger = logging.getLogger("rocketspark")
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Lines(world))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    error, result = "", None
    try:
        result = world.run(scenario, limit_s)
    except BaseException as e:
        error = "".join(traceback.format_exception(e))
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "seed": seed,
        "error": error,
        "result": result,
        "digest": world.digest(),
        "simulated_s": world.now_s,
        "cpu_s": time.process_time() - began,
        "turns": world.scheduler.turns,
        "troubles": world.troubles,
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
    importlib.import_module("tests.simulation.nodes")
    importlib.import_module("tests.simulation.scenarios")
    disk.install()
    gc.collect()
    gc.freeze()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", default="single")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--log", default="WARNING")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets are gone through in the same order everywhere.
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    scenario = scenario_named(wanted.scenario)
    prepare()
    failed, numbers = 0, itertools.count()
    for seed in wanted.seed or [1]:
        outcome = run_seed(scenario, seed, level=getattr(logging, wanted.log))
        if packets := outcome.pop("packets", None):
            Path(os.environ["SIMULATION_PACKETS"]).with_suffix(f".{next(numbers)}").write_text("\n".join(packets))
        if wanted.json:
            print(
                json.dumps(
                    {name: value for name, value in outcome.items() if name not in ("history", "logs", "packets")}
                )
            )
            continue
        if wanted.history or outcome["error"]:
            for line in outcome.pop("logs", []):
                print(line)
        if wanted.history:
            for line in outcome.get("history", []):
                print(line)
        failed += bool(outcome["error"])
        for line in [outcome["error"], *outcome.get("troubles", [])]:
            if line:
                print(line)
        print({k: v for k, v in outcome.items() if k not in ("history", "logs", "error", "troubles")})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
