"""A queue's messages, received by popping: each is held for this process until it is acknowledged, given back or dead.

Rule: while a message is held its invisible time is renewed, however long its task runs; once this process has ended,
or gives it back, others get it. Everything here runs on the clients' loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from rocketspark.client.callbacks import Tasks, end_all, trouble_log
from rocketspark.client.consumer.pop.pop_calls import COUNT_MAX
from rocketspark.client.consumer.pop.simple_consumer import AsyncSimpleConsumer
from rocketspark.errors import ReceiptExpired, RocketSparkError
from rocketspark.kombu.names import group_of
from rocketspark.kombu.options import Settings
from rocketspark.model import ReceivedMessage

T = TypeVar("T")

# A broker that is not ours holds what is asked for this long also where the consumer was cancelled.
WAIT_MS = 5000
TROUBLE_S = 1.0
AGAIN_S = 0.3
CLOSE_S = 5.0
# Acknowledgements of one request, and renewals at a time.
AT_ONCE = 64
# After which what was given back is visible; a get waits for it for so long.
GIVEN_BACK_MS = 1
AGAIN_WITHIN_S = 6.0


class Popped:
    """A message that this process holds. `tag`: its delivery tag."""

    def __init__(self, message: ReceivedMessage, source: Source, consumer: AsyncSimpleConsumer) -> None:
        self.message = message
        self.tag = ""
        self.consumer = consumer
        self.renew_at_s = 0.0
        # A renewal that is under way: what follows needs the handle that it brings.
        self.renewal: asyncio.Task[None] | None = None
        self._source = source

    def ack(self) -> None:
        """Acknowledge the message; from any thread."""
        self._source.soon(lambda: self._source.ack(self))

    def give_back(self) -> None:
        """Have the message delivered again at once, to this worker or another one; from any thread."""
        self._source.soon(lambda: self._source.give_back(self))

    def dead(self) -> None:
        """Make the message a dead letter of the queue's group; from any thread."""
        self._source.soon(lambda: self._source.bury(self))


class Source:
    """Receives one queue: its topics, of the highest priority first.

    `room` tells how many more messages may be held by this source and those it shares the room with; `shares` how many
    these are, itself among them. `turn` is theirs together: who holds it looks for messages. `arrive` gets each.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Iterable[str],
        *,
        room: Callable[[], int],
        shares: Callable[[], int],
        turn: asyncio.Lock,
        arrive: Callable[[Popped], object],
        soon: Callable[[Callable[[], object]], None],
    ) -> None:
        self.soon = soon
        self._settings = settings
        self._room = room
        self._shares = shares
        self._turn = turn
        self._arrive = arrive
        self._invisible_ms = settings.visibility_timeout * 1000
        self._consumers = {topic: self._consumer(topic) for topic in topics}
        self._held: set[Popped] = set()
        # By broker, as a silent one makes only its own messages wait.
        self._to_ack: dict[str, list[Popped]] = {}
        self._busy: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._more = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._given_back_s = -AGAIN_WITHIN_S

    def _consumer(self, topic: str) -> AsyncSimpleConsumer:
        more: dict[str, Any] = {"namespace": self._settings.namespace, **self._settings.access}
        consumer = AsyncSimpleConsumer(
            self._settings.namesrv, group_of(topic), consume_from="first", invisible_ms=self._invisible_ms, **more
        )
        consumer.subscribe(topic)
        return consumer

    async def open(self) -> None:
        """Join the groups. Raises NotSent."""
        for consumer in self._consumers.values():
            await consumer.start()
        self._renewing = asyncio.ensure_future(self._renew())

    # -- receive -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Begin to receive."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Receive no more; what is held stays so."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def wake(self) -> None:
        """Look again whether there is room."""
        self._more.set()

    async def _run(self) -> None:
        while True:
            if self._count() <= 0:
                self._more.clear()
                await self._more.wait()
                continue
            try:
                await self._fill()
            except Exception as e:
                names = ", ".join(self._consumers)
                trouble_log.warning("topic %s: no tasks are received, tried again: %s", names, e)
                await asyncio.sleep(TROUBLE_S)

    def _count(self) -> int:
        # Nobody shares the room any more: the channel is being closed.
        return min(self._room(), COUNT_MAX) if self._shares() else 0

    async def _fill(self) -> None:
        """Receive what there is room for: what is there now, else what comes, in which each who waits has a share."""
        parts = self._shares() * len(self._consumers)
        if parts > 1:
            async with self._turn:
                found = await self._look(self._count())
                self._take(found)
            if found:
                return
        if (count := self._count()) > 0:
            self._take(await self._wait(max(1, count // parts)))

    def _take(self, found: list[Popped]) -> None:
        for popped in found:
            if self._room() > 0:
                self._arrive(popped)
            else:
                # Several waited for the last place.
                self.give_back(popped)

    async def _look(self, count: int) -> list[Popped]:
        """Return what is there now, of the first topic that has something."""
        for consumer in self._consumers.values() if count > 0 else ():
            if found := await consumer.receive(count, timeout_ms=0):
                return [self._hold(message, consumer) for message in found]
        return []

    async def _wait(self, count: int, wait_ms: float = WAIT_MS) -> list[Popped]:
        """Return what comes first, at most `count` messages of each topic; nothing if nothing does."""
        waiting = {asyncio.ensure_future(c.receive(count, timeout_ms=wait_ms)): c for c in self._consumers.values()}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for popped in self._received(waiting):
                self.give_back(popped)
            raise
        found = self._received(waiting)
        for task in () if found else waiting:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return found

    def _received(self, waiting: dict[asyncio.Task[list[ReceivedMessage]], AsyncSimpleConsumer]) -> list[Popped]:
        """End receives, and hold what those got that are done. What still comes for the others is given back, or goes
        to the next call.
        """
        for task in waiting:
            task.cancel()
        done = {task: c for task, c in waiting.items() if task.done() and not task.cancelled()}
        return [self._hold(m, c) for task, c in done.items() if task.exception() is None for m in task.result()]

    async def get(self) -> Popped | None:
        """Return the first message, None if there is none now; what was given back just now is waited for."""
        wait_s = self._given_back_s + AGAIN_WITHIN_S - asyncio.get_running_loop().time()
        found = await self._look(1)
        if not found and wait_s > 0:
            found = await self._wait(1, wait_s * 1000)
        for popped in found[1:]:
            self.give_back(popped)
        return found[0] if found else None

    async def purge(self) -> int:
        """Acknowledge all that is there; returns how many messages."""
        count = 0
        for consumer in self._consumers.values():
            while found := await consumer.receive(COUNT_MAX, timeout_ms=0):
                await consumer.ack(found)
                count += len(found)
        return count

    def _hold(self, message: ReceivedMessage, consumer: AsyncSimpleConsumer) -> Popped:
        popped = Popped(message, self, consumer)
        popped.renew_at_s = asyncio.get_running_loop().time() + self._invisible_ms / 2000
        self._held.add(popped)
        return popped

    # -- hold ----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._invisible_ms / 8000)
            due: dict[str, list[Popped]] = {}
            for popped in self._held:
                if popped.renew_at_s <= loop.time():
                    due.setdefault(popped.message.broker_name, []).append(popped)
            for broker_name, those in due.items():
                self._keep_busy("renew", broker_name, self._renew_all, those)

    async def _renew_all(self, due: list[Popped]) -> None:
        """Renew messages of one broker."""
        for at in range(0, len(due), AT_ONCE):
            tasks = []
            for popped in due[at : at + AT_ONCE]:
                if popped in self._held:
                    popped.renewal = self._tasks.begin(self._renew_one(popped))
                    tasks.append(popped.renewal)
            if tasks:
                await asyncio.wait(tasks)

    def _keep_busy(self, what: str, broker_name: str, work: Callable[[T], Coroutine[Any, Any, None]], of: T) -> None:
        """Begin to do a kind of work at a broker, unless it is being done."""
        task = self._busy.get((what, broker_name))
        if task is None or task.done():
            self._busy[what, broker_name] = self._tasks.begin(work(of))

    async def _renew_one(self, popped: Popped) -> None:
        try:
            await popped.consumer.change_invisible_time(popped.message, self._invisible_ms)
            popped.renew_at_s = asyncio.get_running_loop().time() + self._invisible_ms / 2000
        except ReceiptExpired as e:
            self._held.discard(popped)
            trouble_log.warning("a task that is held here was not renewed in time: %s", e)
        except RocketSparkError as e:
            popped.renew_at_s = 0
            trouble_log.warning("message %s is not renewed, tried again: %s", popped.message.message_id, e)
        finally:
            popped.renewal = None

    # -- let go --------------------------------------------------------------------------------------------------

    def ack(self, popped: Popped) -> None:
        """Acknowledge a message, in the background and again until the broker has it or it is visible to others."""
        self._held.discard(popped)
        broker_name = popped.message.broker_name
        self._to_ack.setdefault(broker_name, []).append(popped)
        self.wake()
        self._keep_busy("ack", broker_name, self._ack, broker_name)

    async def _ack(self, broker_name: str) -> None:
        count_max = AT_ONCE
        while waiting := self._to_ack[broker_name]:
            some, self._to_ack[broker_name] = waiting[:count_max], waiting[count_max:]
            by_consumer: dict[AsyncSimpleConsumer, list[ReceivedMessage]] = {}
            for popped in some:
                await _renewed(popped)
                by_consumer.setdefault(popped.consumer, []).append(popped.message)
            try:
                await asyncio.gather(*(consumer.ack(messages) for consumer, messages in by_consumer.items()))
                count_max = AT_ONCE
            except ReceiptExpired as e:
                if len(some) > 1:
                    # Which of them, and what became of the others?
                    self._to_ack[broker_name][:0], count_max = some, 1
                else:
                    trouble_log.warning("a task was acknowledged too late, and is done again: %s", e)
            except RocketSparkError as e:
                trouble_log.warning("acknowledgements are not taken, tried again: %s", e)
                self._to_ack[broker_name][:0], count_max = some, 1
                await asyncio.sleep(AGAIN_S)

    def give_back(self, popped: Popped) -> None:
        """Let a message come again at once, here or elsewhere."""
        self._given_back_s = asyncio.get_running_loop().time()
        self._let_go(popped, popped.consumer.change_invisible_time, GIVEN_BACK_MS)

    def bury(self, popped: Popped) -> None:
        """Make a message a dead letter of its group; without the option dead_letters it is acknowledged."""
        if self._settings.dead_letters:
            self._let_go(popped, popped.consumer.dead_letter)
        else:
            self.ack(popped)

    def _let_go(self, popped: Popped, call: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        async def let_go() -> None:
            await _renewed(popped)
            try:
                await call(popped.message, *arguments)
            except RocketSparkError as e:
                message_id = popped.message.message_id
                trouble_log.warning("message %s comes again when its time is over: %s", message_id, e)

        self._held.discard(popped)
        self._tasks.begin(let_go())
        self.wake()

    async def settle(self) -> None:
        """Wait until brokers have all that was acknowledged and given back, or some seconds are over."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_S)

    async def close(self) -> None:
        """Give back what is held, and leave the groups."""
        self.stop()
        if self._renewing is not None:
            self._renewing.cancel()
        for popped in list(self._held):
            self.give_back(popped)
        await self.settle()
        await end_all(self._tasks, CLOSE_S)
        await asyncio.gather(*(c.close() for c in self._consumers.values()), return_exceptions=True)


async def _renewed(popped: Popped) -> None:
    if popped.renewal is not None:
        await asyncio.wait([popped.renewal])
