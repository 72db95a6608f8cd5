"""A queue that gets what exchanges broadcast, from the moment on when it was bound.

Rule: it lives in this process alone, has no topic, and commits nothing; queues of brokers that do not answer, or join
later, are read once they are there. All but `attach`, `detach`, `take` run on the clients' loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rocketspark.client.callbacks import Tasks, every, trouble_log
from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer
from rocketspark.errors import RocketSparkError
from rocketspark.kombu.names import READERS, quote, unquote
from rocketspark.kombu.options import Settings
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.transport.shared_task import end_tasks

# So many messages wait here for a consumer; more stay on the broker.
WAITING_MAX = 10_000
POLL_MS = 15_000
PAUSE_S = 0.05
TROUBLE_S = 1.0
# How often it is looked whether an exchange's topic has queues that are not read yet.
LOOK_MS = 5000

Arrive = Callable[[str, "Read"], object]
Room = Callable[[], int]


class Read:
    """A message that was broadcast."""

    def __init__(self, message: ReceivedMessage, reader: Reader) -> None:
        self.message = message
        self.tag = ""
        self._reader = reader

    def ack(self) -> None:
        """Note that the message is handled, so that another one may be read in its place."""
        self._reader.wake()

    # No group of readers keeps dead letters.
    dead = ack

    def give_back(self) -> None:
        """Let it be the next to be delivered."""
        self._reader.waiting.appendleft(self)
        self._reader.wake()


class Binding:
    """The keys by which a queue is bound to one exchange's topic, and the consumer that reads it."""

    def __init__(self, topic: str, settings: Settings, left: dict[MessageQueue, int]) -> None:
        more: dict[str, Any] = {"namespace": settings.namespace, **settings.access}
        self.topic = topic
        self._left = left
        # What joins later is read from now on too.
        self.consumer = AsyncPullConsumer(
            settings.namesrv,
            READERS,
            auto_commit=False,
            consume_from=int(time.time() * 1000),
            route_interval_ms=LOOK_MS,
            **more,
        )
        self.queues: list[MessageQueue] = []
        # A direct exchange's keys, or patterns of a topic exchange; of a fanout exchange there are none.
        self.keys: set[str] = set()
        self.patterns: set[str] = set()

    @property
    def expression(self) -> str:
        """Return the tags that brokers look for."""
        return " || ".join(sorted(map(quote, self.keys))) if self.keys and not self.patterns else "*"

    def wants(self, message: ReceivedMessage) -> bool:
        """Tell whether a message is for the queue."""
        key = unquote(message.tag or "")
        bound = not self.keys and not self.patterns
        return bound or key in self.keys or any(re.match(pattern, key) for pattern in self.patterns)

    async def begin(self) -> None:
        """Read from the ends of the topic's queues on, or from where it was left. Raises RouteNotFound, NotSent."""
        await self.consumer.start()
        queues = await self.consumer.queues(self.topic)
        for queue, end in zip(queues, await asyncio.gather(*map(self._end, queues)), strict=True):
            if end is not None:
                await self.add(queue, end)

    async def missing(self) -> list[MessageQueue]:
        """Return queues that are not read, and can be: they were not there, or did not answer. Raises NotSent."""
        left = [queue for queue in await self.consumer.queues(self.topic) if queue not in self.queues]
        return [queue for queue in left if await self._end(queue) is not None]

    async def add(self, queue: MessageQueue, end: int | None = None) -> None:
        """Read one more queue, unless its broker does not answer: from where it was left, from `end` on, or from the
        time on when this was made.
        """
        try:
            await self.consumer.assign([*self.queues, queue], self.expression)
        except RocketSparkError as e:
            trouble_log.warning("what is broadcast is not read from %s, tried again: %s", queue, e)
            return
        self.queues.append(queue)
        at = self._left.pop(queue, end)
        if at is not None:
            await self.consumer.seek(queue, at if end is None else min(at, end))

    async def _end(self, queue: MessageQueue) -> int | None:
        try:
            return await self.consumer.max_offset(queue)
        except RocketSparkError as e:
            trouble_log.warning("what is broadcast is not read from %s, tried again: %s", queue, e)
            return None


class Reader:
    """The messages of one queue, for the channel that consumes it, or until one does. `left`: where an earlier reader
    of this queue ended, as `close` told.
    """

    def __init__(
        self,
        settings: Settings,
        queue: str,
        soon: Callable[[Callable[[], object]], None],
        left: dict[MessageQueue, int],
    ) -> None:
        self.queue = queue
        self._left = left
        self.waiting: deque[Read] = deque()
        self._settings = settings
        self._soon = soon
        self._bindings: dict[str, Binding] = {}
        self._tasks = Tasks()
        self._one_bind = asyncio.Lock()
        self._channels: list[tuple[Arrive, Room]] = []

    async def bind(self, topic: str, key: str | None = None, pattern: str | None = None) -> None:
        """Read an exchange's topic from now on: what has the key, what matches the pattern, or all. Raises
        RouteNotFound, TransportError.
        """
        async with self._one_bind:
            binding = self._bindings.get(topic) or Binding(topic, self._settings, self._left)
            if topic in self._bindings and (key in binding.keys or pattern in binding.patterns or not (key or pattern)):
                return
            binding.keys |= {key} if key else set()
            binding.patterns |= {pattern} if pattern else set()
            if topic in self._bindings:
                await binding.consumer.assign(binding.queues, binding.expression)
                return
            try:
                await binding.begin()
            except BaseException:
                await binding.consumer.close()
                raise
            self._bindings[topic] = binding
            self._tasks.begin(self._read(binding))
            self._tasks.begin(every(LOOK_MS / 1000, lambda: self._follow(binding), f"queue {self.queue}"))

    async def _follow(self, binding: Binding) -> None:
        try:
            missing = await binding.missing()
        except RocketSparkError as e:
            trouble_log.warning("queue %s: its brokers are not looked at, tried again: %s", self.queue, e)
            return
        async with self._one_bind:
            for queue in missing:
                await binding.add(queue)

    async def _read(self, binding: Binding) -> None:
        while True:
            while len(self.waiting) >= WAITING_MAX:
                await asyncio.sleep(PAUSE_S)
            try:
                messages = await binding.consumer.poll(POLL_MS)
            except Exception as e:
                trouble_log.warning("queue %s: what is broadcast is not read, tried again: %s", self.queue, e)
                await asyncio.sleep(TROUBLE_S)
                continue
            self.waiting.extend(Read(message, self) for message in messages if binding.wants(message))
            self._hand_over()

    def _hand_over(self) -> None:
        while self._channels and self.waiting and self._channels[0][1]() > 0:
            self._channels[0][0](self.queue, self.waiting.popleft())

    def wake(self) -> None:
        """Look again whether the channel has room."""
        self._soon(self._hand_over)

    def attach(self, arrive: Arrive, room: Room) -> None:
        """Deliver to a channel, as far as it has room, before those that came later."""
        self._channels.append((arrive, room))
        self.wake()

    def detach(self, arrive: Arrive) -> bool:
        """Deliver to a channel no more. Returns True if others consume the queue."""
        self._channels = [each for each in self._channels if each[0] != arrive]
        self.wake()
        return bool(self._channels)

    def take(self) -> Read | None:
        """Return the next message, None if none is here."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    async def close(self) -> dict[MessageQueue, int]:
        """Read no more. Returns the first offset of each queue that was delivered to nobody."""
        await end_tasks(*self._tasks)
        bindings = self._bindings.values()
        left: dict[MessageQueue, int] = {}
        with contextlib.suppress(RocketSparkError):
            for each in bindings:
                left |= {queue: await each.consumer.position(queue) for queue in each.queues}
        for message in (read.message for read in self.waiting):
            left[message.queue] = min(left.get(message.queue, message.queue_offset), message.queue_offset)
        await asyncio.gather(*(each.consumer.close() for each in bindings), return_exceptions=True)
        return left
