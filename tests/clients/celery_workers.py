"""Celery workers as processes of their own, and what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from tests.support.names import own_name
from tests.support.patience import LIMIT_S

import rocketspark.kombu

ROOT = Path(__file__).resolve().parents[2]
assert rocketspark.kombu.Transport


class Stage:
    """A queue of a test's own, an app that sends to it, and workers. `options`: the transport's."""

    def __init__(self, namesrv: str, folder: Path, name: str, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.namesrv, self.folder = namesrv, folder
        self.queue = own_name(name)
        self.lines = folder / "lines"
        self.lines.touch()
        (folder / "results").mkdir(exist_ok=True)
        self.settings: dict[str, Any] = {
            "broker_url": f"rocketmq://{namesrv}",
            "broker_transport_options": {"visibility_timeout": 3},
            "result_backend": f"file://{folder}/results",
            "task_default_queue": self.queue,
            # Workers of other tests are another cluster of nodes to it.
            "control_exchange": self.queue,
            "event_exchange": f"ev-{self.queue}",
            **settings,
        }
        self.settings["broker_transport_options"]["broadcast_exchanges"] = [f"ev-{self.queue}"]
        self.app = Celery("tests", set_as_current=False)
        self.app.conf.update(**self.settings)

    def task(self, name: str) -> Any:
        """A task by its name in celery_app."""
        return self.app.signature(f"tests.clients.celery_app.{name}")

    def send(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(f"tests.clients.celery_app.{name}", arguments, **options)

    def wrote(self, kind: str) -> Counter[int]:
        """How often each number was written with a word."""
        rows = [line.split() for line in self.lines.read_text().splitlines()]
        return Counter(int(row[1]) for row in rows if row[0] == kind)

    def await_lines(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, f"{self.lines.read_text()[-500:]}\n{self.log_end()}"
            time.sleep(0.02)

    def await_done(self, count: int) -> Counter[int]:
        """Wait until so many numbers are done; returns how often each was."""
        self.await_lines(lambda: len(self.wrote("done")) >= count)
        return self.wrote("done")

    def log_end(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log")))

    @contextmanager
    def worker(
        self, name: str, *more: str, pool: str = "prefork", concurrency: int = 2, waits: bool = True
    ) -> Iterator[Worker]:
        """Run a worker while the block lasts; it is killed at the end unless it has ended."""
        made = Worker(self, name, pool, concurrency, more)
        try:
            if waits:
                made.await_ready()
            yield made
        finally:
            made.end()

    def close(self) -> None:
        self.app.close()


class Worker:
    """A worker's process, with those of its pool."""

    def __init__(self, stage: Stage, name: str, pool: str, concurrency: int, more: tuple[str, ...]) -> None:
        self.log = stage.folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.clients.celery_app", "worker"]
        command += ["-n", f"{name}@test", "-P", pool, "-c", str(concurrency), "-l", "INFO", *more]
        environment = {**os.environ, "CELERY_TEST": json.dumps(stage.settings), "C_FORCE_ROOT": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0
            )

    def await_log(self, text: str) -> None:
        end = time.monotonic() + LIMIT_S
        while text not in self.log.read_text():
            alive = time.monotonic() < end and self.process.poll() is None
            assert alive, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def await_ready(self) -> None:
        self.await_log(" ready.")

    def kill(self) -> None:
        """End all its processes as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end: SIGTERM is a warm shutdown, SIGQUIT a cold one. Returns its exit code."""
        self.process.send_signal(how)
        return self.process.wait(LIMIT_S)

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
