"""The tasks of `bench celery`: each adds a byte to a file, whose size is how many are done."""

from __future__ import annotations

import os

from celery import Celery

import rocketspark.kombu

assert rocketspark.kombu.Transport
app = Celery("bench", broker=os.environ.get("BENCH_CELERY_URL", "memory://"), set_as_current=False)
app.conf.task_acks_late = os.environ.get("BENCH_CELERY_LATE") == "yes"
app.conf.broker_connection_retry_on_startup = True
DONE = os.environ.get("BENCH_CELERY_DONE", os.devnull)


@app.task(ignore_result=True)
def one() -> None:
    """Do nothing but say so."""
    descriptor = os.open(DONE, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b".")
    os.close(descriptor)
