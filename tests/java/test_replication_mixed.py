"""Classic replication between the official broker and ours, each as master and as slave: one pair of each, in order.

The tests of a pair share its processes; each has topics of its own and leaves the slave in sync.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.java.apache import Answer, ask
from tests.java.apache_pair import ha_status, java_json, log_end, members, until
from tests.java.conftest import DriverFactory
from tests.java.mixed_pair import MixedPair
from tests.java.mqadmin import MqAdmin, same
from tests.java.test_slave_synchronize import put_topic
from tests.support.commanded import body_of, message
from tests.support.patience import LIMIT_MS

from rocketspark.client import PushConsumer
from rocketspark.store.timers.timer_files import decode_checkpoint

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows(
        "second listener at `listenPort - 2`: the same requests, limits and end",
        "JP and PJ (Java 5.5.0 master and our slave, and the reverse), classic",
    ),
]
OK, LATE = 0, 12


@pytest.fixture(scope="module", params=["JP", "PJ"])
def p(
    request: pytest.FixtureRequest, java_tools: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MixedPair]:
    pair = MixedPair(tmp_path_factory.mktemp(request.param), request.param)
    yield pair
    pair.close()


def make(p: MixedPair, topic: str, queues: int = 1) -> None:
    """A topic at the master."""
    wanted = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "defaultTopic": "TBW102"}
    assert ask(p.master.broker, 17, ext_fields=wanted | more).code == 0


def put(address: str, topic: str, body: bytes, queue_id: int = 0, properties: str = "") -> int:
    """Send by hand; the code of the answer."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": str(int(time.time() * 1000)), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
    return ask(address, 310, body, fields).code


UNWAITED = "WAIT\x01false\x02"


def test_three_log_files_are_equal_byte_for_byte(p: MixedPair) -> None:
    make(p, "Files", 3)
    for number in range(60):
        assert put(p.master.broker, "Files", b"%02d" % number * 30_000, number % 3, "TAGS\x01A\x02KEYS\x01k\x02") == OK
    assert log_end(p.master.broker) > 3 << 20
    p.assert_equal("Files", 3)


def test_a_missing_slave_is_late_and_delays_only_who_waits(p: MixedPair) -> None:
    make(p, "Waits")
    assert put(p.master.broker, "Waits", b"one") == OK
    if p.kind == "JP":
        assert p.slave.stop() in (0, 143)
    else:
        # A clean stop of an official one takes a quarter of a minute.
        p.slave.kill()
    until(lambda: p.link_count() == 0)
    begun_s = time.monotonic()
    assert put(p.master.broker, "Waits", b"two") == LATE
    assert time.monotonic() - begun_s >= 0.95
    assert put(p.master.broker, "Waits", b"three", properties=UNWAITED) == OK
    p.start_slave()
    until(lambda: p.link_count() == 1)
    until(p.in_sync)
    assert put(p.master.broker, "Waits", b"four") == OK
    p.assert_equal("Waits", 1)


def test_a_slave_killed_in_the_stream_doubles_nothing(p: MixedPair) -> None:
    make(p, "Kills", 2)
    # A record is longer than what is sent at once: some of it is there.
    assert p.relay is not None
    p.relay.freeze(after_bytes=300_000)
    for number in range(20):
        body = b"%02d" % number * 25_000
        assert put(p.master.broker, "Kills", body, number % 2, UNWAITED) == OK
    until(lambda: p.relay.is_frozen)
    p.slave.kill()
    p.relay.thaw()
    p.start_slave()
    p.assert_equal("Kills", 2)
    assert put(p.master.broker, "Kills", b"after") == OK
    p.assert_equal("Kills", 2)


def test_a_frozen_link_ends_on_both_sides_and_is_caught_up(p: MixedPair) -> None:
    make(p, "Frozen")
    assert put(p.master.broker, "Frozen", b"one") == OK
    assert p.relay is not None
    p.relay.freeze()
    until(lambda: p.link_count() == 0, what="the master to close")
    assert put(p.master.broker, "Frozen", b"two", properties=UNWAITED) == OK
    mine, side = (p.slave, "master") if p.kind == "JP" else (p.master, "slave")
    until(lambda: f"the {side} sent nothing for" in mine.log_path.read_text("utf-8"), what="our side to close")
    p.relay.thaw()
    p.assert_equal("Frozen", 1)
    assert put(p.master.broker, "Frozen", b"three") == OK


def test_a_late_slave_joins(p: MixedPair) -> None:
    p.slave.kill()
    p.remove_slave_store()
    until(lambda: p.link_count() == 0)
    p.start_slave()
    # A Java master gives an empty slave its last file; ours gives all.
    p.assert_equal("Frozen", 1, from_last_file=p.kind == "JP")
    if p.kind == "PJ":
        p.assert_equal("Files", 3)
    make(p, "Late")
    assert put(p.master.broker, "Late", b"x") == OK
    p.assert_equal("Late", 1, from_last_file=p.kind == "JP")


def table(answer: Answer) -> dict[str, Any]:
    assert answer.code == 0, answer
    return dict(java_json(answer.body))


def commit(address: str, topic: str, group: str, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert ask(address, 15, ext_fields=fields).code == 0


def test_tables_of_the_slave_become_the_master_s(p: MixedPair) -> None:
    """A Java slave asks for them 60 s after its start."""
    master, slave = p.master.broker, p.slave.broker
    put_topic(master, "Tables", queues=3)
    # Of a later test: the Java slave would know of it a minute after it was made.
    make(p, "Reads", 2)
    assert ask(master, 200, json.dumps({"groupName": "tg", "retryMaxTimes": 3}).encode()).code == 0
    for queue_id in range(2):
        assert put(master, "Tables", b"x", queue_id) == OK
        commit(master, "Tables", "tg", queue_id, 1)
    assert put(master, "Tables", b"later", 0, "DELAY\x011\x02") == OK
    due_ms = int(time.time() * 1000) + 3_600_000
    assert put(master, "Tables", b"timed", 0, f"TIMER_DELIVER_MS\x01{due_ms}\x02") == OK
    until(lambda: table(ask(master, 45))["offsetTable"].get("1", 0) >= 1)
    for code, name in (
        (21, "topicConfigTable"),
        (201, "subscriptionGroupTable"),
        (43, "offsetTable"),
        (45, "offsetTable"),
    ):
        until(
            lambda c=code, n=name: table(ask(slave, c))[n] == table(ask(master, c))[n],
            what=f"the slave's {name} ({code})",
        )
    assert table(ask(slave, 43))["offsetTable"]["Tables@tg"] == {"0": 1, "1": 1}
    assert table(ask(slave, 21))["topicConfigTable"]["Tables"]["readQueueNums"] == 3

    def timers_follow() -> bool:
        theirs, ours = (decode_checkpoint(ask(address, 60).body) for address in (master, slave))
        # A new wheel begins a week ago and takes most of a minute to now: not waited for.
        return 0 < ours.read_time_ms <= theirs.read_time_ms and 0 < ours.master_queue_offset <= theirs.queue_offset

    until(timers_follow, what="the slave's timer checkpoint")


def test_a_slave_refuses_with_the_same_codes(p: MixedPair) -> None:
    """One table for both makers."""
    slave = p.slave.broker
    end = log_end(p.master.broker)
    assert put(slave, "Tables", b"x") == 2
    fields = {"producerGroup": "P", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}
    ended = ask(slave, 37, ext_fields=fields | {"fromTransactionCheck": "false", "msgId": "x"})
    assert ended.code == 11
    recalled = ask(slave, 370, ext_fields={"topic": "Tables", "recallHandle": "x", "producerGroup": "P"})
    assert recalled.code == 11
    assert pull(slave, "Tables", 0).code == 0
    assert pull(slave, "Tables", 99).code in (19, 20)
    assert log_end(p.master.broker) >= end


def pull(address: str, topic: str, offset: int) -> Answer:
    fields = {"consumerGroup": "tg", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32"}
    fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "100", "subscription": "*"}
    return ask(address, 11, ext_fields=fields | {"subVersion": "0", "expressionType": "TAG"})


@pytest.mark.shows(
    "`mqadmin` haStatus and resetMasterFlushOffset on masters and slaves of ours and Java's, brokerStatus on ours",
)
def test_mqadmin_shows_how_it_stands(p: MixedPair, tmp_path: Any) -> None:
    mqadmin = MqAdmin(tmp_path, p.namesrv, p.master.broker)
    try:
        until(p.in_sync)
        end = log_end(p.master.broker)
        shown = f"""
            #MasterAddr BROKER
            #MasterCommitLogMaxOffset {end}
            #SlaveNum 1
            #InSyncSlaveNum 1
            #SlaveAddr #SlaveAckOffset #Diff #TransferSpeed(KB/s) #Status #TransferFromWhere
            <address> {end} 0 <decimal> OK {end}
        """
        same(mqadmin("haStatus", "-b", p.master.broker), shown)
        shown = f"""
            #MasterAddr <address>
            #CommitLogMaxOffset {end}
            #TransferSpeed(KB/s) <decimal>
            #LastReadTime <time>
            #LastWriteTime <time>
            #MasterFlushOffset 0
        """
        same(mqadmin("haStatus", "-b", p.slave.broker), shown)
        # Java's own took over the five seconds of the tool on a machine that halted.
        ours = p.master if p.kind == "PJ" else p.slave
        lines = mqadmin("brokerStatus", "-b", ours.broker)
        assert any(line.startswith("commitLogMaxOffset") for line in lines), lines
        for broker in (p.master.broker, p.slave.broker):
            lines = mqadmin("resetMasterFlushOffset", "-b", broker, "-o", "77")
            assert "success" in " ".join(lines), lines
        assert ha_status(p.slave.broker)["haClientRuntimeInfo"]["masterFlushOffset"] == 77
    finally:
        mqadmin.close()


def test_a_java_producer_sends_over_the_vip_channel(p: MixedPair, java_driver: DriverFactory) -> None:
    """Without a listener two ports below there would be no send at all."""
    make(p, "Vip")
    java = java_driver("5.5.0")
    where = {"topic": "Vip", "broker": "broker-a", "queue_id": 0}
    with java.started("producer", namesrv=p.namesrv, group="vips", vip_channel=True) as producer:
        results = java.call("send", name=producer, messages=[message("Vip", "x")], queue=where)
    assert [result["status"] for result in results] == ["SEND_OK"]


def test_consumers_read_on_when_the_master_is_killed(p: MixedPair, java_driver: DriverFactory) -> None:
    bodies = [b"%d" % number for number in range(200)]
    java = java_driver("5.5.0")
    wanted = [{"topic": "Reads", "tags": "*"}]
    taken: list[bytes] = []
    have_all = threading.Event()

    def take(message: Any) -> None:
        taken.append(message.body)
        if len(set(taken)) == len(bodies):
            have_all.set()

    python = PushConsumer(p.namesrv, "py-readers", consume_from="first")
    python.subscribe("Reads")
    python.listen(take)
    java_options = {"namesrv": p.namesrv, "poll_namesrv_ms": 1000}
    with (
        java.started("push", group="java-readers", subscriptions=wanted, **java_options) as early,
        python,
    ):
        for number, body in enumerate(bodies[:100]):
            assert put(p.master.broker, "Reads", body, number % 2) == OK
        assert len(java.call("push_await", name=early, count=100, timeout_ms=LIMIT_MS)) >= 100
        for number, body in enumerate(bodies[100:]):
            assert put(p.master.broker, "Reads", body, number % 2) == OK
        p.master.kill()
        until(lambda: members(p.namesrv) == {1: p.slave.broker})
        got = java.call("push_await", name=early, count=200, timeout_ms=LIMIT_MS)
        assert sorted({body_of(m) for m in got}, key=int) == bodies
        assert have_all.wait(LIMIT_MS / 1000), len(set(taken))
        # Who comes now gets all of it from the slave.
        with java.started("push", group="late-readers", subscriptions=wanted, **java_options) as late:
            got = java.call("push_await", name=late, count=200, timeout_ms=LIMIT_MS)
            assert sorted({body_of(m) for m in got}, key=int) == bodies
    assert sorted(set(taken), key=int) == bodies
    p.master.start()
    until(lambda: p.link_count() == 1)
    p.assert_equal("Reads", 2, from_last_file=p.kind == "JP")


@pytest.mark.shows("roles swapped by a restart, ours and mixed")
@pytest.mark.soak
def test_roles_swap_by_a_restart(p: MixedPair) -> None:
    """Each serves as the other did, on the log that it has."""
    assert p.relay is not None
    assert p.slave.stop() in (0, 143)
    assert p.master.stop() in (0, 143)
    until(lambda: members(p.namesrv) == {})
    p.master, p.slave = p.slave, p.master
    p.master.start({"brokerRole": "SYNC_MASTER", "brokerId": 0, "haMasterAddress": ""})
    p.slave.start({"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": ""})
    # It learns of its master by itself.
    until(lambda: p.link_count() == 1, what="the slave to find its master")
    until(p.in_sync)
    make(p, "Swapped")
    for number in range(30):
        assert put(p.master.broker, "Swapped", b"%02d" % number * 30_000) == OK
    p.assert_equal("Swapped", 1, from_last_file=True)
