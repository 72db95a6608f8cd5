"""The broker and its tasks: what both workers and those who send tasks import."""

from __future__ import annotations

import asyncio
import os

from rocketspark.taskiq import RocketBroker

# The tasks of a worker that died are given to others after so many seconds.
broker = RocketBroker(os.environ.get("NAMESRV", "127.0.0.1:9876"), topic="pictures", visibility_timeout=3)


@broker.task
async def resize(picture: int, done: str) -> None:
    """Work for a moment, then note in a file that it is done: doing it twice does no harm."""
    await asyncio.sleep(0.01)
    with open(done, "a", encoding="utf-8") as file:
        file.write(f"{picture} {os.getpid()}\n")
