"""The push consumer: messages are handed to a listener as they come.

Rule: a message leaves the backlog only when the listener took it or a broker has it again for a later attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, TypeVar, Unpack

from rocketspark.client import requests, validate
from rocketspark.client.answers import PushAnswers
from rocketspark.client.assign import Strategy, strategy_of
from rocketspark.client.fetcher import Fetcher, Fetching
from rocketspark.client.hooks import hooked, is_coroutine_function
from rocketspark.client.inquiries import Inquiries
from rocketspark.client.listeners import Listeners, Overdue, TaskListeners, ThreadListeners, Unit
from rocketspark.client.locks import QueueLocks
from rocketspark.client.membership import ConsumeFrom, Membership
from rocketspark.client.offset_stores import LocalOffsets
from rocketspark.client.options import ClientOptions
from rocketspark.client.ordered_listeners import OrderedListeners
from rocketspark.errors import ConfigError, RocketSparkError, StateError, UsageError
from rocketspark.filters import sql92
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.model.subscription import SQL92
from rocketspark.protocol import properties
from rocketspark.protocol.headers import SendHeader

log = logging.getLogger("rocketspark.client")

F = TypeVar("F", bound=Callable[[Any], Any])

AGAIN_S = 5.0
# Who sends a message back by sending it anew (rule: DefaultMQPushConsumerImpl, 5.x).
INNER_GROUP = "CLIENT_INNER_PRODUCER"
FIRST_RETRY_LEVEL = 3


class AsyncPushConsumer(Inquiries):
    """Hands messages to a listener, on the running asyncio loop; several consumers of one group share the queues.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group.
        consume_from: where a queue begins that the group never read: "last" (its end), "first", or a time in ms.
        ordered: each queue's messages are handed over one call at a time, in order; a call that fails is repeated after
            `suspend_ms` before anything later of its queue, and the broker's lock keeps other members away.
        broadcast: every member gets every message; offsets are kept in a file below `offset_folder`, by default
            ~/.rocketmq_offsets; what fails is not delivered again.
        strategy: how members share queues: "average", "average_by_circle", "consistent_hash" or a function, see assign.
        threads: how many calls of the listener may run at once, in threads or as coroutines.
        batch_max: over 1, the listener gets lists of up to that many messages of one queue.
        max_reconsume_times: attempts after which a message goes to the group's dead letters; None: 16, and never for
            `ordered`.
        consume_timeout_ms: messages of a call that takes longer are delivered again elsewhere; not for `ordered`.
        pull_count_max, pull_bytes_max: of one pull; a broker has limits of its own.
        backlog_count_max, backlog_bytes_max: how much of each queue is held here at most; `topic_count_max`,
            `topic_bytes_max`: of a topic's queues together, 0 for no bound; `span_max`: fetch no more while the oldest
            message in work is that many offsets behind (not for `ordered`).
        rebalance_interval_ms, commit_interval_ms: how often shares are looked at and offsets committed.
        close_timeout_ms: how long `close` waits for listeners that run.
        options: see ClientOptions.

    Use it as a context manager, or `start` and `close` it; `subscribe` and `listen` come first.
    """

    kind = "consumer"

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        *,
        consume_from: ConsumeFrom = "last",
        ordered: bool = False,
        broadcast: bool = False,
        strategy: str | Strategy = "average",
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
        **options: Unpack[ClientOptions],
    ) -> None:
        if threads < 1 or batch_max < 1:
            raise ConfigError("threads and batch_max must be 1 or more")
        if consume_timeout_ms <= 0:
            raise ConfigError("consume_timeout_ms must be more than 0")
        if broadcast:
            # The folder of its offsets is named after the client: it has to be the same the next time.
            options.setdefault("instance_name", "DEFAULT")
        super().__init__(namesrv, options)
        self.group = namespace.wrap(self._namespace, validate.check_group(group))
        self._ordered = ordered
        self._broadcast = broadcast
        self._threads = threads
        self._batch_max = batch_max
        self._max_reconsume_times = max_reconsume_times if max_reconsume_times is not None else -1 if ordered else 16
        self._suspend_ms = suspend_ms
        self._consume_timeout_s = consume_timeout_ms / 1000
        self._close_timeout_s = close_timeout_ms / 1000
        self._locks = QueueLocks(self._instance, self.group) if ordered and not broadcast else None
        self._membership = Membership(
            self._instance,
            self.group,
            consume_from=consume_from,
            consume_type="CONSUME_PASSIVELY",
            how=Fetching(
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
        )
        self._trace_as(self.group, "CONSUME")
        # By the names of RocketMQ's properties: what its tools show.
        self._settings: dict[str, object] = {
            "messageModel": "BROADCASTING" if broadcast else "CLUSTERING",
            "consumeFromWhere": consume_from,
            "consumeThreadMax": threads,
            "consumeMessageBatchMaxSize": batch_max,
            "maxReconsumeTimes": self._max_reconsume_times,
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
        self._returning: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Want a topic's messages: all, those of "TagA || TagB", or those for which `sql` is true. Also while running.

        `sql` is RocketMQ's SQL92 over properties, such as "price > 10 AND region = 'eu'"; the broker has to allow it
        (enablePropertyFilter). Raises MessageIllegal for a topic that cannot be, FilterIllegal for a wrong `sql`.
        """
        full = namespace.wrap(self._namespace, topic)
        if sql is None:
            self._membership.subscribe(full, expression)
            return
        if expression != "*":
            raise UsageError("give a tag expression or sql, not both")
        sql92.compile(sql)
        self._membership.subscribe(full, sql, SQL92)

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic. Also while running."""
        self._membership.unsubscribe(namespace.wrap(self._namespace, topic))

    def pause(self) -> None:
        """Fetch no more until `resume`; what was fetched already is still handed over."""
        self._membership.pause_all(True)

    def resume(self) -> None:
        """Fetch again."""
        self._membership.pause_all(False)

    def listen(self, listener: F) -> F:
        """Set the function that gets each message (a list of messages if `batch_max` is over 1).

        A plain function runs in a thread, a coroutine function on the loop. If it returns False or raises, its
        messages are delivered again later; anything else means that they are done. Usable as a decorator.
        """
        if self._state != "new":
            raise StateError("the listener is set before the consumer starts")
        self._listener = listener
        return listener

    async def start(self) -> None:
        """Join the group and begin to read; returns once this member has its first share of the queues.

        Raises StateError, NotSent if no NameServer answers.
        """
        if self._listener is None:
            raise StateError("no listener: call listen(function) before start")
        self._begin()
        listener, hooks = self._listener, self._hooks.consumes
        if hooks:
            listener = hooked(listener, self.group, hooks)
        self._listeners = self._make_listeners(listener)
        await self._instance.start(consumer=self.group)
        try:
            await self._instance.check_namesrv()
            await self._membership.load_offsets()
        except BaseException:
            self._state = "closed"
            await self._instance.close(consumer=self.group)
            raise
        if self._tracer is not None:
            self._tracer.start()
        self._instance.asked.consumers[self.group] = PushAnswers(
            self._membership,
            self._settings,
            self._listener,
            ordered=self._ordered,
            batched=self._batch_max > 1,
            bare=self._bare,
        )
        self._membership.keep_committing()
        await self._membership.join()

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
            attempts_max=self._max_reconsume_times,
            may_run=locks.holds if locks is not None else _always,
            give_up=self._give_up,
        )
        if locks is not None:
            locks.changed = ordered.wake
        return ordered

    async def _settled(self, fetcher: Fetcher) -> None:
        if isinstance(self._listeners, OrderedListeners):
            await self._listeners.settled(fetcher)

    async def close(self) -> None:
        """Let listeners that run end, commit, leave the group, close the connections. May be called again."""
        if self._state != "started":
            self._state = "closed"
            return
        self._state = "closed"
        assert self._listeners is not None
        self._instance.asked.consumers.pop(self.group, None)
        await self._membership.stop_reading()
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await self._settle()
        except TimeoutError:
            log.warning("group %s: a listener still runs; its messages will be delivered again", self.group)
        for task in self._returning:
            task.cancel()
        await self._membership.leave()
        if self._tracer is not None:
            await self._tracer.close()
        await self._instance.close(consumer=self.group)

    async def _settle(self) -> None:
        assert self._listeners is not None
        await self._listeners.close()
        if self._returning:
            await asyncio.wait(self._returning)

    async def queues(self) -> list[MessageQueue]:
        """The queues this member reads now, those of its retry topic too; after the first rebalance."""
        await self._membership.balanced.wait()
        return sorted(self._bare_queue(q) for q in self._membership.fetchers)

    # -- messages ------------------------------------------------------------------------------------------------

    def _deliver(self, fetcher: Fetcher, messages: list[ReceivedMessage]) -> None:
        assert self._listeners is not None
        if self._namespace:
            for message in messages:
                message.topic = namespace.unwrap(self._namespace, message.topic)
        n = self._batch_max
        given = messages if n == 1 else [messages[i : i + n] for i in range(0, len(messages), n)]
        self._listeners.put(zip(repeat(fetcher), given))

    def _finished(self, done: list[Unit], failed: list[Unit]) -> None:
        now_ms = int(time.time() * 1000)
        for fetcher, units in groupby(done, key=itemgetter(0)):
            given = [unit[1] for unit in units]
            if self._batch_max > 1:
                given = list(chain.from_iterable(given))
            fetcher.backlog.finish(given)
            fetcher.counts.taken += len(given)
            fetcher.consumed_ms = now_ms
        for fetcher, given in failed:
            fetcher.counts.failed += 1 if self._batch_max == 1 else len(given)
            fetcher.consumed_ms = now_ms
            if fetcher.dropped:
                continue
            if self._broadcast:
                # Nobody else would get it again (rule: ConsumeMessageConcurrentlyService, 5.x).
                fetcher.backlog.finish([given] if self._batch_max == 1 else given)
                continue
            for message in [given] if self._batch_max == 1 else given:
                task = asyncio.ensure_future(self._return(fetcher, message))
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)

    def _expired(self, unit: Unit) -> None:
        _fetcher, given = unit
        first = given if self._batch_max == 1 else given[0]
        text = "the listener takes more than %.0f s for message %s of topic %s; it is delivered again later"
        log.warning(text, self._consume_timeout_s, first.message_id, first.topic)
        self._finished([], [unit])

    async def _give_up(self, fetcher: Fetcher, messages: list[ReceivedMessage]) -> bool:
        """Messages that failed too often in order: to the dead letters. False if the broker does not take them."""
        try:
            peer = await self._instance.master_of(fetcher.queue)
            for message in messages:
                await requests.send_back(
                    peer, message, self.group, delay_level=-1, max_reconsume_times=self._max_reconsume_times
                )
        except RocketSparkError as e:
            log.warning("messages of %s are not taken as dead letters, they are tried again: %s", fetcher.queue, e)
            return False
        return True

    async def _return(self, fetcher: Fetcher, message: ReceivedMessage) -> None:
        """Hand a message back to the broker for a later attempt; while that fails it stays here and is tried again."""
        try:
            peer = await self._instance.peer_of(fetcher.queue)
            await requests.send_back(peer, message, self.group, max_reconsume_times=self._max_reconsume_times)
        except RocketSparkError as e:
            log.info("message %s was not taken back, it is sent anew: %s", message.message_id, e)
            try:
                await self._send_anew(message)
            except RocketSparkError as e:
                log.warning("message %s is tried again here in %.0f s: %s", message.message_id, AGAIN_S, e)
                if self._state != "started":
                    return  # It stays uncommitted, so that it comes again.
                message.reconsume_times += 1
                asyncio.get_running_loop().call_later(AGAIN_S, self._again, fetcher, message)
                return
        fetcher.backlog.finish([message])

    def _again(self, fetcher: Fetcher, message: ReceivedMessage) -> None:
        if self._state == "started" and not fetcher.dropped and self._listeners is not None:
            self._listeners.put([(fetcher, message if self._batch_max == 1 else [message])])

    async def _send_anew(self, message: ReceivedMessage) -> None:
        topic = validate.RETRY_PREFIX + self.group
        times = message.reconsume_times + 1
        pairs = {k: v for k, v in message.properties.items() if k not in (properties.MIN_OFFSET, properties.MAX_OFFSET)}
        pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.offset_message_id)
        pairs[properties.RETRY_TOPIC] = message.topic
        pairs[properties.RECONSUME_TIME] = str(times)
        pairs[properties.MAX_RECONSUME_TIMES] = str(self._max_reconsume_times)
        pairs[properties.DELAY] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
        queue = (await self._instance.routes.find_write_queues(topic))[0]
        address = await self._instance.routes.find_master(queue)
        header = SendHeader(
            producer_group=INNER_GROUP,
            topic=topic,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_time_ms=int(time.time() * 1000),
            flag=message.flag,
            properties=properties.encode(pairs),
            reconsume_times=times,
            max_reconsume_times=self._max_reconsume_times,
            broker_name=queue.broker_name,
        )
        await requests.send(await self._instance.broker(address), header, message.body)


def _always(queue: MessageQueue) -> bool:
    return True
