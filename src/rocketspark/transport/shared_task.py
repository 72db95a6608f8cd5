"""One task whose outcome many wait for, and the end of tasks. Rule: a waiter that stops waiting costs the others
nothing, and ends nothing.
"""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, TypeVar

from rocketspark.errors import RocketSparkError

T = TypeVar("T")


async def outcome_of(task: asyncio.Future[T]) -> T:
    """Return a task's result once it is there, or raise its error; the task goes on if its waiter is cancelled.

    It does what asyncio.shield does, but that looks through all other waiters whenever one of them gives up.
    """
    if not task.done():
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(done: asyncio.Future[T]) -> None:
            if not done.cancelled():
                done.exception()  # Looked at, in case that nobody waits for it any more.
            if not waiter.done():
                waiter.set_result(None)

        task.add_done_callback(wake)
        await waiter
    error = None if task.cancelled() else task.exception()
    if isinstance(error, RocketSparkError):
        # A copy: each raise adds to an error's traceback.
        raise copy(error)
    return task.result()


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended; what they raise is passed over. None: one that was never begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
