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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import java_client
from bench.allocations import NotCounted, bytes_each
from bench.fill import create_topic, fill
from bench.intended import Result
from bench.peers import Servers, both, cpu_seconds, end_rows
from bench.plan import Plan
from bench.report import Figure, Row, progress, rates_row, show, values_row

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
    a round and of the first one, which is not counted; `measures`: what of the answer is shown.
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
    many = Case((("sync send, 64 threads", "sync"),), "sync", SEND_TOPIC, seconds, 1.5 * seconds, 64)
    found["sync64"] = many._replace(measures=("rate", "p99_us"))
    for window in (256, 1000):
        ways: tuple[tuple[str, str], ...]
        ways = ((f"async send, {window} in flight", "async"), (f"send_future, {window} in flight", "future"))
        if window == 1000:
            ways += (("keyed send, 1000 in flight", "keyed"),)
        found[f"async{window}"] = Case(ways, "async", SEND_TOPIC, seconds, 1.5 * seconds, window)
    ways = (
        ("auto-batch, 1000 in flight", "batch"),
        ("auto-batch, send_future", "batch-future"),
        ("auto-batch, keyed", "batch-keyed"),
    )
    found["batch"] = Case(ways, "batch", SEND_TOPIC, seconds, 1.5 * seconds, 1000)
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
        self._command = command
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.pid = self._process.pid

    def round_of(self, amount: float, server_pid: int) -> Result:
        """Measure one round, with the processor seconds that it took the client and its server."""
        server_s, client_s = cpu_seconds(server_pid), cpu_seconds(self.pid)
        result = self.round(amount)
        return result | {
            "server_cpu_s": cpu_seconds(server_pid) - server_s,
            "client_cpu_s": cpu_seconds(self.pid) - client_s,
        }

    def note_bytes(self, amount: float, results: list[Result]) -> None:
        """Note in the results of rounds how many bytes such a client asked for, as bench.allocations counts them."""
        progress(f"{self._name}: allocations")
        try:
            found = bytes_each(self._command, self._log_path.with_suffix(".allocations"), amount / 5, amount)
        except NotCounted as e:
            print(f"  {self._name}: allocations were not counted: {e}", flush=True)
            return
        for result in results if found is not None else ():
            result["allocated"] = found * result["count"]

    def round(self, amount: float) -> Result:
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
        result: Result = json.loads(line)
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


def measure(
    case: Case, mine: Servers, java: Servers | None, folder: Path, runs: int, cross: bool, count_bytes: bool = True
) -> list[Row]:
    """One case: every way in turn, `runs` times; without the Java client where there is none of its brokers."""
    with ExitStack() as stack:
        window = str(case.window)
        clients: dict[str, Client] = {}
        for name, way in case.rows:
            command = [sys.executable, "-m", "bench.perf", mine.namesrv, case.topic, way, window]
            clients[name] = stack.enter_context(client(name, command, folder))
        if java is not None:
            command = java_client.command(folder, java.namesrv, case.topic, case.java, window)
            clients[JAVA] = stack.enter_context(client("the Java client", command, folder))
        on_ours = "  Java client on our broker"
        if cross:
            command = java_client.command(folder, mine.namesrv, case.topic, case.java, window)
            clients[on_ours] = stack.enter_context(client(on_ours.strip(), command, folder))
        for name, each in clients.items():
            progress(f"{case.topic}: first round, {name.strip()}")
            each.round(case.first)
        results: dict[str, list[Result]] = {name: [] for name in clients}
        for number in range(runs):
            for name, each in clients.items():
                progress(f"{case.topic}: round {number + 1} of {runs}, {name.strip()}")
                server = java if name == JAVA and java is not None else mine
                results[name].append(each.round_of(case.amount, server.pid))
        if count_bytes:
            for name, _ in case.rows:
                clients[name].note_bytes(case.amount, results[name])
    ways = [result_rows(name, case.measures, results[name], results.get(JAVA)) for name in clients if name != JAVA]
    # Measure by measure.
    return [row for of_measure in zip(*ways, strict=True) for row in of_measure]


def result_row(name: str, what: str, results: list[Result], peers: list[Result] | None) -> Row:
    """The row of one measure of the rounds of ours and of the peer; None: there is no peer."""
    rounds = list(zip(results, peers or [None] * len(results), strict=True))
    if what == "rate":
        return rates_row(name, "msg/s", [(_figure(r), _figure(p) if p else None) for r, p in rounds])
    unit, label = {
        "first_ms": ("ms", ": first message"),
        "p50_us": ("us", ": p50"),
        "p99_us": ("us", ": p99"),
        "p999_us": ("us", ": p99.9"),
    }[what]
    return values_row(name + label, unit, [(r[what], p[what] if p else None) for r, p in rounds], less_is_better=True)


def result_rows(name: str, measures: tuple[str, ...], results: list[Result], peers: list[Result] | None) -> list[Row]:
    """The rows of a way's measures; the first has what a message cost."""
    first, *others = [result_row(name, what, results, peers) for what in measures]
    theirs = peers or []
    first = first._replace(
        us_each=each_of(results, "server_cpu_s", 1e6),
        peer_us_each=each_of(theirs, "server_cpu_s", 1e6),
        client_us=each_of(results, "client_cpu_s", 1e6),
        peer_client_us=each_of(theirs, "client_cpu_s", 1e6),
        client_bytes=each_of(results, "allocated"),
        peer_client_bytes=each_of(theirs, "allocated"),
    )
    return [first, *others]


def each_of(results: Sequence[Result], what: str, factor: float = 1.0) -> float | None:
    """The median of what the rounds that tell it took of it for each message; None if none does."""
    found = [factor * r[what] / r["count"] for r in results if what in r and r["count"]]
    return statistics.median(found) if found else None


def _figure(result: Result) -> Figure:
    # The processor seconds are of the whole round, the start and the end of the client included.
    return Figure(int(result["count"]), result["seconds"], result["server_cpu_s"])


def run(plan: Plan) -> list[Row]:
    """Every case at the plan's sizes. There is no part without the Java client."""
    # The part `consume` has the Java client's consuming from both brokers.
    with_cross = () if plan.size != "full" else ("sync", "sync64", "async256", "async1000", "batch", "latency")
    return measure_all(
        plan.rounds(),
        consume_count=plan.of(CONSUME_COUNT, 100_000, 1000),
        seconds=plan.of(1.0, 0.5, 0.05),
        latency_count=plan.of(1000, 300, 20),
        cross=with_cross,
        count_bytes=plan.size == "full",
    )


def measure_all(
    runs: int = 3,
    only: tuple[str, ...] = (),
    *,
    consume_count: int = CONSUME_COUNT,
    seconds: float = SEND_S,
    latency_count: int = LATENCY_COUNT,
    cross: tuple[str, ...] = (),
    count_bytes: bool = True,
) -> list[Row]:
    """Every case, or those of `only`: one row for each of our ways, the Java pair beside it.

    `cross`: the cases in which the Java client on our broker is measured too; `count_bytes`: what our clients allocate.
    """
    rows: list[Row] = []
    java_client.compiled()
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-client-") as temporary, both(False) as (mine, java):
        assert java is not None
        for name, case in cases(consume_count, seconds, latency_count).items():
            if only and name not in only:
                continue
            for servers in (mine, java):
                progress(f"{case.topic}: topic")
                if name == "consume":
                    fill(servers.broker, case.topic, consume_count, queues=QUEUES)
                else:
                    create_topic(servers.broker, case.topic, QUEUES)
            folder = Path(temporary) / name
            folder.mkdir()
            found = measure(case, mine, java, folder, runs, name in cross, count_bytes)
            show(found, heading=not rows)
            rows += found
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends


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
    measure_all(
        a.runs,
        tuple(a.cases),
        consume_count=a.consume,
        seconds=a.seconds,
        latency_count=a.latency,
        cross=() if a.no_cross else tuple(names),
    )


if __name__ == "__main__":
    main()
