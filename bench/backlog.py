"""A backlog of 10 M messages on our broker: written as batches, then pulled where it begins, in its middle, at its end.

Each is measured beside a broker that holds only a few messages, in turn: a ratio of 1 means that depth costs nothing.
Alone: python -m bench.backlog --count 20000000
"""

from __future__ import annotations

import argparse
from functools import partial

from bench import raw_send
from bench.fill import create_topic
from bench.load import Load, Stream, pump
from bench.measure import compare, figure
from bench.peers import Servers, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.raw_pull import PULL_COUNT, frames, run_one
from bench.report import Row, progress, rates_row, show, values_row

COUNT = 10_000_000
FRESH_COUNT = 200_000
QUEUES = 8
BATCH_COUNT = 500
WINDOW = 16
STEPS = 10
TOPIC = "bench-backlog"


def write(servers: Servers, stream: Stream, batch_count: int) -> Load:
    """So many batches, all of them stored."""
    load = pump(servers.broker, stream, window=4, count_max=batch_count)
    if load.busy:
        raise ConnectionError(f"{servers.broker} was too busy for {load.busy} batches; the backlog has gaps")
    return load._replace(done=load.done * BATCH_COUNT)


def run(plan: Plan) -> list[Row]:
    """Ours alone."""
    return measure(
        plan.of(COUNT, 1_000_000, 40_000),
        plan.rounds(),
        plan.of(2.0, 0.5, 0.05),
        plan.of(FRESH_COUNT, FRESH_COUNT, 16_000),
    )


def measure(count: int, runs: int, seconds: float, fresh_count: int = FRESH_COUNT) -> list[Row]:
    """With `count` messages."""
    turn = QUEUES * BATCH_COUNT
    per_queue = max(count // turn // STEPS, 1) * STEPS * BATCH_COUNT
    count = per_queue * QUEUES
    fresh_per_queue = max(fresh_count // turn, 1) * BATCH_COUNT
    stream = raw_send.batches(TOPIC, 128, BATCH_COUNT, QUEUES)
    rows: list[Row] = []
    with ours() as mine, ours() as fresh:
        for servers in (mine, fresh):
            create_topic(servers.broker, TOPIC, QUEUES)
        write(fresh, stream, fresh_per_queue * QUEUES // BATCH_COUNT)
        figures = []
        for step in range(STEPS):
            progress(f"writing {count:,} messages: {step * 100 // STEPS} %")
            act = partial(write, stream=stream, batch_count=count // BATCH_COUNT // STEPS)
            figures.append(figure(mine, act))
        rows += [
            rates_row(f"written in batches of {BATCH_COUNT}: {text}", "msg/s", [(f, None) for f in part])
            for text, part in (("first tenth", figures[:1]), ("last tenth", figures[-1:]), (f"{count:,}", figures))
        ]
        rows.append(values_row("RssAnon once written", "MiB", [(memory_kib(mine.pid)["RssAnon"] / 1024, None)]))
        show(rows, peer="fresh")
        fresh_pulls = frames(TOPIC, [fresh_per_queue] * QUEUES)
        span = fresh_per_queue
        for text, first in (("start", 0), ("middle", (per_queue - span) // 2), ("end", per_queue - span)):
            first = max(first, 0) // PULL_COUNT * PULL_COUNT
            pulls = {
                mine.broker: frames(TOPIC, [min(first + span, per_queue)] * QUEUES, first=first),
                fresh.broker: fresh_pulls,
            }

            def pull(servers: Servers, pulls: dict[str, list[bytes]] = pulls) -> Load:
                return run_one(servers.broker, pulls[servers.broker], window=WINDOW, seconds=seconds)

            rows.append(compare(f"pulled at the {text}, {WINDOW} in flight", "msg/s", runs, mine, fresh, pull))
            show(rows[-1:], heading=False)
        ends = end_rows(mine, fresh)
        show(ends, heading=False)
    return rows + ends


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    a = parser.parse_args()
    measure(a.count, a.runs, a.seconds)


if __name__ == "__main__":
    main()
