"""Whether memory stays flat over millions of messages: of our clients, and of our broker, whose log grows meanwhile.

Each way of sending or consuming runs in rounds until so many messages are through. A client's private memory and the
blocks of its Python objects are looked at after a quarter of them and at the end. Run:
    python -m bench.flat --count 20000000 send-columns consume-columns
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bench.client import CONSUME_TOPIC, QUEUES, SEND_TOPIC, client
from bench.fill import create_topic, fill
from bench.peers import Servers, end_rows, ours, rss_anon_mib
from bench.plan import Plan
from bench.report import Row, progress, show

COUNT = 20_000_000
# A topic of so many is consumed by one new group after another.
TOPIC_COUNT = 1_000_000
ROUND_S = 1.0
# Beyond what an allocator may take more at one moment than at another.
GROWN_MIB_MAX = 16.0


class Way(NamedTuple):
    """A case of bench.perf."""

    name: str
    window: int
    topic: str = SEND_TOPIC


WAYS = {
    "batch-future": Way("send_future, gathered", 1000),
    "batch-keyed": Way("keyed send, gathered", 1000),
    "send-columns": Way("send_many", 1),
    "consume": Way("push consume", 1, CONSUME_TOPIC),
    "consume-columns": Way("poll_batch", 1, CONSUME_TOPIC),
}


class Look(NamedTuple):
    """What client and broker have after so many messages; `blocks`: memory blocks of the client's Python objects."""

    count: int
    client_mib: float
    blocks: float
    broker_mib: float


def watch(case: str, way: Way, servers: Servers, folder: Path, count: int, amount: float) -> list[Look]:
    """Rounds of `amount` each until `count` messages are through; a look after each."""
    command = [sys.executable, "-m", "bench.perf", servers.namesrv, way.topic, case, str(way.window)]
    looks: list[Look] = []
    done = 0
    with client(way.name, command, folder) as process:
        while done < count:
            progress(f"{way.name}: {done:,} of {count:,}")
            result = process.round(amount)
            done += int(result["count"])
            looks.append(Look(done, rss_anon_mib(process.pid), result["blocks"], rss_anon_mib(servers.pid)))
    return looks


def growth(looks: list[Look]) -> tuple[Look, Look]:
    """The first look at or after a quarter of all messages, and the last."""
    last = looks[-1]
    return next(look for look in looks if look.count * 4 >= last.count), last


def way_rows(name: str, looks: list[Look]) -> list[Row]:
    """The rows of one way."""
    first, last = growth(looks)
    more = max(last.count - first.count, 1)
    return [
        Row(f"{name}: messages", last.count, None, ""),
        Row(f"{name}: RssAnon at a quarter", first.client_mib, None, "MiB"),
        Row(f"{name}: RssAnon at the end", last.client_mib, None, "MiB"),
        Row(f"{name}: kept a message", (last.client_mib - first.client_mib) * (1 << 20) / more, None, "B"),
        Row(f"{name}: blocks kept of 1,000", (last.blocks - first.blocks) * 1000 / more, None, ""),
        Row(f"{name}: broker's growth", last.broker_mib - first.broker_mib, None, "MiB"),
    ]


def grown(looks: list[Look]) -> bool:
    """Whether the client's memory grew by more than an allocator's moods."""
    first, last = growth(looks)
    return last.client_mib - first.client_mib > GROWN_MIB_MAX


def run(plan: Plan) -> list[Row]:
    """Every way at the plan's size."""
    return watch_all(WAYS, plan.of(COUNT, 500_000, 1000), plan.of(ROUND_S, 0.5, 0.02))


def watch_all(cases: Iterable[str], count: int, round_s: float = ROUND_S) -> list[Row]:
    """The ways of these names, `count` messages each. Raises SystemExit if a client's memory grew."""
    rows: list[Row] = []
    failed: list[str] = []
    topic_count = min(TOPIC_COUNT, count)
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-flat-") as temporary, ours() as servers:
        create_topic(servers.broker, SEND_TOPIC, QUEUES)
        fill(servers.broker, CONSUME_TOPIC, topic_count, queues=QUEUES)
        for case in cases:
            way = WAYS[case]
            amount = topic_count if way.topic == CONSUME_TOPIC else round_s
            looks = watch(case, way, servers, Path(temporary), count, amount)
            found = way_rows(way.name, looks)
            show(found, heading=not rows)
            rows += found
            if grown(looks):
                failed.append(way.name)
        ends = end_rows(servers, None)
        show(ends, heading=False)
    if failed:
        raise SystemExit(f"memory grew by more than {GROWN_MIB_MAX:.0f} MiB: {', '.join(failed)}")
    return rows + ends


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.flat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(WAYS))
    parser.add_argument("--count", type=int, default=COUNT, help=f"messages of each case [{COUNT}]")
    a = parser.parse_args()
    unknown = [c for c in a.cases if c not in WAYS]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(WAYS)}")
    if a.count < 1:
        parser.error("--count: at least 1 is needed")
    watch_all(a.cases or WAYS, a.count)


if __name__ == "__main__":
    main()
