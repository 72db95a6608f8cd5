"""The controllers of a cluster: one alone, or three that agree, of which any may be taken out and put back by command.

Rule: a server is a process of its node: it has its own loop, and dies with its node.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.loop import current_process
from tests.simulation.world import Node, Process, World

from rocketspark.admin.controllers import ControllerGroup
from rocketspark.controller.group.raft_log import VOTER
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.transport.connections import Connections

PORT = 9877
SETTINGS = {"scanInactiveMasterInterval": "500", "scanNotActiveBrokerInterval": "500"}


async def serve(node: Node, server: Any) -> None:
    """Start a server, say so, and let it run until the process is asked to stop."""
    process = current_process()
    stop = process.stop_wanted = asyncio.Event()
    await server.start()
    process.server = server
    process.is_ready = True
    node.world.record("ready", node=node.name)
    await stop.wait()
    await server.close()


class Council:
    """One controller, named "controller", or a group of "controller-1" and so on."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        names = ["controller"] if count == 1 else [f"controller-{number}" for number in range(1, count + 1)]
        self.nodes = [world.node(name) for name in names]
        self.addresses = [f"{node.ip}:{PORT}" for node in self.nodes]
        # By node: the process that was started last, alive or not.
        self._latest: dict[str, Process] = {}

    def member(self, node: Node) -> str:
        """Return its name in the group."""
        number = self.nodes.index(node)
        return f"n{number}-{self.addresses[number]}"

    def start(self, node: Node) -> Process:
        """Start a controller; it is not waited for."""

        async def main(node: Node) -> None:
            values = dict(SETTINGS)
            if len(self.nodes) > 1:
                values["controllerDLegerPeers"] = ";".join(map(self.member, self.nodes))
                values["controllerDLegerSelfId"] = self.member(node).partition("-")[0]
            folder = node.disk.root / "controller"
            settings = ControllerSettings(values, listen=f"{node.ip}:{PORT}", folder=folder)
            await serve(node, ControllerServer(settings))

        process = self._latest[node.name] = node.start(main, node.name)
        return process

    # -- what it knows, whoever of it lives --------------------------------------------------------------------------

    def _journals(self) -> list[Any]:
        return [
            process.server._journal
            for node in self.nodes
            if (process := self._latest.get(node.name)) is not None and process.server is not None
        ]

    def sets(self) -> Any:
        """Return the newest sets that any of them knows to be decided."""
        journals = self._journals()
        return max((journal._state for journal in journals), key=lambda state: state.version).sets if journals else {}

    def is_whole(self) -> bool:
        """Tell whether each member knows all members, and has all that was agreed on when it began to vote."""
        known = [journal._status for journal in self._journals()]
        return len(known) == len(self.nodes) and all(
            status.standing == VOTER and len(status.members) == len(self.nodes) for status in known
        )

    def leader(self) -> Node | None:
        """Return the member that leads, by its own word."""
        for node in self.nodes:
            for process in node.processes:
                if process.server is not None and process.server.leads:
                    return node
        return None

    # -- commands ----------------------------------------------------------------------------------------------------

    async def remove(self, node: Node) -> bool:
        """Take a member out, as an operator does; False if it could not be, or nobody knows."""
        return await self._change("remove", node, self.member(node).partition("-")[0])

    async def add(self, node: Node) -> bool:
        """Put a member back."""
        return await self._change("add", node, self.member(node))

    async def _change(self, what: str, node: Node, name: str) -> bool:
        connections = Connections()
        try:
            await getattr(ControllerGroup(self.addresses, connections), what)(name)
        except (RocketSparkError, OSError) as e:
            self.world.record(f"not {what}", node=node.name, error=str(e)[:200])
            return False
        else:
            self.world.record(what, node=node.name)
            return True
        finally:
            await connections.close()

    async def make_whole(self, limit_s: float = 90.0) -> None:
        """Put back who was taken out, until all are members again and vote. Raises TimeoutError."""
        end_s = self.world.now_s + limit_s
        while not self.is_whole():
            if self.world.now_s > end_s:
                told = [(journal._status, journal._beginning.value) for journal in self._journals()]
                raise TimeoutError(f"the controllers are not whole within {limit_s:.0f} s: {told}")
            known = {name for journal in self._journals() if journal.leads for name in journal._status.members}
            for node in self.nodes:
                if known and self.member(node) not in known:
                    await self.add(node)
            await asyncio.sleep(0.5)
