"""What the sends of one producer share: how many requests and bytes may be unanswered, the key gate, the accumulator.

Rule: a send without room waits in turn; sends of one key pass one at a time, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from rocketspark.client import validators
from rocketspark.client.producer.send_attempts import SendAttempts
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError, MessageIllegal, TooManyInFlight
from rocketspark.model import MessageQueue, namespace


class KeyGate:
    """Lets only one send at a time pass for each key (a sharding key or a queue); the others wait in the order in which
    they came.
    """

    def __init__(self) -> None:
        # By key: the turns of those who wait behind the one that passes; None, while nobody has.
        self._turns: dict[Hashable, OrderedDict[asyncio.Future[None], None] | None] = {}

    def take_place(self, key: Hashable) -> asyncio.Future[None] | None:
        """Join the line of a key. Returns None if the caller may pass now, else a future that ends when it may.

        `leave` must follow, with what was returned.
        """
        if key not in self._turns:
            self._turns[key] = None
            return None
        turns = self._turns[key]
        if turns is None:
            turns = self._turns[key] = OrderedDict()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns[turn] = None
        return turn

    async def enter(self, key: Hashable) -> None:
        """Wait until all who came before with this key have left. `leave` must follow unless this raises."""
        turn = self.take_place(key)
        if turn is not None:
            try:
                await turn
            except BaseException:
                self.leave(key, turn)
                raise

    def leave(self, key: Hashable, turn: asyncio.Future[None] | None = None) -> None:
        """Let the next one of a key pass. With a `turn` that has not come yet: leave the line."""
        turns = self._turns.get(key)
        if turn is not None and (turn.cancelled() or not turn.done()):
            turn.cancel()
            if turns is not None:
                turns.pop(turn, None)
            return
        while turns:
            following, _ = turns.popitem(last=False)
            if not following.done():
                following.set_result(None)
                return
        del self._turns[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._turns

    def __len__(self) -> int:
        return len(self._turns)


class Ending(Protocol):
    """The part of a send that its path uses."""

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """End the send, and tell its caller."""


S = TypeVar("S", bound=Ending)
Gathered = TypeVar("Gathered", contravariant=True)


class InFlightLimit:
    """A limit for requests in flight: at most `count_max`, of `bytes_max` bytes together. A larger request is let in
    when it is alone.
    """

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_waiting", "count")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        if count_max < 1 or bytes_max < 1:
            raise ConfigError("in_flight_max, oneway_in_flight_max and in_flight_bytes_max must be 1 or more")
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        # By turn, the bytes it needs: whoever gives up leaves at once, however many wait.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self.count = 0

    def try_enter(self, size: int) -> bool:
        """Take room for a request of that many bytes, if there is some and no other send waits for it."""
        # As `_fits`, without a call: it runs for every send.
        if self._waiting or (self.count and (self.count >= self._count_max or self._bytes + size > self._bytes_max)):
            return False
        self.count += 1
        self._bytes += size
        return True

    def _fits(self, size: int) -> bool:
        return not self.count or (self.count < self._count_max and self._bytes + size <= self._bytes_max)

    def take_place(self, size: int) -> asyncio.Future[None]:
        """Wait in line for room for `size` bytes, where `try_enter` found none. The future ends once the room is
        taken.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = size
        return turn

    def give_up(self, turn: asyncio.Future[None]) -> bool:
        """Leave the line. Returns True if the turn has come already: then its room is taken, and `leave` must
        follow.
        """
        if self._waiting.pop(turn, None) is None:
            return True
        self._admit()
        return False

    def full(self) -> TooManyInFlight:
        """Return the error for a send that waited too long for room."""
        text = f"nothing was sent: {self.count} requests of {self._bytes} bytes are in flight"
        return TooManyInFlight(f"{text}; send slower, or allow more with in_flight_max")

    def leave(self, size: int) -> None:
        """Give back the room of a send of `size` bytes; those who wait for room may then go on."""
        self.count -= 1
        self._bytes -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            turn, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                return
            self.count += 1
            self._bytes += size
            del self._waiting[turn]
            turn.set_result(None)


class Gatherer(Protocol[Gathered]):
    """The part of an accumulator that a send uses."""

    def add(self, send: Gathered) -> bool:
        """Take a send, to be sent with others later. False if it cannot be gathered: then the caller sends it alone,
        now.
        """

    def close(self) -> Coroutine[Any, Any, None]:
        """Send all gathered sends, and wait until they have ended."""


class SendPath(Generic[S]):
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
        self.newest: dict[MessageQueue, S] = {}
        self.accumulator: Gatherer[S] | None = None
        # Those that wait without a task.
        self.waiting: dict[S, None] = {}
        self.closing = False
        self._idle = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """Tell whether a send is in flight or waits behind another."""
        return bool(self.limit.count or self.oneway_limit.count or len(self.gate) or self.waiting)

    def note_end(self) -> None:
        """Let `finish` go on if no send is left; called when a send has ended while the producer closes."""
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
                for send in list(self.waiting):
                    send.finish(None, asyncio.CancelledError())

    # -- namespace -----------------------------------------------------------------------------------------------

    def full_queue(self, topic: str, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the namespace before its topic's name. Raises MessageIllegal if it is not a queue of
        `topic`.
        """
        full = validators.check_queue(queue)
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
        """Return a result as the application sees it: without the namespace."""
        return msgspec.structs.replace(result, queue=self.bare_queue(result.queue))
