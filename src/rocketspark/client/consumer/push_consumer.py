"""The push consumer: messages are handed to a listener as they come.

Rule: a message leaves the process queue only when the listener took it or a broker has it again (returned_messages).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, TypeVar, Unpack

import msgspec

from rocketspark.client import validators
from rocketspark.client.consumer.allocate_queues import Strategy, StrategyName, strategy_of
from rocketspark.client.consumer.consumer_status import PushConsumerStatus
from rocketspark.client.consumer.lifecycle import ConsumerLife
from rocketspark.client.consumer.listening.listeners import Listeners, Overdue, TaskListeners, ThreadListeners, Unit
from rocketspark.client.consumer.listening.ordered_listeners import OrderedListeners
from rocketspark.client.consumer.listening.returned_messages import ReturnedMessages
from rocketspark.client.consumer.offset_commits import ConsumeFrom
from rocketspark.client.consumer.offset_stores import LocalOffsets
from rocketspark.client.consumer.pop.pop_reading import STRATEGIES, PopReading
from rocketspark.client.consumer.pop.popper import PopBatch, PopSettings, check_settings
from rocketspark.client.consumer.puller import Puller, PullSettings
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.client.consumer.rebalance import END_S, Rebalance
from rocketspark.client.consumer.refusals import ErrorCalls, OnError
from rocketspark.client.hooks import hooked, is_coroutine_function
from rocketspark.client.options import ClientOptions
from rocketspark.errors import ConfigError, StateError, UsageError
from rocketspark.filters import sql92
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.model.subscription import SQL92
from rocketspark.model.text import INT_MAX

log = logging.getLogger("rocketspark.client")

# Gets a message, or a list of them if `batch_max` is over 1; a plain function or a coroutine function.
Listener = Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object]
ListenerT = TypeVar("ListenerT", bound=Listener)


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
        batch_max: over 1, the listener gets lists of up to that many messages of one queue.
        max_reconsume_times: attempts after which a message goes to the group's dead letters; None: as many as the
            broker has for the group (16, also where it does not tell, which `pop` needs); -1: 16; both: never for
            `ordered`. One whose body does not inflate goes there at once.
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
        on_error: is given what brokers refuse so that no retry mends it (a filter, a right), the same error at most
            every 30 s; a plain function, called in a thread, or a coroutine function.
        options: see ClientOptions.

    Use it as a context manager, or `start` and `close` it; `subscribe` and `listen` come first.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        *,
        consume_from: ConsumeFrom = "last",
        ordered: bool = False,
        broadcast: bool = False,
        strategy: StrategyName | Strategy = "average",
        threads: int = 20,
        batch_max: int = 1,
        max_reconsume_times: int | None = None,
        suspend_ms: float = 1000,
        consume_timeout_ms: float = 900_000,
        pull_count_max: int = 256,
        pull_bytes_max: int = 256 << 10,
        backlog_count_max: int = 1000,
        backlog_bytes_max: int = 100 << 20,
        topic_count_max: int = 0,
        topic_bytes_max: int = 0,
        span_max: int = 2000,
        rebalance_interval_ms: float = 20_000,
        commit_interval_ms: float = 5000,
        close_timeout_ms: float = 30_000,
        offset_folder: str | None = None,
        pop: bool = False,
        pop_settings: PopSettings | None = None,
        on_error: OnError | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        validators.check_counts(threads=threads, batch_max=batch_max)
        validators.check_intervals(consume_timeout_ms=consume_timeout_ms, commit_interval_ms=commit_interval_ms)
        if broadcast:
            # The folder of its offsets is named after the client: it has to be the same the next time.
            options.setdefault("instance_name", "DEFAULT")
        wrapped = namespace.wrap(options.get("namespace") or "", validators.check_group(group))
        super().__init__(namesrv, options, wrapped)
        self._ordered = ordered
        self._broadcast = broadcast
        self._threads = threads
        self._batch_max = batch_max
        if max_reconsume_times is not None and not -1 <= max_reconsume_times <= INT_MAX:
            raise ConfigError(f"max_reconsume_times {max_reconsume_times} is not from -1 (the default) to {INT_MAX}")
        # Java's default is -1, and means the same.
        unset = max_reconsume_times is None or max_reconsume_times == -1
        self._attempts_max = (-1 if ordered else 16) if unset else max_reconsume_times or 0
        self._suspend_ms = suspend_ms
        self._consume_timeout_s = consume_timeout_ms / 1000
        self._close_timeout_s = close_timeout_ms / 1000
        if pop and (ordered or broadcast):
            raise ConfigError("pop=True is not for ordered or broadcast")
        if pop and (consume_from not in ("last", "first") or strategy not in STRATEGIES):
            raise ConfigError(
                f"pop=True takes consume_from last or first, and as strategy one of {', '.join(STRATEGIES)}"
            )
        of_group = max_reconsume_times is None and not ordered
        self._returned = ReturnedMessages(
            self._instance,
            self.group,
            self._namespace,
            attempts_max=None if of_group else self._attempts_max,
            runs=lambda: self._state == "started",
            again=self._again,
        )
        if on_error is not None and not callable(on_error):
            raise ConfigError(f"on_error {on_error!r} is no function: name it, without calling it")
        refused = ErrorCalls(on_error).tell if on_error is not None else None
        self._locks = QueueLocks(self._instance, self.group) if ordered and not broadcast else None
        self._rebalance = Rebalance(
            self._instance,
            self.group,
            consume_from=consume_from,
            consume_type="CONSUME_PASSIVELY",
            how=PullSettings(
                count_max=pull_count_max,
                bytes_max=pull_bytes_max,
                backlog_count_max=backlog_count_max,
                backlog_bytes_max=backlog_bytes_max,
                topic_count_max=topic_count_max,
                topic_bytes_max=topic_bytes_max,
                span_max=0 if ordered else span_max,
                send_commits=not broadcast,
            ),
            deliver=self._deliver,
            rebalance_interval_ms=rebalance_interval_ms,
            commit_interval_ms=commit_interval_ms,
            with_retries=not broadcast,
            strategy=strategy_of(strategy),
            broadcast=broadcast,
            offsets=LocalOffsets(offset_folder, self._instance, self.group) if broadcast else None,
            locks=self._locks,
            settled=self._settled if ordered else None,
            set_aside=self._set_aside,
            refused=refused,
        )
        self._popping: PopReading | None = None
        if pop:
            how = check_settings(pop_settings or PopSettings())
            self._popping = self._rebalance.assignment = PopReading(
                self._instance,
                self.group,
                self._namespace,
                msgspec.structs.replace(how, from_first=consume_from == "first"),
                strategy=STRATEGIES[str(strategy)],
                attempts_max=None if of_group else self._attempts_max,
                subscriptions=self._rebalance.subscriptions,
                rates=self._rebalance.rates,
                deliver=self._deliver_popped,
                give_up=self._returned.bury_popped,
                refused=refused,
            )
        self._trace_as(self.group, "CONSUME")
        # By the names of RocketMQ's properties: what its tools show.
        self._settings: dict[str, object] = {
            "messageModel": "BROADCASTING" if broadcast else "CLUSTERING",
            "consumeFromWhere": consume_from,
            "consumeThreadMax": threads,
            "consumeMessageBatchMaxSize": batch_max,
            "maxReconsumeTimes": -1 if max_reconsume_times is None else self._attempts_max,
            "suspendCurrentQueueTimeMillis": suspend_ms,
            "consumeTimeout": consume_timeout_ms / 60_000,
            "pullBatchSize": pull_count_max,
            "pullBatchSizeInBytes": pull_bytes_max,
            "pullThresholdForQueue": backlog_count_max,
            "pullThresholdSizeForQueue": backlog_bytes_max >> 20,
            "persistConsumerOffsetInterval": commit_interval_ms,
            "allocateMessageQueueStrategy": strategy,
        }
        self._listener: Callable[[Any], Any] | None = None
        self._listeners: Listeners | None = None
        # Once false, what fails now stays uncommitted, and comes again elsewhere.
        self._takes_back = True

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Subscribe to a topic's messages: all, those of "TagA || TagB", or those for which `sql` is true. Also while
        running.

        `sql` is RocketMQ's SQL92 over properties, such as "price > 10 AND region = 'eu'"; the broker has to allow it
        (enablePropertyFilter). Raises MessageIllegal for a topic that cannot be, FilterIllegal for a wrong `sql`.
        """
        full = namespace.wrap(self._namespace, topic)
        if sql is None:
            self._rebalance.subscribe(full, expression)
            return
        if expression != "*":
            raise UsageError("give a tag expression or sql, not both")
        sql92.compile(sql)
        self._rebalance.subscribe(full, sql, SQL92)

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

    def listen(self, listener: ListenerT) -> ListenerT:
        """Set the function that gets each message (a list of messages if `batch_max` is over 1).

        A plain function runs in a thread, a coroutine function on the loop. If it returns False or raises, its
        messages are delivered again later; anything else means that they are done. A coroutine that a plain function
        returns is run first. Usable as a decorator. Raises UsageError for a generator function, which would not run.
        """
        if self._state != "new":
            raise StateError("the listener is set before the consumer starts")
        if not callable(listener):
            raise UsageError(f"a listener is a function, not {listener!r}: name it, without calling it")
        if inspect.isgeneratorfunction(listener) or inspect.isasyncgenfunction(listener):
            raise UsageError(
                "a listener that holds a `yield` is a generator: calling it runs nothing; leave the yield out"
            )
        self._listener = listener
        return listener

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
        if hooks:
            listener = hooked(listener, self.group, hooks, asyncio.get_running_loop())
        self._listeners = self._make_listeners(listener)
        await self._enter()
        await self._rebalance.offsets.store.load()
        if self._tracer is not None:
            self._tracer.start()
        self._instance.asked.consumers[self.group] = PushConsumerStatus(
            self._rebalance,
            self._settings,
            self._listener,
            ordered=self._ordered,
            batched=self._batch_max > 1,
            bare=self._bare,
            poppers=self._popping.poppers if self._popping is not None else {},
        )
        self._rebalance.keep_committing()
        await self._rebalance.join()

    def _make_listeners(self, listener: Callable[[Any], Any]) -> Listeners:
        if not self._ordered:
            kind = TaskListeners if is_coroutine_function(listener) else ThreadListeners
            return kind(listener, self._threads, self._finished, Overdue(self._consume_timeout_s, self._expired))
        locks = self._locks
        ordered = OrderedListeners(
            listener,
            self._threads,
            self._finished,
            suspend_ms=self._suspend_ms,
            attempts_max=self._attempts_max,
            may_run=locks.holds if locks is not None else _always,
            give_up=self._returned.bury_in_order,
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
            async with asyncio.timeout(self._close_timeout_s):
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

    def _deliver(self, puller: Puller, messages: list[ReceivedMessage]) -> None:
        assert self._listeners is not None
        if self._namespace:
            for message in messages:
                message.topic = namespace.unwrap(self._namespace, message.topic)
        n = self._batch_max
        given = messages if n == 1 else [messages[i : i + n] for i in range(0, len(messages), n)]
        self._listeners.put(zip(repeat(puller), given))

    def _deliver_popped(self, batch: PopBatch, messages: list[ReceivedMessage]) -> None:
        assert self._listeners is not None
        n = self._batch_max
        if n == 1:
            self._listeners.put(zip(repeat(batch), messages))
            return
        for _, of_queue in groupby(sorted(messages, key=_place), key=_place):
            given = list(of_queue)
            self._listeners.put((batch, given[i : i + n]) for i in range(0, len(given), n))

    def _set_aside(self, puller: Puller, messages: list[ReceivedMessage]) -> None:
        """Send messages that no attempt can give to the listener to the dead letter queue, so that they hold up no
        others.
        """
        for message in messages:
            where = f"offset {message.queue_offset} of {puller.queue}"
            log.error("%s is not given to the listener, but set aside: %s", where, message.body_error)
            puller.counts.failed += 1
            if self._broadcast:
                puller.process_queue.finish([message])
            else:
                self._returned.bury(puller, message)

    def _finished(self, done: list[Unit], failed: list[Unit]) -> None:
        if self._popping is not None:
            done, failed = self._popping.finished(done, failed)
        now_ms = int(time.time() * 1000)
        for puller, units in groupby(done, key=itemgetter(0)):
            given = [unit[1] for unit in units]
            if self._batch_max > 1:
                given = list(chain.from_iterable(given))
            puller.process_queue.finish(given)
            puller.counts.taken += len(given)
            puller.consumed_ms = now_ms
        for puller, given in failed:
            puller.counts.failed += 1 if self._batch_max == 1 else len(given)
            puller.consumed_ms = now_ms
            if puller.dropped or not self._takes_back:
                continue
            if self._broadcast:
                # Nobody else would get it again (rule: ConsumeMessageConcurrentlyService, 5.x).
                puller.process_queue.finish([given] if self._batch_max == 1 else given)
                continue
            for message in [given] if self._batch_max == 1 else given:
                self._returned.give_back(puller, message)

    def _expired(self, unit: Unit) -> None:
        _puller, given = unit
        first = given if self._batch_max == 1 else given[0]
        text = "the listener takes more than %.0f s for message %s of topic %s; it is delivered again later"
        log.warning(text, self._consume_timeout_s, first.message_id, first.topic)
        self._finished([], [unit])

    def _again(self, puller: Puller, message: ReceivedMessage) -> None:
        if self._state == "started" and not puller.dropped and self._listeners is not None:
            self._listeners.put([(puller, message if self._batch_max == 1 else [message])])


def _place(message: ReceivedMessage) -> tuple[MessageQueue, int]:
    return message.queue, message.queue_offset


def _always(queue: MessageQueue) -> bool:
    return True
