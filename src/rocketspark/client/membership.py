"""A consumer's membership of its group: which queues are its own, where they begin, how far they were read.

Rule: a queue that is given up has its offset committed first; a queue that is taken begins at the committed offset.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from rocketspark.client import requests, validate
from rocketspark.client.assign import Strategy, average
from rocketspark.client.fetcher import Fetcher, Fetching
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.instance import Instance
from rocketspark.client.locks import QueueLocks
from rocketspark.client.offset_stores import BrokerOffsets, OffsetStore
from rocketspark.client.rates import SAMPLE_S, Rates
from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription, TopicRoute, subscribe
from rocketspark.model.subscription import TAG
from rocketspark.protocol import bodies

log = logging.getLogger("rocketspark.client")

# Gets queues; a plain function, called in a thread, or a coroutine function.
OnQueues = Callable[[list[MessageQueue]], object]
ConsumeFrom = Literal["last", "first"] | int
TROUBLE_S = 1.0
# How long a queue that another member may have is left to it when members join.
HANDOVER_S = 0.2
JOIN_S = 3.0
# A topic that does not exist yet is looked for this often.
MISSING_S = 3.0


class Membership:
    """The queues of one consumer.

    `deliver(fetcher, messages)` gets what is read; `to_commit` says how far a queue was read for good.
    `consume_from`: where a queue without a committed offset begins: "last" (its end), "first", or the first message
    stored at or after a time in ms; retry topics begin at 0. Without `join` the queues are those given to `own`, and
    the brokers do not know of the member. `broadcast`: every queue is read, whoever else reads it. With `locks` a queue
    is read only while it is locked, and given up only once `settled` returns. `on_taken` and `on_leaving` are told of
    changes that rebalancing makes: afterwards, and before the offsets are committed.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        *,
        consume_from: ConsumeFrom,
        consume_type: str,
        how: Fetching,
        deliver: Callable[[Fetcher, list[ReceivedMessage]], None],
        to_commit: Callable[[Fetcher], int] = lambda fetcher: fetcher.backlog.lowest,
        rebalance_interval_ms: float,
        commit_interval_ms: float | None,
        with_retries: bool,
        strategy: Strategy = average,
        broadcast: bool = False,
        offsets: OffsetStore | None = None,
        locks: QueueLocks | None = None,
        settled: Callable[[Fetcher], Awaitable[None]] | None = None,
        on_taken: OnQueues | None = None,
        on_leaving: OnQueues | None = None,
    ) -> None:
        if consume_from not in ("last", "first") and not isinstance(consume_from, int):
            raise ConfigError(f"consume_from {consume_from!r}: 'last', 'first' or a time in ms since 1970 is needed")
        self.instance = instance
        self.group = group
        self.fetchers: dict[MessageQueue, Fetcher] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self._consume_from = consume_from
        self._consume_type = consume_type
        self._how = how
        self._deliver = deliver
        self.to_commit = to_commit
        self.rates = Rates()
        self._rebalance_interval_s = rebalance_interval_ms / 1000
        self._commit_interval_s = commit_interval_ms / 1000 if commit_interval_ms else None
        self._strategy = strategy
        self._broadcast = broadcast
        self._offsets = offsets or BrokerOffsets(instance, group)
        self.locks = locks
        self._settled = settled
        self._on_taken = on_taken
        self._on_leaving = on_leaving
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._paused = False
        self._notice = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._known_members: set[str] = set()
        self.balanced = asyncio.Event()
        self.joined = False
        if with_retries:
            topic = validate.RETRY_PREFIX + self.group
            self.subscriptions[topic] = subscribe(topic, version=int(time.time() * 1000))

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", kind: str = TAG) -> None:
        """Want a topic's messages by tag or SQL92 expression; from the next rebalance on."""
        self.set_filter(topic, expression, kind)
        self._notice.set()

    def set_filter(self, topic: str, expression: str, kind: str = TAG) -> None:
        """The filter of a topic, also for its queues that are being read."""
        validate.check_topic(topic)
        before = self.subscriptions.get(topic)
        wanted = subscribe(topic, expression, version=int(time.time() * 1000), kind=kind)
        if before is not None and (before.expression, before.expression_type) == (wanted.expression, kind):
            return
        self.subscriptions[topic] = wanted
        for queue in [q for q in self.fetchers if q.topic == topic]:
            # Read on with the new filter.
            done = self.fetchers[queue].done
            self.seek(queue, self.fetchers[queue].backlog.lowest)
            self.fetchers[queue].done = done

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic; its queues are given up at the next rebalance."""
        self.subscriptions.pop(topic, None)
        self._notice.set()

    def pause_all(self, paused: bool) -> None:
        """Fetch nothing, or go on; queues that are taken later too."""
        self._paused = paused
        for fetcher in self.fetchers.values():
            fetcher.backlog.paused = paused

    async def join(self) -> None:
        """Become a member: tell the brokers, take a share of the queues, and keep both up to date.

        Returns after the first try to take a share, or after 3 s.
        """
        self.joined = True
        self.instance.consumers[self.group] = self._heartbeat
        self.instance.asked.watchers[self.group] = self._notice.set
        if self.locks is not None:
            self._tasks.append(asyncio.ensure_future(self.locks.keep(lambda: self.fetchers)))
        self._tasks.append(asyncio.ensure_future(self._balance()))
        try:
            async with asyncio.timeout(JOIN_S):
                await self.balanced.wait()
        except TimeoutError:
            log.warning("group %s: no broker answered within %.0f s; it is tried on", self.group, JOIN_S)

    def keep_committing(self) -> None:
        """Commit what was read every so often; and note how much that was."""
        self._tasks.append(asyncio.ensure_future(self._sample()))
        if self._commit_interval_s:
            self._tasks.append(asyncio.ensure_future(self._commit_on(self._commit_interval_s)))

    async def stop_reading(self) -> None:
        """Fetch no more; what was fetched can still be finished and committed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.instance.asked.watchers.pop(self.group, None)
        for fetcher in self.fetchers.values():
            fetcher.stop()

    async def leave(self) -> None:
        """After the last call of the listener: commit everything, give up the locks."""
        if self._leaving:
            await asyncio.wait(list(self._leaving.values()), timeout=1)
        await self.commit()
        if self.locks is not None:
            await self.locks.release(list(self.fetchers))

    async def load_offsets(self) -> None:
        """Before the first queue is taken. Raises ConfigError if they cannot be read."""
        await self._offsets.load()

    def _heartbeat(self) -> bodies.ConsumerData:
        where = {"last": "CONSUME_FROM_LAST_OFFSET", "first": "CONSUME_FROM_FIRST_OFFSET"}
        return bodies.ConsumerData(
            group_name=self.group,
            consume_type=self._consume_type,
            message_model="BROADCASTING" if self._broadcast else "CLUSTERING",
            consume_from_where=where.get(str(self._consume_from), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=[bodies.SubscriptionBody.of(s) for _, s in sorted(self.subscriptions.items())],
        )

    # -- shares --------------------------------------------------------------------------------------------------

    async def _balance(self) -> None:
        told: dict[str, Subscription] = {}
        again_s = TROUBLE_S
        while True:
            self._notice.clear()
            try:
                if told != self.subscriptions:
                    told = dict(self.subscriptions)
                    await self._learn_routes()
                    await self.instance.heartbeat_all()
                whole = await self.rebalance()
            except Exception:
                log.exception("rebalance of group %s failed; it is tried again", self.group)
                whole = False
            self.balanced.set()
            wait_s = self._rebalance_interval_s if whole else again_s
            again_s = TROUBLE_S if whole else min(2 * again_s, MISSING_S, self._rebalance_interval_s)
            try:
                # Not wait_for: before Python 3.12 it may swallow a cancellation.
                async with asyncio.timeout(wait_s):
                    await self._notice.wait()
            except TimeoutError:
                pass

    async def _learn_routes(self) -> None:
        for topic in self.subscriptions:
            try:
                await self.instance.routes.get(topic)
            except RocketSparkError as e:
                if not topic.startswith(validate.RETRY_PREFIX):
                    log.warning("group %s: %s", self.group, e)

    async def rebalance(self) -> bool:
        """Take and give up queues so that they are this member's share. False if a topic has to be looked at again."""
        whole = True
        shares: dict[str, list[MessageQueue]] = {}
        newcomers = False
        for topic in list(self.subscriptions):
            try:
                known = self.instance.routes.known(topic) is not None
                route = await self.instance.routes.get(topic)
                if not known:
                    # Its brokers may be new to us.
                    await self.instance.heartbeat_all()
                queues = sorted(route.read_queues())
                if self._broadcast:
                    shares[topic] = queues
                    continue
                members = await self._members(route)
                if members is None:
                    whole = False
                    continue
                newcomers = newcomers or (len(members) > 1 and not self._known_members.issuperset(members))
                self._known_members = set(members)
                shares[topic] = self._strategy(self.instance.client_id, queues, members)
                await self._leave_all_but(topic, shares[topic])
            except RouteNotFound:
                whole = False
            except RocketSparkError as e:
                log.info("rebalance of topic %s in group %s: %s", topic, self.group, e)
                whole = False
        for topic in {q.topic for q in self.fetchers} - set(self.subscriptions):
            await self._leave_all_but(topic, [])
        if newcomers and self.locks is None and any(q not in self.fetchers for share in shares.values() for q in share):
            # Whoever has these queues now was told of the newcomers as well, and commits what it finished.
            await asyncio.sleep(HANDOVER_S)
        for topic, share in shares.items():
            whole = await self.own(topic, share) and whole
        return whole

    async def _members(self, route: TopicRoute) -> list[str] | None:
        """The group's members, sorted; None while the broker asked does not list this client."""
        brokers = [b for b in route.brokers if b.addresses]
        random.shuffle(brokers)
        for broker in brokers:
            address = broker.addresses[min(broker.addresses)]
            try:
                peer = await self.instance.broker(address)
                members = await requests.consumer_list(peer, self.group)
                if self.instance.client_id not in members:
                    await self.instance.heartbeat(address)
                    members = await requests.consumer_list(peer, self.group)
            except RocketSparkError as e:
                log.info("members of group %s: %s", self.group, e)
                continue
            if self.instance.client_id in members:
                return sorted(members)
        return None

    async def own(self, topic: str, share: list[MessageQueue]) -> bool:
        """Read exactly these queues of a topic. False if one of them could not be begun yet."""
        await self._leave_all_but(topic, share)
        wanted = [q for q in share if q not in self.fetchers]
        whole = not any(q in self._leaving for q in share)
        if self.locks is not None and wanted:
            locked = await self.locks.acquire(wanted)
            whole = whole and len(locked) == len(wanted)
            wanted = [q for q in wanted if q in locked]
        taken = []
        for queue in wanted:
            try:
                await self.take(queue)
                taken.append(queue)
            except RocketSparkError as e:
                log.info("group %s cannot begin %s yet: %s", self.group, queue, e)
                whole = False
        self._share_bounds(topic)
        if taken and self._on_taken is not None and self.joined:
            await call_with_queues(self._on_taken, taken)
        return whole

    async def _leave_all_but(self, topic: str, share: list[MessageQueue]) -> None:
        leaving = [q for q in self.fetchers if q.topic == topic and q not in share]
        for queue in leaving:
            self.fetchers[queue].drop()
        if leaving and self._on_leaving is not None and self.joined:
            await call_with_queues(self._on_leaving, leaving)
        for queue in leaving:
            fetcher = self.fetchers[queue]
            if self._settled is None:
                await self._give_up(fetcher)
            elif queue not in self._leaving:
                self._leaving[queue] = asyncio.ensure_future(self._give_up(fetcher))

    async def _give_up(self, fetcher: Fetcher) -> None:
        queue = fetcher.queue
        try:
            if self._settled is not None:
                await self._settled(fetcher)
            if self._commit_interval_s:
                await self._commit([fetcher])
            if self.locks is not None:
                await self.locks.release([queue])
        finally:
            self.fetchers.pop(queue, None)
            if self._leaving.pop(queue, None) is not None:
                self._notice.set()
        log.info("group %s gave up %s", self.group, queue)

    def _share_bounds(self, topic: str) -> None:
        """What a topic may hold here is shared evenly by its queues."""
        how = self._how
        if not how.topic_count_max and not how.topic_bytes_max:
            return
        mine = [f for q, f in self.fetchers.items() if q.topic == topic]
        for fetcher in mine:
            count_max = how.topic_count_max // len(mine) if how.topic_count_max else how.backlog_count_max
            bytes_max = how.topic_bytes_max // len(mine) if how.topic_bytes_max else how.backlog_bytes_max
            fetcher.backlog.set_bounds(max(count_max, 1), max(bytes_max, 1))

    async def take(self, queue: MessageQueue) -> None:
        """Begin to read a queue. Raises RocketSparkError if its start cannot be had."""
        offset = await self.start_offset(queue)
        self._begin(queue, offset)
        log.info("group %s reads %s from offset %d", self.group, queue, offset)

    def _begin(self, queue: MessageQueue, offset: int) -> Fetcher:
        subscription = self.subscriptions.get(queue.topic) or subscribe(queue.topic)
        counts = self.rates.of(queue.topic)
        fetcher = Fetcher(
            self.instance, self.group, queue, subscription, offset, self._how, self._deliver, self._moved, counts
        )
        self.fetchers[queue] = fetcher
        fetcher.backlog.paused = self._paused
        fetcher.start()
        return fetcher

    def _end(self, queue: MessageQueue) -> Fetcher:
        fetcher = self.fetchers.pop(queue)
        fetcher.drop()
        return fetcher

    def _moved(self, fetcher: Fetcher, offset: int) -> None:
        if self.fetchers.get(fetcher.queue) is fetcher:
            self.seek(fetcher.queue, offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue that is owned on from another offset; what was fetched of it is forgotten."""
        paused = self._end(queue).backlog.paused
        self._begin(queue, offset).backlog.paused = paused

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read those of these queues that are owned on from other offsets, and commit these.

        What was fetched is forgotten; in order, no call runs any more when the queue is begun anew.
        """
        mine = {q: self.fetchers[q] for q in offsets if q in self.fetchers and q not in self._leaving}
        for fetcher in mine.values():
            fetcher.drop()
        for queue, fetcher in mine.items():
            if self._settled is not None:
                await self._settled(fetcher)
            failed = await self._offsets.commit({queue: offsets[queue]})
            if queue in failed:
                # It is committed with what is read next.
                log.warning("group %s: offset %d of %s is not committed", self.group, offsets[queue], queue)
            if self.fetchers.get(queue) is fetcher:
                self.seek(queue, offsets[queue])
        log.info("group %s was reset by a broker: %s", self.group, dict(offsets))

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.rates.sample()

    # -- offsets -------------------------------------------------------------------------------------------------

    async def start_offset(self, queue: MessageQueue) -> int:
        """The committed offset, else where `consume_from` says."""
        peer = await self.instance.peer_of(queue)
        # Asked first: what comes between the two questions is not missed.
        end = await requests.max_offset(peer, queue) if self._consume_from == "last" else 0
        committed = await self._offsets.committed(queue)
        if committed is not None and committed >= 0:
            return committed
        if queue.topic.startswith(validate.RETRY_PREFIX):
            return 0
        if self._consume_from == "last":
            return end
        if self._consume_from == "first":
            return await requests.min_offset(peer, queue)
        return await requests.search_offset(peer, queue, int(self._consume_from))

    async def _commit_on(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.commit(oneway=True)

    async def commit(self, *, oneway: bool = False, strict: bool = False) -> None:
        """Commit every queue that was read on since the last commit, or whose broker may not know it any more.

        `oneway`: without waiting for replies; `strict`: raise what fails, else it is tried again with the next commit.
        """
        await self._commit(list(self.fetchers.values()), oneway=oneway, strict=strict)

    async def _commit(self, fetchers: list[Fetcher], *, oneway: bool = False, strict: bool = False) -> None:
        moved = {}
        for fetcher in fetchers:
            offset = self.to_commit(fetcher)
            if offset != fetcher.committed or self._offsets.place(fetcher.queue) is not fetcher.committed_at:
                moved[fetcher] = offset
        failed = await self._offsets.commit({f.queue: offset for f, offset in moved.items()}, oneway=oneway)
        for fetcher, offset in moved.items():
            error = failed.get(fetcher.queue)
            if error is None:
                fetcher.committed = offset
                fetcher.committed_at = self._offsets.place(fetcher.queue)
            elif strict or not isinstance(error, (RocketSparkError, OSError)):
                raise error
            else:
                log.warning("offset %d of %s is not committed: %s", offset, fetcher.queue, error)


async def call_with_queues(function: OnQueues, queues: list[MessageQueue]) -> None:
    """Call what an application gave; what it raises is logged."""
    try:
        returned = function(queues) if is_coroutine_function(function) else await asyncio.to_thread(function, queues)
        if inspect.isawaitable(returned):
            await returned
    except Exception:
        log.exception("a function that is told of queues failed; it changes nothing")
