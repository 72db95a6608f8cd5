"""How the members of a group send each other messages: by one-way requests, over one connection for each direction.

They go to the controllers' own port, with the TLS, signatures and gate of every request there. A way is such a
connection from one member to another. Rule: the messages of a way arrive in order, or the way ends; a message of a way
that has ended is not taken after those of a later way. Which way is later is not told by a clock alone, as clocks may
be set back: a member asks the other end for the newest way that it knows, and begins with a higher number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import Any

import msgspec

from rocketspark import machine
from rocketspark.controller.group.members import MEMBERS_MAX, parse_member
from rocketspark.controller.group.messages import Hello
from rocketspark.errors import ConfigError, RocketSparkError, ServerError
from rocketspark.model import typed_json
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import RpcHooks
from rocketspark.transport.tls.client_tls import ClientTls

log = LimitedLog("rocketspark.controller", lines_max=2, period_s=60.0)

RETRY_S = 0.3
DIAL_MS = 2000
# A member that does not read is taken for gone.
UNREAD_BYTES_MAX = 32 << 20
START_MAX = (1 << 63) - 1


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """One message. `start`: the number of its way; `number`: its number among the sender's messages; both only rise."""

    group: str
    sender: str
    receiver: str
    start: int
    number: int
    message: dict[str, Any]


_letters = msgspec.msgpack.Decoder(Letter)


class Links:
    """The ways from one member to the others, on the running loop.

    `told`: called with a member's name, and True or False, when the way to it opens or ends.
    """

    def __init__(
        self,
        group: str,
        own: str,
        told: Callable[[str, bool], None],
        *,
        hooks: RpcHooks | None,
        tls: ClientTls | None,
    ) -> None:
        self._group, self._own = group, own
        self._told = told
        self._hooks, self._tls = hooks, tls
        self._ways: dict[str, asyncio.Task[None]] = {}
        self._peers: dict[str, Peer] = {}
        self._starts: dict[str, int] = {}
        self._number = 0
        # By sender: the start and number of its newest message, and the connection that brought it.
        self._last: dict[str, tuple[int, int, Peer]] = {}

    def reach(self, names: Iterable[str]) -> None:
        """Keep a way open to each of these members, and to no others."""
        wanted = set(names) - {self._own}
        for name in self._ways.keys() - wanted:
            self._ways.pop(name).cancel()
        for name in wanted - self._ways.keys():
            self._ways[name] = asyncio.create_task(self._keep(name))

    async def _keep(self, name: str) -> None:
        address = parse_member(name).address
        while True:
            try:
                peer = await dial(address, timeout_ms=DIAL_MS, hooks=self._hooks, tls=self._tls)
            except RocketSparkError as e:
                log.warning("controller %s cannot be reached: %s", name, e)
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._begin(name, peer)
                await self._hold(name, peer)
            except (RocketSparkError, msgspec.DecodeError) as e:
                log.warning("controller %s cannot be reached: %s", name, e)
            finally:
                peer.close()
            await asyncio.sleep(RETRY_S)

    async def _begin(self, name: str, peer: Peer) -> None:
        """Give a way a start higher than that of any before. Raises TransportError, ServerError, DecodeError."""
        body = msgspec.json.encode(Hello(self._own, self._group))
        found = await peer.request(RequestCode.CONTROLLER_GROUP_HELLO, None, body, timeout_ms=DIAL_MS)
        heard = typed_json.decode(found.raise_for_code("the other controller").body, Hello).heard
        self._starts[name] = min(max(machine.time_ns(), heard + 1, self._starts.get(name, 0) + 1), START_MAX)

    async def _hold(self, name: str, peer: Peer) -> None:
        """Have a way open until it ends."""
        self._peers[name] = peer
        self._told(name, True)
        try:
            await peer.wait_closed()
        finally:
            del self._peers[name]
            self._told(name, False)

    def send(self, name: str, message: dict[str, Any]) -> None:
        """Send a message to a member; without a way to it the message is dropped."""
        peer = self._peers.get(name)
        if peer is None or not peer.is_open:
            return
        if peer.unread_bytes > UNREAD_BYTES_MAX:
            log.warning("controller %s does not read: its connection is ended", name)
            peer.abort()
            return
        self._number += 1
        letter = Letter(self._group, self._own, name, self._starts[name], self._number, message)
        peer.oneway(RequestCode.CONTROLLER_GROUP_MESSAGE, None, msgspec.msgpack.encode(letter))

    def heard(self, name: str) -> int:
        """Return the `start` of the newest way on which a message of this member came; 0 if none did."""
        last = self._last.get(name)
        return last[0] if last is not None else 0

    def read(self, peer: Peer, body: bytes, known: Container[str] | None) -> Letter | None:
        """Return the letter in a request; None if it is late, from an unknown member, or for another one.

        `known`: the members; None while any may be one, as this one has to learn who is.

        A letter of an earlier way is late while the connection of the later way is open. (A member of an older version
        does not ask for the newest way, so its clock may make a later way look earlier.) Raises ServerError if the
        request holds no letter.
        """
        try:
            letter = _letters.decode(body)
        except (msgspec.DecodeError, RecursionError) as e:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"this is no message of a controller: {e}") from None
        if (letter.group, letter.receiver) != (self._group, self._own):
            log.warning(
                "a message of %s is for %s of %s, and this is %s of %s: its list of controllers is another",
                letter.sender,
                letter.receiver,
                letter.group,
                self._own,
                self._group,
            )
            return None
        if letter.sender not in (self._strangers(letter.sender) if known is None else known):
            return None
        last = self._last.get(letter.sender)
        if (
            last is not None
            and (letter.start, letter.number) <= last[:2]
            and (letter.start == last[0] or last[2].is_open)
        ):
            return None
        self._last[letter.sender] = letter.start, letter.number, peer
        return letter

    def _strangers(self, sender: str) -> Container[str]:
        try:
            parse_member(sender)
        except ConfigError:
            return ()
        return (sender,) if len(self._last) < 2 * MEMBERS_MAX else self._last

    async def close(self) -> None:
        """End all ways."""
        ways = list(self._ways.values())
        for task in ways:
            task.cancel()
        for peer in list(self._peers.values()):
            peer.close()
        await asyncio.gather(*ways, return_exceptions=True)
