"""Which client subscribed to which lite topics. Rule: nothing is kept over a restart; clients ask again (5.5.0).

Rules (LiteSubscriptionRegistryImpl, 5.5.0): a client has one group and one topic; in an exclusive group a lite topic
has one client, the last; of a wildcard group every client reads all lite topics; who is not heard of for
liteSubscriptionCheckTimeoutMills is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from rocketspark.broker.lite import attributes
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.ordered import OrderedPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import steady_ms
from rocketspark.errors import ServerError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol import lite_topics
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import NotifyUnsubscribeLiteHeader
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.json.lite_bodies import POLICY_MAX, POLICY_MIN, OffsetOption, OffsetOptionType
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Sender

log = LimitedLog("rocketspark.broker")

# Of a client that is forgotten so many end in one turn: some ms.
QUEUES_IN_TURN = 256

# As a quota error of RocketMQ reads, which clients show.
_QUOTA = "org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota exceeded %d"
_ILLEGAL = "java.lang.IllegalStateException: %s"


class Subscriber(NamedTuple):
    """A client as a member of a group."""

    client_id: str
    group: str


class Subscription:
    """What one client subscribed to: light queues of the lite topics of `topic`."""

    __slots__ = ("queues", "subscriber", "topic", "updated_ms")

    def __init__(self, subscriber: Subscriber, topic: str, now_ms: int) -> None:
        self.subscriber = subscriber
        self.topic = topic
        self.queues: dict[str, None] = {}
        self.updated_ms = now_ms


def illegal_state(why: str) -> ServerError:
    """Return the error for a subscription that the group or client may not have (code 604)."""
    return ServerError(ResponseCode.ILLEGAL_OPERATION, _ILLEGAL % why)


class LiteSubscriptions:
    """The subscriptions of one broker, by client and by light queue.

    `count`: of pairs of a client and a queue; `subscribed(subscriber, queue)` is called with each new pair, `left` with
    a client that has no subscription any more.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        tables: Tables,
        store: Store,
        ordered: OrderedPops,
    ) -> None:
        self._settings = settings
        self._groups, self._offsets, self._connected = tables.groups, tables.offsets, tables.clients
        self._store = store
        self._ordered = ordered
        self.clients: dict[str, Subscription] = {}
        self.count = 0
        self.subscribed: Callable[[Subscriber, str], None] = lambda subscriber, queue: None
        self.left: Callable[[Subscriber], None] = lambda subscriber: None
        # Where each client is told of what it lost, and who asked there.
        self._peers: dict[str, tuple[Peer, Sender | None]] = {}
        self._of_queue: dict[str, dict[Subscriber, None]] = {}
        # Of each topic the wildcard groups, each of whose clients stands under a name that no queue has.
        self._wildcards: dict[str, dict[str, None]] = {}

    # -- changes --------------------------------------------------------------------------------------------------

    def check_group(self, name: str, by: str) -> GroupConfig:
        """Return the settings of a group whose client subscribes. Raises ServerError 604 if it may not consume."""
        group = self._groups.get(name, by=by)
        if group is None or not group.consume_enable:
            raise illegal_state("Consumer group is not allowed to consume.")
        return group

    def check_room(self) -> None:
        """Raise ServerError 2018 if the broker keeps as many subscriptions as it may."""
        most = self._settings.lite_subscriptions_max
        if self.count >= most:
            raise ServerError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, _QUOTA % most)

    def of_client(self, client_id: str, group: str, topic: str, peer: Peer | None = None) -> Subscription:
        """Return a client's subscription, made if there is none. `peer`: where the client is told of changes.

        Raises ServerError 604 for a client that subscribed with another group or topic.
        """
        found = self.clients.get(client_id)
        if found is None:
            if len(self.clients) >= self._settings.lite_subscriptions_max:
                self.check_room()
                most = self._settings.lite_subscriptions_max
                raise ServerError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, _QUOTA % most)
            found = self.clients[client_id] = Subscription(Subscriber(client_id, group), topic, steady_ms())
        elif (found.subscriber.group, found.topic) != (group, topic):
            raise illegal_state(
                f"client {shown(client_id)} subscribed for group {shown(found.subscriber.group)} to topic"
                f" {shown(found.topic)}: it must unsubscribe from all before it subscribes anew"
            )
        if peer is not None:
            self._peers[client_id] = (peer, peer.sender)
        found.updated_ms = steady_ms()
        return found

    def add(
        self, subscription: Subscription, queues: Iterable[str], *, option: OffsetOption | None, alone: bool
    ) -> None:
        """Subscribe to some more queues; `option`: where to begin in them; `alone`: others of the group lose them."""
        subscriber = subscription.subscriber
        for queue in queues:
            if queue not in subscription.queues:
                self.check_room()
            subscription.queues[queue] = None
            if alone:
                self._evict(subscriber, queue)
            if option is not None:
                self._begin_at(queue, subscriber.group, option)
            # RocketMQ's client that has the queue is given nothing before the next message.
            self._enter(subscriber, queue, anew=option is not None)

    def add_wildcard(self, subscription: Subscription) -> None:
        """Subscribe to all lite topics, those to come too."""
        group, topic = subscription.subscriber.group, subscription.topic
        name = _all_of(topic, group)
        self._wildcards.setdefault(topic, {})[group] = None
        for queue in [queue for queue in subscription.queues if queue != name]:
            self.remove(subscription, [queue], begin_anew=False)
        if name not in subscription.queues:
            self.check_room()
            subscription.queues[name] = None
            self._enter(subscription.subscriber, name)

    def remove(self, subscription: Subscription, queues: Iterable[str], *, begin_anew: bool) -> None:
        """End some subscriptions; `begin_anew`: the group's offsets in their queues go back to 0."""
        for queue in queues:
            subscription.queues.pop(queue, None)
            self._leave(subscription.subscriber, queue, begin_anew=begin_anew)

    def is_told_elsewhere(self, client_id: str, peer: Peer) -> bool:
        """Tell whether a client's subscription came last over another connection that is open: its new proxy's."""
        known = self._peers.get(client_id)
        return known is not None and known[0] is not peer and known[0].is_open

    def remove_all(self, client_id: str) -> None:
        """Forget a client."""
        self._peers.pop(client_id, None)
        found = self.clients.pop(client_id, None)
        if found is not None:
            for queue in found.queues:
                self._leave(found.subscriber, queue, begin_anew=False)
            self.left(found.subscriber)

    def forget_queue(self, queue: str) -> None:
        """Forget a queue that is deleted; its clients are not told (5.5.0)."""
        for subscriber in self._of_queue.pop(queue, ()):
            self.clients[subscriber.client_id].queues.pop(queue, None)
            self.count -= 1

    def forget_group(self, group: str) -> None:
        """Forget all clients of a group that is deleted."""
        for client_id in self.clients_of(group):
            self.remove_all(client_id)

    def expire_steps(self, now_ms: int) -> Iterator[None]:
        """Forget the clients that were not heard of for long; yields after each, and after some queues of one."""
        timeout_ms = self._settings.lite_subscription_timeout_ms
        for client_id, found in list(self.clients.items()):
            while now_ms - found.updated_ms > timeout_ms and self.clients.get(client_id) is found:
                self.remove(found, list(islice(found.queues, QUEUES_IN_TURN)), begin_anew=False)
                if not found.queues:
                    log.info("the lite subscriptions of client %s expired", shown(client_id))
                    self.remove_all(client_id)
                yield

    # -- questions ------------------------------------------------------------------------------------------------

    def clients_of(self, group: str) -> list[str]:
        """Return the ids of a group's clients."""
        return [client_id for client_id, each in self.clients.items() if each.subscriber.group == group]

    def subscribers(self, queue: str, group: str | None = None) -> dict[str, list[Subscriber]]:
        """Return who reads a queue, by group; `group`: of this group alone."""
        found: dict[str, list[Subscriber]] = {}
        for subscriber in self._of_queue.get(queue, ()):
            if group is None or subscriber.group == group:
                found.setdefault(subscriber.group, []).append(subscriber)
        lite = lite_topics.of_queue(queue) if self._wildcards else None
        if lite is not None:
            for name in self._wildcards.get(lite.parent, ()):
                if group in (None, name):
                    found.setdefault(name, self.wildcard_clients(name, lite.parent))
        return found

    def wildcard_clients(self, group: str, topic: str) -> list[Subscriber]:
        """Return the clients of a wildcard group."""
        return list(self._of_queue.get(_all_of(topic, group), ()))

    def reads(self, subscription: Subscription, queue: str) -> bool:
        """Tell whether a client reads a queue."""
        return queue in subscription.queues or _all_of(subscription.topic, subscription.subscriber.group) in (
            subscription.queues
        )

    # -- parts ----------------------------------------------------------------------------------------------------

    def _enter(self, subscriber: Subscriber, queue: str, *, anew: bool = False) -> None:
        members = self._of_queue.setdefault(queue, {})
        if subscriber not in members:
            members[subscriber] = None
            self.count += 1
        elif not anew:
            return
        self.subscribed(subscriber, queue)

    def _leave(self, subscriber: Subscriber, queue: str, *, begin_anew: bool) -> None:
        members = self._of_queue.get(queue)
        if members is None or subscriber not in members:
            return
        del members[subscriber]
        self.count -= 1
        if begin_anew:
            self._begin_at(queue, subscriber.group, OffsetOption(type=OffsetOptionType.POLICY, value=POLICY_MIN))
        if not members:
            del self._of_queue[queue]
            topic, at, group = queue.partition("@")
            if at and topic in self._wildcards:
                self._wildcards[topic].pop(group, None)
                if not self._wildcards[topic]:
                    del self._wildcards[topic]

    def _evict(self, newcomer: Subscriber, queue: str) -> None:
        """End the subscriptions to a queue that others of the newcomer's group have, and tell them."""
        group = self._groups.table.get(newcomer.group)
        begin_anew = attributes.is_true(group, attributes.RESET_EXCLUSIVE)
        others = [s for s in self._of_queue.get(queue, ()) if s.group == newcomer.group and s != newcomer]
        for other in others:
            subscription = self.clients[other.client_id]
            subscription.queues.pop(queue, None)
            self._tell(other, queue)
            self._leave(other, queue, begin_anew=begin_anew)
            if not subscription.queues:
                self.remove_all(other.client_id)

    def _tell(self, subscriber: Subscriber, queue: str) -> None:
        known, lite = self._peers.get(subscriber.client_id), lite_topics.of_queue(queue)
        if known is None or lite is None:
            return
        (peer, sender), code = known, RequestCode.NOTIFY_UNSUBSCRIBE_LITE
        # One that does not read hears of it when it subscribes anew.
        if not peer.is_writable or not self._connected.may_be_sent(code, sender, lite.parent, subscriber.group):
            return
        header = NotifyUnsubscribeLiteHeader(
            lite_topic=lite.name, group=subscriber.group, client_id=subscriber.client_id
        )
        try:
            peer.oneway(code, header)
        except TransportError as e:
            log.info("%s was not told that it lost a lite topic: %s", peer.address, e)

    def _begin_at(self, queue: str, group: str, option: OffsetOption) -> None:
        """Set where a group goes on in a queue (rule: resetOffset, 5.5.0, which passes over times)."""
        now = self._offsets.get(group, queue, QUEUE_ID)
        target: int | None = None
        if option.type == OffsetOptionType.POLICY:
            target = {POLICY_MIN: 0, POLICY_MAX: self._store.queue_range(queue, QUEUE_ID)[1]}.get(option.value)
        elif option.type == OffsetOptionType.OFFSET:
            # One beyond the end is set right by the first pop; one below 0 is none.
            target = option.value if option.value >= 0 else None
        elif option.type == OffsetOptionType.TAIL_N and now is not None:
            target = max(now - option.value, 0)
        if target is not None and target != now:
            self._offsets.reset(group, queue, QUEUE_ID, target)
            self._ordered.forget(queue, group, QUEUE_ID)


def _all_of(topic: str, group: str) -> str:
    return f"{topic}@{group}"
