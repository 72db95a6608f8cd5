"""Latency of sends at 1,000, 10,000 and 50,000 a second, as a naive user writes them, each from its intended time.

An open loop: a send is due whatever became of those before it, and one that leaves late has waited (bench.intended).
Our client on our broker stands beside the Java client on the Java broker, then beside confluent-kafka on Kafka; at the
same rate both send at once, or both gather for 5 ms. A rate below the one asked for: client or broker falls behind.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import client, java_client, kafka
from bench.fill import create_topic
from bench.kafka_broker import fetched_clients, fetched_jars
from bench.kafka_broker import kafka as kafka_broker
from bench.peers import both, end_rows
from bench.plan import Plan
from bench.report import Row, show

TOPIC = "bench-open"
MEASURES = ("rate", "p50_us", "p99_us", "p999_us")
# The end of a case's name in bench.kafka_perf. Seen: until a consumer has the message, not until it is acknowledged.
AT_ONCE, GATHERED, SEEN, SEEN_GATHERED = "at-once", "gathered", "seen-at-once", "seen-gathered"
# Sends a second, how both sides send, and our ways: the shown name of each and its case of bench.perf.
WAYS = (
    (1_000, AT_ONCE, (("send, 64 threads", "open-threads"), ("send_future", "open-future"))),
    (10_000, AT_ONCE, (("send_future", "open-future"), ("linger_ms=0", "open-turn"))),
    (10_000, GATHERED, (("linger_ms=5", "open-batch"),)),
    (50_000, AT_ONCE, (("linger_ms=0", "open-turn"),)),
    (50_000, GATHERED, (("linger_ms=5", "open-batch"),)),
    (1_000, SEEN, (("to a listener", "open-seen"),)),
    (10_000, SEEN, (("to a listener", "open-seen"),)),
    (50_000, SEEN_GATHERED, (("linger_ms=5, to a listener", "open-seen-batch"),)),
)
JAVA_WAYS = {AT_ONCE: "open", GATHERED: "open-batch", SEEN: "open-seen", SEEN_GATHERED: "open-seen-batch"}


def java_cases(seconds: float) -> list[client.Case]:
    """The cases beside the Java client."""
    return [
        client.Case(
            tuple((f"{rate:,}/s, {name}", way) for name, way in ways),
            JAVA_WAYS[how],
            topic_of(rate, how),
            seconds,
            first_s(rate, seconds),
            window=rate,
            measures=MEASURES,
        )
        for rate, how, ways in WAYS
    ]


def kafka_cases(seconds: float) -> list[tuple[str, kafka.Case]]:
    """The cases beside confluent-kafka, of the first of our ways, each with its name in bench.kafka_perf."""
    return [
        (
            f"open-{how}",
            kafka.Case(
                f"{rate:,}/s, {name}",
                topic_of(rate, how),
                {"confluent": way},
                seconds,
                first_s(rate, seconds),
                window=rate,
                measures=MEASURES,
            ),
        )
        for rate, how, ((name, way), *_) in WAYS
    ]


def topic_of(rate: int, how: str) -> str:
    """Each case with a consumer has a topic of its own: a new group reads it from the start."""
    return f"{TOPIC}-{rate}" if how in (SEEN, SEEN_GATHERED) else TOPIC


def first_s(rate: int, seconds: float) -> float:
    """The seconds of a first round, which is not counted: long enough for the JIT to see a slow one's code often."""
    return seconds * (3 if rate < 10_000 else 1.5)


TOPICS = sorted({topic_of(rate, how) for rate, how, _ in WAYS})


def run(plan: Plan) -> list[Row]:
    """Every case at the plan's sizes; without Java and Kafka if it says so."""
    seconds = plan.of(3.0, 0.5, 0.05)
    rows: list[Row] = []
    if not plan.alone:
        java_client.compiled()
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-open-") as temporary, both(plan.alone) as (mine, java):
        for servers in (mine, java):
            for topic in TOPICS if servers is not None else ():
                create_topic(servers.broker, topic, client.QUEUES)
        for case in java_cases(seconds):
            found = client.measure(case, mine, java, Path(temporary), plan.rounds(), False, plan.size == "full")
            show(found, heading=not rows)
            rows += found
        ends = end_rows(mine, java)
        show(ends, heading=False)
        rows += ends
    return rows if plan.alone else rows + beside_kafka(plan, seconds)


def beside_kafka(plan: Plan, seconds: float) -> list[Row]:
    """The rows beside confluent-kafka on Kafka; none, and a line that says why, where they cannot be fetched."""
    try:
        packages, _ = fetched_clients(), fetched_jars()
    except SystemExit as e:
        print(f"  not measured beside Kafka: {e}", flush=True)
        return []
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="rocketspark-bench-open-") as temporary,
        both(False, java=kafka_broker()) as (mine, theirs),
    ):
        assert theirs is not None
        folder = Path(temporary)
        for topic in TOPICS:
            create_topic(mine.broker, topic, client.QUEUES)
            with kafka.kafka_client(packages, theirs, topic, "fill", 1, folder) as filling:
                filling.round(0)
        for name, case in kafka_cases(seconds):
            found = kafka.measure(name, case, mine, theirs, packages, folder, plan.rounds(), plan.size == "full")
            show(found, heading=not rows, peer="kafka")
            rows += found
        ends = end_rows(mine, theirs)
        show(ends, heading=False)
    return rows + ends
