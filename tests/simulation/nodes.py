"""Clusters of the real servers on simulated machines, with the settings that make a simulated minute cheap.

Rule: a server is a process of its node: it has its own loop, and dies with its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.simulation.council import Council, serve
from tests.simulation.loop import current_process
from tests.simulation.world import Node, NodeDied, Process, World

from rocketspark.broker import server
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.namesrv.server import NameServer
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections

NAMESRV_PORT, BROKER_PORT, PROXY_PORT = 9876, 10911, 8081

# Small files, so that a run crosses many of them and disks cost little.
BROKER: dict[str, Any] = {
    "refuse_when_behind": False,
    "clean_by_force": False,
    "log_file_bytes": 64 << 10,
    "queue_file_bytes": 20 * 200,
    "index_slots": 200,
    "index_entries": 800,
    "timers_enabled": False,
    "timer_log_file_bytes": 104_000,
    "default_topic_queue_count": 4,
    "flush_interval_ms": 200,
    "clean_interval_ms": 10_000,
}
# Times of replicas: short enough that an election fits into a run, with their proportions.
REPLICA: dict[str, Any] = {
    "heartbeat_interval_ms": 500,
    "not_active_timeout_ms": 4000,
    "metadata_interval_ms": 2000,
    "sync_set_check_interval_ms": 2000,
    "controller_interval_ms": 3000,
    "ha_heartbeat_interval_ms": 2000,
    "ha_housekeeping_interval_ms": 8000,
    "slave_not_caught_up_ms": 6000,
    "slave_timeout_ms": 2000,
    "controller_timeout_ms": 5000,
}


def install() -> None:
    """Have the brokers of this process count the cuts of their logs, and time few sends one by one."""
    truncate = Store.truncate

    def truncated(store: Store, position: int) -> None:
        process = current_process()
        if process is not None and position < store.written_position:
            process.node.world.states["logs cut"] += 1
        truncate(store, position)

    # Counted, as it is what a replica does to its log that cannot be undone.
    Store.truncate = truncated  # type: ignore[method-assign]
    # A run has fewer sends than a broker measures in each of its intervals: else none went the fast path.
    server.TIMED_PUTS = 2


class Cluster:
    """A NameServer and one broker name.

    `replicas`: 1 for a single master; 2 and more for so many brokers that a controller elects from; 0 for controllers
    alone. `controllers`: how many, one by default if there is something to elect. `proxies`: how many, which clients
    are given in place of the NameServer. `settings`: of the brokers, over BROKER and REPLICA.
    """

    def __init__(
        self,
        world: World,
        *,
        replicas: int = 1,
        controllers: int | None = None,
        proxies: int = 0,
        name: str = "broker-a",
        **settings: Any,
    ) -> None:
        self.world = world
        self.name = name
        self.settings = settings
        self.namesrv = world.node("namesrv")
        count = int(replicas != 1) if controllers is None else controllers
        self.council = Council(world, count) if count else None
        self.brokers = [world.node(f"{name}-{number}") for number in range(1, replicas + 1)]
        # Brokers that an operator took out: nobody starts them again.
        self.taken_out: set[str] = set()
        self.proxies = [world.node(f"proxy-{number}") for number in range(1, proxies + 1)]
        self.servers_address = f"{self.namesrv.ip}:{NAMESRV_PORT}"
        # What clients are given; operators and servers ask the NameServer itself.
        self.namesrv_address = ";".join(f"{node.ip}:{PROXY_PORT}" for node in self.proxies) or self.servers_address

    @property
    def servers(self) -> list[Node]:
        return [self.namesrv, *self.controllers, *self.brokers, *self.proxies]

    @property
    def controllers(self) -> list[Node]:
        return self.council.nodes if self.council else []

    def broker_settings(self, node: Node) -> BrokerSettings:
        own: dict[str, Any] = {
            "broker_name": self.name,
            "store_root": str(self.store(node)),
            "namesrv_addresses": self.servers_address,
            "listen_host": node.ip,
            "listen_port": BROKER_PORT,
        }
        if self.council is not None:
            own |= REPLICA | {
                "controller_mode": True,
                "controller_addresses": ";".join(self.council.addresses),
                "broker_role": "SLAVE",
                "broker_id": -1,
                "all_ack_in_sync_set": True,
                "slave_read": True,
            }
        return BrokerSettings(**{**BROKER, **own, **self.settings})

    def start_server(self, node: Node) -> Process:
        """Start what the node is for; it is not waited for."""
        node.boot()
        main: Callable[[Node], Awaitable[Any]]
        if node is self.namesrv:

            async def main(node: Node) -> None:
                await serve(node, NameServer(node.ip, NAMESRV_PORT))
        elif self.council is not None and node in self.council.nodes:
            return self.council.start(node)
        elif node in self.proxies:
            # Not before: gRPC is for those alone that have proxies.
            from tests.simulation.proxies import proxy

            async def main(node: Node) -> None:
                await serve(node, proxy(node.ip, PROXY_PORT, self.servers_address))
        else:

            async def main(node: Node) -> None:
                await serve(node, BrokerServer(self.broker_settings(node)))

        return node.start(main, node.name)

    def restart(self, node: Node) -> Process | None:
        """Start it again on what its disk has, if it does not run."""
        return None if node.processes or node.name in self.taken_out else self.start_server(node)

    async def start(self) -> None:
        """Start all, and wait until they know each other."""
        for node in self.servers:
            await self.start_server(node).wait_ready()
        if self.council is not None:
            await self.wait_in_sync(len(self.brokers))

    async def stop(self) -> None:
        """Stop the servers that run as an operator would, brokers first."""
        for node in reversed(self.servers):
            for process in list(node.processes):
                process.stop()
                try:
                    await process.wait()
                except (RocketSparkError, OSError, NodeDied) as e:
                    self.world.record("ended", node=node.name, error=repr(e))

    def store(self, node: Node) -> Path:
        return node.disk.root / "store"

    def stores(self) -> dict[str, Path]:
        """The stores of the brokers, by name of the node."""
        return {node.name: self.store(node) for node in self.brokers}

    async def master(self) -> Node | None:
        """Return the node that the controller says is master; None while there is none."""
        found = await self._known()
        if found is None or found.master is None:
            return None
        return next((node for node in self.brokers if found.master.address.startswith(f"{node.ip}:")), None)

    async def in_sync(self) -> int:
        """Return how many replicas the controller knows in sync."""
        found = await self._known()
        return 0 if found is None or found.master is None else len(found.in_sync)

    def _shows_all(self, *, slaves: bool = False) -> bool:
        servers = [process.server for node in self.brokers for process in node.processes if process.server is not None]
        shown = [s.store.confirmed_position >= s.store.written_position for s in servers if slaves or s.role.is_master]
        return all(shown) and bool(shown or not servers)

    def known_set(self) -> Any:
        """Return what the controllers' disks say of the replicas, None if nothing; controllers may be down."""
        assert self.council is not None
        return self.council.sets().get(self.name)

    def known_in_sync(self) -> int:
        """Return how many replicas are in sync as the controllers' disks say; a broker without them is."""
        if self.council is None:
            return len(self.brokers)
        found = self.known_set()
        return 0 if found is None or found.master is None else len(found.in_sync)

    async def elect(self, node: Node) -> None:
        """Ask the controller to make a broker the master; it may refuse."""
        number = next(
            (
                process.server.replication.manager.own_id
                for process in node.processes
                if process.server is not None and process.server.replication.manager is not None
            ),
            None,
        )
        if number is None or self.council is None:
            return
        client = ControllerClient(self.council.addresses, connections=Connections())
        try:
            await client.elect("DefaultCluster", self.name, number, designate=True)
        except (RocketSparkError, OSError) as e:
            self.world.record("not elected", node=node.name, error=str(e)[:200])
        finally:
            await client.close()

    async def _known(self) -> Any:
        assert self.council is not None
        client = ControllerClient(self.council.addresses, connections=Connections())
        try:
            return await client.replica_info(self.name)
        except (RocketSparkError, OSError):
            return None
        finally:
            await client.close()

    async def wait_in_sync(self, count: int, limit_s: float = 120.0, *, shown: bool = False) -> None:
        """Wait until so many replicas are in sync with an elected master, and it shows all that it has.

        One that has just begun shows no more than it knows to be confirmed until the others have told what they hold.
        `shown`: the slaves show all, too, which they hear of with the next message, or some seconds later.
        """
        end_s = self.world.now_s + limit_s
        while await self.in_sync() < count or not self._shows_all(slaves=shown):
            if self.world.now_s > end_s:
                raise TimeoutError(f"no {count} replicas in sync within {limit_s:.0f} s")
            await asyncio.sleep(0.2)
