"""How a send's cost grows on our broker: one thing grows at a time, the others stay small. 64 in flight in all."""

from __future__ import annotations

from collections.abc import Callable

from bench import raw_send
from bench.fill import create_topic
from bench.load import Load, Stream, pump
from bench.many import Connections
from bench.measure import figure
from bench.peers import Servers, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.queues import create, spread
from bench.report import Figure, Row, progress, rates_row, show

TOPIC = "bench-growth"
QUEUES = 8
WINDOW = 64
HEADING = f"{'':28} {'msg/s':>12} {'MiB/s':>8} {'us CPU each':>12} {'CPU s/s':>8} {'tool':>5}   RssAnon     VmRSS"

Act = Callable[[Servers], Load]


def bodies(size: int, seconds: float) -> Act:
    """Bodies of so many bytes."""
    stream = raw_send.stream(TOPIC, size, QUEUES)
    return lambda s: pump(s.broker, stream, window=WINDOW, seconds=seconds)


def over_queues(count: int, seconds: float) -> Act:
    """Messages spread over so many queues, at most 100 a topic."""
    per_topic = min(count, 100)
    names = [f"{TOPIC}-{count}-{i}" for i in range(count // per_topic)]
    stream = spread(names, per_topic)
    created: set[str] = set()

    def act(servers: Servers) -> Load:
        if servers.broker not in created:
            create(servers.broker, names, per_topic)
            created.add(servers.broker)
        return pump(servers.broker, stream, window=WINDOW, seconds=seconds)

    return act


def over_connections(count: int, seconds: float) -> Act:
    """The window spread over so many connections, one on each at least."""
    stream = raw_send.stream(TOPIC, 128, QUEUES)

    def act(servers: Servers) -> Load:
        with Connections(servers.broker, count) as connections:
            return connections.pump([stream] * count, window=max(WINDOW // count, 1), seconds=seconds)

    return act


def batched(count: int, seconds: float) -> Act:
    """Batches of so many messages."""
    stream: Stream = raw_send.batches(TOPIC, 128, count, QUEUES)

    def act(servers: Servers) -> Load:
        load = pump(servers.broker, stream, window=max(WINDOW // count, 4), seconds=seconds)
        return load._replace(done=load.done * count)

    return act


def run(plan: Plan) -> list[Row]:
    """A table of its own: messages per second, processor time of each, memory then."""
    seconds = plan.of(0.8, 0.3, 0.05)
    steps: list[tuple[str, int, int, Act]] = []
    for size in plan.of((128, 1024, 4096, 16384, 65536), (128, 4096, 65536), (128,)):
        steps.append((f"body {size:,} B", size, size, bodies(size, seconds)))
    for count in plan.of((8, 100, 1000, 10000), (8, 1000), (20,)):
        steps.append((f"{count:,} queues", count, 128, over_queues(count, seconds)))
    for count in plan.of((1, 10, 100, 1000), (1, 100), (5,)):
        steps.append((f"{count:,} connections", count, 128, over_connections(count, seconds)))
    for count in plan.of((1, 10, 100, 500), (1, 100), (10,)):
        steps.append((f"batches of {count:,}", count, 128, batched(count, seconds)))
    rows: list[Row] = []
    with ours(config=plan.config) as servers:
        create_topic(servers.broker, TOPIC, QUEUES)
        figure(servers, bodies(128, seconds))
        print(HEADING)
        for name, _, body_bytes, act in steps:
            progress(name)
            # The first is to make files and topics.
            figure(servers, act)
            found = [figure(servers, act) for _ in range(plan.rounds())]
            rows.append(rates_row(name, "msg/s", [(f, None) for f in found]))
            tell(rows[-1], body_bytes, found, servers)
        ends = end_rows(servers, None)
        show(ends, heading=False)
    return rows + ends


def tell(row: Row, body_bytes: int, found: list[Figure], servers: Servers) -> None:
    """One line of the table."""
    memory = memory_kib(servers.pid)
    show([], heading=False)
    print(
        f"{row.name:28} {row.ours:12,.0f} {row.ours * body_bytes / 2**20:8,.0f} {row.us_each or 0:12.2f}"
        f" {row.cores or 0:8.2f} {row.tool_cores or 0:5.2f}"
        f" {memory['RssAnon'] >> 10:5} MiB {memory['VmRSS'] >> 10:5} MiB",
        flush=True,
    )
