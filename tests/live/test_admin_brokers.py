"""The operations on brokers: state, settings, counters, replicas, and the traffic of topics and groups."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.support.patience import LIMIT_S

from rocketspark import MessageQueue, Producer, PullConsumer
from rocketspark.admin import Admin
from rocketspark.admin.broker_states import GroupTraffic, SettingState
from rocketspark.errors import RouteNotFound, ServerError, UsageError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("operations on brokers from Python: state, settings, counters, replicas, traffic")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        with Admin(running.namesrv) as admin:
            admin.create_topic("orders", queue_count=2)
        with Producer(running.namesrv, "p") as producer:
            for n in range(6):
                producer.send("orders", b"%d" % n)
        with PullConsumer(running.namesrv, "billing", consume_from="first") as consumer:
            consumer.subscribe("orders")
            taken = 0
            while taken < 4:
                taken += len(consumer.poll(timeout_ms=1000, count_max=1))
            consumer.commit()
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as admin:
        yield admin


def test_the_state_of_each_broker(admin: Admin) -> None:
    states = admin.broker_states()
    assert [(s.cluster, s.broker_name, s.broker_id, s.role, s.error) for s in states] == [
        ("DefaultCluster", "broker-a", 0, "master", ""),
        ("DefaultCluster", "broker-b", 0, "master", ""),
    ]
    for state in states:
        assert (state.version, state.active) == ("V5_5_0", True)
        assert state.started_ms <= time.time() * 1000
        assert 0 < state.disk_used < 1
        assert state.log_start == 0
        assert state.log_end == int(state.table["commitLogMaxOffset"]) > 0
    assert sum(s.in_today for s in states) >= 6
    assert admin.broker_states("nowhere") == []
    one = admin.broker_info("broker-b")
    assert (one.broker_name, one.address) == (states[1].broker_name, states[1].address)
    assert admin.broker_info("broker-b:0").address == admin.broker_info(one.address).address == one.address


def test_a_broker_that_is_none_of_the_cluster_s_is_named_and_not_asked(admin: Admin) -> None:
    for name in ("broker-c", "broker-a:7", "127.0.0.1:1"):
        with pytest.raises(UsageError, match=f"no broker '{name}': these are up: broker-a, broker-b"):
            admin.broker_info(name)


def test_settings_with_their_defaults(admin: Admin) -> None:
    settings = {s.key: s for s in admin.broker_config("broker-a")}
    assert len(settings) > 480
    size = settings["maxMessageSize"]
    assert size == SettingState("maxMessageSize", "4194304", "4194304", True)
    assert not size.differs
    assert settings["brokerName"].live is False
    assert settings["namesrvAddr"].differs
    # Java's threads: it has no effect here.
    assert settings["ackMessageThreadPoolNums"].live is None


def test_settings_are_changed_all_or_none(admin: Admin) -> None:
    def value(key: str) -> str:
        return {s.key: s for s in admin.broker_config("broker-a")}[key].value

    changed = admin.set_broker_config("broker-a", {"maxMessageSize": "4000000", "fileReservedTime": "48"})
    assert changed == [
        SettingState("fileReservedTime", "48", "72", True),
        SettingState("maxMessageSize", "4000000", "4194304", True),
    ]
    assert all(s.differs for s in changed)
    assert {s.key: s for s in admin.broker_config("broker-b")}["fileReservedTime"].value == "72"
    wrong: list[tuple[dict[str, str], type[Exception], str]] = [
        ({"maxMesageSize": "1"}, UsageError, "no setting 'maxMesageSize': did you mean 'maxMessageSize'"),
        ({"maxMessageSize": "1\nfileReservedTime=1"}, UsageError, "a value of one line"),
        ({"fileReservedTime": "24", "maxMessageSize": "much"}, ServerError, "a whole number is needed"),
        ({"fileReservedTime": "24", "listenPort": "1"}, ServerError, "listenPort cannot change while the broker runs"),
    ]
    for changes, kind, says in wrong:
        with pytest.raises(kind, match=says):
            admin.set_broker_config("broker-a", changes)
    assert (value("maxMessageSize"), value("fileReservedTime")) == ("4000000", "48")


def test_counters(admin: Admin) -> None:
    until = time.monotonic() + LIMIT_S
    sent = 0
    # They are counted every 10 s.
    while sent != 6 and time.monotonic() < until:
        found = [admin.broker_counter(name, "TOPIC_PUT_NUMS", "orders") for name in ("broker-a", "broker-b")]
        sent = sum(one.stats_minute.sum for one in found if one is not None)
        time.sleep(0.2)
    assert sent == 6
    assert admin.broker_counter("broker-a", "TOPIC_PUT_NUMS", "nowhere") is None
    (orders,) = (one for one in admin.topic_traffic() if one.topic == "orders")
    assert (orders.brokers, orders.read_queues, orders.write_queues, orders.perm) == (("broker-a", "broker-b"), 4, 4, 6)
    assert orders.in_day == 6
    assert 0 < orders.in_tps < 0.7
    assert orders.groups == ("billing",)
    (bare,) = (one for one in admin.topic_traffic(rates=False, groups=False) if one.topic == "orders")
    assert (bare.in_day, bare.groups, bare.read_queues) == (0, (), 4)


def test_lag_of_all_groups(admin: Admin) -> None:
    (found,) = (one for one in admin.group_traffic() if one.group == "billing" and one.topic == "orders")
    assert found == GroupTraffic("billing", "orders", 2, found.in_flight, found.out_tps)


def test_queues_of_a_topic(admin: Admin) -> None:
    before = time.time() * 1000 - LIMIT_S * 1000
    stats = admin.topic_stats("orders")
    assert [q.queue for q in stats.queues] == [
        MessageQueue("orders", name, n) for name in ("broker-a", "broker-b") for n in (0, 1)
    ]
    assert sum(q.max_offset - q.min_offset for q in stats.queues) == 6
    assert all(q.last_update_ms > before for q in stats.queues if q.max_offset)
    with pytest.raises(RouteNotFound):
        admin.topic_stats("nowhere")


def test_a_topic_is_changed_where_it_is(admin: Admin) -> None:
    admin.create_topic("half", queue_count=2, brokers=["broker-b"])
    (made,) = admin.update_topic("half", read_queue_count=3, perm=4, message_type="FIFO")
    assert (made.broker_name, made.existed, made.changed) == ("broker-b", True, True)
    (config,) = admin.topic_configs("half").values()
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 4)
    assert config.attributes == {"message.type": "FIFO"}
    with pytest.raises(UsageError, match="topic 'half' is not on broker-a: create it there first"):
        admin.update_topic("half", perm=6, brokers=["broker-a"])
    with pytest.raises(UsageError, match="topic 'nowhere' is not on any broker"):
        admin.update_topic("nowhere", perm=6)


def test_a_master_alone_has_no_replicas(admin: Admin) -> None:
    found = admin.replication("broker-a")
    assert (found.is_master, found.slaves, found.in_sync_slaves) == (True, (), 0)
    assert found.log_end == admin.broker_info("broker-a").log_end
    assert admin.replica_sets() == {}
    assert admin.broker_epochs("broker-a") is None


def test_replicas_under_a_controller() -> None:
    with run_cluster(replicas=2) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("orders", queue_count=1)
        with Producer(cluster.namesrv, "p") as producer:
            producer.send("orders", b"x")
        master, slave = admin.broker_states()
        assert [(s.broker_id, s.role) for s in (master, slave)] == [(0, "master"), (slave.broker_id, "slave")]
        (replicas,) = admin.replica_sets().values()
        assert (replicas.broker_name, replicas.master_address) == ("broker-a", master.address)
        assert replicas.master_epoch >= 1
        assert {(r.address, r.alive, r.in_sync) for r in replicas.replicas} == {
            (master.address, True, True),
            (slave.address, True, True),
        }
        state = admin.replication("broker-a")
        assert (state.is_master, state.in_sync_slaves, [s.in_sync for s in state.slaves]) == (True, 1, [True])
        copying = admin.replication(f"broker-a:{slave.broker_id}")
        assert (copying.is_master, copying.connected) == (False, True)
        epochs = admin.broker_epochs("broker-a")
        assert epochs is not None
        assert epochs.epoch_list[-1].epoch == replicas.master_epoch
        assert admin.replica_sets(["broker-b"]) == {}
