"""The pull consumer: the application asks for messages when it wants them. Rule: what `poll` returned is what counts
as read; what was only fetched ahead does not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from rocketspark.client import validate
from rocketspark.client.answers import PullAnswers
from rocketspark.client.assign import Strategy, strategy_of
from rocketspark.client.fetcher import Fetcher, Fetching
from rocketspark.client.hooks import Consuming, guarded
from rocketspark.client.inquiries import Inquiries
from rocketspark.client.membership import ConsumeFrom, Membership, OnQueues, call_with_queues
from rocketspark.client.offset_stores import BrokerOffsets, LocalOffsets
from rocketspark.client.options import ClientOptions
from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound, StateError, UsageError
from rocketspark.filters import sql92
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.model.subscription import SQL92, TAG

log = logging.getLogger("rocketspark.client")


class AsyncPullConsumer(Inquiries):
    """Reads messages on demand, on the running asyncio loop.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group; its committed offsets are where reading begins.
        consume_from: where a queue begins that the group never read: "last" (its end), "first", or a time in ms.
        auto_commit: commit every `commit_interval_ms` what earlier polls returned, and at `close` all that was
            returned. A context that is left by an exception does not commit what the last poll returned.
        broadcast: with `subscribe`, every member reads every queue; offsets are kept in a file below `offset_folder`,
            by default ~/.rocketmq_offsets.
        strategy: how members share queues: "average", "average_by_circle", "consistent_hash" or a function, see assign.
        on_assigned, on_revoked: called with the queues that were taken, and with those that are about to be given up,
            before what was read of them is committed; a plain function in a thread, a coroutine function on the loop.
            Not called by `assign` and `close`.
        rebalance_interval_ms, commit_interval_ms: how often shares are looked at and offsets committed.
        watch_interval_ms: how often `watch_queues` looks [topicMetadataCheckIntervalMillis].
        pull_count_max, pull_bytes_max: of one pull; a broker has limits of its own.
        backlog_count_max, backlog_bytes_max: how much of each queue is fetched ahead at most.
        options: see ClientOptions.

    Either `subscribe` to topics and share their queues with the group's other members, or `assign` queues.
    """

    kind = "consumer"

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        *,
        consume_from: ConsumeFrom = "last",
        auto_commit: bool = True,
        broadcast: bool = False,
        strategy: str | Strategy = "average",
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
        pull_count_max: int = 256,
        pull_bytes_max: int = 256 << 10,
        backlog_count_max: int = 1000,
        backlog_bytes_max: int = 100 << 20,
        rebalance_interval_ms: float = 20_000,
        commit_interval_ms: float = 5000,
        watch_interval_ms: float = 30_000,
        offset_folder: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        if broadcast:
            # The folder of its offsets is named after the client: it has to be the same the next time.
            options.setdefault("instance_name", "DEFAULT")
        if watch_interval_ms <= 0:
            raise ConfigError("watch_interval_ms must be more than 0")
        super().__init__(namesrv, options)
        self.group = namespace.wrap(self._namespace, validate.check_group(group))
        self._auto_commit = auto_commit
        own = LocalOffsets(offset_folder, self._instance, self.group) if broadcast else None
        self._offsets = own or BrokerOffsets(self._instance, self.group)
        self._membership = Membership(
            self._instance,
            self.group,
            consume_from=consume_from,
            consume_type="CONSUME_ACTIVELY",
            how=Fetching(
                count_max=pull_count_max,
                bytes_max=pull_bytes_max,
                backlog_count_max=backlog_count_max,
                backlog_bytes_max=backlog_bytes_max,
                send_subscription=True,
                send_commits=False,
            ),
            deliver=self._deliver,
            to_commit=_done,
            rebalance_interval_ms=rebalance_interval_ms,
            commit_interval_ms=commit_interval_ms if auto_commit else None,
            with_retries=False,
            strategy=strategy_of(strategy),
            broadcast=broadcast,
            offsets=self._offsets,
            on_taken=self._bare_queues(on_assigned),
            on_leaving=self._bare_queues(on_revoked),
        )
        # By the names of RocketMQ's properties: what its tools show.
        self._settings: dict[str, object] = {
            "messageModel": "BROADCASTING" if broadcast else "CLUSTERING",
            "consumeFromWhere": consume_from,
            "allocateMessageQueueStrategy": strategy,
            "autoCommit": auto_commit,
            "autoCommitIntervalMillis": commit_interval_ms,
            "pullBatchSize": pull_count_max,
            "pullThresholdForQueue": backlog_count_max,
            "pullThresholdSizeForQueue": backlog_bytes_max >> 20,
        }
        self._fetched: deque[tuple[Fetcher, list[ReceivedMessage]]] = deque()
        self._arrived = asyncio.Event()
        self._by_hand = False
        self._joined = False
        self._joining: asyncio.Future[None] | None = None
        self._watch_interval_s = watch_interval_ms / 1000
        self._watches: set[asyncio.Task[None]] = set()
        self._trace_as(self.group, "CONSUME")

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Raises StateError, NotSent if no NameServer answers."""
        self._begin()
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
        self._instance.asked.consumers[self.group] = PullAnswers(self._membership, self._settings)
        self._membership.keep_committing()
        if self._membership.subscriptions:
            self._joined = True
            await self._membership.join()

    async def close(self) -> None:
        """Commit what was returned (with `auto_commit`), leave the group, close all. May be called again."""
        await self._close(whole=True)

    async def _close(self, whole: bool) -> None:
        if self._state != "started":
            self._state = "closed"
            return
        self._state = "closed"
        self._instance.asked.consumers.pop(self.group, None)
        self._arrived.set()
        for task in [*self._watches, *([self._joining] if self._joining is not None else [])]:
            task.cancel()
        await self._membership.stop_reading()
        if self._auto_commit:
            if whole:
                self._settle()
            await self._membership.commit()
        if self._tracer is not None:
            await self._tracer.close()
        await self._instance.close(consumer=self.group)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(whole=kind is None)

    # -- which queues --------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Want a topic's messages: all, those of "TagA || TagB", or those for which `sql` is true. Also while running.

        Its queues are shared within the group. `sql` is RocketMQ's SQL92 over properties; the broker has to allow it
        (enablePropertyFilter). Raises StateError after `assign`, MessageIllegal for a topic that cannot be,
        FilterIllegal for a wrong `sql`.
        """
        if self._by_hand:
            raise StateError("this consumer has queues assigned by hand; subscribe with another one")
        self._membership.subscribe(namespace.wrap(self._namespace, topic), *_filter(expression, sql))
        if self._state == "started" and not self._joined:
            self._joined = True
            self._joining = asyncio.ensure_future(self._membership.join())

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic. Also while running: its queues are given up then."""
        self._membership.unsubscribe(namespace.wrap(self._namespace, topic))

    async def assign(self, queues: Sequence[MessageQueue], expression: str = "*", *, sql: str | None = None) -> None:
        """Read exactly these queues, from the committed offsets on, whoever else reads them.

        Filters are those of `subscribe`. Raises StateError after `subscribe`, ServerError or TransportError if an
        offset cannot be had.
        """
        self._check_started()
        if self._joined:
            raise StateError("this consumer has subscribed; assign queues with another one")
        full = [self._full(q) for q in queues]
        filtered = _filter(expression, sql)
        self._by_hand = True
        topics = {q.topic for q in full} | {q.topic for q in self._membership.fetchers}
        for topic in topics:
            self._membership.set_filter(topic, *filtered)
            share = [q for q in full if q.topic == topic]
            for queue in share:
                if queue not in self._membership.fetchers:
                    await self._membership.take(queue)
            await self._membership.own(topic, share)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._bare_queue(q) for q in self._membership.fetchers)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        full = namespace.wrap(self._namespace, validate.check_topic(topic))
        return [self._bare_queue(q) for q in (await self._instance.routes.get(full)).read_queues()]

    async def watch_queues(self, topic: str, changed: Callable[[list[MessageQueue]], object]) -> None:
        """Have `changed` called with all queues of a topic whenever they are others than before, until `close`.

        It is looked every `watch_interval_ms`; `changed` runs as `on_assigned` does. Raises RouteNotFound.
        """
        known = await self.queues(topic)
        task = asyncio.ensure_future(self._watch(topic, known, changed))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _watch(
        self, topic: str, known: list[MessageQueue], changed: Callable[[list[MessageQueue]], object]
    ) -> None:
        while True:
            await asyncio.sleep(self._watch_interval_s)
            try:
                await self._instance.routes.refresh(namespace.wrap(self._namespace, topic))
                found = await self.queues(topic)
            except RouteNotFound:
                found = []
            except RocketSparkError as e:
                log.info("queues of topic %s are not known just now: %s", topic, e)
                continue
            if found != known:
                known = found
                await call_with_queues(changed, found)

    def _bare_queues(self, given: OnQueues | None) -> OnQueues | None:
        if given is None or not self._namespace:
            return given
        return lambda queues: call_with_queues(given, [self._bare_queue(q) for q in queues])

    # -- reading -------------------------------------------------------------------------------------------------

    def _deliver(self, fetcher: Fetcher, messages: list[ReceivedMessage]) -> None:
        if self._namespace:
            for message in messages:
                message.topic = namespace.unwrap(self._namespace, message.topic)
        self._fetched.append((fetcher, messages))
        self._arrived.set()

    async def poll(self, timeout_ms: float = 1000, *, count_max: int = 1000) -> list[ReceivedMessage]:
        """Up to `count_max` messages; waits up to `timeout_ms` for the first, and returns none after that.

        Calling it means that what earlier calls returned is done with: with `auto_commit` it may be committed.
        """
        self._check_started()
        self._settle()
        found = self._take(count_max)
        end_s = time.monotonic() + timeout_ms / 1000
        while not found and self._state == "started":
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            self._arrived.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                break
            found = self._take(count_max)
        if found and self._hooks.consumes:
            self._show(found)
        return found

    def _show(self, messages: list[ReceivedMessage]) -> None:
        # To those who look, what is handed out counts as consumed (rule: DefaultLitePullConsumerImpl, 5.x).
        consuming = Consuming(group=self.group, messages=messages)
        for each in self._hooks.consumes:
            guarded(each.before_consume, consuming)
        for each in self._hooks.consumes:
            guarded(each.after_consume, consuming)

    def _take(self, count_max: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        now_ms = int(time.time() * 1000)
        while self._fetched and len(taken) < count_max:
            fetcher, messages = self._fetched.popleft()
            if fetcher.dropped:
                continue
            room = count_max - len(taken)
            if len(messages) > room:
                self._fetched.appendleft((fetcher, messages[room:]))
                messages = messages[:room]
            fetcher.backlog.finish(messages)
            fetcher.consumed_ms = now_ms
            taken.extend(messages)
        return taken

    def _settle(self) -> None:
        """What was returned so far is done with."""
        for fetcher in self._membership.fetchers.values():
            fetcher.done = fetcher.backlog.lowest

    async def unread(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take back messages that `poll` returned: they are read again, and not committed."""
        if self._state != "started":
            return
        lowest: dict[MessageQueue, int] = {}
        for message in messages:
            queue = self._full(MessageQueue(*message.queue))
            lowest[queue] = min(message.queue_offset, lowest.get(queue, message.queue_offset))
        for queue, offset in lowest.items():
            if queue in self._membership.fetchers:
                done = self._membership.fetchers[queue].done
                self._membership.seek(queue, offset)
                self._membership.fetchers[queue].done = min(done, offset)

    def __aiter__(self) -> Self:
        """Messages one by one, for as long as the consumer is open; each is done with when the next is asked for."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        while self._state == "started":
            if messages := await self.poll(count_max=1):
                return messages[0]
        raise StopAsyncIteration

    # -- positions -----------------------------------------------------------------------------------------------

    def _fetcher(self, queue: MessageQueue) -> Fetcher:
        self._check_started()
        fetcher = self._membership.fetchers.get(self._full(queue))
        if fetcher is None:
            raise StateError(f"{queue} is not read by this consumer: see assignment()")
        return fetcher

    async def position(self, queue: MessageQueue) -> int:
        """The offset of the next message of a queue that `poll` would return. Raises StateError if it is not read."""
        return self._fetcher(queue).backlog.lowest

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue on from `offset`. Raises StateError if it is not read by this consumer."""
        self._fetcher(queue)
        self._membership.seek(self._full(queue), offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        await self.seek(queue, await self.begin_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        await self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Read a queue from the first message stored at or after `time_ms` on."""
        await self.seek(queue, await self.offsets_for_time(queue, time_ms))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Commit what `poll` returned so far; or the offsets given, each the next one to read.

        Raises ServerError or TransportError if they are not taken; without `wait` no broker's reply is waited for.
        """
        self._check_started()
        if offsets is None:
            self._settle()
            await self._membership.commit(strict=True, oneway=not wait)
            return
        failed = await self._offsets.commit({self._full(q): offset for q, offset in offsets.items()}, oneway=not wait)
        for error in failed.values():
            raise error

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue, None if there is none."""
        return await self._offsets.committed(self._full(queue), zero_if_not_found=False)

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return await self.min_offset(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return await self.max_offset(queue)

    async def offsets_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at or after `time_ms`; the end if there is none."""
        return await self.search_offset(queue, time_ms)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more of these queues until `resume`; what was fetched already is still returned."""
        for queue in queues:
            self._fetcher(queue).backlog.paused = True

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from these queues again."""
        for queue in queues:
            self._fetcher(queue).backlog.paused = False


def _filter(expression: str, sql: str | None) -> tuple[str, str]:
    if sql is None:
        return expression, TAG
    if expression != "*":
        raise UsageError("give a tag expression or sql, not both")
    sql92.compile(sql)
    return sql, SQL92


def _done(fetcher: Fetcher) -> int:
    return fetcher.done
