"""Operations on a group of RocketSpark's controllers, which agree by Raft: list its members, add one, remove one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rocketspark.controller.group.members import parse_member
from rocketspark.controller.group.messages import Change, Hello
from rocketspark.errors import NotSent, RocketSparkError, ServerError, TransportError
from rocketspark.model import typed_json
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.connections import Connections

TIMEOUT_MS = 5000
TRIES = 30
PAUSE_S = 0.3


class MemberState(NamedTuple):
    """A member of a controller group. `state`: "leader", "follower", "" if it does not answer, else how far its joining
    has come.
    """

    name: str
    address: str
    state: str


class ControllerGroup:
    """A group of controllers, found by `addresses`: "host:port" of one or more members."""

    def __init__(self, addresses: Iterable[str], connections: Connections) -> None:
        self._addresses = list(addresses)
        self._connections = connections

    async def members(self) -> list[MemberState]:
        """Return the members. Raises TransportError if none of the addresses answers."""
        names = (await self._any()).members
        answers = await asyncio.gather(*(self._hello(parse_member(name).address) for name in names))
        found = []
        for name, hello in zip(names, answers, strict=True):
            state = "" if hello is None or hello.name != name else hello.beginning
            if state == "member":
                state = "leader" if hello is not None and hello.leader == name else "follower"
            member = parse_member(name)
            found.append(MemberState(member.node, member.address, state))
        return found

    async def add(self, member: str) -> None:
        """Add a member, "n3-host:port", which may run already. Raises ServerError, TransportError."""
        parse_member(member)
        await self._change(Change("add", member))

    async def remove(self, node: str) -> None:
        """Remove a member by its name, such as n1. Raises ServerError, TransportError."""
        await self._change(Change("rem", node))

    async def _change(self, change: Change) -> None:
        error: RocketSparkError = NotSent("no controller leads")
        may_be_done = False
        for _ in range(TRIES):
            try:
                leader = (await self._any()).leader
                if leader:
                    await self._ask(parse_member(leader).address, RequestCode.CONTROLLER_GROUP_CHANGE, change)
                    return
            except ServerError as e:
                if e.code not in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_BUSY):
                    if (
                        may_be_done
                        and e.code == ResponseCode.CONTROLLER_INVALID_REQUEST
                        and await self._is_done(change)
                    ):
                        return
                    raise
                error = e
                may_be_done |= e.code == ResponseCode.SYSTEM_BUSY
            except TransportError as e:
                error = e
                may_be_done |= not isinstance(e, NotSent)
            await asyncio.sleep(PAUSE_S)
        raise error

    async def _is_done(self, change: Change) -> bool:
        names = (await self._any()).members
        return (change.what == "add") == any(change.member in (each, parse_member(each).node) for each in names)

    async def _any(self) -> Hello:
        """Ask the controllers in turn, then the leader that one of them knows: one that was removed knows less."""
        answers = [hello for address in self._addresses if (hello := await self._hello(address)) is not None]
        if not answers:
            raise NotSent(f"no controller answers: {', '.join(self._addresses)}")
        found = next((hello for hello in answers if hello.leader), answers[0])
        if found.leader in ("", found.name):
            return found
        return await self._hello(parse_member(found.leader).address) or found

    async def _hello(self, address: str) -> Hello | None:
        try:
            body = await self._ask(address, RequestCode.CONTROLLER_GROUP_HELLO, Hello())
            return typed_json.decode(body, Hello)
        except TransportError:
            return None
        except ServerError as e:
            if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ServerError(e.code, "it is a controller alone, or none of ours", address=address) from None
            raise

    async def _ask(self, address: str, code: RequestCode, what: Hello | Change) -> bytes:
        peer = await self._connections.get(address)
        found = await peer.request(code, None, msgspec.json.encode(what), timeout_ms=TIMEOUT_MS)
        return bytes(found.raise_for_code(f"the group of controllers at {address}").body)
