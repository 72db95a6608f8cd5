"""Our client on our broker beside confluent-kafka and aiokafka on a Kafka broker: what a user would pick instead.

Each client and each broker is one process, and both brokers acknowledge once a message is in their files' pages.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.client import Client, client, result_rows
from bench.fill import create_topic, fill
from bench.intended import Result
from bench.kafka_broker import fetched_clients, kafka
from bench.kafka_perf import QUEUES
from bench.peers import Servers, both, end_rows
from bench.plan import Plan
from bench.report import Row, progress, show

CONSUME_TOPIC, LATENCY_TOPIC, SEND_TOPIC = "bench-consume", "bench-latency", "bench-send"
# As many as confluent-kafka needs to fill its batches within its own lingering time; ours takes no more.
WINDOW = 4000
PEERS = {"confluent": "confluent-kafka", "aiokafka": "aiokafka"}


class Case(NamedTuple):
    """`ways`: our case of bench.perf beside each client of Kafka's; the other fields as in bench.client."""

    name: str
    topic: str
    ways: dict[str, str]
    amount: float
    first: float
    window: int = 1
    measures: tuple[str, ...] = ("rate",)


def cases(consume_count: int, seconds: float, latency_count: int) -> dict[str, Case]:
    """All cases, by the last part of their names in bench.kafka_perf."""
    consume = Case(
        "consume",
        CONSUME_TOPIC,
        {"confluent": "consume", "aiokafka": "consume-async"},
        consume_count,
        consume_count // 5,
        measures=("rate", "first_ms"),
    )
    columns, table = (dict.fromkeys(consume.ways, f"consume-{way}") for way in ("columns", "table"))
    return {
        "sync": Case("sync send", SEND_TOPIC, {"confluent": "sync", "aiokafka": "await"}, seconds, 1.5 * seconds),
        "batch": Case(
            f"batched send, {WINDOW} in flight",
            SEND_TOPIC,
            {"confluent": "batch-future", "aiokafka": "batch"},
            seconds,
            1.5 * seconds,
            WINDOW,
        ),
        "send-columns": Case(
            f"send as columns, beside {WINDOW} in flight",
            SEND_TOPIC,
            {"confluent": "send-columns", "aiokafka": "send-columns"},
            seconds,
            1.5 * seconds,
            WINDOW,
        ),
        "consume": consume,
        "columns": consume._replace(name="consume as columns", ways=columns),
        "table": consume._replace(name="consume as a table", ways=table),
        "latency": Case(
            "send to consumer",
            LATENCY_TOPIC,
            {"confluent": "latency", "aiokafka": "latency-async"},
            latency_count,
            latency_count,
            measures=("p50_us", "p99_us"),
        ),
    }


@contextmanager
def kafka_client(
    packages: Path, servers: Servers, topic: str, case: str, window: int, folder: Path
) -> Iterator[Client]:
    """A process of bench.kafka_perf for the length of a `with` block."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(packages))))
    command = ["env", f"PYTHONPATH={path}", sys.executable, "-m", "bench.kafka_perf"]
    with client(case, [*command, servers.broker, topic, case, str(window)], folder) as process:
        yield process


def measure(
    name: str, case: Case, mine: Servers, theirs: Servers, packages: Path, folder: Path, runs: int, count_bytes: bool
) -> list[Row]:
    """One case: ours and each of Kafka's clients in turn, `runs` times."""
    with ExitStack() as stack:
        clients: dict[tuple[str, bool], Client] = {}
        for peer, way in case.ways.items():
            command = [sys.executable, "-m", "bench.perf", mine.namesrv, case.topic, way, str(case.window)]
            clients[peer, True] = stack.enter_context(client(way, command, folder))
            clients[peer, False] = stack.enter_context(
                kafka_client(packages, theirs, case.topic, f"{peer}-{name}", case.window, folder)
            )
        for (peer, ours), each in clients.items():
            progress(f"{case.name}: first round, {'ours' if ours else peer}")
            each.round(case.first)
        results: dict[tuple[str, bool], list[Result]] = {key: [] for key in clients}
        for number in range(runs):
            for key, each in clients.items():
                progress(f"{case.name}: round {number + 1} of {runs}, {'ours' if key[1] else key[0]}")
                results[key].append(each.round_of(case.amount, (mine if key[1] else theirs).pid))
        if count_bytes:
            for key, each in clients.items():
                each.note_bytes(case.amount, results[key])
    ways = [
        result_rows(f"{case.name}, {PEERS[peer]}", case.measures, results[peer, True], results[peer, False])
        for peer in case.ways
    ]
    return [row for of_measure in zip(*ways, strict=True) for row in of_measure]


def run(plan: Plan) -> list[Row]:
    """Every case at the plan's sizes. There is no part without Kafka."""
    consume_count = plan.of(200_000, 50_000, 1000)
    rows: list[Row] = []
    packages = fetched_clients()
    with (
        tempfile.TemporaryDirectory(prefix="rocketspark-bench-kafka-client-") as temporary,
        both(False, java=kafka()) as (mine, theirs),
    ):
        assert theirs is not None
        folder = Path(temporary)
        for topic in (SEND_TOPIC, LATENCY_TOPIC):
            create_topic(mine.broker, topic, QUEUES)
        fill(mine.broker, CONSUME_TOPIC, consume_count, queues=QUEUES)
        for topic, count in ((SEND_TOPIC, 0), (LATENCY_TOPIC, 0), (CONSUME_TOPIC, consume_count)):
            progress(f"Kafka: {topic}")
            with kafka_client(packages, theirs, topic, "fill", 1, folder) as filling:
                filling.round(count)
        for name, case in cases(consume_count, plan.of(0.7, 0.4, 0.05), plan.of(500, 200, 20)).items():
            found = measure(name, case, mine, theirs, packages, folder, plan.rounds(), plan.size == "full")
            show(found, heading=not rows, peer="kafka")
            rows += found
        ends = end_rows(mine, theirs)
        show(ends, heading=False)
    return rows + ends
