"""Three controllers: official brokers 5.5.0 under three of ours, and brokers of ours under Apache's three."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import max_offset
from tests.java.apache_pair import PairBroker, Replicas, members, replicas, until
from tests.java.our_controller import our_namesrv
from tests.live.support import run
from tests.live.test_controllers_of_three import again
from tests.support.controllers import Controllers, leader_of
from tests.support.failovers import Answered, ReplicaSet, kill
from tests.support.nemesis_runs import failed_over

from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.headers.controller import ReplicaHeartbeatHeader

pytestmark = pytest.mark.xdist_group("jvm")
TOPIC = "three"


@pytest.mark.shows("two Java 5.5.0 brokers under three controllers of ours: the leader and the master killed")
def test_official_brokers_follow_three_of_ours(tmp_path: Path) -> None:
    with ExitStack() as servers:
        names, namesrv = our_namesrv(tmp_path / "names")
        servers.callback(names.kill)
        group = Controllers(tmp_path)
        servers.callback(group.kill)
        addresses, controllers = group.addresses, group.servers
        brokers = []
        for number in (1, 2):
            place, store = tmp_path / f"broker-{number}", tmp_path / f"store-{number}"
            broker = PairBroker(place, namesrv, store, "controller", controller=group.address)
            servers.callback(broker.kill)
            brokers.append(broker)

        def state(gone: str = "") -> Replicas:
            leader = leader_of(addresses, gone)
            return replicas(addresses[leader]) if leader else Replicas(None, None, 0, set())

        until(lambda: state().in_sync == {1, 2}, what="both in sync")
        send(namesrv, 10)
        until(lambda: max_offset(brokers[1].broker, TOPIC, 0) == 10)
        first = leader_of(addresses)
        controllers[first].kill()
        until(lambda: leader_of(addresses, first) not in ("", first))
        send(namesrv, 5)
        assert state(first) == Replicas(brokers[0].broker, 1, 1, {1, 2})
        brokers[0].kill()
        until(lambda: state(first).master == brokers[1].broker)
        until(lambda: members(namesrv).get(0) == brokers[1].broker)
        assert max_offset(brokers[1].broker, TOPIC, 0) == 15
        controllers[first].start()
        brokers[0].start()
        until(lambda: state().in_sync == {1, 2}, what="both in sync again")


def send(namesrv: str, count: int) -> None:
    with Producer(namesrv, "pg", retries=20, send_timeout_ms=20_000) as producer:
        queue = None
        for number in range(count):
            message = Message(topic=TOPIC, body=b"%d" % number)
            end = time.monotonic() + 60
            while True:
                try:
                    producer.send(message, queue=queue or MessageQueue(TOPIC, "broker-a", 0))
                    break
                except Exception:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.2)


@pytest.mark.official
@pytest.mark.shows("our client of controllers under three of Apache's (DLedger): the leader killed")
def test_ours_follow_three_of_apaches(tmp_path: Path) -> None:
    with ExitStack() as servers:
        group = Controllers(tmp_path, "dledger")
        servers.callback(group.kill)
        addresses, controllers = group.addresses, group.servers

        def beat(broker_id: int) -> ReplicaHeartbeatHeader:
            return ReplicaHeartbeatHeader(
                cluster_name="c",
                broker_name="b",
                address=f"127.0.0.1:{broker_id}",
                broker_id=broker_id,
                epoch=1,
                max_offset=0,
                timeout_ms=60_000,
            )

        async def main() -> None:
            clients = {number: ControllerClient(addresses.values()) for number in (1, 2)}
            try:
                for number, client in clients.items():
                    await again(client.find_leader)
                    assert await again(lambda c=client: c.next_id("c", "b")) == number
                    await client.apply_id("c", "b", number, f"127.0.0.1:{number};{number}")
                    await client.register("c", "b", number, f"127.0.0.1:{number}")
                    await client.heartbeat(beat(number))
                    assert await client.heartbeat_all(beat(number)) == 3
                    await client.elect("c", "b", number)
                taken = await again(lambda: clients[1].alter_in_sync("b", 1, 1, [1, 2], 1))
                assert taken.members == {1, 2}
                gone = leader_of(addresses)
                controllers[gone].kill()
                found = await again(lambda: clients[1].replica_info("b"))
                assert (found.master.broker_id if found.master else None, found.in_sync) == (1, {1, 2})
                assert clients[1].leader != addresses[gone]
            finally:
                for client in clients.values():
                    await client.close()

        run(main())


@pytest.mark.official
@pytest.mark.shows(
    "two brokers of ours under three controllers of Apache's (DLedger, jRaft): a master killed, the leader killed, the "
    "next master killed"
)
@pytest.mark.soak
@pytest.mark.parametrize("raft", ["dledger", "jraft"])
def test_brokers_of_ours_follow_three_of_apaches(tmp_path: Path, raft: Any) -> None:
    # Who is killed is missed as its connection ends; a machine that halts for seconds must not have one more elected.
    config = {"recallMessageEnable": "true", "controllerHeartBeatTimeoutMills": 60_000}
    found = ReplicaSet(tmp_path, "PP", "official", config, controllers=3, raft=raft)
    group = found.group
    assert group is not None

    def kill_leader(found: ReplicaSet, load: Answered) -> float:
        first, before = group.leader(), found.state()
        group.servers[first].kill()
        until(lambda: group.leader(first) not in ("", first))
        load.wait_for_answers(20)
        assert found.state() == before
        return 0.0

    def kill_once_more(found: ReplicaSet, load: Answered) -> float:
        seconds = kill(found, load)
        for server in group.servers.values():
            server.kill()
            server.start()
        until(group.leader)
        return seconds

    took_s: list[tuple[str, float]] = []
    try:
        acts = [kill, kill_leader, kill_once_more]
        failed_over(found, tmp_path, random.Random(raft), acts, lambda name, seconds: took_s.append((name, seconds)))
        print(raft, took_s)
        assert found.state().epoch == 3
    finally:
        found.close()
