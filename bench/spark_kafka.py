"""`make bench-spark`: format("rocketmq") beside Spark's own Kafka connector, same rows, same machine, in one run.

Two Spark sessions on two cores each, two brokers; they take turns round by round, warm, and the ratio of a case is the
median of its rounds' own. Bodies are compared by checksum, computed by Spark on both sides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.java.apache import ask

from bench.__main__ import machine
from bench.fill import BATCH_COUNT, create_topic, fill, queue_counts
from bench.half_loop import half_loop
from bench.kafka_broker import VERSION, kafka
from bench.page_cache import fill_page_cache
from bench.peers import Servers, apache, ours
from bench.plan import Plan
from bench.raw_pull import pull_all
from bench.report import Figure, Row, progress, rates_row, show
from bench.spark_peers import KAFKA, ROCKETMQ, Peaks, Spark, Usage, settle, spark_session
from bench.spark_versions import Query, measure
from rocketspark.tables.cluster_queries import ClusterQueries

TOPIC, WRITTEN_TOPIC, JAVA_TOPIC, LONG_TOPIC = "bench-spark", "bench-spark-written", "bench-spark-java", "bench-long"
ONCE_TOPIC = "bench-spark-once"
QUEUES = 4
PARTITIONS = (1, 2, 4, 8)
BODY_BYTES = 128
# Bodies of 64 B to 4 KiB, as many of each of 61 sizes, each 1.07 times the one below it; 988 B on average.
MIXED_TOPIC = "bench-mixed"
MIXED_BYTES = tuple(int(64 * 64 ** (i * 23 % 61 / 60)) for i in range(61))
# Five properties of each message, headers on Kafka's side: name -> what Spark makes of the row's number `id`.
MIXED_PROPERTIES = {
    "region": "concat('eu-west-', id % 3)",
    "tenant": "concat('t', id % 50)",
    "trace": "lower(hex(id * 2654435761))",
    "version": "concat(id % 5, '.2')",
    "source": "'web'",
}
UPDATE_BROKER_CONFIG = 25
# What the Java broker is told to give at most in one pull, beside its defaults of 32 messages and 256 KiB.
RAISED = b"maxTransferCountOnMessageInMemory=4096\nmaxTransferBytesOnMessageInMemory=1048576\n"
DEFAULTS = b"maxTransferCountOnMessageInMemory=32\nmaxTransferBytesOnMessageInMemory=262144\n"
CASES = {
    "read": "batch read through the broker: five columns made and dropped",
    "sum": "the same, with count and checksums of the bodies",
    "stream": "stream with trigger AvailableNow, from start to end",
    "parquet": "topic to Parquet",
    "store": "the broker's store read directly, beside Kafka's read",
    "write": "batch write from Parquet, to a topic and to one with queue.type=BatchCQ",
    "exactly_once": "batch write exactly once, beside at least once, ours and Kafka's (its connector has no other)",
    "exactly_once_java": "the same to the Java RocketMQ broker, beside a bare loop of half messages and ends",
    "inner": "batch read of a topic of inner batches (queue.type=BatchCQ), beside Kafka's read",
    "naive": "load().select(...) as most write it: mixed sizes, keys, properties; and with option columns",
    "versions": "read and naive on each Spark of ours, beside Kafka's connector on two Sparks (only when asked for)",
    "partitions": "batch read of topics with 1, 2, 4 and 8 queues",
    "java": "batch read from the Java RocketMQ broker, beside Kafka's read and beside bare loops of pulls",
    "long": "10 M messages read in bounded memory (only when asked for, or with --long)",
}
# Rows of `exactly_once_java`. A 5.5.0 broker keeps 20,000 ends until it writes their marks, every 3 s; where it has as
# many each further end waits 100 ms. So no more are told at once, and the next ones after a pause.
JAVA_ONCE_ROWS, JAVA_MARKS_S = 16_000, 4.0
# Left out unless named: they take long, or fetch some GB.
ASKED_FOR = ("long", "versions")
# Our columns, and Kafka's beside them.
NAIVE = (
    (("body",), ("value",)),
    (("body", "tag", "queueOffset"), ("value", "key", "offset")),
    (("*",), ("*",)),
)


class Round(NamedTuple):
    """One timed job: rows, seconds, processor seconds."""

    rows: int
    seconds: float
    usage: Usage

    @property
    def figure(self) -> Figure:
        """As a report takes it: the server is broker, JVM and Python together."""
        return Figure(self.rows, self.seconds, sum(self.usage))


class Side(NamedTuple):
    """A session and the broker it reads."""

    spark: Spark
    servers: Servers

    def do(self, job: str, topic: str, **given: Any) -> dict[str, Any]:
        """A job on one of the broker's topics."""
        return self.spark.do(job, **{"address": self.servers.namesrv, "topic": topic} | given)

    def timed(self, rows: int, job: str, topic: str, **given: Any) -> Round:
        """The same, timed; a job that tells how many rows it saw must have seen all."""
        settle()
        before = self.spark.usage(self.servers.pid)
        found = self.do(job, topic, **given)
        if found.get("rows", rows) != rows:
            raise SystemExit(f"{job} of {self.spark.side} saw {found['rows']} rows, not {rows}")
        return Round(rows, found["seconds"], self.spark.usage(self.servers.pid).since(before))


def body_of(number: int) -> bytes:
    """128 bytes that nothing packs well; Spark makes the same by sha2(number, 512)."""
    return hashlib.sha512(b"%d" % number).hexdigest().encode()


def mixed_body_of(number: int) -> bytes:
    """64 B to 4 KiB; Spark makes the same in `fill_mixed`."""
    size = MIXED_BYTES[number % len(MIXED_BYTES)]
    return (hashlib.sha512(b"%d" % number).hexdigest() * -(-size // 128))[:size].encode()


def mixed_properties_of(number: int) -> str:
    """A tag, a key and MIXED_PROPERTIES."""
    pairs = {
        "TAGS": ("new", "paid", "shipped")[number % 3],
        "KEYS": f"o{number}",
        "region": f"eu-west-{number % 3}",
        "tenant": f"t{number % 50}",
        "trace": f"{number * 2654435761:x}",
        "version": f"{number % 5}.2",
        "source": "web",
    }
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


class Bench:
    """The brokers, the sessions, and what was found so far."""

    def __init__(self, plan: Plan, rows: int, folder: Path, mine: Side, theirs: Side | None) -> None:
        self.plan, self.rows, self.folder = plan, rows, folder
        self.mine, self.theirs = mine, theirs
        self.runs = plan.rounds(5)
        self.warm = plan.of(3, 1, 0)
        self.found: list[Row] = []
        self.where: dict[str, dict[str, dict[str, float]]] = {}
        self.sums: dict[str, Any] = {}
        self._mixed_loaded = False

    # -- the measure

    def compare(self, name: str, mine: dict[str, Any], theirs: dict[str, Any] | None = None, *, rows: int = 0) -> None:
        """A job on both sides in turn, each after rounds that do not count; `theirs` where it is not the same."""
        rows = rows or self.rows
        theirs = theirs or mine
        pairs: list[tuple[Round, Round | None]] = []
        for number in range(self.warm + self.runs):
            progress(f"{name}: round {number + 1 - self.warm} of {self.runs}")
            first: Round | None = None
            if self.theirs and number % 2:
                first = self.theirs.timed(**{"rows": rows} | theirs)
            found = self.mine.timed(**{"rows": rows} | mine)
            if self.theirs and first is None:
                first = self.theirs.timed(**{"rows": rows} | theirs)
            pairs.append((found, first))
        self._note(name, pairs[self.warm :])

    def _note(self, name: str, pairs: list[tuple[Round, Round | None]]) -> None:
        row = rates_row(name, "rows/s", [(o.figure, p.figure if p else None) for o, p in pairs])
        show([row], heading=not self.found, peer="kafka")
        self.found.append(row)
        sides = {"ours": [o for o, _ in pairs], "kafka": [p for _, p in pairs if p]}
        self.where[name] = {side: us_a_row(rounds) for side, rounds in sides.items() if rounds}
        for side, used in self.where[name].items():
            print(f"    {side:6} us a row: " + ", ".join(f"{k} {v:.3f}" for k, v in used.items()), flush=True)

    def show(self, rows: list[Row]) -> None:
        """Rows that stand for themselves."""
        show(rows, heading=not self.found, peer="kafka")
        self.found += rows

    # -- what both sides read

    def load(self) -> None:
        """The same bodies to both sides, checked by what Spark makes of them."""
        self._load_ours(TOPIC, self.rows, QUEUES)
        self._load_kafka(TOPIC, self.rows, QUEUES)
        self.sums = self._same_bodies(TOPIC, self.rows)
        if self.sums["bytes"] != self.rows * BODY_BYTES:
            raise SystemExit(f"the bodies are not of {BODY_BYTES} bytes: {self.sums}")
        print(f"  {self.rows:,} bodies of {BODY_BYTES} B on each side: crc32 and xxhash64 agree", flush=True)

    def _same_bodies(self, topic: str, rows: int) -> dict[str, Any]:
        """What Spark makes of a topic's bodies, which must be the same on both sides."""
        sides = [side for side in (self.mine, self.theirs) if side]
        found = [{k: v for k, v in side.do("check", topic).items() if k != "seconds"} for side in sides]
        if found[0]["rows"] != rows or found[0] != found[-1]:
            raise SystemExit(f"the sides do not hold the same {rows} bodies: {found}")
        return found[0]

    def _load_ours(self, topic: str, rows: int, queues: int, attributes: str = "") -> None:
        progress(f"our broker: {rows:,} messages to {topic}")
        fill(self.mine.servers.broker, topic, rows, queues=queues, body_of=body_of, attributes=attributes)

    def _load_kafka(self, topic: str, rows: int, queues: int) -> None:
        if self.theirs:
            progress(f"Kafka: {rows:,} messages to {topic}")
            self.theirs.do("create", topic, queues=queues)
            self.theirs.do("fill", topic, rows=rows, queues=queues, run=BATCH_COUNT)

    # -- the cases

    def read(self) -> None:
        """Batch read."""
        self.compare("batch read", {"job": "read", "topic": TOPIC})

    def sum(self) -> None:
        """Batch read that looks into each body."""
        self.compare("batch read, checksums of bodies", {"job": "check", "topic": TOPIC})

    def stream(self) -> None:
        """Stream read."""
        self.compare("stream read, AvailableNow", {"job": "stream", "topic": TOPIC})

    def parquet(self) -> None:
        """Topic to files."""
        paths = [str(self.folder / side) for side in ("ours", "kafka")]
        mine, theirs = ({"job": "parquet", "topic": TOPIC, "path": path} for path in paths)
        self.compare("topic to Parquet", mine, theirs)

    def store(self) -> None:
        """The files themselves, at rest."""
        for name, more in (("", {}), (", checkCrc=false", {"checkCrc": "false"})):
            options = {"store": str(self.mine.servers.store), **more}
            mine = {"job": "read", "topic": TOPIC, "address": "", "options": options}
            self.compare(f"store read directly{name}", mine, {"job": "read", "topic": TOPIC})

    def write(self) -> None:
        """Files to a topic; afterwards the topic's checksums must be those of the files, once for each round."""
        path = str(self.folder / "bodies")
        self.mine.do("parquet", TOPIC, path=path)
        self._load_ours(WRITTEN_TOPIC, 0, QUEUES)
        if self.theirs:
            self.theirs.do("create", WRITTEN_TOPIC, queues=QUEUES)
        self.compare("batch write", {"job": "write", "topic": WRITTEN_TOPIC, "path": path})
        # A topic whose queues keep each batch as one record; Kafka writes to its own as before.
        batches = f"{WRITTEN_TOPIC}-inner"
        create_topic(self.mine.servers.broker, batches, QUEUES, "+queue.type=BatchCQ")
        if self.theirs:
            self.theirs.do("create", batches, queues=QUEUES)
        self.compare("batch write, inner batches", {"job": "write", "topic": batches, "path": path})
        cluster = ClusterQueries(self.mine.servers.namesrv)
        kept = sum(found.next for found in cluster.bounds(cluster.queues([batches])).values())
        cluster.close()
        if kept != (self.warm + self.runs) * self.rows:
            raise SystemExit(f"{kept} rows are in the queues of {batches}, not {(self.warm + self.runs) * self.rows}")
        times = self.warm + self.runs
        for side in (self.mine, self.theirs):
            if side:
                found = side.do("check", WRITTEN_TOPIC)
                if any(found[key] != times * self.sums[key] for key in ("rows", "bytes", "crc32")):
                    raise SystemExit(f"{side.spark.side}: written were {found}, {times} times {self.sums} were given")

    def exactly_once(self) -> None:
        """Files to a topic, each row once; on our broker, then on the Java one."""
        path = str(self.folder / "bodies-once")
        self.mine.do("parquet", TOPIC, path=path)
        plain = f"{ONCE_TOPIC}-plain"
        for topic in (ONCE_TOPIC, plain):
            self._load_ours(topic, 0, QUEUES)
        if self.theirs:
            self.theirs.do("create", ONCE_TOPIC, queues=QUEUES)
        beside: list[tuple[Round, Round | None]] = []
        own: list[tuple[Figure, Figure | None]] = []
        for number in range(self.warm + self.runs):
            progress(f"exactly once: round {number + 1 - self.warm} of {self.runs}")
            found = self.mine.timed(self.rows, "write", ONCE_TOPIC, path=path, options=once(number))
            at_least = self.mine.timed(self.rows, "write", plain, path=path)
            theirs = self.theirs.timed(self.rows, "write", ONCE_TOPIC, path=path) if self.theirs else None
            beside.append((found, theirs))
            own.append((found.figure, at_least.figure))
        self._note("batch write exactly once; kafka: at least once", beside[self.warm :])
        self.show([rates_row("exactly once; not kafka: ours, at least once", "rows/s", own[self.warm :])])
        found_sums = self.mine.do("check", ONCE_TOPIC)
        if any(found_sums[key] != (self.warm + self.runs) * self.sums[key] for key in ("rows", "bytes", "crc32")):
            raise SystemExit(f"exactly once: written were {found_sums}, for each round {self.sums} were given")

    def exactly_once_java(self) -> None:
        """To the Java broker, and bare loops that tell it the same, in turn, which stand in for Kafka."""
        rows = min(self.rows, JAVA_ONCE_ROWS)
        with apache() as servers:
            path = str(self.folder / "bodies-java")
            mine = Side(self.mine.spark, servers)
            self.mine.do("some", TOPIC, path=path, count=rows)
            create_topic(servers.broker, ONCE_TOPIC, QUEUES)
            pairs: list[tuple[Figure, Figure | None]] = []
            for number in range(self.warm + self.runs):
                progress(f"exactly once, Java broker: round {number + 1 - self.warm} of {self.runs}")
                time.sleep(JAVA_MARKS_S)
                found = mine.timed(rows, "write", ONCE_TOPIC, path=path, options=once(number)).figure
                time.sleep(JAVA_MARKS_S)
                pairs.append((found, Figure(rows, half_loop(servers.broker, ONCE_TOPIC, rows, QUEUES), 0.0)))
            name = "exactly once to the Java broker; not kafka: bare loop"
            self.show([rates_row(name, "rows/s", pairs[self.warm :])])

    def inner(self) -> None:
        """Batches that the broker keeps as one record; the same rows as Kafka's."""
        topic = f"{TOPIC}-inner"
        self._load_ours(topic, self.rows, QUEUES, "+queue.type=BatchCQ")
        self.compare("batch read of inner batches", {"job": "read", "topic": topic}, {"job": "read", "topic": TOPIC})

    def naive(self) -> None:
        """Queries as most are written."""
        rows = self.plan.of(1_000_000, 200_000, 2_000)
        self._load_mixed(rows)
        given = {"job": "select", "topic": MIXED_TOPIC, "rows": rows}
        for columns, theirs in NAIVE:
            name = ", ".join(columns)
            kafka = given | {"columns": theirs}
            self.compare(f"naive: {name}", given | {"columns": columns}, kafka)
            if columns != ("*",):
                named = {"columns": ",".join(columns)}
                self.compare(f"columns named: {name}", given | {"columns": columns, "options": named}, kafka)

    def versions(self) -> None:
        """The Sparks that people have."""
        rows = self.plan.of(1_000_000, 200_000, 2_000)
        self._load_mixed(rows)
        queries = [Query("batch read", self.rows, {"job": "read", "topic": TOPIC}, {"job": "read", "topic": TOPIC})]
        for columns, theirs in NAIVE:
            given = {"job": "select", "topic": MIXED_TOPIC}
            name = f"naive {', '.join(columns)}"
            queries.append(Query(name, rows, given | {"columns": columns}, given | {"columns": theirs}))
        for found in measure(queries, self.mine, self.theirs, self.folder, warm=self.warm, runs=self.runs):
            self.show(found)

    def _load_mixed(self, rows: int) -> None:
        """The same bodies of mixed sizes to both sides, once, checked as in `load`."""
        if self._mixed_loaded:
            return
        self._mixed_loaded = True
        progress(f"our broker: {rows:,} messages of mixed sizes")
        servers = self.mine.servers
        fill(
            servers.broker,
            MIXED_TOPIC,
            rows,
            queues=QUEUES,
            body_of=mixed_body_of,
            properties_of=mixed_properties_of,
        )
        if self.theirs:
            progress(f"Kafka: {rows:,} messages of mixed sizes")
            self.theirs.do("create", MIXED_TOPIC, queues=QUEUES)
            shape = {"sizes": MIXED_BYTES, "headers": MIXED_PROPERTIES}
            self.theirs.do("fill_mixed", MIXED_TOPIC, rows=rows, queues=QUEUES, run=BATCH_COUNT, **shape)
        self._same_bodies(MIXED_TOPIC, rows)
        print(f"  {rows:,} bodies of 64 B to 4 KiB on each side: crc32 and xxhash64 agree", flush=True)

    def partitions(self) -> None:
        """How the rate grows."""
        rows = self.rows // 2
        for queues in PARTITIONS:
            topic = f"{TOPIC}-{queues}"
            self._load_ours(topic, rows, queues)
            self._load_kafka(topic, rows, queues)
            self.compare(
                f"batch read, {queues} partition{'s' * (queues > 1)}", {"job": "read", "topic": topic}, rows=rows
            )

    def java(self) -> None:
        """Our connector on the Java broker, as it is and with larger pulls allowed."""
        rows = self.rows // 2
        with apache() as servers:
            progress(f"the Java broker: {rows:,} messages")
            fill(servers.broker, JAVA_TOPIC, rows, queues=QUEUES, body_of=body_of)
            mine = self.mine
            self.mine = Side(mine.spark, servers)
            try:
                for name, config in (("32 a pull", DEFAULTS), ("4,096 a pull", RAISED)):
                    if ask(servers.broker, UPDATE_BROKER_CONFIG, config).code:
                        raise SystemExit("the Java broker did not take its settings")
                    job = {"job": "read", "topic": JAVA_TOPIC, "rows": rows}
                    self.compare(f"Java broker, {name}", job, {"job": "read", "topic": TOPIC})
                    if config is DEFAULTS:
                        self._beside_bare_pulls(f"Java broker, {name}", job)
            finally:
                self.mine = mine

    def _beside_bare_pulls(self, name: str, job: dict[str, Any]) -> None:
        """A read, and loops that pull the same messages and look at nothing, in turn, which stand in for Kafka."""
        rows, counts = job["rows"], queue_counts(job["rows"], QUEUES)
        for connections in (1, 2):
            pairs: list[tuple[Figure, Figure | None]] = []
            for number in range(1 + self.runs):
                progress(f"{name} beside a bare loop: round {number} of {self.runs}")
                found = self.mine.timed(**job).figure
                bare = pull_all(self.mine.servers, job["topic"], counts, connections=connections)
                if bare.done < rows - 32 * QUEUES:
                    raise SystemExit(f"the bare loop saw {bare.done} messages, not {rows}")
                pairs.append((found, bare))
            how = "a connection" if connections == 1 else f"{connections} connections"
            self.show([rates_row(f"{name}; not kafka: bare loop, {how}", "rows/s", pairs[1:])])

    def long(self) -> None:
        """Many messages; how much memory each process took at most."""
        rows = self.plan.of(10_000_000, 1_000_000, 10_000)
        self._load_ours(LONG_TOPIC, rows, QUEUES)
        with Peaks(self.mine.spark, self.mine.servers.pid) as peaks:
            found = self.mine.timed(rows, "check", LONG_TOPIC)
        self._note(f"batch read of {rows:,}", [(found, None)])
        self.show([Row(f"  most memory (RssAnon): {name}", mib, None, "MiB") for name, mib in peaks.mib.items()])


def once(number: int) -> dict[str, str]:
    """The options of a write exactly once; each run of a job has a name of its own."""
    return {"delivery": "exactly-once", "transactionalId": f"bench-{number}"}


def us_a_row(rounds: list[Round]) -> dict[str, float]:
    """Microseconds of processor time a row by who used it, the median of the rounds."""
    used = {}
    for at, name in enumerate(("broker", "JVM", "Python")):
        used[name] = statistics.median(r.usage[at] / r.rows * 1e6 for r in rounds)
    return used | {"all": statistics.median(sum(r.usage) / r.rows * 1e6 for r in rounds)}


@contextmanager
def sides(alone: bool, folder: Path) -> Iterator[tuple[Side, Side | None]]:
    """Both brokers and both sessions; ours only if `alone`."""
    with ExitStack() as stack:
        progress("our broker and session")
        servers = stack.enter_context(ours())
        mine = Side(stack.enter_context(spark_session(ROCKETMQ, folder)), servers)
        theirs = None
        if not alone:
            progress("Kafka's broker and session")
            servers = stack.enter_context(kafka())
            theirs = Side(stack.enter_context(spark_session(KAFKA, folder)), servers)
            print(
                f"  ours: PySpark {mine.spark.version}; Kafka {VERSION}, connector and PySpark {theirs.spark.version}"
            )
        yield mine, theirs


def run(
    plan: Plan, only: tuple[str, ...] = (), rows: int = 0, report: Path | None = None, *, full_memory: bool = False
) -> list[Row]:
    """The cases, all but the long one by default; `report`: a JSON file that holds what is found so far.

    `full_memory`: pages of files fill the memory before each case.
    """
    rows = rows or plan.of(2_000_000, 400_000, 2_000)
    with (
        tempfile.TemporaryDirectory(prefix="rocketspark-bench-spark-") as temporary,
        sides(plan.alone, Path(temporary)) as (mine, theirs),
    ):
        bench = Bench(plan, rows, Path(temporary), mine, theirs)
        bench.load()
        for name in only or [name for name in CASES if name not in ASKED_FOR and not (plan.alone and "java" in name)]:
            if full_memory:
                progress("filling the memory with pages of files")
                fill_page_cache(Path(temporary))
            getattr(bench, name)()
            if report:
                rows_found = [row._asdict() for row in bench.found]
                whole = {"machine": machine(), "plan": plan._asdict(), "full_memory": full_memory}
                whole |= {"rows": rows_found, "us_a_row": bench.where}
                report.write_text(json.dumps(whole, indent=1) + "\n")
    return bench.found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_kafka",
        description='Measures format("rocketmq") beside Spark\'s Kafka connector; only ratios of one run count.',
    )
    parser.add_argument("cases", nargs="*", metavar="case", help="; ".join(f"{k}: {v}" for k, v in CASES.items()))
    parser.add_argument("--rows", type=int, default=0, help="messages of 128 B on each side [default: 2,000,000]")
    parser.add_argument("--runs", type=int, help="paired rounds per case, the median is shown [default: 5]")
    parser.add_argument("--quick", action="store_true", help="400,000 rows, one round: to see that all is well")
    parser.add_argument("--long", action="store_true", help="10 M messages too, and the memory they take")
    parser.add_argument("--alone", action="store_true", help="without Kafka")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is found there too")
    parser.add_argument(
        "--full-memory", action="store_true", help="fill the memory with pages of files first, as after days of work"
    )
    a = parser.parse_args()
    unknown = [case for case in a.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(CASES)}")
    if a.rows < 0 or (a.runs is not None and a.runs < 1):
        parser.error("--rows and --runs: at least 1 is needed")
    cases = tuple(a.cases) or tuple(name for name in CASES if name not in ASKED_FOR)
    plan = Plan("quick" if a.quick else "full", a.runs, a.alone)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(
            plan,
            (*cases, *(("long",) if a.long and "long" not in cases else ())),
            a.rows,
            a.json,
            full_memory=a.full_memory,
        )
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
    print(f"  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
