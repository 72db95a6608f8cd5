"""What an operator sees of connected clients: producers, consumers and groups' members, and what one is doing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from rocketspark.admin.cluster_client import BrokerState, ClusterClient, check_name
from rocketspark.client.connection import group_api
from rocketspark.errors import ServerError, TransportError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.protocol.json.bodies import SubscriptionBody
from rocketspark.protocol.json.group_bodies import GroupConnections, RunningInfo, by_queue
from rocketspark.protocol.versions import version_name

# In the order in which tables show them.
ROLES = ("consumer", "producer")


class Subscribed(msgspec.Struct, frozen=True, order=True):
    """What is read of a topic; `expression_type` is TAG or SQL92."""

    topic: str
    expression: str
    expression_type: str = "TAG"


class ClientState(msgspec.Struct, frozen=True, order=True):
    """A client in one of its groups. `role`: consumer or producer; `address`: its "host:port" as the first of `brokers`
    sees it, to which it is connected; `version`: RocketMQ's name, as V5_5_0; `last_seen_ms`: a producer's last
    heartbeat, None for consumers.
    """

    client_id: str
    role: str
    group: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]
    last_seen_ms: int | None = None


class Member(msgspec.Struct, frozen=True, order=True):
    """A consumer of a group. `subscriptions`: None if the member does not tell; `agrees`: False if it subscribes to
    something else than most members do, None if that is not known.
    """

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]
    subscriptions: tuple[Subscribed, ...] | None = None
    agrees: bool | None = None


class GroupMembers(msgspec.Struct, frozen=True):
    """The connected members of a group, and what brokers hold of it; without members the texts are empty.

    `consume_type`: CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull) or CONSUME_POP; `message_model`: CLUSTERING or
    BROADCASTING; `subscriptions`: the group's, as brokers have them of the member that spoke last.
    """

    group: str
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: tuple[Subscribed, ...]
    members: tuple[Member, ...]
    # The lowest of the members' versions.
    version: str = ""

    @property
    def consistent(self) -> bool:
        """Tell whether no member is known to disagree with the others."""
        return all(member.agrees is not False for member in self.members)


class ReadQueue(msgspec.Struct, frozen=True):
    """What a consumer holds of a queue that it reads: up to which offset it consumed, and the messages it has fetched
    already. Times are in ms, 0 for never.
    """

    queue: MessageQueue
    commit_offset: int
    cached_count: int
    cached_min_offset: int
    cached_max_offset: int
    cached_mib: int
    locked: bool
    dropped: bool
    last_pull_ms: int
    last_consume_ms: int
    last_lock_ms: int


class PoppedQueue(msgspec.Struct, frozen=True):
    """A queue that a consumer pops, or with the number -1 all of a topic on a broker: how many messages it has not
    acknowledged yet, and when it last asked, in ms.
    """

    queue: MessageQueue
    unacknowledged: int
    dropped: bool
    last_pop_ms: int


class TopicRates(msgspec.Struct, frozen=True):
    """A consumer's rates in a topic: messages a second, times of a pull and of a message in ms, and how many messages
    failed within an hour.
    """

    topic: str
    pull_tps: float
    pull_ms: float
    consumed_tps: float
    failed_tps: float
    consume_ms: float
    failed_in_hour: int


class ConsumerState(msgspec.Struct, frozen=True):
    """What a consumer reports about itself. `properties`: its settings by RocketMQ's names; `stacks`: the stacks of its
    threads, as it writes them, None if they were not asked for.
    """

    client_id: str
    group: str
    properties: dict[str, str]
    subscriptions: tuple[Subscribed, ...]
    queues: tuple[ReadQueue, ...]
    popped: tuple[PoppedQueue, ...]
    topics: tuple[TopicRates, ...]
    stacks: str | None = None


class ClientDetails(msgspec.Struct, frozen=True):
    """A client: its groups, and of each group that it consumes in what it tells of itself. `silent`: by group, why it
    tells nothing.
    """

    client_id: str
    groups: tuple[ClientState, ...]
    consumers: tuple[ConsumerState, ...]
    silent: dict[str, str]


class ClientOperations(ClusterClient):
    """The operations on connected clients, a part of AsyncAdmin."""

    async def list_members(self, group: str, *, subscriptions: bool = True) -> GroupMembers:
        """Return a consumer group's connected members. `subscriptions`: ask each what it subscribes to, too; those of
        clients that do not answer stay None.

        A group that nobody knows has no members. Raises what a broker raises.
        """
        found = await self._connections(check_name(group))
        members = merged_members(group, found)
        if not subscriptions or not members.members:
            return members
        told = await self._running_infos(group, members.members)
        by_client = {
            client_id: _subscribed(info.subscription_set)
            for client_id, info in told.items()
            if isinstance(info, RunningInfo)
        }
        return msgspec.structs.replace(members, members=_marked(members.members, by_client))

    async def list_clients(self, *, groups: Iterable[str] | None = None, role: str | None = None) -> list[ClientState]:
        """Return the connected clients, one for each of their groups, sorted by id, role and group.

        Args:
            groups: only those of these groups; by default of all groups.
            role: only "consumer" or "producer".

        Raises UsageError for another role, or what a broker raises. Brokers before RocketMQ 5 name no producers.
        """
        if role is not None and role not in ROLES:
            raise UsageError(f"role {role!r} is not one of {', '.join(ROLES)}")
        wanted = None if groups is None else {check_name(group) for group in groups}
        targets = await self._readable()
        found: list[ClientState] = []
        if role != "producer":
            found += await self._consumers(targets, wanted)
        if role != "consumer":
            found += await self._producers(targets, wanted)
        return sorted(found)

    async def show_client(self, client_id: str, *, group: str | None = None, stacks: bool = False) -> ClientDetails:
        """Return a connected client's groups, and ask it what it is doing in those that it consumes in.

        Args:
            group: only this group, which is found faster.
            stacks: also ask for the stacks of its threads.

        Raises UsageError if no broker knows the client, or what a broker raises.
        """
        if group is None:
            found = await self.list_clients()
        else:
            found = await self.list_clients(groups=[group], role="consumer")
            found = found or await self.list_clients(groups=[group], role="producer")
        states = [c for c in found if c.client_id == client_id]
        if not states:
            where = "" if group is None else f" in group {group!r}"
            raise UsageError(f"no client {client_id!r} is connected{where}: `rocketspark client list` names all")
        addresses = await self._addresses()
        asking = [c for c in states if c.role == "consumer"]
        answers = await asyncio.gather(
            *(self._running_info(c.group, client_id, addresses[c.brokers[0]], stacks=stacks) for c in asking)
        )
        told = list(zip((c.group for c in asking), answers, strict=True))
        return ClientDetails(
            client_id,
            tuple(states),
            tuple(_consumer(client_id, name, info) for name, info in told if isinstance(info, RunningInfo)),
            {name: str(info) for name, info in told if not isinstance(info, RunningInfo)},
        )

    # -- how it is asked -----------------------------------------------------------------------------------------

    async def _addresses(self) -> dict[str, str]:
        return {target.broker_name: target.address for target in await self._readable()}

    async def _connections(
        self, group: str, targets: Iterable[BrokerState] | None = None
    ) -> dict[str, GroupConnections]:
        """Return what each broker knows of a group's members; brokers that know none are left out."""
        found = await self._ask_all(
            await self._readable() if targets is None else targets,
            f"members of group {group!r}",
            lambda peer: group_api.connections(peer, group, timeout_ms=self._timeout_ms),
        )
        return {name: each for name, each in found.items() if each is not None}

    async def _consumers(self, targets: list[BrokerState], wanted: set[str] | None) -> list[ClientState]:
        if wanted is None:
            known = await self._ask_all(
                targets, "list of groups", lambda peer: group_api.groups(peer, timeout_ms=self._timeout_ms)
            )
            wanted = set().union(*known.values())
        names = sorted(wanted)
        found = await asyncio.gather(*(self._connections(name, targets) for name in names))
        return [
            ClientState(m.client_id, "consumer", name, m.address, m.language, m.version, m.brokers)
            for name, each in zip(names, found, strict=True)
            for m in merged_members(name, each).members
        ]

    async def _producers(self, targets: list[BrokerState], wanted: set[str] | None) -> list[ClientState]:
        found = await self._ask_all(
            targets, "list of producers", lambda peer: group_api.producers(peer, timeout_ms=self._timeout_ms)
        )
        states: dict[tuple[str, str], ClientState] = {}
        for broker_name, by_group in found.items():
            for group, connections in by_group.items():
                if wanted is not None and group not in wanted:
                    continue
                for c in connections:
                    had = states.get((group, c.client_id))
                    state = ClientState(
                        *(c.client_id, "producer", group, c.remote_ip.removeprefix("/"), c.language),
                        *(version_name(c.version), (broker_name,), c.last_update_timestamp),
                    )
                    if had is not None:
                        latest = max(had.last_seen_ms or 0, c.last_update_timestamp)
                        state = msgspec.structs.replace(had, brokers=(*had.brokers, broker_name), last_seen_ms=latest)
                    states[group, c.client_id] = state
        return list(states.values())

    async def _running_infos(
        self, group: str, members: Iterable[Member]
    ) -> dict[str, RunningInfo | ServerError | TransportError]:
        """Ask each member of a group what it is doing; returns the answers, or why there is none, by client id."""
        addresses = await self._addresses()
        asked = [(m.client_id, addresses[m.brokers[0]]) for m in members if m.brokers[0] in addresses]
        answers = await asyncio.gather(*(self._running_info(group, client_id, address) for client_id, address in asked))
        return {client_id: answer for (client_id, _), answer in zip(asked, answers, strict=True)}

    async def _running_info(
        self, group: str, client_id: str, address: str, *, stacks: bool = False
    ) -> RunningInfo | ServerError | TransportError:
        try:
            async with self._room:
                return await group_api.running_info(
                    await self._broker(address), group, client_id, stacks=stacks, timeout_ms=self._timeout_ms
                )
        except (ServerError, TransportError) as e:
            return e


def merged_members(group: str, found: Mapping[str, GroupConnections]) -> GroupMembers:
    """Return the members of a group of what each broker knows of it."""
    first = next(iter(found.values()), GroupConnections())
    members: dict[str, Member] = {}
    versions = []
    subscriptions: dict[str, SubscriptionBody] = {}
    for broker_name, each in found.items():
        subscriptions = {**each.subscription_table, **subscriptions}
        for c in each.connection_set:
            versions.append(c.version)
            had = members.get(c.client_id)
            members[c.client_id] = (
                Member(c.client_id, c.client_addr, c.language, version_name(c.version), (broker_name,))
                if had is None
                else msgspec.structs.replace(had, brokers=(*had.brokers, broker_name))
            )
    return GroupMembers(
        group,
        first.consume_type or "",
        first.message_model or "",
        first.consume_from_where or "",
        _subscribed(subscriptions.values()),
        tuple(sorted(members.values())),
        version_name(min(versions)) if versions else "",
    )


def _marked(members: Iterable[Member], told: Mapping[str, tuple[Subscribed, ...]]) -> tuple[Member, ...]:
    """Return the members with what they subscribe to, and whether that is what over half of them do."""
    usual, count = Counter(told.values()).most_common(1)[0] if told else ((), 0)
    clear = 2 * count > len(told)
    return tuple(
        msgspec.structs.replace(m, subscriptions=own, agrees=clear and own == usual)
        if (own := told.get(m.client_id)) is not None
        else m
        for m in members
    )


def _subscribed(bodies: Iterable[SubscriptionBody]) -> tuple[Subscribed, ...]:
    return tuple(sorted(Subscribed(s.topic, s.sub_string, s.expression_type or "TAG") for s in bodies))


def _consumer(client_id: str, group: str, info: RunningInfo) -> ConsumerState:
    return ConsumerState(
        client_id,
        group,
        {name: value or "" for name, value in sorted(info.properties.items())},
        _subscribed(info.subscription_set),
        tuple(
            ReadQueue(
                queue,
                q.commit_offset,
                q.cached_msg_count,
                q.cached_msg_min_offset,
                q.cached_msg_max_offset,
                q.cached_msg_size_in_mib,
                q.locked,
                q.droped,
                q.last_pull_timestamp,
                q.last_consume_timestamp,
                q.last_lock_timestamp,
            )
            for queue, q in by_queue(info.mq_table).items()
        ),
        tuple(
            PoppedQueue(queue, q.wait_ack_count, q.droped, q.last_pop_timestamp)
            for queue, q in by_queue(info.mq_pop_table).items()
        ),
        tuple(
            TopicRates(
                topic,
                s.pull_tps,
                s.pull_rt,
                s.consume_ok_tps,
                s.consume_failed_tps,
                s.consume_rt,
                s.consume_failed_msgs,
            )
            for topic, s in sorted(info.status_table.items())
        ),
        info.jstack,
    )
