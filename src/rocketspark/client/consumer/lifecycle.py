"""The start and the close of a consumer.

Rule: both are tasks of the consumer's own. A caller that gives up waiting for a start ends it, and all that it began is
undone; one that gives up waiting for a close leaves it to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rocketspark.client import validators
from rocketspark.client.options import ClientOptions
from rocketspark.client.queries import Queries
from rocketspark.errors import StateError, UsageError
from rocketspark.filters import sql92
from rocketspark.model import namespace
from rocketspark.model.subscription import SQL92, TAG


def filter_of(expression: str, sql: str | None) -> tuple[str, str]:
    """Return the filter of a subscribe call and its kind. Raises UsageError, FilterIllegal for a wrong `sql`."""
    if sql is None:
        return expression, TAG
    if expression != "*":
        raise UsageError("give a tag expression or sql, not both")
    sql92.compile(sql)
    return sql, SQL92


class ConsumerLife(Queries):
    """The base of all consumers, which implement `_open` and `_end`."""

    kind = "consumer"

    def __init__(self, namesrv: str | None, options: ClientOptions, group: str, *, offset_file: bool = False) -> None:
        """Make the client. `offset_file`: this member's offsets are kept in a file, whose folder is named after the
        client id.
        """
        if offset_file:
            # The name has to be the same the next time.
            options.setdefault("instance_name", "DEFAULT")
        # Before the group: one whose name is mistaken is missing.
        self._check_names(options)
        full = namespace.wrap(options.get("namespace") or "", validators.check_group(group))
        super().__init__(namesrv, options)
        self.group = full
        self._opening: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        # True while the instance counts this consumer.
        self._entered = False

    async def _open(self) -> None:
        """Begin; may be cancelled or fail anywhere: `_end` follows then."""
        raise NotImplementedError

    async def _end(self, through: bool) -> None:
        """End all that `_open` began, as far as it came. `through`: the messages handed out last are finished."""
        raise NotImplementedError

    async def _start(self) -> None:
        self._begin()
        self._opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError as e:
            await self._close(through=False)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StateError(f"the {self.kind} was closed while it started: make a new one") from e
        except BaseException:
            await self._close(through=False)
            raise

    async def _close(self, *, through: bool) -> None:
        self._check_loop()
        if self._close_unstarted():
            return
        self._state = "closed"
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._give_up_opening(through))
        await asyncio.shield(self._ending)

    async def _give_up_opening(self, through: bool) -> None:
        opening = self._opening
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
        await self._end(through)

    async def _enter(self) -> None:
        """Count as a user of the instance. Raises NotSent if no NameServer answers."""
        await self._instance.start(consumer=self.group)
        self._entered = True
        await self._instance.check_namesrv()

    async def _leave(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """Leave the instance, last of all: brokers are told, after `then` connections without other users closed."""
        if self._tracer is not None:
            await self._tracer.close()
        if self._entered:
            self._entered = False
            await self._instance.close(consumer=self.group, then=then)
