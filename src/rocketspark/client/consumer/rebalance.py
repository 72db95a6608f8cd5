"""A consumer's rebalance in its group: which queues this member reads, where they begin, how far they were read.

Rule: a queue that is given up has its offset committed first; a queue that is taken begins at the committed offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from rocketspark.client import validators
from rocketspark.client.callbacks import Tasks, end_all, ends_loop, every, trouble_log
from rocketspark.client.connection.instance import Instance
from rocketspark.client.consume_stats import SAMPLE_S, ConsumeStats
from rocketspark.client.consumer.allocate_queues import strategy_of
from rocketspark.client.consumer.consumer_options import ConsumerSettings
from rocketspark.client.consumer.offsets import BrokerOffsets, OffsetCommits, OffsetStore, Presence
from rocketspark.client.consumer.puller import Puller, PullerCalls, PullSettings
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.client.consumer.refusals import OtherSubscriptions, Refusals
from rocketspark.client.hooks import OnQueues, call_with_queues
from rocketspark.client.message_batch import Messages
from rocketspark.errors import RocketSparkError, RouteNotFound, StateError
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription, TopicRoute, subscribe
from rocketspark.model.subscription import TAG, newer_version
from rocketspark.protocol.json import bodies

log = logging.getLogger("rocketspark.client")

TROUBLE_S = 1.0
# Time for which a queue is left to the member that may still have it when members join.
HANDOVER_S = 0.2
JOIN_S = 3.0
# Time that on_assigned and on_revoked may take to end when the consumer closes.
END_S = 5.0
# A topic that does not exist yet is looked for this often.
MISSING_S = 3.0


class Assignment(Protocol):
    """A broker's assignment of queues to a member. It reads the queues that are not pulled (but popped) by itself."""

    async def share(self, topic: str, route: TopicRoute) -> list[MessageQueue] | None:
        """Return the queues of a topic that the member is to pull; None if it keeps what it has."""

    def begin(self, topic: str) -> None:
        """Begin to pop the queues of a topic that are not to be pulled, once their pullers have been given up."""


def _lowest(puller: Puller) -> int:
    return puller.process_queue.lowest


class RebalanceCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebalance calls of its consumer.

    `deliver(puller, messages)` gets what is read, `set_aside` those messages whose body cannot be had (without it they
    are delivered too). `to_commit` returns how far a queue was read for good. `settled`, if given, returns once no call
    of the listener runs for a queue that is given up. `on_taken` and `on_leaving` are told of the changes that
    rebalancing makes: the first afterwards, the second before the offsets are committed. `continued` is told of a
    puller that ended, because its filter is new or its broker lost its end, and of the one that goes on. `refused` gets
    the errors that no retry mends.
    """

    deliver: Callable[[Puller, Messages], None]
    to_commit: Callable[[Puller], int] = _lowest
    settled: Callable[[Puller], Awaitable[None]] | None = None
    set_aside: Callable[[Puller, list[ReceivedMessage]], None] | None = None
    on_taken: OnQueues | None = None
    on_leaving: OnQueues | None = None
    continued: Callable[[Puller, Puller], None] | None = None
    refused: Callable[[RocketSparkError], None] | None = None


class Rebalance:
    """The queues that one consumer reads.

    `settings`: the consumer's; with `broadcast` every queue is read, whoever else reads it. `how`: the settings of its
    pullers. `with_retries`: the group's retry topic is read too, from its beginning. With `locks` a queue is read only
    while it is locked. `assignment`: if it is set, a broker says what this member reads. A consumer that does not call
    `join` reads the queues given to `own`, and the brokers do not know that it is a member.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        settings: ConsumerSettings,
        how: PullSettings,
        calls: RebalanceCalls,
        *,
        consume_type: str,
        with_retries: bool,
        offsets: OffsetStore | None = None,
        locks: QueueLocks | None = None,
    ) -> None:
        validators.check_counts(
            pull_count_max=how.count_max,
            pull_bytes_max=how.bytes_max,
            backlog_count_max=how.backlog_count_max,
            backlog_bytes_max=how.backlog_bytes_max,
        )
        validators.check_intervals(rebalance_interval_ms=settings.rebalance_interval_ms)
        self._calls = calls
        # Who lost a lock, or was away, would set back what the next one committed.
        may_commit = locks.holds if locks is not None else self._is_mine
        self._puller_calls = PullerCalls(calls.deliver, self._moved, calls.set_aside, calls.refused, may_commit)
        # Whether brokers say what the group subscribes to, and what that was when it was not what this member does.
        self._others = OtherSubscriptions(instance, group)
        self.instance = instance
        self.group = group
        self.pullers: dict[MessageQueue, Puller] = {}
        self.refusals = Refusals(self.pullers, calls.refused)
        self.subscriptions: dict[str, Subscription] = {}
        self._settings = settings
        self._consume_type = consume_type
        self._how = how
        self.rates = ConsumeStats()
        self._rebalance_interval_s = settings.rebalance_interval_ms / 1000
        self._commit_interval_s = settings.commit_interval_ms / 1000 if settings.commit_interval_ms else None
        self._strategy = strategy_of(settings.strategy)
        self.offsets = OffsetCommits(
            instance,
            group,
            offsets or BrokerOffsets(instance, group),
            self.pullers,
            consume_from=settings.consume_from,
            to_commit=calls.to_commit,
            absences=self._absences,
        )
        self._presence = Presence(instance)
        self.locks = locks
        if locks is not None:
            locks.regained = self._catch_up
        self.assignment: Assignment | None = None
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._resets = Tasks()
        self._one_reset = asyncio.Lock()
        # Every puller's task until it has ended, also of those that were dropped.
        self._reading = Tasks()
        self._closed = False
        self._paused = False
        self._notice = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._known_members: set[str] = set()
        # Whether the last rebalance found members that the one before did not know.
        self._newcomers = False
        self.balanced = asyncio.Event()
        self.joined = False
        # Of the newest subscription.
        self._version = 0
        if with_retries:
            topic = validators.RETRY_PREFIX + self.group
            self._version = newer_version(self._version)
            self.subscriptions[topic] = subscribe(topic, version=self._version)

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", kind: str = TAG) -> None:
        """Subscribe to a topic's messages by tag or SQL92 expression; from the next rebalance on."""
        self.set_filter(topic, expression, kind)
        self._notice.set()

    def set_filter(self, topic: str, expression: str, kind: str = TAG) -> None:
        """Set the filter of a topic, also for its queues that are being read."""
        validators.check_read(topic)
        before = self.subscriptions.get(topic)
        self._version = newer_version(self._version)
        wanted = subscribe(topic, expression, version=self._version, kind=kind)
        if before is not None and (before.expression, before.expression_type) == (wanted.expression, kind):
            return
        self.subscriptions[topic] = wanted
        for queue, puller in list(self.pullers.items()):
            # Read on with the new filter; pullers that begin later have it anyway.
            if queue.topic == topic and self.reads(queue):
                self.read_again(puller, puller.process_queue.lowest)

    def unsubscribe(self, topic: str) -> None:
        """End a topic's subscription; its queues are given up at the next rebalance."""
        self.subscriptions.pop(topic, None)
        self._notice.set()

    def pause_all(self, paused: bool) -> None:
        """Stop or resume pulling, also for queues that are taken later."""
        self._paused = paused
        for puller in self.pullers.values():
            puller.process_queue.paused = paused

    def use(self, how: PullSettings) -> None:
        """Have all pullers, also those that begin later, pull by other settings."""
        self._how = how
        for puller in self.pullers.values():
            puller.use(how)

    async def join(self) -> None:
        """Become a member: tell the brokers, take a share of the queues, and keep both up to date.

        Returns after the first try to take a share, or after 3 s.
        """
        self.joined = True
        # It may have been made long ago.
        self._presence = Presence(self.instance)
        self.instance.consumers[self.group] = self._heartbeat
        self.instance.asked.watchers[self.group] = self._notice.set
        if self.locks is not None:
            self.instance.master_watchers[self.group] = self.locks.master_moved
            self._tasks.append(asyncio.ensure_future(self.locks.keep(lambda: self.pullers)))
            self._tasks.append(asyncio.ensure_future(self.locks.follow(lambda: self.pullers)))
        self._tasks.append(asyncio.ensure_future(self._balance()))
        try:
            async with asyncio.timeout(JOIN_S):
                await self.balanced.wait()
        except TimeoutError:
            theirs = self.pullers and self._calls.on_taken is not None
            why = "on_assigned did not end" if theirs else "no broker answered"
            log.warning("group %s: %s within %.0f s; it goes on", self.group, why, JOIN_S)

    def keep_committing(self) -> None:
        """Commit offsets at every interval, and count the messages consumed meanwhile."""
        self._tasks.append(asyncio.ensure_future(self._sample()))
        if self._commit_interval_s:
            commits = every(self._commit_interval_s, lambda: self.commit(oneway=True), f"offsets of group {self.group}")
            self._tasks.append(asyncio.ensure_future(commits))

    async def stop_reading(self) -> None:
        """Fetch no more; what was fetched can still be finished and committed. Nothing is begun after this."""
        self._closed = True
        if self.joined:
            self.instance.asked.watchers.pop(self.group, None)
            self.instance.master_watchers.pop(self.group, None)
        for puller in self.pullers.values():
            puller.stop()
        if not await end_all([*self._tasks, *self._resets, *self._reading], END_S):
            theirs = self._calls.on_taken is not None or self._calls.on_leaving is not None
            what = "on_assigned or on_revoked" if theirs else "a request to a broker"
            log.warning("group %s: %s still runs", self.group, what)
        # Whoever waits for the first share is told that none comes.
        self.balanced.set()

    async def leave(self) -> None:
        """Commit everything and give up the locks, after the last call of the listener."""
        if self._leaving:
            await asyncio.wait(list(self._leaving.values()), timeout=1)
            await end_all(self._leaving.values(), END_S)
        await self.commit()
        if self.locks is not None:
            # Some may have been locked and not begun.
            await self.locks.release({*self.pullers, *self.locks.wanted})

    def _heartbeat(self) -> bodies.ConsumerData:
        where = {"last": "CONSUME_FROM_LAST_OFFSET", "first": "CONSUME_FROM_FIRST_OFFSET"}
        return bodies.ConsumerData(
            group_name=self.group,
            consume_type=self._consume_type,
            message_model="BROADCASTING" if self._settings.broadcast else "CLUSTERING",
            consume_from_where=where.get(str(self._settings.consume_from), "CONSUME_FROM_TIMESTAMP"),
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
            except BaseException as e:
                if ends_loop(e):
                    raise
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
        for topic in list(self.subscriptions):
            try:
                await self.instance.routes.get(topic)
            except RocketSparkError as e:
                if not topic.startswith(validators.RETRY_PREFIX):
                    log.warning("group %s: %s", self.group, e)

    async def rebalance(self) -> bool:
        """Take and give up queues so that they are this member's share. Returns False if a topic has to be looked at
        again.
        """
        absences = self._absences()
        shares, whole = await self._shares()
        locked = self.locks.wanted if self.locks is not None else set()
        for topic in {q.topic for q in (*self.pullers, *locked)} - set(self.subscriptions):
            await self._leave_all_but(topic, [])
            await self._release_all_but(topic, [])
        taking = any(q not in self.pullers for share in shares.values() for q in share)
        away = [f for q, f in self.pullers.items() if q.topic in shares and f.absences < absences]
        if away or (self._newcomers and self.locks is None and taking):
            # Whoever has these queues now was told of the newcomers as well, and commits what it finished.
            await asyncio.sleep(HANDOVER_S)
        for topic, share in shares.items():
            whole = await self.own(topic, share) and whole
        whole = all(await asyncio.gather(*(self._come_back(puller, absences) for puller in away))) and whole
        if self.assignment is not None or len(self._known_members) > 1:
            await self._others.look(self.subscriptions)
        return whole

    async def _shares(self) -> tuple[dict[str, list[MessageQueue]], bool]:
        """Return this member's queues of each topic, and False if a topic that is not among them has to be looked at
        again.
        """
        whole, self.refusals.own, self._newcomers = True, None, False
        shares: dict[str, list[MessageQueue]] = {}
        for topic in list(self.subscriptions):
            try:
                share = await self._share(topic)
                if share is None:
                    whole = False
                else:
                    shares[topic] = share
            except RouteNotFound:
                # A retry topic of pops is made by the first message that comes again.
                whole = whole and self.assignment is not None and topic.startswith(validators.RETRY_PREFIX)
            except RocketSparkError as e:
                trouble_log.warning("rebalance of topic %s in group %s: %s", topic, self.group, e)
                self.refusals.note(e)
                whole = False
        return shares, whole

    def _absences(self) -> int:
        """Return how often this member was away for so long that others may have read its queues meanwhile."""
        # With locks, these tell. Who is no member has its queues to itself.
        return self._presence.absences() if self.joined and self.locks is None and not self._settings.broadcast else 0

    def _is_mine(self, queue: MessageQueue) -> bool:
        """Tell whether no other member can have read a queue since this member began to read it, or last looked
        how far others are.
        """
        puller = self.pullers.get(queue)
        return puller is not None and puller.absences >= self._absences()

    async def _come_back(self, puller: Puller, absences: int) -> bool:
        """Go on where others have come to, after this member was away. Returns False if that is not known yet."""
        try:
            await self._catch_up(puller.queue)
        except RocketSparkError as e:
            trouble_log.warning("group %s: how far others have read meanwhile is not known: %s", self.group, e)
            return False
        puller.absences = absences
        return True

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        """Return this member's queues of a topic, and give up the others; None while they cannot be told."""
        known = self.instance.routes.known(topic) is not None
        route = await self.instance.routes.get(topic)
        if not known:
            # Its brokers may be new to us.
            await self.instance.heartbeat_all()
        queues = sorted(route.read_queues())
        if self._settings.broadcast:
            return queues
        if self.assignment is not None:
            assigned = await self.assignment.share(topic, route)
            if assigned is not None:
                await self._leave_all_but(topic, assigned)
                self.assignment.begin(topic)
            return assigned
        members = await self.instance.members(self.group, route, self.refusals.note)
        if members is None:
            return None
        self._newcomers = self._newcomers or (len(members) > 1 and not self._known_members.issuperset(members))
        self._known_members = set(members)
        share = self._strategy(self.instance.client_id, queues, members)
        await self._leave_all_but(topic, share)
        return share

    async def own(self, topic: str, share: list[MessageQueue]) -> bool:
        """Read exactly these queues of a topic. Returns False if one of them could not be begun yet."""
        await self._leave_all_but(topic, share)
        await self._release_all_but(topic, share)
        wanted = [q for q in share if q not in self.pullers]
        whole = not any(q in self._leaving for q in share)
        if self.locks is not None and wanted:
            locked = await self.locks.acquire(wanted)
            whole = whole and len(locked) == len(wanted)
            wanted = [q for q in wanted if q in locked]
        taken = []
        for queue in wanted:
            try:
                if await self.take(queue):
                    taken.append(queue)
            except RocketSparkError as e:
                trouble_log.warning("group %s cannot begin %s yet: %s", self.group, queue, e)
                self.refusals.note(e)
                whole = False
        self._share_bounds(topic)
        if taken and self._calls.on_taken is not None and self.joined:
            await call_with_queues(self._calls.on_taken, taken)
        return whole

    async def _leave_all_but(self, topic: str, share: list[MessageQueue]) -> None:
        leaving = [f for q, f in self.pullers.items() if q.topic == topic and q not in share and not f.leaving]
        for puller in leaving:
            puller.leaving = True
            puller.drop()
        try:
            if leaving and self._calls.on_leaving is not None and self.joined:
                await call_with_queues(self._calls.on_leaving, [f.queue for f in leaving])
            for puller in leaving:
                if self._calls.settled is None:
                    await self._give_up(puller)
                else:
                    self._leaving[puller.queue] = asyncio.ensure_future(self._give_up(puller))
        finally:
            # However this ends, none of them stays here for ever; but when all ends, they are committed with the rest.
            for puller in leaving:
                if puller.queue not in self._leaving and not self._closed:
                    self._forget(puller)

    async def _release_all_but(self, topic: str, share: list[MessageQueue]) -> None:
        """Release the locks of all the topic's queues but `share`, so that other members may lock them."""
        if self.locks is not None:
            asked = [q for q in self.locks.wanted if q.topic == topic and q not in share and q not in self.pullers]
            await self.locks.release(asked)

    async def _give_up(self, puller: Puller) -> None:
        queue = puller.queue
        try:
            if self._calls.settled is not None:
                await self._calls.settled(puller)
            if self._commit_interval_s:
                await self.offsets.commit([puller])
            if self.locks is not None:
                await self.locks.release([queue])
            self._forget(puller)
            log.info("group %s gave up %s", self.group, queue)
        finally:
            if self._leaving.pop(queue, None) is not None:
                if not self._closed:
                    self._forget(puller)
                self._notice.set()

    def _forget(self, puller: Puller) -> None:
        if self.pullers.get(puller.queue) is puller:
            del self.pullers[puller.queue]

    def _share_bounds(self, topic: str) -> None:
        """Divide the bounds of a topic evenly among its queues here."""
        how = self._how
        if not how.topic_count_max and not how.topic_bytes_max:
            return
        mine = [f for q, f in self.pullers.items() if q.topic == topic]
        for puller in mine:
            count_max = how.topic_count_max // len(mine) if how.topic_count_max else how.backlog_count_max
            bytes_max = how.topic_bytes_max // len(mine) if how.topic_bytes_max else how.backlog_bytes_max
            puller.process_queue.set_bounds(max(count_max, 1), max(bytes_max, 1))

    async def take(self, queue: MessageQueue) -> bool:
        """Begin to read a queue; False if it is no longer to be read. Raises RocketSparkError if its first offset
        cannot be had.
        """
        absences = self._absences()
        offset = await self.offsets.start_offset(queue)
        # Others went on meanwhile.
        if self._closed or queue in self.pullers or (self.joined and queue.topic not in self.subscriptions):
            return False
        self._begin(queue, offset).absences = absences
        log.info("group %s reads %s from offset %d", self.group, queue, offset)
        return True

    def _begin(self, queue: MessageQueue, offset: int) -> Puller:
        """Begin to read a queue, here only: its puller before ends, and this object ends the new one."""
        before = self.pullers.get(queue)
        if before is not None:
            before.drop()
            self.offsets.telling(queue, before.process_queue.lowest)
        subscription = self.subscriptions.get(queue.topic) or subscribe(queue.topic)
        counts = self.rates.of(queue.topic)
        puller = Puller(
            self.instance, self.group, queue, subscription, offset, self._how, self._puller_calls, counts=counts
        )
        self.pullers[queue] = puller
        puller.process_queue.paused = before.process_queue.paused if before is not None else self._paused
        puller.absences = before.absences if before is not None else 0
        self._reading.keep(puller.start())
        self._share_bounds(queue.topic)
        return puller

    def reads(self, queue: MessageQueue) -> bool:
        """Tell whether a queue is read here and not about to be given up, to be begun anew or closed."""
        puller = self.pullers.get(queue)
        return puller is not None and not puller.dropped and not self._closed

    def _moved(self, puller: Puller, offset: int, forget: bool) -> None:
        if self.pullers.get(puller.queue) is puller and self.reads(puller.queue):
            if forget:
                self.seek(puller.queue, offset)
            else:
                self.read_again(puller, min(offset, puller.process_queue.lowest))

    def read_again(self, puller: Puller, offset: int) -> None:
        """Read a queue again from there, at most the lowest that is unfinished: what is below counts as before."""
        after = self._begin(puller.queue, offset)
        after.done = min(puller.done, offset)
        if self._calls.continued is not None:
            self._calls.continued(puller, after)

    def seek(self, queue: MessageQueue, offset: int) -> Puller:
        """Go on reading a queue from another offset, wherever others are, and forget what was fetched of it.

        Raises StateError if the queue is not read here, or about to be given up.
        """
        if not self.reads(queue):
            raise StateError(f"{queue} is not read by this consumer, or about to be given up: see assignment()")
        after = self._begin(queue, offset)
        after.absences = self._absences()
        return after

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on reading those of these queues that are read here from the offsets given, and commit these offsets.

        What was fetched is forgotten. If messages are consumed in order, a queue is begun anew once no listener call
        runs for it.
        """
        for queue in offsets.keys() & self.pullers.keys():
            # Also of one that is being given up: what it read is committed last.
            self.pullers[queue].reset_to = offsets[queue]
        if self._closed:
            return
        # A task of our own: the connection that asks for it may end first.
        await asyncio.shield(self._resets.begin(self._reset(offsets)))

    async def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._one_reset:
            mine = {q: self.pullers[q] for q in offsets if self.reads(q)}
            for puller in mine.values():
                puller.drop()
            for queue, puller in mine.items():
                is_told = False
                try:
                    if self._calls.settled is not None:
                        await self._calls.settled(puller)
                    is_told = queue not in await self.offsets.store.commit({queue: offsets[queue]})
                    if not is_told:
                        # It is committed with what is read next.
                        log.warning("group %s: offset %d of %s is not committed", self.group, offsets[queue], queue)
                finally:
                    self._replace(puller, offsets[queue], is_told=is_told)
            log.info("group %s was reset by a broker: %s", self.group, dict(offsets))

    async def _catch_up(self, queue: MessageQueue) -> None:
        """Begin a queue anew that another member may have read, if the group is further by now. Raises
        RocketSparkError.
        """
        puller = self.pullers.get(queue)
        if puller is None or not self.reads(queue):
            return
        committed = await self.offsets.of_others(puller, puller.process_queue.lowest)
        if committed is not None and self.pullers.get(queue) is puller and self.reads(queue):
            log.info("group %s: others read %s up to offset %d meanwhile", self.group, queue, committed)
            puller.drop()
            puller.reset_to = committed
            # A call of the listener that runs may take long.
            self._resets.begin(self._begin_anew(puller))

    async def _begin_anew(self, puller: Puller) -> None:
        async with self._one_reset:
            if self._calls.settled is not None:
                await self._calls.settled(puller)
            assert puller.reset_to is not None
            self._replace(puller, puller.reset_to, is_told=True)

    def _replace(self, puller: Puller, offset: int, *, is_told: bool) -> None:
        """Go on with a dropped puller's queue, unless somebody else decided about it; `is_told`: brokers have this."""
        if self.pullers.get(puller.queue) is puller and not puller.leaving and not self._closed:
            self._begin(puller.queue, offset)
            if is_told:
                self.offsets.is_told(puller.queue, offset)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.rates.sample()

    async def commit(self, *, oneway: bool = False, strict: bool = False) -> None:
        """Commit the offsets of all queues that moved since the last commit, or that their broker may have lost.

        `oneway`: without waiting for replies. `strict`: a failure is raised; else it is tried again with the next
        commit.
        """
        pullers = list(self.pullers.values())
        if oneway and self.locks is not None:
            pullers = [puller for puller in pullers if self.locks.holds(puller.queue)]
        await self.offsets.commit(pullers, oneway=oneway, strict=strict)
