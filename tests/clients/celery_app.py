"""The tasks that the tests' Celery workers run: each writes a line into a file that it is given.

Started as `python -m celery -A tests.clients.celery_app worker`; CELERY_TEST holds the settings as JSON.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery, Task

import rocketspark.kombu

assert rocketspark.kombu.Transport

app = Celery("tests", set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
    **json.loads(os.environ.get("CELERY_TEST", "{}")),
)


def note(path: str, *words: object) -> None:
    """Append a line, whole also if others write at the same time."""
    line = " ".join(map(str, words)) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@app.task
def done(path: str, number: int, work_s: float = 0, gate: str = "") -> int:
    """Work for a time, and until the file `gate` is there."""
    note(path, "began", number, os.getpid())
    time.sleep(work_s)
    while gate and not os.path.exists(gate):
        time.sleep(0.01)
    note(path, "done", number, os.getpid())
    return number


@app.task
def add(one: float, other: float) -> float:
    return one + other


@app.task
def total(numbers: list[float]) -> float:
    return sum(numbers)


# Without a delay Celery may note RETRY when another worker has noted the success already.
@app.task(bind=True, max_retries=3, default_retry_delay=0.5)
def fails_twice(self: Task[Any, Any], path: str) -> int:
    note(path, "attempt", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(exc=ValueError("not yet"))
    return int(self.request.retries)
