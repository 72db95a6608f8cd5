"""Tells clients which of their lite topics have something to pop: an event is the name of a light queue.

Rules (LiteEventDispatcher, 5.5.0): each group gets one event of a queue, in one of its clients, chosen by chance; a
client that does not poll loses its events to the others; one whose events are full is looked through later as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from rocketspark import machine
from rocketspark.broker.lite import attributes
from rocketspark.broker.lite.subscriptions import LiteSubscriptions, Subscriber, Subscription
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.ordered import OrderedPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms, steady_ms
from rocketspark.protocol import lite_topics
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.store.store import Store

# Without a pop for so long a client is gone; with events that wait, sooner.
CLIENT_GONE_MS, CLIENT_SLOW_MS = 35_000, 10_000
# Below so much of its room a client is looked through again.
LOW_PERCENT = 20
# A client that lost its events gets none for so long while others of its group are there.
AVOIDED_MS = 10_000
FULL_DISPATCH_MS_MIN = 50
WILDCARD_MS = 5_000
# Queues that are looked at in one turn, and by one pop without events: some ms.
QUEUES_IN_TURN = 1024
QUEUES_OF_POP = 4096


class ClientEvents:
    """The events of one client that wait, each once. `popped_ms`: the last pop, by the clock that never goes back;
    `accessed_ms`: the same by the clock on the wall; `polls`: it has popped since it was known.
    """

    __slots__ = ("_room", "accessed_ms", "group", "names", "polls", "popped_ms")

    def __init__(self, group: str, room: int) -> None:
        self.group = group
        self._room = room
        self.names: dict[str, None] = {}
        self.asked()
        self.polls = False

    def asked(self) -> None:
        """Note that the client polls."""
        self.popped_ms, self.accessed_ms = steady_ms(), now_ms()
        self.polls = True

    def offer(self, queue: str) -> bool:
        """Add an event; False if there is no room."""
        if len(self.names) >= self._room:
            return False
        self.names[queue] = None
        return True

    def take(self) -> str | None:
        """Return the oldest event, and forget it; None if there is none."""
        if not self.names:
            return None
        queue = next(iter(self.names))
        del self.names[queue]
        return queue

    def is_gone(self) -> bool:
        """Tell whether the client has not polled for long."""
        idle_ms = steady_ms() - self.popped_ms
        return idle_ms > CLIENT_GONE_MS or (bool(self.names) and idle_ms > CLIENT_SLOW_MS)

    def is_low(self) -> bool:
        """Tell whether few events wait."""
        return len(self.names) * 100 < self._room * LOW_PERCENT


class LiteEvents:
    """The events of all clients. `wake(client id, group)`: has the client's held pops look again; `run`: makes one step
    of some work in each turn of the loop.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        tables: Tables,
        store: Store,
        subscriptions: LiteSubscriptions,
        ordered: OrderedPops,
        wake: Callable[[str, str], None],
        run: Callable[[Iterator[None]], None],
    ) -> None:
        self._settings = settings
        self._groups, self._offsets = tables.groups, tables.offsets
        self._store = store
        self._subscriptions = subscriptions
        self._ordered = ordered
        self._wake = wake
        self._run = run
        self.clients: dict[str, ClientEvents] = {}
        self._avoided: dict[str, int] = {}
        # Clients, or groups with a wildcard, that are looked through once their time comes.
        self._due: dict[Subscriber, int] = {}
        subscriptions.subscribed = self._subscribed
        subscriptions.left = self._left

    def taken(self, subscription: Subscription) -> Iterator[str]:
        """Yield the queues that a client's pop looks at: those of its events, which are forgotten; without events those
        that it subscribed to, the one that was looked at last comes last.
        """
        if not self._settings.lite_events_enabled:
            yield from self._in_turn(subscription)
        elif (events := self.clients.get(subscription.subscriber.client_id)) is not None:
            for _ in range(len(events.names)):
                queue = events.take()
                # It may have lost the queue since.
                if queue is not None and self._subscriptions.reads(subscription, queue):
                    yield queue

    def _in_turn(self, subscription: Subscription) -> Iterator[str]:
        # Of use once there are events again.
        self._later(subscription.subscriber, 0)
        queues = subscription.queues
        for queue in list(islice(queues, QUEUES_OF_POP)):
            queues[queue] = queues.pop(queue)
            if self._store.queue_range(queue, QUEUE_ID)[1]:
                yield queue

    # -- what brings events ---------------------------------------------------------------------------------------

    def arrived(self, queue: str) -> None:
        """Note that a light queue grew."""
        if self._subscriptions.count and lite_topics.is_lite(queue):
            self._dispatch(queue)

    def free_queue(self, queue: str, group: str, queue_id: int) -> None:
        """Note that what a group popped of a queue blocks it no more."""
        self._dispatch(queue, group)

    def _subscribed(self, subscriber: Subscriber, queue: str) -> None:
        if attributes.is_wildcard(self._groups.table.get(subscriber.group)):
            self._later(Subscriber("", subscriber.group), WILDCARD_MS)
        elif self._store.queue_range(queue, QUEUE_ID)[1]:
            self._dispatch(queue, subscriber.group)

    def _left(self, subscriber: Subscriber) -> None:
        gone = self.clients.pop(subscriber.client_id, None)
        self._avoided.pop(subscriber.client_id, None)
        self._due.pop(subscriber, None)
        for queue in gone.names if gone else ():
            self._dispatch(queue, subscriber.group, avoid=subscriber.client_id)

    def _dispatch(self, queue: str, group: str | None = None, avoid: str = "") -> None:
        if not self._settings.lite_events_enabled:
            return
        for members in self._subscriptions.subscribers(queue, group).values():
            self._choose(queue, members, avoid)

    def _choose(self, queue: str, members: list[Subscriber], avoid: str = "") -> bool:
        """Give an event to one of a group's clients; False if none has room."""
        group = members[0].group
        has_wildcard = attributes.is_wildcard(self._groups.table.get(group))
        start, spare = machine.randrange(len(members)) if len(members) > 1 else 0, []
        for number in range(len(members)):
            client_id = members[(start + number) % len(members)].client_id
            if client_id == avoid or self._is_avoided(client_id):
                if client_id == avoid or not has_wildcard:
                    spare.append(client_id)
            elif len(members) > 1 and not self._polls(client_id):
                spare.append(client_id)  # Its process may have ended.
            elif self._offer(queue, client_id, group, again=not has_wildcard):
                return True
        for client_id in spare:
            if self._offer(queue, client_id, group, again=not has_wildcard):
                return True
        if has_wildcard:
            self._later(Subscriber("", group), self._settings.lite_full_dispatch_wildcard_ms)
        return False

    def _is_avoided(self, client_id: str) -> bool:
        return bool(self._avoided) and steady_ms() < self._avoided.get(client_id, 0)

    def _polls(self, client_id: str) -> bool:
        events = self.clients.get(client_id)
        return events is not None and events.polls

    def polled(self, subscriber: Subscriber) -> ClientEvents:
        """Note that a client polls, and return its events."""
        events = self._events(*subscriber)
        events.asked()
        return events

    def _offer(self, queue: str, client_id: str, group: str, *, again: bool) -> bool:
        events = self._events(client_id, group)
        if events.offer(queue):
            self._wake(client_id, group)
            return True
        if again:
            self._later(Subscriber(client_id, group), self._settings.lite_full_dispatch_ms)
        return False

    def _events(self, client_id: str, group: str) -> ClientEvents:
        events = self.clients.get(client_id)
        if events is None:
            room = attributes.events_max(self._groups.table.get(group), self._settings)
            events = self.clients[client_id] = ClientEvents(group, room)
        return events

    # -- looking through ------------------------------------------------------------------------------------------

    def _later(self, subscriber: Subscriber, delay_ms: int) -> None:
        self._due.setdefault(subscriber, steady_ms() + max(delay_ms, FULL_DISPATCH_MS_MIN))

    def emptied(self, client_id: str, group: str) -> None:
        """Look through a client at once that took its last event, if it was to be looked through later."""
        subscriber = Subscriber(client_id, group)
        if self._settings.lite_events_enabled and self._due and self._due.pop(subscriber, None) is not None:
            self.look_through(subscriber)

    def scan(self) -> None:
        """Give the events of clients that do not poll to others; look through those whose time came."""
        now = steady_ms()
        self._avoided = {client_id: until for client_id, until in self._avoided.items() if until > now}
        for client_id, events in list(self.clients.items()):
            if events.is_gone():
                del self.clients[client_id]
                self._avoided[client_id] = now + AVOIDED_MS
                for queue in events.names:
                    self._dispatch(queue, events.group, avoid=client_id)
        if not self._settings.lite_events_enabled:
            return
        for subscriber in [each for each, due_ms in self._due.items() if due_ms <= now]:
            del self._due[subscriber]
            self.look_through(subscriber)

    def look_through(self, subscriber: Subscriber) -> None:
        """Give a client an event of each of its queues that has something to pop; without a client id, the group's
        clients. What needs more than some ms goes on in later turns.
        """
        if not self._settings.lite_events_enabled:
            return
        group = self._groups.table.get(subscriber.group)
        if attributes.is_wildcard(group):
            self._run(self._wildcard_steps(subscriber.group, attributes.bind_topic(group) or ""))
        elif subscriber.client_id:
            self._run(self._client_steps(subscriber))
        else:
            for client_id in self._subscriptions.clients_of(subscriber.group):
                self._run(self._client_steps(Subscriber(client_id, subscriber.group)))

    def _client_steps(self, subscriber: Subscriber) -> Iterator[None]:
        subscription = self._subscriptions.clients.get(subscriber.client_id)
        if subscription is None or subscription.subscriber != subscriber or not subscription.queues:
            return
        events = self._events(*subscriber)
        if events.is_gone() or not events.is_low():
            self._later(subscriber, self._settings.lite_full_dispatch_ms)
            return
        for number, queue in enumerate(list(subscription.queues), 1):
            if self._is_behind(subscriber.group, queue) and not events.offer(queue):
                self._later(subscriber, self._settings.lite_full_dispatch_ms)
                break
            if number % QUEUES_IN_TURN == 0:
                self._wake(*subscriber)
                yield
        self._wake(*subscriber)

    def _wildcard_steps(self, group: str, topic: str) -> Iterator[None]:
        prefix = lite_topics.queue_name(topic, "")
        # A name with more parts is no lite topic's.
        queues = [name for name in self._store.queues() if name.startswith(prefix) and lite_topics.of_queue(name)]
        for number, queue in enumerate(queues, 1):
            members = self._subscriptions.wildcard_clients(group, topic)
            if not members or (self._is_behind(group, queue) and not self._choose(queue, members)):
                return
            if number % QUEUES_IN_TURN == 0:
                yield

    def _is_behind(self, group: str, queue: str) -> bool:
        """Tell whether a group has something to pop of a queue; one that is blocked brings an event once it is free."""
        if self._store.queue_range(queue, QUEUE_ID)[1] <= (self._offsets.get(group, queue, QUEUE_ID) or 0):
            return False
        return self._ordered.blocked_until_ms(queue, group, QUEUE_ID, None, 0) <= now_ms()
