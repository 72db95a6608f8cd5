"""Three controllers under faults: alone, asked by brokers that are played, and with real ones.

Rules: an epoch has one master; what was decided stays; two of three that are lost decide nothing, and sends go on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from tests.simulation.council import Council
from tests.simulation.failover import failover
from tests.simulation.loop import current_process
from tests.simulation.nodes import Cluster
from tests.simulation.plan import Faults, draw_faults
from tests.simulation.world import Node, World

from rocketspark import AsyncProducer, Message, SendStatus
from rocketspark.broker.replication.controller_client import ControllerClient, SetState
from rocketspark.errors import RocketSparkError
from rocketspark.protocol.headers.controller import ReplicaHeartbeatHeader
from rocketspark.transport.connections import Connections

FAULTS_FROM_S, FAULTS_UNTIL_S = 3.0, 25.0
SETTLE_S = 90.0
PLAYERS = 3
CLUSTER, NAME = "DefaultCluster", "played"
# What the next leader takes at most to decide.
ELECTED_WITHIN_S = 3.0


class Told(NamedTuple):
    """What a controller answered. `members`: the in-sync set, None where that was not told."""

    who: str
    broker_name: str
    began_s: float
    ended_s: float
    epoch: int
    set_epoch: int
    master: int | None
    members: frozenset[int] | None


class Given(NamedTuple):
    """A number that was given to a broker, by its code."""

    broker_name: str
    number: int
    code: str


class Answers:
    """All that the controllers answered, whoever asked: brokers, operators, and those that are played."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.told: list[Told] = []
        self.given: list[Given] = []
        self._listen()

    def _listen(self) -> None:
        answers, world = self, self._world
        kind: Any = ControllerClient
        elect, register, info, alter, apply = (
            kind.elect,
            kind.register,
            kind.replica_info,
            kind.alter_in_sync,
            kind.apply_id,
        )

        def note(name: str, began_s: float, epoch: int, set_epoch: int, master: Any, members: Any) -> None:
            process = current_process()
            who = process.node.name if process is not None else "-"
            answers.told.append(Told(who, name, began_s, world.now_s, epoch, set_epoch, master, members))
            world.record("told", who=who, name=name, epoch=epoch, set_epoch=set_epoch, master=master)

        def state(name: str, began_s: float, found: SetState) -> SetState:
            if found.epoch is not None:
                master = found.master.broker_id if found.master else None
                note(name, began_s, found.epoch, found.set_epoch, master, found.in_sync)
            return found

        async def asked_elect(self: Any, cluster: str, name: str, *rest: Any, **more: Any) -> Any:
            began_s = world.now_s
            found = await elect(self, cluster, name, *rest, **more)
            master = found.master
            note(name, began_s, master.epoch, master.set_epoch, master.broker_id, found.in_sync)
            return found

        async def asked_register(self: Any, cluster: str, name: str, *rest: Any) -> Any:
            began_s = world.now_s
            found = await register(self, cluster, name, *rest)
            return state(name, began_s, found) if found.master is not None else found

        async def asked_info(self: Any, name: str, *rest: Any, **more: Any) -> Any:
            began_s = world.now_s
            return state(name, began_s, await info(self, name, *rest, **more))

        async def asked_alter(self: Any, name: str, master: int, epoch: int, *rest: Any, **more: Any) -> Any:
            began_s = world.now_s
            found = await alter(self, name, master, epoch, *rest, **more)
            note(name, began_s, epoch, found.epoch, master, found.members)
            return found

        async def asked_apply(self: Any, cluster: str, name: str, number: int, code: str) -> None:
            await apply(self, cluster, name, number, code)
            answers.given.append(Given(name, number, code))

        kind.elect, kind.register, kind.replica_info = asked_elect, asked_register, asked_info
        kind.alter_in_sync, kind.apply_id = asked_alter, asked_apply


# -- rules -------------------------------------------------------------------------------------------------------


class Broken(AssertionError):
    """A rule of the controllers does not hold."""


def an_epoch_has_one_master(answers: Answers) -> Iterator[str]:
    """Nobody is told of another master in the same epoch, by whichever controller."""
    masters: dict[tuple[str, int], Told] = {}
    for told in answers.told:
        if told.master is not None:
            first = masters.setdefault((told.broker_name, told.epoch), told)
            if first.master != told.master:
                yield f"{first} and {told}"


def what_was_decided_stays(answers: Answers) -> Iterator[str]:
    """Who asks after an answer is told that or what came after it; a set of an epoch, and a number, mean one thing."""
    by_name: dict[str, list[Told]] = defaultdict(list)
    for told in answers.told:
        by_name[told.broker_name].append(told)
    for found in by_name.values():
        ended = sorted(found, key=lambda told: told.ended_s)
        newest, at = (0, 0), 0
        latest: Told | None = None
        sets: dict[int, Told] = {}
        for told in sorted(found, key=lambda told: told.began_s):
            while at < len(ended) and ended[at].ended_s < told.began_s:
                if (ended[at].epoch, ended[at].set_epoch) > newest:
                    newest, latest = (ended[at].epoch, ended[at].set_epoch), ended[at]
                at += 1
            if (told.epoch, told.set_epoch) < newest:
                yield f"{told} after {latest}"
            if told.members is not None:
                first = sets.setdefault(told.set_epoch, told)
                if first.members != told.members:
                    yield f"{first} and {told}"
    holders: dict[tuple[str, int], str] = {}
    for given in answers.given:
        if holders.setdefault((given.broker_name, given.number), given.code) != given.code:
            yield f"{given} is that of {holders[given.broker_name, given.number]}"


def none_decides_alone(answers: Answers, lost: Iterable[tuple[float, float]]) -> Iterator[str]:
    """What is asked while two of three are lost is not answered before one is back."""
    for begin_s, end_s in lost:
        for told in answers.told:
            if begin_s <= told.began_s and told.ended_s <= end_s:
                yield f"{told} while two were lost, from {begin_s:.3f} to {end_s:.3f}"


def check(answers: Answers, lost: Iterable[tuple[float, float]] = ()) -> None:
    """Raise Broken, which names each broken rule, if one is."""
    found = {
        "an epoch has one master": list(an_epoch_has_one_master(answers)),
        "what was decided stays": list(what_was_decided_stays(answers)),
        "none decides alone": list(none_decides_alone(answers, lost)),
    }
    if any(found.values()):
        raise Broken("\n".join(f"{name} ({len(lines)}): {lines[:3]}" for name, lines in found.items() if lines))


# -- brokers that are played -------------------------------------------------------------------------------------


class Player:
    """Asks what brokers ask, as often as it can, of controllers alone."""

    def __init__(self, world: World, council: Council, number: int, ended: Callable[[], bool]) -> None:
        self._world, self._council, self._number = world, council, number
        self._ended = ended
        self.own = 0

    async def play(self, node: Node) -> None:
        chance = self._world.random(f"{node.name} plays")
        client = ControllerClient(
            self._council.addresses, timeout_ms=3000, connections=Connections(connect_timeout_ms=1000)
        )
        try:
            while not self._ended():
                try:
                    await self._turn(node, client, chance)
                except (RocketSparkError, OSError) as e:
                    self._world.record("not told", who=node.name, error=str(e)[:150])
                await asyncio.sleep(chance.choice([0.02, 0.1, 0.3]))
        finally:
            await client.close()

    async def _turn(self, node: Node, client: ControllerClient, chance: Any) -> None:
        if not self.own:
            number = await client.next_id(CLUSTER, NAME)
            await client.apply_id(CLUSTER, NAME, number, f"{node.ip}:{self._number};1")
            await client.register(CLUSTER, NAME, number, f"{node.ip}:10911")
            self.own = number
        beat = ReplicaHeartbeatHeader(
            cluster_name=CLUSTER,
            broker_name=NAME,
            address=f"{node.ip}:10911",
            broker_id=self.own,
            epoch=0,
            max_offset=0,
            confirm_offset=0,
            timeout_ms=2000,
        )
        await client.heartbeat(beat)
        master = chance.choice([None, self.own])
        state = await client.replica_info(NAME, master)
        kind = chance.random()
        if state.master is None:
            await client.elect(CLUSTER, NAME, self.own)
        elif state.master.broker_id == self.own and kind < 0.6:
            others = [number for number in range(1, PLAYERS + 1) if number != self.own and chance.random() < 0.6]
            wanted = {self.own, *others}
            if wanted != state.in_sync:
                await client.alter_in_sync(NAME, self.own, state.master.epoch, wanted, state.set_epoch)
        elif kind > 0.9:
            await client.elect(CLUSTER, NAME, chance.randint(1, PLAYERS), designate=True)
        elif kind > 0.85:
            # Somebody else's: it is refused.
            await client.apply_id(CLUSTER, NAME, chance.randint(1, PLAYERS), f"{node.ip};other")


async def council(world: World) -> dict[str, Any]:
    """Three controllers, asked by brokers that are played; faults, then two of three are lost, then all is mended."""
    chance = world.random("plan")
    played = await _Played.begun(world)
    cluster, group = played.cluster, played.group
    nodes = [world.node(f"player-{number}") for number in range(1, PLAYERS + 1)]
    drawn = draw_faults(chance, cluster, nodes, begin_s=FAULTS_FROM_S, end_s=FAULTS_UNTIL_S)
    faults = world.planned("faults", drawn)
    losses = world.planned("losses", _draw_losses(chance, cluster))
    await Faults(cluster).run(faults)
    await group.make_whole(SETTLE_S)
    lost = [await _lose(cluster, loss) for loss in losses]
    await group.make_whole(SETTLE_S)
    mended_s = world.now_s
    await played.decided(mended_s)
    world.record("settled", after=round(world.now_s - mended_s, 3))
    await played.ended(lost)
    await cluster.stop()
    return {"told": len(played.answers.told), "faults": len(faults), "losses": len(losses)}


def _draw_losses(chance: Any, cluster: Cluster) -> list[dict[str, Any]]:
    names = [node.name for node in cluster.controllers]
    return [
        {
            "how": chance.choice(["kill", "power", "halt", "cut"]),
            "nodes": sorted(chance.sample(names, 2)),
            "seconds": round(chance.uniform(2.0, 8.0), 3),
        }
        for _ in range(chance.choice([0, 1, 1, 2]))
    ]


async def _lose(cluster: Cluster, loss: dict[str, Any]) -> tuple[float, float]:
    """Lose two of three for a while; returns from when to when nobody has a majority."""
    world = cluster.world
    await asyncio.sleep(2)
    nodes = [world.node(name) for name in loss["nodes"]]
    world.record("lost", **loss)
    world.states["losses of two of three"] += 1
    for node in nodes:
        match loss["how"]:
            case "kill":
                node.kill()
            case "power":
                node.power_loss()
            case "halt":
                node.halt()
            case "cut":
                world.network.partition([node], [other for other in cluster.controllers if other is not node])
    begin_s = world.now_s
    await asyncio.sleep(loss["seconds"])
    end_s = world.now_s
    world.network.heal()
    for node in nodes:
        node.go_on()
        cluster.restart(node)
    world.record("found again", nodes=loss["nodes"])
    return begin_s, end_s


async def failover_of_three(world: World) -> dict[str, Any]:
    """Real brokers under three controllers: what holds under one holds, and the rules of the controllers."""
    answers = Answers(world)
    result = await failover(world, controllers=3)
    check(answers)
    return result | {"told": len(answers.told)}


async def two_of_three_are_lost(world: World) -> dict[str, Any]:
    """Sends in sync go on; the master that dies then is replaced once one of the two is back, and not before."""
    chance = world.random("plan")
    cluster = Cluster(world, replicas=2, controllers=3)
    answers = Answers(world)
    group = cluster.council
    assert group is not None
    await cluster.start()
    sent: list[float] = []
    is_over = False

    async def send(node: Node) -> None:
        async with AsyncProducer(cluster.namesrv_address, "senders", send_timeout_ms=1000) as producer:
            while not is_over:
                try:
                    if (await producer.send(Message("t", b"x"))).status is SendStatus.SEND_OK:
                        sent.append(world.now_s)
                except (RocketSparkError, OSError):
                    pass
                await asyncio.sleep(0.1)

    world.node("sender").start(send)
    await asyncio.sleep(chance.uniform(3, 6))
    first = await cluster.master()
    assert first is not None
    nodes = chance.sample(cluster.controllers, 2)
    for node in nodes:
        chance.choice([node.kill, node.power_loss, node.halt])()
    begin_s = world.now_s
    await asyncio.sleep(chance.uniform(5, 15))
    times = [begin_s, *(at for at in sent if at > begin_s), world.now_s]
    silent_s = max(after - before for before, after in pairwise(times))
    first.kill()
    killed_s = world.now_s
    await asyncio.sleep(chance.uniform(3, 10))
    without_master = [at for at in sent if at > killed_s + 1]
    end_s = world.now_s
    nodes[0].go_on()
    cluster.restart(nodes[0])
    while not any(at > end_s for at in sent):
        if world.now_s > end_s + SETTLE_S:
            raise Broken(f"nothing is sent within {SETTLE_S:.0f} s after a second controller is back")
        await asyncio.sleep(0.1)
    again_s = world.now_s - end_s
    nodes[1].go_on()
    for node in (nodes[1], first):
        cluster.restart(node)
    await group.make_whole(SETTLE_S)
    await cluster.wait_in_sync(2, SETTLE_S)
    is_over = True
    check(answers, [(begin_s, end_s)])
    if silent_s > 1.0:
        raise Broken(f"sends in sync go on: for {silent_s:.3f} s none was acknowledged")
    if without_master:
        raise Broken(f"none decides alone: sends were acknowledged at {without_master[:3]} without a master")
    return {"sent": len(sent), "again_s": round(again_s, 3)}


async def leader_is_killed(world: World) -> dict[str, Any]:
    """Each leader is lost, one after the other, while it is asked: the next one decides within 3 s."""
    played = await _Played.begun(world)
    chance = world.random("pauses")
    took: list[float] = []
    for number in range(6):
        await played.group.make_whole(SETTLE_S)
        await asyncio.sleep(chance.uniform(1, 3))
        leader = played.group.leader()
        assert leader is not None
        lost_s = world.now_s
        if number % 2:
            # Nobody hears that it is gone: who waits for its answer does so for 3 s.
            leader.power_loss()
            while played.group.leader() is None:
                await asyncio.sleep(0.02)
        else:
            leader.kill()
            await played.decided(lost_s)
        took.append(round(world.now_s - lost_s, 3))
        played.cluster.restart(leader)
    await played.ended()
    if max(took) > ELECTED_WITHIN_S:
        raise Broken(f"the next leader decided after {took} s")
    return {"took_s": took}


async def all_lose_power(world: World) -> dict[str, Any]:
    """The rack of all three is without power, again and again: what was decided is on the disks of two."""
    played = await _Played.begun(world)
    chance = world.random("pauses")
    for _ in range(5):
        await asyncio.sleep(chance.uniform(0.5, 4))
        for node in played.cluster.controllers:
            node.power_loss()
        for node in chance.sample(played.cluster.controllers, 3):
            await asyncio.sleep(chance.choice([0.0, chance.uniform(0, 2)]))
            played.cluster.restart(node)
        await played.decided(world.now_s)
    await played.ended()
    return {"told": len(played.answers.told)}


async def a_leader_was_asleep(world: World) -> dict[str, Any]:
    """A leader of yesterday, asked before it hears of the next one, tells nothing of yesterday."""
    played = await _Played.begun(world)
    group = played.group
    chance = world.random("pauses")
    for _ in range(4):
        await group.make_whole(SETTLE_S)
        leader = group.leader()
        assert leader is not None
        asked: list[Any] = []
        address = group.addresses[group.nodes.index(leader)]

        async def ask(node: Node, address: str = address, asked: list[Any] = asked) -> None:
            client = ControllerClient([address], connections=Connections())
            await client.metadata(address)
            await asyncio.sleep(12)
            client.leader = address
            asked.append(asyncio.ensure_future(client.replica_info(NAME)))
            await asyncio.wait(asked, timeout=3)
            await client.close()

        asking = world.node("asker").start(ask)
        await asyncio.sleep(0.1)
        leader.halt()
        await asyncio.sleep(chance.uniform(0.5, 3))
        await played.decided(world.now_s)
        while not asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        leader.go_on()
        await asking.wait()
    await played.ended()
    return {"told": len(played.answers.told)}


async def a_disk_is_lost(world: World) -> dict[str, Any]:
    """Who lost its disk does not help one that was away to lead without the third, which holds what was decided."""
    played = await _Played.begun(world)
    group, net, nodes = played.group, world.network, played.cluster.controllers
    await asyncio.sleep(1)
    leader = group.leader()
    assert leader is not None
    loses, away = world.random("roles").sample([node for node in nodes if node is not leader], 2)
    net.partition([away], [leader, loses])
    await played.decided(world.now_s)
    await asyncio.sleep(2)
    net.partition([leader], world.nodes.values())
    loses.kill()
    loses.wipe()
    begin_s = world.now_s
    net.rejoin(away, [loses])
    played.cluster.restart(loses)
    await asyncio.sleep(10)
    end_s = world.now_s
    net.heal()
    await group.make_whole(SETTLE_S)
    await played.decided(world.now_s)
    await played.ended([(begin_s, end_s)])
    return {"told": len(played.answers.told)}


class _Played:
    """Three controllers that are asked by players, until `ended`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.answers = cluster, Answers(cluster.world)
        assert cluster.council is not None
        self.group = cluster.council
        self._is_over = False
        self._running: list[Any] = []

    @classmethod
    async def begun(cls, world: World) -> _Played:
        played = cls(Cluster(world, replicas=0, controllers=3))
        await played.cluster.start()
        for number in range(1, PLAYERS + 1):
            player = Player(world, played.group, number, lambda: played._is_over)
            played._running.append(world.node(f"player-{number}").start(player.play))
        await played.decided(0.0)
        return played

    async def decided(self, after_s: float) -> None:
        """Wait until something is answered that was asked after a time."""
        world = self.cluster.world
        end_s = world.now_s + SETTLE_S
        while not any(told.began_s > after_s for told in reversed(self.answers.told)):
            if world.now_s > end_s:
                raise Broken(f"it goes on: nothing is decided within {SETTLE_S:.0f} s")
            await asyncio.sleep(0.02)

    async def ended(self, lost: Iterable[tuple[float, float]] = ()) -> None:
        """Let the players end, and hold what they were told against the rules."""
        self._is_over = True
        for process in self._running:
            await process.wait()
        check(self.answers, lost)
