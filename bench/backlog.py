"""A backlog of 10 M messages on our broker: written as batches, then pulled where it begins, in its middle, at its end.

Each is measured beside a broker that holds only a few messages, in turn: a ratio of 1 means that depth costs nothing.
Alone: python -m bench.backlog --count 20000000
"""

from __future__ import annotations

import argparse
import asyncio
import time
from functools import partial

from bench import raw_send
from bench.fill import BUSY_PAUSE_S, create_topic
from bench.load import Load, Replies, Stream, connect, pump
from bench.measure import compare, figure
from bench.peers import Config, Servers, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.raw_pull import PULL_COUNT, frames, run_one
from bench.report import Row, progress, rates_row, show, values_row
from rocketspark.client.connection import client_api
from rocketspark.model import MessageQueue
from rocketspark.transport.connections import dial

COUNT = 10_000_000
FRESH_COUNT = 200_000
QUEUES = 8
BATCH_COUNT = 500
WINDOW = 16
STEPS = 10
TOPIC = "bench-backlog"


def write(servers: Servers, stream: Stream, batch_count: int) -> Load:
    """So many batches."""
    load = pump(servers.broker, stream, window=4, count_max=batch_count)
    return load._replace(done=load.done * BATCH_COUNT)


def mend(servers: Servers, stream: Stream, per_queue: int) -> None:
    """Send again what the broker was too busy to take, until each queue holds `per_queue` messages."""

    async def ends() -> list[int]:
        peer = await dial(servers.broker)
        found = [
            await client_api.max_offset(peer, MessageQueue(TOPIC, "", q), timeout_ms=10_000) for q in range(QUEUES)
        ]
        peer.close()
        return found

    with connect(servers.broker) as s:
        for queue_id, end in enumerate(asyncio.run(ends())):
            for _ in range((per_queue - end) // BATCH_COUNT):
                replies = Replies()
                while not replies.done:
                    # The queues come in turn, so this is the first frame for this queue.
                    s.sendall(stream.part(queue_id, 1))
                    while not replies.feed(s.recv(1 << 16)):
                        pass
                    if not replies.done:
                        time.sleep(BUSY_PAUSE_S)


def run(plan: Plan) -> list[Row]:
    """Ours alone."""
    count, fresh_count = plan.of((COUNT, FRESH_COUNT), (1_000_000, FRESH_COUNT), (40_000, 16_000))
    return measure(count, plan.rounds(), plan.of(1.0, 0.5, 0.05), fresh_count, plan.config)


def measure(
    count: int, runs: int, seconds: float, fresh_count: int = FRESH_COUNT, config: Config | None = None
) -> list[Row]:
    """With `count` messages."""
    turn = QUEUES * BATCH_COUNT
    per_queue = max(count // turn // STEPS, 1) * STEPS * BATCH_COUNT
    count = per_queue * QUEUES
    fresh_per_queue = max(fresh_count // turn, 1) * BATCH_COUNT
    stream = raw_send.batches(TOPIC, 128, BATCH_COUNT, QUEUES)
    rows: list[Row] = []
    with ours(config=config) as mine, ours(config=config) as fresh:
        for servers in (mine, fresh):
            create_topic(servers.broker, TOPIC, QUEUES)
        write(fresh, stream, fresh_per_queue * QUEUES // BATCH_COUNT)
        mend(fresh, stream, fresh_per_queue)
        figures = []
        for step in range(STEPS):
            progress(f"writing {count:,} messages: {step * 100 // STEPS} %")
            act = partial(write, stream=stream, batch_count=count // BATCH_COUNT // STEPS)
            figures.append(figure(mine, act))
        mend(mine, stream, per_queue)
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
