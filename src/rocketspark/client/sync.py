"""The synchronous clients: the asynchronous ones, run on a background loop. Rule: same methods, same arguments."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from copy import copy
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, overload

from rocketspark import machine
from rocketspark.client.connection.loop_thread import LoopThread, ThreadWaiter
from rocketspark.client.consumer.lite.lite_push_consumer import AsyncLitePushConsumer, LiteListenerT
from rocketspark.client.consumer.lite.lite_simple_consumer import AsyncLiteSimpleConsumer
from rocketspark.client.consumer.pop.pop_calls import COUNT_MAX
from rocketspark.client.consumer.pop.simple_consumer import AsyncSimpleConsumer
from rocketspark.client.consumer.pull_consumer import AsyncPullConsumer
from rocketspark.client.consumer.push_consumer import AsyncPushConsumer, ColumnsListenerT, ListenerT
from rocketspark.client.facade import Facade, arguments_of, at_any_time, blocking
from rocketspark.client.message_batch import MessageBatch
from rocketspark.client.producer.given_columns import Given, check_rows
from rocketspark.client.producer.prepared_message import key_of, make_message, pack
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.producer.program_end import open_producers
from rocketspark.client.producer.thread_sends import (
    CallbackThreads,
    FuturePart,
    FutureSend,
    SendFuture,
    ThreadInFlightLimit,
    WaitingSend,
)
from rocketspark.client.queries import Queries
from rocketspark.client.results import SendManyResult, SendResult
from rocketspark.client.selectors import Selector
from rocketspark.errors import StateError
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage

# At the end of a program: how often what was gathered since is sent.
LOOK_S = 0.1
# So long `close` waits for callbacks that run.
CALLBACKS_S = 30.0
_NO_FIELDS: MessageFields = {}

T = TypeVar("T")
Q = TypeVar("Q", bound=Queries)
S = TypeVar("S", bound=AsyncSimpleConsumer)
P = TypeVar("P", bound=AsyncProducer)


class QueriesFacade(Facade[Q]):
    """The queries of synchronous producers and consumers."""

    def __init__(self, core: Q) -> None:
        super().__init__(core)
        self.group = core.group

    create_topic = blocking(Queries.create_topic)
    search_offset = blocking(Queries.search_offset)
    min_offset = blocking(Queries.min_offset)
    max_offset = blocking(Queries.max_offset)
    earliest_store_time = blocking(Queries.earliest_store_time)
    view_message = blocking(Queries.view_message)
    query_message = blocking(Queries.query_message)


class ProducerFacade(QueriesFacade[P]):
    """The base of synchronous producers."""

    def __init__(self, core: P) -> None:
        super().__init__(core)
        self._room = ThreadInFlightLimit(core.in_flight_max)
        self._callbacks = CallbackThreads()
        self._at_end = functools.partial(self._callbacks.close, 0)
        self._executor = core.callback_executor or self._callbacks

    def start(self) -> None:
        """Begin. As the asynchronous client's `start`."""
        if self._thread is None:
            # Of the process that starts it, which may be a fork of the one that made it.
            self._room = ThreadInFlightLimit(self._core.in_flight_max)
        super().start()
        open_producers.add(self)

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        open_producers.discard(self)
        on_loop = self._thread is not None and self._thread.thread.is_current
        try:
            super()._end(ending)
        finally:
            self._callbacks.close(0 if on_loop else CALLBACKS_S)

    def _finish_by(self, end_s: float) -> int:
        """Send what futures have still to send; returns how many were not by the monotonic time `end_s`."""
        thread, accumulator = self._thread, self._core.send_path.accumulator
        if thread is None or thread.is_dead:
            return 0
        # Again, as callbacks may send.
        while True:
            turn = ThreadWaiter(accumulator.close() if accumulator is not None else asyncio.sleep(0))
            thread.put(turn)
            turn.lock.acquire(timeout=max(end_s - machine.monotonic(), 0))
            self._callbacks.wait(max(end_s - machine.monotonic(), 0))
            left = self._room.wait_empty(0)
            if not left or machine.monotonic() >= end_s:
                return left
            self._room.wait_empty(min(end_s, machine.monotonic() + LOOK_S))

    resend = blocking(AsyncProducer.resend)
    send_batch = blocking(AsyncProducer.send_batch)
    send_oneway = blocking(AsyncProducer.send_oneway)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)
    recall = blocking(AsyncProducer.recall)
    queues = blocking(AsyncProducer.queues)

    def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Send one message and wait until a broker has stored it. As AsyncProducer.send."""
        loop = self._loop
        core = self._core
        message = make_message(message, body, fields)
        choose = None if selector is None else core._chooser(message, queue, selector, argument)
        out = pack(message, core.packing)
        key = key_of(message)
        return loop.ask(
            WaitingSend(core.send_path, out, key, queue, timeout_ms, core.attempts, message, choose, wakes=loop.wakes)
        )

    @arguments_of(AsyncProducer.send_many)
    def send_many(self, topic: str, bodies: Any, *, timeout_ms: float | None = None, **columns: Any) -> SendManyResult:
        """Send many messages of one topic, given as columns, and wait for all. As AsyncProducer.send_many."""
        loop, core = self._loop, self._core
        # In the thread that calls: the loop goes on meanwhile.
        rows = check_rows(topic, Given(bodies, **columns), core.packing)
        return loop.call(core._send_rows(rows, timeout_ms))

    def send_future(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> Future[SendResult]:
        """Send one message without waiting; the future becomes its result, or the error `send` raises.

        Raises MessageIllegal at once. With `in_flight_max` in flight it waits until one of them ends, and raises
        TooManyInFlight when its time is over; in a callback it never waits. A selector gets a copy of the message, and
        runs on the client's own thread: it must not block. Callbacks run in four threads, or by `callback_executor`.
        """
        # `_loop`, without a call.
        loop = self._thread or self._loop
        core = self._core
        future = SendFuture(self._room, self._executor)
        # Packed here, so that the caller may change the message as soon as this returns.
        accumulator = core.accumulator
        if accumulator is not None and selector is None and timeout_ms is None:
            part = None
            if (
                type(message) is str
                and body is not None
                and queue is None
                and accumulator.is_simple(message, body, fields)
            ):
                part = FuturePart(future, accumulator, message, body, fields or _NO_FIELDS)
            else:
                message, body, fields = make_message(message, body, fields), None, {}
                encoded = accumulator.encode(message, queue)
                if encoded is not None:
                    part = FuturePart(future, accumulator, encoded.topic, b"", {}, encoded)
            if part is not None:
                self._room.enter(core.send_path.timeout_s, loop.thread)
                loop.put(part)
                return future
        message = make_message(message, body, fields)
        out = pack(message, core.packing)
        choose = None if selector is None else core._chooser(copy(message), queue, selector, argument)
        send = FutureSend(
            core.send_path,
            out,
            key_of(message),
            queue,
            timeout_ms,
            core.future_attempts,
            message,
            choose,
            core.future_codes,
            future=future,
        )
        self._room.enter(send.end_s - send.began_s, loop.thread)
        loop.put(send)
        return future


class Producer(ProducerFacade[AsyncProducer]):
    """Sends messages; may be used from many threads. Arguments and rules: those of AsyncProducer.

    >>> with Producer("127.0.0.1:9876", "orders") as producer:
    ...     producer.send("orders", b"42 apples", tag="fruit")
    """

    _closes_unreferenced = True

    @arguments_of(AsyncProducer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncProducer(*args, **kwargs))


class PushConsumer(QueriesFacade[AsyncPushConsumer]):
    """Hands messages to a listener, in background threads. Arguments and rules: those of AsyncPushConsumer.

    >>> consumer = PushConsumer("127.0.0.1:9876", "billing")
    >>> consumer.subscribe("orders", "fruit || bread")
    >>> consumer.listen(lambda message: print(message.body))
    >>> with consumer:
    ...     input("Enter ends it")
    """

    @arguments_of(AsyncPushConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncPushConsumer(*args, **kwargs))

    subscribe = at_any_time(AsyncPushConsumer.subscribe)
    unsubscribe = at_any_time(AsyncPushConsumer.unsubscribe)
    reject = at_any_time(AsyncPushConsumer.reject)
    pause = at_any_time(AsyncPushConsumer.pause)
    resume = at_any_time(AsyncPushConsumer.resume)
    queues = blocking(AsyncPushConsumer.queues)

    @overload
    def listen(self, listener: ListenerT) -> ListenerT: ...

    @overload
    def listen(self, listener: ColumnsListenerT, *, batch: Literal["columns"]) -> ColumnsListenerT: ...

    def listen(self, listener: Any, *, batch: Literal["columns"] | None = None) -> Any:
        """Set the function that gets each message. As AsyncPushConsumer.listen."""
        return self._core.listen(listener) if batch is None else self._core.listen(listener, batch=batch)


class PullConsumer(QueriesFacade[AsyncPullConsumer]):
    """Reads messages on demand. Arguments and rules: those of AsyncPullConsumer.

    >>> with PullConsumer("127.0.0.1:9876", "audit", consume_from="first") as consumer:
    ...     consumer.subscribe("orders")
    ...     for message in consumer:
    ...         print(message.body)
    """

    _closes_unreferenced = True

    @arguments_of(AsyncPullConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncPullConsumer(*args, **kwargs))

    subscribe = at_any_time(AsyncPullConsumer.subscribe)
    unsubscribe = at_any_time(AsyncPullConsumer.unsubscribe)
    assignment = at_any_time(AsyncPullConsumer.assignment)
    assign = blocking(AsyncPullConsumer.assign)
    queues = blocking(AsyncPullConsumer.queues)
    watch_queues = blocking(AsyncPullConsumer.watch_queues)
    unread = blocking(AsyncPullConsumer.unread)
    position = blocking(AsyncPullConsumer.position)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_beginning = blocking(AsyncPullConsumer.seek_to_beginning)
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

    def poll(self, timeout_ms: float = 1000, *, count_max: int = 1000) -> list[ReceivedMessage]:
        """Return up to `count_max` messages; wait up to `timeout_ms` for the first, and return none after that.

        A call says that the messages of earlier calls are finished: with `auto_commit` they may be committed.
        """
        loop, core = self._loop, self._core
        return _handed(loop, core.poll(timeout_ms, count_max=count_max), core.unread_now)

    def poll_batch(self, timeout_ms: float = 1000, *, count_max: int = 16_384) -> MessageBatch:
        """Return up to `count_max` messages as columns, as `poll` does in all else. As AsyncPullConsumer.poll_batch."""
        loop, core = self._loop, self._core
        return _handed(loop, core.poll_batch(timeout_ms, count_max=count_max), core.unread_now)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Give out messages one by one, while the consumer is open; each is finished when the next is asked for.

        The last message is finished when the thread that iterates closes the consumer without an error.
        """
        core = self._core
        while (loop := self._thread) is not None:
            try:
                message_iterator = _handed(loop, core.lend(), core.take_back)
            except StateError:
                if self._thread is None:
                    return  # Closed by another thread.
                raise
            message_iterator.thread = threading.get_ident()
            try:
                for message in message_iterator:
                    if self._thread is None:
                        return
                    yield message
            finally:
                # Not waited for: an iterator may be let go when the process ends.
                loop.put(LoopNotice(functools.partial(core.take_back, message_iterator)))

    def close(self) -> None:
        """Finish and close. As the asynchronous client's `close`; may be called again."""
        self._finish()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        super().__exit__(kind, error, trace)

    def _finish(self) -> None:
        """Finish the iterators of the thread that closes; the state of other threads' iterators is unknown."""
        for message_iterator in list(self._core.lent):
            if message_iterator.thread == threading.get_ident():
                message_iterator.finished = True


class SimpleConsumerFacade(QueriesFacade[S]):
    """The base of synchronous consumers that receive."""

    _closes_unreferenced = True

    give_back = at_any_time(AsyncSimpleConsumer.give_back)
    ack = blocking(AsyncSimpleConsumer.ack)
    change_invisible_time = blocking(AsyncSimpleConsumer.change_invisible_time)
    dead_letter = blocking(AsyncSimpleConsumer.dead_letter)

    def receive(
        self, count_max: int = COUNT_MAX, *, timeout_ms: float = 15_000, invisible_ms: float | None = None
    ) -> list[ReceivedMessage]:
        """Return up to `count_max` messages (1 to 32) as soon as there are some. As AsyncSimpleConsumer.receive.

        A thread that is interrupted loses nothing: what it would have got is given back.
        """
        loop, core = self._loop, self._core
        found = core.receive(count_max, timeout_ms=timeout_ms, invisible_ms=invisible_ms)
        return _handed(loop, found, core.give_back)

    def receive_batch(
        self, count_max: int = COUNT_MAX, *, timeout_ms: float = 15_000, invisible_ms: float | None = None
    ) -> MessageBatch:
        """Return what `receive` does, as columns. `ack` takes the batch, or a part: `batch[mask]`."""
        return MessageBatch(self.receive(count_max, timeout_ms=timeout_ms, invisible_ms=invisible_ms))


class SimpleConsumer(SimpleConsumerFacade[AsyncSimpleConsumer]):
    """Receives messages and acknowledges each. Arguments and rules: those of AsyncSimpleConsumer.

    >>> with SimpleConsumer("127.0.0.1:9876", "audit", consume_from="first") as consumer:
    ...     consumer.subscribe("orders")
    ...     for message in consumer.receive():
    ...         print(message.body)
    ...         consumer.ack(message)
    """

    @arguments_of(AsyncSimpleConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncSimpleConsumer(*args, **kwargs))

    subscribe = at_any_time(AsyncSimpleConsumer.subscribe)
    unsubscribe = at_any_time(AsyncSimpleConsumer.unsubscribe)


class LiteSimpleConsumer(SimpleConsumerFacade[AsyncLiteSimpleConsumer]):
    """Receives messages of lite topics and acknowledges each. Arguments and rules: those of AsyncLiteSimpleConsumer.

    >>> with LiteSimpleConsumer("127.0.0.1:9876", "agents", "chats") as consumer:
    ...     consumer.subscribe_lite("session-42", position="first")
    ...     for message in consumer.receive():
    ...         print(message.lite_topic, message.body)
    ...         consumer.ack(message)
    """

    @arguments_of(AsyncLiteSimpleConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncLiteSimpleConsumer(*args, **kwargs))

    subscribe_lite = blocking(AsyncLiteSimpleConsumer.subscribe_lite)
    unsubscribe_lite = blocking(AsyncLiteSimpleConsumer.unsubscribe_lite)
    lite_topics = at_any_time(AsyncLiteSimpleConsumer.lite_topics)


class LitePushConsumer(QueriesFacade[AsyncLitePushConsumer]):
    """Hands messages of lite topics to a listener, in background threads. Arguments and rules: those of
    AsyncLitePushConsumer.

    >>> consumer = LitePushConsumer("127.0.0.1:9876", "agents", "chats")
    >>> consumer.listen(lambda message: print(message.lite_topic, message.body))
    >>> with consumer:
    ...     consumer.subscribe_lite("session-42")
    ...     input("Enter ends it")
    """

    @arguments_of(AsyncLitePushConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncLitePushConsumer(*args, **kwargs))

    subscribe_lite = blocking(AsyncLitePushConsumer.subscribe_lite)
    unsubscribe_lite = blocking(AsyncLitePushConsumer.unsubscribe_lite)
    lite_topics = at_any_time(AsyncLitePushConsumer.lite_topics)

    def listen(self, listener: LiteListenerT) -> LiteListenerT:
        """Set the function that gets each message. As AsyncLitePushConsumer.listen."""
        return self._core.listen(listener)


def _handed(loop: LoopThread, coroutine: Coroutine[Any, Any, T], take_back: Callable[[T], None]) -> T:
    """Return a coroutine's result to this thread; if the thread is interrupted, the result is taken back."""
    waiter: ThreadWaiter[T] = ThreadWaiter(coroutine)
    try:
        return loop.ask(waiter)
    except BaseException:
        loop.put(LoopNotice(lambda: waiter.return_to(take_back)))
        raise


class LoopNotice:
    """A function to be called on the loop, without a thread that waits for it."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call the function."""
        self._act()

    def refuse(self, error: BaseException) -> None:
        """Do nothing, as the client is closed."""
