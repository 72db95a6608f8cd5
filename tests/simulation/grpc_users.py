"""Clients of RocketMQ 5 at a proxy that asks for users and rules, which an operator changes while they send and read.

Rule: who may no more is given nothing that comes later, also by a receive that waits, and what it is not given comes to
others; who may is served.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulation import proxies
from tests.simulation.checker import PromiseBroken
from tests.simulation.grpc_calls import NotServed, RpcClient
from tests.simulation.nodes import Cluster
from tests.simulation.parts import users
from tests.simulation.plan import Faults
from tests.simulation.world import Node, World, wait_until

from rocketspark import RocketSparkError
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code

TOPIC, QUEUES = "t", 2
# The last one loses what it may, and gets it back; the first two stay.
USERS = {"sender": "senders", "stays": "readers", "changes": "readers"}
END_S = 60.0
# A proxy asks for users and rules each second, and waits for half a second at most; brokers take what they are told.
REFRESH_MS, KNOWN_S = 1000, 2.0
INVISIBLE_S = 10.0
# All send for so long, of each so many seconds.
BUSY_S, EACH_S = 4.0, 8.0
WAYS = ("disable", "no rule", "delete")


class Change(NamedTuple):
    """What an operator did. `way`: one of WAYS, or "allow"; `is_ok`: it is done."""

    way: str
    began_s: float
    ended_s: float
    is_ok: bool


async def clients(world: World) -> dict[str, Any]:
    """One broker and a proxy, either of which is killed, halted or cut off now and then."""
    return await _Run(world).whole()


class _Run:
    def __init__(self, world: World) -> None:
        self.world = world
        users.begin()
        proxies.given = {
            "access": (users.ADMIN, users.SECRET),
            "authentication": True,
            "authorization": True,
            "access_refresh_ms": REFRESH_MS,
        }
        self.cluster = Cluster(world, proxies=1, flush_disk_type="SYNC_FLUSH", timers_enabled=True, **users.SETTINGS)
        self.proxy = self.cluster.proxies[0]
        self.changes: list[Change] = []
        # What the proxy served the one that changes: (when, what).
        self.served: list[tuple[float, str]] = []
        # Calls of it: when they began, and ended, and whether they were refused.
        self.calls: list[tuple[float, float, bool]] = []
        self.sent: set[str] = set()
        self.came: set[str] = set()
        self.is_over = False

    async def whole(self) -> dict[str, Any]:
        world, chance = self.world, self.world.random("plan")
        changes = world.planned("changes", _draw_changes(chance))
        faults = world.planned("faults", _draw_faults(world.random("faults"), self.cluster))
        await self.cluster.start()
        async with AsyncAdmin(self.cluster.servers_address) as operator:
            await operator.create_topic(TOPIC, queue_count=QUEUES)
            for user, group in USERS.items():
                await operator.put_group(group)
                await operator.create_user(user, f"secret of {user}")
                await self._allow(operator, user)
        self.changes.append(Change("allow", 0.0, world.now_s, is_ok=True))
        running = [
            world.node("sender").start(self._send),
            *(world.node(user).start(self._receiving(user)) for user in ("stays", "changes")),
            world.node("changes too").start(self._send_as_changes),
            world.node("operator 2").start(lambda node: self._operate(changes)),
        ]
        await Faults(self.cluster).run(faults)
        await wait_until(world, END_S)
        # Until all that was popped, and not acknowledged, has come again.
        await asyncio.sleep(INVISIBLE_S * 3)
        self.is_over = True
        for process in running:
            await process.wait()
        self._check(faults)
        await self.cluster.stop()
        return {"sent": len(self.sent), "came": len(self.came), "served": len(self.served)}

    # -- what is done

    async def _allow(self, operator: AsyncAdmin, user: str) -> None:
        await operator.create_acl(user, [f"Topic:{TOPIC}", f"Group:{USERS[user]}"], ["Pub", "Sub"])

    async def _operate(self, changes: list[dict[str, Any]]) -> None:
        for change in changes:
            await wait_until(self.world, change["at"])
            began_s, is_ok = self.world.now_s, True
            try:
                async with AsyncAdmin(self.cluster.servers_address, timeout_ms=3000) as operator:
                    await self._change(operator, change["way"])
            except (RocketSparkError, OSError) as e:
                is_ok = False
                self.world.record("not changed", way=change["way"], error=str(e)[:200])
            self.changes.append(Change(change["way"], began_s, self.world.now_s, is_ok))
            self.world.record("changed", way=change["way"], is_ok=is_ok)
            self.world.states[f"grpc users: {change['way']}"] += is_ok

    async def _change(self, operator: AsyncAdmin, way: str) -> None:
        user = "changes"
        if way == "disable":
            await operator.update_user(user, status="disable")
        elif way == "no rule":
            await operator.delete_acl(user)
        elif way == "delete":
            await operator.delete_user(user)
        else:
            for make in (
                lambda: operator.create_user(user, f"secret of {user}"),
                lambda: operator.update_user(user, status="enable"),
                lambda: self._allow(operator, user),
            ):
                try:
                    await make()
                except RocketSparkError as e:
                    # It is there.
                    self.world.record("not made", error=str(e)[:200])

    def _client(self, node: Node, user: str) -> RpcClient:
        return RpcClient(node, self.proxy, user, f"secret of {user}")

    async def _send(self, node: Node) -> None:
        await self._send_each(node, "sender", "s", self.sent.add)

    async def _send_as_changes(self, node: Node) -> None:
        def served(body: str) -> None:
            self.sent.add(body)
            self.served.append((self.world.now_s, f"sent {body}"))

        await self._send_each(node, "changes", "c", served)

    async def _send_each(self, node: Node, user: str, letter: str, served: Callable[[str], None]) -> None:
        client, number = self._client(node, user), 0
        while self.world.now_s < END_S:
            if self.world.now_s % EACH_S > BUSY_S:
                # So that receives wait.
                await asyncio.sleep(0.2)
                continue
            number += 1
            body = f"{letter}{number}"
            message = messages.Message(topic={"name": TOPIC}, body=body.encode())
            message.system_properties.message_id = f"{user}-{number}"
            began_s = self.world.now_s
            try:
                (answer,) = await client.call("SendMessage", messages.SendMessageRequest(messages=[message]))
            except NotServed:
                pass
            else:
                if answer.status.code == Code.OK:
                    served(body)
                if user == "changes":
                    self._note_call(began_s, answer.status.code)
            await asyncio.sleep(0.2)

    def _note_call(self, began_s: float, code: int) -> None:
        is_refused = code == Code.UNAUTHORIZED
        self.calls.append((began_s, self.world.now_s, is_refused))
        self.world.states["grpc calls refused"] += is_refused

    def _receiving(self, user: str) -> Callable[[Node], Any]:
        async def receive(node: Node) -> None:
            client = self._client(node, user)
            while not self.is_over:
                try:
                    await self._receive_once(client, user)
                except NotServed:
                    await asyncio.sleep(0.3)

        return receive

    async def _receive_once(self, client: RpcClient, user: str) -> None:
        group = {"name": USERS[user]}
        request = messages.ReceiveMessageRequest(
            group=group,
            message_queue={"topic": {"name": TOPIC}, "broker": {"name": self.cluster.name}, "id": -1},
            filter_expression={"type": 1, "expression": "*"},
            batch_size=4,
        )
        request.invisible_duration.FromSeconds(int(INVISIBLE_S))
        request.long_polling_timeout.FromSeconds(6)
        handles: list[Any] = []
        began_s, codes = self.world.now_s, []

        def came(answer: Any) -> None:
            if answer.WhichOneof("content") == "message":
                body = answer.message.body.decode()
                handles.append((body, answer.message.system_properties))
                if user == "changes":
                    self.served.append((self.world.now_s, f"given {body}"))
            elif answer.WhichOneof("content") == "status":
                codes.append(answer.status.code)

        await client.call("ReceiveMessage", request, timeout_s=9.0, came=came)
        for code in codes:
            if user == "changes":
                self._note_call(began_s, code)
            if code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                await asyncio.sleep(0.3)
        if not handles:
            return
        entries = [{"message_id": of.message_id, "receipt_handle": of.receipt_handle} for _, of in handles]
        asked = messages.AckMessageRequest(group=group, topic={"name": TOPIC}, entries=entries)
        # As given: one that may not acknowledge any more has seen it, and another one may get it too.
        self.came.update(body for body, _ in handles)
        await client.call("AckMessage", asked)

    # -- what is promised

    def _check(self, faults: list[dict[str, Any]]) -> None:
        broken = []
        spans = [(fault["at"] - 0.5, fault["at"] + fault["seconds"] + 6.0) for fault in faults]
        for number, change in enumerate(self.changes):
            following = self.changes[number + 1] if number + 1 < len(self.changes) else None
            until_s = following.began_s if following is not None else END_S
            since_s = change.ended_s + KNOWN_S
            if not change.is_ok or any(begin < until_s and end > change.began_s for begin, end in spans):
                continue
            self.world.states["spans of rights looked at"] += 1
            if change.way == "allow":
                if refused := [
                    at for at, end, is_refused in self.calls if is_refused and since_s < at and end < until_s
                ]:
                    broken.append(
                        f"who may is served: refused at {refused[:3]}, though allowed at {change.ended_s:.3f}"
                    )
            elif given := [(at, what) for at, what in self.served if since_s < at < until_s]:
                broken.append(
                    f"who may no more is given nothing: {given[:3]} after {change.way} at {change.ended_s:.3f}"
                )
        if lost := self.sent - self.came:
            broken.append(f"what was sent comes to somebody ({len(lost)}): {sorted(lost)[:5]}")
        if broken:
            raise PromiseBroken("\n".join(broken))


def _draw_changes(chance: random.Random) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    # At any time, or soon after receives began to wait.
    for begin_s in range(int(EACH_S), int(END_S - EACH_S), int(EACH_S)):
        after_s = chance.choice([chance.uniform(0, EACH_S - 1), chance.uniform(BUSY_S, BUSY_S + 1.5)])
        found.append({"at": round(begin_s + after_s, 3), "way": "allow" if len(found) % 2 else chance.choice(WAYS)})
    if len(found) % 2:
        found.append({"at": END_S - 4, "way": "allow"})
    return found


def _draw_faults(chance: random.Random, cluster: Cluster) -> list[dict[str, Any]]:
    nodes = [node.name for node in (*cluster.brokers, *cluster.proxies)]
    drawn = [
        {
            "at": round(chance.uniform(8, END_S - 15), 3),
            "kind": chance.choice(["kill", "halt", "isolate"]),
            "node": chance.choice(nodes),
            "seconds": round(chance.uniform(0.3, 5), 3),
        }
        for _ in range(chance.choice([0, 1, 1, 2]))
    ]
    return sorted(drawn, key=lambda fault: float(str(fault["at"])))
