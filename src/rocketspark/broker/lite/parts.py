"""The parts of lite topics of one broker, and when lite topics expire.

Rule (AbstractLiteLifecycleManager, 5.5.0): a lite topic goes once its last message is older than its topic's
lite.topic.expiration, and than minLiteTTl, consumed or not; it begins anew with the next message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.lite import attributes
from rocketspark.broker.lite.events import LiteEvents
from rocketspark.broker.lite.lags import LiteLags
from rocketspark.broker.lite.pops import LitePops
from rocketspark.broker.lite.subscriptions import LiteSubscriptions
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.ordered import OrderedPops
from rocketspark.broker.pop.waiting_pops import ALL_QUEUES, WaitingPops
from rocketspark.broker.repeated_work import RepeatedWork
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import now_ms, steady_ms
from rocketspark.protocol import lite_topics
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

# Light queues that are looked at in one turn, and removed together: some ms.
QUEUES_IN_TURN = 512


def waiting_name(client_id: str) -> str:
    """Return the name under which a client's held pops wait: no topic has it."""
    return f"\0{client_id}"


class LiteTopics:
    """What a broker knows of lite topics.

    `held`: gets the pops that wait; `drop`: removes light queues with the offsets of their groups; `run`: makes one
    step of some work in each turn of the loop.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        tables: Tables,
        stats: Stats,
        arrivals: LongPolling,
        held: list[WaitingPops],
        drop: Callable[[list[str]], None],
        run: Callable[[Iterator[None]], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._drop = drop
        self._run = run
        self._began_ms = steady_ms()
        # Of each deletion of a topic that is under way, the light queues that are still to go.
        self._leaving: list[set[str]] = []
        self.waiting = waiting = WaitingPops(
            arrivals,
            lambda topic, group: (),
            of_queue_max=lambda: settings.pop_waiting_of_queue_max,
            all_max=lambda: settings.pop_waiting_max,
        )
        self.ordered = OrderedPops()
        self.subscriptions = LiteSubscriptions(settings, tables, store, self.ordered)
        self.events = LiteEvents(
            settings,
            tables,
            store,
            self.subscriptions,
            self.ordered,
            wake=lambda client_id, group: waiting.wake(waiting_name(client_id), group, ALL_QUEUES),
            run=run,
        )
        self.lags = LiteLags(settings, store, tables, run)
        self.pops = LitePops(settings, store, tables, stats, self.subscriptions, self.events, self.ordered)
        held.append(waiting)
        arrivals.light_arrived = self.events.arrived

    def repeat(self, repeated: RepeatedWork, is_master: Callable[[], bool]) -> None:
        """Begin what is done from time to time."""
        s = self._settings

        def expire() -> None:
            if is_master():
                self._run(self.expire_steps())

        repeated.every("lite events", lambda: s.lite_event_check_ms / 1000, self.events.scan)
        repeated.every(
            "lite subscriptions",
            lambda: s.lite_subscription_check_ms / 1000,
            lambda: self._run(self.subscriptions.expire_steps(steady_ms())),
        )
        repeated.every("lite topics", lambda: s.lite_expiration_check_ms / 1000, expire)

    def expire_steps(self) -> Iterator[None]:
        """Remove the lite topics that expired; yields after each few."""
        s = self._settings
        if steady_ms() - self._began_ms < s.lite_expiration_ms_min:
            return
        minutes = {
            name: attributes.expiration_minutes(config)
            for name, config in self._topics.table.items()
            if attributes.is_lite_topic(config)
        }
        yield from self._remove_steps(lambda queue: self._is_expired(queue, minutes))

    def reset(self, queue: str, group: str) -> None:
        """Have a group's pops of a light queue go on from an offset that was set by hand: what waits is told of it."""
        if lite_topics.is_lite(queue):
            self.ordered.forget(queue, group, QUEUE_ID)
            self.events.free_queue(queue, group, QUEUE_ID)

    def delete_parent_steps(self, topic: str) -> Iterator[None]:
        """Remove all lite topics of a topic that is deleted; yields after each few.

        One that gets a message meanwhile, as the topic was made anew, is removed before the message is stored.
        """
        prefix = lite_topics.queue_name(topic, "")
        leaving = {name for name in self._store.queues() if name.startswith(prefix)}
        self._leaving.append(leaving)
        self._store.before_light = self._leave
        try:
            yield from self._remove_steps(leaving.__contains__)
        finally:
            self._leaving = [each for each in self._leaving if each is not leaving]
            if not self._leaving:
                self._store.before_light = None

    def _leave(self, name: str) -> None:
        if any(name in leaving for leaving in self._leaving):
            self._remove([name])

    def _remove_steps(self, goes: Callable[[str], bool]) -> Iterator[None]:
        names = [name for name in self._store.queues() if lite_topics.is_lite(name)]
        for at in range(0, len(names), QUEUES_IN_TURN):
            gone = [name for name in names[at : at + QUEUES_IN_TURN] if goes(name)]
            if gone:
                self._remove(gone)
            yield

    def _remove(self, names: list[str]) -> None:
        self.drop(names)
        for name in names:
            self.subscriptions.forget_queue(name)
        for leaving in self._leaving:
            leaving.difference_update(names)
        log.info("%d lite topics are removed", len(names))

    def drop(self, queues: list[str]) -> None:
        """Remove light queues, and what groups have of them. Raises StoreFull, StoreUnwritable, with all as it was."""
        self._drop(queues)
        self.ordered.delete_topics(set(queues))

    def _is_expired(self, queue: str, minutes: dict[str, int]) -> bool:
        lite = lite_topics.of_queue(queue)
        kept_minutes = minutes.get(lite.parent, -1) if lite is not None else -1
        high = self._store.stored_range(queue, QUEUE_ID)[1]
        if kept_minutes <= 0 or not high:
            return False
        last_ms = self._store.store_time_at(queue, QUEUE_ID, high - 1)
        kept_ms = max(kept_minutes * 60_000, self._settings.lite_expiration_ms_min)
        return last_ms >= 0 and now_ms() - last_ms > kept_ms
