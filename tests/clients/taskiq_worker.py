"""A taskiq worker in this process, as taskiq's API runs one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from taskiq.api import run_receiver_task

from rocketspark.taskiq import RocketBroker


@asynccontextmanager
async def worker(broker: RocketBroker, **options: Any) -> AsyncIterator[None]:
    """A worker while the block lasts; what it holds then is not acknowledged."""
    task = asyncio.create_task(run_receiver_task(broker, **options))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
