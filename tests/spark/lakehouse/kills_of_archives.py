"""A driver that archives a topic to tables is killed in the midst of commits; then the tables hold each message once.

Rule: on s3a:// the kill falls on a request that writes, while the store fails by plan; on a disk when so many more
files are there. The formats take turns; what is chosen follows from the seed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.lakehouse.drivers import JobDriver, driver, local_settings, settings
from tests.spark.lakehouse.fault_plan import KillPlan
from tests.spark.lakehouse.kills_on_s3a import KEYS
from tests.spark.lakehouse.s3 import s3_store
from tests.support.ports import server_ports

from rocketspark import Message, Producer
from rocketspark.testing import ServerProcess

TOPIC = "archived"
FORMATS = ("delta", "iceberg")
ROWS_PER_RUN = 300
BATCH_ROWS = 60
LIMIT_S = 300.0


class KillsOfArchives:
    """One run, on s3a:// or in a folder. `sent`: rows; `killed`: drivers by format; `faults`: the store's, by kind."""

    def __init__(
        self, folder: Path, seed: int, *, on_s3a: bool, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.folder, self.on_s3a, self.say = folder, on_s3a, say
        self.chance = random.Random(seed)
        self.sent = 0
        self.killed = dict.fromkeys(FORMATS, 0)
        self.faults: dict[str, int] = {}
        self._plan = KillPlan()

    def run(self, kills: int) -> None:
        """Kill that many drivers, then let one finish and compare what the tables hold with what was sent."""
        server = ServerProcess(self.folder / "store", **server_ports())
        with s3_store("lake") as store:
            store.proxy.plan = self._plan
            server.start()
            try:
                conf = settings(store, self.folder) | local_settings() if self.on_s3a else local_settings()
                for number in range(kills):
                    self._send(server.namesrv)
                    self._one_kill(conf, server.namesrv, FORMATS[number % len(FORMATS)])
                self._send(server.namesrv)
                self._compare(conf, server.namesrv)
            finally:
                server.stop()
                self.faults = store.proxy.faults

    def _send(self, namesrv: str) -> None:
        with Producer(namesrv, group="archives") as producer:
            for n in range(self.sent, self.sent + ROWS_PER_RUN):
                producer.send(Message(topic=TOPIC, body=str(n).encode()))
        self.sent += ROWS_PER_RUN

    def _step(self, do: str, table_format: str, namesrv: str) -> dict[str, Any]:
        place = f"s3a://lake/{table_format}" if self.on_s3a else str(self.folder / table_format)
        catalog = f"jdbc:sqlite:{self.folder}/catalog.db" if table_format == "iceberg" else ""
        step = {"do": do, "namesrv": namesrv, "place": place, "catalog": catalog, "format": table_format}
        return step | {"topics": [TOPIC], "topic": TOPIC, "batch_rows": BATCH_ROWS}

    def _spec(self, conf: dict[str, str]) -> dict[str, Any]:
        return {"conf": conf, "places": ["s3a://lake"] if self.on_s3a else []}

    def _one_kill(self, conf: dict[str, str], namesrv: str, table_format: str) -> None:
        with driver(self._spec(conf), self.folder / "driver.log", KEYS, "archive_job") as job:
            job.until("ready")
            job.tell(json.dumps(self._step("archive", table_format, namesrv)))
            self._await(job, self.folder / table_format)
            job.kill()
        self.killed[table_format] += 1
        self.say(f"kill {sum(self.killed.values())}: {table_format} at {self._plan.where}, {self.sent} rows sent")

    def _await(self, job: JobDriver, folder: Path) -> None:
        """Wait for the moment of a kill."""
        if self.on_s3a:
            self._plan.kill_after(self.chance.randrange(3, 25))
            assert self._plan.hit.wait(LIMIT_S), self.log_end()
            return
        wanted, until = files_in(folder) + self.chance.randrange(1, 40), time.monotonic() + LIMIT_S
        while (found := files_in(folder)) < wanted:
            assert time.monotonic() < until, self.log_end()
            if job.said_already():
                break  # All was archived before: the kill comes after the last commit.
            time.sleep(0.002)
        self._plan.where = f"{found} files"

    def _compare(self, conf: dict[str, str], namesrv: str) -> None:
        with driver(self._spec(conf), self.folder / "driver.log", KEYS, "archive_job") as job:
            job.until("ready")
            for table_format in FORMATS:
                done = job.ask(**self._step("archive", table_format, namesrv) | {"batch_rows": 1_000_000})
                assert done.get("total_rows") == self.sent, (table_format, done)
                found = job.ask(**self._step("figures", table_format, namesrv))
                assert (found["rows"], found["places"]) == (self.sent, self.sent), found
                same = job.ask(**self._step("compare", table_format, namesrv))
                assert (same["ok"], same["other_messages"]) == (True, self.sent), same

    def log_end(self) -> str:
        """The end of what the drivers logged."""
        return (self.folder / "driver.log").read_text()[-3000:]


def files_in(folder: Path) -> int:
    """How many files are in a folder and below."""
    return sum(len(files) for _, _, files in os.walk(folder))
