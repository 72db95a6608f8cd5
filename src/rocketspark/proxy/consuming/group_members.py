"""Tells brokers which consumers the proxy has, so that they are seen and asked where those before RocketMQ 5 are.

Rule: a broker knows a connection as one member of a group; so the members of a group are told on as many connections,
at once and from time to time, until they are gone. Apache's proxy does this only within its broker's own process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from rocketspark.client.connection import client_api
from rocketspark.errors import FilterIllegal, RocketSparkError, RouteNotFound, TransportError
from rocketspark.model import subscribe
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.subscription import ALL, SQL92, TAG
from rocketspark.model.text import shown
from rocketspark.protocol.frames import LANGUAGES
from rocketspark.protocol.json.bodies import ConsumerData, Heartbeat, SubscriptionBody
from rocketspark.protocol.retry_topics import RETRY_V1, retry_topic
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.names import checked_topic
from rocketspark.proxy.wire.codes import FilterType
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.proxy")

# Connections to each broker, and so the members of one group that are told of. Those beyond receive all the same.
LANES_MAX = 64
# Heartbeats to one broker that wait for their answers.
AT_ONCE_MAX = 32


class Lane:
    """One connection to each broker, on which it knows one member of every group."""

    def __init__(self, connections: Connections, language: str) -> None:
        self.connections, self.language = connections, language
        self.groups: set[str] = set()


class Member:
    """One consumer. `told`: the addresses of brokers that know it; `lock`: held while one is told."""

    def __init__(self, client: ProxyClient, lane: Lane) -> None:
        self.client, self.group, self.lane = client, client.group, lane
        self.told: set[str] = set()
        self.lock = asyncio.Lock()

    def topics(self) -> list[str]:
        """Return the topics that it reads."""
        return [entry.topic.name for entry in self.client.settings.subscription.subscriptions]

    def heartbeat(self) -> Heartbeat:
        """Return what brokers are told."""
        data = ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY" if self.client.is_push_consumer else "CONSUME_ACTIVELY",
            subscription_data_set=subscriptions(self.client),
        )
        return Heartbeat(client_id=self.client.client_id, consumer_data_set=[data])


class GroupMembers:
    """The consumers of one proxy as brokers know them. `make`: makes connections, by a client's language."""

    def __init__(
        self, brokers: Brokers, clients: Clients, make: Callable[[str], Connections], interval_s: float
    ) -> None:
        self._brokers, self._clients, self._make, self._interval_s = brokers, clients, make, interval_s
        self._members: dict[str, Member] = {}
        self._lanes: list[Lane] = []
        self._new: set[str] = set()
        self._wanted = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to tell brokers."""
        self._task = asyncio.ensure_future(self._run())

    def changed(self, client: ProxyClient) -> None:
        """Have brokers told of a client's settings at once."""
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
        """Take leave of brokers for a client that is gone."""
        member = self._members.get(client.identity)
        if member is not None and member.client is client:
            del self._members[client.identity]
            await self._left(member)

    def _lane(self, client: ProxyClient) -> Lane | None:
        """Return connections on which no member of the client's group is known; None if there are too many."""
        language = client.language if client.language in LANGUAGES else "OTHER"
        for lane in self._lanes:
            if lane.language == language and client.group not in lane.groups:
                lane.groups.add(client.group)
                return lane
        if len(self._lanes) >= LANES_MAX:
            text = "group %s has more consumers here than brokers are told of: client %s is not in their lists"
            log.info(text, shown(client.group), shown(client.client_id))
            return None
        lane = Lane(self._make(language), language)
        lane.groups.add(client.group)
        self._lanes.append(lane)
        return lane

    def _leave(self, member: Member) -> None:
        del self._members[member.client.identity]
        task = asyncio.ensure_future(self._left(member))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

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
        all_at_s = time.monotonic() + self._interval_s
        while True:
            try:
                async with asyncio.timeout(max(all_at_s - time.monotonic(), 0)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            new, self._new = self._new, set()
            if time.monotonic() >= all_at_s:
                all_at_s = time.monotonic() + self._interval_s
                members = list(self._members.values())
            else:
                members = [member for name in new if (member := self._members.get(name)) is not None]
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in list(self._leaving):
            task.cancel()
        for lane in self._lanes:
            await lane.connections.close()


def subscriptions(client: ProxyClient) -> list[SubscriptionBody]:
    """Return what a consumer reads, by topic: each topic with the group's retries of it; but what can be none."""
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
