"""Three controllers that agree: they elect a leader, hold the same state, and lose nothing that was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark import Producer, PullConsumer
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import NotSent, RocketSparkError, SendFailed, ServerError, TransportError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers.controller import ReplicaHeartbeatHeader
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows(
    "three controllers: one leads, all have the state, a leader that ends is replaced and nothing answered is lost"
)

QUICK = {"scanNotActiveBrokerInterval": "100", "scanInactiveMasterInterval": "100"}


class Three:
    """Three controllers in this process, by their names; `more`: settings of each."""

    def __init__(self, folder: Path, count: int = 3, **more: Any) -> None:
        self.folder = folder
        self.more = more
        self.addresses = {f"n{i}": f"127.0.0.1:{free_ports()}" for i in range(count)}
        self.running: dict[str, ControllerServer] = {}

    def settings(self, node: str, peers: str = "") -> ControllerSettings:
        named = peers or ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        values = QUICK | self.more | {"controllerDLegerPeers": named, "controllerDLegerSelfId": node}
        return ControllerSettings(values, folder=self.folder / node)

    async def start(self, *nodes: str) -> None:
        for node in nodes or self.addresses:
            server = ControllerServer(self.settings(node))
            await server.start()
            self.running[node] = server

    async def stop(self, *nodes: str) -> None:
        for node in nodes or tuple(self.running):
            await self.running.pop(node).close()

    async def leader(self) -> str:
        """Wait until one that runs leads and all that run say so; returns its name."""

        async def agreed() -> str | None:
            found = {server._leadership().node for server in self.running.values()}
            leading = [node for node, server in self.running.items() if server._journal.leads]
            return leading[0] if found == set(leading) and len(leading) == 1 else None

        return str(await until(agreed))

    def client(self) -> ControllerClient:
        return ControllerClient(self.addresses.values())


async def until(true: Callable[[], Awaitable[Any]], limit_s: float = LIMIT_S) -> Any:
    """Ask until the answer is a true one, and return it."""
    end = time.monotonic() + limit_s
    while not (found := await true()):
        assert time.monotonic() < end, f"not so within {limit_s} s"
        await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def three(folder: Path, **more: Any) -> AsyncIterator[Three]:
    group = Three(folder, **more)
    try:
        await group.start()
        yield group
    finally:
        await group.stop()


def beat(broker_id: int, end: int = 0) -> ReplicaHeartbeatHeader:
    return ReplicaHeartbeatHeader(
        cluster_name="c",
        broker_name="b",
        address=f"127.0.0.1:{broker_id}",
        broker_id=broker_id,
        epoch=1,
        max_offset=end,
        timeout_ms=60_000,
    )


async def again(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask as a broker does: until a leader answers."""

    async def once() -> Any:
        try:
            return (await ask(),)
        except TransportError:
            return None
        except ServerError as e:
            if e.code != ResponseCode.CONTROLLER_NOT_LEADER:
                raise
            return None

    return (await until(once))[0]


async def join(group: Three, count: int) -> dict[int, ControllerClient]:
    """Let brokers of one name join, 1 the master, all in sync; each heartbeats to all controllers."""
    clients = {}
    for broker_id in range(1, count + 1):
        client = clients[broker_id] = group.client()
        await again(client.find_leader)
        assert await again(lambda c=client: c.next_id("c", "b")) == broker_id
        await client.apply_id("c", "b", broker_id, f"127.0.0.1:{broker_id};{broker_id}")
        await client.register("c", "b", broker_id, f"127.0.0.1:{broker_id}")
        await client.heartbeat(beat(broker_id))
        assert await client.heartbeat_all(beat(broker_id)) == len(group.running)
        await client.elect("c", "b", broker_id)
    if count > 1:
        await clients[1].alter_in_sync("b", 1, 1, range(1, count + 1), 1)
    return clients


def test_they_elect_one_and_all_have_its_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as group:
            leader = await group.leader()
            clients = await join(group, 2)

            async def same() -> bool:
                sets = [server._journal.sets for server in group.running.values()]
                return "b" in sets[0] and sets[0]["b"].in_sync == (1, 2) and all(each == sets[0] for each in sets)

            await until(same)
            for node, server in group.running.items():
                told = await clients[1].metadata(server.address)
                assert (told.controller_leader_id, told.is_leader) == (leader, node == leader)
                assert told.peers == "".join(f"{n}:{a};" for n, a in group.addresses.items())
            follower = next(server for node, server in group.running.items() if node != leader)
            alone = ControllerClient([follower.address])
            alone.leader = follower.address
            reply = await alone._ask(follower.address, 1012, None)
            assert reply.code != 0
            for client in (*clients.values(), alone):
                await client.close()

    run(main())


def test_a_leader_that_ends_is_replaced_and_so_is_a_master_that_went_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as group:
            clients = await join(group, 3)
            leader = await group.leader()
            await clients[3].heartbeat_all(beat(3, end=70))
            await group.stop(leader)
            await clients[1].close()
            after = await group.leader()
            assert after != leader

            async def replaced() -> bool:
                found = await again(lambda: clients[2].replica_info("b"))
                return found.master is not None and found.master.broker_id == 3 and found.in_sync == {3}

            await until(replaced)
            await group.start(leader)
            await until(lambda: _has(group, leader, 3))
            for client in clients.values():
                await client.close()

    run(main())


async def _has(group: Three, node: str, master: int) -> bool:
    sets = group.running[node]._journal.sets
    return "b" in sets and sets["b"].master == master


def stored(producer: Producer, body: bytes) -> None:
    """Send until a broker has it: while none is known a producer's own tries take milliseconds."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            producer.send("orders", body)
            return
        except (SendFailed, NotSent):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_brokers_follow_while_controllers_end_and_come_back(tmp_path: Path) -> None:
    with (
        run_cluster(replicas=3, controllers=3, store=tmp_path) as cluster,
        Producer(cluster.namesrv, "P", retries=40) as producer,
    ):
        stored(producer, b"first")
        first = cluster.kill_controller()
        cluster.kill_master()
        # The controllers elect one of theirs, and that one elects another broker.
        stored(producer, b"second")
        assert cluster.leading_controller() != first
        cluster.start_controllers_again()
        cluster.start_again()
        cluster.wait_in_sync(3)
        cluster.kill_controller()
        cluster.wait_in_sync(3)
        # One of three is left: nobody is elected, sends go on.
        cluster.kill_controller()
        stored(producer, b"third")
        other = next(each for each in cluster.brokers if each != cluster.master())
        with pytest.raises(RocketSparkError, match=r"no controller leads|is not the leader"):
            cluster.elect(other)
        cluster.start_controllers_again()
        cluster.kill_master()
        stored(producer, b"fourth")
        with PullConsumer(cluster.namesrv, "C", consume_from="first") as consumer:
            consumer.subscribe("orders")
            got: set[bytes] = set()
            while len(got) < 4:
                got |= {message.body for message in consumer.poll(timeout_ms=1000)}
    assert got == {b"first", b"second", b"third", b"fourth"}
