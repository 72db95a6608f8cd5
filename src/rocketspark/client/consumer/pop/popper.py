"""Pops one queue, or all queues of a broker, ahead of a listener.

Rule: what is popped and not acknowledged counts as waiting until its invisible time is over, and no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from rocketspark import machine
from rocketspark.client.callbacks import passes_on, trouble_log
from rocketspark.client.consume_stats import TopicCounts
from rocketspark.client.consumer.pop.pop_calls import COUNT_MAX, INVISIBLE_MS_MAX, PopCalls, Wanted
from rocketspark.client.consumer.refusals import is_refusal
from rocketspark.errors import ConfigError, RocketSparkError, ServerError
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription
from rocketspark.model.message import NamedFields
from rocketspark.protocol.codes import ResponseCode

log = logging.getLogger("rocketspark.client")

POLL_MS = 15_000
TROUBLE_PAUSE_S = 1.0
REFUSED_PAUSE_S = 3.0
BUSY_PAUSE_S = 0.1
# A broker that does not hold pops must not be asked in a tight loop.
UNHELD_PAUSE_S = 0.05


_MINUTE_MS = 60_000
DELAYS_MS = (
    *(10_000, 30_000),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


class PopSettings(msgspec.Struct, frozen=True, metaclass=NamedFields):
    """Settings of a popper.

    `backlog_count_max`: while so many of its messages are not finished, it pops no more. `delays_ms`: after how long a
    message that failed comes again, by the number of its attempts so far (rule: popDelayLevel,
    DefaultMQPushConsumerImpl, 5.x).
    """

    invisible_ms: int = 60_000
    count_max: int = COUNT_MAX
    backlog_count_max: int = 96
    from_first: bool = False
    delays_ms: tuple[int, ...] = DELAYS_MS

    def delay_ms(self, attempts: int) -> int:
        """Return for how long a message that failed is invisible."""
        return self.delays_ms[min(attempts, len(self.delays_ms) - 1)]


def check_settings(how: PopSettings) -> PopSettings:
    """Return the settings, times as whole numbers. Raises ConfigError if one is out of its range."""
    if not 1 <= how.invisible_ms <= INVISIBLE_MS_MAX:
        raise ConfigError(f"invisible_ms {how.invisible_ms} is not from 1 to {INVISIBLE_MS_MAX} (12 h)")
    if not 1 <= how.count_max <= COUNT_MAX or how.backlog_count_max < 1:
        raise ConfigError(f"count_max must be 1 to {COUNT_MAX}, backlog_count_max 1 or more")
    if not how.delays_ms or not all(1 <= ms <= INVISIBLE_MS_MAX for ms in how.delays_ms):
        raise ConfigError(f"delays_ms must be some times from 1 to {INVISIBLE_MS_MAX} ms")
    return msgspec.structs.replace(
        how, invisible_ms=int(how.invisible_ms), delays_ms=tuple(int(ms) for ms in how.delays_ms)
    )


class PopBatch:
    """The unfinished messages of one pop. Listener calls refer to it as they refer to a puller for pulled messages.

    `dropped`: calls that did not begin by then are left out. `counts`: the statistics that it adds to, as a puller's.
    """

    __slots__ = ("_end_s", "_over", "_popper", "_shared", "counts", "pending")

    def __init__(self, popper: Popper, messages: list[ReceivedMessage], end_s: float) -> None:
        self._popper = popper
        self._end_s = end_s
        self.counts = popper.counts
        self.pending = {id(m): m for m in messages}
        # Of a batch that is stored as one record, how many messages with its handle are not done; None without any.
        handles = Counter(m.receipt_handle for m in messages)
        self._shared = handles if len(handles) < len(messages) else None
        self._over = asyncio.get_running_loop().call_later(max(end_s - machine.monotonic(), 0), self._expire)

    @property
    def dropped(self) -> bool:
        """Tell whether the invisible time is over, so that the messages come again."""
        return machine.monotonic() >= self._end_s

    def to_acknowledge(self, done: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return those of the messages `done` that are acknowledged at the broker. Messages of one batch record share a
        handle: only the last of them to be done is.
        """
        if self._shared is None:
            return done
        last = []
        for message in done:
            self._shared[message.receipt_handle] -= 1
            if not self._shared[message.receipt_handle]:
                last.append(message)
        return last

    def finish(self, messages: Iterable[ReceivedMessage]) -> None:
        """Count messages as finished here, whether they are acknowledged, given back or delayed."""
        for message in messages:
            if self.pending.pop(id(message), None) is not None:
                self._popper.waiting -= 1
        if not self.pending:
            self._over.cancel()
            self._popper.batches.discard(self)
        self._popper.wake()

    def _expire(self) -> None:
        log.info("%d messages of %s were not finished in time, and come again", len(self.pending), self._popper.queue)
        self.finish(list(self.pending.values()))


class Popper:
    """Pops for as long as it runs; `deliver(batch, messages)` gets what was popped.

    `waiting`: how many messages are not finished; `popped_ms`: when it last asked, in ms since 1970.
    """

    def __init__(
        self,
        calls: PopCalls,
        queue: MessageQueue,
        subscription: Callable[[], Subscription],
        how: PopSettings,
        *,
        deliver: Callable[[PopBatch, list[ReceivedMessage]], None],
        counts: TopicCounts,
        batches: set[PopBatch],
        refused: Callable[[RocketSparkError], None] | None = None,
    ) -> None:
        self._refused = refused
        self.queue = queue
        self.counts = counts
        self.batches = batches
        self.waiting = 0
        self.popped_ms = 0
        self._calls = calls
        self._subscription = subscription
        self._how = how
        self._deliver = deliver
        self._paused = False
        self._room = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    @property
    def paused(self) -> bool:
        """While true nothing more is popped."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self.wake()

    def wake(self) -> None:
        """Check again whether more messages may be popped."""
        self._room.set()

    async def _run(self) -> None:
        while True:
            while self._paused or self.waiting >= self._how.backlog_count_max:
                self._room.clear()
                await self._room.wait()
            began_s = machine.monotonic()
            try:
                messages = await self._pop()
            except BaseException as e:
                if passes_on(e):
                    raise
                await self._rest(e)
                continue
            cost_s = machine.monotonic() - began_s
            if messages:
                self.counts.pull(cost_s * 1000, len(messages))
                self._take(messages)
            elif cost_s < UNHELD_PAUSE_S:
                await asyncio.sleep(UNHELD_PAUSE_S)

    async def _pop(self) -> list[ReceivedMessage]:
        how = self._how
        count = min(how.count_max, how.backlog_count_max - self.waiting)
        wanted = Wanted(self.queue, self._subscription(), how.invisible_ms, count, from_first=how.from_first)
        self.popped_ms = int(machine.time() * 1000)
        asking = asyncio.ensure_future(self._calls.pop(wanted, POLL_MS))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The broker may answer it yet.
            self._calls.abandon(asking)
            raise

    def _take(self, messages: list[ReceivedMessage]) -> None:
        self.waiting += len(messages)
        batch = PopBatch(self, messages, machine.monotonic() + self._how.invisible_ms / 1000)
        self.batches.add(batch)
        self._deliver(batch, messages)

    async def _rest(self, error: BaseException) -> None:
        pause_s = TROUBLE_PAUSE_S
        if self._refused is not None and isinstance(error, RocketSparkError) and is_refusal(error):
            self._refused(error)
        if isinstance(error, ServerError) and error.code == ResponseCode.POLLING_FULL:
            pause_s = REFUSED_PAUSE_S
        elif isinstance(error, ServerError) and error.retriable:
            log.info("%s: %s", self.queue, error)
            pause_s = BUSY_PAUSE_S
        elif isinstance(error, ServerError):
            log.warning("%s: pop refused: %s", self.queue, error)
            pause_s = REFUSED_PAUSE_S
        elif isinstance(error, RocketSparkError):
            trouble_log.warning("%s: pop failed: %s", self.queue, error)
        else:
            log.error("%s: pop failed", self.queue, exc_info=error)
        if isinstance(error, RocketSparkError):
            await self._calls.look_again(self.queue.topic, error)
        await asyncio.sleep(pause_s)
