"""Streams from a topic to files and to another topic, while executors, driver and broker are killed at random.

Rule: what is in the input topic in the end is once in each output; victims and moments follow from the seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset
from tests.spark.standalone import LOOPBACK, Standalone, environment, until
from tests.spark.topics import messages_of
from tests.support.ports import server_ports

from rocketspark import Message, Producer
from rocketspark.admin.operations import Admin
from rocketspark.errors import RocketSparkError
from rocketspark.testing import ServerProcess

ROOT = Path(__file__).parents[2]
VICTIMS = ("executor", "driver", "broker")
SOURCE, TARGET = "kill-source", "kill-target"
ROWS_PER_S = 200
# Each row is read twice, by either stream.
AHEAD_MAX = 600
CONFIG = {"flushIntervalCommitLog": 50, "transactionTimeOut": 1000, "transactionCheckInterval": 1000}
SETTINGS = LOOPBACK | {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    # A killed executor's tasks count as failed.
    "spark.task.maxFailures": "20",
}


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found.append(int(entry.name))
    return found


def end_tree(pid: int) -> None:
    """SIGKILL a process and all below it."""
    for child in children(pid):
        end_tree(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Driver:
    """The driver as a process. `batches`: how many micro-batches with rows it has told of; `told(rows)`: of each."""

    def __init__(self, spec: dict[str, Any], log: Path, told: Callable[[int], None] = lambda rows: None) -> None:
        self.batches = 0
        self.told = told
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.job", json.dumps(spec)],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.batches += 1
                self.told(json.loads(line)["rows"])

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def ask_to_end(self) -> None:
        """Have it end once it has done all there is."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        end_tree(self.process.pid)
        self.finish()

    def finish(self, limit_s: float = 300) -> int:
        """Wait for its end; its exit code."""
        try:
            return self.process.wait(limit_s)
        finally:
            end_tree(self.process.pid)
            self._reader.join(5)
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


@dataclass
class Kills:
    """One run on a standalone cluster. `sent`, `seen`: rows sent, and read by both streams; `say`: a line per kill."""

    folder: Path
    cluster: Standalone
    seed: int
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(self.seed)
        self.server = ServerProcess(self.folder / "store", **server_ports(), config=CONFIG)
        self.stopped = threading.Event()
        self.sent = 0
        self.seen = 0

    @property
    def spec(self) -> dict[str, Any]:
        namesrv = self.server.namesrv
        read = {
            "namesrv": namesrv,
            "topic": SOURCE,
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": "200",
            "pollTimeoutMs": "5000",
        }
        place = "concat_ws('-', broker, queueId, queueOffset)"
        files = {
            "read": read,
            "select": [f"{place} AS place", "body"],
            "format": "parquet",
            "write": {"path": str(self.folder / "files")},
            "checkpoint": str(self.folder / "checkpoint-files"),
        }
        topic = {
            "read": read,
            "select": [f"map('place', {place}) AS properties", "body"],
            "format": "rocketmq",
            "write": {"namesrv": namesrv, "topic": TARGET, "delivery": "exactly-once", "transactionalId": "kills"},
            "checkpoint": str(self.folder / "checkpoint-topic"),
        }
        return {"master": self.cluster.master, "settings": SETTINGS, "streams": [files, topic]}

    def run(self, victims: list[str]) -> None:
        """Kill them in turn, then let the streams finish and compare."""
        self.server.start()
        sender = threading.Thread(target=self._send)
        driver: Driver | None = None
        try:
            for topic in (SOURCE, TARGET):
                self._create(topic)
            sender.start()
            driver = self._start()
            for number, victim in enumerate(victims):
                driver = self._until_it_works(driver)
                time.sleep(self.chance.uniform(0, 1.5))
                self.say(f"kill {number + 1}: {victim}, after {self.sent} rows sent")
                if victim == "executor":
                    self._kill_executor()
                elif victim == "broker":
                    self.server.kill()
                    self.server.restart()
                else:
                    driver.kill()
            driver = self._until_it_works(driver)
            self.stopped.set()
            sender.join()
            driver.ask_to_end()
            assert driver.finish() == 0, driver.log.read_text()[-4000:]
            self.compare()
        finally:
            self.stopped.set()
            if driver is not None:
                driver.kill()
            if sender.is_alive():
                sender.join()
            self.server.kill()

    def _create(self, topic: str) -> None:
        with Admin(self.server.namesrv) as admin:
            admin.create_topic(topic, queue_count=2)

    def _start(self) -> Driver:
        return Driver(self.spec, self.folder / "driver.log", self._saw)

    def _saw(self, rows: int) -> None:
        self.seen += rows

    def _until_it_works(self, driver: Driver) -> Driver:
        """Wait for two micro-batches more; a driver that has ended is started again, as whoever runs one would."""
        end = time.monotonic() + 400
        seen = driver.batches
        starts = 0
        while driver.batches < seen + 2:
            assert time.monotonic() < end, driver.log.read_text()[-4000:]
            if driver.ended:
                starts += 1
                assert starts < 4, driver.log.read_text()[-4000:]
                driver.kill()
                driver = self._start()
                seen = 0
            time.sleep(0.05)
        return driver

    def _kill_executor(self) -> None:
        def executors() -> list[int]:
            return [child for worker in self.cluster.worker_pids for child in children(worker)]

        until(executors)
        end_tree(self.chance.choice(sorted(executors())))

    def _send(self) -> None:
        """Rows at a steady rate, not far ahead of what was read; what was sent again may be in the topic twice."""
        with Producer(self.server.namesrv, "kill-sender", send_timeout_ms=60_000, retries=1000) as producer:
            while not self.stopped.is_set():
                if self.sent > self.seen // 2 + AHEAD_MAX:
                    self.stopped.wait(0.1)
                    continue
                try:
                    producer.send_batch(
                        [Message(topic=SOURCE, body=b"%d" % (self.sent + i)) for i in range(ROWS_PER_S // 10)]
                    )
                except RocketSparkError:
                    continue
                self.sent += ROWS_PER_S // 10
                self.stopped.wait(0.1)

    def compare(self) -> None:
        """Every input row is once in the files and once in the topic."""
        source = messages_of(self.server.namesrv, SOURCE)
        wanted = {f"{m.broker_name}-{m.queue_id}-{m.queue_offset}": m.body for m in source}
        assert {int(body) for body in wanted.values()} >= set(range(self.sent))
        same("files", Counter(self._files()), wanted)
        target = messages_of(self.server.namesrv, TARGET)
        same("topic", Counter((m.properties["place"], m.body) for m in target), wanted)

    def _files(self) -> Iterator[tuple[str, bytes]]:
        # Spark's log of what was committed names the files that count.
        log = self.folder / "files" / "_spark_metadata"
        names: dict[str, str] = {}
        for part in log.iterdir():
            if part.name.startswith("."):
                continue
            for line in part.read_text().splitlines()[1:]:
                entry = json.loads(line)
                names[entry["path"]] = entry["action"]
        paths = [path.removeprefix("file://") for path, action in names.items() if action == "add"]
        table = pyarrow.dataset.dataset(paths, format="parquet").to_table()
        yield from zip(table["place"].to_pylist(), table["body"].to_pylist(), strict=True)


def same(what: str, found: Counter[tuple[str, bytes]], wanted: dict[str, bytes]) -> None:
    """Fail with what is missing, doubled or strange."""
    expected = Counter(wanted.items())
    missing, more = expected - found, found - expected
    assert not missing, f"{what}: {missing.total()} rows are missing, such as {sorted(missing)[:5]}"
    assert not more, f"{what}: {more.total()} rows are there too often, such as {sorted(more)[:5]}"
