"""One run: every stage in its order."""

from __future__ import annotations

import os
import shlex
import shutil
import uuid
from contextlib import ExitStack
from pathlib import Path

from examples.flights import report, source, summaries
from examples.flights.check import Check, check
from examples.flights.cluster import create_topics, rocketmq, spark_session
from examples.flights.job import FlightJob
from examples.flights.replay import replay
from examples.flights.stages import Interrupts, Stages, console, progress_bar


def run(folder: Path, interrupts: Interrupts, count: int | None = None) -> int:
    """Run all stages, with all flights or the first `count`; returns 0 if every figure was right, else 1."""
    # Marks this run's messages: an existing cluster may hold those of others.
    run_id = uuid.uuid4().hex[:12]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stages = Stages()

    with stages.stage("Read the flights"):
        flights = source.load(count)

    with ExitStack() as running:
        with stages.stage("Start NameServer and broker"):
            namesrv = running.enter_context(rocketmq(folder, interrupts))
            create_topics(namesrv, {source.FLIGHTS_TOPIC: 8, summaries.SUMMARIES_TOPIC: 4})

        with (
            stages.stage(f"Replay the flights into topic {source.FLIGHTS_TOPIC}"),
            progress_bar("flights", len(flights)) as show,
        ):
            replayed = replay(namesrv, source.messages(flights, run_id), show)

        with stages.stage("Start Spark"):
            spark = running.enter_context(spark_session(folder, interrupts))
            job = FlightJob(spark, namesrv, run_id, folder)

        with (
            stages.stage("Stream the flights to Parquet and delay statistics"),
            progress_bar("flights", len(flights)) as show,
        ):
            job.read_flights(replayed, show)

        with stages.stage(f"Publish a summary per carrier and month to topic {summaries.SUMMARIES_TOPIC}"):
            published = job.publish_summaries()

        with stages.stage(f"Read the summaries as consumer group {summaries.GROUP}"):
            consumed = summaries.consume(namesrv, run_id, published)

        with stages.stage("Stop Spark, broker and NameServer"):
            running.close()

    names = source.carrier_names()
    console.print(report.delay_table(consumed, names))

    with stages.stage("Check every figure against the source data"):
        checks = check(flights, replayed, job.flights_path, job.delays_path, published, consumed)

    with stages.stage("Write the report"):
        plot_path, page_path = folder / "delays.png", folder / "report.html"
        report.plot(consumed, job.delays_path, plot_path)
        report.write_page(page_path, plot_path, consumed, names, stages.seconds, checks)

    return verdict(checks, stages, plot_path, page_path, look_command(folder))


def look_command(folder: Path) -> str:
    """Return the command that opens the console on what the run left in the cluster."""
    if existing := os.environ.get("NAMESRV"):
        return shlex.join(["rocketspark", "console", "-n", existing])
    return shlex.join(["rocketspark", "server", "--store", os.path.relpath(folder / "store"), "--console-port", "8080"])


def verdict(checks: list[Check], stages: Stages, plot_path: Path, page_path: Path, look: str) -> int:
    """Say how it went. `look`: the command that shows the messages."""
    console.print(report.stage_table(stages.seconds))
    console.print(f"plot    {plot_path}", f"report  {page_path}", sep="\n", soft_wrap=True, highlight=False)
    wrong = [c for c in checks if not c.passed]
    for found in wrong:
        console.print(f"DIFFERS: {found.what}: expected {found.expected}, found {found.found}", style="bold red")
    if wrong:
        return 1
    console.print(
        f"all {len(checks)} checks passed: every count and checksum is that of the source", style="bold green"
    )
    console.print(f"see its messages in the browser: .venv/bin/{look}, then http://127.0.0.1:8080/", soft_wrap=True)
    return 0
