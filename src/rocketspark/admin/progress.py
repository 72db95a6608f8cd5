"""How far consumer groups have come: all groups in one table, and one group queue by queue. Rule: what mqadmin's
consumerProgress shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from rocketspark import machine
from rocketspark.admin.clients import ClientOperations, GroupMembers, merged_members
from rocketspark.admin.cluster_client import BrokerState, check_name
from rocketspark.admin.groups import GroupOperations
from rocketspark.client import validators
from rocketspark.client.connection import group_api
from rocketspark.model import MessageQueue
from rocketspark.protocol.json.group_bodies import GroupSums, RunningInfo, by_queue

# As people call the ways in which members get messages.
CONSUME_TYPES = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}


# Stands for all queues of a topic on a broker, which a member may pop at once.
_ANY_QUEUE = -1
# Our brokers take no more in one request.
_GROUPS_AT_A_TIME = 100


class GroupState(msgspec.Struct, frozen=True):
    """A consumer group: its connected members, and how many messages it has not consumed yet.

    `version`: the lowest of its members'; `consume_type`: PUSH, PULL or POP; `message_model`: CLUSTERING or
    BROADCASTING. Of a group without members these are empty. `consume_tps`: messages a second.
    """

    group: str
    member_count: int
    version: str
    consume_type: str
    message_model: str
    consume_tps: float
    lag: int
    in_flight: int

    @property
    def online(self) -> bool:
        """Tell whether the group has a connected member."""
        return self.member_count > 0


class QueueLag(msgspec.Struct, frozen=True):
    """A group's progress in a queue.

    `broker_offset`: where the queue ends; `consumer_offset`: up to which the group consumed it; `pull_offset`: up to
    which its members fetched it; `last_time_ms`: when the last message that it consumed was stored, 0 for none;
    `delay_ms`: how long its next message has been stored already, 0 if there is none, None if that is not known;
    `client_id`: the member that reads the queue, of several that pop it the first, None if nobody does.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_time_ms: int
    delay_ms: int | None = None
    client_id: str | None = None

    @property
    def lag(self) -> int:
        """How many messages the group has not consumed yet."""
        return max(0, self.broker_offset - self.consumer_offset)

    @property
    def in_flight(self) -> int:
        """How many of them its members have fetched already."""
        return max(0, self.pull_offset - self.consumer_offset)


class GroupLag(msgspec.Struct, frozen=True):
    """A group's progress in the queues of the topics in which it has offsets, its retry topics too."""

    group: str
    consume_tps: float
    queues: tuple[QueueLag, ...]

    @property
    def lag(self) -> int:
        """How many messages the group has not consumed yet."""
        return sum(q.lag for q in self.queues)

    @property
    def in_flight(self) -> int:
        """How many of them its members have fetched already."""
        return sum(q.in_flight for q in self.queues)

    @property
    def delay_ms(self) -> int | None:
        """How long the oldest message that the group has not consumed is stored already, in ms."""
        return max((q.delay_ms for q in self.queues if q.delay_ms is not None), default=None)


class ProgressOperations(GroupOperations, ClientOperations):
    """The operations on groups' progress, a part of AsyncAdmin."""

    async def list_group_states(self, groups: Iterable[str] | None = None, *, system: bool = False) -> list[GroupState]:
        """Return the members and the lag of groups, sorted by name. A group that nobody knows has neither.

        `groups`: only these; by default all, with `system` those of brokers too. Raises what a broker raises.
        """
        if groups is None:
            names = await self.list_groups(system=system)
        else:
            names = sorted({check_name(group) for group in groups})
        targets = await self._readable()
        parts = [names[at : at + _GROUPS_AT_A_TIME] for at in range(0, len(names), _GROUPS_AT_A_TIME)]
        asked = [(target, part) for target in targets for part in parts]
        told = await asyncio.gather(*(self._sums_of_many(target, part) for target, part in asked))
        by_group: dict[str, dict[str, GroupSums]] = {name: {} for name in names}
        for (target, _), found in zip(asked, told, strict=True):
            for group, sums in found.items():
                by_group[group][target.broker_name] = sums
        return [_state(group, found) for group, found in by_group.items()]

    async def _sums_of_many(self, target: BrokerState, groups: list[str]) -> dict[str, GroupSums]:
        """Return what a broker knows of groups: by one request of ours, by two for each of RocketMQ's."""
        if target.address not in self._tells_one_by_one:
            answer = await self._ask_all(
                [target],
                "states of groups",
                lambda peer: group_api.group_states(peer, groups, timeout_ms=self._timeout_ms),
            )
            many = answer[target.broker_name]
            if many is not None:
                return {group: many.get(group, GroupSums()) for group in groups}
            self._tells_one_by_one.add(target.address)
        return dict(zip(groups, await asyncio.gather(*(self._sums(target, g) for g in groups)), strict=True))

    async def _sums(self, target: BrokerState, group: str) -> GroupSums:
        connections, progress = await asyncio.gather(
            self._connections(group, [target]),
            self._ask_all(
                [target],
                f"progress of group {group!r}",
                lambda peer: group_api.consume_stats(peer, group, timeout_ms=self._timeout_ms),
            ),
        )
        tps, queues = progress[target.broker_name]
        return GroupSums(
            connections=connections.get(target.broker_name),
            consume_tps=tps,
            lag=sum(max(0, q.broker_offset - q.consumer_offset) for q in queues.values()),
            in_flight=sum(max(0, q.pull_offset - q.consumer_offset) for q in queues.values()),
        )

    async def group_lag(
        self, group: str, topic: str | None = None, *, holders: bool = True, delays: bool = True
    ) -> GroupLag:
        """Return a group's progress in each queue.

        Args:
            topic: only in this topic; by default in all in which it has offsets.
            holders: also ask the group's members which queues they read.
            delays: also ask brokers how long the next messages wait already.

        Returns no queues for a group that nobody knows. Raises what a broker raises.
        """
        check_name(group)
        if topic is not None:
            validators.check_topic(topic)
        asked = await self._ask_all(
            await self._readable(),
            f"progress of group {group!r}",
            lambda peer: group_api.consume_stats(peer, group, topic, timeout_ms=self._timeout_ms),
        )
        found = {queue: stats for _, by_queue in asked.values() for queue, stats in by_queue.items()}
        waits, readers = await asyncio.gather(
            self._delays(group, found) if delays else _nothing(), self._holders(group) if holders else _nobody()
        )
        return GroupLag(
            group,
            sum(tps for tps, _ in asked.values()),
            tuple(
                QueueLag(
                    queue,
                    stats.broker_offset,
                    stats.consumer_offset,
                    stats.pull_offset,
                    stats.last_timestamp,
                    waits.get(queue) if stats.consumer_offset < stats.broker_offset or not delays else 0,
                    readers.get(queue) or readers.get(msgspec.structs.replace(queue, queue_id=_ANY_QUEUE)),
                )
                for queue, stats in sorted(found.items(), key=lambda pair: pair[0])
            ),
        )

    async def _delays(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        where = {target.broker_name: target for target in await self._readable()}
        places = sorted({(q.broker_name, q.topic) for q in queues if q.broker_name in where})

        async def one(broker_name: str, topic: str) -> dict[MessageQueue, int]:
            answer = await self._ask_all(
                [where[broker_name]],
                f"delay of group {group!r}",
                lambda peer: group_api.delays(peer, group, topic, timeout_ms=self._timeout_ms),
            )
            return answer[broker_name] or {}

        answers = await asyncio.gather(*(one(*place) for place in places))
        now_ms = int(machine.time() * 1000)
        # A broker counts from 1970 where the next message is gone.
        return {queue: ms for each in answers for queue, ms in each.items() if ms < now_ms}

    async def _holders(self, group: str) -> dict[MessageQueue, str]:
        """Return the member that reads each queue."""
        members: GroupMembers = merged_members(group, await self._connections(group))
        holders: dict[MessageQueue, str] = {}
        for client_id, info in sorted((await self._running_infos(group, members.members)).items()):
            if isinstance(info, RunningInfo):
                dropped = [(q, r.droped) for q, r in by_queue(info.mq_table).items()]
                dropped += [(q, p.droped) for q, p in by_queue(info.mq_pop_table).items()]
                for queue, gone in dropped:
                    if not gone:
                        holders.setdefault(queue, client_id)
        return holders


def _state(group: str, told: Mapping[str, GroupSums]) -> GroupState:
    """Return the state of a group of what each broker knows."""
    members = merged_members(
        group, {name: each.connections for name, each in told.items() if each.connections is not None}
    )
    return GroupState(
        group,
        len(members.members),
        members.version,
        CONSUME_TYPES.get(members.consume_type, members.consume_type),
        members.message_model,
        sum(each.consume_tps for each in told.values()),
        sum(each.lag for each in told.values()),
        sum(each.in_flight for each in told.values()),
    )


async def _nothing() -> dict[MessageQueue, int]:
    return {}


async def _nobody() -> dict[MessageQueue, str]:
    return {}
