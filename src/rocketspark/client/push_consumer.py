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
from rocketspark.client.fetcher import Fetcher, Fetching
from rocketspark.client.hooks import hooked, is_coroutine_function
from rocketspark.client.inquiries import Inquiries
from rocketspark.client.listeners import Listeners, TaskListeners, ThreadListeners, Unit
from rocketspark.client.membership import ConsumeFrom, Membership
from rocketspark.client.options import ClientOptions
from rocketspark.errors import ConfigError, RocketSparkError, StateError
from rocketspark.model import MessageQueue, ReceivedMessage
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
        threads: how many calls of the listener may run at once, in threads or as coroutines.
        batch_max: over 1, the listener gets lists of up to that many messages of one queue.
        max_reconsume_times: attempts after which a message goes to the group's dead letters.
        pull_count_max, pull_bytes_max: of one pull; a broker has limits of its own.
        backlog_count_max, backlog_bytes_max: how much of each queue is held here at most.
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
        threads: int = 20,
        batch_max: int = 1,
        max_reconsume_times: int = 16,
        pull_count_max: int = 256,
        pull_bytes_max: int = 256 << 10,
        backlog_count_max: int = 1000,
        backlog_bytes_max: int = 100 << 20,
        rebalance_interval_ms: float = 20_000,
        commit_interval_ms: float = 5000,
        close_timeout_ms: float = 30_000,
        **options: Unpack[ClientOptions],
    ) -> None:
        if threads < 1 or batch_max < 1:
            raise ConfigError("threads and batch_max must be 1 or more")
        self.group = validate.check_group(group)
        self._threads = threads
        self._batch_max = batch_max
        self._max_reconsume_times = max_reconsume_times
        self._close_timeout_s = close_timeout_ms / 1000
        super().__init__(namesrv, options)
        self._membership = Membership(
            self._instance,
            group,
            consume_from=consume_from,
            consume_type="CONSUME_PASSIVELY",
            how=Fetching(
                count_max=pull_count_max,
                bytes_max=pull_bytes_max,
                backlog_count_max=backlog_count_max,
                backlog_bytes_max=backlog_bytes_max,
            ),
            deliver=self._deliver,
            rebalance_interval_ms=rebalance_interval_ms,
            commit_interval_ms=commit_interval_ms,
            with_retries=True,
        )
        self._trace_as(self.group, "CONSUME")
        self._listener: Callable[[Any], Any] | None = None
        self._listeners: Listeners | None = None
        self._returning: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Want a topic's messages: all, or those of "TagA || TagB". Also while running.

        Raises MessageIllegal for a topic that cannot be.
        """
        self._membership.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic. Also while running."""
        self._membership.unsubscribe(topic)

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
        kind = TaskListeners if is_coroutine_function(self._listener) else ThreadListeners
        listener, hooks = self._listener, self._hooks.consumes
        if hooks:
            listener = hooked(listener, self.group, hooks)
        self._listeners = kind(listener, self._threads, self._finished)
        await self._instance.start(consumer=self.group)
        try:
            await self._instance.check_namesrv()
        except BaseException:
            self._state = "closed"
            await self._instance.close(consumer=self.group)
            raise
        if self._tracer is not None:
            self._tracer.start()
        self._membership.keep_committing()
        await self._membership.join()

    async def close(self) -> None:
        """Let listeners that run end, commit, leave the group, close the connections. May be called again."""
        if self._state != "started":
            self._state = "closed"
            return
        self._state = "closed"
        assert self._listeners is not None
        await self._membership.stop_reading()
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await self._settle()
        except TimeoutError:
            log.warning("group %s: a listener still runs; its messages will be delivered again", self.group)
        for task in self._returning:
            task.cancel()
        await self._membership.commit()
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
        return sorted(self._membership.fetchers)

    # -- messages ------------------------------------------------------------------------------------------------

    def _deliver(self, fetcher: Fetcher, messages: list[ReceivedMessage]) -> None:
        assert self._listeners is not None
        n = self._batch_max
        given = messages if n == 1 else [messages[i : i + n] for i in range(0, len(messages), n)]
        self._listeners.put(zip(repeat(fetcher), given))

    def _finished(self, done: list[Unit], failed: list[Unit]) -> None:
        for fetcher, units in groupby(done, key=itemgetter(0)):
            given = [unit[1] for unit in units]
            fetcher.backlog.finish(given if self._batch_max == 1 else chain.from_iterable(given))
        for fetcher, given in failed:
            if fetcher.dropped:
                continue
            for message in [given] if self._batch_max == 1 else given:
                task = asyncio.ensure_future(self._return(fetcher, message))
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)

    async def _return(self, fetcher: Fetcher, message: ReceivedMessage) -> None:
        """Hand a message back to the broker for a later attempt; while that fails it stays here and is tried again."""
        try:
            peer = await self._membership.peer(fetcher.queue)
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
