"""10,000 queues on one broker: creation, the first message on each, sends over all, disk, memory, restart."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from bench import raw_send
from bench.load import Load, Stream, pump
from bench.measure import compare
from bench.peers import Config, Servers, both, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.report import Row, progress, show, values_row
from rocketspark.client.connection import admin_api
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.transport.connections import dial

TOPIC_QUEUES = 100
FEW_TOPIC = "bench-few-queues"
FEW_QUEUES = 8
FLUSH_S_MAX = 60.0
WINDOW = 64


def topics(count: int) -> list[str]:
    """Names of the topics."""
    return [f"bench-queues-{i:03}" for i in range(count)]


def create(broker: str, names: list[str], queues: int) -> float:
    """Create topics one by one; seconds it took."""

    async def all_of_them() -> None:
        peer = await dial(broker)
        for name in names:
            await admin_api.create_topic(
                peer, TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues), timeout_ms=10_000
            )
        peer.close()

    started = time.perf_counter()
    asyncio.run(all_of_them())
    return time.perf_counter() - started


def spread(names: list[str], queues: int) -> Stream:
    """A message for every queue of every topic, neighbours on unlike topics."""
    body = b"x" * 128
    places = [(name, queue_id) for queue_id in range(queues) for name in names]
    return Stream(raw_send.frame(*place, body, f"{i:032X}", i) for i, place in enumerate(places))


def disk_bytes(folder: Path) -> int:
    """Blocks taken by all files below a folder; holes do not count."""
    return sum(os.stat(Path(at) / name).st_blocks * 512 for at, _, files in os.walk(folder) for name in files)


def flushed_bytes(folder: Path, queues: int) -> int:
    """`disk_bytes`, once every queue has its file: a flush makes those of queues of a few messages."""
    deadline = time.monotonic() + FLUSH_S_MAX
    while sum(len(names) for _, _, names in os.walk(folder)) < queues and time.monotonic() < deadline:
        time.sleep(0.1)
    return disk_bytes(folder)


def run(plan: Plan) -> list[Row]:
    """Rates beside the Java broker; disk and restart are of ours."""
    names = topics(plan.of(100, 100, 2))
    per_topic = plan.of(TOPIC_QUEUES, TOPIC_QUEUES, 10)
    count = len(names) * per_topic
    seconds = plan.of(2.0, 0.5, 0.05)
    few, many = spread([FEW_TOPIC], FEW_QUEUES), spread(names, per_topic)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        store = Path(folder) / "store"
        with both(plan.alone, ours(store=store, config=plan.config)) as (mine, java):
            peers = [mine, java] if java else [mine]

            def send(servers: Servers, stream: Stream) -> Load:
                return pump(servers.broker, stream, window=WINDOW, seconds=seconds)

            def row(name: str, unit: str, values: list[float]) -> Row:
                pair = (values[0], values[1] if len(values) > 1 else None)
                return values_row(name, unit, [pair], less_is_better=unit != "1/s")

            for servers in peers:
                progress("8 queues, not counted")
                create(servers.broker, [FEW_TOPIC], FEW_QUEUES)
                pump(servers.broker, few, window=WINDOW, seconds=plan.of(3.0, 2.0, 0.05))
            name = "sends, 8 queues, 64 in flight"
            rows.append(compare(name, "msg/s", plan.rounds(), mine, java, lambda s: send(s, few)))
            show(rows)
            before = [memory_kib(s.pid) for s in peers]
            before_disk = disk_bytes(store / "consumequeue")
            progress(f"creating {len(names)} topics")
            took = [create(s.broker, names, per_topic) for s in peers]
            name = f"{len(names)} topics of {per_topic} queues, one by one"
            found = [row(name, "1/s", [len(names) / t for t in took])]
            progress("a message on each queue")
            first = [pump(s.broker, many, window=WINDOW, count_max=count) for s in peers]
            found.append(row(f"first message on each of {count:,} queues", "1/s", [load.per_second for load in first]))
            show(found, heading=False)
            rows += found
            # Of ours alone: the Java broker's blocks are given out only when its pages are written back.
            disk = (flushed_bytes(store / "consumequeue", FEW_QUEUES + count) - before_disk) / 2**20
            found = [values_row("disk taken by the queues' files", "MiB", [(disk, None)])]
            name = f"sends, {count:,} queues, 64 in flight"
            found.append(compare(name, "msg/s", plan.rounds(), mine, java, lambda s: send(s, many)))
            found.append(values_row("  beside 8 queues (ours, Java's)", "x", _beside(found[-1], rows[0])))
            after = [memory_kib(s.pid) for s in peers]
            for what in ("RssAnon", "VmRSS"):
                grown = [(a[what] - b[what]) / 1024 for a, b in zip(after, before, strict=True)]
                found.append(row(f"  {what} gained", "MiB", grown))
            found += end_rows(mine, java)
            show(found, heading=False)
            rows += found
        found = restarts(store)
        show(found, heading=False)
    return rows + found


def _beside(many: Row, few: Row) -> list[tuple[float, float | None]]:
    java = many.peer / few.peer if many.peer is not None and few.peer else None
    return [(many.ours / few.ours, java)]


def restarts(store: Path, config: Config | None = None) -> list[Row]:
    """Seconds until ready on the same store: after a clean stop, and after a kill."""
    progress("restart")
    with ours(store=store, config=config) as servers:
        clean_s = servers.ready_s
        servers.kill()
    with ours(store=store, config=config) as servers:
        killed_s = servers.ready_s
        resident = memory_kib(servers.pid)["RssAnon"] / 1024
    return [
        values_row("ready again after a clean stop", "ms", [(clean_s * 1000, None)]),
        values_row("ready again after SIGKILL", "ms", [(killed_s * 1000, None)]),
        values_row("  RssAnon then", "MiB", [(resident, None)]),
    ]
