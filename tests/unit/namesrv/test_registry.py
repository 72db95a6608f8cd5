"""The registry: who lives and what they carry. Times are handed in, nothing waits."""

from __future__ import annotations

from typing import Any

from rocketspark.namesrv.registry import EXPIRY_MS, LiveBroker, Registry
from rocketspark.protocol.bodies import DataVersion, QueueDataBody, TopicConfig, TopicConfigTable


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
    return registry.register(**values | changes)


def queues(registry: Registry, topic: str = "T") -> dict[str, int]:
    """Broker name to read queues of a topic."""
    found = registry.route(topic)
    return {q.broker_name: q.read_queue_nums for q in found[1]} if found else {}


def addresses(registry: Registry, name: str = "a") -> dict[int, str]:
    data = registry.members(name)
    return dict(data.broker_addrs) if data else {}


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
    assert sorted(registry.topics()) == sorted(registry.topics_of_cluster("c")) == ["T", "U"]
    assert registry.topics_of_cluster("other") == []
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
    assert registry.topics_of_cluster("c") == ["T"]
    assert sorted(registry.topics_of_cluster("d")) == ["T", "U"]


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


def test_leaving_with_an_address_that_is_not_the_registered_one_changes_nothing() -> None:
    registry = Registry()
    register(registry)
    registry.unregister("c", "a", 0, "h:9")
    registry.unregister("c", "a", 1, "h:1")
    registry.unregister("c", "zzz", 0, "h:1")
    assert addresses(registry) == {0: "h:1"}


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
