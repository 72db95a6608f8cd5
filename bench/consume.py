"""1 M messages by a new group of the official Java client, from our broker and from the Java broker, in turn.

The same program reads from both, so the ratio is the brokers' alone, as far as the client is not the bottleneck:
raw pulls (`bench pull`) tell how far the brokers go.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import java_client
from bench.client import CONSUME_COUNT, CONSUME_TOPIC, QUEUES, Case, measure
from bench.fill import fill
from bench.peers import both, end_rows
from bench.plan import Plan
from bench.report import Row, progress, show


def run(plan: Plan) -> list[Row]:
    """Two rows: messages per second, and the time until the first one. There is no part without the Java client."""
    count = plan.of(CONSUME_COUNT, 100_000, 1000)
    java_client.compiled()
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-client-") as folder, both(False) as (mine, java):
        assert java is not None
        for servers in (java, mine):
            progress(f"filling with {count:,} messages")
            fill(servers.broker, CONSUME_TOPIC, count, queues=QUEUES)
        case = Case((), "consume", CONSUME_TOPIC, count, count // 2, measures=("rate", "first_ms"))
        rows = measure(case, mine, java, Path(folder), plan.rounds(), cross=True) + end_rows(mine, java)
    rows = [r._replace(name=r.name.strip()) for r in rows]
    show(rows)
    return rows
