"""The synchronous clients: the asynchronous ones, run on a background loop. Rule: same methods, same arguments."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from rocketspark.client.facade import Facade, arguments_of, at_any_time, blocking
from rocketspark.client.inquiries import Inquiries
from rocketspark.client.outgoing import Outgoing, make_message, pack
from rocketspark.client.producer import AsyncProducer
from rocketspark.client.pull_consumer import AsyncPullConsumer
from rocketspark.client.push_consumer import AsyncPushConsumer
from rocketspark.client.quick_future import QuickFuture
from rocketspark.client.results import SendResult
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage
from rocketspark.transport.peer import Reply

F = TypeVar("F", bound=Callable[[Any], Any])

# Enough for any broker; with many more in flight, Python's garbage collector looks at them again and again.
FUTURES_IN_FLIGHT_MAX = 4096


class Turnstile:
    """Bounds what is in flight. A semaphore would make every send fight for its lock; these counters don't."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._left = 0
        self._numbers = itertools.count(1)
        self._freed = threading.Condition()
        self._waiting = False

    def enter(self) -> None:
        """Wait until fewer than the most are in flight. Called by many threads."""
        # One step in C: no two threads get one number.
        number = next(self._numbers)
        if number - self._left <= self._count_max:
            return
        with self._freed:
            while number - self._left > self._count_max:
                self._waiting = True
                self._freed.wait(0.1)

    def leave(self) -> None:
        """One less is in flight. Called by the loop's thread alone."""
        self._left += 1
        if self._waiting:
            with self._freed:
                self._waiting = False
                self._freed.notify_all()


Q = TypeVar("Q", bound=Inquiries)
P = TypeVar("P", bound=AsyncProducer)


class InquiriesFacade(Facade[Q]):
    """What producers and push consumers may ask."""

    create_topic = blocking(Inquiries.create_topic)
    search_offset = blocking(Inquiries.search_offset)
    min_offset = blocking(Inquiries.min_offset)
    max_offset = blocking(Inquiries.max_offset)
    earliest_store_time = blocking(Inquiries.earliest_store_time)
    view_message = blocking(Inquiries.view_message)
    query_message = blocking(Inquiries.query_message)


class ProducerFacade(InquiriesFacade[P]):
    """What synchronous producers have in common."""

    def __init__(self, core: P) -> None:
        super().__init__(core)
        self.group = core.group
        self._room = Turnstile(FUTURES_IN_FLIGHT_MAX)

    send = blocking(AsyncProducer.send)
    resend = blocking(AsyncProducer.resend)
    send_batch = blocking(AsyncProducer.send_batch)
    send_oneway = blocking(AsyncProducer.send_oneway)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)
    recall = blocking(AsyncProducer.recall)
    queues = blocking(AsyncProducer.queues)

    def send_future(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> Future[SendResult]:
        """Send one message without waiting; the future becomes its result, or the error `send` raises.

        Raises MessageIllegal at once. With 4096 in flight it waits until one of them ends. Callbacks of the future
        run on the client's own thread: they must not block.
        """
        loop = self._loop
        message = make_message(message, body, fields)
        # Packed here, so that the caller may change the message as soon as this returns.
        out = pack(message, self._core.packing)
        self._room.enter()
        sending = Sending(self._core, self._room, out, message.sharding_key, queue, timeout_ms)
        loop.put(sending)
        return sending


class Sending(QuickFuture[SendResult]):
    """A send on its way to the loop, and the future of its result: one object for both."""

    def __init__(
        self,
        core: AsyncProducer,
        room: Turnstile,
        out: Outgoing,
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: float | None,
    ) -> None:
        super().__init__()
        self._core = core
        self._room = room
        self.out = out
        self.end_s = core.end_s(timeout_ms)
        self.went_to: MessageQueue | None = None
        self._sharding_key = sharding_key
        self._queue = queue
        self._timeout_ms = timeout_ms
        self._task: asyncio.Task[None] | None = None

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send it; on the loop."""
        try:
            if self._queue is not None or self._sharding_key or not self._core.post(self):
                self._task = loop.create_task(self._send())
        except RocketSparkError as e:
            self.finish(None, e)

    def answered(self, asked: asyncio.Future[Reply]) -> None:
        """The reply, or what hindered it, is there."""
        self._core.settle(self, asked)

    async def _send(self) -> None:
        core = self._core
        try:
            attempts = core.future_attempts
            result = await core.send_packed(self.out, self._sharding_key, self._queue, self._timeout_ms, attempts)
        except BaseException as e:
            self.finish(None, e)
            if not isinstance(e, RocketSparkError):
                raise
        else:
            self.finish(result, None)

    def refuse(self, error: BaseException) -> None:
        """The loop has ended."""
        self.finish(None, error)

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        """It has ended."""
        self._task = None
        self._room.leave()
        self.end(result, error)


class Producer(ProducerFacade[AsyncProducer]):
    """Sends messages; may be used from many threads. Arguments and rules: those of AsyncProducer.

    >>> with Producer("127.0.0.1:9876", "orders") as producer:
    ...     producer.send("orders", b"42 apples", tag="fruit")
    """

    @arguments_of(AsyncProducer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncProducer(*args, **kwargs))


class PushConsumer(InquiriesFacade[AsyncPushConsumer]):
    """Hands messages to a listener, in background threads. Arguments and rules: those of AsyncPushConsumer.

    >>> consumer = PushConsumer("127.0.0.1:9876", "billing")
    >>> consumer.subscribe("orders", "fruit || bread")
    >>> consumer.listen(lambda message: print(message.body))
    >>> with consumer:
    ...     input("Enter ends it")
    """

    @arguments_of(AsyncPushConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        core = AsyncPushConsumer(*args, **kwargs)
        super().__init__(core)
        self.group = core.group

    subscribe = at_any_time(AsyncPushConsumer.subscribe)
    unsubscribe = at_any_time(AsyncPushConsumer.unsubscribe)
    pause = at_any_time(AsyncPushConsumer.pause)
    resume = at_any_time(AsyncPushConsumer.resume)
    queues = blocking(AsyncPushConsumer.queues)

    def listen(self, listener: F) -> F:
        """Set the function that gets each message. As AsyncPushConsumer.listen."""
        return self._core.listen(listener)


class PullConsumer(InquiriesFacade[AsyncPullConsumer]):
    """Reads messages on demand. Arguments and rules: those of AsyncPullConsumer.

    >>> with PullConsumer("127.0.0.1:9876", "audit", consume_from="first") as consumer:
    ...     consumer.subscribe("orders")
    ...     for message in consumer:
    ...         print(message.body)
    """

    @arguments_of(AsyncPullConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        core = AsyncPullConsumer(*args, **kwargs)
        super().__init__(core)
        self.group = core.group

    subscribe = at_any_time(AsyncPullConsumer.subscribe)
    unsubscribe = at_any_time(AsyncPullConsumer.unsubscribe)
    assignment = at_any_time(AsyncPullConsumer.assignment)
    assign = blocking(AsyncPullConsumer.assign)
    queues = blocking(AsyncPullConsumer.queues)
    watch_queues = blocking(AsyncPullConsumer.watch_queues)
    poll = blocking(AsyncPullConsumer.poll)
    unread = blocking(AsyncPullConsumer.unread)
    position = blocking(AsyncPullConsumer.position)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_begin = blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncPullConsumer.seek_to_time)
    commit = blocking(AsyncPullConsumer.commit)
    committed = blocking(AsyncPullConsumer.committed)
    begin_offset = blocking(AsyncPullConsumer.begin_offset)
    end_offset = blocking(AsyncPullConsumer.end_offset)
    offsets_for_time = blocking(AsyncPullConsumer.offsets_for_time)
    pause = blocking(AsyncPullConsumer.pause)
    resume = blocking(AsyncPullConsumer.resume)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages one by one, for as long as the consumer is open; those not given out are not committed."""
        while self._thread is not None:
            messages = self.poll()
            given = 0
            try:
                for message in messages:
                    given += 1
                    yield message
            finally:
                if given < len(messages) and self._thread is not None:
                    self.unread(messages[given:])
