"""A slave that acts for its master, beside official brokers: theirs lost for ours to act, ours lost for theirs to act.

Another broker, official where ours acts and ours where theirs does, is the way out for what falls due.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheBroker, ask, committed_offset, make_group
from tests.java.apache_pair import (
    ACTING,
    CLUSTER,
    COMMON,
    NAME,
    PairBroker,
    PairNamesrv,
    caught_up,
    has_topic,
    members,
    routed,
    until,
)
from tests.java.our_controller import OurServer
from tests.support.ports import free_ports

from rocketspark.admin.operations import Admin
from rocketspark.protocol.message import properties, record

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows(
        "slave acting master beside the Java broker, as master and as slave, with the Java NameServer and ours"
    ),
]
TOPIC, GROUP, WAY_OUT = "acting", "readers", "broker-b"
# Messages fall due while nobody is master, and after the master is back.
SOON_S, LATER_S = 12, 34
DELAYS = {"messageDelayLevel": f"1s {SOON_S}s {LATER_S}s", "transactionCheckInterval": 1000, "transactionTimeOut": 1000}
NAMES = "scanNotActiveBrokerInterval=1000\nsupportActingMaster=true\nnotifyMinBrokerIdChanged=true\n"


class OurBroker(OurServer):
    """A broker of ours with the keys that the official ones get."""

    def __init__(self, folder: Path, namesrv: str, broker_id: int, name: str = NAME, **config: Any) -> None:
        port = free_ports(-2, 0, 1)
        self.broker = f"127.0.0.1:{port}"
        acting = COMMON | ACTING | {"brokerId": broker_id, "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER"}
        table = {
            "brokerClusterName": CLUSTER,
            "brokerName": name,
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": namesrv,
            "storePathRootDir": folder / "store",
            "mappedFileSizeCommitLog": 16 * 1024 * 1024,
            "diskMaxUsedSpaceRatio": 99,
            "cleanFileForciblyEnable": "false",
        }
        table |= (acting if name == NAME else {}) | DELAYS | config
        super().__init__(folder, "broker", "".join(f"{key}={value}\n" for key, value in table.items()))


def send(broker: str, body: bytes, sys_flag: int = 0, **pairs: str) -> None:
    """One message to queue 0."""
    ext = {
        "a": "P",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": str(sys_flag),
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": properties.encode({"UNIQ_KEY": f"ID{body.hex().upper()}", "PGROUP": "P"} | pairs),
        "j": "0",
        "k": "false",
        "m": "false",
    }
    assert ask(broker, 310, body, ext).code == 0


def stored(broker: str, topic: str = TOPIC) -> Counter[bytes]:
    """How often each body lies in queue 0 of a broker's topic."""
    found: Counter[bytes] = Counter()
    at = 0
    while True:
        ext = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": "0",
            "queueOffset": str(at),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        answer = ask(broker, 11, ext_fields=ext)
        if answer.code != 0:
            return found
        found.update(message.body for message in record.decode_all(answer.body))
        at = int(answer.ext_fields["nextBeginOffset"])


def commit(broker: str, offset: int) -> None:
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
    assert ask(broker, 15, ext_fields=ext).code == 0


def max_offset(broker: str, topic: str) -> int:
    answer = ask(broker, 30, ext_fields={"topic": topic, "queueId": "0"})
    return int(answer.ext_fields["offset"]) if answer.code == 0 else 0


def timers_read_ms(broker: str) -> int:
    """Up to which time a broker's checkpoint says that timer messages are delivered."""
    return int(struct.unpack_from(">q", ask(broker, 60).body)[0])


@pytest.fixture(params=["JP", "PJ"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    """A NameServer's address, a master, its slave, and another broker; with two JVMs."""
    servers: list[Any] = []

    def add(server: Any) -> Any:
        servers.append(server)
        return server

    try:
        if request.param == "JP":
            namesrv = f"127.0.0.1:{free_ports()}"
            add(OurServer(tmp_path / "names", "namesrv", f"{NAMES}listenPort={namesrv.rpartition(':')[2]}\n"))
            other = add(ApacheBroker(tmp_path / "b", namesrv, tmp_path / "b-store", WAY_OUT, COMMON | DELAYS))
            master = add(PairBroker(tmp_path / "m", namesrv, tmp_path / "m-store", "acting", 0, config=DELAYS))
            slave = add(OurBroker(tmp_path / "s", namesrv, 1))
        else:
            namesrv = add(PairNamesrv(tmp_path / "names", "acting")).namesrv
            other = add(OurBroker(tmp_path / "b", namesrv, 0, WAY_OUT))
            master = add(OurBroker(tmp_path / "m", namesrv, 0))
            # Its checkpoint is as old as its last flush.
            config = DELAYS | {"timerFlushIntervalMs": 1000}
            slave = add(PairBroker(tmp_path / "s", namesrv, tmp_path / "s-store", "acting", 1, config=config))
        until(lambda: members(namesrv) == {0: master.broker, 1: slave.broker}, what="both brokers")
        yield namesrv, master, slave, other
    finally:
        for server in reversed(servers):
            server.kill()


def test_a_slave_acts_and_the_master_comes_back(replicas: tuple[str, Any, Any, Any]) -> None:
    namesrv, master, slave, other = replicas
    with Admin(namesrv) as operations:
        operations.create_topic(TOPIC, queue_count=1)
    for broker in (master, other):
        make_group(broker.broker, GROUP, TOPIC)
    if isinstance(slave, PairBroker):
        # It asks for its master's tables a minute after its start.
        ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert ask(slave.broker, 17, ext_fields=ext).code == 0
        make_group(slave.broker, GROUP, TOPIC)
    send(master.broker, b"plain")
    send(master.broker, b"level soon", DELAY="2")
    send(master.broker, b"level later", DELAY="3")
    send(master.broker, b"timer soon", TIMER_DELAY_MS=str(SOON_S * 1000))
    due_ms = time.time_ns() // 1_000_000 + SOON_S * 1000
    send(master.broker, b"timer later", TIMER_DELAY_MS=str(LATER_S * 1000))
    commit(master.broker, 1)
    send(master.broker, b"half", 4, TRAN_MSG="true")
    until(lambda: caught_up(master.broker) and has_topic(slave.broker, TOPIC), what="the slave to have all")
    if isinstance(slave, OurBroker):
        until(lambda: committed_offset(slave.broker, GROUP, TOPIC, 0) == 1, what="the slave's tables")
    master.kill()

    until(lambda: routed(namesrv, TOPIC) == {0: slave.broker}, what="the slave as the route's master")
    assert stored(slave.broker) == {b"plain": 1}
    commit(slave.broker, 5)
    until(lambda: stored(other.broker) == {b"level soon": 1, b"timer soon": 1}, what="what is due at another broker")
    until(lambda: max_offset(other.broker, "RMQ_SYS_TRANS_HALF_TOPIC") >= 1, what="the half message at another broker")
    # What a master asks for is a second old on the official broker.
    until(lambda: timers_read_ms(slave.broker) > due_ms, what="the slave's checkpoint of timer messages")

    master.start()
    until(lambda: members(namesrv) == {0: master.broker, 1: slave.broker}, what="the master's return")
    until(lambda: routed(namesrv, TOPIC) == {0: master.broker, 1: slave.broker})
    assert committed_offset(master.broker, GROUP, TOPIC, 0) == 5
    once = Counter({b"plain": 1, b"level soon": 1, b"timer soon": 1, b"level later": 1, b"timer later": 1})
    until(lambda: stored(master.broker) + stored(other.broker) >= once, what="what is due later")
    until(lambda: caught_up(master.broker), what="the slave to copy again")
    found = stored(master.broker) + stored(other.broker)
    if isinstance(master, PairBroker):
        # Killed before its checkpoint counts them it puts timer messages on its wheel a second time, by itself.
        found[b"timer later"] = min(found[b"timer later"], 1)
    assert found == once
    # A slave has its log before its queues, which are made from it.
    end = max_offset(master.broker, TOPIC)
    until(lambda: max_offset(slave.broker, TOPIC) >= end, what="the slave's queue")
    assert max_offset(slave.broker, TOPIC) == end == max_offset(master.broker, TOPIC)
