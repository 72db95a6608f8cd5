"""Our client on our broker beside the Java client on the Java broker: each client and each broker is one process.

Each case starts its clients, gives each a round that is not counted, then measures them in turn; ratios are medians
of the rounds' own. The Java client on our broker stands below, where it tells whose part is whose.
"""

from __future__ import annotations

import argparse
import json
import selectors
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import java_client
from bench.fill import create_topic, fill
from bench.peers import Servers, apache, ours
from bench.report import Row, show

QUEUES = 8
CONSUME_COUNT = 1_000_000
LATENCY_COUNT = 1500
SEND_S = 2.0
START_S_MAX = 60.0
ROUND_S_MAX = 150.0
JAVA = "java"
CONSUME_TOPIC, LATENCY_TOPIC, SEND_TOPIC = "bench-consume", "bench-latency", "bench-send"


class Case(NamedTuple):
    """What is measured.

    `rows`: the shown name of each of our ways with its case of bench.perf; `java`: the case of Perf.java; `amount` of
    a round and of the first one, which is not counted; `measure`: what of the answer is shown.
    """

    rows: tuple[tuple[str, str], ...]
    java: str
    topic: str
    amount: float
    first: float
    window: int = 1
    measures: tuple[str, ...] = ("rate",)


def cases(consume_count: int, seconds: float, latency_count: int) -> dict[str, Case]:
    """All cases, by the name they are asked for."""
    found = {"sync": Case((("sync send", "sync"), ("await send", "await")), "sync", SEND_TOPIC, seconds, 1.5 * seconds)}
    for window in (256, 1000):
        ways = ((f"async send, {window} in flight", "async"), (f"send_future, {window} in flight", "future"))
        found[f"async{window}"] = Case(ways, "async", SEND_TOPIC, seconds, 1.5 * seconds, window)
    ways = (("push consume", "consume"), ("push consume, coroutine listener", "consume-async"))
    # A fifth of the topic lets the JIT see enough.
    found["consume"] = Case(
        ways, "consume", CONSUME_TOPIC, consume_count, consume_count // 5, measures=("rate", "first_ms")
    )
    ways = (("send to listener", "latency"), ("send to listener, asyncio", "latency-async"))
    found["latency"] = Case(
        ways, "latency", LATENCY_TOPIC, latency_count, 2 * latency_count, measures=("p50_us", "p99_us")
    )
    return found


class Client:
    """A client process that measures one round per line. Raises SystemExit, naming it, if it fails or is too slow."""

    def __init__(self, name: str, command: list[str], log_path: Path) -> None:
        self._name = name
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def round(self, amount: float) -> dict[str, float]:
        """Measure one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(b"%f\n" % amount)
            self._process.stdin.flush()
        except OSError:
            self._fail("ended")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(ROUND_S_MAX):
                self._fail(f"gave no result within {ROUND_S_MAX:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._fail("ended")
        result: dict[str, float] = json.loads(line)
        if result.get("failed"):
            print(f"  {self._name}: {result['failed']:.0f} sends failed, not counted", flush=True)
        if "seconds" in result:
            result["rate"] = result["count"] / result["seconds"]
        return result

    def _fail(self, how: str) -> None:
        text = self._log_path.read_text(errors="replace")[-2000:]
        raise SystemExit(f"{self._name} {how}\n{text}")

    def close(self) -> None:
        """End it: by end of input, else by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._process.stdout.close()


@contextmanager
def client(name: str, command: list[str], folder: Path) -> Iterator[Client]:
    """A client for the length of a `with` block."""
    process = Client(name, command, folder / "client.log")
    try:
        yield process
    finally:
        process.close()


def measure(case: Case, mine: Servers, java: Servers, folder: Path, runs: int, cross: bool) -> list[Row]:
    """One case: every way in turn, `runs` times."""
    with ExitStack() as stack:
        window = str(case.window)
        clients: dict[str, Client] = {}
        for name, way in case.rows:
            command = [sys.executable, "-m", "bench.perf", mine.namesrv, case.topic, way, window]
            clients[name] = stack.enter_context(client(name, command, folder))
        command = java_client.command(folder, java.namesrv, case.topic, case.java, window)
        clients[JAVA] = stack.enter_context(client("the Java client", command, folder))
        on_ours = "  Java client on our broker"
        if cross:
            command = java_client.command(folder, mine.namesrv, case.topic, case.java, window)
            clients[on_ours] = stack.enter_context(client(on_ours.strip(), command, folder))
        for each in clients.values():
            each.round(case.first)
        results: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
        for _ in range(runs):
            for name, each in clients.items():
                results[name].append(each.round(case.amount))
    rows = []
    for what in case.measures:
        for name in clients:
            if name != JAVA:
                rows.append(_row(name, what, results[name], results[JAVA]))
    return rows


def _row(name: str, what: str, results: list[dict[str, float]], java: list[dict[str, float]]) -> Row:
    pairs = [(r[what], j[what]) for r, j in zip(results, java, strict=True)]
    unit, label, slower = {
        "rate": ("msg/s", "", False),
        "first_ms": ("ms", ": first message", True),
        "p50_us": ("us", ": p50", True),
        "p99_us": ("us", ": p99", True),
    }[what]
    return Row(
        name + label,
        statistics.median(p[0] for p in pairs),
        statistics.median(p[1] for p in pairs),
        unit,
        statistics.median(p[1] / p[0] if slower else p[0] / p[1] for p in pairs),
    )


def run(
    runs: int = 3,
    only: tuple[str, ...] = (),
    consume_count: int = CONSUME_COUNT,
    seconds: float = SEND_S,
    latency_count: int = LATENCY_COUNT,
    cross: bool = True,
) -> list[Row]:
    """Every case, or those of `only`: one row for each of our ways, the Java pair beside it."""
    rows: list[Row] = []
    java_client.compiled()
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-client-") as temporary, ours() as mine, apache() as java:
        for name, case in cases(consume_count, seconds, latency_count).items():
            if only and name not in only:
                continue
            for servers in (mine, java):
                if name == "consume":
                    fill(servers.broker, case.topic, consume_count, queues=QUEUES)
                else:
                    create_topic(servers.broker, case.topic, QUEUES)
            folder = Path(temporary) / name
            folder.mkdir()
            found = measure(case, mine, java, folder, runs, cross)
            show(found, heading=not rows)
            rows += found
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    names = cases(0, 0, 0)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(names))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SEND_S, help="of each round of sends")
    parser.add_argument("--consume", type=int, default=CONSUME_COUNT, metavar="COUNT", help="messages to consume")
    parser.add_argument("--latency", type=int, default=LATENCY_COUNT, metavar="COUNT", help="messages to time")
    parser.add_argument("--no-cross", action="store_true", help="leave out the Java client on our broker")
    a = parser.parse_args()
    unknown = [c for c in a.cases if c not in names]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(names)}")
    run(a.runs, tuple(a.cases), a.consume, a.seconds, a.latency, not a.no_cross)


if __name__ == "__main__":
    main()
