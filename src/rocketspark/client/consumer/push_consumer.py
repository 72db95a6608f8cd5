"""The push consumer: messages are handed to a listener as they come.

Rule: a message leaves the process queue only when the listener took it or a broker has it again (returned_messages).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeVar, Unpack, overload

import msgspec

from rocketspark import machine
from rocketspark.client.callbacks import Outcome, Overdue
from rocketspark.client.consumer.consumer_options import PushConsumerOptions, PushConsumerSettings
from rocketspark.client.consumer.consumer_status import PushConsumerStatus
from rocketspark.client.consumer.lifecycle import ConsumerLife, filter_of
from rocketspark.client.consumer.listeners import Listeners, OrderedListeners, TaskListeners, ThreadListeners
from rocketspark.client.consumer.offsets import LocalOffsets
from rocketspark.client.consumer.pop.pop_calls import PopCalls
from rocketspark.client.consumer.pop.pop_reading import STRATEGIES, PopReading, PopReadingCalls
from rocketspark.client.consumer.pop.popper import PopBatch, PopSettings, check_settings
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.client.consumer.rebalance import END_S, Rebalance, RebalanceCalls
from rocketspark.client.consumer.refusals import ErrorCalls
from rocketspark.client.consumer.returned_messages import ReturnedMessages
from rocketspark.client.hooks import hooked, is_coroutine_function
from rocketspark.client.message_batch import MessageBatch, Messages, messages_given, without_namespace
from rocketspark.client.options import named_arguments, take_settings
from rocketspark.errors import StateError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage, namespace

log = logging.getLogger("rocketspark.client")

# Gets a message, or a list of them if `batch_max` is over 1; a plain function or a coroutine function.
Listener = Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object]
ListenerT = TypeVar("ListenerT", bound=Listener)
ColumnsListenerT = TypeVar("ColumnsListenerT", bound=Callable[[MessageBatch], object])


class AsyncPushConsumer(ConsumerLife):
    """Hands messages to a listener, on the running asyncio loop; several consumers of one group share the queues.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group.
        consume_from: where a queue begins that the group never read: "last" (its end), "first", or a time in ms.
        ordered: each queue's messages are handed over one call at a time, in order; a call that fails is repeated after
            `suspend_ms` before anything later of its queue, and the broker's lock keeps other members away.
        broadcast: every member gets every message; offsets are kept in a file below `offset_folder`, by default
            ~/.rocketmq_offsets; what fails is not delivered again.
        strategy: how members share queues: "average", "average_by_circle", "consistent_hash"
            or a function, as those of allocate_queues.
        threads: how many calls of the listener may run at once, in threads or as coroutines.
        batch_max: over 1, the listener gets lists, or columns, of up to that many messages of one queue.
        max_reconsume_times: attempts after which a message goes to the group's dead letters. None: the number that the
            broker has for the group (16 by default; a popping consumer takes 16 if the broker does not tell it); -1:
            16. With `ordered`, None and -1 mean never. A message whose body does not inflate goes there at once.
        consume_timeout_ms: messages of a call that takes longer are delivered again elsewhere; not for `ordered`.
        pull_count_max, pull_bytes_max: of one pull; a broker has limits of its own.
        backlog_count_max, backlog_bytes_max: how much of each queue is held here at most; `topic_count_max`,
            `topic_bytes_max`: of a topic's queues together, 0 for no bound; `span_max`: fetch no more while the oldest
            message in work is that many offsets behind (not for `ordered`).
        rebalance_interval_ms, commit_interval_ms: how often shares are looked at and offsets committed.
        close_timeout_ms: how long `close` waits for listeners that run.
        pop: brokers of RocketMQ 5 assign the queues, and say for each topic and group whether they are pulled or popped
            (`mqadmin setConsumeMode`, `rocketspark group set-mode`). Popped messages are acknowledged one by one:
            a listener has to end within `pop_settings.invisible_ms`, or its messages come again. Not for `ordered` or
            `broadcast`. `pop_settings`: see PopSettings.
        on_error: called with each error by which a broker refuses this consumer and which no retry mends (a filter, a
            missing right), with the same error at most every 30 s; a plain function, called in a thread, or a coroutine
            function.
        options: see ClientOptions.

    Use it as a context manager, or `start` and `close` it; `subscribe` and `listen` come first.
    """

    @named_arguments(PushConsumerSettings)
    def __init__(self, namesrv: str | None = None, group: str = "", **options: Unpack[PushConsumerOptions]) -> None:
        given = frozenset(options)
        how = take_settings(PushConsumerSettings, options)
        how.check()
        super().__init__(namesrv, options, group, offset_file=how.broadcast)
        self._how = how
        self._in_columns = False
        self._returned = ReturnedMessages(
            self._instance,
            self.group,
            self._namespace,
            attempts_max=how.attempts_max_told,
            runs=lambda: self._state == "started",
            again=self._again,
        )
        refused = ErrorCalls(how.on_error).tell if how.on_error is not None else None
        self._locks = QueueLocks(self._instance, self.group) if how.ordered and not how.broadcast else None
        self._rebalance = Rebalance(
            self._instance,
            self.group,
            how,
            how.pulling(),
            RebalanceCalls(
                deliver=self._deliver,
                settled=self._settled if how.ordered else None,
                set_aside=self._set_aside,
                refused=refused,
            ),
            consume_type="CONSUME_PASSIVELY",
            with_retries=not how.broadcast,
            offsets=LocalOffsets(how.offset_folder, self._instance, self.group) if how.broadcast else None,
            locks=self._locks,
        )
        # Behind the rebalance, which refuses bounds that are no numbers.
        self._pulling_columns = how.pulling_columns(given)
        self._popping: PopReading | None = None
        if how.pop:
            self._popping = self._rebalance.assignment = PopReading(
                PopCalls(self._instance, self.group, self._namespace),
                msgspec.structs.replace(
                    check_settings(how.pop_settings or PopSettings()), from_first=how.consume_from == "first"
                ),
                PopReadingCalls(
                    deliver=self._deliver_popped,
                    give_up=self._returned.bury_popped,
                    is_rejected=self._take_rejected,
                    refused=refused,
                ),
                strategy=STRATEGIES[str(how.strategy)],
                attempts_max=how.attempts_max_told,
                subscriptions=self._rebalance.subscriptions,
                rates=self._rebalance.rates,
            )
        self._trace_as(self.group, "CONSUME")
        self._listener: Callable[[Any], Any] | None = None
        self._listeners: Listeners | None = None
        # Once false, what fails now stays uncommitted, and comes again elsewhere.
        self._takes_back = True
        # By identity; that they are held keeps another message from being taken for one of them.
        self._rejected: dict[int, ReceivedMessage] = {}

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Subscribe to a topic's messages: all, those of "TagA || TagB", or those for which `sql` is true. Also while
        running.

        `sql` is RocketMQ's SQL92 over properties, such as "price > 10 AND region = 'eu'"; the broker has to allow it
        (enablePropertyFilter). Raises MessageIllegal for a topic's name that is not allowed, FilterIllegal for a wrong
        `sql`.
        """
        self._rebalance.subscribe(namespace.wrap(self._namespace, topic), *filter_of(expression, sql))

    def unsubscribe(self, topic: str) -> None:
        """End a topic's subscription. Also while running."""
        self._rebalance.unsubscribe(namespace.wrap(self._namespace, topic))

    def pause(self) -> None:
        """Fetch no more until `resume`; what was fetched already is still handed over."""
        self._rebalance.pause_all(True)
        if self._popping is not None:
            self._popping.pause_all(True)

    def resume(self) -> None:
        """Fetch again."""
        self._rebalance.pause_all(False)
        if self._popping is not None:
            self._popping.pause_all(False)

    @overload
    def listen(self, listener: ListenerT) -> ListenerT: ...

    @overload
    def listen(self, listener: ColumnsListenerT, *, batch: Literal["columns"]) -> ColumnsListenerT: ...

    def listen(self, listener: Any, *, batch: Literal["columns"] | None = None) -> Any:
        """Set the function that gets each message (a list of messages if `batch_max` is over 1).

        With `batch="columns"` it gets a MessageBatch: messages of one queue, as many as were read together, up to
        `batch_max` if that is over 1; nothing is decoded that it does not look at. They are done, or come again, all
        together.

        A plain function runs in a thread, a coroutine function on the loop. If it returns False or raises, its
        messages are delivered again later; anything else means that they are done. A coroutine that a plain function
        returns is run first. Usable as a decorator. Raises UsageError for a generator function, which would not run.
        """
        if self._state != "new":
            raise StateError("the listener is set before the consumer starts")
        if batch not in (None, "columns"):
            raise UsageError(f'batch {batch!r} is not "columns", nor left out')
        if not callable(listener):
            raise UsageError(f"a listener is a function, not {listener!r}: name it, without calling it")
        if inspect.isgeneratorfunction(listener) or inspect.isasyncgenfunction(listener):
            raise UsageError(
                "a listener that holds a `yield` is a generator: calling it runs nothing; leave the yield out"
            )
        self._listener = listener
        self._in_columns = batch == "columns"
        return listener

    def reject(self, message: ReceivedMessage) -> None:
        """Have a message become a dead letter of the group at once, instead of coming again.

        Called by the listener, which then returns False or raises; if it ends otherwise, the message is done. Of
        messages given in lists and in order, all of a list have to be rejected.
        """
        self._rejected[id(message)] = message

    def _take_rejected(self, message: ReceivedMessage) -> bool:
        return self._rejected.pop(id(message), None) is not None

    async def start(self) -> None:
        """Join the group and begin to read; returns once this member has its first share of the queues.

        Raises StateError, NotSent if no NameServer answers.
        """
        if self._listener is None:
            raise StateError("no listener: call listen(function) before start")
        await self._start()

    async def _open(self) -> None:
        assert self._listener is not None
        listener, hooks = self._listener, self._hooks.consumes
        if self._batched and not self._in_columns:
            listener = _with_own_list(listener)
        if hooks:
            listener = hooked(listener, self.group, hooks, asyncio.get_running_loop())
        self._listeners = self._make_listeners(listener)
        if self._in_columns:
            self._rebalance.use(self._pulling_columns)
        await self._enter()
        await self._rebalance.offsets.store.load()
        if self._tracer is not None:
            self._tracer.start()
        self._instance.asked.consumers[self.group] = PushConsumerStatus(
            self._rebalance,
            self._how.by_rocketmq_s_names(),
            self._listener,
            ordered=self._how.ordered,
            given=self._given_one,
            bare=self._bare,
            poppers=self._popping.poppers if self._popping is not None else {},
        )
        self._rebalance.keep_committing()
        await self._rebalance.join()

    def _given_one(self, message: ReceivedMessage) -> Any:
        """Return one message as the listener takes it."""
        return self._cut([message])[0]

    @property
    def _batched(self) -> bool:
        return self._in_columns or self._how.batch_max > 1

    def _cut(self, messages: Messages) -> Sequence[Any]:
        """Return messages of one queue as the calls of the listener take them."""
        if not self._batched:
            return messages
        n = self._how.batch_max if self._how.batch_max > 1 else max(len(messages), 1)
        if self._in_columns and not isinstance(messages, MessageBatch):
            messages = MessageBatch(messages)
        return [messages[i : i + n] for i in range(0, len(messages), n)]

    def _make_listeners(self, listener: Callable[[Any], Any]) -> Listeners:
        if not self._how.ordered:
            kind = TaskListeners if is_coroutine_function(listener) else ThreadListeners
            return kind(
                listener, self._how.threads, self._finished, Overdue(self._how.consume_timeout_ms / 1000, self._expired)
            )
        locks = self._locks
        ordered = OrderedListeners(
            listener,
            self._how.threads,
            self._finished,
            suspend_ms=self._how.suspend_ms,
            attempts_max=self._how.attempts_max,
            may_run=locks.holds if locks is not None else _always,
            give_up=self._returned.bury_in_order,
            is_rejected=lambda message: id(message) in self._rejected,
        )
        if locks is not None:
            locks.changed = ordered.wake
        return ordered

    async def _settled(self, puller: Puller) -> None:
        if isinstance(self._listeners, OrderedListeners):
            await self._listeners.settled(puller)

    @property
    def calls_here(self) -> bool:
        """Tell whether a call of the listener asks, in its thread."""
        return self._listeners is not None and self._listeners.calls_here

    async def close(self) -> None:
        """Let listeners that run end, commit, leave the group, close the connections. May be called again.

        A caller that stops waiting does not stop it.
        """
        await self._close(through=True)

    async def _end(self, through: bool) -> None:
        if self._entered:
            self._instance.asked.consumers.pop(self.group, None)
        await self._rebalance.stop_reading()
        if self._popping is not None:
            await self._popping.stop()
        try:
            async with asyncio.timeout(self._how.close_timeout_ms / 1000):
                await self._settle()
        except TimeoutError:
            log.warning("group %s: a listener still runs; its messages will be delivered again", self.group)
        self._takes_back = False
        await self._returned.end(END_S)
        if self._popping is not None:
            await self._popping.finish()
        if self._entered:
            await self._rebalance.leave()
        await self._leave(self._popping.end_held if self._popping is not None else None)

    async def _settle(self) -> None:
        if self._listeners is not None:
            await self._listeners.close()
        await self._returned.settle()

    async def queues(self) -> list[MessageQueue]:
        """Return the queues this member reads now, those of its retry topic too; after the first rebalance.

        Queue -1 of a broker stands for all its queues of the topic, popped.
        """
        self._check_started()
        await self._rebalance.balanced.wait()
        self._check_started()
        popped = self._popping.poppers if self._popping is not None else ()
        return sorted(self._bare_queue(q) for q in (*self._rebalance.pullers, *popped))

    # -- messages ------------------------------------------------------------------------------------------------

    def _deliver(self, puller: Puller, messages: Messages) -> None:
        assert self._listeners is not None
        self._listeners.put(puller, self._cut(without_namespace(messages, self._namespace)))

    def _deliver_popped(self, batch: PopBatch, messages: list[ReceivedMessage]) -> None:
        assert self._listeners is not None
        if not self._batched:
            self._listeners.put(batch, messages)
            return
        for _, of_queue in groupby(sorted(messages, key=_place), key=attrgetter("queue")):
            self._listeners.put(batch, self._cut(list(of_queue)))

    def _set_aside(self, puller: Puller, messages: list[ReceivedMessage]) -> None:
        """Send messages that no attempt can give to the listener to the dead letter queue, so that they hold up no
        others.
        """
        for message in messages:
            where = f"offset {message.queue_offset} of {puller.queue}"
            log.error("%s is not given to the listener, but set aside: %s", where, message.body_error)
            puller.counts.failed += 1
            if self._how.broadcast:
                puller.process_queue.finish([message])
            else:
                self._returned.bury(puller, message)

    def _finished(self, outcomes: list[Outcome]) -> None:
        if self._rejected:
            # Done all the same, or dead letters of an ordered queue.
            for message in (m for outcome in outcomes for given in outcome.done for m in messages_given(given)):
                self._take_rejected(message)
        if self._popping is not None:
            outcomes = self._popping.finished(outcomes)
        now_ms = int(machine.time() * 1000)
        for puller, done, failed in outcomes:
            puller.consumed_ms = now_ms
            # Lists, or batches, of messages: each by itself, so that no column becomes messages.
            for finished in done if self._batched else [done]:
                puller.process_queue.finish(finished)
                puller.counts.taken += len(finished)
            for given in failed:
                self._give_back(puller, given if self._batched else [given])

    def _give_back(self, puller: Puller, messages: Messages) -> None:
        """Have messages come again that the listener failed on."""
        puller.counts.failed += len(messages)
        rejected = [id(m) for m in messages if self._take_rejected(m)] if self._rejected else ()
        if puller.dropped or not self._takes_back:
            return
        if self._how.broadcast:
            # Nobody else would get it again (rule: ConsumeMessageConcurrentlyService, 5.x).
            puller.process_queue.finish(messages)
            return
        for message in messages:
            if id(message) in rejected:
                self._returned.bury(puller, message)
            else:
                self._returned.give_back(puller, message)

    def _expired(self, owner: Any, given: Any) -> None:
        first = given[0] if self._batched else given
        text = "the listener takes more than %.0f s for message %s of topic %s; it is delivered again later"
        log.warning(text, self._how.consume_timeout_ms / 1000, first.message_id, first.topic)
        self._finished([Outcome(owner, [], [given])])

    def _again(self, puller: Puller, message: ReceivedMessage) -> None:
        if self._state == "started" and not puller.dropped and self._listeners is not None:
            self._listeners.put(puller, [self._given_one(message)])


def _place(message: ReceivedMessage) -> tuple[MessageQueue, int]:
    return message.queue, message.queue_offset


def _always(queue: MessageQueue) -> bool:
    return True


def _with_own_list(listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a listener of lists so that it may empty, cut and sort them: ours tells which messages are done."""

    def call(messages: list[ReceivedMessage]) -> Any:
        return listener(messages.copy())

    async def call_coroutine(messages: list[ReceivedMessage]) -> Any:
        return await listener(messages.copy())

    return call_coroutine if is_coroutine_function(listener) else call
