"""The pull consumer: the application asks for messages when it wants them. Rule: what `poll` returned is what counts
as read; what was only fetched ahead does not.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from rocketspark.client import requests, validate
from rocketspark.client.answers import PullAnswers
from rocketspark.client.base import AsyncClient
from rocketspark.client.fetcher import Fetcher, Fetching
from rocketspark.client.membership import ConsumeFrom, Membership
from rocketspark.client.options import ClientOptions
from rocketspark.errors import StateError
from rocketspark.model import MessageQueue, ReceivedMessage


class AsyncPullConsumer(AsyncClient):
    """Reads messages on demand, on the running asyncio loop.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group; its committed offsets are where reading begins.
        consume_from: where a queue begins that the group never read: "last" (its end), "first", or a time in ms.
        auto_commit: commit every `commit_interval_ms` what earlier polls returned, and at `close` all that was
            returned. A context that is left by an exception does not commit what the last poll returned.
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
        pull_count_max: int = 256,
        pull_bytes_max: int = 256 << 10,
        backlog_count_max: int = 1000,
        backlog_bytes_max: int = 100 << 20,
        rebalance_interval_ms: float = 20_000,
        commit_interval_ms: float = 5000,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.group = validate.check_group(group)
        self._auto_commit = auto_commit
        super().__init__(namesrv, options)
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
        )
        # By the names of RocketMQ's properties: what its tools show.
        self._settings: dict[str, object] = {
            "consumeFromWhere": consume_from,
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

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Raises StateError, NotSent if no NameServer answers."""
        self._begin()
        await self._instance.start(consumer=self.group)
        try:
            await self._instance.check_namesrv()
        except BaseException:
            self._state = "closed"
            await self._instance.close(consumer=self.group)
            raise
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
        if self._joining is not None:
            self._joining.cancel()
        await self._membership.stop_reading()
        if self._auto_commit:
            if whole:
                self._settle()
            await self._membership.commit()
        await self._instance.close(consumer=self.group)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(whole=kind is None)

    # -- which queues --------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Want a topic's messages: all, or those of "TagA || TagB"; its queues are shared within the group.

        Raises StateError after `assign`, MessageIllegal for a topic that cannot be.
        """
        if self._by_hand:
            raise StateError("this consumer has queues assigned by hand; subscribe with another one")
        self._membership.subscribe(topic, expression)
        if self._state == "started" and not self._joined:
            self._joined = True
            self._joining = asyncio.ensure_future(self._membership.join())

    async def assign(self, queues: Sequence[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues, from the committed offsets on, whoever else reads them.

        Raises StateError after `subscribe`, ServerError or TransportError if an offset cannot be had.
        """
        self._check_started()
        if self._joined:
            raise StateError("this consumer has subscribed; assign queues with another one")
        self._by_hand = True
        topics = {q.topic for q in queues} | {q.topic for q in self._membership.fetchers}
        for topic in topics:
            self._membership.set_filter(topic, expression)
            share = [q for q in queues if q.topic == topic]
            for queue in share:
                if queue not in self._membership.fetchers:
                    await self._membership.take(queue)
            await self._membership.own(topic, share)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._membership.fetchers)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read, ordered by broker and id. Raises RouteNotFound."""
        self._check_started()
        validate.check_topic(topic)
        return list((await self._instance.routes.get(topic)).read_queues())

    # -- reading -------------------------------------------------------------------------------------------------

    def _deliver(self, fetcher: Fetcher, messages: list[ReceivedMessage]) -> None:
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
        return found

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
            queue = MessageQueue(*message.queue)
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
        fetcher = self._membership.fetchers.get(queue)
        if fetcher is None:
            raise StateError(f"{queue} is not read by this consumer: see assignment()")
        return fetcher

    async def position(self, queue: MessageQueue) -> int:
        """The offset of the next message of a queue that `poll` would return. Raises StateError if it is not read."""
        return self._fetcher(queue).backlog.lowest

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue on from `offset`. Raises StateError if it is not read by this consumer."""
        self._fetcher(queue)
        self._membership.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        await self.seek(queue, await self.begin_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        await self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Read a queue from the first message stored at or after `time_ms` on."""
        await self.seek(queue, await self.offsets_for_time(queue, time_ms))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what `poll` returned so far; or the offsets given, each the next one to read.

        Raises ServerError or TransportError if given offsets are not taken.
        """
        self._check_started()
        if offsets is None:
            self._settle()
            await self._membership.commit(strict=True)
            return
        for queue, offset in offsets.items():
            peer = await self._instance.peer_of(queue)
            await requests.update_consumer_offset(peer, queue, self.group, offset)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue, None if there is none."""
        self._check_started()
        peer = await self._instance.peer_of(queue)
        return await requests.query_consumer_offset(peer, queue, self.group, zero_if_not_found=False)

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        self._check_started()
        return await requests.min_offset(await self._instance.peer_of(queue), queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        self._check_started()
        return await requests.max_offset(await self._instance.peer_of(queue), queue)

    async def offsets_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at or after `time_ms`; the end if there is none."""
        self._check_started()
        return await requests.search_offset(await self._instance.peer_of(queue), queue, time_ms)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more of these queues until `resume`; what was fetched already is still returned."""
        for queue in queues:
            self._fetcher(queue).backlog.paused = True

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from these queues again."""
        for queue in queues:
            self._fetcher(queue).backlog.paused = False


def _done(fetcher: Fetcher) -> int:
    return fetcher.done
