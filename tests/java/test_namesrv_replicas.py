"""Replicated brokers at a NameServer: the same requests to the official 5.5.0 and to ours, one set of answers.

The brokers are played by hand. After each step the group's members, the routes and the notices have to be as written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheNamesrv
from tests.java.apache_pair import java_json
from tests.java.fake_brokers import CLUSTER, FakeBroker, Link
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.shows(
    "acting route, lowest ids and their notices (905), state versions, write permission without a master, "
    "member group, 904 and 322"
)

MEMBERS = "rmq_sys_SYNC_BROKER_MEMBER_a"
TOPICS = {"T": 6, MEMBERS: 1}
CONFIG = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true", "scanNotActiveBrokerInterval": "500"}
READ, WRITE = 4, 6


class Table:
    """A NameServer as a client sees it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._link = Link(address)

    def ask(self, code: int, body: bytes = b"", **ext_fields: str) -> Any:
        return self._link.ask(code, ext_fields, body)

    def route(self, topic: str = "T") -> tuple[dict[str, dict[int, str]], dict[str, int]] | None:
        """By broker name: addresses by id, and the topic's permission; None for no route."""
        answer = self.ask(105, topic=topic)
        if answer.code == 17:
            return None
        assert answer.code == 0
        route = json.loads(answer.body)
        addresses = {b["brokerName"]: {int(i): a for i, a in b["brokerAddrs"].items()} for b in route["brokerDatas"]}
        return addresses, {q["brokerName"]: q["perm"] for q in route["queueDatas"]}

    def members(self, name: str = "a") -> bytes:
        answer = self.ask(901, clusterName=CLUSTER, brokerName=name)
        assert answer.code == 0
        body: bytes = answer.body
        return body

    def comes_to(self, look: Callable[[], Any], wanted: Any) -> None:
        """Wait until it looks so: the official NameServer answers who leaves before it acts."""
        deadline = time.monotonic() + LIMIT_S
        while (found := look()) != wanted:
            assert time.monotonic() < deadline, f"{found} instead of {wanted}"
            time.sleep(0.02)

    def shows(self, members: dict[int, FakeBroker], perm: int, *, acting: dict[int, FakeBroker] | None = None) -> None:
        """The group "a" has these members, and routes name these, or those of `acting`, with the topic's permission."""
        plain = {i: b.address for i, b in members.items()}
        routed = {i: b.address for i, b in (acting or members).items()}
        self.comes_to(self.route, ({"a": routed}, {"a": perm}))
        assert self.route(MEMBERS) == ({"a": plain}, {"a": 1})
        assert self.members() == group(members)

    def close(self) -> None:
        self._link.close()


def group(members: dict[int, FakeBroker], name: str = "a") -> bytes:
    """The body of a 901's reply."""
    addresses = ",".join(f'{i}:"{b.address}"' for i, b in sorted(members.items()))
    text = f'{{"brokerMemberGroup":{{"brokerAddrs":{{{addresses}}},"brokerName":"{name}","cluster":"{CLUSTER}"}}}}'
    return text.encode()


@pytest.fixture(scope="module", params=["official", "ours"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "official":
            server = ApacheNamesrv(folder, CONFIG)
            stack.callback(server.kill)
            address = server.namesrv
        else:
            (folder / "namesrv.conf").write_text("listenPort=0\n" + "".join(f"{k}={v}\n" for k, v in CONFIG.items()))
            command = [sys.executable, "-m", "rocketspark.cli.main", "namesrv", "-c", "namesrv.conf"]
            process = stack.enter_context(
                subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("ready namesrv=").strip()
        found = Table(address)
        stack.callback(found.close)
        yield found


@pytest.fixture
def brokers(table: Table) -> Iterator[Callable[..., list[FakeBroker]]]:
    """brokers(count, name): connected to the NameServer."""
    made: list[FakeBroker] = []

    def make(count: int, name: str = "a") -> list[FakeBroker]:
        found = [FakeBroker(name) for _ in range(count)]
        made.extend(found)
        for broker in found:
            broker.connect(table.address)
        return found

    yield make
    unheard = [n for broker in made for n in broker.notices.queue]
    for broker in made:
        broker.close()
    table.comes_to(lambda: table.ask(106).body, b'{"brokerAddrTable":{},"clusterAddrTable":{}}')
    assert unheard == []


Brokers = Callable[..., list[FakeBroker]]


def arrived(low: FakeBroker) -> dict[str, str]:
    """The notice of a master that came."""
    return {"minBrokerId": "0", "minBrokerAddr": low.address, "haBrokerAddr": low.ha_address}


def left(gone: FakeBroker, low: FakeBroker, low_id: int = 1) -> dict[str, str]:
    """The notice of a lowest id that left."""
    return {"minBrokerId": str(low_id), "minBrokerAddr": low.address, "offlineBrokerAddr": gone.address}


def test_a_slave_stands_in_while_there_is_no_master(table: Table, brokers: Brokers) -> None:
    master, first, second = brokers(3)
    # An increment before the whole table.
    assert first.register(1, {"T": 6}).code == 1
    assert table.route() is None
    assert first.register(1, TOPICS).ext_fields == {}
    table.shows({1: first}, READ, acting={0: first})
    assert master.register(0, TOPICS).ext_fields == {}
    assert first.heard() == arrived(master)
    table.shows({0: master, 1: first}, WRITE)
    whose = {"haServerAddr": master.ha_address, "masterAddr": master.address}
    assert first.register(1, TOPICS).ext_fields == whose
    assert second.register(2, TOPICS).ext_fields == whose
    table.shows({0: master, 1: first, 2: second}, WRITE)
    # The master leaves by request, comes back, and its connection ends.
    leave = master.link.ask(104, master.identity(0))
    assert leave is not None
    assert leave.code == 0
    assert [b.heard() for b in (first, second)] == [left(master, first)] * 2
    table.shows({1: first, 2: second}, READ, acting={0: first, 2: second})
    assert first.register(1, TOPICS, counter=2).ext_fields == {}
    table.shows({1: first, 2: second}, READ, acting={0: first, 2: second})
    assert master.register(0, {"T": 6}, counter=3).code == 1
    assert master.register(0, TOPICS).code == 0
    assert [b.heard() for b in (first, second)] == [arrived(master)] * 2
    table.shows({0: master, 1: first, 2: second}, WRITE)
    master.leave()
    assert [b.heard() for b in (first, second)] == [left(master, first)] * 2
    table.shows({1: first, 2: second}, READ, acting={0: first, 2: second})
    # The next lowest goes, too; one that is not the lowest is not told of.
    first.leave()
    assert second.heard() == left(first, second, 2)
    table.shows({2: second}, READ, acting={0: second})
    master.connect(table.address)
    first.connect(table.address)
    assert master.register(0, TOPICS).code == 0
    assert second.heard() == arrived(master)
    assert first.register(1, TOPICS).ext_fields == whose
    second.leave()
    table.shows({0: master, 1: first}, WRITE)


def test_a_master_that_is_silent_is_dropped_and_its_connection_closed(table: Table, brokers: Brokers) -> None:
    master, slave = brokers(2)
    assert slave.register(1, TOPICS, expiry_ms=4000).code == 0
    assert master.register(0, TOPICS, expiry_ms=4000).code == 0
    assert slave.heard() == arrived(master)
    # With what a controller is told, and as before 5.0: both count.
    for number in range(10):
        fields = slave.identity(1) | {"epoch": "3", "maxOffset": "77", "confirmOffset": "70", "electionPriority": "1"}
        slave.link.ask(904, fields | {"heartbeatTimeoutMills": "1"}, oneway=True)
        version = {"counter": number % 2, "stateVersion": 0, "timestamp": 1}
        answer = master.link.ask(322, master.identity(0), json.dumps(version).encode())
        assert answer is not None
        assert (answer.code, answer.ext_fields) == (0, {"changed": str(number % 2 == 0).lower()})
        assert json.loads(answer.body) == {"counter": 1, "stateVersion": 0, "timestamp": 1}
        time.sleep(0.5)
    table.shows({0: master, 1: slave}, WRITE)
    heartbeat = table.ask(904, **slave.identity(1) | {"brokerAddr": "127.0.0.1:1"})
    assert (heartbeat.code, heartbeat.ext_fields) == (0, {})
    deadline = time.monotonic() + LIMIT_S
    while slave.notices.empty():
        assert time.monotonic() < deadline
        slave.link.ask(904, slave.identity(1), oneway=True)
        time.sleep(0.3)
    assert slave.heard() == left(master, slave)
    table.shows({1: slave}, READ, acting={0: slave})
    assert master.link.ended()


def test_of_two_masters_the_higher_state_version_stays(table: Table, brokers: Brokers) -> None:
    old, new, slave = brokers(3)
    assert old.register(0, TOPICS, state_version=1).code == 0
    assert slave.register(2, TOPICS, state_version=1).code == 0
    # Elected: the same address comes as 0, and its old id goes.
    assert new.register(1, TOPICS, state_version=1).code == 0
    assert new.register(0, TOPICS, state_version=2).ext_fields == {}
    table.shows({0: new, 2: slave}, WRITE)
    stale = old.register(0, TOPICS, state_version=1, counter=50)
    assert (stale.code, stale.ext_fields) == (0, {})
    table.shows({0: new, 2: slave}, WRITE)
    assert slave.register(2, TOPICS, state_version=2).ext_fields["masterAddr"] == new.address
    # What was refused is not known: its end changes nothing, and it may come as a slave.
    answer = old.link.ask(322, old.identity(0), b'{"counter":50,"stateVersion":1,"timestamp":1}')
    assert answer is not None
    assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")
    assert old.register(1, TOPICS, state_version=2).ext_fields["masterAddr"] == new.address
    table.shows({0: new, 1: old, 2: slave}, WRITE)
    # The same state version: who came last stays.
    assert old.register(0, TOPICS, state_version=2).code == 0
    table.shows({0: old, 2: slave}, WRITE)


def test_a_lower_id_at_the_same_address_is_told_to_itself(table: Table, brokers: Brokers) -> None:
    (only,) = brokers(1)
    assert only.register(3, TOPICS).code == 0
    assert only.register(0, TOPICS, counter=2).code == 0
    assert only.heard() == arrived(only)
    table.shows({0: only}, WRITE)


@pytest.mark.parametrize("acting", [False, None])
def test_groups_without_acting_masters(table: Table, brokers: Brokers, acting: bool | None) -> None:
    master, slave = brokers(2)
    assert slave.register(1, TOPICS, acting=acting).code == 0
    if acting is None:
        # Before 5.0: a slave's topics do not count.
        assert table.route() is None
    else:
        table.shows({1: slave}, WRITE)
    assert master.register(0, TOPICS, acting=acting).code == 0
    assert slave.heard() == arrived(master)
    table.shows({0: master, 1: slave}, WRITE)
    assert master.link.ask(104, master.identity(0)) is not None
    table.shows({1: slave}, WRITE)


def test_settings_act_at_once(table: Table, brokers: Brokers) -> None:
    def update(text: str) -> None:
        assert table.ask(318, text.encode()).code == 0

    master, slave = brokers(2)
    assert slave.register(1, TOPICS).code == 0
    table.shows({1: slave}, READ, acting={0: slave})
    update("supportActingMaster=false\nnotifyMinBrokerIdChanged=false")
    table.shows({1: slave}, READ)
    assert master.register(0, TOPICS).code == 0
    assert master.link.ask(104, master.identity(0)) is not None
    table.shows({1: slave}, READ)
    update("supportActingMaster=true\nnotifyMinBrokerIdChanged=true\nenableAllTopicList=false\nenableTopicList=false")
    table.shows({1: slave}, READ, acting={0: slave})
    for code in (206, 224, 311, 312, 313):
        answer = table.ask(code, cluster=CLUSTER)
        assert (code, answer.code, answer.body) == (code, 1, b"")
    update("enableAllTopicList=true\nenableTopicList=true\ndeleteTopicWithBrokerRegistration=true")
    topics = TOPICS | {"U": 6, "V": 6}
    assert master.register(0, topics).code == 0
    assert slave.heard() == arrived(master)
    assert sorted(json.loads(table.ask(206).body)["topicList"]) == sorted(topics)
    assert master.register(0, TOPICS | {"V": 6}, counter=2).code == 0
    assert sorted(json.loads(table.ask(206).body)["topicList"]) == sorted(TOPICS | {"V": 6})
    update("deleteTopicWithBrokerRegistration=false")
    # Of another cluster nothing is deleted.
    assert table.ask(216, topic="V", clusterName="other").code == 0
    assert table.route("V") is not None
    assert table.ask(216, topic="V", clusterName=CLUSTER).code == 0
    assert table.route("V") is None


def test_bodies_are_the_same_bytes(table: Table, brokers: Brokers) -> None:
    (slave,) = brokers(1)
    assert slave.register(1, TOPICS).code == 0
    assert table.members("nobody") == group({}, "nobody")
    address = slave.address.encode()
    assert (
        table.ask(105, topic="T").body
        == (
            b'{"brokerDatas":[{"brokerAddrs":{"0":"%b"},"brokerName":"a","cluster":"c","enableActingMaster":true}],'
            b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":4,"readQueueNums":4,"topicSysFlag":0,'
            b'"writeQueueNums":4}]}'
        )
        % address
    )
    assert (
        table.ask(106).body
        == (
            b'{"brokerAddrTable":{"a":{"brokerAddrs":{1:"%b"},"brokerName":"a","cluster":"c","enableActingMaster":true}},'
            b'"clusterAddrTable":{"c":["a"]}}'
        )
        % address
    )


@pytest.mark.shows("zones of the NameServer")
def test_a_route_for_one_zone_names_no_other(table: Table, brokers: Brokers) -> None:
    east, west, nowhere, slave = (brokers(1, name)[0] for name in "ewns")
    # A slave that stands in for its master is of its zone, as one.
    for broker, broker_id, zone in ((east, 0, "East"), (west, 0, "west"), (nowhere, 0, None), (slave, 1, "west")):
        assert broker.register(broker_id, {"Z": 6, "Y": 6}, acting=broker_id > 0, zone=zone).code == 0

    def names(**fields: str) -> set[str]:
        answer = table.ask(105, topic="Z", **fields)
        assert answer.code == 0
        # 5.5.0 writes what it filtered anew, with bare numbers as keys, whoever asks.
        route = java_json(answer.body)
        found = {b["brokerName"] for b in route["brokerDatas"]}
        assert {q["brokerName"] for q in route["queueDatas"]} == found
        return found

    assert names() == set("ewns")
    assert names(__ZONE_NAME="east", __ZONE_MODE="true") == {"e"}
    assert names(__ZONE_NAME="WEST", __ZONE_MODE="TRUE") == {"w", "s"}
    assert names(__ZONE_NAME="north", __ZONE_MODE="true") == set()
    assert names(__ZONE_NAME="east", __ZONE_MODE="yes") == set("ewns")
    assert names(__ZONE_NAME="east") == set("ewns")
    assert names(__ZONE_NAME=" ", __ZONE_MODE="true") == set("ewns")
    # Once moved it is another zone's, with its next registration.
    assert east.register(0, {"Z": 6, "Y": 6}, acting=False, zone="west", counter=2).code == 0
    assert names(__ZONE_NAME="east", __ZONE_MODE="true") == set()
    (body,) = [b for b in java_json(table.ask(105, topic="Z").body)["brokerDatas"] if b["brokerName"] == "e"]
    assert body["zoneName"] == "west"
