"""The controllers of a test's cluster: one, or a group whose leader can be ended. All on one loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rocketspark.broker.inner_connections import signer_of
from rocketspark.broker.settings import BrokerSettings
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import StateError
from rocketspark.transport.dialing import free_ports

LIMIT_S = 60.0
LOOK_S = 0.01
QUICK = {"scanInactiveMasterInterval": "500"}


class Controllers:
    """The controllers of a test's cluster, in this process. `brokers`: the settings whose TLS and signer they take.

    `askers`: the access keys that may ask them, with their secrets; None for everybody. `count`: how many there are.
    """

    def __init__(
        self, folder: Path, brokers: BrokerSettings, askers: dict[str, str] | None = None, count: int = 1
    ) -> None:
        self._folder, self._brokers, self._askers = folder, brokers, askers
        self._names = [f"n{i}" for i in range(count)]
        self._peers = ""
        self._running: dict[str, ControllerServer] = {}
        self.addresses: list[str] = []

    async def start(self) -> None:
        """Start the controllers that do not run, and wait until one of them leads."""
        if len(self._names) > 1 and not self._peers:
            self.addresses = [f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", len(self._names))]
            pairs = zip(self._names, self.addresses, strict=True)
            self._peers = ";".join(f"{name}-{address}" for name, address in pairs)
        for name in self._names:
            if name not in self._running:
                self._running[name] = server = ControllerServer(self._settings(name), share=0.25)
                await server.start()
                self.addresses = self.addresses or [server.address]
        await self.leader()

    def _settings(self, name: str) -> ControllerSettings:
        if self._peers:
            values = QUICK | {"controllerDLegerPeers": self._peers, "controllerDLegerSelfId": name}
            settings = ControllerSettings(values, folder=self._folder / name)
        else:
            settings = ControllerSettings(QUICK, listen="127.0.0.1:0", folder=self._folder)
        settings.tls, settings.signer = self._brokers.tls, signer_of(self._brokers)
        if self._askers:
            settings.let_ask(self._askers)
        return settings

    async def leader(self) -> str:
        """Wait until a controller leads, and return its address."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not (leading := [each for each in self._running.values() if each.leads]):
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise StateError(f"no controller leads: {len(self._running)} of {len(self._names)} run") from None
        return leading[0].address

    async def kill_leader(self) -> str:
        """End the controller that leads, and return its address."""
        address = await self.leader()
        name, server = next((n, each) for n, each in self._running.items() if each.address == address)
        del self._running[name]
        await server.close()
        return address

    async def close(self) -> None:
        """End all controllers."""
        await asyncio.gather(*(server.close() for server in self._running.values()))
