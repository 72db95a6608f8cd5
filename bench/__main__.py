"""`make bench`, or `python -m bench [part ...]`: every peer in the same run, ratios printed."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.plan import Plan
from bench.report import Row

PARTS = {
    "raw": "raw sends to the broker, beside the Java broker 5.5.0",
    "pull": "raw pulls from the broker, beside the Java broker 5.5.0",
    "pop": "messages popped and acknowledged one by one, beside the Java broker 5.5.0",
    "v5": "sends and receives of RocketMQ 5's gRPC protocol, beside Apache's proxy 5.5.0",
    "sync-flush": "raw sends, on disk before the reply, beside the Java broker",
    "replication": "sends to pairs of brokers, synchronous and asynchronous, and failover, beside Java pairs",
    "consume": "1 M messages through the Java client, from our broker and from the Java broker",
    "waiting": "2,000 waiting pulls: idle processor time, and send to answer, beside the Java broker",
    "connections": "1,000 connections that send and pull, beside the Java broker",
    "hostile": "a client that sends and pulls beside attackers, 200 attacks a second of 11 kinds",
    "queues": "10,000 queues: creation, sends, disk, memory, restart",
    "lite": "100,000 lite topics: the first message of each, sends, memory, files, restart, beside the Java broker",
    "backlog": "10 M messages: written, then pulled at the start, in the middle, at the end, beside a fresh broker",
    "console": "the console's pages on 1,000 topics and 10,000 queues, and sends with it open and closed",
    "route": "route queries to the NameServer, beside the Java NameServer",
    "brokers": "sends to one and two broker processes, processor time of each",
    "security": "sends and connections over TLS, beside the Java broker",
    "growth": "how cost grows with body size, queues, connections and batches",
    "embedded": "time until the embedded server is ready, and its idle memory",
    "client": "our client and broker beside the Java client and broker",
    "open-loop": "latency of sends at 1,000 to 50,000 a second, beside the Java client and confluent-kafka",
    "kafka": "our client and broker beside confluent-kafka and aiokafka on Kafka 4.1.0",
    "celery": "Celery's tasks on our broker, beside Celery on Redis",
    "spark": "Spark batch read of 2 M messages, and where the time goes",
    "flat": "memory of our clients over 20 M messages each; only when named",
}

WHEN_NAMED = ("flat",)
MODULES = {"pull": "raw_pull", "spark": "spark_read", "celery": "celery_rates"}


def main() -> None:
    """Run the parts asked for, by default all but those of WHEN_NAMED.

    However it ends, the servers it started have ended before.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)


def run_part(part: str, plan: Plan) -> list[Row]:
    """Run one part, which prints its rows as they come."""
    rows: list[Row] = importlib.import_module(f"bench.{MODULES.get(part, part.replace('-', '_'))}").run(plan)
    return rows


def _run() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures RocketSpark beside its peers in one run; only the ratios count on a shared machine.",
        epilog="example: python -m bench raw sync-flush --runs 5",
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(f"{k} ({v})" for k, v in PARTS.items()))
    parser.add_argument("--runs", type=int, help="paired rounds per case, the median is shown [default: 3 or 5]")
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that all is well")
    parser.add_argument("--alone", action="store_true", help="without the Java servers, where a part can do so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--size", choices=("full", "quick", "tiny"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [p for p in arguments.parts if p not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if arguments.runs is not None and arguments.runs < 1:
        parser.error("--runs: at least 1 is needed")
    plan = Plan(arguments.size or ("quick" if arguments.quick else "full"), arguments.runs, arguments.alone)
    _allow_files()
    parts: dict[str, Any] = {}
    for part in arguments.parts or [p for p in PARTS if p not in WHEN_NAMED]:
        print(f"\n{part}: {PARTS[part]}", flush=True)
        started = time.monotonic()
        rows, failed = _try(part, plan)
        taken = time.monotonic() - started
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        print(f"  {taken:.0f} s, load average {load:.1f}", flush=True)
        parts[part] = {"seconds": taken, "load_average": load, "failed": failed}
        parts[part]["rows"] = [row._asdict() for row in rows]
        if arguments.json:
            found = {"machine": machine(), "plan": plan._asdict(), "parts": parts}
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if failures := [part for part, found in parts.items() if found["failed"]]:
        sys.exit(f"failed: {', '.join(failures)}")


def _try(part: str, plan: Plan) -> tuple[list[Row], str | None]:
    """The part's rows, or what made it fail: the others are run all the same."""
    try:
        return run_part(part, plan), None
    except SystemExit as e:
        if not isinstance(e.code, str):
            raise
        failure = e.code
    except Exception as e:
        traceback.print_exc()
        failure = f"{type(e).__name__}: {e}"
    print(f"  {part} failed: {failure}", flush=True)
    return [], failure


def _allow_files() -> None:
    """As many open files as may be: 1,000 connections, 10,000 queues; servers started from here have the same."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def machine() -> dict[str, Any]:
    """What the figures were found on."""
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


if __name__ == "__main__":
    main()
