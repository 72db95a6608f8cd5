"""The offsets of the queues that one consumer reads: where a queue begins, and which offset is committed for it.

Rule: a queue begins at the group's committed offset; what is committed is never older than what was committed here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from rocketspark.client import validators
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.consumer.offset_stores import OffsetStore
from rocketspark.client.consumer.puller import Puller
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import MessageQueue

log = logging.getLogger("rocketspark.client")

ConsumeFrom = Literal["last", "first"] | int


class OffsetCommits:
    """The offsets of one consumer. `store` keeps them; `pullers`: who reads each queue now.

    `consume_from`: where a queue without a committed offset begins; `to_commit`: how far a puller's queue was read for
    good.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        store: OffsetStore,
        pullers: Mapping[MessageQueue, Puller],
        *,
        consume_from: ConsumeFrom,
        to_commit: Callable[[Puller], int],
    ) -> None:
        if consume_from not in ("last", "first") and not isinstance(consume_from, int):
            raise ConfigError(f"consume_from {consume_from!r}: 'last', 'first' or a time in ms since 1970 is needed")
        self.store = store
        self.to_commit = to_commit
        self._instance = instance
        self._group = group
        self._pullers = pullers
        self._consume_from = consume_from

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return the committed offset, else the one that `consume_from` means."""
        peer = await self._instance.peer_of(queue)
        # Asked first: what comes between the two questions is not missed.
        end = await client_api.max_offset(peer, queue) if self._consume_from == "last" else 0
        committed = await self.store.committed(queue)
        if committed is not None and committed >= 0:
            return committed
        if queue.topic.startswith(validators.RETRY_PREFIX):
            return 0
        if self._consume_from == "last":
            return end
        if self._consume_from == "first":
            return await client_api.min_offset(peer, queue)
        return await client_api.search_offset(peer, queue, int(self._consume_from))

    def _is_unknown(self, puller: Puller) -> bool:
        """Tell whether the place that stores offsets may not know how far a queue was read."""
        place = self.store.place(puller.queue)
        return self.to_commit(puller) != puller.committed or place is not puller.committed_at

    async def _find_masters(self, pullers: list[Puller]) -> None:
        """Ask whether masters are back that slaves stand in for: their tables replace what slaves are told last."""
        routes = self._instance.routes
        for topic in {puller.queue.topic for puller in pullers if routes.master_of(puller.queue) is None}:
            with contextlib.suppress(RocketSparkError):
                await routes.refresh(topic)

    async def commit(self, pullers: Iterable[Puller], *, oneway: bool = False, strict: bool = False) -> None:
        """Commit what these pullers read on since the last commit, or what its broker may not know any more.

        `oneway`: without waiting for replies; `strict`: raise what fails, else it is tried again with the next commit.
        """
        pullers = list(pullers)
        if not oneway:
            await self._find_masters(pullers)
        moved = {puller.queue: puller for puller in pullers if self._is_unknown(puller)}
        leaving = {puller for puller in moved.values() if puller.leaving}
        told: dict[Puller, tuple[int, object]] = {}

        def latest(queue: MessageQueue) -> int | None:
            puller = moved[queue]
            if self._pullers.get(queue) is not puller or (puller.leaving and puller not in leaving):
                return None  # Whoever gives it up or resets it commits it; another member may read it already.
            offset = self.to_commit(puller)
            # As it is now: what takes its place meanwhile knows nothing of this.
            told[puller] = offset, self.store.place(queue)
            return offset

        offsets = {queue: self.to_commit(puller) for queue, puller in moved.items()}
        failed = await self.store.commit(offsets, oneway=oneway, latest=latest)
        for queue, puller in moved.items():
            error = failed.get(queue)
            if error is None:
                if puller in told:
                    puller.committed, puller.committed_at = told[puller]
            elif not strict:
                known = isinstance(error, (RocketSparkError, OSError))
                text = "offset %d of %s is not committed: %s"
                log.warning(text, offsets[queue], queue, error, exc_info=None if known else error)
        if strict:
            for error in failed.values():
                raise error
