"""The synchronous clients: the asynchronous ones, run on a background loop. Rule: same methods, same arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from rocketspark.client.facade import Facade, arguments_of, at_any_time, blocking
from rocketspark.client.inquiries import Inquiries
from rocketspark.client.outgoing import make_message, pack
from rocketspark.client.producer import AsyncProducer
from rocketspark.client.pull_consumer import AsyncPullConsumer
from rocketspark.client.push_consumer import AsyncPushConsumer
from rocketspark.client.results import SendResult
from rocketspark.client.selectors import Selector
from rocketspark.client.sends import FUTURES_IN_FLIGHT_MAX, FutureSend, Turnstile, WaitingSend
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage

F = TypeVar("F", bound=Callable[[Any], Any])

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
        if selector is not None:
            # It is the loop that knows the queues.
            chosen = core.send(message, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms)
            return loop.call(chosen)
        return loop.ask(WaitingSend(core, message, pack(message, core.packing), queue, timeout_ms))

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
        core = self._core
        message = make_message(message, body, fields)
        # Packed here, so that the caller may change the message as soon as this returns.
        out = pack(message, core.packing)
        self._room.enter()
        sending = FutureSend(core, message, out, queue, timeout_ms, self._room)
        loop.put(sending)
        return sending


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
