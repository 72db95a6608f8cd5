"""Streams from a topic to a Delta and an Iceberg table on s3a://, whose driver is killed in the middle of requests.

Rule: the store fails by plan all the while; in the end each table holds each message once. The kill falls on a request
that writes, so between any two steps of a commit; what is chosen follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ports import server_ports
from tests.spark.lakehouse.drivers import driver, settings
from tests.spark.lakehouse.fault_plan import KillPlan
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, s3_store

from rocketspark import Message, Producer
from rocketspark.testing import ServerProcess

TOPIC = "lake-source"
ROWS_PER_RUN = 300
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
LIMIT_S = 200


class KillsOnS3a:
    """One run. `sent`: rows; `killed`: drivers; `faults`: what the proxy did, by kind."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self.say = folder, say
        self.chance = random.Random(seed)
        self.sent = self.killed = 0
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
                for number in range(kills + 1):
                    self._send(server.namesrv)
                    self._one_driver(conf, server.namesrv, last=number == kills)
            finally:
                server.stop()
                self.faults = store.proxy.faults

    def _spec(self, conf: dict[str, str], namesrv: str) -> dict[str, Any]:
        read = {"namesrv": namesrv, "topic": TOPIC, "startingOffsets": "earliest", "maxMessagesPerTrigger": "150"}
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

    def _one_driver(self, conf: dict[str, str], namesrv: str, *, last: bool) -> None:
        with driver(self._spec(conf, namesrv), self.folder / "driver.log", KEYS) as job:
            job.until("ready")
            if not last:
                self._plan.kill_after(self.chance.randrange(4, 30))
                assert self._plan.hit.wait(LIMIT_S), self.log_end()
                job.kill()
                self.killed += 1
                self.say(f"kill {self.killed}: driver at {self._plan.where}, {self.sent} rows sent")
                return
            job.tell("")
            job.until("done")
            numbers = range(self.sent)
            for name in ("delta", "iceberg"):
                found = job.until("table")
                assert found["table"] == name
                assert found["totals"][:3] == [self.sent, self.sent, sum(numbers)], found
            assert job.process.wait(60) == 0

    def log_end(self) -> str:
        """The end of what the drivers logged."""
        return (self.folder / "driver.log").read_text()[-3000:]
