"""format("rocketmq") on each minor version of Spark, beside the Kafka connector on the oldest and newest it is out for.

One session of ours at a time and both of Kafka's, on the brokers and messages of bench.spark_kafka; they take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Row, progress, rates_row
from bench.spark_peers import CONNECTOR_VERSIONS, KAFKA, OUR_VERSIONS, ROCKETMQ, spark_session


class Query(NamedTuple):
    """A job of bench.spark_perf, as each side is given it."""

    name: str
    rows: int
    mine: dict[str, Any]
    theirs: dict[str, Any]


def measure(
    queries: Sequence[Query], mine: Any, theirs: Any, folder: Path, *, warm: int, runs: int
) -> Iterator[list[Row]]:
    """The rows of each query on each Spark of ours, one for each Spark of Kafka's, as they are found.

    `mine` and `theirs`: sides of bench.spark_kafka, whose brokers are read; `theirs` None without Kafka.
    """
    with ExitStack() as stack:
        peers = {
            version: theirs._replace(spark=stack.enter_context(spark_session(KAFKA, folder, version)))
            for version in (CONNECTOR_VERSIONS if theirs else ())
        }
        for version in OUR_VERSIONS:
            progress(f"our session on Spark {version}")
            with spark_session(ROCKETMQ, folder, version) as spark:
                side = mine._replace(spark=spark)
                for query in queries:
                    yield _turns(query, side, peers, warm=warm, runs=runs)


def _turns(query: Query, side: Any, peers: dict[str, Any], *, warm: int, runs: int) -> list[Row]:
    """All sides in turn, each after rounds that do not count."""
    rounds: list[tuple[Any, dict[str, Any]]] = []
    for number in range(warm + runs):
        progress(f"Spark {side.spark.version}: {query.name}, round {number + 1 - warm} of {runs}")
        order = [*peers, ""] if number % 2 else ["", *peers]
        found = {
            name: (peers[name].timed(query.rows, **query.theirs) if name else side.timed(query.rows, **query.mine))
            for name in order
        }
        rounds.append((found.pop(""), found))
    rounds = rounds[warm:]
    title = f"{side.spark.version}: {query.name}"
    if not peers:
        return [rates_row(title, "rows/s", [(own.figure, None) for own, _ in rounds])]
    return [
        rates_row(f"{title} | {name}", "rows/s", [(own.figure, found[name].figure) for own, found in rounds])
        for name in peers
    ]
