"""The work that only one broker of a name does at a time: delay levels, timers, transaction checks and pop revival.

It runs on the master, or on the slave that acts for it. It starts from the progress that is on the disk, and can start
and stop again while the broker runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rocketspark.broker.messages.schedule_messages import Deliver, ScheduleMessages
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.messages.transactions.transactions import Transactions
from rocketspark.broker.pop.lifecycle import PopLifecycle
from rocketspark.errors import RocketSparkError, StoreUnwritable

log = logging.getLogger("rocketspark.broker")


class SpecialServices:
    """Starts and stops this work on one broker."""

    def __init__(
        self,
        delays: ScheduleMessages,
        timers: TimerMessages,
        transactions: Transactions,
        pops: PopLifecycle,
        deliver: Deliver,
    ) -> None:
        self._delays = delays
        self._timers = timers
        self._transactions = transactions
        self._pops = pops
        self._deliver = deliver
        self.running = False
        self._ran = False
        self._stops = 0

    def start(self) -> None:
        """Start all of them. Raises StoreError, ConfigError if the timer files cannot be read."""
        if not self.running:
            with self._unless_it_fails():
                self._transactions.start()
                self._start_others()

    async def begin(self) -> None:
        """Do what `start` does, with turns for others: ten thousand open half messages take half a second. Nobody may
        send meanwhile. Raises StoreUnwritable too, if `stop` or `abandon` is called.
        """
        if not self.running:
            stops = self._stops
            with self._unless_it_fails():
                for _ in self._transactions.start_in_turns():
                    await asyncio.sleep(0)
                    if self._stops != stops:
                        raise StoreUnwritable("the broker stops its deliveries", retriable=True)
                self._start_others()

    @contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._pops.stop()
            self._delays.stop()
            self._transactions.abandon()
            raise
        self.running = self._ran = True

    def _start_others(self) -> None:
        self._delays.start(self._deliver)
        self._timers.start()
        # After the timer messages: they tell what waits for its time.
        self._pops.start()

    async def stop(self) -> None:
        """Stop all of them; the broker that starts next delivers what was not delivered here."""
        self._stops += 1
        if not self.running:
            return
        self.running = False
        self._delays.stop()
        self._transactions.stop()
        self._pops.stop()
        await self._timers.stop()

    async def abandon(self) -> None:
        """Stop without saving any progress, as a kill would."""
        self._stops += 1
        if self.running:
            self.running = False
            self._delays.stop()
            self._pops.stop()
            self._transactions.abandon()
            await self._timers.stop()

    async def hand_back(self) -> None:
        """Stop because the master returns, and save the progress for it; from then on its progress counts."""
        if not self._ran:
            return
        await self.stop()
        self.finish()
        self._timers.close()
        self._ran = False

    def finish(self) -> None:
        """Save how far each of them is; call it after `stop` and the store's last flush."""
        if not self._ran:
            return
        for save in (self._transactions.finish, self._delays.finish, self._timers.finish, self._pops.finish):
            try:
                save()
            except RocketSparkError as e:
                log.error("while the broker ends its deliveries: %s", e)
            except Exception:
                log.exception("a table of the broker's deliveries could not be written")

    def close(self) -> None:
        """Close the timer files."""
        self._timers.close()

    def queue_was_cut(self) -> None:
        """Have the timers' queue read anew at the next `start`; see `TimerMessages.queue_was_cut`."""
        self._timers.queue_was_cut()
