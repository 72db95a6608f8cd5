"""Makes decisions durable, one after the other. Rule: the sets change when the file holds them, and never half."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from rocketspark.controller.replica_sets import Sets, apply
from rocketspark.controller.replicas_info import Decision
from rocketspark.controller.state_file import StateFile


class Journal:
    """The sets as they are on disk. `sets`: for those who only read."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self.sets: Sets = {}
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Decision]] = set()

    def open(self) -> None:
        """Read the sets. Raises ConfigError, StoreError."""
        self.sets = self._file.open()

    async def carry_out(self, decide: Callable[[Sets], Decision]) -> Decision:
        """Decide on the sets as they are, write what follows, and return the decision. Raises StoreError.

        Whoever asks may go away meanwhile: what was begun is done.
        """
        task = asyncio.get_running_loop().create_task(self._carry_out(decide))
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Decision]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Told to who asked, if that one still waits.

    async def _carry_out(self, decide: Callable[[Sets], Decision]) -> Decision:
        async with self._turn:
            decision = decide(self.sets)
            if decision.events:
                sets = functools.reduce(apply, decision.events, self.sets)
                # A sync takes as long as the disk does: brokers are answered meanwhile.
                await asyncio.to_thread(self._file.write, sets)
                self.sets = sets
            return decision

    async def close(self) -> None:
        """Finish what was begun, and give the file back."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._file.close()
