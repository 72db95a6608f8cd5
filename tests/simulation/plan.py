"""What happens to a cluster, as data: drawn from the seed, done at its time, left out where a failing seed is shrunk.

Rule: a fault lasts for its seconds and is mended then; `Faults.run` ends with everything mended and running.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.simulation.council import Council
from tests.simulation.nodes import Cluster
from tests.simulation.world import Node, World, wait_until

# By kind: how often it is drawn, and on which machines. `servers`: all but clients.
KINDS: dict[str, tuple[int, str]] = {
    "kill": (6, "servers"),
    "kill at call": (5, "servers"),
    "power": (4, "brokers"),
    "power at call": (3, "brokers"),
    "halt": (5, "servers"),
    "cut one way": (5, "pairs"),
    "isolate": (5, "servers"),
    "slow": (2, "pairs"),
    "break": (3, "pairs"),
    "refuse": (2, "servers"),
    "disk full": (2, "brokers"),
    "disk slow": (2, "brokers"),
    "disk fails": (1, "brokers"),
    "clock": (2, "servers"),
    "drift": (1, "servers"),
    "elect": (3, "brokers"),
}
# Of several controllers: what is on their disks is agreed on by two.
COUNCIL_KINDS: dict[str, tuple[int, str]] = {
    "power of a controller": (6, "controllers"),
    "power of a controller at call": (4, "controllers"),
    "wipe": (3, "controllers"),
    "remove": (3, "controllers"),
}
# Between two losses of power: what one has lost the other has flushed by then.
POWER_PAUSE_S = 3.0
LONG_S = 12.0

Fault = dict[str, Any]


def draw_faults(chance: random.Random, cluster: Cluster, clients: list[Node], *, begin_s: float, end_s: float) -> Any:
    """Draw faults between two times, a few to a dozen."""
    names = [node.name for node in cluster.servers]
    brokers = [node.name for node in cluster.brokers]
    every = names + [node.name for node in clients]
    controllers = [node.name for node in cluster.controllers]
    table = KINDS | COUNCIL_KINDS if len(controllers) > 1 else KINDS
    if not brokers:
        table = {kind: drawn for kind, drawn in table.items() if drawn[1] != "brokers"}
        names, brokers = controllers, controllers
    kinds = [kind for kind, (weight, _) in table.items() for _ in range(weight)]
    if len(brokers) == 1:
        # Alone it promises nothing of what was not flushed, and nobody is elected.
        kinds = [kind for kind in kinds if not kind.startswith("power") and kind != "elect"]
    found: list[Fault] = []
    for _ in range(chance.randint(1, 12)):
        kind = chance.choice(kinds)
        where = table[kind][1]
        # Brokers are what most is to be found in.
        target = chance.choice(brokers if where == "brokers" or chance.random() < 0.5 else names)
        if where == "controllers":
            target = chance.choice(controllers)
        fault: Fault = {"at": round(chance.uniform(begin_s, end_s), 3), "kind": kind, "node": target}
        fault["seconds"] = round(chance.choice([chance.uniform(0.05, 2), chance.uniform(0.5, LONG_S)]), 3)
        if where == "pairs":
            fault["other"] = chance.choice([name for name in every if name != target])
            if kind == "slow":
                fault["value"] = round(chance.uniform(0.05, 1.5), 3)
        elif kind.endswith("at call"):
            fault["value"] = int(chance.choice([chance.uniform(1, 20), chance.uniform(1, 300)]))
        elif kind == "disk slow":
            fault["value"] = round(chance.uniform(0.05, 2.0), 3)
        elif kind == "clock":
            fault["value"] = round(chance.choice([-1, 1]) * chance.choice([0.5, 5.0, 60.0, 3600.0]), 3)
        elif kind == "drift":
            fault["value"] = round(1 + chance.uniform(-0.05, 0.05), 4)
        found.append(fault)
    return sorted(found, key=lambda fault: fault["at"])


def draw_stands(chance: random.Random, nodes: list[Node], *, begin_s: float, end_s: float) -> list[Fault]:
    """Draw which clocks stand still, and for how long. `is_set`: they are set right as they go on."""
    # Each once: one that stays behind again and again would be later than the end waits for.
    standing = chance.sample(nodes, min(chance.choice([0, 0, 1, 1, 2]), len(nodes)))
    return [
        {
            "at": round(chance.uniform(begin_s, end_s - 10), 3),
            "node": node.name,
            "seconds": round(chance.uniform(2, 20), 3),
            "is_set": chance.random() < 0.5,
        }
        for node in standing
    ]


async def stand(world: World, stands: list[Fault]) -> None:
    """Have clocks stand, each at its time. No trouble of the history: nothing but times may go by it."""

    async def one(fault: Fault) -> None:
        node = world.node(fault["node"])
        await wait_until(world, fault["at"])
        world.states["clocks that stand"] += 1
        world.record("stands", node=node.name)
        began_s = world.now_s
        node.clock.stand()
        await asyncio.sleep(fault["seconds"])
        node.clock.go_on(is_set=fault["is_set"])
        world.record("stood", node=node.name, began_s=began_s)

    await asyncio.gather(*map(one, stands))


class Faults:
    """Does the faults of a plan to a cluster.

    `hard`: with a replica's loss of power other faults may come together. Else it comes alone, until all are in sync
    again.
    """

    def __init__(self, cluster: Cluster, *, hard: bool = False) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._powered_at_s: dict[str, float] = {}
        self._world.may_lose_power = self._may_lose_power
        self._hard = hard
        # Faults that last, and the broker that lost its power last, until all are in sync again.
        self._under_way: list[Fault] = []
        self._weak: Node | None = None

    async def run(self, faults: list[Fault]) -> None:
        """Do all, and mend what is left at the end."""
        mends = [asyncio.ensure_future(self._one(fault)) for fault in faults]
        watch = asyncio.ensure_future(self._watch())
        try:
            for mend in mends:
                await mend
        finally:
            watch.cancel()
        self.mend()

    def mend(self) -> None:
        """Mend everything, start what does not run."""
        self._world.network.heal()
        for node in self._cluster.servers:
            node.kill_at_call(0)
            node.disk.full, node.disk.slow_s = False, 0.0
            node.clock.drift = 1.0
            if node.disk.failing:
                # A broker whose flush failed takes nothing more until it is started again.
                node.disk.failing = set()
                node.kill()
            node.go_on()
            self._cluster.restart(node)

    async def _watch(self) -> None:
        """Start again what ended by itself, as whoever runs it does; who was killed comes back at the fault's end."""
        down: dict[str, float] = {}
        while True:
            await asyncio.sleep(0.5)
            for node in self._cluster.servers:
                if node.processes:
                    down.pop(node.name, None)
                elif self._world.now_s - down.setdefault(node.name, self._world.now_s) > LONG_S:
                    self._cluster.restart(node)

    async def _one(self, fault: Fault) -> None:
        world, node = self._world, self._world.node(fault["node"])
        await wait_until(world, fault["at"])
        kind, value = fault["kind"], fault.get("value")
        if self._is_spared(fault, node):
            world.record("spared", what=kind, node=node.name)
            return
        self._under_way.append(fault)
        world.record("fault", what=kind, node=node.name, value=value, other=fault.get("other"))
        pair = [node, world.node(fault["other"])] if "other" in fault else []
        net = world.network
        match kind:
            case "kill":
                node.kill()
            case "power" | "power of a controller":
                node.power_loss()
            case "wipe":
                node.kill()
                node.wipe()
            case "remove":
                await self._council.remove(node)
            case "kill at call" | "power at call" | "power of a controller at call":
                node.kill_at_call(value, power=kind.startswith("power"))
            case "halt":
                node.halt()
            case "cut one way":
                net.cut(*pair)
            case "isolate":
                net.partition([node], [other for other in world.nodes.values() if other is not node])
            case "slow":
                net.slow(*pair, value)
            case "break":
                net.break_connections(*pair)
            case "refuse":
                net.refuse(node)
            case "disk full":
                node.disk.full = True
            case "disk slow":
                node.disk.slow_s = value
            case "disk fails":
                node.disk.failing = {"sync"}
            case "clock":
                node.clock.jump(value)
            case "drift":
                node.clock.drift = value
            case "elect":
                await self._cluster.elect(node)
        await asyncio.sleep(fault["seconds"])
        self._under_way.remove(fault)
        world.record("mended", what=kind, node=node.name)
        match kind:
            case "remove":
                await self._council.add(node)
            case _ if kind == "wipe" or kind.startswith(("kill", "power")):
                node.kill_at_call(0)
                self._cluster.restart(node)
            case "halt":
                node.go_on()
            case "cut one way":
                net.open(*pair)
            case "isolate":
                net.rejoin(node, world.nodes.values())
            case "slow":
                net.slow(*pair, 0.0)
            case "refuse":
                net.refuse(node, False)
            case "disk full":
                node.disk.full = False
            case "disk slow":
                node.disk.slow_s = 0.0
            case "disk fails":
                node.disk.failing = set()
                node.kill()
                self._cluster.restart(node)
            case "drift":
                node.clock.drift = 1.0

    @property
    def _council(self) -> Council:
        assert self._cluster.council is not None
        return self._cluster.council

    def _is_spared(self, fault: Fault, node: Node) -> bool:
        if fault["kind"] in ("wipe", "remove"):
            # Who has an empty disk does not count before it has all again, nor who is taken out.
            under_way = any(other["kind"] in ("wipe", "remove") for other in self._under_way)
            return under_way or not self._council.is_whole()
        weak = self._weak
        if weak is None or self._hard:
            return False
        if not weak.processes or self._cluster.known_in_sync() < len(self._cluster.brokers):
            return True
        self._weak = None
        return False

    def _may_lose_power(self, node: Node) -> bool:
        """Tell whether the promise holds if this machine loses power: all others have what it has, and soon flushed."""
        others = [other for other in self._cluster.brokers if other is not node]
        now_s = self._world.now_s
        if node in self._cluster.brokers:
            if any(now_s - self._powered_at_s.get(other.name, -POWER_PAUSE_S) < POWER_PAUSE_S for other in others):
                return False
            if self._cluster.known_in_sync() < len(self._cluster.brokers):
                return False
            if any(other.disk.failing or other.disk.full or other.disk.slow_s for other in others):
                return False
            if not self._hard and any(fault["node"] != node.name or "other" in fault for fault in self._under_way):
                return False
            self._weak = node
        self._powered_at_s[node.name] = now_s
        return True
