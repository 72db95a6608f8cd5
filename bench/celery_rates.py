"""Celery's tasks on our broker, beside Celery on Redis: sends, tasks of a full queue, and the time of one task.

Each as a user who changes nothing runs it: a worker with two processes, Celery's own settings, servers' own settings.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from celery import Celery

import rocketspark.kombu
from bench.peers import ours, stop
from bench.plan import Plan
from bench.report import Row, percentile, progress, show, values_row

assert rocketspark.kombu.Transport
LIMIT_S = 600.0
PAUSE_S = 0.0002


class Side:
    """One broker's URL, and the file whose size is how many tasks were done."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        self.name, self.url = name, url
        self.done = folder / f"{name}.done"
        self.log = folder / f"{name}.log"
        self.done.touch()
        self.app = Celery("bench", broker=url, set_as_current=False)

    def send(self, count: int) -> float:
        """Send tasks one after the other; returns how many a second."""
        began = time.perf_counter()
        for _ in range(count):
            self.app.send_task("bench.celery_tasks.one", ignore_result=True)
        return count / (time.perf_counter() - began)

    def wait(self, count: int) -> None:
        """Wait until so many tasks are done in all."""
        end = time.monotonic() + LIMIT_S
        while (done := self.done.stat().st_size) < count:
            if time.monotonic() > end:
                sys.exit(f"only {done} of {count} tasks were done on {self.name}: {self.log.read_text()[-1000:]}")
            time.sleep(PAUSE_S)

    @contextmanager
    def worker(self, *, late: bool) -> Iterator[None]:
        """Run a worker while the block lasts."""
        command = [sys.executable, "-m", "celery", "-A", "bench.celery_tasks", "worker", "-c", "2", "-l", "WARNING"]
        more = {"BENCH_CELERY_URL": self.url, "BENCH_CELERY_DONE": str(self.done), "BENCH_CELERY_LATE": "no"}
        more |= {"BENCH_CELERY_LATE": "yes"} if late else {}
        with self.log.open("ab") as log:
            worker = subprocess.Popen(command, env=os.environ | more, stdout=log, stderr=log)
        try:
            yield
        finally:
            stop(worker)

    def tasks(self, count: int, *, late: bool) -> float:
        """Fill the queue, then have a worker empty it; returns tasks a second, from the first tenth on."""
        before = self.done.stat().st_size
        self.send(count)
        with self.worker(late=late):
            self.wait(before + count // 10)
            began = time.perf_counter()
            self.wait(before + count)
            return (count - count // 10) / (time.perf_counter() - began)

    def latencies_ms(self, count: int) -> list[float]:
        """Send tasks to an idle worker, one at a time; returns the time of each from the send on."""
        times = []
        with self.worker(late=False):
            for number in range(count + 1):
                before, began = self.done.stat().st_size, time.perf_counter()
                self.send(1)
                self.wait(before + 1)
                # The first one waits for the worker's start.
                times += [(time.perf_counter() - began) * 1000] if number else []
                time.sleep(0.02)
        return times


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run a Redis server; gives its URL."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("the part celery needs Redis: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        stop(server)


def run(plan: Plan) -> list[Row]:
    """Sends and tasks a second, and a task's time, of both sides in turn."""
    sends, late, early, middle, high = [], [], [], [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketspark-bench-celery-")))
        sides = [Side("ours", f"rocketmq://{stack.enter_context(ours(config=plan.config)).namesrv}", folder)]
        if not plan.alone:
            sides.append(Side("redis", stack.enter_context(redis(folder)), folder))
        for number in range(plan.rounds()):
            progress(f"celery, round {number + 1}")
            count = plan.of(5000, 1000, 20)
            sends.append(_pair([_settled(side, count) for side in sides]))
            early.append(_pair([side.tasks(count, late=False) for side in sides]))
            late.append(_pair([side.tasks(count, late=True) for side in sides]))
            times = [side.latencies_ms(plan.of(100, 50, 3)) for side in sides]
            middle.append(_pair([percentile(found, 0.5) for found in times]))
            high.append(_pair([percentile(found, 0.99) for found in times]))
    rows = [
        values_row("tasks sent, one after the other", "/s", sends),
        values_row("tasks done, acknowledged at their begin", "/s", early),
        values_row("tasks done, acknowledged at their end", "/s", late),
        values_row("send to done, idle worker, median", "ms", middle, less_is_better=True),
        values_row("send to done, idle worker, p99", "ms", high, less_is_better=True),
    ]
    show(rows, peer="redis")
    return rows


def _settled(side: Side, count: int) -> float:
    """Return how many tasks were sent a second, once the queue is empty again."""
    rate = side.send(count)
    side.app.control.purge()
    return rate


def _pair(found: list[float]) -> tuple[float, float | None]:
    return found[0], found[1] if len(found) > 1 else None
