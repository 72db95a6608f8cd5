"""The registry: who lives and what they carry. Times are handed in, nothing waits."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.namesrv import registering

from rocketspark.errors import ServerError
from rocketspark.namesrv import registry as registry_module
from rocketspark.namesrv.registration_limits import QUEUES_MAX, check_broker
from rocketspark.namesrv.registry import EXPIRY_MS, LiveBroker, Registry
from rocketspark.protocol.json.bodies import DataVersion, QueueDataBody, QueueMapping, TopicConfig, TopicConfigTable

pytestmark = pytest.mark.shows("the NameServer's requests and settings")


def table(version: int, **queues: int) -> TopicConfigTable:
    """Topics with so many queues."""
    return TopicConfigTable(
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=n, write_queue_nums=n) for name, n in queues.items()
        },
        data_version=DataVersion(counter=version),
    )


def register(registry: Registry, **changes: Any) -> LiveBroker | None:
    values: dict[str, Any] = {
        "cluster": "c",
        "broker_name": "a",
        "broker_id": 0,
        "address": "h:1",
        "ha_address": "h:2",
        "topics": table(1, T=4),
        "now_ms": 1000,
        "connection": "conn-1",
    }
    values |= changes
    if len(values["topics"].topic_config_table) == 1 and values["broker_id"] not in addresses(
        registry, values["broker_name"]
    ):
        # An id that comes for the first time with one topic is refused.
        registering.register(registry, **values | {"topics": table(-1)})
    return registering.register(registry, **values)


def queues(registry: Registry, topic: str = "T") -> dict[str, int]:
    """Broker name to read queues of a topic."""
    found = registry.route(topic)
    return {q.broker_name: q.read_queue_nums for q in found[1]} if found else {}


def addresses(registry: Registry, name: str = "a") -> dict[int, str]:
    data = registry.members(name)
    return dict(data.broker_addrs) if data else {}


@pytest.mark.shows("register, unregister, route, cluster info, topic list")
def test_a_broker_that_registers_is_in_route_cluster_and_lists() -> None:
    registry = Registry()
    assert registry.route("T") is None
    assert registry.topics() == []
    assert register(registry, topics=table(1, T=4, U=2)) is None
    found = registry.route("T")
    assert found is not None
    (broker,), (queue,) = found
    assert (broker.cluster, broker.broker_name, broker.broker_addrs) == ("c", "a", {0: "h:1"})
    assert (queue.broker_name, queue.read_queue_nums, queue.write_queue_nums, queue.perm) == ("a", 4, 4, 6)
    assert (
        sorted(registry.topics())
        == sorted(registry.carried_by(registry.topics(), registry.brokers_of_cluster("c")))
        == ["T", "U"]
    )
    assert registry.carried_by(registry.topics(), registry.brokers_of_cluster("other")) == []
    info = registry.clusters()
    assert info.cluster_addr_table == {"c": ["a"]}
    assert info.broker_addr_table["a"].broker_addrs == {0: "h:1"}


def test_a_registration_merges_and_never_drops_a_topic() -> None:
    registry = Registry()
    register(registry, topics=table(1, T=4, U=2))
    register(registry, topics=table(2, V=1))
    assert sorted(registry.topics()) == ["T", "U", "V"]
    register(registry, topics=table(3, T=8))
    assert queues(registry) == {"a": 8}


def test_queue_data_is_taken_when_the_data_version_changed() -> None:
    registry = Registry()
    register(registry, topics=table(1, T=4))
    register(registry, topics=table(1, T=8))
    assert queues(registry) == {"a": 4}
    register(registry, topics=table(2, T=8))
    assert queues(registry) == {"a": 8}
    assert registry.version_of("c", "h:1", 1000) == DataVersion(counter=2)
    assert registry.version_of("c", "h:9", 1000) is None


def test_only_a_master_s_queue_data_counts() -> None:
    registry = Registry()
    master = register(registry, broker_id=1, address="h:11", topics=table(1, T=4), connection="conn-2")
    assert master is None, "a slave without a master"
    assert queues(registry) == {}
    register(registry)
    master = register(registry, broker_id=1, address="h:11", topics=table(9, T=99), connection="conn-2")
    assert master is not None
    assert (master.address, master.ha_address, master.broker_id) == ("h:1", "h:2", 0)
    assert queues(registry) == {"a": 4}
    assert addresses(registry) == {0: "h:1", 1: "h:11"}


def test_a_broker_has_its_own_queues_of_a_topic_forgotten_and_no_others() -> None:
    registry = Registry()
    register(registry, topics=table(1, T=4, U=2))
    register(registry, broker_id=1, address="h:11", topics=table(1, T=4), connection="slave")
    register(registry, broker_name="b", address="h:5", topics=table(7, T=2), connection="conn-2")
    for connection in ("stranger", "slave"):
        registry.forget_topic("T", connection)
    assert queues(registry) == {"a": 4, "b": 2}
    registry.forget_topic("T", "conn-1")
    assert (queues(registry), queues(registry, "U")) == ({"b": 2}, {"a": 2})
    registry.forget_topic("T", "conn-2")
    assert registry.topics() == ["U"]


def test_two_brokers_carry_one_topic() -> None:
    registry = Registry()
    register(registry)
    register(registry, broker_name="b", address="h:5", topics=table(7, T=2, Own=1), connection="conn-2")
    assert queues(registry) == {"a": 4, "b": 2}
    found = registry.route("T")
    assert found is not None
    assert {b.broker_name for b in found[0]} == {"a", "b"}
    assert queues(registry, "Own") == {"b": 1}
    assert registry.clusters().cluster_addr_table == {"c": ["a", "b"]}
    registry.unregister("c", "a", 0, "h:1")
    assert queues(registry) == {"b": 2}
    assert registry.clusters().cluster_addr_table == {"c": ["b"]}
    registry.unregister("c", "b", 0, "h:5")
    assert registry.topics() == []
    assert registry.clusters().cluster_addr_table == {}


def test_a_topic_in_two_clusters() -> None:
    registry = Registry()
    register(registry)
    register(registry, cluster="d", broker_name="b", address="h:5", topics=table(1, T=2, U=1))
    assert registry.carried_by(registry.topics(), registry.brokers_of_cluster("c")) == ["T"]
    assert sorted(registry.carried_by(registry.topics(), registry.brokers_of_cluster("d"))) == ["T", "U"]


@pytest.mark.shows("NameServer: heartbeat and expiry")
def test_silence_longer_than_promised_drops_a_broker() -> None:
    registry = Registry()
    register(registry, now_ms=1000)
    register(registry, broker_name="b", address="h:5", now_ms=1000, expiry_ms=300, connection="conn-2")
    assert registry.expire(1300) == []
    assert [b.broker_name for b in registry.expire(1301)] == ["b"]
    assert queues(registry) == {"a": 4}
    assert registry.expire(1000 + EXPIRY_MS) == []
    # Every sign of life counts: a registration, a heartbeat, a question about the version.
    register(registry, now_ms=2000)
    assert registry.expire(2000 + EXPIRY_MS) == []
    registry.heard("c", "h:1", 3000)
    assert registry.expire(3000 + EXPIRY_MS) == []
    registry.version_of("c", "h:1", 4000)
    assert registry.expire(4000 + EXPIRY_MS) == []
    registry.heard("c", "h:9", 10**9)
    assert [b.address for b in registry.expire(4001 + EXPIRY_MS)] == ["h:1"]
    assert registry.route("T") is None
    assert registry.expire(10**12) == []


def test_a_connection_that_ends_takes_what_registered_over_it() -> None:
    registry = Registry()
    register(registry, connection="one")
    register(registry, broker_name="b", address="h:5", connection="one")
    register(registry, broker_name="x", address="h:7", connection="two")
    assert registry.disconnected("three") == []
    assert sorted(b.broker_name for b in registry.disconnected("one")) == ["a", "b"]
    assert queues(registry) == {"x": 4}


def test_a_broker_that_came_back_over_a_new_connection_outlives_the_old_one() -> None:
    registry = Registry()
    register(registry, connection="old")
    register(registry, connection="new")
    assert registry.disconnected("old") == []
    assert queues(registry) == {"a": 4}
    assert len(registry.disconnected("new")) == 1


def test_a_slave_that_goes_leaves_the_master_and_a_master_that_goes_leaves_the_slave() -> None:
    registry = Registry()
    register(registry)
    register(registry, broker_id=1, address="h:11", connection="conn-2")
    registry.disconnected("conn-2")
    assert addresses(registry) == {0: "h:1"}
    register(registry, broker_id=1, address="h:11", connection="conn-2")
    registry.disconnected("conn-1")
    assert addresses(registry) == {1: "h:11"}
    # The topic is still readable from the slave.
    assert queues(registry) == {"a": 4}
    registry.disconnected("conn-2")
    assert registry.route("T") is None


def test_an_address_that_comes_back_under_another_id() -> None:
    registry = Registry()
    register(registry, broker_id=0)
    register(registry, broker_id=1)
    assert addresses(registry) == {1: "h:1"}
    register(registry, broker_id=0)
    assert addresses(registry) == {0: "h:1"}


def test_an_id_that_comes_back_at_another_address() -> None:
    registry = Registry()
    register(registry, address="h:1", connection="old", topics=table(1, T=4))
    register(registry, address="h:9", connection="new", topics=table(1, T=6))
    assert addresses(registry) == {0: "h:9"}
    # The one that was replaced is gone already: its end changes nothing.
    assert registry.disconnected("old") == []
    assert registry.expire(1000 + EXPIRY_MS + 1)[0].address == "h:9"


def test_the_new_holder_of_an_id_brings_its_own_queues() -> None:
    registry = Registry()
    register(registry, address="h:1", topics=table(1, T=4))
    register(registry, address="h:9", topics=table(1, T=6))
    assert queues(registry) == {"a": 6}


def test_who_leaves_is_known_by_its_address_whatever_id_it_names() -> None:
    registry = Registry()
    register(registry)
    registry.unregister("c", "a", 0, "h:9")
    registry.unregister("c", "zzz", 0, "h:1")
    assert addresses(registry) == {0: "h:1"}
    registry.unregister("c", "a", 1, "h:1")
    assert addresses(registry) == {}


def test_leaving_drops_the_topics_nobody_else_has() -> None:
    registry = Registry()
    register(registry, topics=table(1, T=4, U=2))
    register(registry, broker_name="b", address="h:5", topics=table(1, T=1), connection="conn-2")
    registry.unregister("c", "a", 0, "h:1")
    assert registry.topics() == ["T"]
    # Back again, even with the same data version, its topics are taken.
    register(registry, topics=table(1, T=4, U=2))
    assert sorted(registry.topics()) == ["T", "U"]


def test_a_topic_is_deleted_everywhere_or_on_the_brokers_named() -> None:
    registry = Registry()
    register(registry, topics=table(1, T=4, U=2))
    register(registry, broker_name="b", address="h:5", topics=table(1, T=1), connection="conn-2")
    registry.delete_topic("T", ["b", "zzz"])
    assert queues(registry) == {"a": 4}
    registry.delete_topic("T", ["a"])
    registry.delete_topic("NoSuchTopic", ["a"])
    assert registry.topics() == ["U"]
    registry.delete_topic("U")
    registry.delete_topic("U")
    assert registry.topics() == []
    register(registry, topics=table(2, T=4))
    assert queues(registry) == {"a": 4}


def test_write_permission_is_wiped_and_given_back() -> None:
    registry = Registry()
    register(registry, topics=table(1, T=4, U=2))
    register(registry, broker_name="b", address="h:5", topics=table(1, T=1), connection="conn-2")

    def perms(topic: str) -> dict[str, int]:
        found = registry.route(topic)
        assert found is not None
        return {q.broker_name: q.perm for q in found[1]}

    assert registry.set_writable("a", False) == 2
    assert (perms("T"), perms("U")) == ({"a": 4, "b": 6}, {"a": 4})
    # A registration that brings nothing new keeps it so.
    register(registry, topics=table(1, T=4, U=2))
    assert perms("T") == {"a": 4, "b": 6}
    assert registry.set_writable("a", True) == 2
    assert perms("T") == {"a": 6, "b": 6}
    assert registry.set_writable("zzz", False) == 0
    registry.set_writable("a", False)
    register(registry, topics=table(2, T=4))
    assert (perms("T"), perms("U")) == ({"a": 6, "b": 6}, {"a": 4})


def test_a_broker_that_moved_to_another_cluster_stays_when_what_it_was_ends() -> None:
    """Its machine was cut off: the end of its first connection is noticed late, or its farewell arrives late."""
    for end in (
        lambda r: r.disconnected("old"),
        lambda r: r.expire(1000 + EXPIRY_MS + 1),
        lambda r: r.unregister("c", "a", 0, "h:1"),
    ):
        registry = Registry()
        register(registry, connection="old")
        register(registry, cluster="d", connection="new", now_ms=2000, topics=table(2, T=4))
        end(registry)
        assert registry.route("T") is not None
        assert registry.clusters().cluster_addr_table == {"d": ["a"]}
        assert (registry.version_of("c", "h:1", 2000), registry.version_of("d", "h:1", 2000)) == (
            None,
            DataVersion(counter=2),
        )
        assert [live.cluster for live in registry.disconnected("new")] == ["d"]
        assert registry.route("T") is None


def test_a_topic_told_alone_is_taken_as_far_as_its_brokers_live() -> None:
    """As 5.5.0's NameServer answers it."""
    registry = Registry()
    register(registry)

    def tell(topic: str, *of: tuple[str, int]) -> dict[str, int]:
        told = [QueueDataBody(broker_name=b, read_queue_nums=n, write_queue_nums=n, perm=6) for b, n in of]
        registry.set_queues(topic, told)
        return queues(registry, topic)

    assert tell("New", ("a", 4)) == {"a": 4}
    assert tell("Other", ("a", 4), ("nobody", 4)) == {}
    assert tell("New", ("a", 7), ("nobody", 4)) == {"a": 7}
    assert tell("New", ("nobody", 4), ("a", 9)) == {"a": 7}
    assert tell("None") == {}
    assert sorted(registry.topics()) == ["New", "T"]


def static(version: int, *mapped: str, total: int = 4, **queues: int) -> TopicConfigTable:
    """Topics of which some are static."""
    found = table(version, **queues)
    found.topic_queue_mapping_info_map = {
        name: QueueMapping(topic=name, total_queues=total, bname="a", curr_id_map={0: 0}) for name in mapped
    }
    return found


def test_mappings_of_static_topics_are_kept_while_their_broker_has_the_topic() -> None:
    registry = Registry()
    register(registry, topics=static(1, "S", S=2, T=2))
    register(registry, broker_name="b", address="h:9", connection="conn-2", topics=static(1, "S", S=2))
    assert set(registry.mappings("S")) == {"a", "b"}
    assert registry.mappings("S")["a"].curr_id_map == {0: 0}
    assert registry.mappings("T") == {}
    # A registration of other topics says nothing of this one's mapping, and neither does one without it.
    register(registry, topics=table(2, T=3))
    register(registry, topics=table(3, S=2))
    assert set(registry.mappings("S")) == {"a", "b"}
    # A table in parts brings all mappings with the last.
    register(registry, topics=table(4, U=1))
    register(registry, topics=static(5, "U", V=1))
    assert set(registry.mappings("U")) == {"a"}
    # What it does not carry cannot be asked for; nothing is kept of it.
    register(registry, topics=static(6, "W", V=1))
    assert registry.mappings("W") == {}
    registry.disconnected("conn-2")
    assert set(registry.mappings("S")) == {"a"}
    registry.delete_topic("S")
    assert registry.mappings("S") == {}
    register(registry, topics=table(7, S=2))
    assert registry.mappings("S") == {}
    registry.unregister("c", "a", 0, "h:1")
    assert not registry._mappings


def test_a_slave_s_mappings_do_not_count_and_one_that_cannot_be_passed_on_takes_its_topic_along() -> None:
    registry = Registry()
    register(registry, broker_id=1, address="h:3", topics=static(1, "S", S=2))
    assert registry.route("S") is None
    assert registry.mappings("S") == {}
    register(registry, topics=static(2, "S", total=QUEUES_MAX + 1, S=2, T=2))
    assert registry.route("S") is None
    assert registry.mappings("S") == {}
    assert queues(registry) == {"a": 2}


@pytest.mark.shows(
    "mended: escape sequences and newlines from names reach logs, a line per bad request: NameServer, outbox, metrics",
    "mended: a fake broker with 2^31 queues, NameServer half",
)
@pytest.mark.parametrize(
    ("name", "count"),
    [("x" * 256, 1), ("evil\x1b[31m", 1), ("a\nb", 1), ("a\ud800", 1), ("", 1), ("t", QUEUES_MAX + 1), ("t", -1)],
)
def test_a_topic_that_no_broker_may_have_is_left_out_and_named(
    name: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    registry = Registry()
    topics = table(1, good=4)
    topics.topic_config_table[name] = TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
    register(registry, topics=topics)
    assert registry.topics() == ["good"]
    (record,) = caplog.records
    assert "of broker a 1 topics, such as" in record.getMessage()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 400
    with pytest.raises(ServerError, match="not taken"):
        registry.set_queues(name, [QueueDataBody(broker_name="a", read_queue_nums=count, write_queue_nums=1, perm=6)])
    assert registry.topics() == ["good"]


@pytest.mark.shows("mended: a fake broker with 2^31 queues, NameServer half")
def test_more_topics_and_brokers_than_there_may_be_are_refused_and_room_comes_back() -> None:
    registry = Registry(brokers_max=2, topics_max=3)
    register(registry, topics=table(1, T=4, U=4))
    register(registry, broker_name="b", address="h:3", topics=table(1, T=4, V=4), connection="conn-2")
    assert sorted(registry.topics()) == ["T", "U"]
    # What is there already may change.
    register(registry, topics=table(2, T=5, U=4))
    assert queues(registry) == {"a": 5, "b": 4}
    with pytest.raises(ServerError, match="2 brokers are registered"):
        register(registry, broker_name="c", address="h:4")
    registry.disconnected("conn-2")
    register(registry, broker_name="c", address="h:4", topics=table(1, W=1))
    assert sorted(registry.topics()) == ["T", "U", "W"]


@pytest.mark.parametrize("field", ["cluster", "broker_name", "address", "ha_address"])
def test_a_broker_that_cannot_be_called_so_is_refused(field: str) -> None:
    good = {"cluster": "c", "broker_name": "my.host", "broker_id": 0, "address": "h:1", "ha_address": ""}
    check_broker(**good)  # type: ignore[arg-type]
    for text in ("x" * 256, "a\nFORGED", "\x1b[31m"):
        with pytest.raises(ServerError, match="characters are needed") as caught:
            check_broker(**good | {field: text})  # type: ignore[arg-type]
        assert caught.value.remark.isprintable()
    with pytest.raises(ServerError, match="brokerId"):
        check_broker("c", "a", 10**30, "h:1", "")


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("register"),
            st.sampled_from("ab"),
            st.integers(0, 1),
            st.sampled_from("xyz"),
            st.sampled_from("12"),
            st.sets(st.sampled_from("TUV")),
        ),
        st.tuples(st.just("leave"), st.sampled_from("ab"), st.integers(0, 1), st.sampled_from("xyz")),
        st.tuples(st.just("close"), st.sampled_from("12")),
        st.tuples(st.just("delete"), st.sampled_from("TUV")),
    ),
    max_size=25,
)


@settings(max_examples=100)
@given(STEPS)
def test_what_is_kept_to_find_things_fast_always_equals_the_tables(steps: list[tuple[Any, ...]]) -> None:
    registry = Registry()
    for version, (what, *values) in enumerate(steps):
        if what == "register":
            name, broker_id, address, connection, topics = values
            register(
                registry,
                broker_name=name,
                broker_id=broker_id,
                address=address,
                connection=connection,
                topics=static(version, "T", "W", **dict.fromkeys(topics, 1)),
            )
        elif what == "leave":
            registry.unregister("c", *values)
        elif what == "close":
            registry.disconnected(*values)
        else:
            registry.delete_topic(*values)
        carried: dict[str, set[str]] = {}
        for topic, held in registry._topics.items():
            assert held
            for name in held:
                carried.setdefault(name, set()).add(topic)
        assert {name: set(held) for name, held in registry._carried.items()} == carried
        assert registry._carried_count == sum(map(len, carried.values()))
        over: dict[Any, set[tuple[str, str]]] = {}
        for key, live in registry._live.items():
            over.setdefault(live.connection, set()).add(key)
        assert registry._over == over
        for topic, mapped in registry._mappings.items():
            assert mapped
            assert mapped.keys() <= registry._topics[topic].keys()


@pytest.mark.shows("mended: 25 ms per disconnect, NameServer half")
def test_a_connection_that_ends_costs_what_registered_over_it_and_no_more() -> None:
    class Counted(dict[Any, Any]):
        looked_through = 0

        def values(self) -> Any:
            Counted.looked_through += 1
            return super().values()

        def items(self) -> Any:
            Counted.looked_through += 1
            return super().items()

    registry = Registry()
    registry._live, registry._topics = Counted(), Counted()
    register(registry)
    registry.disconnected("other")
    assert [b.broker_name for b in registry.disconnected("conn-1")] == ["a"]
    assert Counted.looked_through == 0


NAMES = st.sampled_from("ab")
TOPICS = st.sets(st.sampled_from("TUVW"), min_size=2)
ACTS = st.one_of(
    st.tuples(st.just("come"), NAMES, TOPICS, st.booleans()),
    st.tuples(st.just("leave"), NAMES),
    st.tuples(st.just("settle")),
    st.tuples(st.just("delete"), st.sampled_from("TUVW")),
    st.tuples(st.just("alone"), NAMES, st.sampled_from("TUVW")),
)


@pytest.mark.shows("a leave of a NameServer with many topics: in pieces; nobody is routed to who left")
@given(st.lists(ACTS, max_size=14))
def test_who_leaves_in_pieces_is_gone_at_once(acts: list[tuple[Any, ...]]) -> None:
    """As one who leaves in one go, also when he is back before the last piece."""
    pieces, whole = Registry(), Registry()

    def act(registry: Registry, number: int, kind: str, *more: Any) -> None:
        if kind == "come":
            name, topics, static = more
            told = table(number, **dict.fromkeys(sorted(topics), number + 1))
            if static:
                told.topic_queue_mapping_info_map = {t: QueueMapping(topic=t, bname=name) for t in topics}
            register(registry, broker_name=name, address=f"{name}:1", topics=told, connection=name)
        elif kind == "leave":
            registry.disconnected(more[0])
        elif kind == "delete":
            registry.delete_topic(more[0])
        elif kind == "alone":
            registry.set_queues(
                more[1], [QueueDataBody(broker_name=more[0], read_queue_nums=number, write_queue_nums=1, perm=6)]
            )
        elif registry is pieces:
            next(registry.settle(), None)

    def shown(registry: Registry) -> list[Any]:
        return [(queues(registry, topic), registry.mappings(topic)) for topic in "TUVW"]

    with pytest.MonkeyPatch.context() as changed:
        for number, each in enumerate(acts):
            changed.setattr(registry_module, "TOPICS_IN_TURN", 1)
            act(pieces, number, *each)
            changed.setattr(registry_module, "TOPICS_IN_TURN", 1000)
            act(whole, number, *each)
            assert whole.is_settled
            assert shown(pieces) == shown(whole)
        changed.setattr(registry_module, "TOPICS_IN_TURN", 1)
        for _ in pieces.settle():
            pass
    for kept in ("_topics", "_mappings", "_carried", "_carried_count"):
        assert getattr(pieces, kept) == getattr(whole, kept)


def test_no_step_of_a_leave_takes_out_many_topics() -> None:
    registry = Registry()
    register(registry, topics=table(1, **{f"t{n}": 1 for n in range(2500)}))
    registry.unregister("c", "a", 0, "h:1")
    left = [len(registry.topics())]
    for _ in registry.settle():
        left.append(len(registry.topics()))
    assert left == [1500, 500]
    assert registry.topics() == []
    assert registry.route("t3") is None
