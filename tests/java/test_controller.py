"""The official controller answers as it is recorded; official brokers and mqadmin 5.5.0 work with ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.java.apache import ApacheController, ask, max_offset
from tests.java.apache_pair import PairBroker, Replicas, members, replicas, until
from tests.java.mqadmin import MqAdmin, as_sync_state_set, same
from tests.java.our_controller import our_controller, our_namesrv
from tests.live.support import run
from tests.live.test_controller_client import every_call
from tests.support import controller_rows

from rocketspark.admin.operations import Admin
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.client import Producer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.model import Message, MessageQueue

pytestmark = pytest.mark.xdist_group("jvm")
TOPIC = "controlled"


@pytest.mark.shows(
    "the controller: ids, registration, elections, in-sync sets, cleaning, metadata (1001 to 1006, 1008 to 1013, 904)"
)
def test_apaches_controller_answers_as_recorded_and_serves_our_client(tmp_path: Path) -> None:
    official = ApacheController(tmp_path)
    try:
        rows = controller_rows.comparable(controller_rows.play(official.controller))
        run(our_client_on(official.controller))
        shown = ask(official.controller, 1010).body.decode()
    finally:
        official.kill()
    assert rows == controller_rows.recorded()
    keys = dict(line.split("=", 1) for line in shown.splitlines() if line)
    # An object of Java's, by its number in memory.
    assert keys.pop("jraftConfig")
    # One key is ours alone.
    assert keys.keys() | {"electionZones"} == ControllerSettings().properties().keys()


async def our_client_on(address: str) -> None:
    client, other = ControllerClient([address]), ControllerClient([address])
    try:
        await every_call(client, other)
    finally:
        await client.close()
        await other.close()


class Pair:
    """Two official brokers in controller mode under our controller and NameServer; `one` began as master."""

    def __init__(self, folder: Path, servers: ExitStack) -> None:
        self.names, self.namesrv = our_namesrv(folder / "names")
        servers.callback(self.names.kill)
        self.controller, self.address = our_controller(folder / "controller")
        servers.callback(self.controller.kill)
        brokers = []
        for number in (1, 2):
            place, store = folder / f"broker-{number}", folder / f"store-{number}"
            broker = PairBroker(place, self.namesrv, store, "controller", controller=self.address)
            servers.callback(broker.kill)
            brokers.append(broker)
        self.one, self.two = brokers

    def state(self) -> Replicas:
        return replicas(self.address)

    def wait_in_sync(self) -> None:
        until(lambda: self.state().in_sync == {1, 2}, what="both in sync")

    def send(self, count: int) -> None:
        with Producer(self.namesrv, "pg", retries=20, send_timeout_ms=20_000) as producer:
            for number in range(count):
                producer.send(Message(topic=TOPIC, body=b"%d" % number), queue=MessageQueue(TOPIC, "broker-a", 0))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as servers:
        yield Pair(tmp_path_factory.mktemp("under-ours"), servers)


@pytest.mark.shows(
    "two Java 5.5.0 brokers under our controller and NameServer: master killed, controller killed and started between"
)
def test_official_brokers_live_under_our_controller(pair: Pair) -> None:
    pair.wait_in_sync()
    assert pair.state() == Replicas(pair.one.broker, 1, 1, {1, 2})
    with Admin(pair.namesrv) as operations:
        operations.create_topic(TOPIC, queue_count=1)
    pair.send(10)
    until(lambda: max_offset(pair.two.broker, TOPIC, 0) == 10)

    # A controller that is killed and comes again changes nothing, however long it looks.
    pair.controller.kill()
    pair.send(10)
    pair.controller.start()
    until(lambda: all(f'"brokerId":{i},"brokerName":"broker-a"' in alive(pair) for i in (1, 2)), what="heartbeats")
    assert pair.state() == Replicas(pair.one.broker, 1, 1, {1, 2})

    began = time.monotonic()
    pair.one.kill()
    until(lambda: pair.state().master == pair.two.broker)
    assert time.monotonic() - began < 30
    assert pair.state() == Replicas(pair.two.broker, 2, 2, {2})
    until(lambda: members(pair.namesrv).get(0) == pair.two.broker)
    pair.send(5)

    # With the controller down in between, too: who was killed comes back as a slave with everything.
    pair.controller.kill()
    pair.controller.start()
    pair.one.start()
    pair.wait_in_sync()
    assert pair.state().master_id == 2
    until(lambda: max_offset(pair.one.broker, TOPIC, 0) == 25)


def alive(pair: Pair) -> str:
    """What the controller says of those that are alive."""
    text = ask(pair.address, 1006, b'["broker-a"]').body.decode()
    return "".join(part for part in text.split("{") if '"alive":true' in part)


@pytest.mark.shows(
    "`mqadmin` getSyncStateSet, getControllerMetaData, getControllerConfig, updateControllerConfig, "
    "electMaster, cleanBrokerMetadata, with Java brokers getBrokerEpoch"
)
def test_mqadmin_works_on_our_controller(pair: Pair, tmp_path: Path) -> None:
    pair.wait_in_sync()
    before = pair.state()
    mqadmin = MqAdmin(tmp_path, pair.namesrv, pair.one.broker)
    try:
        replica = "ReplicaIdentity{{brokerName='broker-a', brokerId={}, brokerAddress='{}', alive=true}}"
        shown = mqadmin.raw("getSyncStateSet", "-a", pair.address, "-b", "broker-a")
        set_epoch = int(dict(line.split(" ", 1) for line in shown)["#SyncStateSetEpoch"])
        same(
            shown,
            f"""#brokerName broker-a
                #MasterBrokerId {before.master_id}
                #MasterAddr <any>
                #MasterEpoch {before.epoch}
                #SyncStateSetEpoch {set_epoch}
                #SyncStateSetNums 2
            """
            + f"InSyncReplica: {replica.format(1, 'BROKER')}\n"
            + f"InSyncReplica: {replica.format(2, pair.two.broker)}\n",
        )
        assert mqadmin("getSyncStateSet", "-a", pair.address, "-c", "DefaultCluster") == shown
        with Admin(pair.namesrv) as admin:
            told = as_sync_state_set(admin.replica_sets()["broker-a"])
        assert told == [line.replace("BROKER", pair.one.broker) for line in shown]
        same(
            mqadmin.raw("getControllerMetaData", "-a", pair.address),
            f"""#ControllerGroup g
                #ControllerLeaderId n0
                #ControllerLeaderAddress {pair.address}
                #Peer: n0:{pair.address}
            """,
        )
        config = mqadmin.raw("getControllerConfig", "-a", pair.address)
        assert config[0] == f"============{pair.address}============"
        assert {f"controllerDLegerPeers = n0-{pair.address}", "notifyBrokerRoleChanged = true"} <= set(config)
        shown = mqadmin.raw(
            "updateControllerConfig", "-a", pair.address, "-k", "scanInactiveMasterInterval", "-v", "700"
        )
        assert shown == [f"update controller config success![{pair.address}]", "scanInactiveMasterInterval : 700"]
        assert "scanInactiveMasterInterval = 700" in mqadmin.raw("getControllerConfig", "-a", pair.address)
        assert "scanInactiveMasterInterval=700\n" in pair.controller.config.read_text("utf-8")
        refused = mqadmin.raw("updateControllerConfig", "-a", pair.address, "-k", "controllerDLegerSelfId", "-v", "n9")
        assert "CODE: 29 DESC: controllerDLegerSelfId cannot change while the controller runs" in refused[-1]

        where = ("-a", pair.address, "-bn", "broker-a", "-c", "DefaultCluster")
        other = 3 - (before.master_id or 0)
        same(
            mqadmin.raw("electMaster", *where, "-b", str(other)),
            f"""#ClusterName DefaultCluster
                #BrokerName broker-a
                #BrokerMasterAddr <any>
                #MasterEpoch {before.epoch + 1}
                #SyncStateSetEpoch {set_epoch + 1}
            """,
        )
        until(lambda: members(pair.namesrv).get(0) == (pair.one, pair.two)[other - 1].broker)
        pair.wait_in_sync()
        epochs = mqadmin("getBrokerEpoch", "-b", "broker-a")
        assert [line.split("=")[1].split(",")[0] for line in epochs if line.startswith("#Epoch")][-1:] != []
        assert "CODE: 2009 DESC: broker-a has master" in mqadmin.raw("cleanBrokerMetadata", *where)[-1]
        living = mqadmin.raw("cleanBrokerMetadata", *where, "-b", str(other))[-1]
        assert f"CODE: 2009 DESC: [{other}] of broker-a are alive" in living
        (pair.one, pair.two)[2 - other].kill()
        until(lambda: f'"brokerId":{3 - other},' not in alive(pair))
        cleaned = mqadmin.raw("cleanBrokerMetadata", *where, "-b", str(3 - other))
        assert cleaned == ["clear broker broker-a metadata from controller success!"]
        assert pair.state() == Replicas((pair.one, pair.two)[other - 1].broker, other, before.epoch + 1, {other})
    finally:
        mqadmin.close()
