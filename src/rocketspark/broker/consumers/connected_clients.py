"""Connected clients: producer and consumer groups with their connections.

Rules (ProducerManager, ConsumerManager 5.x): a client lives for 120 s after its last heartbeat and not beyond its
connection; every change of a group's members or subscriptions is told to all its members. A client id belongs to the
user who used it first, for as long as that user's heartbeats name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping

import msgspec

from rocketspark.errors import NotSent, ServerError
from rocketspark.model import Subscription
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.namespace import RETRY_PREFIX
from rocketspark.model.subscription import ALL
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.json.bodies import ConsumerData, Heartbeat
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Sender
from rocketspark.transport.request_frames import Reply
from rocketspark.transport.server_bounds import place_of

KEPT_MAX = 200_000


class ClientIds:
    """Remembers which user came first with which client id. `kept_ms`: for how long after an id's last heartbeat."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        # Of each user: since when, and when last; the id that was said least recently first.
        self._said: dict[Hashable, dict[str, tuple[int, int]]] = {}
        self._kept = self._count = 0

    def said(self, client_id: str, user: Hashable, now_ms: int) -> None:
        """Note that a user named a client id in a heartbeat."""
        own = self._said.setdefault(user, {})
        before = own.pop(client_id, None)
        if before is None:
            self._count += 1
            self._kept += 1
        own[client_id] = (self._count if before is None else before[0]), now_ms
        if self._kept > KEPT_MAX:
            most = max(self._said.values(), key=len)
            del most[next(iter(most))]
            self._kept -= 1

    def turn(self, client_id: str, user: Hashable) -> int:
        """Return a rank of a user among those who named a client id: the lower, the earlier the user came with it."""
        return self._said.get(user, {}).get(client_id, (self._count + 1, 0))[0]

    def expire(self, now_ms: int) -> None:
        """Forget the client ids that no heartbeat named for too long."""
        for user, own in list(self._said.items()):
            while own:
                client_id = next(iter(own))
                if own[client_id][1] >= now_ms - self._kept_ms:
                    break
                del own[client_id]
                self._kept -= 1
            if not own:
                del self._said[user]


log = LimitedLog("rocketspark.broker")

# Limits of groups for each connection, and of subscriptions for each group.
CONSUMERS_MAX = 1000
PRODUCERS_MAX = 10_000
SUBSCRIPTIONS_MAX = 4096
CLIENT_ID_LENGTH_MAX = 1024
# Subscriptions of a member in a line of the log.
SHOWN_MAX = 5
# Some half a KB goes with a weight of 1: a membership, one of its subscriptions, or so many characters of them; a tag
# takes as much as so many more of these, and its hash code too.
WEIGHT_CHARACTERS = 256
TAG_CHARACTERS = 32
# What a member of less weight told may stay with its group once the member is gone.
LIGHT_WEIGHT = 64
WEIGHT_MAX = 1_000_000
HOST_WEIGHT_MAX = 250_000
# Groups and members looked at for silence in one turn of the loop: some ms.
LOOKED_AT_IN_TURN = 16_384
# One that is dropped takes as long as so many that are looked at.
DROPPED_AS_LOOKED_AT = 32
# Groups that a client of an ended connection leaves in one turn: some ms.
LEFT_IN_TURN = 200


class ConnectedClient(msgspec.Struct):
    """One member of a group: its client id, its connection, and what its heartbeat says of it."""

    client_id: str
    peer: Peer
    language: str
    version: int
    beat_ms: int
    weight: int = 1
    # Whose heartbeat it was; None without a gate.
    sender: Sender | None = None
    # Of a consumer: topics and filters that it told last, without retry topics, which not all kinds read.
    subscribed: frozenset[tuple[str, str]] = frozenset()


class ConsumerGroup(msgspec.Struct):
    """A consumer group with live members. `subscriptions`: what it reads, by topic."""

    name: str
    consume_type: str
    message_model: str
    consume_from: str
    clients: dict[Peer, ConnectedClient] = {}
    subscriptions: dict[str, Subscription] = {}

    def client_ids(self) -> list[str]:
        """Ids of all members, each once: who shares queues by a list that has one twice leaves some to nobody. A member
        whose network was cut is back on another connection while the one before seems to be open still.
        """
        return list(dict.fromkeys(c.client_id for c in self.clients.values()))


# What clients are asked lies in memory until they answer: so much for one, or a single larger one, and for all.
ASKED_OF_CLIENT_BYTES_MAX, ASKED_BYTES_MAX = 8 << 20, 128 << 20

# Gets the code, whose heartbeat made somebody a member, and the topic and the group that it is about.
MayBeSent = Callable[[int, Sender | None, str, str], bool]


def anybody(code: int, sender: Sender | None, topic: str, group: str) -> bool:
    """Let the broker send anything to every client, as it does without access control."""
    return True


class ConnectedClients:
    """All live clients of a broker. `on_change(group)` is called when the members of a consumer group must be told.

    `may_be_sent`: asked before the broker sends a client a request of its own.
    """

    def __init__(self, on_change: Callable[[ConsumerGroup], None], *, expiry_ms: int = 120_000) -> None:
        self._on_change = on_change
        self._expiry_ms = expiry_ms
        self.may_be_sent: MayBeSent = anybody
        self._ids = ClientIds(expiry_ms)
        # Bytes of what clients were asked and have not answered.
        self._asked: dict[Peer, int] = {}
        self._asked_bytes = 0
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Peer, ConnectedClient]] = {}
        # The groups of each connection, so that its end costs time by its own groups, not by all.
        self._produces: dict[Peer, set[str]] = {}
        self._consumes: dict[Peer, set[str]] = {}
        # For each id the connections whose producers say it: in how many groups, and the one that said it last. A reply
        # looks for one of as many as a million.
        self._saying: dict[str, dict[Peer, tuple[int, ConnectedClient]]] = {}
        # What all members take, and those of each host.
        self.weight = 0
        self._host_weights: Counter[str] = Counter()

    def beat(
        self, peer: Peer, beat: Heartbeat, language: str, version: int, now_ms: int, sender: Sender | None = None
    ) -> None:
        """Take a client's heartbeat for all its groups. Raises ServerError 29 if the connection is in too many groups.

        `sender`: who signed the heartbeat; None for whoever signed the connection's newest one.
        """
        self.check(peer, beat)
        if beat.producer_data_set:
            self._produces.setdefault(peer, set()).update(p.group_name for p in beat.producer_data_set)
        id_weight = _long(beat.client_id)
        sender = sender or peer.sender
        if sender is not None and self.may_be_sent(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, sender, "", ""):
            self._ids.said(beat.client_id, sender.user, now_ms)
        for producer in beat.producer_data_set:
            members = self.producers.setdefault(producer.group_name, {})
            self._forget_producer(members.get(peer))
            weight = 1 + _long(producer.group_name) + id_weight
            members[peer] = ConnectedClient(beat.client_id, peer, language, version, now_ms, weight, sender)
            self._note_producer(members[peer])
        for consumer in beat.consumer_data_set:
            weight = _weight(consumer) + id_weight
            client = ConnectedClient(beat.client_id, peer, language, version, now_ms, weight, sender)
            self._beat_consumer(consumer, client)

    def producer_to_ask(self, group: str, topic: str, turn: int) -> ConnectedClient | None:
        """Return a producer of a group that may be asked how a half message of a topic ended; None if there is none.

        `turn`: a rising number, by which the group's producers are asked in rotation.
        """
        members = list(self.producers.get(group, {}).values())
        code = RequestCode.CHECK_TRANSACTION_STATE
        for step in range(len(members)):
            client = members[(turn + step) % len(members)]
            # One that does not read is not written to: the message waits for the next round.
            is_there = client.peer.is_open and client.peer.is_writable
            if is_there and self.may_be_sent(code, client.sender, topic, group):
                return client
        return None

    def broadcasting(self) -> dict[str, list[str]]:
        """Return the client ids of the members of each broadcasting group."""
        return {
            name: group.client_ids() for name, group in self.consumers.items() if group.message_model == "BROADCASTING"
        }

    def member_id(self, group: str, peer: Peer) -> str:
        """Return the client id under which a connection is a member of a consumer group; "" if it is none."""
        found = self.consumers[group].clients.get(peer) if group in self.consumers else None
        return "" if found is None else found.client_id

    async def ask(self, client: ConnectedClient, code: int, header: Header, body: bytes, *, timeout_ms: float) -> Reply:
        """Send a client a request, and return its reply. Raises TransportError, at once if the client does not read."""
        peer, size = client.peer, len(body)
        asked = self._asked.get(peer, 0)
        if not peer.is_writable or (asked and asked + size > ASKED_OF_CLIENT_BYTES_MAX):
            raise NotSent(f"{peer.address} does not read what it is sent", address=peer.address)
        if self._asked_bytes + size > ASKED_BYTES_MAX:
            raise NotSent(f"{peer.address}: clients have not answered too much already", address=peer.address)
        self._asked[peer] = asked + size
        self._asked_bytes += size
        try:
            return await peer.request(code, header, body, timeout_ms=timeout_ms)
        finally:
            self._asked_bytes -= size
            left = self._asked.pop(peer, 0) - size
            if left:
                self._asked[peer] = left

    def producer_named(self, client_id: str) -> ConnectedClient | None:
        """Return the producer that gets the replies for a client id: one of the user who came first with that id.

        If the user has several connections with it, the one whose heartbeat is newest: an older one may have been cut.
        """
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        found = [
            client
            for _, client in self._saying.get(client_id, {}).values()
            if client.peer.is_open and self.may_be_sent(code, client.sender, "", "")
        ]

        def turn(client: ConnectedClient) -> tuple[int, int]:
            user = client.sender.user if client.sender is not None else None
            return 0 if user is None else self._ids.turn(client_id, user), -client.beat_ms

        return min(reversed(found), key=turn, default=None)

    def _note_producer(self, client: ConnectedClient) -> None:
        self._weigh(client)
        saying = self._saying.setdefault(client.client_id, {})
        saying[client.peer] = saying.get(client.peer, (0, client))[0] + 1, client

    def _forget_producer(self, client: ConnectedClient | None) -> None:
        if client is None:
            return
        self._weigh(client, -1)
        saying = self._saying[client.client_id]
        groups, last = saying.pop(client.peer)
        if groups > 1:
            saying[client.peer] = groups - 1, last
        elif not saying:
            del self._saying[client.client_id]

    def _weigh(self, client: ConnectedClient | None, times: int = 1) -> None:
        if client is not None:
            host = place_of(client.peer.remote_host)
            self.weight += client.weight * times
            self._host_weights[host] += client.weight * times
            if not self._host_weights[host]:
                del self._host_weights[host]

    def _check_room(self, peer: Peer, beat: Heartbeat) -> None:
        """Raise ServerError 2 for a heartbeat that would take more than all clients, or those of a host, may."""
        more = sum(map(_weight, beat.consumer_data_set))
        more += sum(1 + _long(producer.group_name) for producer in beat.producer_data_set)
        more += _long(beat.client_id) * (len(beat.consumer_data_set) + len(beat.producer_data_set))
        of_host = self._host_weights[place_of(peer.remote_host)]
        if self.weight + more <= WEIGHT_MAX and of_host + more <= HOST_WEIGHT_MAX:
            return
        # Most heartbeats say again what is known.
        known = [
            *(self.producers.get(p.group_name, {}).get(peer) for p in beat.producer_data_set),
            *(
                self.consumers[c.group_name].clients.get(peer)
                for c in beat.consumer_data_set
                if c.group_name in self.consumers
            ),
        ]
        more -= sum(client.weight for client in known if client is not None)
        if more <= 0:
            return
        if self.weight + more > WEIGHT_MAX or of_host + more > HOST_WEIGHT_MAX:
            log.warning("%s: a heartbeat was refused, clients and subscriptions are too many", peer.address)
            raise ServerError(
                ResponseCode.SYSTEM_BUSY, "clients and subscriptions of all, or of this host, are too many"
            )

    def check(self, peer: Peer, beat: Heartbeat) -> None:
        """Raise ServerError 29 for a heartbeat that would put a connection into too many groups."""
        of_groups = self._consumes.get(peer, set()) | {c.group_name for c in beat.consumer_data_set}
        as_producer = self._produces.get(peer, set()) | {p.group_name for p in beat.producer_data_set}
        subscribed = max((len(c.subscription_data_set) for c in beat.consumer_data_set), default=0)
        for what, count, most in (
            ("consumer groups", len(of_groups), CONSUMERS_MAX),
            ("producer groups", len(as_producer), PRODUCERS_MAX),
            ("subscriptions of a group", subscribed, SUBSCRIPTIONS_MAX),
            ("characters of the client id", len(beat.client_id), CLIENT_ID_LENGTH_MAX),
        ):
            if count > most:
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"the heartbeat names {count} {what}; one connection has at most {most}: use several clients",
                )
        self._check_room(peer, beat)

    def _beat_consumer(self, data: ConsumerData, client: ConnectedClient) -> None:
        wanted = {s.topic: s.subscription() for s in data.subscription_data_set}
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(
                data.group_name, str(data.consume_type), str(data.message_model), str(data.consume_from_where), {}, {}
            )
        group.consume_type = str(data.consume_type)
        group.message_model = str(data.message_model)
        group.consume_from = str(data.consume_from_where)
        changed = client.peer not in group.clients
        # A client that reconnects has a new connection while the old one may not have ended yet.
        for peer in [p for p, c in group.clients.items() if c.client_id == client.client_id and p is not client.peer]:
            if not peer.is_open:
                self._weigh(lost := group.clients.pop(peer), -1)
                _take_out(self._consumes, peer, data.group_name)
                _forget_heavy(group, lost)
        before = group.clients.get(client.peer)
        self._weigh(before, -1)
        group.clients[client.peer] = client
        _forget_heavy(group, before)
        bare = (s for s in wanted.values() if not s.topic.startswith(RETRY_PREFIX))
        client.subscribed = frozenset((s.topic, s.expression) for s in bare)
        if client.subscribed and (before is None or before.subscribed != client.subscribed):
            _warn_of_others(group, client)
        self._weigh(client)
        self._consumes.setdefault(client.peer, set()).add(data.group_name)
        if _subscribe(group, wanted) or changed:
            self._on_change(group)

    def leave(self, peer: Peer, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Take a connection out of the groups named."""
        if producer_group is not None and producer_group in self.producers:
            self._forget_producer(self.producers[producer_group].pop(peer, None))
            _take_out(self._produces, peer, producer_group)
            if not self.producers[producer_group]:
                del self.producers[producer_group]
        if consumer_group is not None:
            self._leave_consumer(consumer_group, peer)

    def _leave_consumer(self, name: str, peer: Peer) -> None:
        group = self.consumers.get(name)
        client = group.clients.pop(peer, None) if group is not None else None
        if group is None or client is None:
            return
        self._weigh(client, -1)
        _take_out(self._consumes, peer, name)
        if not group.clients:
            del self.consumers[name]
        else:
            _forget_heavy(group, client)
            self._on_change(group)

    def disconnected_steps(self, peer: Peer) -> Iterator[None]:
        """Remove a connection that ended from all its groups; yields between pieces, for the loop's other work."""
        for number, name in enumerate(list(self._produces.get(peer, ())), 1):
            if number % LEFT_IN_TURN == 0:
                yield
            self.leave(peer, producer_group=name)
        for number, name in enumerate(list(self._consumes.get(peer, ())), 1):
            if number % LEFT_IN_TURN == 0:
                yield
            self._leave_consumer(name, peer)

    def expire_steps(self, now_ms: int) -> Iterator[None]:
        """Remove clients whose last heartbeat is too long ago; yields after each piece of some ms."""
        oldest = now_ms - self._expiry_ms
        self._ids.expire(now_ms)
        looked_at = 0
        for name in list(self.producers):
            if looked_at > LOOKED_AT_IN_TURN:
                yield
                looked_at = 0
            members = self.producers.get(name, {})
            silent = [c for c in members.values() if c.beat_ms < oldest]
            looked_at += 1 + len(members) + len(silent) * DROPPED_AS_LOOKED_AT
            for client in silent:
                log.warning("producer %s of group %s is silent: dropped", client.client_id, name)
                self.leave(client.peer, producer_group=name)
        for name in list(self.consumers):
            if looked_at > LOOKED_AT_IN_TURN:
                yield
                looked_at = 0
            group = self.consumers.get(name)
            if group is None:
                continue
            silent = [c for c in group.clients.values() if c.beat_ms < oldest]
            looked_at += 1 + len(group.clients) + len(silent) * DROPPED_AS_LOOKED_AT
            for client in silent:
                log.warning("consumer %s of group %s is silent: dropped", client.client_id, name)
                self._leave_consumer(name, client.peer)


def _forget_heavy(group: ConsumerGroup, gone: ConnectedClient | None) -> None:
    """Forget the subscriptions of a group if a member that told much more than any of those that are there is gone, or
    tells less now: its weight counts no more. What others told too stays: their pulls name no filter. They tell the
    rest again with their next heartbeats.
    """
    if gone is None or gone.weight <= LIGHT_WEIGHT:
        return
    if any(2 * other.weight >= gone.weight for other in group.clients.values()):
        return
    known = {(RETRY_PREFIX + group.name, ALL)}.union(*(other.subscribed for other in group.clients.values()))
    for topic, subscription in list(group.subscriptions.items()):
        if (topic, subscription.expression) not in known or not _is_lean(subscription):
            del group.subscriptions[topic]


def _subscribe(group: ConsumerGroup, wanted: Mapping[str, Subscription]) -> bool:
    """Give a group the subscriptions of a member's heartbeat; tells whether its topics or expressions changed."""
    changed = False
    for topic, subscription in wanted.items():
        known = group.subscriptions.get(topic)
        if known is None or subscription.version > known.version:
            changed = changed or known is None or known.expression != subscription.expression
            group.subscriptions[topic] = subscription
    for topic in [t for t in group.subscriptions if t not in wanted]:
        del group.subscriptions[topic]
        changed = True
    return changed


def _is_lean(subscription: Subscription) -> bool:
    """Tell whether a subscription says no more than topic and expression, which is all that is kept of members."""
    count, characters = subscription.expression.count("||") + 1, sum(map(len, subscription.tags))
    if _long(subscription.expression_type):
        return False
    return max(len(subscription.tags), len(subscription.codes)) <= count and characters <= len(subscription.expression)


def _warn_of_others(group: ConsumerGroup, client: ConnectedClient) -> None:
    """Log it if another member of a group subscribes to something else."""
    for other in group.clients.values():
        if other.subscribed and other.subscribed != client.subscribed:
            text = "members of group %s subscribe to different topics or filters: %s only to %s, %s only to %s; a group"
            text += " has one subscription, so its members lose messages to each other: use a group for each"
            mine, others = client.subscribed - other.subscribed, other.subscribed - client.subscribed
            log.warning(text, group.name, client.client_id, _some(mine), other.client_id, _some(others))
            return


def _some(subscribed: frozenset[tuple[str, str]]) -> str:
    return ", ".join(f"{topic} ({expression})" for topic, expression in sorted(subscribed)[:SHOWN_MAX]) or "nothing"


def _weight(consumer: ConsumerData) -> int:
    subscriptions = consumer.subscription_data_set
    characters = sum(len(s.sub_string) + sum(map(len, s.tags_set)) for s in subscriptions)
    characters += sum(len(s.tags_set) + len(s.code_set) for s in subscriptions) * TAG_CHARACTERS
    types = str(consumer.consume_type), str(consumer.message_model), str(consumer.consume_from_where)
    names = sum(_long(s.topic, s.expression_type or "") for s in subscriptions)
    return 1 + len(subscriptions) + characters // WEIGHT_CHARACTERS + names + _long(consumer.group_name, *types)


def _long(*names: str) -> int:
    """Return what names weigh that may be of any length; nothing if they are as long as names are."""
    return sum(len(name) // WEIGHT_CHARACTERS for name in names)


def _take_out(groups: dict[Peer, set[str]], peer: Peer, name: str) -> None:
    names = groups.get(peer)
    if names is not None:
        names.discard(name)
        if not names:
            del groups[peer]
