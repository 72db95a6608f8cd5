"""Many seeds, and what to do with one that fails: say what repeats it, and leave out what it does not need.

python -m tests.simulation.run --scenario failover --seeds 1-300 [--shrink]
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Run = Callable[..., dict[str, Any]]


def line_of(scenario: str, seed: Any, only: dict[str, list[int]]) -> str:
    """Return the line that repeats a seed."""
    kept = "".join(f" --only {part}={','.join(map(str, numbers))}" for part, numbers in only.items())
    return f"python -m tests.simulation.run --scenario {scenario} --seed {seed}{kept} --history"


def kind_of(error: str) -> str:
    """Return what two failures have in common: the error's class, and its text without numbers."""
    last = error.strip().splitlines()[-1] if error.strip() else ""
    return re.sub(r"\d+", "0", last)[:60]


def shrink(run: Run, scenario: str, seed: Any, failed: dict[str, Any], runs_max: int = 200) -> dict[str, list[int]]:
    """Return which steps of the plan are enough for a failure of the same kind."""
    wanted = kind_of(failed["error"])
    parts = {name: list(range(len(steps))) for name, steps in failed["plan"].items() if isinstance(steps, list)}
    only = dict(parts)
    left = runs_max

    def fails(tried: dict[str, list[int]]) -> bool:
        nonlocal left
        left -= 1
        return kind_of(run(scenario, seed, only=tried)["error"]) == wanted

    for name in parts:
        size = max(len(only[name]) // 2, 1)
        while size and left > 0:
            at, progress = 0, False
            while at < len(only[name]) and left > 0:
                tried = only | {name: only[name][:at] + only[name][at + size :]}
                if fails(tried):
                    only, progress = tried, True
                else:
                    at += size
            if not progress or size > len(only[name]):
                size //= 2
    return only


class Tally:
    """What came of many seeds."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.count = 0
        self.simulated_s = self.cpu_s = 0.0
        self.began_s = time.time()
        self.failed: list[dict[str, Any]] = []
        self.states: Counter[str] = Counter()
        # By state: the seeds that reached it.
        self.reached: dict[str, list[Any]] = {}

    def rare(self) -> dict[str, list[Any]]:
        """Return the states that at most one of ten seeds reached, with these seeds."""
        return {state: seeds for state, seeds in self.reached.items() if len(seeds) * 10 <= self.count}

    def take(self, outcome: dict[str, Any]) -> None:
        self.count += 1
        self.simulated_s += outcome.get("simulated_s", 0)
        self.cpu_s += outcome.get("cpu_s", 0)
        if outcome["error"]:
            self.failed.append(outcome)
        self.states.update(outcome.get("states", {}))
        for state in outcome.get("states", {}):
            self.reached.setdefault(state, []).append(outcome["seed"])

    def text(self) -> str:
        """Return the figures."""
        wall_s = max(time.time() - self.began_s, 0.001)
        cpu_s = max(self.cpu_s, 0.001)
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return (
            f"{self.scenario}: {self.count} seeds, {len(self.failed)} failed, in {wall_s:.0f} s"
            f" ({self.cpu_s:.0f} s of processor): {self.count / wall_s * 3600:.0f} seeds an hour,"
            f" {self.simulated_s / cpu_s:.0f} simulated minutes a minute of one core\n  {states}"
            + "".join(f"\n  rare: {state}: seeds {seeds[:5]}" for state, seeds in sorted(self.rare().items()))
        )


def _steered(seeds: Iterable[Any], tally: Tally, count: int) -> Iterator[Any]:
    yield from seeds
    if count:
        for seed in dict.fromkeys(seed for found in tally.rare().values() for seed in found):
            for number in range(count):
                yield f"{seed}m{number}"


def run_many(
    run: Run,
    scenario: str,
    seeds: Iterable[Any],
    *,
    limit_s: float = 0.0,
    wall_s: float = 0.0,
    shrinks: bool = False,
    steered: int = 0,
) -> Tally:
    """Run seeds, print each that fails with the line that repeats it.

    `limit_s`: begin no more after so much of a processor; `wall_s`: after so long. `steered`: then so many mutations of
    each seed that reached a rare state.
    """
    tally = Tally(scenario)
    for seed in _steered(seeds, tally, steered):
        if (limit_s and tally.cpu_s > limit_s) or (wall_s and time.time() - tally.began_s > wall_s):
            break
        outcome = run(scenario, seed)
        tally.take(outcome)
        if outcome["error"]:
            only: dict[str, list[int]] = shrink(run, scenario, seed, outcome) if shrinks else {}
            print(
                f"seed {seed}: {outcome['error'].strip().splitlines()[-1][:400]}\n  {line_of(scenario, seed, only)}",
                flush=True,
            )
            for name, numbers in only.items():
                for number in numbers:
                    print(f"    {name} {number}: {outcome['plan'][name][number]}")
    return tally
