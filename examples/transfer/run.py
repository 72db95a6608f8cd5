"""Transfers between two banks while their processes and the server are killed: money is neither lost nor made.

python -m examples.transfer.run [--transfers 300] [--kills 8] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from examples.transfer.banks import PayingBank, ReceivingBank
from examples.transfer.steps import TOPIC, transfers
from rocketspark.admin.operations import Admin
from rocketspark.testing import ServerProcess, run_server_process

ROOT = Path(__file__).resolve().parents[2]
PAYERS = {f"payer-{n}": 500_000 for n in range(3)}
PAYEES = {f"payee-{n}": 0 for n in range(5)}
# Dead letters and checks after seconds instead of minutes.
CONFIG = {
    "messageDelayLevel": " ".join(["1s"] * 18),
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 500,
    # A message is put aside after so many checks: at this pace 15 would be over before a process is back.
    "transactionCheckMax": 10_000,
}
STEPS = ("pay", "credit", "refund")


class Step:
    """A process of the example, and its successors after kills."""

    def __init__(self, name: str, namesrv: str, folder: Path, count: int) -> None:
        self._command = [sys.executable, "-m", "examples.transfer.steps", name, namesrv, str(folder), str(count)]
        self._log = (folder / f"{name}.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self.restart()

    def restart(self) -> None:
        """Start it, after `kill`."""
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=self._log)

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is said."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it."""
        self.kill()
        self._log.close()


def show(folder: Path, count: int, kills: int, seed: int, say: Callable[[str], None] = print) -> dict[str, object]:
    """Run it in an empty folder; returns what came out, once every transfer is settled.

    Raises TimeoutError if it is not within two minutes.
    """
    chance = random.Random(seed)
    paying, receiving = PayingBank(folder / "paying.db"), ReceivingBank(folder / "receiving.db")
    paying.open(PAYERS)
    receiving.open(PAYEES)
    with ExitStack() as running:
        server = running.enter_context(run_server_process(folder / "store", config=CONFIG))
        with Admin(server.namesrv) as operations:
            operations.create_topic(TOPIC, queue_count=4)
        processes: dict[str, Step | ServerProcess] = {"server": server}
        for name in STEPS:
            step = Step(name, server.namesrv, folder, count)
            running.callback(step.close)
            processes[name] = step
        # Each is killed once, then whichever comes; never so soon that nothing was done in between.
        victims = [*processes, *chance.choices(list(processes), k=kills)][:kills]
        chance.shuffle(victims)
        for number, name in enumerate(victims, 1):
            wait_until(partial(has_made, paying, number * count // (kills + 1)))
            processes[name].kill()
            say(f"{len(paying.made())} of {count} transfers made: {name} is killed")
            processes[name].restart()

        def is_settled() -> bool:
            states = receiving.states()
            refused = {id for id, state in states.items() if state == "refused"}
            return len(states) == count and refused == paying.refunded()

        wait_until(is_settled)
        return {
            "states": dict(Counter(receiving.states().values())),
            "refunds": len(paying.refunded()),
            "money": paying.total() + receiving.total(),
            "received": receiving.total(),
        }


def expected(count: int) -> dict[str, object]:
    """What has to come out."""
    *payable, _too_much = transfers(count)
    good = [t.cents for t in payable if t.target in PAYEES]
    refused = count - len(good)
    return {
        "states": {"credited": len(good), "refused": refused},
        "refunds": refused,
        "money": sum(PAYERS.values()),
        "received": sum(good),
    }


def has_made(bank: PayingBank, count: int) -> bool:
    """Whether so many transfers are debited."""
    return len(bank.made()) >= count


def wait_until(condition: Callable[[], bool], limit_s: float = 120) -> None:
    """Look at the databases until it is so."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not settled within {limit_s:.0f} s; the folder's .log files may tell why")
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=300)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = show(Path(folder), given.transfers, given.kills, given.seed)
    print(found)
    if found != expected(given.transfers):
        print(f"WRONG, expected: {expected(given.transfers)}")
        return 1
    print("Every transfer was made once: no money was lost or made.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
