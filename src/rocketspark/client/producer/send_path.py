"""The send path: what the sends of one producer share. Rule: a send takes what it needs of it, and gives it back at its
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from rocketspark.client.producer.in_flight_limit import InFlightLimit
from rocketspark.client.producer.key_gate import KeyGate
from rocketspark.client.producer.send_attempts import SendAttempts
from rocketspark.client.results import SendResult
from rocketspark.errors import MessageIllegal
from rocketspark.model import MessageQueue, namespace

if TYPE_CHECKING:
    from rocketspark.client.producer.in_flight_send import InFlightSend


class Gatherer(Protocol):
    """The part of an accumulator that a send sees."""

    def add(self, send: InFlightSend) -> bool:
        """Take a send: it is ended, or begun, later. False if it goes alone, and now."""

    async def close(self) -> None:
        """Send what waits."""


class SendPath:
    """The limits, the key gate and the accumulator of one producer's sends, and the brokers that they go to.

    `check_started`: raises StateError if nothing may be sent; `closing`: the producer waits until no send is left.
    """

    def __init__(
        self,
        attempts: SendAttempts,
        check_started: Callable[[], None],
        *,
        namespace: str = "",
        in_flight_max: int = 1,
        oneway_in_flight_max: int = 1,
        in_flight_bytes_max: int = 1,
    ) -> None:
        self.attempts = attempts
        self.timeout_s = attempts.timeout_s
        self.check_started = check_started
        self.namespace = namespace
        self.limit = InFlightLimit(in_flight_max, in_flight_bytes_max)
        self.oneway_limit = InFlightLimit(oneway_in_flight_max, in_flight_bytes_max)
        self.gate = KeyGate()
        # The last send to each queue that was chosen, while its reply is awaited.
        self.newest: dict[MessageQueue, InFlightSend] = {}
        self.accumulator: Gatherer | None = None
        self.closing = False
        self._idle = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """Tell whether a send is in flight or waits behind another."""
        return bool(self.limit.count or self.oneway_limit.count or len(self.gate))

    def note_end(self) -> None:
        """Note that a send has ended while the producer closes."""
        if not self.is_busy:
            self._idle.set()

    async def finish(self) -> None:
        """Wait until no send is left."""
        self.closing = True
        if self.accumulator is not None:
            await self.accumulator.close()
        if self.is_busy:
            self._idle.clear()
            # Every send has its own time-out; this bound is for what hangs in a hook, or was given longer.
            try:
                async with asyncio.timeout(None if self.accumulator else 2 * self.timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                pass

    # -- namespace -----------------------------------------------------------------------------------------------

    def full_queue(self, topic: str, queue: MessageQueue) -> MessageQueue:
        """Return a queue with its namespace. Raises MessageIllegal if it is not of this topic."""
        full = queue
        if self.namespace:
            full = MessageQueue(namespace.wrap(self.namespace, queue.topic), queue.broker_name, queue.queue_id)
        if full.topic != topic:
            shown = namespace.unwrap(self.namespace, topic)
            text = f"a message of topic {shown!r} cannot go to {queue.broker_name} queue {queue.queue_id} of topic"
            raise MessageIllegal(f"{text} {queue.topic!r}: give a queue of its own topic", topic=shown)
        return full

    def bare_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as the application sees it: without the namespace."""
        if not self.namespace:
            return queue
        return MessageQueue(namespace.unwrap(self.namespace, queue.topic), queue.broker_name, queue.queue_id)

    def shown(self, result: SendResult) -> SendResult:
        """Return a result as the application sees it."""
        return msgspec.structs.replace(result, queue=self.bare_queue(result.queue))
