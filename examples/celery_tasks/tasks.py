"""The app: what both workers and those who send tasks import."""

from __future__ import annotations

import os
import time

from celery import Celery

import rocketspark.kombu

assert rocketspark.kombu.Transport  # The import makes rocketmq:// known.

app = Celery("tasks", broker=os.environ.get("BROKER_URL", "rocketmq://127.0.0.1:9876"))
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    # The tasks of a worker that died are given to others after so many seconds.
    broker_transport_options={"visibility_timeout": 5},
)


@app.task
def resize(picture: int, done: str) -> None:
    """Work for a moment, then note in a file that it is done: doing it twice does no harm."""
    time.sleep(0.01)
    with open(done, "a", encoding="utf-8") as file:
        file.write(f"{picture} {os.getpid()}\n")
