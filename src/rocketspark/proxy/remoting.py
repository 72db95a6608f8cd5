"""Remoting through the proxy's port: clients before RocketMQ 5 behind one address.

Rule: a client has a connection of its own to each broker that it asks, which ends with it: so brokers know their
clients, and what they ask of one finds it. Codes as Apache's proxy, 5.5.0; all others are not supported. A client's
signature is checked here, and the request is signed anew; one that names a message by its place says for whom, as the
broker alone knows what topic the message is of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from rocketspark.access.access_control import NAMES_A_PLACE, AccessControl
from rocketspark.errors import NotSent, RocketSparkError, RouteNotFound
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, whole_number
from rocketspark.protocol import frames, request_signing
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import NoHeader, Request
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import LockRequest
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import ReceivedRequest, Refusal, Routes, RpcHooks
from rocketspark.transport.request_frames import Reply, reply
from rocketspark.transport.shared_task import outcome_of
from rocketspark.transport.tls.client_tls import ClientTls

log = LimitedLog("rocketspark.proxy")

# Which field names the broker that is asked.
BROKER_NAME, BROKER_NAME_V2 = "bname", "n"
_BY_BROKER = (
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.CONSUMER_SEND_MSG_BACK,
    Code.END_TRANSACTION,
    Code.RECALL_MESSAGE,
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.POP_MESSAGE,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.QUERY_CONSUMER_OFFSET,
    Code.ACK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
)
# No client names a broker in these, in a header: their queues do, which are of one broker.
_OF_QUEUES = frozenset((Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ))
_TO_ALL = (Code.HEART_BEAT, Code.UNREGISTER_CLIENT)
_TO_ANY = (Code.CHECK_CLIENT_CONFIG, Code.GET_CONSUMER_LIST_BY_GROUP, Code.GET_CONSUMER_CONNECTION_LIST)
_SIGNATURE_FIELDS = (
    request_signing.ACCESS_KEY,
    request_signing.SECURITY_TOKEN,
    request_signing.SIGNATURE,
    request_signing.SIGNED_TIME,
)
_V2 = frozenset((Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE))
# What a broker asks of a client.
_OF_BROKERS = (
    Code.CHECK_TRANSACTION_STATE,
    Code.NOTIFY_CONSUMER_IDS_CHANGED,
    Code.RESET_CONSUMER_CLIENT_OFFSET,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
)
TIMEOUT_MS, WAIT_MS_MAX = 10_000, 60_000
# So long one of several brokers that may answer is waited for; clients wait for 3 s.
ANY_S = 1.5
# Fields that say how long a broker may hold a request.
_HELD: dict[int, str] = {
    Code.PULL_MESSAGE: "suspendTimeoutMillis",
    Code.LITE_PULL_MESSAGE: "suspendTimeoutMillis",
    Code.POP_MESSAGE: "pollTime",
}


class NoBroker(Exception):
    """Raised when a client's request reached no broker."""


class Keeper:
    """A gate that refuses nothing and remembers a request as it was received, for the handler that is called next."""

    def __init__(self) -> None:
        self.received: ReceivedRequest | None = None

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Remember the request; refuse nothing."""
        self.received = request
        return None


class Behind(NamedTuple):
    """What the proxy reaches brokers by: their names and routes, and the signer and the TLS of its own connections."""

    brokers: Brokers
    signer: RpcHooks | None
    tls: ClientTls | None


class RemotingRelay:
    """Passes the remoting requests of a proxy's clients on to brokers. `own_address`: returns the address that routes
    name instead of a broker's, by the client's connection.

    `access`: the check of requests, and a function that is awaited before it; None for no check. `take`: counts a new
    connection to a broker for its client, and returns the function that ends the counting; None if the client may have
    no more.
    """

    def __init__(
        self,
        behind: Behind,
        own_address: Callable[[Peer], str],
        access: tuple[AccessControl, Callable[[str | None], Any]] | None = None,
    ) -> None:
        self._behind, self._own_address, self._access = behind, own_address, access
        self.take: Callable[[Peer], Callable[[], None] | None] = lambda peer: lambda: None
        self._keeper, self._asked_keeper = Keeper(), Keeper()
        self.routes, self._of_brokers = Routes(), Routes()
        self.routes.gate, self._of_brokers.gate = self._keeper, self._asked_keeper
        # Connections to brokers, by client and address.
        self._behind_of: dict[Peer, dict[str, asyncio.Task[Peer]]] = {}
        for code in (*_BY_BROKER, *_TO_ALL, *_TO_ANY, Code.GET_ROUTEINFO_BY_TOPIC):
            self.routes.add(code, self._take, NoHeader)
        for code in _OF_BROKERS:
            self._of_brokers.add(code, self._asked, NoHeader)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _take(self, peer: Peer, request: Request[NoHeader], body: bytes) -> Any:
        received = self._keeper.received
        assert received is not None
        return self._serve(peer, request.opaque, received)

    async def _serve(self, peer: Peer, opaque: int, received: ReceivedRequest) -> bytes | None:
        try:
            refusal = await self._refuses(received)
            answer = await self._answer(peer, received) if refusal is None else None
            if answer is not None and received.code in _HELD:
                # Its user may have lost the right to what came meanwhile.
                refusal = await self._refuses(received)
        except RouteNotFound as e:
            return reply(opaque, ResponseCode.TOPIC_NOT_EXIST, remark=e.remark or str(e))
        except (Refused, NoBroker) as e:
            return reply(opaque, ResponseCode.SYSTEM_ERROR, remark=str(e))
        if refusal is not None:
            return reply(opaque, refusal.code, remark=refusal.remark)
        if answer is None or isinstance(answer, bytes):
            return answer and reply(opaque, body=answer)
        ext = request_signing.ext_texts(answer.ext) if answer.ext else None
        return reply(opaque, answer.code, ext, answer.body, remark=answer.remark)

    async def _refuses(self, received: ReceivedRequest) -> Refusal | None:
        if self._access is None:
            return None
        check, fresh = self._access
        await fresh(received.ext.get(request_signing.ACCESS_KEY))
        return check.refuses(received)

    async def _answer(self, peer: Peer, received: ReceivedRequest) -> Reply | bytes | None:
        if received.code == Code.GET_ROUTEINFO_BY_TOPIC:
            return await self._route(peer, received)
        if received.code in _TO_ALL:
            return await self._ask_all(peer, received)
        if received.code in _TO_ANY:
            return await self._ask_any(peer, received)
        name = received.ext.get(BROKER_NAME_V2 if received.code in _V2 else BROKER_NAME)
        if name is None and received.code in _OF_QUEUES:
            queues = java_json.decode_request(received.body, LockRequest).mq_set
            if not queues:
                return Reply(0, "MessageQueue set is empty", b"", received.body, "")
            name = queues[0].broker_name
        if name is None:
            text = f"Request doesn't have field {BROKER_NAME}"
            return Reply(ResponseCode.VERSION_NOT_SUPPORTED, text, b"", b"", "")
        address = (await self._behind.brokers.peer(name)).address
        return await self._ask(peer, address, received)

    async def _ask_any(self, peer: Peer, received: ReceivedRequest) -> Reply | None:
        """Ask one master after another until one answers: each knows all members of a group."""
        masters = await self._behind.brokers.masters()
        if not masters:
            raise NoBroker("no broker is known")
        for address in masters[:-1]:
            try:
                async with asyncio.timeout(ANY_S):
                    return await self._ask(peer, address, received)
            except (RocketSparkError, TimeoutError) as e:
                log.info("%s does not answer a client, the next broker is asked: %s", address, e)
        return await self._ask(peer, masters[-1], received)

    async def _ask_all(self, peer: Peer, received: ReceivedRequest) -> Reply | None:
        """Tell every master; the first refusal is the answer. Those that cannot be reached hear of it next time."""
        found: list[Reply] = []
        asked = [self._ask(peer, address, received) for address in await self._behind.brokers.masters()]
        for each in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(each, Reply):
                found.append(each)
            elif isinstance(each, BaseException):
                log.warning("a broker did not hear of a client: %s", each)
        if not found:
            raise NoBroker("no broker is reached")
        return next((each for each in found if each.code), found[0])

    async def _ask(self, peer: Peer, address: str, received: ReceivedRequest) -> Reply | None:
        behind = await self._connected(peer, address, received)
        ext = dict(received.ext)
        if self._access is not None:
            for name in _SIGNATURE_FIELDS:
                ext.pop(name, None)
            if received.code == Code.HEART_BEAT or received.code in NAMES_A_PLACE:
                # Of this user is what brokers ask of the client, and it is he who needs the message's topic.
                ext[request_signing.FOR_USER] = received.ext.get(request_signing.ACCESS_KEY, "")
                ext[request_signing.FOR_HOST] = peer.remote_host
            if self._behind.signer is not None:
                self._behind.signer.before_request(address, received.code, ext, received.body)
        if received.flag & frames.ONEWAY_FLAG:
            behind.oneway(received.code, ext, received.body)
            return None
        held_ms = whole_number(ext.get(_HELD.get(received.code, ""), "0"), low=0, high=INT_MAX) or 0
        timeout_ms = TIMEOUT_MS + min(held_ms, WAIT_MS_MAX)
        return await behind.request(received.code, ext, received.body, timeout_ms=timeout_ms)

    async def _connected(self, peer: Peer, address: str, received: ReceivedRequest) -> Peer:
        """Return the client's own connection to a broker."""
        mine = self._behind_of.get(peer)
        if mine is None:
            mine = self._behind_of[peer] = {}
            peer.when_closed(lambda: self._end(peer))
        task = mine.get(address)
        if task is None or (task.done() and (task.cancelled() or task.exception() or not task.result().is_open)):
            task = mine[address] = asyncio.ensure_future(self._dial(peer, address, str(received.language)))
        return await outcome_of(task)

    async def _dial(self, peer: Peer, address: str, language: str) -> Peer:
        language = language if language.isalnum() and len(language) < 32 else "OTHER"
        give_back = self.take(peer)
        if give_back is None:
            text = "as many connections are open here for its address, those to brokers among them, as are allowed"
            raise NotSent(text, address=address)
        try:
            behind = await dial(address, self._of_brokers, language=language, tls=self._behind.tls)
        except BaseException:
            give_back()
            raise
        behind.when_closed(give_back)
        behind.notes = peer
        if not peer.is_open:
            behind.close()
            raise NotSent("the client is gone", address=address)
        return behind

    def left(self, peer: Peer) -> None:
        """Tell the brokers behind a client's connections that it sends no more; it may still wait for answers."""
        for task in self._behind_of.get(peer, {}).values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().end_side()

    def _end(self, peer: Peer) -> None:
        for task in self._behind_of.pop(peer, {}).values():
            task.add_done_callback(_close)

    async def _route(self, peer: Peer, received: ReceivedRequest) -> bytes | Reply:
        """Return a route in which every broker is this proxy."""
        ask = self._behind.brokers.routes.ask
        ext = {k: v for k, v in received.ext.items() if k in ("topic", "acceptStandardJsonOnly")}
        found = await ask(lambda namesrv: namesrv.request(Code.GET_ROUTEINFO_BY_TOPIC, ext, timeout_ms=3000))
        if found.code:
            return found
        route = java_json.decode(found.body, dict[str, Any])
        own = self._own_address(peer)
        masters: dict[str, str | None] = {}
        for broker in route.get("brokerDatas") or ():
            masters[str(broker.get("brokerName"))] = dict(broker.get("brokerAddrs") or {}).get("0")
            broker["brokerAddrs"] = {"0": own}
        self._behind.brokers.note_masters(masters)
        body = msgspec.json.encode(route)
        if received.ext.get("acceptStandardJsonOnly") == "true":
            return body
        # As clients before 5.0 read it.
        return body.replace(b'"brokerAddrs":{"0":', b'"brokerAddrs":{0:')

    # -- brokers -----------------------------------------------------------------------------------------------------

    def _asked(self, behind: Peer, request: Request[NoHeader], body: bytes) -> Any:
        received = self._asked_keeper.received
        assert received is not None
        return self._pass_on(behind, request.opaque, received)

    async def _pass_on(self, behind: Peer, opaque: int, received: ReceivedRequest) -> bytes | None:
        """Ask the client what a broker asks."""
        client: Peer | None = behind.notes
        if client is None:
            return None
        ext = dict(received.ext)
        if not client.is_writable:
            # It does not read: nothing more is kept for it.
            return reply(opaque, ResponseCode.SYSTEM_BUSY, remark=f"{client.address} does not read what it is sent")
        if received.flag & frames.ONEWAY_FLAG:
            client.oneway(received.code, ext, received.body)
            return None
        try:
            answer = await client.request(received.code, ext, received.body, timeout_ms=TIMEOUT_MS)
        except RocketSparkError as e:
            return reply(opaque, ResponseCode.SYSTEM_ERROR, remark=str(e))
        fields = request_signing.ext_texts(answer.ext) if answer.ext else None
        return reply(opaque, answer.code, fields, answer.body, remark=answer.remark)


def _close(task: asyncio.Task[Peer]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
