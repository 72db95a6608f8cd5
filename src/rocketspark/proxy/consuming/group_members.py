"""The consumers of the proxy as brokers know them: brokers are told which there are, and answered what operators ask of
one.

Rule: a broker knows a connection as one member of a group; so the members of a group are told on as many connections,
at once and from time to time, until they are gone; Apache's proxy does this only within its broker's own process. Of a
client that changes its settings again and again brokers are told once a second. What
only the client knows it is asked over its telemetry stream (ClientActivity, 5.5.0), and the rest of the answer is what
the proxy knows; of a client that does not answer the broker is told that, in time for its own answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from rocketspark import machine
from rocketspark.access.policies import SUB
from rocketspark.client.callbacks import Tasks
from rocketspark.client.connection import client_api
from rocketspark.errors import FilterIllegal, RecordError, RocketSparkError, RouteNotFound, TransportError
from rocketspark.model import MessageQueue, subscribe
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.subscription import ALL, SQL92, TAG
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import LANGUAGES
from rocketspark.protocol.headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    NoHeader,
    Request,
    RunningInfoHeader,
)
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import ConsumerData, Heartbeat, QueueBody, SubscriptionBody
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.pop_answers import RETRY_V1, first_topic, retry_topic
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.checks import checked_topic
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.consuming.handle_calls import Held, now_ms
from rocketspark.proxy.consuming.renewals import Renewals
from rocketspark.proxy.message_form import message_apart, pairs_of
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code, FilterType
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.shared_task import end_tasks

log = LimitedLog("rocketspark.proxy")

# Members of one group that are told of. Those beyond receive all the same.
LANES_MAX = 64
# Connections to each broker. Once there are so many, one of another language than the client's is taken.
LANES_IN_ALL_MAX = 2 * LANES_MAX
# Heartbeats to one broker that wait for their answers.
AT_ONCE_MAX = 32
# Brokers are told of changes of one client's settings this far apart.
APART_S = 1.0


class Lane:
    """One connection to each broker, shared by consumers of different groups: a broker knows one member of a group on
    it.
    """

    def __init__(self, connections: Connections, language: str) -> None:
        self.connections, self.language = connections, language
        self.groups: set[str] = set()


class Member:
    """A consumer that brokers are told of. `told`: the addresses of the brokers that know it; `lock`: held while
    brokers are told of it.
    """

    def __init__(self, client: ProxyClient, lane: Lane) -> None:
        self.client, self.group, self.lane = client, client.group, lane
        self.told: set[str] = set()
        self.lock = asyncio.Lock()

    def topics(self) -> list[str]:
        """Return the topics that the consumer subscribes to."""
        return [entry.topic.name for entry in self.client.settings.subscription.subscriptions]

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat by which brokers are told of this consumer."""
        data = ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY" if self.client.is_push_consumer else "CONSUME_ACTIVELY",
            message_model="LITE_SELECTIVE" if self.client.is_lite_consumer else "CLUSTERING",
            subscription_data_set=subscriptions(self.client),
        )
        return Heartbeat(client_id=self.client.client_id, consumer_data_set=[data])


class GroupMembers:
    """Tells brokers of the consumers of one proxy. `make`: returns connections to brokers that name a client's
    language.
    """

    def __init__(
        self, brokers: Brokers, clients: Clients, make: Callable[[str], Connections], interval_s: float
    ) -> None:
        self._brokers, self._clients, self._make, self._interval_s = brokers, clients, make, interval_s
        self._members: dict[str, Member] = {}
        self._lanes: list[Lane] = []
        self._new: set[str] = set()
        # When brokers were told of clients within the last APART_S.
        self._told_s: dict[str, float] = {}
        self._wanted = asyncio.Event()
        self._leaving = Tasks()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to tell brokers which consumers there are, in the background."""
        self._task = asyncio.ensure_future(self._run())

    def changed(self, client: ProxyClient) -> None:
        """Have brokers told of a consumer whose settings are new or changed: at once, unless they just were."""
        member = self._members.get(client.identity)
        if member is not None and (member.client is not client or member.group != client.group):
            self._leave(member)
            member = None
        if not client.is_consumer or not client.group:
            return
        if member is None:
            lane = self._lane(client)
            if lane is None:
                return
            self._members[client.identity] = Member(client, lane)
        self._new.add(client.identity)
        self._wanted.set()

    async def gone(self, client: ProxyClient) -> None:
        """Unregister a client that is gone from the brokers that were told of it."""
        member = self._members.get(client.identity)
        if member is not None and member.client is client:
            del self._members[client.identity]
            await self._left(member)

    def _lane(self, client: ProxyClient) -> Lane | None:
        """Return connections on which no member of the client's group is known; None if there are too many."""
        language = client.language if client.language in LANGUAGES else "OTHER"
        free = [lane for lane in self._lanes if client.group not in lane.groups]
        if len(self._lanes) - len(free) >= LANES_MAX:
            text = "group %s has more consumers here than brokers are told of: client %s is not in their lists"
            log.info(text, shown(client.group), shown(client.client_id))
            return None
        lane = next((one for one in free if one.language == language), None)
        if lane is None and len(self._lanes) >= LANES_IN_ALL_MAX:
            lane = free[0]
        if lane is None:
            lane = Lane(self._make(language), language)
            self._lanes.append(lane)
        lane.groups.add(client.group)
        return lane

    def _leave(self, member: Member) -> None:
        del self._members[member.client.identity]
        self._leaving.begin(self._left(member))

    async def _left(self, member: Member) -> None:
        # One that is being told just now is known there only then.
        async with member.lock:
            for address in member.told:
                peer = member.lane.connections.open_peer(address)
                if peer is None:
                    continue
                try:
                    await client_api.unregister(peer, member.client.client_id, consumer_group=member.group)
                except RocketSparkError as e:
                    log.info("%s was not told that a member of group %s left: %s", address, shown(member.group), e)
            member.told.clear()
            lane = member.lane
            lane.groups.discard(member.group)
            if not lane.groups and lane in self._lanes:
                self._lanes.remove(lane)
                await lane.connections.close()

    # -- telling -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        all_at_s = machine.monotonic() + self._interval_s
        while True:
            next_s = min([all_at_s, *(self._told_s[name] + APART_S for name in self._new & self._told_s.keys())])
            try:
                async with asyncio.timeout(max(next_s - machine.monotonic(), 0)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            now_s = machine.monotonic()
            self._told_s = {name: at_s for name, at_s in self._told_s.items() if at_s + APART_S > now_s}
            if now_s >= all_at_s:
                all_at_s = now_s + self._interval_s
                names = set(self._members)
            else:
                names = self._new - self._told_s.keys()
            self._new -= names
            self._told_s |= dict.fromkeys(names, now_s)
            members = [member for name in names if (member := self._members.get(name)) is not None]
            try:
                await self.tell(members)
            except Exception:
                log.exception("brokers were not told of consumers")

    async def tell(self, members: Iterable[Member]) -> None:
        """Tell the brokers of all topics that these consumers read; what cannot be told now is told next time."""
        listed = list(members)
        topics = list({topic for member in listed for topic in member.topics()})
        brokers_of: dict[str, set[str]] = {}
        for at in range(0, len(topics), AT_ONCE_MAX):
            part = topics[at : at + AT_ONCE_MAX]
            brokers_of.update(zip(part, await asyncio.gather(*map(self._brokers_of, part)), strict=True))
        to_tell: dict[str, list[Member]] = {}
        for member in listed:
            for name in set().union(*(brokers_of[topic] for topic in member.topics())):
                to_tell.setdefault(name, []).append(member)
        await asyncio.gather(*(self._tell_broker(name, told) for name, told in to_tell.items()))

    async def _brokers_of(self, topic: str) -> set[str]:
        try:
            route = await self._brokers.route(checked_topic(topic))
        except (RouteNotFound, Refused):
            return set()
        except RocketSparkError as e:
            log.info("brokers of topic %s were not told of its consumers: %s", topic, e)
            return set()
        return {broker.broker_name for broker in route.brokers if broker.master is not None}

    async def _tell_broker(self, broker_name: str, members: list[Member]) -> None:
        """Tell one broker; if it does not answer it is not waited for again and again."""
        try:
            address = await self._brokers.master(broker_name)
            for at in range(0, len(members), AT_ONCE_MAX):
                part = members[at : at + AT_ONCE_MAX]
                for outcome in await asyncio.gather(*(self._tell(address, m) for m in part), return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
        except RocketSparkError as e:
            log.info("broker %s was not told of consumers: %s", broker_name, e)

    async def _tell(self, address: str, member: Member) -> None:
        async with member.lock:
            if self._members.get(member.client.identity) is not member:
                return
            peer = await member.lane.connections.get(address)
            member.told.add(address)
            try:
                await client_api.heartbeat(peer, member.heartbeat())
            except TransportError:
                raise
            except RocketSparkError as e:
                text = "%s does not take client %s as a member of group %s: %s"
                log.info(text, address, shown(member.client.client_id), shown(member.group), e)

    async def close(self) -> None:
        """Tell nobody any more; brokers know by the end of the connections that the members are gone."""
        await end_tasks(self._task)
        for task in list(self._leaving):
            task.cancel()
        for lane in self._lanes:
            await lane.connections.close()


def subscriptions(client: ProxyClient) -> list[SubscriptionBody]:
    """Return a consumer's subscriptions: each of its topics, and the group's retry topic of each. A topic or filter
    that cannot be one is left out.
    """
    found: dict[str, SubscriptionBody] = {}
    for entry in client.settings.subscription.subscriptions:
        filter_expression = entry.expression
        kind = SQL92 if filter_expression.type == FilterType.SQL else TAG
        try:
            topic = checked_topic(entry.topic.name)
            wanted = subscribe(topic, filter_expression.expression, version=client.told_ms, kind=kind)
        except (Refused, FilterIllegal):
            continue
        retries = subscribe(retry_topic(topic, client.group, RETRY_V1), ALL, version=client.told_ms)
        for each in (wanted, retries):
            found[each.topic] = SubscriptionBody.of(each)
    return list(found.values())


# By the status that a client gives its answer.
RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class Questions:
    """Answers what brokers ask, for operators, of the consumers that are connected to the proxy."""

    def __init__(self, clients: Clients, renewals: Renewals, namesrv: str, timeout_ms: float) -> None:
        self._clients, self._renewals = clients, renewals
        self._namesrv, self._timeout_s = namesrv, timeout_ms / 1000
        self.routes = Routes()
        self.routes.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, RunningInfoHeader)
        self.routes.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume, ConsumeDirectlyHeader)
        self.routes.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.positions, ConsumerStatusHeader)
        # Who pops has no queues of his own, and no offsets.
        for code in (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET):
            self.routes.add(code, self.ignored, NoHeader)

    def ignored(self, peer: Peer, request: Request[NoHeader], body: bytes) -> bytes | None:
        """Ignore a request that needs no answer and means nothing to a consumer that pops."""
        return None

    def positions(self, peer: Peer, request: Request[ConsumerStatusHeader], body: bytes) -> bytes:
        """Answer GET_CONSUMER_STATUS_FROM_CLIENT (221) with no offsets, as a consumer of the proxy keeps none."""
        return reply(request.opaque, body=b'{"consumerTable":{},"messageQueueTable":{}}')

    def _client(self, group: str, client_id: str | None) -> ProxyClient | None:
        return self._clients.of_group(client_id or "", group)

    async def _ask(self, client: ProxyClient, command: Any, kind: str, nonce: str) -> Any:
        """Return the client's answer, which is of a kind. Raises TimeoutError, with what to tell."""
        streams = list(client.streams)
        if not streams:
            raise TimeoutError(f"client {shown(client.client_id)} has no telemetry stream at the moment")
        try:
            return await streams[-1].ask(command, kind, nonce, self._timeout_s)
        except TimeoutError:
            text = f"client {shown(client.client_id)} did not answer within {self._timeout_s:g} s"
            raise TimeoutError(f"{text}: not every client can") from None

    # -- how it does -----------------------------------------------------------------------------------------------

    async def running_info(self, peer: Peer, request: Request[RunningInfoHeader], body: bytes) -> bytes:
        """Answer GET_CONSUMER_RUNNING_INFO (307) with the consumer's settings and the stacks of its threads, or why
        there are none.
        """
        h = request.ext
        client = self._client(h.group, h.client_id)
        if client is None:
            return _nobody(request.opaque, h.group)
        parts = [
            b'"mqPopTable":%b' % java_json.encode_object_keys(_waiting(self._renewals.of_client(client.identity))),
            b'"mqTable":{}',
            b'"properties":%b' % bodies.encode(self._properties(client)),
            b'"statusTable":{}',
            b'"subscriptionSet":%b' % bodies.encode(subscriptions(client)),
        ]
        if h.stacks:
            parts.insert(0, b'"jstack":%b' % bodies.encode(await self._stacks(client)))
        return reply(request.opaque, body=b"{%b}" % b",".join(parts))

    async def _stacks(self, client: ProxyClient) -> str:
        nonce = machine.uuid4().hex
        command = messages.TelemetryCommand(print_thread_stack_trace_command={"nonce": nonce})
        try:
            answer = await self._ask(client, command, "thread_stack_trace", nonce)
        except TimeoutError as e:
            return str(e)
        if answer.status.code not in (Code.OK, 0):
            return f"client {shown(client.client_id)} tells no stacks: {_told(answer.status)}"
        return str(answer.thread_stack_trace.thread_stack_trace)

    def _properties(self, client: ProxyClient) -> dict[str, str]:
        settings = client.settings
        return {
            "PROP_CLIENT_VERSION": client.version,
            "PROP_CONSUMEORDERLY": str(bool(settings.subscription.fifo)).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(client.began_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if client.is_push_consumer else "CONSUME_ACTIVELY",
            "PROP_NAMESERVER_ADDR": self._namesrv,
            "PROP_THREADPOOL_CORE_SIZE": "0",
            "clientAddress": client.address,
            "consumerGroup": client.group,
            "hostname": settings.user_agent.hostname,
            "language": client.language,
        }

    # -- one message by hand ---------------------------------------------------------------------------------------

    async def consume(self, peer: Peer, request: Request[ConsumeDirectlyHeader], body: bytes) -> bytes:
        """Answer CONSUME_MESSAGE_DIRECTLY (309): the client's listener gets the message, which is not acknowledged to
        the broker.
        """
        h = request.ext
        client = self._client(h.group, h.client_id)
        if client is None:
            return _nobody(request.opaque, h.group)
        try:
            stored = record.decode(body, check_crc=False)
        except RecordError as e:
            return reply(request.opaque, ResponseCode.SYSTEM_ERROR, remark=f"the message cannot be decoded: {e}")
        pairs = pairs_of(stored)
        topic = first_topic(pairs.get(properties.RETRY_TOPIC) or stored.topic.decode("utf-8", "replace"), h.group)
        if not await self._clients.may_be_sent(client, topic, SUB):
            needed = f"on topic {shown(topic)} and group {shown(h.group)}"
            text = f"client {shown(client.client_id)} may not be sent it: no Sub for its user {needed}"
            return reply(request.opaque, ResponseCode.NO_PERMISSION, remark=text)
        nonce = machine.uuid4().hex
        command = messages.TelemetryCommand()
        command.verify_message_command.nonce = nonce
        command.verify_message_command.message.CopyFrom(await message_apart(stored, topic, pairs, now_ms()))
        began_s = machine.monotonic()
        try:
            answer = await self._ask(client, command, "verify_message_result", nonce)
        except TimeoutError as e:
            return reply(request.opaque, ResponseCode.SYSTEM_BUSY, remark=str(e))
        result = RESULTS.get(answer.status.code)
        if result is None:
            text = f"client {shown(client.client_id)} did not consume the message: {_told(answer.status)}"
            return reply(request.opaque, ResponseCode.SYSTEM_ERROR, remark=text)
        told = {
            "autoCommit": True,
            "consumeResult": result,
            "order": bool(client.settings.subscription.fifo),
            "remark": "from gRPC client",
            "spentTimeMills": int((machine.monotonic() - began_s) * 1000),
        }
        return reply(request.opaque, body=bodies.encode(told))


def _waiting(held: Iterable[Held]) -> list[tuple[QueueBody, dict[str, Any]]]:
    """Return how many messages a client has that it did not acknowledge, by queue."""
    found: dict[MessageQueue, dict[str, Any]] = {}
    for one in held:
        queue = MessageQueue(one.topic, one.handle.broker_name, one.handle.queue_id)
        row = found.setdefault(queue, {"droped": False, "lastPopTimestamp": 0, "waitAckCount": 0})
        row["waitAckCount"] += 1
        row["lastPopTimestamp"] = max(row["lastPopTimestamp"], one.handle.pop_time_ms)
    return [(QueueBody.of(queue), row) for queue, row in sorted(found.items())]


def _told(status: Any) -> str:
    return f"{status.code} {shown(status.message)}".strip()


def _nobody(opaque: int, group: str) -> bytes:
    text = f"The Consumer Group <{group}> not exist in this consumer"
    return reply(opaque, ResponseCode.SYSTEM_ERROR, remark=text)
