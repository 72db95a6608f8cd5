"""A taskiq broker on RocketMQ (extra `taskiq`): `from rocketspark.taskiq import RocketBroker`.

Rule: a task that a worker holds is renewed, however long it runs; once the worker has ended, or the task has without
an acknowledgement, others get it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Unpack

from rocketspark.errors import ConfigError

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ImportError as e:
    raise ConfigError("rocketspark.taskiq needs taskiq: pip install 'rocketspark[taskiq]'") from e

from rocketspark.client import AsyncProducer, AsyncSimpleConsumer
from rocketspark.client.callbacks import Tasks, end_all, trouble_log
from rocketspark.client.options import ClientOptions, ProducerOptions
from rocketspark.errors import NotSent, ReceiptExpired, RocketSparkError, RouteNotFound, UsageError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.codes import ResponseCode

# How long a stop waits for brokers that do not answer.
CLOSE_S = 5.0
TROUBLE_S = 1.0
# After which what was given back is visible to others.
GIVEN_BACK_MS = 1


class RocketBroker(AsyncBroker):
    """A taskiq broker on RocketMQ: `RocketBroker("127.0.0.1:9876")`. It needs brokers of RocketMQ 5.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        topic: where the tasks lie. Brokers of different tasks need topics of their own.
        group: the consumer group of the workers; None: one named after the topic.
        visibility_timeout: seconds after which the tasks of a worker that died are given to others. It is renewed while
            a worker lives.
        prefetch: how many tasks one request brings, 1 to 32. Those that taskiq has no room for yet wait in the worker.
        max_deliveries: a task that was delivered so often and never acknowledged becomes a dead letter; 0: it is
            delivered for ever.
        create_topic: a topic that does not exist is made when the worker starts.
        producer: arguments of the AsyncProducer that sends tasks.
        options: of all clients, see ClientOptions: namespace, access_key, use_tls and others.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        topic: str = "taskiq",
        group: str | None = None,
        visibility_timeout: float = 60.0,
        prefetch: int = 8,
        max_deliveries: int = 0,
        create_topic: bool = True,
        producer: ProducerOptions | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__()
        if not 1 <= visibility_timeout <= 12 * 3600:
            raise ConfigError(f"visibility_timeout {visibility_timeout!r} is not from 1 to 43200 seconds")
        if not 1 <= prefetch <= 32:
            raise ConfigError(f"prefetch {prefetch!r} is not from 1 to 32")
        self.topic, self.group = topic, group or f"taskiq-{topic}"
        self._visible_s = visibility_timeout
        self._prefetch, self._max_deliveries, self._create_topic = prefetch, max_deliveries, create_topic
        self._producer_options: ProducerOptions = {**options, **(producer or {})}
        self._namesrv, self._options = namesrv, options
        # What is wrong is said where the broker is made; neither begins anything.
        AsyncProducer(namesrv, **self._producer_options)
        self._make_consumer()
        self._producer: AsyncProducer | None = None
        self._starting = asyncio.Lock()
        self._consumers: list[AsyncSimpleConsumer] = []
        self._held: set[_Held] = set()
        # Tasks that are let go of, until their brokers know.
        self._leaving = Tasks()

    # -- life ----------------------------------------------------------------------------------------------------

    async def startup(self) -> None:
        """Connect. If no NameServer answers, a worker waits for one, and sends fail until one does."""
        await self._sender()
        await super().startup()

    async def _sender(self) -> AsyncProducer:
        async with self._starting:
            if self._producer is None:
                producer = AsyncProducer(self._namesrv, **self._producer_options)
                await producer.start()
                self._producer = producer
            return self._producer

    async def shutdown(self) -> None:
        """Give back what was not done, and close the connections."""
        await super().shutdown()
        for held in list(self._held):
            self._give_back(held)
        if self._leaving:
            await asyncio.wait(list(self._leaving), timeout=CLOSE_S)
        await end_all(self._leaving, CLOSE_S)
        consumers, self._consumers = self._consumers, []
        producer, self._producer = self._producer, None
        await asyncio.gather(*(consumer.close() for consumer in consumers), return_exceptions=True)
        if producer is not None:
            await producer.close()

    # -- send ----------------------------------------------------------------------------------------------------

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; its id is the message's key. The label `delay` keeps it at the broker for so many seconds.

        Raises NotSent and what a broker raises, UsageError for a delay that is none; taskiq makes SendTaskError of it.
        """
        delay_ms = _delay_ms(message.labels.get("delay"))
        producer = await self._sender()
        await producer.send(self.topic, message.message, keys=message.task_id.split(), delay_ms=delay_ms)

    # -- receive -------------------------------------------------------------------------------------------------

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield tasks as they come; a broker that is away is waited for."""
        waiting: list[_Held] = []
        is_gone = False
        try:
            consumer = await self._joined()
            while True:
                try:
                    if is_gone:
                        await self._new_topic()
                    messages, is_gone = await consumer.receive(self._prefetch), False
                except RocketSparkError as e:
                    if consumer not in self._consumers:
                        return  # It was shut down.
                    trouble_log.warning("topic %s: no tasks are received, tried again: %s", self.topic, e)
                    # Others deleted it, or a broker lost its store.
                    is_gone = self._create_topic and getattr(e, "code", None) == ResponseCode.TOPIC_NOT_EXIST
                    await asyncio.sleep(TROUBLE_S)
                    continue
                waiting += [_Held(self, consumer, message) for message in messages]
                while waiting:
                    held = waiting.pop(0)
                    if held not in self._held:
                        continue  # It waited here until others got it.
                    if (reason := self._reason_against(held.message)) is None:
                        yield _Delivery(data=held.message.body, ack=held.ack)
                    else:
                        trouble_log.warning("task %s becomes a dead letter: %s", " ".join(held.message.keys), reason)
                        self._leaving.begin(held.let_go(consumer.dead_letter))
        finally:
            for held in waiting:
                self._give_back(held)

    async def _joined(self) -> AsyncSimpleConsumer:
        """Return a consumer that has joined the group, and has a topic to read."""
        while True:
            consumer = self._make_consumer()
            try:
                if self._create_topic:
                    await self._make_topic()
                await consumer.start()
            except RocketSparkError as e:
                await consumer.close()
                if isinstance(e, UsageError):
                    raise
                # Also a NameServer that is starting, and refuses requests so long.
                trouble_log.warning("topic %s: no tasks are received, tried again: %s", self.topic, e)
                await asyncio.sleep(TROUBLE_S)
                continue
            self._consumers.append(consumer)
            return consumer

    def _make_consumer(self) -> AsyncSimpleConsumer:
        made = AsyncSimpleConsumer(
            self._namesrv, self.group, consume_from="first", invisible_ms=self._visible_s * 1000, **self._options
        )
        made.subscribe(self.topic)
        return made

    async def _make_topic(self) -> None:
        try:
            await (await self._sender()).queues(self.topic)
        except RouteNotFound:
            await self._new_topic()

    async def _new_topic(self) -> None:
        try:
            await (await self._sender()).create_topic(self.topic)
        except NotSent:
            raise
        except RocketSparkError as e:
            trouble_log.warning("topic %s is not there and cannot be made, create it: %s", self.topic, e)

    def _reason_against(self, message: ReceivedMessage) -> str | None:
        """Return why no worker can do a task, None if one can."""
        try:
            task = self.formatter.loads(message=message.body)
            # taskiq drops a task whose labels it cannot read.
            task.parse_labels()
        except Exception as e:
            return f"its body is no task ({type(e).__name__})"
        if self.find_task(task.task_name) is None:
            return f"no task {task.task_name!r} is known here, import its module in the worker"
        if 0 < self._max_deliveries <= message.reconsume_times:
            return f"it was delivered {message.reconsume_times} times and never acknowledged"
        return None

    def _give_back(self, held: _Held) -> None:
        self._leaving.begin(held.let_go(lambda message: held.consumer.change_invisible_time(message, GIVEN_BACK_MS)))


class _Held:
    """A task that this worker holds: renewed until it is let go of."""

    def __init__(self, broker: RocketBroker, consumer: AsyncSimpleConsumer, message: ReceivedMessage) -> None:
        self.consumer, self.message = consumer, message
        self.has_ended = False
        self._broker = broker
        # One request at a time: each renewal brings the handle that the next request needs.
        self._one = asyncio.Lock()
        broker._held.add(self)
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        visible_s = self._broker._visible_s
        pause_s = visible_s / 2
        while True:
            await asyncio.sleep(pause_s)
            if self.has_ended:
                break
            async with self._one:
                try:
                    await self.consumer.change_invisible_time(self.message, visible_s * 1000)
                    pause_s = visible_s / 2
                except ReceiptExpired as e:
                    self._broker._held.discard(self)
                    trouble_log.warning("a task that is held here was not renewed in time: %s", e)
                    return
                except RocketSparkError as e:
                    pause_s = visible_s / 16
                    trouble_log.warning("task %s is not renewed, tried again: %s", " ".join(self.message.keys), e)
        keys = " ".join(self.message.keys)
        trouble_log.warning("task %s has ended without an acknowledgement, and is delivered again", keys)
        # It may still be acknowledged until its time is over.
        await asyncio.sleep(visible_s / 2)
        self._broker._held.discard(self)

    def noted_end(self, task: asyncio.Task[Any]) -> None:
        """Note that what taskiq ran for this is over: it does not acknowledge where a middleware raises."""
        self.has_ended = True

    async def _end(self, call: Callable[[ReceivedMessage], Awaitable[None]]) -> None:
        async with self._one:
            if self not in self._broker._held:
                return
            self._renewing.cancel()
            self._broker._held.discard(self)
            await call(self.message)

    async def ack(self) -> None:
        """Acknowledge it; a broker that does not answer is asked again in the background."""
        if not await self._was_taken(self._end(self.consumer.ack)):
            self._broker._leaving.begin(self._ack_again())

    async def _ack_again(self) -> None:
        while True:
            await asyncio.sleep(TROUBLE_S)
            if await self._was_taken(self.consumer.ack(self.message)):
                return

    async def _was_taken(self, call: Awaitable[None]) -> bool:
        """Await an acknowledgement. Returns False if it is to be tried again."""
        try:
            await call
        except ReceiptExpired as e:
            trouble_log.warning("a task was acknowledged too late, and is done again: %s", e)
        except RocketSparkError as e:
            trouble_log.warning("an acknowledgement is not taken, tried again: %s", e)
            return False
        return True

    async def let_go(self, call: Callable[[ReceivedMessage], Awaitable[None]]) -> None:
        """Make an end of it by `call`; if that fails others get it once its time is over."""
        try:
            await self._end(call)
        except RocketSparkError as e:
            keys = " ".join(self.message.keys)
            trouble_log.warning("task %s is delivered again when its time is over: %s", keys, e)


class _Delivery(AckableMessage):
    """A task as taskiq gets it. It is held for as long as what asked how to acknowledge it runs."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "ack" and (runs := asyncio.current_task()) is not None:
            runs.add_done_callback(value.__self__.noted_end)
        return value


def _delay_ms(label: Any) -> int:
    if label is None:
        return 0
    try:
        seconds = float(label)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"the label delay {label!r} is not a number of seconds")
    return round(seconds * 1000)
