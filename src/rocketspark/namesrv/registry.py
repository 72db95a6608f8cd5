"""The registry of live brokers and their topics. Pure: no sockets; the time, of a clock never set, is an argument.

Rules (RouteInfoManager, 5.5.0): a registration adds topics, and removes none unless told to; a broker's queue data is
taken when it is the master's, or the lowest slave's, and its data version changed or the topic is new; of two brokers
with one id the one with the higher state version stays; a broker is dropped when it leaves, is silent too long or its
connection ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from rocketspark.errors import ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID, PERM_READ, PERM_WRITE
from rocketspark.model.text import shown
from rocketspark.namesrv.acting_master import (
    MEMBER_TOPIC_PREFIX,
    MinIdChange,
    PlainRules,
    ReplicaRules,
    acting,
    after_arrival,
    after_departure,
    has_no_master,
)
from rocketspark.namesrv.registration_limits import (
    BROKERS_MAX,
    NAME_CHARACTERS_MAX,
    QUEUES_MAX,
    REPLICAS_MAX,
    TOPICS_MAX,
    is_mapping,
    is_topic,
)
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import (
    BrokerDataBody,
    ClusterInfo,
    DataVersion,
    QueueDataBody,
    QueueMapping,
    TopicConfigTable,
)

log = LimitedLog("rocketspark.namesrv")

T = TypeVar("T")
EXPIRY_MS = 120_000
# Topics of one registration, or of a broker that left, in a step: some ms.
TOPICS_IN_TURN = 1000
_WHY = (
    f"its name is over {NAME_CHARACTERS_MAX} characters or cannot be shown, it has over {QUEUES_MAX} queues, or too"
    " many topics are registered"
)


class LiveBroker(msgspec.Struct, kw_only=True):
    """One broker process as it registered: when it was last heard of, and over which connection. Its address is what
    tells it from others, also once it is moved to another cluster.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    heard_ms: int
    expiry_ms: int = EXPIRY_MS
    zone: str | None = None
    version: DataVersion
    connection: Hashable


class Leaver(NamedTuple):
    """A broker that says that it leaves."""

    broker_name: str
    broker_id: int
    address: str


class Registry:
    """The route table of one NameServer.

    `rules`: the settings it follows; `tell`: called with each change of a group's lowest id, if the rules want it;
    `brokers_max`: the most brokers; `topics_max`: the most topics, each counted once for every broker that has it.
    """

    def __init__(
        self,
        rules: ReplicaRules | None = None,
        tell: Callable[[MinIdChange], object] = lambda _: None,
        *,
        brokers_max: int = BROKERS_MAX,
        topics_max: int = TOPICS_MAX,
    ) -> None:
        self._rules = rules or PlainRules()
        self._tell = tell
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._brokers: dict[str, BrokerDataBody] = {}
        self._topics: dict[str, dict[str, QueueDataBody]] = {}
        # Of static topics, and of a broker only while it carries the topic.
        self._mappings: dict[str, dict[str, QueueMapping]] = {}
        # The same queues by broker name and topic, so that one that goes costs what it had and no more.
        # In the order they came, in which they lie in memory: half the time of a set.
        self._carried: dict[str, dict[str, QueueDataBody]] = {}
        self._carried_count = 0
        # Brokers that left, each with the topics that are still to be taken out of its name.
        self._leaving: deque[tuple[str, dict[str, QueueDataBody]]] = deque()
        self._live: dict[str, LiveBroker] = {}
        self._over: dict[Hashable, set[str]] = {}
        # By name and id, the address that another one replaced last.
        self._turned_out: dict[tuple[str, int], str] = {}

    # -- brokers ---------------------------------------------------------------------------------------------------

    def register(
        self, live: LiveBroker, topics: TopicConfigTable, acting_master: bool | None = None
    ) -> Generator[None, None, LiveBroker | None]:
        """Take a broker's registration in steps; returns its live master if it is a slave, else None.

        `live`: the broker, under the version of its `topics`; `acting_master`: whether the lowest slave of its group
        may stand in for a master; None from a broker that knows nothing of it. Yields after each step of topics, so
        that other requests go on; a broker dropped in between stays dropped. Invalid topics, and topics over the limit,
        are left out with a line in the log. Raises ServerError 29 if there are too many brokers, in all or of the name,
        1 for an id that is not registered yet and comes with one topic alone.
        """
        if live.address not in self._live and len(self._live) >= self._brokers_max:
            raise _too_many(f"{len(self._live)} brokers are registered here")
        if self._is_stale(live):
            return None
        self._check_id(live, topics)
        data, changed, lowered = self._arrive(live, bool(acting_master))
        if live.broker_id == MASTER_ID or (acting_master is not None and live.broker_id == min(data.broker_addrs)):
            read_only = bool(acting_master) and live.broker_id != MASTER_ID
            for _ in self._take_topics(live.broker_name, topics, changed, read_only):
                yield
                # A lower id that came meanwhile brought its own.
                if not self._leads(live, data):
                    break
        if lowered and self._leads(live, data) and self._rules.notify_min_id:
            self._tell(after_arrival(data.broker_addrs, live.ha_address))
        master = data.broker_addrs.get(MASTER_ID) if live.broker_id != MASTER_ID else None
        return self._live.get(master) if master else None

    def _check_id(self, live: LiveBroker, topics: TopicConfigTable) -> None:
        """Raise ServerError if a broker may not come under an id that its group does not have yet."""
        data = self._brokers.get(live.broker_name)
        held = data.broker_addrs if data is not None else {}
        if live.broker_id in held:
            return
        if len(topics.topic_config_table) == 1:
            # A change told of before the whole table was: the other topics would be missing until the next one.
            raise ServerError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if len(held) >= REPLICAS_MAX:
            raise _too_many(f"{len(held)} brokers are registered under this name")

    def _arrive(self, live: LiveBroker, acting_master: bool) -> tuple[BrokerDataBody, bool, bool]:
        """Let a broker live; returns its group, whether its topics are to be taken as changed, and whether its id is
        the lowest now and was not before.
        """
        known = self._live.get(live.address)
        if known is not None and known.broker_name != live.broker_name:
            self._leave([known])
            known = None
        data = self._brokers.setdefault(
            live.broker_name, BrokerDataBody(cluster=live.cluster, broker_name=live.broker_name, broker_addrs={})
        )
        data.cluster = live.cluster
        data.enable_acting_master = acting_master
        data.zone_name = live.zone or msgspec.UNSET
        lowered = live.broker_id < min(data.broker_addrs, default=MASTER_ID)
        self._warn_of_turns(data, live)
        changed = self._place(data, live.broker_id, live.address) or known is None or known.version != live.version
        self._forget(live.address)
        self._live[live.address] = live
        self._over.setdefault(live.connection, set()).add(live.address)
        return data, changed, lowered

    def _leads(self, live: LiveBroker, data: BrokerDataBody) -> bool:
        """Tell whether a broker still lives, with the lowest id of its group."""
        return self._live.get(live.address) is live and live.broker_id == min(data.broker_addrs)

    def _is_stale(self, stale: LiveBroker) -> bool:
        """Tell whether a live broker at another address holds the id under a higher state version.

        The stale one leaves the routes, under all its ids. So of two brokers that both think they were elected the
        later one stays, in whichever order they register.
        """
        data = self._brokers.get(stale.broker_name)
        held = data.broker_addrs.get(stale.broker_id) if data is not None else None
        if data is None or held is None or held == stale.address:
            return False
        holder = self._live.get(held)
        if holder is None or holder.version.state_version <= stale.version.state_version:
            return False
        log.warning(
            "broker %s (%s) is not taken as id %d: %s holds it under state version %d, which is above %d",
            stale.broker_name,
            stale.address,
            stale.broker_id,
            held,
            holder.version.state_version,
            stale.version.state_version,
        )
        known = self._live.get(stale.address)
        if known is not None and known.broker_name != stale.broker_name:
            self._leave([known])
        for other_id in [i for i, a in data.broker_addrs.items() if a == stale.address]:
            del data.broker_addrs[other_id]
        self._forget(stale.address)
        return True

    def _place(self, data: BrokerDataBody, broker_id: int, address: str) -> bool:
        """Set a broker's address under its id, and there alone; return whether the id is new."""
        # One address is one broker: a restart under another id replaces the old entry.
        for other_id in [i for i, a in data.broker_addrs.items() if a == address and i != broker_id]:
            del data.broker_addrs[other_id]
        replaced = data.broker_addrs.get(broker_id)
        if replaced is not None and replaced != address:
            self._forget(replaced)
        data.broker_addrs[broker_id] = address
        return replaced is None

    def _warn_of_turns(self, data: BrokerDataBody, live: LiveBroker) -> None:
        """Warn of two live brokers that have one name and id, once the first that was replaced is back.

        Only one of them is in the routes at a time, as with RocketMQ, whose NameServer replaces without a word. A
        broker that moved replaces once; of two masters that a controller elected the state version decides.
        """
        other = data.broker_addrs.get(live.broker_id)
        if other is None or other == live.address:
            return
        holder = self._live.get(other)
        place = live.broker_name, live.broker_id
        if holder is not None and holder.version.state_version == live.version.state_version:
            if self._turned_out.get(place) == live.address:
                log.warning(
                    "brokers at %s and %s both are %s with id %d, and replace each other in the routes: give each its"
                    " own brokerName",
                    *sorted((live.address, other)),
                    shown(live.broker_name),
                    live.broker_id,
                )
            elif len(self._turned_out) >= self._brokers_max:
                self._turned_out.clear()
            self._turned_out[place] = other

    def _take_topics(
        self, broker_name: str, topics: TopicConfigTable, changed: bool, read_only: bool
    ) -> Iterator[None]:
        mappings = topics.topic_queue_mapping_info_map
        if self._rules.delete_topics and not mappings:
            for topic in self._carried.get(broker_name, {}).keys() - topics.topic_config_table.keys():
                self._drop_queues(topic, broker_name)
        carried = self._carried.get(broker_name, ())
        refused = []
        for number, config in enumerate(topics.topic_config_table.values(), 1):
            if number % TOPICS_IN_TURN == 0:
                yield
            topic = config.topic_name
            # A topic that is missing is taken under a known version too: registrations overtake each other.
            if not changed and topic in carried:
                continue
            mapping = mappings.get(topic)
            # One whose mapping cannot be passed on would be misread.
            fits = is_topic(topic, config) and (mapping is None or is_mapping(mapping))
            if not fits or not self._has_room(broker_name, topic):
                refused.append(topic)
                continue
            self._set_queues(
                topic,
                QueueDataBody(
                    broker_name=broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm & ~PERM_WRITE if read_only else config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                ),
            )
        # Also of topics that came before: a table in parts brings all mappings with the last one.
        for topic, mapping in mappings.items():
            queues = self._topics.get(topic)
            if queues is not None and broker_name in queues and is_mapping(mapping):
                self._mappings.setdefault(topic, {})[broker_name] = mapping
        if refused:
            log.warning(
                f"of broker %s %d topics, such as %s, are not taken: {_WHY}", broker_name, len(refused), refused[0]
            )

    def _has_room(self, broker_name: str, topic: str) -> bool:
        return self._carried_count < self._topics_max or topic in self._carried.get(broker_name, ())

    def _set_queues(self, topic: str, data: QueueDataBody) -> None:
        carried = self._carried.setdefault(data.broker_name, {})
        if self._leaving and topic not in carried:
            self._take_out(topic, data.broker_name)
        self._topics.setdefault(topic, {})[data.broker_name] = data
        self._carried_count += topic not in carried
        carried[topic] = data

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        carried = self._carried.get(broker_name, {})
        if topic not in carried:
            return
        self._take_out(topic, broker_name)
        del carried[topic]
        self._carried_count -= 1
        if not carried:
            del self._carried[broker_name]

    def _take_out(self, topic: str, broker_name: str) -> None:
        """Remove what the tables have of a topic on a broker."""
        for table in (self._topics, self._mappings):
            of_topic: dict[str, Any] | None = table.get(topic)
            if of_topic is not None and of_topic.pop(broker_name, None) is not None and not of_topic:
                del table[topic]

    def _drop_all_queues(self, broker_name: str) -> None:
        """Let a broker carry no topic; `settle` takes them out of the tables, the first ones at once."""
        carried = self._carried.pop(broker_name, {})
        self._carried_count -= len(carried)
        self._leaving.append((broker_name, carried))
        if len(self._leaving) == 1:
            next(self.settle(), None)

    def settle(self) -> Iterator[None]:
        """Remove the topics of brokers that left from the tables; yields between steps, so that other requests go on.

        Until it ends, lists of topics may name them; routes do not.
        """
        while self._leaving:
            name, left = self._leaving[0]
            # It may be back meanwhile.
            anew = self._carried.get(name, ())
            for _ in range(min(TOPICS_IN_TURN, len(left))):
                topic = left.popitem()[0]
                if topic not in anew:
                    self._take_out(topic, name)
            if not left:
                self._leaving.popleft()
            if self._leaving:
                yield

    @property
    def is_settled(self) -> bool:
        """Tell whether `settle` has nothing to do."""
        return not self._leaving

    def _forget(self, address: str) -> None:
        """Take a broker out of the live ones, and from its connection."""
        live = self._live.pop(address, None)
        if live is None:
            return
        addresses = self._over[live.connection]
        addresses.discard(address)
        if not addresses:
            del self._over[live.connection]

    def heard(self, cluster: str, address: str, now_ms: int) -> None:
        """Note a broker's heartbeat at a time."""
        live = self._live.get(address)
        if live is not None and live.cluster == cluster:
            live.heard_ms = now_ms

    def version_of(self, cluster: str, address: str, now_ms: int) -> DataVersion | None:
        """Return the data version that a broker registered last, None if it is unknown; also notes a heartbeat."""
        self.heard(cluster, address, now_ms)
        live = self._live.get(address)
        return live.version if live is not None and live.cluster == cluster else None

    def unregister(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        """Drop a broker at once, whatever its id; with the last address of its group the queues leave every route.

        A broker at this address that has registered under another name, or in another cluster, since stays.
        """
        live = self._live.get(address)
        if live is None or (live.cluster, live.broker_name) == (cluster, broker_name):
            self._leave([Leaver(broker_name, broker_id, address)])

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Drop the brokers that were silent for longer than they announced; return them."""
        silent = [b for b in self._live.values() if b.heard_ms + b.expiry_ms < now_ms]
        self._leave(silent)
        return silent

    def heard_all(self, now_ms: int) -> None:
        """Let all brokers count as heard of: while this server heard nobody, what they sent waited to be read."""
        for broker in self._live.values():
            broker.heard_ms = now_ms

    def disconnected(self, connection: Hashable) -> list[LiveBroker]:
        """Drop the brokers that registered over a connection that ended; return them."""
        lost = [self._live[address] for address in self._over.get(connection, ())]
        self._leave(lost)
        return lost

    def is_used(self, connection: Hashable) -> bool:
        """Tell whether a live broker registered over the connection."""
        return connection in self._over

    def _leave(self, leavers: Iterable[LiveBroker | Leaver]) -> None:
        """Drop brokers together: what remains of their groups is told once."""
        # The lowest id of each group, and who had it.
        lowest: dict[str, tuple[int, str]] = {}
        for leaver in leavers:
            self._forget(leaver.address)
            name = leaver.broker_name
            data = self._brokers.get(name)
            left = _id_of(data, leaver) if data is not None else None
            if data is None or left is None:
                continue
            if name not in lowest:
                low = min(data.broker_addrs)
                lowest[name] = low, data.broker_addrs[low]
            del data.broker_addrs[left]
        for name, (low, address) in lowest.items():
            self._shrunk(self._brokers[name], low, address)

    def _shrunk(self, data: BrokerDataBody, low: int, address: str) -> None:
        """Drop a group of which nobody is left; wipe the write permission of one without a master."""
        if not data.broker_addrs:
            del self._brokers[data.broker_name]
            self._drop_all_queues(data.broker_name)
            return
        if has_no_master(data):
            # It comes back with the master, whose first registration brings all its topics.
            self.set_writable(data.broker_name, False)
        if low not in data.broker_addrs and data.enable_acting_master and self._rules.notify_min_id:
            self._tell(after_departure(data.broker_addrs, address))

    def clusters(self) -> ClusterInfo:
        """Return every broker with its addresses, and the broker names of each cluster."""
        clusters: dict[str, list[str]] = {}
        for name, data in self._brokers.items():
            clusters.setdefault(data.cluster, []).append(name)
        return ClusterInfo(broker_addr_table=dict(self._brokers), cluster_addr_table=clusters)

    def members(self, broker_name: str) -> BrokerDataBody | None:
        """Return the addresses under one broker name."""
        return self._brokers.get(broker_name)

    # -- topics ----------------------------------------------------------------------------------------------------

    def route(self, topic: str) -> tuple[list[BrokerDataBody], list[QueueDataBody]] | None:
        """Return (brokers, queues) of a topic, None if no live broker has it."""
        queues = self._carried_now(topic, self._topics)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if self._rules.acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX):
            brokers = [acting(data, queues[data.broker_name]) for data in brokers]
        return (brokers, list(queues.values())) if brokers else None

    def mappings(self, topic: str) -> dict[str, QueueMapping]:
        """Return the mappings of a static topic, by names of live brokers; empty for an ordinary topic."""
        return self._carried_now(topic, self._mappings)

    def _carried_now(self, topic: str, table: dict[str, dict[str, T]]) -> dict[str, T]:
        """Return what a table has of a topic, without brokers that left."""
        found = table.get(topic, {})
        if self._leaving:
            return {name: value for name, value in found.items() if topic in self._carried.get(name, ())}
        return found

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._topics)

    def of_flag(self, topics: Iterable[str], mask: int, wanted: int) -> list[str]:
        """Return those of the topics whose system flag, masked by `mask`, is `wanted`, as their first broker has it."""
        found = ((topic, self._topics.get(topic)) for topic in topics)
        return [t for t, queues in found if queues and next(iter(queues.values())).topic_sys_flag & mask == wanted]

    def brokers_of_cluster(self, cluster: str) -> frozenset[str]:
        """Return the names of a cluster's brokers."""
        return frozenset(n for n, d in self._brokers.items() if d.cluster == cluster)

    def carried_by(self, topics: Iterable[str], broker_names: Collection[str]) -> list[str]:
        """Return those of the topics that at least one of these brokers has."""
        wanted = frozenset(broker_names)
        return [topic for topic in topics if not wanted.isdisjoint(self._topics.get(topic, ()))]

    def set_queues(self, topic: str, queues: Iterable[QueueDataBody]) -> None:
        """Take the queues of one topic that a broker registers alone, up to the first broker that is not live.

        A new topic is taken only if all of its brokers are live. Rule: registerTopic, 5.x. Raises ServerError 29 for a
        topic that no broker may have.
        """
        taken: dict[str, QueueDataBody] = {}
        for data in queues:
            if data.broker_name not in self._brokers:
                if topic not in self._topics:
                    return
                break
            if not is_topic(topic, data) or not self._has_room(data.broker_name, topic):
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER, f"topic {shown(topic, characters_max=60)!r} is not taken: {_WHY}"
                )
            taken[data.broker_name] = data
        for data in taken.values():
            self._set_queues(topic, data)

    def delete_topic(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        """Forget a topic, on all brokers or on those named. Brokers that still have it may register it again."""
        for name in list(self._topics.get(topic, ()) if broker_names is None else broker_names):
            self._drop_queues(topic, name)

    def forget_topic(self, topic: str, connection: Hashable) -> None:
        """Forget a topic on the broker that registered over a connection, if it leads its group. The queues that others
        have of it stay.
        """
        for address in self._over.get(connection, ()):
            live = self._live[address]
            if self._leads(live, self._brokers[live.broker_name]):
                self._drop_queues(topic, live.broker_name)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Remove or restore the write permission of a broker's queues; return how many topics the broker has."""
        carried = self._carried.get(broker_name, {})
        for data in carried.values():
            data.perm = PERM_READ | PERM_WRITE if writable else data.perm & ~PERM_WRITE
        return len(carried)


def _too_many(what: str) -> ServerError:
    return ServerError(ResponseCode.INVALID_PARAMETER, f"{what}, as many as are taken")


def _id_of(data: BrokerDataBody, leaver: LiveBroker | Leaver) -> int | None:
    """Return the id that stands at a broker's address, whatever it says itself; None if none does."""
    if data.broker_addrs.get(leaver.broker_id) == leaver.address:
        return leaver.broker_id
    return next((i for i, a in data.broker_addrs.items() if a == leaver.address), None)
