"""100,000 lite topics on one broker: the first message of each, more of them, memory, files, restart."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench import raw_send
from bench.fill import create_topic
from bench.load import Load, Stream, pump
from bench.measure import compare
from bench.peers import Servers, apache, both, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.queues import disk_bytes, restarts
from bench.report import Row, progress, show, values_row
from rocketspark.protocol.message.properties import LITE_TOPIC

TOPIC, QUEUES = "bench-lite", 4
WINDOW = 64
# Until what was made has a file.
FLUSH_S_MAX = 900.0


def messages(count: int) -> Stream:
    """A message for each lite topic."""
    body = b"x" * 128
    names = (f"session-{i:06}" for i in range(count))
    return Stream(
        raw_send.frame(TOPIC, i % QUEUES, body, f"{i:032X}", i, properties=f"{LITE_TOPIC}\x01{name}\x02")
        for i, name in enumerate(names)
    )


def flushed_s(folder: Path, files: int) -> float:
    """Seconds until each light queue has its file; -1 if that takes over FLUSH_S_MAX."""
    began = time.monotonic()
    while time.monotonic() - began < FLUSH_S_MAX:
        if sum(1 for _ in folder.iterdir()) >= files:
            return time.monotonic() - began
        time.sleep(1)
    return -1.0


def run(plan: Plan) -> list[Row]:
    """Rates and memory beside the Java broker; files and restart are of ours."""
    count = plan.of(100_000, 10_000, 50)
    config = {"enableLmq": "true", "enableMultiDispatch": "true", "maxLmqConsumeQueueNum": str(2 * count)}
    sends, rows = messages(count), list[Row]()
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        store = Path(folder) / "store"
        mine = ours(store=store, config=dict(plan.config) | config)
        with both(plan.alone, mine, None if plan.alone else apache(config)) as (first, java):
            peers = [first, java] if java else [first]

            def row(name: str, unit: str, values: list[float]) -> Row:
                pair = (values[0], values[1] if len(values) > 1 else None)
                return values_row(name, unit, [pair], less_is_better=unit != "1/s")

            def send(servers: Servers) -> Load:
                return pump(servers.broker, sends, window=WINDOW, seconds=plan.of(3.0, 0.5, 0.05))

            for servers in peers:
                create_topic(servers.broker, TOPIC, QUEUES, "+message.type=LITE")
            before = [memory_kib(servers.pid) for servers in peers]
            progress(f"the first message of {count:,} lite topics")
            begun = [pump(servers.broker, sends, window=WINDOW, count_max=count) for servers in peers]
            rows.append(
                row(f"first message of each of {count:,} lite topics", "1/s", [load.per_second for load in begun])
            )
            show(rows)
            rows.append(compare("sends to them, 64 in flight", "msg/s", plan.rounds(), first, java, send))
            after = [memory_kib(servers.pid) for servers in peers]
            for what in ("RssAnon", "VmRSS"):
                rows.append(row(f"  {what}, whole process", "MiB", [a[what] / 1024 for a in after]))
                grown = [(a[what] - b[what]) / 1024 for a, b in zip(after, before, strict=True)]
                rows.append(row(f"  {what} gained", "MiB", grown))
            progress("the first flush")
            queues = store / "consumequeue"
            rows.append(values_row("a file for each, after", "s", [(flushed_s(queues, count), None)]))
            rows.append(values_row("  disk taken by them", "MiB", [(disk_bytes(queues) / 2**20, None)]))
            rows += end_rows(first, java)
            show(rows[1:], heading=False)
        found = restarts(store, config)
        show(found, heading=False)
    return rows + found
