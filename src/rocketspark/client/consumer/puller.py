"""The puller, which reads one queue ahead of its consumer, and the process queue, which holds what is not finished.

Rule: whatever a broker answers, the puller goes on from where the answer says; the offset to commit is that of the
lowest message that is not finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from rocketspark import machine
from rocketspark.client.callbacks import passes_on, trouble_log
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.connection.topic_routes import NO_MASTER_CODES
from rocketspark.client.consume_stats import TopicCounts
from rocketspark.client.consumer.refusals import is_refusal
from rocketspark.client.message_batch import MessageBatch, Messages
from rocketspark.client.validators import RETRY_PREFIX
from rocketspark.errors import FilterIllegal, RecordError, RocketSparkError, RouteNotFound, ServerError, TransportError
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription, is_logical
from rocketspark.model.subscription import TAG
from rocketspark.protocol import light_queues
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import properties, record, sysflags
from rocketspark.protocol.pop_answers import first_topic


class ProcessQueue:
    """The messages of one queue that were pulled and are not finished. The puller waits for room in it.

    Its bounds: `count_max` messages, `bytes_max` bytes (as stored, or as inflated if that is more) and, if given,
    `span_max` offsets from the lowest unfinished one on. `next_offset`: the next to pull; all messages below it are
    finished or in here.
    """

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_paused", "_pending", "_room", "_span_max", "next_offset")

    def __init__(self, next_offset: int, *, count_max: int, bytes_max: int, span_max: int = 0) -> None:
        self.next_offset = next_offset
        # Offsets come in rising order, and a dict keeps the order: its first key is the lowest.
        self._pending: dict[int, int] = {}
        self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._span_max = span_max
        self._paused = False
        self._room: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def bytes(self) -> int:
        """Return the size of the unfinished messages."""
        return self._bytes

    @property
    def lowest(self) -> int:
        """Return the lowest unfinished offset: what to commit."""
        # A message may claim any offset: nothing that was not fetched is ever committed.
        return min(next(iter(self._pending), self.next_offset), self.next_offset)

    @property
    def highest(self) -> int:
        """Return the highest unfinished offset, or the next to fetch if there is none."""
        return next(reversed(self._pending), self.next_offset)

    @property
    def has_room(self) -> bool:
        """Tell whether more may be pulled."""
        return (
            len(self._pending) < self._count_max
            and self._bytes < self._bytes_max
            and not self._paused
            and (not self._span_max or self.next_offset - self.lowest <= self._span_max)
        )

    def set_bounds(self, count_max: int, bytes_max: int) -> None:
        """Set other bounds from now on."""
        self._count_max, self._bytes_max = count_max, bytes_max
        self._wake()

    @property
    def paused(self) -> bool:
        """While true there is no room."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._wake()

    def add(self, messages: Messages, *, inflated: bool = False, places: record.Places | None = None) -> None:
        """Take in messages that were fetched, in the order of their offsets. `inflated`: some of their bodies were
        compressed; `places`: theirs, if they are known.
        """
        pending = self._pending
        if places is not None:
            pending.update(zip(*places, strict=True))
            self._bytes += sum(places[1])
            return
        if isinstance(messages, MessageBatch):
            pending.update(zip(messages.queue_offsets.tolist(), messages.stored_bytes.tolist(), strict=True))
            self._bytes += int(messages.stored_bytes.sum())
            return
        total = 0
        for message in messages:
            size = max(message.stored_bytes, len(message.body)) if inflated else message.stored_bytes
            pending[message.queue_offset] = size
            total += size
        self._bytes += total

    def finish(self, messages: Messages) -> None:
        """Remove messages that are finished. A message that is not in here is ignored."""
        pending = self._pending
        # Lists first: a message that is polled alone comes here too, and to tell a batch, a class of an abstract one,
        # took a quarter of what it costs to hand it out.
        if isinstance(messages, list):
            pop, total = pending.pop, 0
            for message in messages:
                total += pop(message.queue_offset, 0)
            self._bytes -= total
        else:
            self._bytes -= sum([pending.pop(offset, 0) for offset in messages.queue_offsets.tolist()])
        if self._room is not None:
            self._wake()

    def _wake(self) -> None:
        if self._room is not None and not self._room.done() and self.has_room:
            self._room.set_result(None)

    async def room(self) -> None:
        """Wait until there is room."""
        while not self.has_room:
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None


log = logging.getLogger("rocketspark.client")

# A broker holds a pull for `suspend_ms`; no reply for this much longer means that none will come.
REPLY_SPARE_MS = 15_000
TROUBLE_PAUSE_S = 1.0
REFUSED_PAUSE_S = 3.0
UNHELD_PAUSE_S = 0.05
# Pulls of fewer cost more than a backlog that is exceeded by so many.
PULL_COUNT_LEAST = 256
# Bytes of bodies inflated at a time: the bodies of a small reply may inflate to more than memory holds.
INFLATED_BYTES = 8 << 20
# A body that is not what its CRC says may have suffered on its way: so often it is asked for again.
BROKEN_REPLIES_MAX = 3
# By which a broker says that an operator moved the group (useServerSideResetOffset; PullMessageProcessor, 5.x).
RESET_REMARK = "OFFSET_RESET"
# RocketMQ's number of 4.1.0: an older broker would take any other expression for tags (rule: PullAPIWrapper, 5.x).
SQL_VERSION = 232
GROUP_UNKNOWN = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
)


class PullSettings(NamedTuple):
    """Settings of a puller.

    `count_max`, `bytes_max`: of one pull (a broker has limits of its own); `suspend_ms`: how long a broker holds a
    pull that finds nothing; `backlog_count_max`, `backlog_bytes_max`: per queue; `topic_count_max`, `topic_bytes_max`:
    of a topic's queues here together, 0 for no bound; `span_max`: see ProcessQueue; `send_subscription`: put the filter
    into each pull instead of relying on the heartbeat; `send_commits`: put the offset to commit into each pull;
    `columns`: messages are delivered as a MessageBatch where they need not be decoded, and more are asked for at once
    than brokers give to others.
    """

    count_max: int = 256
    bytes_max: int = 256 << 10
    suspend_ms: int = 15_000
    backlog_count_max: int = 1000
    backlog_bytes_max: int = 100 << 20
    topic_count_max: int = 0
    topic_bytes_max: int = 0
    span_max: int = 0
    send_subscription: bool = False
    send_commits: bool = True
    columns: bool = False


class PullerCalls(NamedTuple):
    """What a puller calls of its owner.

    `deliver(puller, messages)` gets what was read, in order. `moved(puller, offset, forget)` is called instead if the
    queue has to be read from an earlier offset, because the broker lost its end, or from where an operator wants it
    (`forget`: all that was read is void): the puller ends then, and a new one is to be made. `set_aside(puller,
    messages)` gets messages whose body cannot be had; without it they are delivered with the others. `refused(error)`
    gets the errors that no retry mends; the puller tries again all the same. `may_commit(queue)` tells whether pulls
    may carry the offset to commit, as no other member reads the queue.
    """

    deliver: Callable[[Puller, Messages], None]
    moved: Callable[[Puller, int, bool], None]
    set_aside: Callable[[Puller, list[ReceivedMessage]], None] | None = None
    refused: Callable[[RocketSparkError], None] | None = None
    may_commit: Callable[[MessageQueue], bool] = lambda queue: True


class Puller:
    """A puller: reads one queue ahead of its consumer, from `offset` on.

    `counts`: the statistics that it adds to. `began_ms`, `pulled_ms`, `consumed_ms`: when it began, when it last asked,
    when messages of it were last finished, in ms since 1970. For its owner: `leaving`, its queue is being given up;
    `barred`, the offset from which on messages were taken back meanwhile; `reset_to`, where a broker reset its queue;
    `absences`, how often the member had been away when it was last looked how far others are.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        queue: MessageQueue,
        subscription: Subscription,
        offset: int,
        how: PullSettings,
        calls: PullerCalls,
        *,
        counts: TopicCounts | None = None,
    ) -> None:
        # What its broker refuses until it answers again.
        self.refusal: RocketSparkError | None = None
        self._refused = calls.refused
        self.queue = queue
        self.group = group
        self.subscription = subscription
        self.process_queue = ProcessQueue(
            offset, count_max=how.backlog_count_max, bytes_max=how.backlog_bytes_max, span_max=how.span_max
        )
        self.dropped = False
        self.leaving = False
        self.barred: int | None = None
        self.reset_to: int | None = None
        self.absences = 0
        self.committed = -1
        self.committed_at: object = None
        self.committed_s = 0.0
        self.done = offset
        self._instance = instance
        self._how = how
        self._deliver = calls.deliver
        self._may_commit = calls.may_commit
        self._moved = calls.moved
        self._set_aside = calls.set_aside
        self._broken_replies = 0
        self.counts = counts or TopicCounts()
        self.pulled_ms = 0
        self.began_ms = self.consumed_ms = int(machine.time() * 1000)
        self._broker_id = 0
        self._pull_ms = 0.0
        self._is_retry = queue.topic.startswith(RETRY_PREFIX)
        # Of a retry topic of pops, which is named after the topic too.
        self._first_topic = first_topic(queue.topic, group)
        self._by_sql = subscription.expression_type != TAG
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin to read; the task ends after `stop`. Whoever begins it ends it."""
        self._task = asyncio.ensure_future(self._run())
        return self._task

    def use(self, how: PullSettings) -> None:
        """Pull by other settings from the next pull on."""
        self._how = how
        self.process_queue.set_bounds(how.backlog_count_max, how.backlog_bytes_max)

    def stop(self) -> None:
        """Pull no more; messages that were pulled can still be finished and committed."""
        if self._task is not None:
            self._task.cancel()

    def drop(self) -> None:
        """End for good: messages still in the process queue count as not read."""
        self.dropped = True
        self.stop()

    async def _run(self) -> None:
        asking: asyncio.Task[client_api.PullResult] | None = None
        process_queue = self.process_queue
        try:
            while True:
                how = self._how
                try:
                    if asking is None:
                        await process_queue.room()
                        asking = asyncio.ensure_future(self._pull(process_queue.next_offset))
                    asked_s = machine.monotonic()
                    pulled = await asking
                    asking = self.refusal = None
                    self._broker_id = pulled.header.suggested_broker_id
                    if pulled.code != ResponseCode.SUCCESS:
                        stays = process_queue.next_offset == pulled.header.next_offset
                        self._follow(pulled)
                        if self.dropped:
                            return
                        if stays and machine.monotonic() - asked_s < UNHELD_PAUSE_S:
                            # A broker that does not hold pulls must not be asked in a tight loop.
                            await asyncio.sleep(UNHELD_PAUSE_S)
                        continue
                    if len(process_queue) + how.count_max < how.backlog_count_max and process_queue.has_room:
                        # The broker looks for the next ones while these are decoded.
                        asking = asyncio.ensure_future(self._pull(pulled.header.next_offset))
                        await asyncio.sleep(0)
                    await self._take(pulled)
                except BaseException as e:
                    if asking is not None:
                        asking.cancel()
                        asking = None
                    if passes_on(e):
                        raise
                    await self._rest(e)
        finally:
            if asking is not None:
                asking.cancel()

    async def _pull(self, offset: int) -> client_api.PullResult:
        how, process_queue = self._how, self.process_queue
        sys_flag = sysflags.PULL_SUSPEND
        if how.send_subscription:
            sys_flag |= sysflags.PULL_SUBSCRIPTION
        address = await self._instance.routes.find_readable(self.queue, self._broker_id)
        peer = self._instance.open_broker(address) or await self._instance.broker(address)
        if self._by_sql and 0 < peer.remote_version < SQL_VERSION:
            text = f"broker {self.queue.broker_name} (version {peer.remote_version}) is older than 4.1.0 and knows no"
            raise FilterIllegal(f"{text} {self.subscription.expression_type} filters: upgrade it, or filter by tags")
        # As it is when the request leaves: an older offset would undo a commit made meanwhile.
        commit = process_queue.lowest if how.send_commits and self._may_commit(self.queue) else 0
        # Offsets are the master's (rule: PullAPIWrapper, 5.x).
        if commit > 0 and address == self._instance.routes.master_of(self.queue):
            sys_flag |= sysflags.PULL_COMMIT_OFFSET
        header = PullHeader(
            group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            # A backlog is exceeded by one pull at most, so a small one asks for less.
            count_max=min(how.count_max, max(how.backlog_count_max, PULL_COUNT_LEAST)),
            sys_flag=sys_flag,
            commit_offset=commit,
            suspend_ms=how.suspend_ms,
            subscription=self.subscription.expression if how.send_subscription else None,
            subscription_version=self.subscription.version,
            expression_type=self.subscription.expression_type,
            bytes_max=how.bytes_max,
            broker_name=self.queue.broker_name,
            # As many as were asked for, from brokers of ours, not the 32 that RocketMQ gives.
            bulk=True,
        )
        asked_s = machine.monotonic()
        self.pulled_ms = int(machine.time() * 1000)
        pulled = await client_api.pull(peer, header, timeout_ms=how.suspend_ms + REPLY_SPARE_MS)
        self._pull_ms = (machine.monotonic() - asked_s) * 1000
        return pulled

    async def _take(self, pulled: client_api.PullResult) -> None:
        """Hand on the messages of a pull; bodies are inflated piece by piece, as there is room for them."""
        light = self.queue.topic.startswith(light_queues.NAME_PREFIX)
        if self._how.columns and not self._is_retry and not is_logical(self.queue) and not light:
            batch = MessageBatch.of_records(pulled.records, self.queue)
            if batch is not None:
                self._hand_on_batch(batch, pulled.header.next_offset)
                return
        inflation = record.Inflation(INFLATED_BYTES, check_crc=self._broken_replies < BROKEN_REPLIES_MAX)
        while True:
            messages = record.decode_messages(pulled.records, self.queue.broker_name, inflation)
            if is_logical(self.queue):
                make_logical(messages, self.queue, pulled.header.offset_delta)
                inflation.places = None
            if light:
                make_light(messages, self.queue)
                inflation.places = None
            whole = inflation.at >= len(pulled.records)
            last = messages[-1].queue_offset + 1 if messages else self.process_queue.next_offset
            self._hand_on(messages, inflation, pulled.header.next_offset if whole else last)
            if whole:
                self._broken_replies = 0
                return
            inflation.inflated, inflation.spoiled = 0, []
            await self.process_queue.room()

    def _chosen(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return those of an answer's messages that were asked for: the same list if these are all."""
        tags, begin = self.subscription.tags, self.process_queue.next_offset
        if tags and not self._is_retry:
            # The broker compares hashes, which may collide.
            messages = [m for m in messages if m.tag in tags]
        # A broker may answer with a batch that began before the offset asked for.
        if messages and messages[0].queue_offset < begin:
            messages = [m for m in messages if m.queue_offset >= begin]
        return messages

    def _hand_on(self, messages: list[ReceivedMessage], inflation: record.Inflation, next_offset: int) -> None:
        all_messages, messages = messages, self._chosen(messages)
        if self._is_retry:
            for message in messages:
                message.read_from = self.queue.topic
                message.topic = message.properties.get(properties.RETRY_TOPIC, self._first_topic)
        places = inflation.places if messages is all_messages else None
        self.process_queue.add(messages, inflated=inflation.inflated > 0, places=places)
        # Only now: messages below it count as read.
        self.process_queue.next_offset = next_offset
        if not messages:
            return
        self.counts.pull(self._pull_ms, len(messages))
        if inflation.spoiled and self._set_aside is not None:
            spoiled = [m for m in messages if m.body_error is not None]
            messages = [m for m in messages if m.body_error is None]
            if spoiled:
                self._set_aside(self, spoiled)
        if messages:
            self._deliver(self, messages)

    def _hand_on_batch(self, batch: MessageBatch, next_offset: int) -> None:
        """As `_hand_on`, for messages that are all sound, of a topic's own queue."""
        self._broken_replies = 0
        if tags := self.subscription.tags:
            batch = batch[[tag in tags for tag in batch.tags]]
        if (early := batch.queue_offsets < self.process_queue.next_offset).any():
            batch = batch[~early]
        self.process_queue.add(batch)
        self.process_queue.next_offset = next_offset
        if batch:
            self.counts.pull(self._pull_ms, len(batch))
            self._deliver(self, batch)

    def _follow(self, pulled: client_api.PullResult) -> None:
        """Go to the offset of a reply without messages; or be dropped, as what was read from there on is void."""
        offset, before = pulled.header.next_offset, self.process_queue.next_offset
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            text = "%s: the broker moves group %s from offset %d to %d (%s)"
            log.warning(text, self.queue, self.group, before, offset, pulled.remark)
        forget = pulled.remark == RESET_REMARK
        if forget or offset < before:
            self._moved(self, offset, forget)
            self.dropped = True
        else:
            # What was read before stays in work: the lowest unfinished one is committed as ever.
            self.process_queue.next_offset = offset

    async def _rest(self, error: BaseException) -> None:
        pause_s = TROUBLE_PAUSE_S
        if isinstance(error, RocketSparkError) and is_refusal(error):
            self.refusal = error
            if self._refused is not None:
                self._refused(error)
        # A slave that was suggested may be down, or know less than its master does.
        self._broker_id = 0
        if isinstance(error, ServerError) and error.code in GROUP_UNKNOWN:
            log.info("%s: the broker does not know group %s yet: %s", self.queue, self.group, error)
            await self._introduce(error.address)
        elif isinstance(error, ServerError) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            log.info("%s: %s", self.queue, error)
            before = self._instance.routes.leader(self.queue)
            await self._look_again()
            if self._instance.routes.leader(self.queue) != before:
                return
        elif isinstance(error, ServerError) and not isinstance(error, RouteNotFound):
            log.warning("%s: pull refused: %s", self.queue, error)
            pause_s = REFUSED_PAUSE_S
            if error.code in NO_MASTER_CODES:
                await self._look_again()
        elif isinstance(error, FilterIllegal):
            log.error("%s is not read in group %s: %s", self.queue, self.group, error)
            pause_s = REFUSED_PAUSE_S
        elif isinstance(error, RecordError):
            log.error("%s: the broker's reply cannot be decoded, it is pulled again: %s", self.queue, error)
            self._broken_replies += 1
            pause_s = REFUSED_PAUSE_S
        elif isinstance(error, RocketSparkError):
            trouble_log.warning("%s: pull failed: %s", self.queue, error)
            if isinstance(error, TransportError):
                await self._look_again()
        else:
            log.error("%s: pull failed", self.queue, exc_info=error)
        await asyncio.sleep(pause_s)

    async def _introduce(self, address: str) -> None:
        try:
            await self._instance.heartbeat(address)
        except RocketSparkError as e:
            trouble_log.warning("heartbeat to %s failed: %s", address, e)

    async def _look_again(self) -> None:
        # The broker may have come back at another address.
        try:
            await self._instance.routes.look_again(self.queue.topic)
        except RocketSparkError as e:
            trouble_log.warning("no new route of topic %s: %s", self.queue.topic, e)


def make_logical(messages: list[ReceivedMessage], queue: MessageQueue, delta: int | None) -> None:
    """Place messages in the logical queue that they were pulled from (rule: PullAPIWrapper, 5.x)."""
    for message in messages:
        message.queue_id = queue.queue_id
        message.queue_offset += delta or 0


def make_light(messages: list[ReceivedMessage], queue: MessageQueue) -> None:
    """Place messages in the light queue that they were pulled from; their topic stays that to which they were sent."""
    for message in messages:
        message.queue_id = queue.queue_id
        offset = light_queues.offset_in(queue.topic, message.properties)
        if offset is not None:
            message.queue_offset = offset
