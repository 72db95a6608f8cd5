"""Groups of replicas in the registry: acting masters, lowest ids, state versions; held to a model of the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.namesrv import registering

from rocketspark.errors import ServerError
from rocketspark.namesrv import registry as registry_module
from rocketspark.namesrv.acting_master import MEMBER_TOPIC_PREFIX, MinIdChange, PlainRules
from rocketspark.namesrv.registry import Registry
from rocketspark.protocol.json.bodies import DataVersion, QueueMapping, TopicConfig, TopicConfigTable

pytestmark = pytest.mark.shows(
    "acting route, lowest ids and their notices (905), state versions, write permission without a master, "
    "member group, 904 and 322"
)

MASTER, SLAVE, SECOND = "h:1", "h:2", "h:3"


class Stage:
    """A registry with the notices it gave, all rules of replicas on."""

    def __init__(self, **rules: bool) -> None:
        self.rules = PlainRules(**{"acting_master": True, "notify_min_id": True} | rules)
        self.told: list[MinIdChange] = []
        self.registry = Registry(self.rules, self.told.append)

    def register(
        self,
        broker_id: int,
        address: str,
        topics: dict[str, int] | None = None,
        *,
        name: str = "a",
        version: tuple[int, int] = (0, 1),
        acting: bool | None = True,
        connection: str = "",
        now_ms: int = 0,
        expiry_ms: int | None = None,
    ) -> str | None:
        """Register; return the master's address that the broker is told."""
        found = registering.register(
            self.registry, **arguments(broker_id, address, topics, name, version, acting, connection, now_ms, expiry_ms)
        )
        return found.address if found is not None else None

    def route(self, topic: str = "T") -> dict[str, tuple[dict[int, str], int]]:
        """By broker name: addresses and permission."""
        found = self.registry.route(topic)
        if found is None:
            return {}
        perms = {q.broker_name: q.perm for q in found[1]}
        return {b.broker_name: (b.broker_addrs, perms[b.broker_name]) for b in found[0]}

    def heard(self) -> list[MinIdChange]:
        """The notices since the last call."""
        told = list(self.told)
        self.told.clear()
        return told


def arguments(
    broker_id: int,
    address: str,
    topics: dict[str, int] | None = None,
    name: str = "a",
    version: tuple[int, int] = (0, 1),
    acting: bool | None = True,
    connection: str = "",
    now_ms: int = 0,
    expiry_ms: int | None = None,
) -> dict[str, Any]:
    table = TopicConfigTable(
        topic_config_table={
            topic: TopicConfig(topic_name=topic, perm=perm) for topic, perm in (topics or {"T": 6, "U": 6}).items()
        },
        data_version=DataVersion(state_version=version[0], counter=version[1]),
    )
    return {
        "cluster": "c",
        "broker_name": name,
        "broker_id": broker_id,
        "address": address,
        "ha_address": f"ha-{address}",
        "topics": table,
        "now_ms": now_ms,
        "connection": connection or address,
        "expiry_ms": expiry_ms,
        "acting_master": acting,
    }


# -- scenarios of Apache's RouteInfoManager tests ----------------------------------------------------------------------


def test_only_a_slave_is_there_and_then_the_master_comes_goes_and_comes_back() -> None:
    stage = Stage()
    assert stage.register(1, SLAVE) is None
    assert stage.route() == {"a": ({0: SLAVE}, 4)}
    stage.registry.unregister("c", "a", 1, SLAVE)
    assert stage.route() == {}
    stage.register(0, MASTER)
    assert stage.register(1, SLAVE) == MASTER
    assert stage.route() == {"a": ({0: MASTER, 1: SLAVE}, 6)}
    stage.registry.unregister("c", "a", 0, MASTER)
    assert stage.route() == {"a": ({0: SLAVE}, 4)}
    stage.register(0, MASTER)
    assert stage.route() == {"a": ({0: MASTER, 1: SLAVE}, 6)}


def test_of_two_groups_only_the_one_without_a_master_is_rewritten() -> None:
    stage = Stage()
    stage.register(0, MASTER)
    stage.register(1, SLAVE)
    stage.register(0, "g:1", name="b")
    stage.register(1, "g:2", name="b")
    stage.registry.unregister("c", "a", 0, MASTER)
    assert stage.route() == {"a": ({0: SLAVE}, 4), "b": ({0: "g:1", 1: "g:2"}, 6)}


@pytest.mark.parametrize("acting", [False, None])
def test_a_master_without_acting_slaves_leaves_everything_writable(acting: bool | None) -> None:
    stage = Stage()
    stage.register(0, MASTER, acting=acting)
    stage.register(1, SLAVE, acting=acting)
    stage.registry.unregister("c", "a", 0, MASTER)
    assert stage.route() == {"a": ({1: SLAVE}, 6)}
    assert stage.heard() == []


def test_roles_are_switched() -> None:
    stage = Stage()
    stage.register(0, MASTER, acting=False)
    stage.register(1, SLAVE, acting=False)
    stage.registry.disconnected(MASTER)
    assert stage.route() == {"a": ({1: SLAVE}, 6)}
    stage.register(0, SLAVE, version=(0, 2), acting=False)
    assert stage.route() == {"a": ({0: SLAVE}, 6)}
    assert stage.register(1, MASTER, version=(0, 2), acting=False) == SLAVE
    assert stage.route() == {"a": ({0: SLAVE, 1: MASTER}, 6)}
    # Without a master leaving first, too.
    stage.register(0, MASTER, version=(0, 3), acting=False)
    assert stage.route() == {"a": ({0: MASTER}, 6)}


def test_topics_that_a_registration_does_not_bring_go_if_the_rules_say_so() -> None:
    stage = Stage(delete_topics=True)
    stage.register(0, MASTER)
    stage.register(0, MASTER, {"U": 6})
    assert (stage.route("T"), sorted(stage.registry.topics())) == ({}, ["U"])
    stage.rules.delete_topics = False
    stage.register(0, MASTER, {"V": 6}, version=(0, 2))
    assert sorted(stage.registry.topics()) == ["U", "V"]
    # Those of one that has static topics stay.
    static = arguments(0, MASTER, {"W": 6}, version=(0, 9))
    static["topics"].topic_queue_mapping_info_map = {"S": QueueMapping(topic="S", bname="a")}
    stage.rules.delete_topics = True
    registering.register(stage.registry, **static)
    assert sorted(stage.registry.topics()) == ["U", "V", "W"]
    stage.registry.delete_topic("W")
    # Another broker's stay.
    stage.register(0, "g:1", name="b")
    stage.rules.delete_topics = True
    stage.register(0, MASTER, {"V": 6}, version=(0, 3))
    assert sorted(stage.registry.topics()) == ["T", "U", "V"]
    assert set(stage.route("U")) == {"b"}


# -- more than those say -----------------------------------------------------------------------------------------------


def test_who_hears_what_of_a_lowest_id() -> None:
    stage = Stage()
    stage.register(2, SECOND)
    assert stage.heard() == []
    stage.register(1, SLAVE)
    assert stage.heard() == [MinIdChange((SECOND,), 1, SLAVE, ha_address="ha-h:2")]
    stage.register(0, MASTER)
    assert stage.heard() == [MinIdChange((SECOND, SLAVE), 0, MASTER, ha_address="ha-h:1")]
    stage.registry.unregister("c", "a", 2, SECOND)
    assert stage.heard() == []
    stage.register(2, SECOND)
    stage.registry.unregister("c", "a", 0, MASTER)
    assert stage.heard() == [MinIdChange((SLAVE, SECOND), 1, SLAVE, offline_address=MASTER)]
    stage.registry.disconnected(SLAVE)
    assert stage.heard() == [MinIdChange((SECOND,), 2, SECOND, offline_address=SLAVE)]
    # Alone, under a lower id.
    stage.register(0, SECOND, version=(0, 2))
    assert stage.heard() == [MinIdChange((SECOND,), 0, SECOND, ha_address="ha-h:3")]
    stage.registry.disconnected(SECOND)
    assert stage.heard() == []


def test_who_leave_together_are_told_of_once_as_the_master_that_left() -> None:
    stage = Stage()
    # The first to be found silent is not the lowest.
    for broker_id, address in ((1, SLAVE), (0, MASTER), (2, SECOND)):
        stage.register(broker_id, address, expiry_ms=100 if address != SECOND else None)
    stage.heard()
    assert len(stage.registry.expire(101)) == 2
    assert stage.heard() == [MinIdChange((SECOND,), 2, SECOND, offline_address=MASTER)]
    assert stage.route() == {"a": ({0: SECOND}, 4)}


def test_without_the_setting_nobody_is_told_and_routes_stay_as_they_are() -> None:
    stage = Stage(acting_master=False, notify_min_id=False)
    stage.register(1, SLAVE)
    stage.register(0, MASTER)
    stage.registry.disconnected(MASTER)
    assert stage.heard() == []
    assert stage.route() == {"a": ({1: SLAVE}, 4)}


def test_the_topic_of_members_is_never_rewritten() -> None:
    stage = Stage()
    topic = MEMBER_TOPIC_PREFIX + "a"
    stage.register(1, SLAVE, {"T": 6, topic: 1})
    assert stage.route() == {"a": ({0: SLAVE}, 4)}
    assert stage.route(topic) == {"a": ({1: SLAVE}, 1)}


def test_a_group_that_somebody_made_writable_again_has_no_acting_master() -> None:
    stage = Stage()
    stage.register(1, SLAVE)
    stage.registry.set_writable("a", True)
    assert stage.route() == {"a": ({1: SLAVE}, 6)}


def test_an_id_that_comes_with_one_topic_alone_is_refused_and_leaves_nothing() -> None:
    stage = Stage()
    with pytest.raises(ServerError) as caught:
        stage.register(0, MASTER, {"T": 6})
    assert (caught.value.code, caught.value.remark) == (1, "register broker failed")
    assert stage.registry.clusters().cluster_addr_table == {}
    assert stage.registry.version_of("c", MASTER, 0) is None
    stage.register(1, SLAVE)
    with pytest.raises(ServerError):
        stage.register(0, SLAVE, {"T": 6})
    assert stage.route() == {"a": ({0: SLAVE}, 4)}
    stage.register(1, SLAVE, {"V": 6}, version=(0, 2))
    assert stage.route("V") == {"a": ({0: SLAVE}, 4)}


def test_a_stale_master_stays_out_until_the_newer_one_is_gone() -> None:
    stage = Stage()
    stage.register(0, SLAVE, version=(7, 1))
    assert stage.register(0, MASTER, version=(6, 99)) is None
    assert stage.route() == {"a": ({0: SLAVE}, 6)}
    assert stage.registry.version_of("c", MASTER, 0) is None
    assert stage.registry.disconnected(MASTER) == []
    stage.registry.disconnected(SLAVE)
    stage.register(0, MASTER, version=(6, 99))
    assert stage.route() == {"a": ({0: MASTER}, 6)}


@pytest.mark.shows("two brokers of one name and id are named in the NameServer's log")
def test_two_brokers_of_one_name_and_id_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.register(0, "h:1")
    stage.register(0, "h:2")
    assert caplog.messages == []  # It may have moved there.
    for address in ("h:1", "h:2"):
        caplog.clear()
        stage.register(0, address)
        assert caplog.messages == [
            "brokers at h:1 and h:2 both are a with id 0, and replace each other in the routes: give each its own"
            " brokerName"
        ]
    assert stage.route() == {"a": ({0: "h:2"}, 6)}


def test_masters_that_a_controller_elects_in_turn_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    for epoch, address in enumerate(("h:1", "h:2", "h:1", "h:2")):
        stage.register(0, address, version=(epoch, 1))
    assert caplog.messages == []


def test_a_broker_that_comes_under_another_name_leaves_the_old_one() -> None:
    stage = Stage()
    stage.register(0, MASTER)
    stage.register(1, SLAVE)
    stage.heard()
    stage.register(0, MASTER, name="b", version=(0, 1))
    assert stage.route() == {"a": ({0: SLAVE}, 4), "b": ({0: MASTER}, 6)}
    assert stage.heard() == [MinIdChange((SLAVE,), 1, SLAVE, offline_address=MASTER)]


def test_a_master_that_comes_while_a_slave_s_topics_are_taken_keeps_them_writable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_module, "TOPICS_IN_TURN", 1)
    stage = Stage()
    topics = {f"T{i}": 6 for i in range(5)}
    steps = registering.steps(stage.registry, **arguments(1, SLAVE, topics))
    next(steps)
    next(steps)
    stage.register(0, MASTER, topics)
    assert list(steps) == []
    assert [stage.route(topic) for topic in topics] == [{"a": ({0: MASTER, 1: SLAVE}, 6)}] * 5


# -- a model of the rules ----------------------------------------------------------------------------------------------

NAMES, IDS, ADDRESSES, TOPICS = "ab", range(3), ("x", "y", "z"), "TUV"


@dataclass
class Known:
    """What the model knows of a live broker."""

    name: str
    broker_id: int
    version: tuple[int, int]
    heard_ms: int
    expiry_ms: int


@dataclass
class Model:
    """The rules in their plainest form: one address is one broker, over a connection of its own."""

    live: dict[str, Known] = field(default_factory=dict)
    acting: dict[str, bool] = field(default_factory=dict)
    # (topic, name) to permission.
    perms: dict[tuple[str, str], int] = field(default_factory=dict)
    told: list[tuple[set[str], int, str, str | None, str | None]] = field(default_factory=list)

    def ids(self, name: str) -> dict[int, str]:
        return {known.broker_id: address for address, known in self.live.items() if known.name == name}

    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        topics: dict[str, int],
        acting: bool | None,
        version: tuple[int, int],
        now_ms: int,
    ) -> str | None:
        group = self.ids(name)
        holder = group.get(broker_id)
        if holder not in (None, address) and self.live[holder].version[0] > version[0]:  # type: ignore[index]
            if address in group.values():
                # Nobody is told that it is out.
                del self.live[address]
            self.leave([address])
            return None
        if holder is None and len(topics) == 1:
            return "refused"
        before = self.live.get(address)
        if before is not None and before.name != name:
            self.leave([address])
            before = None
        low = min(group, default=0)
        changed = holder is None or before is None or before.version != version
        if holder not in (None, address):
            del self.live[holder]  # type: ignore[arg-type]
        self.live[address] = Known(name, broker_id, version, now_ms, 1000 + 1000 * broker_id)
        self.acting[name] = bool(acting)
        group = self.ids(name)
        if broker_id == 0 or (acting is not None and broker_id == min(group)):
            for topic, perm in topics.items():
                if changed or (topic, name) not in self.perms:
                    self.perms[topic, name] = perm & 5 if broker_id and acting else perm
        if broker_id < low:
            others = {a for a in group.values() if a != address} or {address}
            self.told.append((others, broker_id, address, None, f"ha-{address}"))
        return group.get(0) if broker_id else None

    def leave(self, addresses: list[str]) -> None:
        before = {name: self.ids(name) for name in NAMES}
        for address in addresses:
            self.live.pop(address, None)
        for name, then in before.items():
            now = self.ids(name)
            if now == then:
                continue
            if not now:
                self.perms = {key: perm for key, perm in self.perms.items() if key[1] != name}
                continue
            if self.acting[name] and 0 not in now:
                self.perms = {key: perm & 5 if key[1] == name else perm for key, perm in self.perms.items()}
            if self.acting[name] and min(now) != min(then):
                self.told.append((set(now.values()), min(now), now[min(now)], then[min(then)], None))

    def expire(self, now_ms: int) -> None:
        self.leave([a for a, known in self.live.items() if known.heard_ms + known.expiry_ms < now_ms])

    def route(self, topic: str) -> dict[str, tuple[dict[int, str], int]]:
        found = {}
        for name in NAMES:
            group, perm = self.ids(name), self.perms.get((topic, name))
            if perm is None or not group:
                continue
            if self.acting[name] and 0 not in group and not perm & 2:
                group[0] = group.pop(min(group))
            found[name] = group, perm
        return found


addresses, names, ids = st.sampled_from(ADDRESSES), st.sampled_from(NAMES), st.sampled_from(IDS)
perms = st.dictionaries(st.sampled_from(TOPICS), st.sampled_from([1, 4, 6]), max_size=3)
acts = st.sampled_from([True, True, True, False, None])
versions = st.tuples(st.integers(0, 2), st.integers(1, 2))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), names, ids, addresses, perms, acts, versions),
        st.tuples(st.just("register"), names, ids, addresses, st.just({"T": 6, "U": 6}), st.just(True), versions),
        st.tuples(st.just("unregister"), names, ids, addresses),
        st.tuples(st.just("close"), addresses),
        st.tuples(st.just("heartbeat"), addresses),
        st.tuples(st.just("wait"), st.integers(1, 1500)),
    ),
    max_size=30,
)


@settings(max_examples=400)
@given(STEPS)
def test_whatever_brokers_do_the_registry_is_as_the_model(steps: list[tuple[Any, ...]]) -> None:
    stage, model, now_ms = Stage(), Model(), 0
    for what, *values in steps:
        if what == "register":
            name, broker_id, address, topics, acting, version = values
            expected = model.register(name, broker_id, address, topics, acting, version, now_ms)
            table = arguments(
                broker_id, address, topics, name, version, acting, address, now_ms, 1000 + 1000 * broker_id
            )
            if not topics:
                table["topics"].topic_config_table = {}
            if expected == "refused":
                with pytest.raises(ServerError, match="register broker failed"):
                    registering.register(stage.registry, **table)
            else:
                master = registering.register(stage.registry, **table)
                assert (master.address if master is not None else None) == expected
        elif what == "unregister":
            name, broker_id, address = values
            stage.registry.unregister("c", name, broker_id, address)
            if address in model.live and model.live[address].name == name:
                model.leave([address])
        elif what == "close":
            stage.registry.disconnected(values[0])
            model.leave([values[0]])
        elif what == "heartbeat":
            stage.registry.heard("c", values[0], now_ms)
            if values[0] in model.live:
                model.live[values[0]].heard_ms = now_ms
        else:
            now_ms += values[0]
            stage.registry.expire(now_ms)
            model.expire(now_ms)
        assert {t: stage.route(t) for t in TOPICS} == {t: model.route(t) for t in TOPICS}
        for name in NAMES:
            data = stage.registry.members(name)
            assert (dict(data.broker_addrs) if data is not None else {}) == model.ids(name)
        told = [(set(n.told), n.broker_id, n.address, n.offline_address, n.ha_address) for n in stage.told]
        assert told == model.told
