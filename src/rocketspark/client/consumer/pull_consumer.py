"""The pull consumer: the application asks for messages.

Rule: only messages that `poll` returned count as read; those that were only fetched ahead do not.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from numbers import Integral, Real
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from rocketspark import machine
from rocketspark.client import validators
from rocketspark.client.callbacks import Tasks, end_all, every
from rocketspark.client.consumer.consumer_options import PullConsumerOptions, PullConsumerSettings
from rocketspark.client.consumer.consumer_status import PullConsumerStatus
from rocketspark.client.consumer.handed_out import HandedOut, MessageIterator, Run
from rocketspark.client.consumer.lifecycle import ConsumerLife, filter_of
from rocketspark.client.consumer.offsets import BrokerOffsets, LocalOffsets
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.consumer.rebalance import END_S, Rebalance, RebalanceCalls
from rocketspark.client.hooks import Consuming, OnQueues, call_with_queues, guarded
from rocketspark.client.message_batch import MessageBatch, Messages, without_namespace
from rocketspark.client.options import named_arguments, take_settings
from rocketspark.errors import RocketSparkError, RouteNotFound, StateError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.model.text import LONG_MAX

log = logging.getLogger("rocketspark.client")


class QueueWatches:
    """The watches of one consumer, which tell an application when a topic's queues change (rule:
    registerTopicMessageQueueChangeListener of DefaultLitePullConsumer, 5.x).

    `find` gives a topic's queues as known; `refresh` asks the NameServer for them.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[list[MessageQueue]]],
        refresh: Callable[[str], Awaitable[None]],
        interval_s: float,
    ) -> None:
        self._find = find
        self._refresh = refresh
        self._interval_s = interval_s
        self.tasks = Tasks()

    async def begin(self, topic: str, changed: OnQueues) -> None:
        """Call `changed` with all queues of a topic whenever they differ from before. Raises RouteNotFound."""
        known = await self._find(topic)

        async def look() -> None:
            nonlocal known
            try:
                await self._refresh(topic)
                found = await self._find(topic)
            except RouteNotFound:
                found = []
            except RocketSparkError as e:
                log.info("queues of topic %s are not known just now: %s", topic, e)
                return
            if found != known:
                known = found
                await call_with_queues(changed, found)

        self.tasks.begin(every(self._interval_s, look, f"the watch of topic {topic}"))


# Polls in a row that may find messages without a turn of the loop.
IN_A_ROW_MAX = 32
WAIT_MAX_S = 1e8
# Python's own first: of an abstract class alone the question takes 0.1 us, at each poll for one message.
_NUMBERS = (float, int, Real)
_WHOLE_NUMBERS = (int, Integral)


class AsyncPullConsumer(ConsumerLife):
    """Reads messages on demand, on the running asyncio loop.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group; its committed offsets are where reading begins.
        consume_from: where a queue begins that the group never read: "last" (its end), "first", or a time in ms.
        auto_commit: commit every `commit_interval_ms` what earlier polls returned, and at `close` all that was
            returned. A context that is left by an exception does not commit what the last poll returned; nor does a
            close while the task that called it runs on, was cancelled or failed.
        broadcast: with `subscribe`, every member reads every queue; offsets are kept in a file below `offset_folder`,
            by default ~/.rocketmq_offsets.
        strategy: how members share queues: "average", "average_by_circle", "consistent_hash"
            or a function, as those of allocate_queues.
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

    @named_arguments(PullConsumerSettings)
    def __init__(self, namesrv: str | None = None, group: str = "", **options: Unpack[PullConsumerOptions]) -> None:
        given = frozenset(options)
        how = take_settings(PullConsumerSettings, options)
        validators.check_intervals(watch_interval_ms=how.watch_interval_ms, commit_interval_ms=how.commit_interval_ms)
        super().__init__(namesrv, options, group, offset_file=how.broadcast)
        self._how = how
        self._pulling = how.pulling()
        self._handed_out = HandedOut()
        # Bound once: a poll for one message after the other pays for each look-up.
        self._take, self._settle = self._handed_out.take, self._handed_out.settle
        own = LocalOffsets(how.offset_folder, self._instance, self.group) if how.broadcast else None
        self._offsets = own or BrokerOffsets(self._instance, self.group)
        self._rebalance = Rebalance(
            self._instance,
            self.group,
            how if how.auto_commit else msgspec.structs.replace(how, commit_interval_ms=0),
            self._pulling,
            RebalanceCalls(
                deliver=self._deliver,
                to_commit=self._handed_out.done,
                on_taken=self._bare_queues(how.on_assigned),
                on_leaving=self._bare_queues(how.on_revoked),
                continued=self._handed_out.follow,
                refused=lambda error: self._arrived.set(),
            ),
            consume_type="CONSUME_ACTIVELY",
            with_retries=False,
            offsets=self._offsets,
        )
        # Behind the rebalance, which refuses bounds that are no numbers.
        self._pulling_columns = how.pulling_columns(given)
        self._arrived = asyncio.Event()
        self._by_hand = False
        self._one_assign = asyncio.Lock()
        self._joined = False
        self._joining: asyncio.Future[None] | None = None
        self._watches = QueueWatches(self.queues, self._refresh_route, how.watch_interval_ms / 1000)
        self._poller: asyncio.Task[Any] | None = None
        self._in_a_row = 0
        # How the last poll wanted messages: what is fetched for it comes so, what was fetched before is made so.
        self._in_columns = False
        self._trace_as(self.group, "CONSUME")

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin to fetch. Raises StateError, NotSent if no NameServer answers."""
        await self._start()

    async def _open(self) -> None:
        await self._enter()
        await self._rebalance.offsets.store.load()
        if self._tracer is not None:
            self._tracer.start()
        self._instance.asked.consumers[self.group] = PullConsumerStatus(
            self._rebalance, self._how.by_rocketmq_s_names()
        )
        self._rebalance.keep_committing()
        if self._rebalance.subscriptions and not self._by_hand:
            self._joined = True
            await self._rebalance.join()

    async def close(self) -> None:
        """Commit what was returned (with `auto_commit`), leave the group, close all. May be called again.

        A caller that stops waiting does not stop it.
        """
        await self._close(through=self._is_through(asyncio.current_task()))

    async def _end(self, through: bool) -> None:
        if self._entered:
            self._instance.asked.consumers.pop(self.group, None)
        self._arrived.set()
        joining = [] if self._joining is None else [self._joining]
        await end_all([*self._watches.tasks, *joining], END_S)
        await self._rebalance.stop_reading()
        if self._how.auto_commit and self._entered:
            if through:
                self._settle(self._rebalance.pullers.values())
            await self._rebalance.commit()
        await self._leave()

    def _is_through(self, closing: asyncio.Task[Any] | None) -> bool:
        """Tell whether the messages of the last poll are finished: not if another task polled, and still runs or
        failed.
        """
        poller = self._poller
        if poller is None or poller is closing:
            return True
        return poller.done() and not poller.cancelled() and getattr(poller, "_exception", None) is None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(through=kind is None and self._is_through(asyncio.current_task()))

    # -- which queues --------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Subscribe to a topic's messages: all, those of "TagA || TagB", or those for which `sql` is true. Also while
        running.

        The topic's queues are shared within the group. `sql` is RocketMQ's SQL92 over properties; the broker has to
        allow it (enablePropertyFilter). Raises StateError after `assign`, MessageIllegal for a topic's name that is not
        allowed, FilterIllegal for a wrong `sql`.
        """
        if self._by_hand:
            raise StateError("this consumer has queues assigned by hand; subscribe with another one")
        self._rebalance.subscribe(namespace.wrap(self._namespace, topic), *filter_of(expression, sql))
        # A start that is under way joins by itself.
        if self._opening is not None and self._opening.done() and self._state == "started" and not self._joined:
            self._joined = True
            self._joining = asyncio.ensure_future(self._rebalance.join())

    def unsubscribe(self, topic: str) -> None:
        """End a topic's subscription. Also while running: its queues are given up then."""
        self._rebalance.unsubscribe(namespace.wrap(self._namespace, topic))

    async def assign(self, queues: Sequence[MessageQueue], expression: str = "*", *, sql: str | None = None) -> None:
        """Read exactly these queues, from the committed offsets on, whoever else reads them.

        Filters are those of `subscribe`. Raises StateError after `subscribe`, ServerError or TransportError if an
        offset cannot be had.
        """
        self._check_started()
        if self._joined:
            raise StateError("this consumer has subscribed; assign queues with another one")
        full = [self._full(q) for q in queues]
        filtered = filter_of(expression, sql)
        self._by_hand = True
        # The last one to ask decides.
        async with self._one_assign:
            self._check_started()
            topics = {q.topic for q in full} | {q.topic for q in self._rebalance.pullers}
            for topic in topics:
                self._rebalance.set_filter(topic, *filtered)
                share = [q for q in full if q.topic == topic]
                for queue in share:
                    if queue not in self._rebalance.pullers:
                        await self._rebalance.take(queue)
                        self._check_started()
                await self._rebalance.own(topic, share)
            self._check_started()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are read now."""
        return sorted(self._bare_queue(q) for q in self._rebalance.pullers)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        full = namespace.wrap(self._namespace, validators.check_topic(topic))
        return [self._bare_queue(q) for q in (await self._instance.routes.get(full)).read_queues()]

    async def watch_queues(self, topic: str, changed: Callable[[list[MessageQueue]], object]) -> None:
        """Call `changed` with all queues of a topic whenever they differ from before, until `close`.

        It is looked every `watch_interval_ms`; `changed` runs as `on_assigned` does. Raises RouteNotFound.
        """
        await self._watches.begin(topic, changed)

    async def _refresh_route(self, topic: str) -> None:
        await self._instance.routes.refresh(namespace.wrap(self._namespace, topic))

    def _bare_queues(self, given: OnQueues | None) -> OnQueues | None:
        if given is None or not self._namespace:
            return given
        return lambda queues: call_with_queues(given, [self._bare_queue(q) for q in queues])

    # -- reading -------------------------------------------------------------------------------------------------

    def _deliver(self, puller: Puller, messages: Messages) -> None:
        self._handed_out.fetched.append((puller, without_namespace(messages, self._namespace)))
        self._arrived.set()

    async def poll(self, timeout_ms: float = 1000, *, count_max: int = 1000) -> list[ReceivedMessage]:
        """Return up to `count_max` messages; wait up to `timeout_ms` for the first, and return none after that.

        A call says that the messages of earlier calls are finished: with `auto_commit` they may be committed. Raises
        what a broker refuses so that no retry mends it (a filter, a right); other queues are read on.
        """
        runs = await self._next(timeout_ms, count_max)
        only = runs[0][1] if len(runs) == 1 else None
        found = only if isinstance(only, list) else [message for _, messages in runs for message in messages]
        if found and self._hooks.consumes:
            self._show(found)
        return found

    async def poll_batch(self, timeout_ms: float = 1000, *, count_max: int = 16_384) -> MessageBatch:
        """Return up to `count_max` messages as columns, as `poll` does in all else; several times as fast as that.

        The next pulls ask for as much as `pull_count_max`, `pull_bytes_max` and `backlog_count_max` say; where these
        were not given, for up to 16,384 messages or 2 MiB at once, and 65,536 are fetched ahead. Hooks get messages,
        which are made for them.
        """
        runs = await self._next(timeout_ms, count_max, columns=True)
        batch = MessageBatch.of_parts([messages for _, messages in runs])
        if batch and self._hooks.consumes:
            self._show(list(batch))
        return batch

    async def lend(self, timeout_ms: float = 1000, *, count_max: int = 1000) -> MessageIterator:
        """Take messages as `poll` does, and return them as an iterator that gives them out one by one; `take_back` must
        follow.
        """
        runs = await self._next(timeout_ms, count_max)
        if self._hooks.consumes and (messages := [message for _, part in runs for message in part]):
            self._show(messages)
        return self._handed_out.lend(runs)

    def take_back(self, message_iterator: MessageIterator) -> None:
        """End an iterator: messages that it did not give out are read again, and not committed."""
        for puller, messages in self._handed_out.take_back(message_iterator):
            if self._state == "started":
                self._unread(puller.queue, puller, messages[0].queue_offset)

    @property
    def lent(self) -> list[MessageIterator]:
        """Return the iterators in use."""
        return self._handed_out.lent

    async def _next(self, timeout_ms: float, count_max: int, *, columns: bool = False) -> list[Run]:
        self._check_started()
        if columns is not self._in_columns:
            self._in_columns = columns
            self._rebalance.use(self._pulling_columns if columns else self._pulling)
        if not isinstance(timeout_ms, _NUMBERS) or math.isnan(timeout_ms):
            raise UsageError(f"timeout_ms {timeout_ms!r} is no number: give milliseconds, 0 or more")
        if not isinstance(count_max, _WHOLE_NUMBERS) or count_max < 1:
            raise UsageError(f"count_max {count_max!r}: a whole number of 1 or more is needed")
        self._settle(self._rebalance.pullers.values())
        self._poller = asyncio.current_task()
        self._in_a_row += 1
        if timeout_ms <= 0 or self._in_a_row >= IN_A_ROW_MAX:
            # A caller that never waits must not keep the loop to itself: no puller would run.
            self._in_a_row = 0
            await asyncio.sleep(0)
        found = self._take(count_max)
        end_s = machine.monotonic() + min(timeout_ms / 1000, WAIT_MAX_S)
        while not found and self._state == "started":
            if (refusal := self._rebalance.refusals.take()) is not None:
                raise copy(refusal)
            left_s = end_s - machine.monotonic()
            if left_s <= 0:
                break
            self._in_a_row = 0
            self._arrived.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                break
            found = self._take(count_max)
        return found

    def _show(self, messages: list[ReceivedMessage]) -> None:
        # Hooks see messages that are handed out as consumed (rule: DefaultLitePullConsumerImpl, 5.x).
        consuming = Consuming(group=self.group, messages=messages)
        for each in self._hooks.consumes:
            guarded(each.before_consume, consuming)
        for each in self._hooks.consumes:
            guarded(each.after_consume, consuming)

    async def unread(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take back messages that `poll` returned: they are read again, and not committed."""
        self.unread_now(messages)

    def unread_now(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take back messages as `unread` does, in a plain call."""
        if self._state != "started":
            return
        batch = messages if isinstance(messages, MessageBatch) else MessageBatch(messages)
        for bare, offset in batch.first_offsets.items():
            queue = self._full(bare)
            puller = self._rebalance.pullers.get(queue)
            if puller is not None:
                self._unread(queue, puller, offset)

    def _unread(self, queue: MessageQueue, puller: Puller, offset: int) -> None:
        if self._rebalance.pullers.get(queue) is not puller or offset >= puller.process_queue.lowest:
            return  # Another reads it now, or it comes anyway: this goes back alone.
        if self._rebalance.reads(queue):
            self._rebalance.read_again(puller, offset)
        else:
            # The queue is about to be given up: the next member to read it begins there.
            puller.done = min(puller.done, offset)
            puller.barred = offset if puller.barred is None else min(puller.barred, offset)

    def __aiter__(self) -> Self:
        """Give out messages one by one, for as long as the consumer is open; each is finished when the next is asked
        for.
        """
        return self

    async def __anext__(self) -> ReceivedMessage:
        while self._state == "started":
            if messages := await self.poll(count_max=1):
                return messages[0]
        raise StopAsyncIteration

    # -- positions -----------------------------------------------------------------------------------------------

    def _puller(self, queue: MessageQueue) -> Puller:
        self._check_started()
        puller = self._rebalance.pullers.get(self._full(queue))
        if puller is None:
            raise StateError(f"{queue} is not read by this consumer: see assignment()")
        return puller

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue that `poll` would return. Raises StateError if it is not
        read.
        """
        return self._puller(queue).process_queue.lowest

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue on from `offset`.

        Raises StateError if it is not read by this consumer, or about to be given up; UsageError for a wrong offset.
        """
        self._puller(queue)
        self._rebalance.seek(self._full(queue), _offset(offset))

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        await self.seek(queue, await self.begin_offset(queue))

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """The old name of `seek_to_beginning`."""
        await self.seek_to_beginning(queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        await self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Read a queue from the first message stored at or after `time_ms` on."""
        await self.seek(queue, await self.offsets_for_time(queue, time_ms))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Commit what `poll` returned so far; or the offsets given, each the next one to read.

        Raises ServerError or TransportError if they are not taken; without `wait` no broker's reply is waited for, but
        for one to the first commit of several queues over a connection.
        """
        self._check_started()
        if offsets is None:
            self._settle(self._rebalance.pullers.values())
            await self._rebalance.commit(strict=True, oneway=not wait)
            return
        given = {self._full(q): _offset(offset) for q, offset in offsets.items()}
        offsets_told = self._rebalance.offsets
        for queue, offset in given.items():
            offsets_told.telling(queue, offset)
        failed = await self._offsets.commit(given, oneway=not wait)
        for queue, offset in given.items() if wait else ():
            if queue not in failed:
                offsets_told.is_told(queue, offset)
        for error in failed.values():
            raise error

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue, None if there is none."""
        return await self._offsets.committed(self._full(queue), zero_if_not_found=False)

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's oldest message."""
        return await self.min_offset(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        return await self.max_offset(queue)

    async def offsets_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at or after `time_ms`; the end if there is none."""
        return await self.search_offset(queue, time_ms)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more of these queues until `resume`; what was fetched already is still returned."""
        for queue in queues:
            self._puller(queue).process_queue.paused = True

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from these queues again."""
        for queue in queues:
            self._puller(queue).process_queue.paused = False


def _offset(given: int) -> int:
    """Check an offset that an application gave. Raises UsageError for one that cannot be."""
    if isinstance(given, Integral) and not isinstance(given, bool) and 0 <= given <= LONG_MAX:
        return int(given)
    raise UsageError(f"{given!r} is no offset: a whole number from 0 to {LONG_MAX} is needed")
