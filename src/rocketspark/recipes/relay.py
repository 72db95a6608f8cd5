"""The relay: sends the messages that an outbox keeps. Rule: messages of a lane (a topic and a sharding key) are sent
one at a time, in order, and only while this relay owns them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.errors import DatabaseFailed, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.recipes.outbox_entries import Entry, State, is_refused_for_good
from rocketspark.recipes.outbox_store import OutboxStore, RowOutcome

log = LimitedLog("rocketspark.recipes")

PURGE_EVERY_S = 60.0
# Runs a function of the store in a thread.
InThread = Callable[..., Awaitable[Any]]


class RelayRules(NamedTuple):
    """The settings by which a relay resends; AsyncOutbox explains them."""

    backoff_ms: int
    backoff_max_ms: int
    poll_ms: float
    lease_ms: int
    send_timeout_ms: float
    in_flight_max: int
    keep_sent_ms: float

    def pause_ms(self, attempts: int) -> int:
        """Return how many ms a message waits after so many failed attempts: doubled by each, up to `backoff_max_ms`."""
        return int(min(self.backoff_ms * 2 ** min(attempts - 1, 40), self.backoff_max_ms))


class Relayed(msgspec.Struct):
    """The counts of a relay: messages sent, attempts that failed, messages parked."""

    sent: int = 0
    failed: int = 0
    parked: int = 0


class Relay:
    """Claims messages of an outbox that are due, sends them, and writes what came of each. `relayed`: its counts."""

    def __init__(self, store: OutboxStore, producer: AsyncProducer, rules: RelayRules, in_thread: InThread) -> None:
        self._store = store
        self._producer = producer
        self._rules = rules
        self._in_thread = in_thread
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._woken = asyncio.Event()
        self._closing = False
        self._in_flight = 0
        self._runs: set[asyncio.Task[None]] = set()
        self._claims: set[asyncio.Task[bool]] = set()
        self._outcomes: list[RowOutcome] = []
        self._settling: asyncio.Task[None] | None = None
        self._purge_at_s = 0.0
        self.relayed = Relayed()

    def wake(self) -> None:
        """Look for messages that are due at once, not only at the next poll."""
        self._woken.set()

    async def run(self) -> None:
        """Relay until `stop` is called; a statement that fails is tried again."""
        while not self._closing:
            self._woken.clear()
            try:
                claimed = await self._claim(None)
                await self._purge()
            except RocketSparkError as e:
                log.warning("the outbox's database cannot be used, trying again: %s", e)
                claimed = False
            except Exception:
                # A relay that ends unseen would keep messages for ever.
                log.exception("the relay failed, trying again")
                claimed = False
            if not claimed or self._in_flight >= self._rules.in_flight_max:
                try:
                    async with asyncio.timeout(self._rules.poll_ms / 1000):
                        await self._woken.wait()
                except TimeoutError:
                    pass

    async def run_once(self) -> Relayed:
        """Send each message that is due now once; return when the outcomes are written. Raises DatabaseFailed."""
        due_ms = await self._in_thread(self._store.now_ms)
        before = msgspec.structs.replace(self.relayed)
        while not self._closing and (await self._claim(due_ms) or self._runs):
            if self._runs:
                await asyncio.wait(self._runs, return_when=asyncio.FIRST_COMPLETED)
        await self._settled()
        await self._purge()
        now = self.relayed
        return Relayed(now.sent - before.sent, now.failed - before.failed, now.parked - before.parked)

    async def stop(self) -> None:
        """Begin no more sends; return when those that began have ended and are written down."""
        self._closing = True
        self.wake()
        # A claim that a thread is at owns rows in the end: they are given back.
        while work := {*self._claims, *self._runs}:
            await asyncio.wait(work)
        await self._settled()

    async def _claim(self, due_ms: int | None) -> bool:
        room = self._rules.in_flight_max - self._in_flight
        if room <= 0 or self._closing:
            return False
        # A task of its own: the waiting task may be cancelled, but the thread goes on.
        claim = asyncio.create_task(self._claimed(room, due_ms))
        self._claims.add(claim)
        claim.add_done_callback(self._claims.discard)
        return await asyncio.shield(claim)

    async def _claimed(self, room: int, due_ms: int | None) -> bool:
        # Counted from before the question: the lease ends here no later than there.
        lease_end_s = time.monotonic() + self._rules.lease_ms / 1000
        self._in_flight += room
        try:
            runs = await self._in_thread(self._store.claim, self._owner, room, self._rules.lease_ms, due_ms)
        finally:
            self._in_flight -= room
        for entries in runs:
            self._in_flight += len(entries)
            task = asyncio.create_task(self._run(entries, lease_end_s))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)
        return bool(runs)

    async def _run(self, entries: list[Entry], lease_end_s: float) -> None:
        try:
            await self._send_all(entries, lease_end_s)
            await self._settled()
        except Exception:
            log.exception("relaying %s stopped; it goes on when the lease ends", entries[0].key)
        finally:
            self._in_flight -= len(entries)
            self.wake()

    async def _send_all(self, entries: list[Entry], lease_end_s: float) -> None:
        for i, entry in enumerate(entries):
            if not self._closing and time.monotonic() + self._rules.send_timeout_ms / 1000 >= lease_end_s:
                await self._settled()
                lease_end_s = time.monotonic() + self._rules.lease_ms / 1000
                if not await self._in_thread(self._store.renew, self._owner, entries[i:], self._rules.lease_ms):
                    return
            outcome = RowOutcome(entry.number, None) if self._closing else await self._send(entry)
            self._note(outcome)
            if outcome.state is None or outcome.state is State.WAITING:
                # Later messages of its lane wait for it.
                for later in entries[i + 1 :]:
                    self._note(RowOutcome(later.number, None))
                return

    async def _send(self, entry: Entry) -> RowOutcome:
        try:
            await self._producer.resend(entry.message, entry.message_id, timeout_ms=self._rules.send_timeout_ms)
        except Exception as e:
            text = f"{type(e).__name__}: {e}"
            if is_refused_for_good(e):
                self.relayed.parked += 1
                log.error("message %s of the outbox is parked, it is refused for good: %s", entry.key, e)
                return RowOutcome(entry.number, State.PARKED, text)
            self.relayed.failed += 1
            return RowOutcome(entry.number, State.WAITING, text, self._rules.pause_ms(entry.attempts + 1))
        self.relayed.sent += 1
        return RowOutcome(entry.number, State.SENT)

    def _note(self, outcome: RowOutcome) -> None:
        self._outcomes.append(outcome)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle())

    async def _settle(self) -> None:
        """Write outcomes, in one transaction all that have come until it begins."""
        try:
            while self._outcomes:
                outcomes, self._outcomes = self._outcomes, []
                await self._write(outcomes)
        finally:
            self._settling = None

    async def _write(self, outcomes: Sequence[RowOutcome]) -> None:
        # A lost outcome is a message sent twice: as long as the lease lasts, writing it is tried again.
        end_s = time.monotonic() + self._rules.lease_ms / 1000
        while True:
            try:
                await self._in_thread(self._store.settle, self._owner, outcomes)
                return
            except DatabaseFailed as e:
                if time.monotonic() >= end_s or self._closing:
                    log.warning(
                        "outcomes of %d messages are not written; they will be sent again: %s", len(outcomes), e
                    )
                    return
            await asyncio.sleep(min(self._rules.poll_ms / 1000, 1))

    async def _settled(self) -> None:
        while self._settling is not None:
            await asyncio.wait([self._settling])

    async def _purge(self) -> None:
        if time.monotonic() >= self._purge_at_s:
            self._purge_at_s = time.monotonic() + PURGE_EVERY_S
            await self._in_thread(self._store.purge, self._rules.keep_sent_ms)


def task_of(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine as a task of the running loop, and return the task."""
    return asyncio.create_task(work, name="rocketspark-outbox")
