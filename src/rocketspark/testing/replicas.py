"""The replicas of one broker in a test's process: killed, started again, elected. All on one loop."""

from __future__ import annotations

import asyncio

import msgspec

from rocketspark.broker.inner_connections import inner_connections
from rocketspark.broker.replication.controller_client import ControllerClient, SetState
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError, StateError
from rocketspark.transport.connections import parse_addresses

LIMIT_S = 60.0
LOOK_S = 0.01
# Short times, so that a test waits little; each may be given to `run_cluster`.
QUICK = {
    "heartbeat_interval_ms": 200,
    "metadata_interval_ms": 500,
    "sync_set_check_interval_ms": 500,
    "member_group_interval_ms": 100,
    "ha_heartbeat_interval_ms": 1000,
}


class Single:
    """One broker that has no replicas: while it is killed its queues are away."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._running: BrokerServer | None = None

    async def start(self) -> str:
        """Start it; returns its address, which stays the same."""
        broker = BrokerServer(self._settings)
        await broker.start()
        self._running = broker
        self._settings = msgspec.structs.replace(self._settings, listen_port=int(broker.address.rpartition(":")[2]))
        return broker.address

    async def close(self) -> None:
        """Stop it, if it runs."""
        if self._running is not None:
            await self._running.close()

    async def master(self) -> str:
        """Return its address. Raises StateError while it is killed."""
        return self._broker().address

    async def kill_master(self) -> str:
        """End it as SIGKILL would; returns its address."""
        broker, self._running = self._broker(), None
        await broker.kill()
        return broker.address

    async def start_again(self) -> None:
        """Start it on its store and port, if it was killed."""
        if self._running is None:
            await self.start()

    async def elect(self, address: str) -> None:
        """Raise StateError: nobody can be elected."""
        raise StateError("this cluster has no replicas: run_cluster(replicas=2) makes them")

    async def wait_in_sync(self, count: int) -> str:
        """Raise StateError: there is no set in sync."""
        raise StateError("this cluster has no replicas: run_cluster(replicas=2) makes them")

    def _broker(self) -> BrokerServer:
        if self._running is None:
            raise StateError(f"{self._settings.broker_name} is killed: start_again() starts it")
        return self._running


class Replicas:
    """The replicas of one broker name. `settings`: those of each replica, but for its folder and port; `controller`:
    "host:port", several with ; between.
    """

    def __init__(self, settings: BrokerSettings, controller: str) -> None:
        defaults = BrokerSettings()
        self._settings = msgspec.structs.replace(
            settings,
            controller_mode=True,
            controller_addresses=controller,
            broker_role="SLAVE",
            broker_id=-1,
            all_ack_in_sync_set=True,
            slave_read=True,
            **{name: ms for name, ms in QUICK.items() if getattr(settings, name) == getattr(defaults, name)},
        )
        self._controller = ControllerClient(parse_addresses(controller), connections=inner_connections(settings))
        self._running: dict[int, BrokerServer] = {}
        self._ports: dict[int, int] = {}

    async def start(self, count: int) -> list[str]:
        """Start `count` replicas, the first one as the master; returns their addresses."""
        for number in range(1, count + 1):
            await self._start(number)
            await self.wait_in_sync(number)
        return [broker.address for broker in self._running.values()]

    async def _start(self, number: int) -> None:
        settings = msgspec.structs.replace(
            self._settings,
            store_root=f"{self._settings.store_root}/replica-{number}",
            listen_port=self._ports.get(number, 0),
        )
        broker = BrokerServer(settings)
        await broker.start()
        self._running[number] = broker
        self._ports[number] = int(broker.address.rpartition(":")[2])

    async def close(self) -> None:
        """Stop the replicas that run, the master last."""
        for broker in sorted(self._running.values(), key=lambda broker: broker.role.is_master):
            await broker.close()
        await self._controller.close()

    async def master(self) -> str:
        """Return the address of the master. Raises StateError if there is none."""
        return self._master()[1].address

    def _master(self) -> tuple[int, BrokerServer]:
        for number, broker in self._running.items():
            if broker.role.kind is Role.MASTER:
                return number, broker
        raise StateError(f"{self._settings.broker_name} has no master now: wait_in_sync(1) waits for one")

    async def kill_master(self) -> str:
        """End the master as SIGKILL would; returns its address."""
        number, broker = self._master()
        del self._running[number]
        await broker.kill()
        return broker.address

    async def start_again(self) -> None:
        """Start the replicas that were killed, on their stores and ports."""
        for number in self._ports.keys() - self._running.keys():
            await self._start(number)

    async def elect(self, address: str) -> None:
        """Make the replica at an address the master."""
        broker = next((b for b in self._running.values() if b.address == address), None)
        if broker is None or broker.replication.manager is None or broker.replication.manager.own_id is None:
            raise StateError(f"no replica of {self._settings.broker_name} runs at {address}")
        s = self._settings
        own_id = broker.replication.manager.own_id
        await self._controller.elect(s.cluster_name, s.broker_name, own_id, designate=True)
        async with asyncio.timeout(LIMIT_S):
            while broker.role.kind is not Role.MASTER:
                await asyncio.sleep(LOOK_S)

    async def wait_in_sync(self, count: int) -> str:
        """Wait until `count` replicas are in sync, 0 for all that run; returns the master's address."""
        wanted = count or len(self._running)
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    found = await self._known()
                    running = {broker.address: broker for broker in self._running.values()}
                    if found is not None and found.master is not None and len(found.in_sync) >= wanted:
                        broker = running.get(found.master.address)
                        if broker is not None and broker.role.kind is Role.MASTER:
                            return broker.address
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise StateError(
                f"no {wanted} replicas of {self._settings.broker_name} came in sync within {LIMIT_S:.0f} s"
            ) from None

    async def _known(self) -> SetState | None:
        try:
            return await self._controller.replica_info(self._settings.broker_name)
        except RocketSparkError:
            return None
