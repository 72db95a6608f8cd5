"""Reads one queue ahead of its consumer. Rule: whatever a broker answers, it goes on, from where the answer says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from rocketspark.client import requests
from rocketspark.client.backlog import Backlog
from rocketspark.client.instance import Instance
from rocketspark.client.rates import Counts
from rocketspark.client.validate import RETRY_PREFIX
from rocketspark.errors import NotSent, RecordError, RocketSparkError, RouteNotFound, ServerError
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription
from rocketspark.protocol import properties, record, sysflags
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader

log = logging.getLogger("rocketspark.client")

# A broker holds a pull for `suspend_ms`; no reply for this much longer means that none will come.
REPLY_SPARE_MS = 15_000
TROUBLE_PAUSE_S = 1.0
REFUSED_PAUSE_S = 3.0
UNHELD_PAUSE_S = 0.05
GROUP_UNKNOWN = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
)


class Fetching(NamedTuple):
    """How to fetch.

    `count_max`, `bytes_max`: of one pull (a broker has limits of its own); `suspend_ms`: how long a broker holds a
    pull that finds nothing; `backlog_count_max`, `backlog_bytes_max`: per queue; `topic_count_max`, `topic_bytes_max`:
    of a topic's queues here together, 0 for no bound; `span_max`: see Backlog; `send_subscription`: put the filter
    into each pull instead of relying on the heartbeat; `send_commits`: put the offset to commit into each pull.
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


class Fetcher:
    """One queue being read.

    `deliver(fetcher, messages)` gets what was read, in order; `moved(fetcher, offset)` is called instead if the broker
    wants it read from elsewhere: the fetcher has ended then, and a new one is to be made. `counts`: what it adds to;
    `began_ms`, `pulled_ms`, `consumed_ms`: when it began, last asked, last was done with messages, in ms since 1970.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        queue: MessageQueue,
        subscription: Subscription,
        offset: int,
        how: Fetching,
        deliver: Callable[[Fetcher, list[ReceivedMessage]], None],
        moved: Callable[[Fetcher, int], None],
        counts: Counts | None = None,
    ) -> None:
        self.queue = queue
        self.group = group
        self.subscription = subscription
        self.backlog = Backlog(
            offset, count_max=how.backlog_count_max, bytes_max=how.backlog_bytes_max, span_max=how.span_max
        )
        self.dropped = False
        self.committed = -1
        self.committed_at: object = None
        self.done = offset
        self._instance = instance
        self._how = how
        self._deliver = deliver
        self._moved = moved
        self.counts = counts or Counts()
        self.pulled_ms = 0
        self.began_ms = self.consumed_ms = int(time.time() * 1000)
        self._broker_id = 0
        self._pull_ms = 0.0
        self._is_retry = queue.topic.startswith(RETRY_PREFIX)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Fetch no more; what was fetched still counts."""
        if self._task is not None:
            self._task.cancel()

    def drop(self) -> None:
        """End for good: what is still in the backlog counts as not read."""
        self.dropped = True
        self.stop()

    async def _run(self) -> None:
        asking: asyncio.Task[requests.Pulled] | None = None
        backlog, how = self.backlog, self._how
        try:
            while True:
                try:
                    if asking is None:
                        await backlog.room()
                        asking = asyncio.ensure_future(self._pull(backlog.next_offset))
                    asked_s = time.monotonic()
                    pulled = await asking
                    asking = None
                    if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
                        self._move(pulled)
                        return
                    self._broker_id = pulled.header.suggested_broker_id
                    if pulled.code != ResponseCode.SUCCESS:
                        stays = backlog.next_offset == pulled.header.next_offset
                        backlog.next_offset = pulled.header.next_offset
                        if stays and time.monotonic() - asked_s < UNHELD_PAUSE_S:
                            # A broker that does not hold pulls must not be asked in a tight loop.
                            await asyncio.sleep(UNHELD_PAUSE_S)
                        continue
                    if len(backlog) + how.count_max < how.backlog_count_max and backlog.has_room:
                        # The broker looks for the next ones while these are decoded.
                        asking = asyncio.ensure_future(self._pull(pulled.header.next_offset))
                        await asyncio.sleep(0)
                    self._take(pulled)
                except Exception as e:
                    if asking is not None:
                        asking.cancel()
                        asking = None
                    await self._rest(e)
        finally:
            if asking is not None:
                asking.cancel()

    async def _pull(self, offset: int) -> requests.Pulled:
        how, backlog = self._how, self.backlog
        sys_flag = sysflags.PULL_SUSPEND
        commit = backlog.lowest if how.send_commits else 0
        if commit > 0:
            sys_flag |= sysflags.PULL_COMMIT_OFFSET
        if how.send_subscription:
            sys_flag |= sysflags.PULL_SUBSCRIPTION
        address = await self._instance.routes.find_readable(self.queue, self._broker_id)
        if address != self._instance.routes.master(self.queue.broker_name):
            # Offsets are the master's (rule: PullAPIWrapper, 5.x).
            sys_flag &= ~sysflags.PULL_COMMIT_OFFSET
        header = PullHeader(
            group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            count_max=how.count_max,
            sys_flag=sys_flag,
            commit_offset=commit,
            suspend_ms=how.suspend_ms,
            subscription=self.subscription.expression if how.send_subscription else None,
            subscription_version=self.subscription.version,
            expression_type=self.subscription.expression_type,
            bytes_max=how.bytes_max,
            broker_name=self.queue.broker_name,
        )
        peer = self._instance.open_broker(address) or await self._instance.broker(address)
        asked_s = time.monotonic()
        self.pulled_ms = int(time.time() * 1000)
        pulled = await requests.pull(peer, header, timeout_ms=how.suspend_ms + REPLY_SPARE_MS)
        self._pull_ms = (time.monotonic() - asked_s) * 1000
        return pulled

    def _take(self, pulled: requests.Pulled) -> None:
        messages = record.decode_messages(pulled.records, self.queue.broker_name)
        tags = self.subscription.tags
        if tags and not self._is_retry:
            # The broker compares hashes, which may collide.
            messages = [m for m in messages if m.tag in tags]
        # A broker may answer with a batch that began before the offset asked for.
        if messages and messages[0].queue_offset < self.backlog.next_offset:
            messages = [m for m in messages if m.queue_offset >= self.backlog.next_offset]
        if self._is_retry:
            for message in messages:
                message.topic = message.properties.get(properties.RETRY_TOPIC, message.topic)
        self.backlog.add(messages)
        # Only now: what is below it counts as read.
        self.backlog.next_offset = pulled.header.next_offset
        if messages:
            self.counts.pull(self._pull_ms, len(messages))
            self._deliver(self, messages)

    def _move(self, pulled: requests.Pulled) -> None:
        offset = pulled.header.next_offset
        log.warning(
            "%s: the broker moves group %s from offset %d to %d (%s)",
            self.queue,
            self.group,
            self.backlog.next_offset,
            offset,
            pulled.remark,
        )
        self.dropped = True
        self._moved(self, offset)

    async def _rest(self, error: Exception) -> None:
        pause_s = TROUBLE_PAUSE_S
        # A slave that was suggested may be down, or know less than its master does.
        self._broker_id = 0
        if isinstance(error, ServerError) and error.code in GROUP_UNKNOWN:
            log.info("%s: the broker does not know group %s yet: %s", self.queue, self.group, error)
            await self._introduce(error.address)
        elif isinstance(error, ServerError) and not isinstance(error, RouteNotFound):
            log.warning("%s: pull refused: %s", self.queue, error)
            pause_s = REFUSED_PAUSE_S
        elif isinstance(error, RecordError):
            log.error("%s: what the broker sent cannot be decoded, it is asked for again: %s", self.queue, error)
            pause_s = REFUSED_PAUSE_S
        elif isinstance(error, RocketSparkError):
            log.info("%s: pull failed: %s", self.queue, error)
            if isinstance(error, NotSent):
                await self._look_again()
        else:
            log.error("%s: pull failed", self.queue, exc_info=error)
        await asyncio.sleep(pause_s)

    async def _introduce(self, address: str) -> None:
        try:
            await self._instance.heartbeat(address)
        except RocketSparkError as e:
            log.info("heartbeat to %s failed: %s", address, e)

    async def _look_again(self) -> None:
        # The broker may have come back at another address.
        try:
            await self._instance.routes.refresh(self.queue.topic)
        except RocketSparkError as e:
            log.info("no new route of topic %s: %s", self.queue.topic, e)
