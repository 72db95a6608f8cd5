"""Users whom an operator makes, deletes and makes anew while they send, under access control that brokers ask for."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.simulation.checker import View, rule
from tests.simulation.histories import kind
from tests.simulation.parts.part import Part, Step, of_kind, times

from rocketspark import AsyncProducer, Message
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.broker.access.settings import CLASSES, AccessSettings
from rocketspark.client.connection.instance import Instance, InstanceSettings
from rocketspark.errors import SendFailed, ServerError, UsageError
from rocketspark.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload
    from tests.simulation.world import Node

TOPIC, QUEUES = "p-users", 2
# The first is made once and keeps its right.
USERS = ("user-0", "user-1", "user-2")
ADMIN, SECRET = "admin", "secret-of-all"
# A slave takes its master's tables each 3 s: who is elected before knows users as they were.
TABLES_S = 5.0
SETTINGS: dict[str, Any] = {
    "authentication": True,
    "authorization": True,
    "audit_path": "off",
    "access": AccessSettings(
        authentication_metadata_provider=CLASSES["authenticationMetadataProvider"][0],
        authorization_metadata_provider=CLASSES["authorizationMetadataProvider"][0],
        init_authentication_user=json.dumps({"username": ADMIN, "password": SECRET}),
        inner_client_authentication_credentials=json.dumps({"accessKey": ADMIN, "secretKey": SECRET}),
    ),
}


@kind
class Granted(NamedTuple):
    """What an operator did with a user. `how`: allow (made, with the right to send) or delete; `is_ok`: it is done."""

    user: str
    how: str
    began_s: float
    ended_s: float
    is_ok: bool


@kind
class Tried(NamedTuple):
    """What a user was told of a send: ok, refused, or "" if nobody knows. `wanted`: at the end."""

    user: str
    began_s: float
    ended_s: float
    told: str
    wanted: str = ""


# -- what is done ------------------------------------------------------------------------------------------------


def draw(chance: random.Random, end_s: float) -> list[Step]:
    found: list[Step] = [
        {"kind": "send", "at": at, "body": f"u{number}", "user": chance.choice(USERS)}
        for number, at in enumerate(times(chance, 90, end_s))
    ]
    found += [{"kind": "change", "at": 0.5, "user": user, "what": "allow", "last": user == USERS[0]} for user in USERS]
    for at in times(chance, chance.randint(2, 6), end_s - 8):
        user = chance.choice(USERS[1:])
        back_s = round(at + chance.choice([0.05, 4.0, 8.0]), 3)
        found.append({"kind": "change", "at": at, "user": user, "what": "delete", "last": False})
        found.append({"kind": "change", "at": back_s, "user": user, "what": "allow", "last": False})
    for user in USERS[1:]:
        what = chance.choice(["allow", "delete"])
        found.append({"kind": "change", "at": end_s + 4, "user": user, "what": what, "last": True})
    return sorted(found, key=lambda step: step["at"])


def begin() -> None:
    """Have every client of this process that has no keys sign as the operator, who may do everything."""
    made = Instance.__init__

    def signed(self: Instance, namesrv: str | None, how: InstanceSettings | None = None, **more: Any) -> None:
        how = how or InstanceSettings()
        if not how.access_key:
            how = msgspec.structs.replace(how, access_key=ADMIN, secret_key=SECRET)
        made(self, namesrv, how, **more)

    Instance.__init__ = signed  # type: ignore[method-assign]


def start(work: Workload, steps: list[Step]) -> list[Any]:
    def sending(user: str) -> Any:
        own = [step for step in of_kind(steps, "send") if step["user"] == user]
        return lambda node: _send(work, node, user, own)

    world = work.world
    return [
        *(world.node(f"users-{user}").start(sending(user)) for user in USERS),
        world.node("users-operator").start(lambda node: _operate(work, of_kind(steps, "change"))),
    ]


async def _send(work: Workload, node: Node, user: str, steps: list[Step]) -> None:
    async with _producer(work, user) as producer:
        await work.in_turn(steps, lambda step: _try(work, node, producer, user, step["body"]))


def _producer(work: Workload, user: str) -> AsyncProducer:
    keys = {"access_key": user, "secret_key": f"secret of {user}"}
    return AsyncProducer(work.cluster.namesrv_address, user, send_timeout_ms=2000, retries=work.retries, **keys)


async def _try(work: Workload, node: Node, producer: AsyncProducer, user: str, body: str, wanted: str = "") -> str:
    began_s, is_refused = work.world.now_s, False

    async def send() -> Any:
        nonlocal is_refused
        try:
            return await producer.send(Message(TOPIC, f"{body} ".encode()))
        except SendFailed as e:
            is_refused = e.code == ResponseCode.NO_PERMISSION
            raise

    result = await work.sent("users", node, (body,), send)
    told = "refused" if is_refused else "ok" if result is not None else ""
    work.note(Tried(user, began_s, work.world.now_s, told, wanted))
    work.world.states["users refused"] += is_refused
    return told


async def _operate(work: Workload, steps: list[Step]) -> None:
    async def change(step: Step) -> None:
        # What is last is done at last.
        while not await _change(work, step["user"], step["what"]) and step["last"]:
            await asyncio.sleep(1)

    await work.in_turn(steps, change)


async def _change(work: Workload, user: str, what: str) -> bool:
    from tests.simulation.workloads import ERRORS

    began_s, is_ok = work.world.now_s, True
    try:
        async with AsyncAdmin(work.cluster.namesrv_address, timeout_ms=3000) as operator:
            if what == "delete":
                await operator.delete_user(user)
            else:
                try:
                    await operator.create_user(user, f"secret of {user}")
                except ServerError as e:
                    # It may be there; else it can have no rules.
                    work.world.record("not made", user=user, error=str(e)[:200])
                await operator.create_acl(user, [f"Topic:{TOPIC}"], ["Pub"])
    except (UsageError, *ERRORS) as e:
        is_ok = False
        work.world.record("not changed", user=user, what=what, error=str(e)[:200])
    work.note(Granted(user, what, began_s, work.world.now_s, is_ok))
    work.world.states[f"users: {what}"] += is_ok
    return is_ok


async def _finish(work: Workload) -> None:
    last = {step["user"]: step["what"] for step in work.world.plan["users"] if step.get("last")}
    for user in USERS:
        wanted = "ok" if last[user] == "allow" else "refused"

        async def ask(node: Node, user: str = user, wanted: str = wanted) -> None:
            async with _producer(work, user) as producer:
                await _try(work, node, producer, user, f"end-{user}", wanted)

        await work.world.node(f"users-{user}").run(ask)


PART = Part(draw, start, {TOPIC: QUEUES}, _finish, SETTINGS, begin=begin)


# -- what is promised --------------------------------------------------------------------------------------------


@rule
def users_do_what_they_may(view: View) -> Iterator[str]:
    """Who was deleted gets nothing, who has a right is not refused, once all brokers know it; at the end at the latest.

    What brokers know is not undone: whoever dies, is elected or added has the users of its master.
    """
    changes: dict[str, list[Granted]] = defaultdict(list)
    for change in view.history.more.get("granted", ()):
        changes[change.user].append(change)
    for tried in view.history.more.get("tried", ()):
        if tried.wanted and tried.told != tried.wanted:
            yield f"{tried.user} was told {tried.told or 'nothing'} at the end, and {tried.wanted} is right"
        known = [change for change in changes[tried.user] if change.began_s <= tried.ended_s]
        if not known or not _is_sure(view, known[-1]) or tried.began_s < known[-1].ended_s:
            continue
        wrong = "ok" if known[-1].how == "delete" else "refused"
        if tried.told == wrong:
            since = f"{known[-1].how} at {known[-1].ended_s:.3f}"
            yield f"{tried.user} was told {wrong} at {tried.began_s:.3f}, after {since}"


def _is_sure(view: View, change: Granted) -> bool:
    """Tell whether all brokers know of a change, so that it is not undone by whoever is master."""
    return change.is_ok and view.is_calm(change.began_s - TABLES_S, change.ended_s + TABLES_S, but="users-")
