"""Streams from a topic to a Delta and an Iceberg table on s3a://, whose driver is killed in the middle of requests.

Rule: the store fails by plan all the while; in the end each table holds each message once. The kill falls on a request
that writes, so between any two steps of a commit; what is chosen follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.lakehouse.drivers import driver, settings
from tests.spark.lakehouse.fault_plan import KillPlan
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, s3_store
from tests.support.ports import server_ports

from rocketspark import Message, Producer
from rocketspark.testing import ServerProcess

TOPIC = "lake-source"
ROWS_PER_RUN = 300
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
LIMIT_S = 200
# Where the writes of each table's query go: kills take turns, as Iceberg's has many more.
PLACES = {"delta": ("/lake/delta/",), "iceberg": ("/lake/ice/", "/lake/checkpoint/")}
# Spark ends a query whose Python does not start within 10 s.
WORKER_LATE, LATE_MAX = "Python worker failed to connect back", 3


class KillsOnS3a:
    """One run. `sent`: rows; `killed`: drivers; `faults`: what the proxy did, by kind."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self.say = folder, say
        self.chance = random.Random(seed)
        self.sent = self.killed = self._late = 0
        self.faults: dict[str, int] = {}
        self._plan = KillPlan()

    def run(self, kills: int) -> None:
        """Kill that many drivers, then let one finish and compare what the tables hold with what was sent."""
        server = ServerProcess(self.folder / "store", **server_ports())
        with s3_store("lake") as store:
            store.proxy.plan = self._plan
            server.start()
            try:
                conf = settings(store, self.folder)
                for _ in range(kills):
                    self._send(server.namesrv)
                    self._one_kill(conf, server.namesrv)
                self._send(server.namesrv)
                while not self._is_compared(conf, server.namesrv):
                    pass
            finally:
                server.stop()
                self.faults = store.proxy.faults

    def _spec(self, conf: dict[str, str], namesrv: str, per_trigger: int) -> dict[str, Any]:
        read = {"namesrv": namesrv, "topic": TOPIC, "startingOffsets": "earliest"}
        read |= {"maxMessagesPerTrigger": str(per_trigger)}
        delta = {"path": "s3a://lake/delta", "checkpoint": str(self.folder / "checkpoint")}
        iceberg = {"checkpoint": "s3a://lake/checkpoint"}
        stream = {"do": "stream", "read": read, "delta": delta, "iceberg": iceberg}
        totals = {"do": "totals", "delta": delta["path"], "iceberg": True}
        return {"conf": conf, "places": ["s3a://lake"], "steps": [stream, totals]}

    def _send(self, namesrv: str) -> None:
        with Producer(namesrv, group="lake") as producer:
            for n in range(self.sent, self.sent + ROWS_PER_RUN):
                producer.send(Message(topic=TOPIC, body=str(n).encode()))
        self.sent += ROWS_PER_RUN

    def _one_kill(self, conf: dict[str, str], namesrv: str) -> None:
        with driver(self._spec(conf, namesrv, 150), self.folder / "driver.log", KEYS) as job:
            job.until("ready")
            name = tuple(PLACES)[self.killed % len(PLACES)]
            self._plan.kill_after(self.chance.randrange(2, 15), *PLACES[name])
            assert self._plan.hit.wait(LIMIT_S), self.log_end()
            job.kill()
        self.killed += 1
        self.say(f"kill {self.killed}: {name} at {self._plan.where}, {self.sent} rows sent")

    def _is_compared(self, conf: dict[str, str], namesrv: str) -> bool:
        """Let a driver take all that is left, and compare. False if a busy machine ended it: one more kill."""
        log = self.folder / "driver.log"
        before = len(log.read_text())
        # One micro-batch: nothing is killed any more.
        with driver(self._spec(conf, namesrv, 1_000_000), log, KEYS) as job:
            job.until("ready")
            job.tell("")
            try:
                job.until("done")
            except AssertionError:
                if WORKER_LATE not in log.read_text()[before:] or self._late == LATE_MAX:
                    raise
                self._late += 1
                return False
            numbers = range(self.sent)
            for name in ("delta", "iceberg"):
                found = job.until("table")
                assert found["table"] == name
                assert found["totals"][:3] == [self.sent, self.sent, sum(numbers)], found
            assert job.process.wait(60) == 0
        return True

    def log_end(self) -> str:
        """The end of what the drivers logged."""
        return (self.folder / "driver.log").read_text()[-3000:]
