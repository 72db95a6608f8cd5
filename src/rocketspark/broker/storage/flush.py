"""Flushing: threads that make writes durable, and the sends that wait for them.

Rule: one flush serves all waiting sends (group commit), no queue delays it, and a failed one never counts as success.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable
from typing import Protocol

from rocketspark import machine
from rocketspark.errors import StoreError, StoreFull, StoreUnwritable
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

# (physical offset that must be durable, deadline in loop time, told True if it is, how many sends that are)
Waiting = tuple[int, float, Callable[[bool], None], int]
POPULATE_BUSY_S = 0.01
POPULATE_IDLE_S = 0.2
# Between tries of a flush that may work again.
RETRY_S = 0.1


class Arrivals(Protocol):
    """Held pulls that hear of messages once readers see them: `LongPolling`."""

    # Called with each message that is stored and not shown yet.
    show_soon: Callable[[], None]

    def keep_recent(self, reason: str, on: bool) -> None:
        """Note whether messages are shown later than they are stored."""

    def shown(self, position: int) -> None:
        """Note that readers see the log up to a physical offset."""


class FlushService:
    """Flushes the store in the background: the log in one thread, queues and indexes in another.

    `interval_ms`: between flushes of the log when no send waits; `queue_interval_ms`: of queues and indexes;
    `timeout_ms`: how long a send waits for its flush; `arrivals`: held pulls that hear of what is flushed, where
    readers see no more (`show_flushed`).
    """

    def __init__(
        self,
        store: Store,
        *,
        interval_ms: int,
        queue_interval_ms: int,
        timeout_ms: int,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._store = store
        self._arrivals = arrivals
        # Readers see the log up to there; None: all of it.
        self._shown_end: int | None = None
        self._is_asked_for = False
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._waiting_count = 0
        self._wanted, self._queues_wanted, self._stop_wanted = (machine.Event() for _ in range(3))
        self.set_times(interval_ms=interval_ms, queue_interval_ms=queue_interval_ms, timeout_ms=timeout_ms)
        for event in (self._wanted, self._queues_wanted):
            event.clear()
        self._stopping = False
        self._threads: list[machine.Joinable] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.failed: StoreError | None = None
        # Called with True when the limit of waiting sends is reached, with False when fewer wait again.
        self.waiting_max = 10_000
        self.crowded: Callable[[bool], None] = lambda too_many: None
        self._is_crowded = False
        # Called when readers see more.
        self.shown_more: Callable[[], None] = lambda: None
        # The latest error of each failing flush: it is logged once.
        self._troubles: dict[str, type[Exception]] = {}

    def set_times(self, *, interval_ms: int, queue_interval_ms: int, timeout_ms: int) -> None:
        """Change the times. A flush that waits by the old times is made now."""
        self._interval_s = interval_ms / 1000
        self._queue_interval_s = queue_interval_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._wanted.set()
        self._queues_wanted.set()

    def start(self) -> None:
        """Start the threads."""
        self._loop = asyncio.get_running_loop()
        for steps in (self._flush_forever, self._flush_queues_forever, self._populate_forever):
            self._threads.append(machine.start_steps(steps(), f"rocketspark-{steps.__name__.strip('_')}"))

    def reached(self, position: int, tell: Callable[[bool], None], count: int = 1) -> None:
        """Call `tell(True)` once the log is durable up to `position`, `tell(False)` if that fails or takes too long.

        `count`: how many sends the call stands for.
        """
        assert self._loop is not None
        if self.failed is not None:
            tell(False)
            return
        if not self._waiting:
            self._sweeper = self._loop.call_later(self._timeout_s, self._time_out)
        self._waiting.append((position, self._loop.time() + self._timeout_s, tell, count))
        self._waiting_count += count
        self._wanted.set()
        if not self._is_crowded and self._waiting_count >= self.waiting_max:
            self._is_crowded = True
            self.crowded(True)

    def show_flushed(self, only: bool) -> None:
        """Let readers see only what is flushed, or all again.

        What is not flushed goes with the machine's power, and other messages take its places: a reader that was shown
        it would pass over these, which may have been acknowledged.
        """
        arrivals = self._arrivals
        if only == (self._shown_end is not None) or arrivals is None:
            return
        self._shown_end = self._store.flushed_position if only else None
        self._store.show_flushed(self._shown_end)
        self._store.flush_each(only)
        arrivals.show_soon = self._flush_soon if only else lambda: None
        arrivals.keep_recent("unflushed", only)
        arrivals.shown(self._store.shown_end)
        self._wanted.set()

    def _hides(self, flushed: int) -> bool:
        # Read once: the loop may change it beside the flushing thread.
        shown_end = self._shown_end
        return shown_end is not None and flushed > shown_end

    def _flush_soon(self) -> None:
        # At the end of the turn: most of what is stored waits for its flush, and asks for it by itself.
        if not self._is_asked_for and self._loop is not None:
            self._is_asked_for = True
            self._loop.call_soon(self._flush_unseen)

    def _flush_unseen(self) -> None:
        self._is_asked_for = False
        if not self._waiting:
            self._wanted.set()

    def _thinned(self) -> None:
        if self._is_crowded and self._waiting_count < self.waiting_max:
            self._is_crowded = False
            self.crowded(False)

    def _release(self, flushed: int) -> None:
        # Before the sends are answered: who was answered may read what was sent.
        if self._arrivals is not None and self._hides(flushed):
            self._shown_end = flushed
            self._store.show_flushed(flushed)
            self._arrivals.shown(self._store.shown_end)
            self.shown_more()
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed:
            self._answer_first(True)
        if self._shown_end is not None and not waiting and self._store.written_position > flushed:
            self._wanted.set()
        self._thinned()
        if not waiting and self._sweeper is not None:
            self._sweeper.cancel()

    def _answer_first(self, durable: bool) -> None:
        _, _, tell, count = self._waiting.popleft()
        self._waiting_count -= count
        try:
            tell(durable)
        except Exception:
            # A failing callback must not keep other sends waiting.
            log.exception("a send that waited for its flush could not be answered")

    def _time_out(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        while self._waiting and (self._waiting[0][1] <= now or self.failed is not None):
            self._answer_first(False)
        self._thinned()
        if self._waiting:
            self._sweeper = self._loop.call_later(self._waiting[0][1] - now, self._time_out)

    def _flush_forever(self) -> machine.Steps:
        while not self._stopping and self.failed is None:
            yield self._wanted, self._interval_s
            self._wanted.clear()
            try:
                flushed = self._store.flush_log()
            except Exception as e:
                if not self._may_mend("the log", e):
                    return
                yield self._stop_wanted, RETRY_S
                continue
            self._mended("the log")
            if self._waiting or self._hides(flushed):
                self._tell(self._release, flushed)

    def _flush_queues_forever(self) -> machine.Steps:
        """Flush queues and indexes. Thousands take seconds, so no send waits: after a kill they come from the log."""
        pause_s = self._queue_interval_s
        while self.failed is None:
            yield self._queues_wanted, pause_s
            if self._stopping:
                return
            self._queues_wanted.clear()
            began = machine.monotonic()
            try:
                self._store.flush_queues()
                self._store.flush_indexes()
                self._store.write_checkpoint()
                self._store.remove_deleted()
            except Exception as e:
                if not self._may_mend("queues and indexes", e):
                    return
                pause_s = max(self._queue_interval_s, RETRY_S)
                continue
            self._mended("queues and indexes")
            # The disk is the log's at least half of the time.
            pause_s = max(self._queue_interval_s, machine.monotonic() - began)

    def _may_mend(self, what: str, error: Exception) -> bool:
        """Tell whether to flush again after an error, which is logged once; otherwise writes are refused from here on.

        On a full disk, and where no file descriptor is free, nothing is lost: the checkpoint stays where it is.
        """
        if isinstance(error, StoreFull) or (isinstance(error, StoreError) and error.retriable):
            if self._troubles.get(what) is not type(error):
                self._troubles[what] = type(error)
                log.warning("%s cannot be flushed, tried again: %s", what, error)
            return True
        if not isinstance(error, StoreError):
            # After an unknown error nothing counts as flushed.
            log.error("%s cannot be flushed", what, exc_info=error)
            error = StoreUnwritable(f"{what} cannot be flushed ({error!r}): see the log, then start again")
        self._fail(error)
        return False

    def _mended(self, what: str) -> None:
        if self._troubles.pop(what, None) is not None:
            log.info("%s can be flushed again", what)

    def _fail(self, error: StoreError) -> None:
        # Sends that need no flush are refused too.
        self._store.stop_writes(error if isinstance(error, StoreUnwritable) else StoreUnwritable(str(error)))
        if self._stopping:
            return  # Whoever closes the store is told.
        log.error("the store cannot be flushed and takes no more messages: %s", error)
        self.failed = error
        self._wanted.set()
        self._tell(self._time_out)

    def _populate_forever(self) -> machine.Steps:
        written = -1
        while not self._stopping:
            try:
                self._store.populate_ahead()
                self._troubles.pop("room ahead", None)
            except Exception as e:
                # The append that needs the room reports it to its sender.
                if self._troubles.get("room ahead") is not type(e):
                    self._troubles["room ahead"] = type(e)
                    log.warning("the log cannot be extended ahead: %s", e)
            busy, written = self._store.written_position != written, self._store.written_position
            yield self._stop_wanted, POPULATE_BUSY_S if busy else POPULATE_IDLE_S

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.debug("the loop ended before a flush could be told")

    def stop_threads(self) -> None:
        """End the threads, and wait until they ended."""
        self._stopping = True
        for event in (self._stop_wanted, self._queues_wanted, self._wanted):
            event.set()
        for thread in self._threads:
            thread.join(5)

    def finish(self) -> None:
        """Make a last flush, after `stop_threads`, and answer the sends that still wait."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        flushed = -1
        if self.failed is None:
            try:
                flushed = self._store.flush_log()
            except StoreError as e:
                log.error("the last flush failed: %s", e)
        while self._waiting:
            self._answer_first(self._waiting[0][0] <= flushed)
