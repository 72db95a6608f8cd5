"""The push consumer of lite topics: each message is handed to a listener, those of one lite topic one after another.

Rule: a message that fails is tried again after a wait, and what follows in its lite topic waits with it; other lite
topics go on. One that failed too often becomes a dead letter of the group.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from rocketspark.client import validators
from rocketspark.client.callbacks import Tasks, end_all, ends_loop, in_thread, on_loop, passes_on
from rocketspark.client.connection.real_threads import DaemonThreads
from rocketspark.client.consumer.listeners import log_failure
from rocketspark.client.consumer.lite.lite_simple_consumer import AsyncLiteSimpleConsumer
from rocketspark.client.consumer.pop.pop_calls import COUNT_MAX
from rocketspark.client.consumer.pop.popper import DELAYS_MS, PopSettings, check_settings
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.options import ClientOptions
from rocketspark.errors import ReceiptExpired, RocketSparkError, StateError, UsageError
from rocketspark.model import ReceivedMessage

log = logging.getLogger("rocketspark.client")

LiteListenerT = TypeVar("LiteListenerT", bound=Callable[[ReceivedMessage], object])

POLL_MS = 15_000
TROUBLE_S = 1.0
# So long `close` waits for listeners that run.
CLOSE_S = 30.0
BACKLOG_MAX = 1024
FAILED_KEPT_MAX = 10_000

# A message's broker, lite topic and offset there.
Place = tuple[str, str, int]


class AsyncLitePushConsumer(AsyncLiteSimpleConsumer):
    """Hands messages of lite topics to a listener, on the running asyncio loop; needs brokers of RocketMQ 5.5.

    Args:
        namesrv, group, topic, on_lost, options: as of AsyncLiteSimpleConsumer.
        invisible_ms: within this time a listener has to end, or its message comes again.
        threads: how many calls of the listener may run at once, of different lite topics, in threads or as coroutines.
        max_reconsume_times: attempts after which a message goes to the group's dead letters. None: the number that the
            broker has for the group.
        delays_ms: after how long a message that failed comes again, by the number of its attempts so far.

    Use it as a context manager, or `start` and `close` it; `listen` comes before the start, `subscribe_lite` after it.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        topic: str = "",
        *,
        invisible_ms: float = 60_000,
        threads: int = 20,
        max_reconsume_times: int | None = None,
        delays_ms: tuple[int, ...] = DELAYS_MS,
        on_lost: Callable[[str], object] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(namesrv, group, topic, invisible_ms=invisible_ms, on_lost=on_lost, **options)
        validators.check_counts(threads=threads)
        self._how = check_settings(PopSettings(delays_ms=tuple(delays_ms)))
        self._attempts_max = max_reconsume_times
        self._threads = threads
        self._pool: DaemonThreads | None = None
        self._permits = asyncio.Semaphore(threads)
        self._listener: Callable[[ReceivedMessage], Any] | None = None
        self._reading: asyncio.Task[None] | None = None
        # Of lite topics that have some, the messages that wait for the listener.
        self._waiting: dict[str, deque[ReceivedMessage]] = {}
        self._backlog = 0
        # How often messages failed here, by place: brokers do not always tell, and count those behind a failure too.
        self._failed_here: dict[Place, int] = {}
        self._room = asyncio.Event()
        self._working = Tasks()

    def listen(self, listener: LiteListenerT) -> LiteListenerT:
        """Set the function that gets each message.

        A plain function runs in a thread, a coroutine function on the loop. If it returns False or raises, its message
        comes again later. Usable as a decorator. Raises StateError after the start, UsageError for what is no function.
        """
        if self._state != "new":
            raise StateError("the listener is set before the consumer starts")
        if not callable(listener) or inspect.isgeneratorfunction(listener) or inspect.isasyncgenfunction(listener):
            raise UsageError(f"a listener is a function without a `yield`, not {listener!r}")
        self._listener = listener
        return listener

    async def start(self) -> None:
        """Join the group and begin to read. Raises StateError, NotSent if no NameServer answers."""
        if self._listener is None:
            raise StateError("no listener: call listen(function) before start")
        await super().start()

    @property
    def calls_here(self) -> bool:
        """Tell whether a call of the listener asks, in its thread."""
        return self._pool is not None and self._pool.is_current

    async def _open(self) -> None:
        assert self._listener is not None
        if not is_coroutine_function(self._listener):
            self._pool = DaemonThreads(self._threads, "rocketspark-lite")
        await super()._open()
        self._reading = asyncio.create_task(self._read())

    async def _end(self, through: bool) -> None:
        if self._reading is not None:
            await end_all([self._reading], TROUBLE_S)
        left = [message for waiting in self._waiting.values() for message in waiting]
        self._waiting.clear()
        self._pops.give_back(left)
        if self._working and not self.calls_here:
            await asyncio.wait(list(self._working), timeout=CLOSE_S)
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        await super()._end(through)

    # -- reading -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                while self._backlog >= BACKLOG_MAX:
                    self._room.clear()
                    await self._room.wait()
                for message in await self.receive(COUNT_MAX, timeout_ms=POLL_MS):
                    self._take_in(message)
            except BaseException as e:
                if ends_loop(e):
                    raise
                log.warning("group %s: lite topics are not read for %g s: %s", self.group, TROUBLE_S, e)
                await asyncio.sleep(TROUBLE_S)

    def _take_in(self, message: ReceivedMessage) -> None:
        name = message.lite_topic or ""
        message.reconsume_times = self._failed_here.get(_place(message), message.reconsume_times)
        self._backlog += 1
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque((message,))
            self._working.begin(self._work(name, self._waiting[name]))
        else:
            waiting.append(message)

    async def _work(self, name: str, waiting: deque[ReceivedMessage]) -> None:
        """Hand over the messages of one lite topic one after another; once one fails, the rest comes again after it."""
        while waiting:
            message = waiting.popleft()
            async with self._permits:
                if self._state != "started":
                    self._pops.give_back([message])
                    break
                taken = await self._call(message)
            self._done()
            try:
                if taken:
                    self._failed_here.pop(_place(message), None)
                    await self._pops.ack([message])
                else:
                    await self._failed(message, waiting)
            except RocketSparkError as e:
                log.warning("group %s: message %s comes again: %s", self.group, message.message_id, e)
                if not taken:
                    # Those behind it come again too, when their time is over.
                    for _ in range(len(waiting)):
                        waiting.popleft()
                        self._done()
        if self._waiting.get(name) is waiting:
            del self._waiting[name]

    def _done(self) -> None:
        self._backlog -= 1
        self._room.set()

    async def _call(self, message: ReceivedMessage) -> bool:
        """Tell whether the listener took a message. One whose time is over is not shown to it: it comes again."""
        listener, loop = self._listener, asyncio.get_running_loop()
        assert listener is not None
        try:
            self._pops.handle_of(message)
            if message.body_error is not None:
                log.error("message %s is not given to the listener: %s", message.message_id, message.body_error)
                return False
            if self._pool is None:
                returned = await on_loop(listener(message))
            else:
                returned = await loop.run_in_executor(self._pool, lambda: in_thread(listener(message), loop))
        except ReceiptExpired as e:
            log.warning("group %s: %s", self.group, e)
            return False
        except BaseException as e:
            if passes_on(e):
                raise
            log_failure(message, e)
            return False
        return returned is not False

    async def _failed(self, message: ReceivedMessage, waiting: deque[ReceivedMessage]) -> None:
        """Have a message come again, and those behind it that wait here; one that failed too often becomes a dead
        letter, and those behind it go on. Raises RocketSparkError.
        """
        limit = self._attempts_max
        if message.reconsume_times >= (await self._pops.attempts_max(message) if limit is None else limit):
            await self._returned.bury_popped(message)
            self._failed_here.pop(_place(message), None)
            await self._pops.ack([message])
            return
        delay_ms = self._how.delay_ms(message.reconsume_times)
        self._note(message, message.reconsume_times + 1)
        behind = [message]
        while behind:
            await self._pops.change_invisible_time(behind.pop(), delay_ms)
            if waiting:
                behind.append(waiting.popleft())
                self._note(behind[0], behind[0].reconsume_times)
                self._done()

    def _note(self, message: ReceivedMessage, failures: int) -> None:
        if len(self._failed_here) >= FAILED_KEPT_MAX:
            del self._failed_here[next(iter(self._failed_here))]
        self._failed_here[_place(message)] = failures


def _place(message: ReceivedMessage) -> Place:
    return message.broker_name, message.lite_topic or "", message.queue_offset
