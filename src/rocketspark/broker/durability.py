"""Flushing: threads that make what is written durable, and those who wait for it.

Rule: one flush serves all who wait (group commit), no queue delays it, and one that failed is never taken for success.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import time
from collections.abc import Callable

from rocketspark.errors import StoreError, StoreFull
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

# (log position that must be durable, deadline in loop time, told True if it is)
Waiting = tuple[int, float, Callable[[bool], None]]
POPULATE_BUSY_S = 0.01
POPULATE_IDLE_S = 0.2


class Durability:
    """Flushes the store in the background: the log in one thread, queues and indexes in another.

    `interval_ms`: between flushes of the log when nobody waits; `queue_interval_ms`: of queues and indexes;
    `timeout_ms`: how long a send waits for its flush.
    """

    def __init__(self, store: Store, *, interval_ms: int, queue_interval_ms: int, timeout_ms: int) -> None:
        self._store = store
        self.set_times(interval_ms=interval_ms, queue_interval_ms=queue_interval_ms, timeout_ms=timeout_ms)
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._wanted = threading.Event()
        self._stop_wanted = threading.Event()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.failed: StoreError | None = None
        # Told True when as many wait as may, False when fewer do again.
        self.waiting_max = 10_000
        self.crowded: Callable[[bool], None] = lambda too_many: None
        self._is_crowded = False

    def set_times(self, *, interval_ms: int, queue_interval_ms: int, timeout_ms: int) -> None:
        """Change the times from the next flush on."""
        self._interval_s = interval_ms / 1000
        self._queue_interval_s = queue_interval_ms / 1000
        self._timeout_s = timeout_ms / 1000

    def start(self) -> None:
        """Start the threads."""
        self._loop = asyncio.get_running_loop()
        for target in (self._flush_forever, self._flush_queues_forever, self._populate_forever):
            thread = threading.Thread(target=target, name=f"rocketspark-{target.__name__.strip('_')}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def reached(self, position: int, tell: Callable[[bool], None]) -> None:
        """Call `tell(True)` once the log is durable up to `position`, `tell(False)` if that fails or takes too long."""
        assert self._loop is not None
        if self.failed is not None:
            tell(False)
            return
        if not self._waiting:
            self._sweeper = self._loop.call_later(self._timeout_s, self._time_out)
        self._waiting.append((position, self._loop.time() + self._timeout_s, tell))
        self._wanted.set()
        if not self._is_crowded and len(self._waiting) >= self.waiting_max:
            self._is_crowded = True
            self.crowded(True)

    def _thinned(self) -> None:
        if self._is_crowded and len(self._waiting) < self.waiting_max:
            self._is_crowded = False
            self.crowded(False)

    def _release(self, flushed: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed:
            waiting.popleft()[2](True)
        self._thinned()
        if not waiting and self._sweeper is not None:
            self._sweeper.cancel()

    def _time_out(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        while self._waiting and (self._waiting[0][1] <= now or self.failed is not None):
            self._waiting.popleft()[2](False)
        self._thinned()
        if self._waiting:
            self._sweeper = self._loop.call_later(self._waiting[0][1] - now, self._time_out)

    def _flush_forever(self) -> None:
        while not self._stopping and self.failed is None:
            self._wanted.wait(self._interval_s)
            self._wanted.clear()
            try:
                flushed = self._store.flush_log()
            except StoreError as e:
                self._fail(e)
                return
            if self._waiting:
                self._tell(self._release, flushed)

    def _flush_queues_forever(self) -> None:
        """Thousands of queues take seconds, so nobody waits for this: after a kill the log has what they lack."""
        pause_s = self._queue_interval_s
        while self.failed is None and not self._stop_wanted.wait(pause_s):
            began = time.monotonic()
            try:
                self._store.flush_queues()
                self._store.flush_indexes()
                self._store.write_checkpoint()
            except StoreFull as e:
                # Nothing is lost: the checkpoint stays where it is, and appends that need room are told so.
                log.warning("queues and indexes cannot be flushed, tried again: %s", e)
            except StoreError as e:
                self._fail(e)
                return
            # The disk is the log's at least half of the time.
            pause_s = max(self._queue_interval_s, time.monotonic() - began)

    def _fail(self, error: StoreError) -> None:
        if self._stopping:
            return  # Whoever closes the store is told.
        log.error("the store cannot be flushed and takes no more messages: %s", error)
        self.failed = error
        self._wanted.set()
        self._tell(self._time_out)

    def _populate_forever(self) -> None:
        written = -1
        while not self._stopping:
            try:
                self._store.populate_ahead()
            except StoreError as e:
                # The append that needs the room reports it to its sender.
                log.warning("the log cannot be extended ahead: %s", e)
            busy, written = self._store.written_position != written, self._store.written_position
            self._stop_wanted.wait(POPULATE_BUSY_S if busy else POPULATE_IDLE_S)

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.debug("the loop ended before a flush could be told")

    def stop_threads(self) -> None:
        """End the threads; blocks until they did."""
        self._stopping = True
        self._stop_wanted.set()
        self._wanted.set()
        for thread in self._threads:
            thread.join(5)

    def finish(self) -> None:
        """After `stop_threads`: release those who still wait by one last flush."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        flushed = -1
        if self.failed is None:
            try:
                flushed = self._store.flush_log()
            except StoreError as e:
                log.error("the last flush failed: %s", e)
        while self._waiting:
            position, _, tell = self._waiting.popleft()
            tell(position <= flushed)
