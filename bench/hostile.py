"""A client that sends and pulls 200 times a second while attackers of a stated rate, kinds mixed, work beside it.

Stretches that are quiet, attacked, and with the attackers at work on a listener of their own take turns on one broker;
aim: the p99 of the attacked ones within 2 of the quiet ones.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import raw_send, stretches
from bench.attackers import TOPIC
from bench.fill import create_topic
from bench.load import connect
from bench.peers import Servers, cpu_seconds, end_rows, ours, stop
from bench.plan import Plan
from bench.report import Row, percentile, progress, show
from rocketspark.cli.serving.serve import GC_THRESHOLDS
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import plain_pull
from rocketspark.transport.request_frames import request

ROOT = Path(__file__).resolve().parents[1]
ATTACKS_PER_S = 200
ROUNDS_PER_S = 200
LIMIT_S = 30.0
QUEUE = 1


class Normal:
    """The other client: one connection, one message sent and pulled again in each round."""

    def __init__(self, servers: Servers) -> None:
        self._socket = connect(servers.broker)
        self._socket.settimeout(LIMIT_S)
        self._offset = 0

    def stretch(self, seconds: float) -> tuple[list[float], list[float]]:
        """Rounds for so long: us of each send and of each pull."""
        sends, pulls = [], []
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            sends.append(self._ask(raw_send.frame(TOPIC, QUEUE, b"x" * 128, f"{time.time_ns():032X}", 1)))
            pulls.append(self._ask(pull_frame(self._offset)))
            self._offset += 1
            time.sleep(max(now + 1 / ROUNDS_PER_S - time.perf_counter(), 0.0))
        return sends, pulls

    def _ask(self, frame: bytes) -> float:
        began = time.perf_counter()
        self._socket.sendall(frame)
        head = self._received(4)
        if b'"code":0,' not in self._received(int.from_bytes(head, "big")):
            raise ConnectionError("the broker refused a request of the client beside the attackers")
        return (time.perf_counter() - began) * 1e6

    def _received(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("the broker closed the connection of the client beside the attackers")
        return data

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def pull_frame(offset: int) -> bytes:
    """A pull of the message that was just sent."""
    header = plain_pull("bench-normal", TOPIC, QUEUE, offset, 1)
    return request(RequestCode.PULL_MESSAGE, header, opaque=1, language="JAVA")


@contextmanager
def attackers(servers: Servers, rate: float) -> Iterator[subprocess.Popen[str]]:
    """The process of the attackers."""
    command = [sys.executable, "-m", "bench.attackers", servers.broker, str(rate)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        stop(process)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def run(plan: Plan) -> list[Row]:
    """The p99 of sends and pulls, quiet and attacked, and how far apart they are."""
    seconds, rounds = plan.of(3.0, 1.0, 0.1), plan.rounds(5)
    rate = plan.of(ATTACKS_PER_S, ATTACKS_PER_S, 50)
    found: dict[str, tuple[list[float], list[float]]] = {whom: ([], []) for whom in ("quiet", "elsewhere", "broker")}
    made, cpu_s, rows = 0, 0.0, []
    with ours(config=plan.config) as mine, attackers(mine, rate) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        create_topic(mine.broker, TOPIC, 4)
        normal = Normal(mine)
        normal.stretch(min(seconds, 1.0))
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            for whom, kept in found.items():
                before_s = cpu_seconds(mine.pid)
                if whom != "quiet":
                    print(whom, seconds, file=process.stdin, flush=True)
                for values, taken in zip(kept, normal.stretch(seconds), strict=True):
                    values += taken
                count = int(process.stdout.readline()) if whom != "quiet" else 0
                if whom == "broker":
                    made, cpu_s = made + count, cpu_s + cpu_seconds(mine.pid) - before_s
        for beside, text in (("quiet", "quiet"), ("elsewhere", "attacks elsewhere")):
            for what, q, a in zip(("send", "pull"), found[beside], found["broker"], strict=True):
                for share, name in ((0.5, "median"), (0.99, "p99")):
                    pair = percentile(a, share), percentile(q, share)
                    rows.append(Row(f"{what}, {name}: attacked, and {text}", *pair, "us", pair[1] / pair[0]))
        rows.append(Row("attacks, 11 kinds mixed", made / (rounds * seconds), None, "/s"))
        rows.append(Row("  processor time under attack", cpu_s / (rounds * seconds) * 1000, None, "ms/s"))
        normal.close()
        rows += end_rows(mine, None)
    show(rows, peer="beside")
    longest = stretch_rows(plan)
    show(longest, peer="beside")
    return rows + longest


def stretch_rows(plan: Plan) -> list[Row]:
    """How long the largest request of each kind holds the broker's loop, in a broker of this process."""
    kinds = plan.of(stretches.KINDS, stretches.KINDS, (stretches.queue_locks,))
    turns = stretches.Turns()

    async def measured(address: str) -> list[Row]:
        found = []
        async for asked, code, cost_s in turns.each(address, kinds):
            found.append(Row(f"longest turn, {asked.name}: code {code}", cost_s * 1000, None, "ms"))
        return found

    thresholds, old = gc.get_threshold(), logging.root.manager.disable
    gc.collect()
    gc.freeze()
    # As `rocketspark broker` has it, and without lines for what the requests ask.
    gc.set_threshold(*GC_THRESHOLDS)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder, turns.served(Path(folder)) as address:
            return asyncio.run(measured(address))
    finally:
        logging.disable(old)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
