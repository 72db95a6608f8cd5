"""The cluster as somebody with certain keys sees it. Rule: who asks the same at the same time asks once, and an answer
lives a moment; what somebody changed is seen at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from rocketspark import machine
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console.cluster.pace import Pace, PacedAdmin
from rocketspark.transport.shared_task import end_tasks, outcome_of

T = TypeVar("T")
LIFE_S = 2.0
# An error too, so that reloads of a page do not hammer at what is down.
ERROR_LIFE_S = 1.0
ANSWERS_MAX = 2000


class ClusterView:
    """Operations with certain keys, connected once they are needed, and the answers of a moment ago."""

    def __init__(self, namesrv: str, pace: Pace, options: dict[str, Any]) -> None:
        self._namesrv, self._pace, self._options = namesrv, pace, options
        self._admin: AsyncAdmin | None = None
        self._starting: asyncio.Task[AsyncAdmin] | None = None
        # By what was asked: until when it counts, and the answer.
        self._answers: OrderedDict[Any, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def ask(self, act: Callable[[AsyncAdmin], Awaitable[T]]) -> T:
        """Return what an operation returns. Raises what it raises, NotSent if no NameServer answers."""
        return await act(await self._started())

    async def read(self, key: Any, act: Callable[[AsyncAdmin], Awaitable[T]], life_s: float = LIFE_S) -> T:
        """Return what `ask` returns, or the answer of at most `life_s` seconds ago to the same `key`."""
        now = machine.monotonic()
        known = self._answers.get(key)
        if known is None or (known[1].done() and known[0] <= now):
            task = asyncio.ensure_future(self.ask(act))
            task.add_done_callback(lambda done: self._came(key, done, life_s))
            self._answers[key] = known = (now + life_s, task)
            while len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return cast(T, await outcome_of(known[1]))

    def _came(self, key: Any, task: asyncio.Task[Any], life_s: float) -> None:
        known = self._answers.get(key)
        if known is not None and known[1] is task:
            failed = task.cancelled() or task.exception() is not None
            self._answers[key] = (machine.monotonic() + (min(life_s, ERROR_LIFE_S) if failed else life_s), task)

    def forget(self) -> None:
        """Forget all answers: something was changed."""
        self._answers.clear()

    async def _started(self) -> AsyncAdmin:
        if self._admin is not None:
            return self._admin
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start())
        return await outcome_of(self._starting)

    async def _start(self) -> AsyncAdmin:
        admin = PacedAdmin(self._namesrv, self._pace, **self._options)
        await admin.start()
        self._admin = admin
        return admin

    async def close(self) -> None:
        """Close the connections."""
        tasks = [task for _, task in self._answers.values()] + ([self._starting] if self._starting else [])
        self._answers.clear()
        await end_tasks(*tasks)
        if self._admin is not None:
            await self._admin.close()
