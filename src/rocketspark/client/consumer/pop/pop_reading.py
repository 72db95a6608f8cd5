"""The popping half of a push consumer: brokers assign its queues, to pull or to pop; what is popped is acknowledged.

Rule: nothing more is popped of a queue that is no longer assigned; what was popped of it before is still finished and
acknowledged, as its receipt handles stay valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from rocketspark import machine
from rocketspark.client.callbacks import Outcome, Tasks, end_all, trouble_log
from rocketspark.client.connection import pop_api
from rocketspark.client.consume_stats import ConsumeStats
from rocketspark.client.consumer.pop.pop_calls import PopCalls
from rocketspark.client.consumer.pop.popper import PopBatch, Popper, PopSettings
from rocketspark.client.message_batch import messages_given
from rocketspark.client.validators import RETRY_PREFIX
from rocketspark.errors import ReceiptExpired, RocketSparkError
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription, TopicRoute, subscribe
from rocketspark.protocol.pop_answers import RETRY_V1, RETRY_V2, retry_topic

log = logging.getLogger("rocketspark.client")

ACK_TRIES = 3
AGAIN_S = 1.0
END_S = 5.0
STRATEGIES = {"average": "AVG", "average_by_circle": "AVG_BY_CIRCLE"}


class PopReadingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What a popping half calls of its consumer.

    `deliver(batch, messages)` gets what is popped. `give_up(message)` hands a message that failed too often, or that
    `is_rejected` tells, to the dead letter queue. `refused` gets the errors that no retry mends.
    """

    deliver: Callable[[PopBatch, list[ReceivedMessage]], None]
    give_up: Callable[[ReceivedMessage], Awaitable[None]]
    is_rejected: Callable[[ReceivedMessage], bool]
    refused: Callable[[RocketSparkError], None] | None


class PopReading:
    """The queues that one push consumer pops, and the messages popped of them.

    `subscriptions`: by topic, shared with the rebalance. `attempts_max`: how often a message may fail, None for the
    group's own number.
    """

    def __init__(
        self,
        calls: PopCalls,
        how: PopSettings,
        consumer: PopReadingCalls,
        *,
        strategy: str,
        attempts_max: int | None,
        subscriptions: dict[str, Subscription],
        rates: ConsumeStats,
    ) -> None:
        self._consumer = consumer
        self._calls = calls
        self._instance = calls.instance
        self._group = calls.group
        self._how = how
        self._strategy = strategy
        self._attempts_max = attempts_max
        self._subscriptions = subscriptions
        self._rates = rates
        self.poppers: dict[MessageQueue, Popper] = {}
        self._assigned: dict[str, list[MessageQueue]] = {}
        self._batches: set[PopBatch] = set()
        self._finishing = Tasks()
        self._stopped = Tasks()
        self._paused = False
        self._closed = False

    # -- assignment ----------------------------------------------------------------------------------------------

    async def share(self, topic: str, route: TopicRoute) -> list[MessageQueue] | None:
        """Ask a broker which queues of a topic this member reads. Returns those to pull; None if the member keeps what
        it has.

        The queues to pop are noted; `begin` starts them. Raises RocketSparkError.
        """
        for gone in {q.topic for q in self.poppers} - set(self._subscriptions):
            self._own(gone, [])
        brokers = [b for b in route.brokers if b.addresses]
        if not brokers:
            return None
        addresses = machine.choice(brokers).addresses
        peer = await self._instance.broker(addresses[min(addresses)])
        found = await pop_api.query_assignment(
            peer, topic, self._group, self._instance.client_id, self._strategy, timeout_ms=self._instance.timeout_ms
        )
        if found is None:
            return None
        self._assigned[topic] = [q for q, mode in found.items() if mode == "POP"]
        # Before a puller begins: it starts where the pops ended.
        self._own(topic, [q for q in self._assigned[topic] if q in self.poppers])
        pulled = [q for q, mode in found.items() if mode != "POP"]
        if not topic.startswith(RETRY_PREFIX) and (pulled or self._assigned[topic]):
            self._take_retries(topic, pull=bool(pulled))
        return pulled

    def _take_retries(self, topic: str, *, pull: bool) -> None:
        """Pull what failed or was not finished while the topic was popped; a pop gives it out by itself."""
        for flag in (RETRY_V1, RETRY_V2):
            name = retry_topic(topic, self._group, flag)
            if not pull:
                self._subscriptions.pop(name, None)
            elif name not in self._subscriptions:
                self._subscriptions[name] = subscribe(name)

    def begin(self, topic: str) -> None:
        """Begin to pop the queues that `share` noted. Call it once this member no longer pulls any of them."""
        self._own(topic, self._assigned.get(topic, []))

    def _own(self, topic: str, queues: list[MessageQueue]) -> None:
        for queue in [q for q in self.poppers if q.topic == topic and q not in queues]:
            task = self.poppers.pop(queue).task
            task.cancel()
            self._stopped.keep(task)
            log.info("group %s pops %s no more", self._group, queue)
        for queue in queues:
            if queue not in self.poppers and not self._closed:
                self.poppers[queue] = self._popper(queue)
                log.info("group %s pops %s", self._group, queue)

    def _popper(self, queue: MessageQueue) -> Popper:
        topic = queue.topic
        popper = Popper(
            self._calls,
            queue,
            lambda: self._subscriptions.get(topic) or subscribe(topic),
            self._how,
            deliver=self._popped,
            counts=self._rates.of(topic),
            batches=self._batches,
            refused=self._consumer.refused,
        )
        popper.paused = self._paused
        return popper

    def pause_all(self, paused: bool) -> None:
        """Stop or resume popping, also of queues that are assigned later."""
        self._paused = paused
        for popper in self.poppers.values():
            popper.paused = paused

    # -- messages ------------------------------------------------------------------------------------------------

    def _popped(self, batch: PopBatch, messages: list[ReceivedMessage]) -> None:
        spoiled = [m for m in messages if m.body_error is not None]
        for message in spoiled:
            where = f"offset {message.queue_offset} of {message.queue}"
            log.error("%s is not given to the listener, but set aside: %s", where, message.body_error)
            batch.counts.failed += 1
            batch.finish([message])
            self._finishing.begin(self._bury(batch, message))
        good = [m for m in messages if m.body_error is None] if spoiled else messages
        if good:
            self._consumer.deliver(batch, good)

    def finished(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Acknowledge the popped messages that are done, and have those that failed come again after a delay.

        Returns the outcomes of messages that were pulled, not popped, for the caller to finish.
        """
        acked: list[ReceivedMessage] = []
        for batch, done, failed in outcomes:
            if isinstance(batch, PopBatch):
                messages = [m for given in done for m in messages_given(given)]
                batch.counts.taken += len(messages)
                batch.finish(messages)
                acked += batch.to_acknowledge(messages)
                messages = [m for given in failed for m in messages_given(given)]
                batch.counts.failed += len(messages)
                batch.finish(messages)
                for message in messages:
                    end = self._bury if self._consumer.is_rejected(message) else self._fail
                    self._finishing.begin(end(batch, message))
        if acked:
            self._finishing.begin(self._ack(acked))
        return [outcome for outcome in outcomes if not isinstance(outcome.owner, PopBatch)]

    async def _ack(self, messages: list[ReceivedMessage]) -> None:
        for _ in range(ACK_TRIES):
            messages = [m for m in messages if not self._is_late(m)]
            try:
                await self._calls.ack(messages)
                return
            except RocketSparkError as e:
                trouble_log.warning("group %s: %d messages are not acknowledged: %s", self._group, len(messages), e)
                if not e.retriable:
                    return
            await asyncio.sleep(AGAIN_S)

    def _is_late(self, message: ReceivedMessage) -> bool:
        """Tell whether a message's invisible time is over: nothing can be said of it any more, it comes again."""
        try:
            self._calls.handle_of(message)
        except ReceiptExpired as e:
            log.warning("group %s: the listener took too long: %s", self._group, e)
            return True
        return False

    async def _fail(self, batch: PopBatch, message: ReceivedMessage) -> None:
        if self._is_late(message):
            return
        limit = self._attempts_max
        if message.reconsume_times >= (await self._calls.attempts_max(message) if limit is None else limit):
            await self._bury(batch, message)
            return
        try:
            await self._calls.change_invisible_time(message, self._how.delay_ms(message.reconsume_times))
        except RocketSparkError as e:
            text = "group %s: message %s comes again when its invisible time is over: %s"
            log.warning(text, self._group, message.message_id, e)

    async def _bury(self, batch: PopBatch, message: ReceivedMessage) -> None:
        try:
            await self._consumer.give_up(message)
            await self._calls.ack(batch.to_acknowledge([message]))
        except Exception as e:
            text = "group %s: message %s is not taken as a dead letter, it comes again: %s"
            log.warning(text, self._group, message.message_id, e)

    # -- the end -------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Pop no more; what was popped can still be finished."""
        self._closed = True
        tasks = [p.task for p in self.poppers.values()]
        self.poppers.clear()
        await end_all([*tasks, *self._stopped], END_S)

    async def finish(self) -> None:
        """Give back popped messages that no listener took, and wait until the brokers have been told of those that are
        acknowledged.
        """
        for batch in list(self._batches):
            messages = list(batch.pending.values())
            batch.finish(messages)
            self._calls.give_back(messages)
        if self._finishing:
            await asyncio.wait(list(self._finishing), timeout=END_S)
        await end_all(self._finishing, END_S)
        await self._calls.settle(END_S)

    async def end_held(self) -> None:
        """Give back messages that brokers still answered before they heard that this member left."""
        await self._calls.end_held(END_S)
