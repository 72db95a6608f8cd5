"""Retention: when old files go, by age at a set hour or by use of the disk at any hour; the store's `expired_files`
removes them.

Rule: `decide` is pure.

Rules (CleanCommitLogService, 5.5.0): at `deleteWhen` o'clock files older than `fileReservedTime` go; above
`diskMaxUsedSpaceRatio` they go at any hour, above `diskSpaceCleanForciblyRatio` the oldest go whatever their age, above
`diskSpaceWarningLevelRatio` nothing is written until it is below again. The file being written never goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import RocketSparkError, StoreError, StoreFull
from rocketspark.store.store import Store
from rocketspark.transport.shared_task import end_tasks

log = logging.getLogger("rocketspark.broker")

HOUR_MS = 3_600_000
# Rounds that an operator's request lasts (rule: MAX_MANUAL_DELETE_FILE_TIMES, 5.5.0).
MANUAL_ROUNDS = 20
# Light queues that are looked at, and removed, in one turn of the loop: some 40 us each.
LIGHT_IN_TURN = 500


class CleaningPlan(NamedTuple):
    """What one round of cleaning does.

    `clean`: remove expired files; `forced`: remove the oldest even if not expired; `refuse`: take no messages.
    """

    clean: bool
    forced: bool
    refuse: bool


def decide(settings: BrokerSettings, hour: int, used_percent: float, *, manual: bool = False) -> CleaningPlan:
    """Return the plan for an hour of the day and the usage of the store's fuller disk, in percent.

    The ratios are kept within bounds as RocketMQ keeps them: 10 to 95, 30 to 85 and 35 to 90 percent.
    """
    full = used_percent > _bounded(settings.disk_refuse_percent, 35, 90)
    forced = full or used_percent > _bounded(settings.disk_force_percent, 30, 85)
    crowded = forced or used_percent > _bounded(settings.disk_clean_percent, 10, 95)
    clean = crowded or manual or hour in settings.delete_hours()
    return CleaningPlan(clean, forced and settings.clean_by_force, full)


def _bounded(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def disk_used_percent(path: str) -> int:
    """Return the usage of a folder's disk in percent, as ordinary users see it, rounded up. Raises OSError."""
    found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return -(-used * 100 // whole) if whole else 0


class FileCleaning:
    """Removes a broker's old files. `clock`: returns ms since 1970; `disk_used`: percent in use of a folder's disk."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        *,
        clock: Callable[[], int] = now_ms,
        disk_used: Callable[[str], float] = disk_used_percent,
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._disk_used = disk_used
        self._wanted = asyncio.Event()
        self._manual_rounds = 0
        self._refusing = False
        self._helpless = False
        self._task: asyncio.Task[None] | None = None
        # Called with light queues that have no message left; it removes them.
        self.drop_light: Callable[[list[str]], None] = lambda names: None
        # Called before anything is removed: copies what compaction keeps, and returns the position before which all is.
        self.copied: Callable[[], Awaitable[int | None]] | None = None
        # Of a second tier: returns the position before which all messages are in it.
        self.kept_from: Callable[[], Awaitable[int]] | None = None

    def start(self) -> None:
        """Look at the disk now, then clean from time to time."""
        self._look()
        self._task = asyncio.get_running_loop().create_task(self._clean_forever())

    async def stop(self) -> None:
        """Stop cleaning."""
        await end_tasks(self._task)

    def clean_now(self) -> None:
        """Remove expired files at once and in the next rounds, whatever the hour."""
        self._manual_rounds = MANUAL_ROUNDS
        self._wanted.set()

    async def _clean_forever(self) -> None:
        while True:
            await pause(lambda: max(self._settings.clean_interval_ms, 100), self._wanted)
            try:
                await self.clean()
            except RocketSparkError as e:
                log.error("old files cannot be removed: %s", e)
            except Exception:
                # After any error the next round comes: without it the disk fills up.
                log.exception("old files cannot be removed")

    async def clean(self) -> int:
        """Clean once; returns how many log files were removed. Raises StoreUnwritable if one cannot be removed."""
        s = self._settings
        plan = self._look(manual=self._manual_rounds > 0)
        self._manual_rounds = max(0, self._manual_rounds - 1)
        if not plan.clean:
            return 0
        before_ms = self._clock() - s.reserved_hours * HOUR_MS
        removed = await self._expire(before_ms, s.clean_files_max)
        # Younger files go one by one, so that no more go than must (RocketMQ: a whole batch).
        forced = plan.forced and (not removed or self._look().forced)
        while forced and removed < s.clean_files_max:
            if not await self._expire(before_ms, 1, forced=True):
                self._tell_if_helpless()
                break
            removed += 1
            forced = self._look().forced
        else:
            self._helpless = False
        if removed:
            log.info("%d log files removed; the log begins at %d", removed, self._store.min_position)
        return removed

    async def _expire(self, before_ms: int, count_max: int, *, forced: bool = False) -> int:
        removed = 0
        loop = asyncio.get_running_loop()
        copied = None if self.copied is None else await self.copied()
        below = None if self.kept_from is None else await self.kept_from()
        if forced and below is not None and below < self._store.min_position + self._store.settings.log_file_bytes:
            log.warning("the disk is nearly full: a log file goes before all its messages are in the second tier")
            below = None
        if copied is not None:
            if forced and copied < self._store.min_position + self._store.settings.log_file_bytes:
                log.warning("the disk is nearly full: a log file stays, as compaction has not copied all that it keeps")
            below = copied if below is None else min(below, copied)
        # The ends of queues whose messages go have to outlast these. Where that fails, which is told elsewhere, space
        # counts for more.
        with contextlib.suppress(StoreError):
            await loop.run_in_executor(None, self._store.flush_queues)
        for remove in self._store.expire_steps(before_ms, count_max, forced=forced, below=below):
            if remove is None:
                await asyncio.sleep(0)
                continue
            await loop.run_in_executor(None, remove)
            removed += 1
            await asyncio.sleep(self._settings.clean_pause_ms / 1000)
        # A copy has those of its master until that removes them.
        if removed and not self._store.log.is_replica:
            await self._drop_light()
        return removed

    async def _drop_light(self) -> None:
        count = 0
        for names in self._store.consume_queues.expired_light(LIGHT_IN_TURN):
            if names:
                self.drop_light(names)
                count += len(names)
            await asyncio.sleep(0)
        if count:
            log.info("%d light queues are removed: all their messages are too old", count)

    def _look(self, *, manual: bool = False) -> CleaningPlan:
        root = self._store.settings.root
        used = {path: self._used(path) for path in (self._store.settings.commit_log or f"{root}/commitlog", root)}
        fullest = max(used, key=lambda path: used[path])
        hour = datetime.fromtimestamp(self._clock() / 1000).hour
        plan = decide(self._settings, hour, used[fullest], manual=manual)
        if plan.refuse:
            reason = f"{used[fullest]:.0f} % of the disk of {fullest} is in use"
            if not self._refusing:
                log.error("%s: no message is taken until space is free", reason)
            self._store.refuse_writes(StoreFull(f"{reason}: free some space or move the store to a larger disk"))
        elif self._refusing:
            log.info("%.0f %% of the disk of %s is in use: messages are taken again", used[fullest], fullest)
            self._store.refuse_writes(None)
        self._refusing = plan.refuse
        return plan

    def _used(self, path: str) -> float:
        try:
            return self._disk_used(path)
        except OSError as e:
            log.error("how full the disk of %s is cannot be told: %s", path, e.strerror)
            return 0

    def _tell_if_helpless(self) -> None:
        if not self._helpless:
            log.warning("the disk is nearly full and no file can go: the one being written always stays")
        self._helpless = True
