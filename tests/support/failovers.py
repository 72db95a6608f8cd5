"""Two brokers of a name under a controller as processes, ours or official, load on them, and what must be there after.

Rule: no send is tried again, each try is another number: what was answered is there once, anything else once at most.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tests.java.apache import ask
from tests.java.apache_pair import (
    COMMON,
    CONTROLLED,
    NAME,
    PairBroker,
    PairNamesrv,
    Replicas,
    elect,
    has_topic,
    replicas,
    until,
)
from tests.java.our_controller import OurServer, our_controller, our_namesrv
from tests.support.controllers import Controllers
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark.admin.operations import Admin
from rocketspark.broker.broker_conf import settings_from
from rocketspark.client import Producer, PushConsumer, SendStatus, TransactionProducer, TransactionState
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message, ReceivedMessage
from rocketspark.protocol.message import properties
from rocketspark.store import Store

ORDERS, LATER, TRADES = "orders", "later", "trades"
TOPICS = (ORDERS, LATER, TRADES)
QUEUES = 4
KEYS = 3
PAUSE_S = 0.005
FILES = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}
# A held transaction is asked for soon.
TRADING = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 1000}


class OurMember(OurServer):
    """A broker of ours. `broker`: its address; `store`: its folder."""

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        store: Path,
        controller: str,
        config: dict[str, Any],
        *,
        clock: Path | None = None,
    ) -> None:
        port = free_ports(-2, 0, 1)
        self.broker, self.store = f"127.0.0.1:{port}", store
        settings = {"brokerClusterName": "DefaultCluster", "brokerName": NAME, "listenPort": port}
        settings |= {"haListenPort": port + 1, "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1"}
        settings |= {"namesrvAddr": namesrv, "controllerAddr": controller, "storePathRootDir": store}
        settings |= FILES | COMMON | CONTROLLED | config
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        super().__init__(folder, "broker", lines, clock=clock)


Member = OurMember | PairBroker


def _official_names(folder: Path) -> tuple[PairNamesrv, str]:
    found = PairNamesrv(folder / "namesrv")
    return found, found.namesrv


class ReplicaSet:
    """A NameServer, a controller and two brokers; the first begins as master.

    Args:
        kinds: of the brokers in turn, P ours or J official.
        controller: whose controller and NameServer.
        controllers: how many.
        raft: by what official ones agree; without it the one is inside of the NameServer.
        config: more keys of both brokers.
    """

    def __init__(
        self,
        folder: Path,
        kinds: str = "PP",
        controller: Literal["ours", "official"] = "ours",
        config: dict[str, Any] | None = None,
        *,
        controllers: int = 1,
        raft: Literal["dledger", "jraft", ""] = "",
    ) -> None:
        self._folder = folder
        self.kinds = kinds
        self.group: Controllers | None = None
        self._config = TRADING | (config or {})
        self._servers: list[Any] = []
        self.members: list[Member] = []
        try:
            if controllers > 1 or raft:
                names, self.namesrv = our_namesrv(folder) if controller == "ours" else _official_names(folder)
                self._servers.append(names)
                self.group = Controllers(folder, "ours" if controller == "ours" else raft or "dledger", controllers)
                self._servers.append(self.group)
                self.control, self.controller = next(iter(self.group.servers.values())), self.group.address
            elif controller == "ours":
                names, self.namesrv = our_namesrv(folder)
                self._servers.append(names)
                self.control, self.controller = our_controller(folder)
                self._servers.append(self.control)
            else:
                both = PairNamesrv(folder / "namesrv", "controller")
                self._servers.append(both)
                self.control, self.namesrv, self.controller = both, both.namesrv, both.controller
            self.add(kinds[0])
            until(lambda: self.state().master, what="a master")
            for kind in kinds[1:]:
                self.add(kind)
            self.wait_in_sync(len(kinds))
        except BaseException:
            self.close()
            raise

    def add(self, kind: str) -> Member:
        """Start one more broker of the name."""
        number = len(self.members)
        folder, store = self._folder / f"broker-{number}", self._folder / f"store-{number}"
        found = self._made(kind, folder, store, self.controller)
        self._servers.append(found)
        self.members.append(found)
        return found

    def _made(self, kind: str, folder: Path, store: Path, controller: str) -> Member:
        if kind == "P":
            return OurMember(folder, self.namesrv, store, controller, self._config)
        config = FILES | self._config
        return PairBroker(folder, self.namesrv, store, "controller", controller=controller, config=config)

    def leading(self) -> str:
        """The address of the controller that leads. Raises OSError if none of several does."""
        return self.controller if self.group is None else self.group.leading()

    def state(self) -> Replicas:
        """What the controller knows."""
        return replicas(self.leading())

    def master(self) -> Member | None:
        """The one that the controller calls master."""
        address = self.state().master
        return next((member for member in self.members if member.broker == address), None)

    def other(self, member: Member) -> Member:
        """The other one of two."""
        return next(found for found in self.members if found is not member)

    def wait_in_sync(self, count: int = 2, limit_s: float = LIMIT_S) -> Member:
        """Wait until so many are in the in-sync set; returns the master."""
        until(lambda: self.state().master and len(self.state().in_sync) >= count, limit_s, f"{count} in sync")
        return until(self.master)

    def wait_heard(self) -> None:
        """Wait until the controller heard of all since it started: one that it never heard may still come."""
        until(
            lambda: ask(self.leading(), 1006, b'["%s"]' % NAME.encode()).body.count(b'"alive":true') == len(self.kinds)
        )

    def elect_other(self) -> Member:
        """Have the other of two elected; returns it."""
        before = self.state()
        (wanted,) = before.in_sync - {before.master_id or 0}
        assert elect(self.leading(), wanted) == 0
        return until(lambda: self.master() if self.state().master_id == wanted else None)

    def close(self) -> None:
        """End all, by force."""
        for server in reversed(self._servers):
            server.kill()


def wait_for_topics(found: ReplicaSet, *topics: str) -> None:
    """Wait until every broker has the topics: an official slave hears of them in up to 10 s."""
    for member in found.members:
        for topic in topics:
            until(lambda broker=member.broker, topic=topic: has_topic(broker, topic), what=f"{topic} on each broker")


@dataclass
class Sends:
    """What was sent to one topic: bodies that were answered, and all."""

    answered: list[bytes] = field(default_factory=list)
    tried: set[bytes] = field(default_factory=set)


class _Trader:
    """Ends transactions as their bodies say: commits by itself, commits when asked, rolls back."""

    def execute(self, message: Message, transaction: Any) -> TransactionState:
        return {b"c": TransactionState.COMMIT, b"o": TransactionState.UNKNOWN, b"r": TransactionState.ROLLBACK}[
            message.body[:1]
        ]

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK if message.body[:1] == b"r" else TransactionState.COMMIT


class Answered:
    """When sends were answered, by the machine's clock that never goes back."""

    @property
    def answered_s(self) -> Sequence[float]:
        raise NotImplementedError

    def wait_for_answers(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answered_s) + count
        until(lambda: len(self.answered_s) >= wanted, what=f"{count} more answers")

    def silence(self, since_s: float) -> float:
        """The longest time without an answer from a moment on, in seconds, once some came after an election."""
        self.wait_for_answers(20)
        times = sorted(s for s in self.answered_s[-50_000:] if s >= since_s - 1)
        return max((after - before for before, after in pairwise(times) if after > since_s), default=0.0)


class Load(Answered):
    """Sends of all kinds until told to end, and a consumer that watches what can be read meanwhile.

    `trades`: in which ways transactions are sent in turn: c committed, o left open until asked, r rolled back.
    """

    def __init__(self, found: ReplicaSet, trades: bytes = b"cor") -> None:
        self._set = found
        self._trades_of = trades
        self.sends = {topic: Sends() for topic in TOPICS}
        self._answered_s: list[float] = []
        # Everything a consumer was ever shown, by queue offset: never two bodies.
        self.seen: dict[tuple[str, int, int], bytes] = {}
        self.wrong: list[str] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        with Admin(found.namesrv) as operations:
            for topic in TOPICS:
                operations.create_topic(topic, queue_count=QUEUES)
        options: dict[str, Any] = {"retries": 0, "send_timeout_ms": 5000}
        self._producer = Producer(found.namesrv, "load", **options)
        self._trader = TransactionProducer(found.namesrv, "traders", listener=_Trader(), **options)
        self._consumer = PushConsumer(
            found.namesrv, "watching", threads=2, consume_from="first", rebalance_interval_ms=500
        )
        for topic in TOPICS:
            self._consumer.subscribe(topic)
        self._consumer.listen(self._watch)
        for client in (self._producer, self._trader, self._consumer):
            client.start()
        acts: list[Callable[[], None]] = [self._orders(key) for key in range(KEYS)] + [self._later]
        acts += [self._trades] if trades else []
        self._threads = [threading.Thread(target=act) for act in acts]
        for thread in self._threads:
            thread.start()

    @property
    def answered_s(self) -> Sequence[float]:
        return self._answered_s

    def _watch(self, message: ReceivedMessage) -> None:
        at = message.topic, message.queue_id, message.queue_offset
        with self._lock:
            before = self.seen.setdefault(at, message.body)
            if before != message.body:
                self.wrong.append(f"{at} was {before!r} and is {message.body!r}")

    def _each(self, topic: str, send: Callable[[int], tuple[bytes, Callable[[], Any]]]) -> None:
        number = 0
        kept = self.sends[topic]
        while not self._end.is_set():
            body, act = send(number)
            number += 1
            kept.tried.add(body)
            try:
                answer = act()
                if answer.status is SendStatus.SEND_OK:
                    kept.answered.append(body)
                    self._answered_s.append(time.monotonic())
            except RocketSparkError:
                self._end.wait(0.05)
                self._ask_for_route(topic)
            self._end.wait(PAUSE_S)

    def _ask_for_route(self, topic: str) -> None:
        """Have the routes fetched: without a try left a send does not."""
        for producer in (self._producer, self._trader):
            try:
                producer._loop.call(producer._core._instance.routes.refresh(topic))
            except RocketSparkError:
                pass

    def _orders(self, key: int) -> Callable[[], None]:
        def send(number: int) -> tuple[bytes, Callable[[], Any]]:
            body = b"%d %d" % (key, number)
            return body, lambda: self._producer.send(Message(topic=ORDERS, body=body, sharding_key=f"k{key}"))

        return lambda: self._each(ORDERS, send)

    def _later(self) -> None:
        def send(number: int) -> tuple[bytes, Callable[[], Any]]:
            body = b"%s %d" % (b"level" if number % 2 else b"timer", number)
            how: dict[str, Any] = {"delay_level": 1} if number % 2 else {"delay_ms": 1500}
            return body, lambda: self._producer.send(Message(topic=LATER, body=body, **how))

        self._each(LATER, send)

    def _trades(self) -> None:
        def send(number: int) -> tuple[bytes, Callable[[], Any]]:
            kinds = self._trades_of
            body = b"%c %d" % (kinds[number % len(kinds)], number)
            return body, lambda: self._trader.send_in_transaction(Message(topic=TRADES, body=body)).sent

        self._each(TRADES, send)

    def end(self) -> None:
        """Send no more."""
        self._end.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def wanted(self, topic: str) -> set[bytes]:
        """What must be readable in the end."""
        answered = set(self.sends[topic].answered)
        return {body for body in answered if body[:1] != b"r"} if topic == TRADES else answered

    def wait_all_seen(self) -> None:
        """Wait until all that was answered was shown to the consumer."""

        def missing() -> list[tuple[str, bytes]]:
            with self._lock:
                shown = defaultdict(set)
                for (topic, _, _), body in self.seen.items():
                    shown[topic].add(body)
            return [(topic, body) for topic in TOPICS for body in self.wanted(topic) - shown[topic]]

        try:
            until(lambda: not missing(), what="all that was answered to be read")
        except AssertionError as e:
            lost = missing()
            raise AssertionError(f"{len(lost)} answered messages cannot be read, first {lost[:5]}") from e

    def close(self) -> None:
        self.end()
        for client in (self._consumer, self._trader, self._producer):
            client.close()


def stored(store: Path) -> Store:
    """The files of a broker that has ended, opened."""
    settings, _ = settings_from({key: str(value) for key, value in FILES.items()})
    settings.store_root = str(store)
    found = Store(settings.store_settings())
    found.open()
    return found


def check(found: ReplicaSet, load: Load, *, twice: bool = False) -> None:
    """End all; the logs are equal, and in them what was answered is once, in the order of its key.

    `twice`: what was parked may have been delivered again, as official brokers do.
    """
    load.wait_all_seen()
    until(lambda: len({_end(member) for member in found.members}) == 1, what="equal ends")
    load.close()
    assert not load.wrong, load.wrong[:5]
    master = found.wait_in_sync()
    for member in sorted(found.members, key=lambda member: member is master):
        # A clean stop of an official one waits for a quarter of a minute and writes no record.
        (member.stop if isinstance(member, OurMember) else member.kill)()
    one, *others = (stored(member.store) for member in found.members)
    try:
        for other in others:
            _check_equal(one, other)
        _check_log(one, load, twice)
    finally:
        for store in (one, *others):
            store.close()


def _end(member: Member) -> int:
    answer = ask(member.broker, 907)
    from tests.java.apache_pair import java_json

    status = java_json(answer.body)
    return int(status["masterCommitLogMaxOffset"] if status["master"] else status["haClientRuntimeInfo"]["maxOffset"])


def _check_equal(one: Store, two: Store) -> None:
    end = min(one.written_position, two.written_position)
    position = 0
    while position < end:
        piece, other = (store.log_bytes(position, end - position) for store in (one, two))
        count = min(len(piece), len(other))
        assert count
        assert piece[:count] == other[:count], f"the logs differ after {position}"
        position += count


def _check_log(store: Store, load: Load, twice: bool) -> None:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for record in store.iterate(0):
        by_topic[record.topic.decode()].append(record)
    at = {(topic, r.queue_id, r.queue_offset): r.body for topic in TOPICS for r in by_topic[topic]}
    unlike = [(place, body, at.get(place)) for place, body in load.seen.items() if at.get(place) != body]
    assert not unlike, f"{len(unlike)} were shown and are not there, first {unlike[:5]}"
    for topic in TOPICS:
        copies = Counter(record.body for record in by_topic[topic])
        missing = load.wanted(topic) - copies.keys()
        assert not missing, f"{topic}: {len(missing)} lost, first {sorted(missing)[:5]}"
        assert copies.keys() <= load.sends[topic].tried
        doubled = {body: count for body, count in copies.items() if count > 1}
        assert twice or not doubled, f"{topic}: {len(doubled)} twice, first {list(doubled.items())[:5]}"
        offsets: dict[int, list[int]] = defaultdict(list)
        for record in by_topic[topic]:
            offsets[record.queue_id].append(record.queue_offset)
        assert all(found == list(range(len(found))) for found in offsets.values())
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for record in by_topic[ORDERS]:
        key, _, number = record.body.partition(b" ")
        numbers[key].append(int(number))
        assert properties.decode(record.properties.decode())["__SHARDINGKEY"] == f"k{key.decode()}"
    assert all(found == sorted(found) for found in numbers.values())


def kill(found: ReplicaSet, load: Answered) -> float:
    """Kill the master under load; the old one is started again and back in the set. Seconds without an answer."""
    master = until(found.master)
    other = found.other(master)
    killed_s = time.monotonic()
    master.kill()
    until(lambda: found.state().master == other.broker, what="an election")
    took_s = load.silence(killed_s)
    master.start()
    found.wait_in_sync()
    return took_s


def freeze(found: ReplicaSet, load: Answered) -> float:
    """Stop the master under load until the other is elected, then let it go on: it has to step down."""
    master = until(found.master)
    frozen_s = time.monotonic()
    master.signal(signal.SIGSTOP)
    try:
        until(lambda: found.state().master == found.other(master).broker, what="an election")
        took_s = load.silence(frozen_s)
    finally:
        master.signal(signal.SIGCONT)
    found.wait_in_sync()
    return took_s


def turn(found: ReplicaSet, load: Answered) -> float:
    """Have the other elected under load, and wait until both are in sync. Seconds without an answer."""
    began_s = time.monotonic()
    found.elect_other()
    found.wait_in_sync()
    return load.silence(began_s)


def leave(found: ReplicaSet, load: Answered) -> float:
    """End the master by SIGTERM under load: it hands over. Seconds without an answer."""
    master = until(found.master)
    began_s = time.monotonic()
    master.stop()
    until(lambda: found.state().master == found.other(master).broker, what="an election")
    took_s = load.silence(began_s)
    master.start()
    found.wait_in_sync()
    return took_s
