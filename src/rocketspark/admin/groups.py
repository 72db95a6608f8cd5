"""An operator's work on consumer groups: which there are, their settings, and how they are given messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from rocketspark.admin.cluster_client import BrokerState, ClusterClient, check_name
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, group_api
from rocketspark.errors import ServerError, UsageError
from rocketspark.model.message import NamedFields
from rocketspark.model.namespace import DLQ_PREFIX, RETRY_PREFIX, is_system_group
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.json.metadata import RequestMode
from rocketspark.transport.peer import Peer

MODES = ("PULL", "POP")
TIMES_MAX = 2**31 - 1
POLICIES = {"EXPONENTIAL": "exponentialRetryPolicy", "CUSTOMIZED": "customizedRetryPolicy"}
MS_MAX = 2**53


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """Changes of a consumer group's settings; None leaves a setting as it is (RocketMQ's names in brackets).

    `ordered`: the group's messages are given out in order [consumeMessageOrderly]; `consume_enabled`: the group may
    consume at all [consumeEnable]; `retry_max_times`: after so many retries a message is a dead letter, for push
    consumers that state no number and for clients of RocketMQ 5 [retryMaxTimes]; `retry_policy`: the waits before
    retries for clients of RocketMQ 5, in the form of RocketMQ's JSON [groupRetryPolicy]; `attributes`:
    "+name=value,-name".
    """

    ordered: bool | None = None
    consume_enabled: bool | None = None
    retry_max_times: int | None = None
    retry_policy: dict[str, Any] | None = None
    attributes: str = ""

    def over(self, known: GroupConfig) -> GroupConfig:
        """Return a group's settings with these changes. Raises UsageError."""
        changes: dict[str, Any] = {"attributes": _attribute_changes(self.attributes)}
        if self.ordered is not None:
            changes["consume_message_orderly"] = self.ordered
        if self.consume_enabled is not None:
            changes["consume_enable"] = self.consume_enabled
        if self.retry_max_times is not None:
            if not 0 <= self.retry_max_times <= TIMES_MAX:
                raise UsageError(f"retry_max_times {self.retry_max_times} is not from 0 to {TIMES_MAX}")
            changes["retry_max_times"] = self.retry_max_times
        if self.retry_policy is not None:
            changes["group_retry_policy"] = check_policy(self.retry_policy)
        return msgspec.structs.replace(known, **changes)


def check_policy(policy: dict[str, Any]) -> dict[str, Any]:
    """Return a retry policy. Raises UsageError for one that no RocketMQ server understands."""
    kind = policy.get("type")
    if kind not in POLICIES:
        raise UsageError(f"retry policy: type {kind!r} is not one of {', '.join(POLICIES)}")
    given = policy.get(POLICIES[kind], {})
    if set(policy) - {"type", POLICIES[kind]} or not isinstance(given, dict):
        raise UsageError(f"retry policy: beside its type only {POLICIES[kind]} is taken, an object")
    if kind == "EXPONENTIAL":
        names = {"initial": MS_MAX, "max": MS_MAX, "multiplier": 1000}
        if set(given) - set(names) or not all(_is_whole(given[n], high) for n, high in names.items() if n in given):
            raise UsageError("retry policy: initial and max in ms and multiplier are needed, whole numbers above 0")
        if given.get("initial", 5000) > given.get("max", 7_200_000):
            raise UsageError("retry policy: initial is more than max")
    else:
        steps = given.get("next", [1])
        if set(given) - {"next"} or not isinstance(steps, list) or not steps or len(steps) > 1000:
            raise UsageError("retry policy: next, a list of 1 to 1000 times in ms, is needed")
        if not all(_is_whole(step, MS_MAX) for step in steps):
            raise UsageError("retry policy: the times of next are whole numbers of ms above 0")
    return policy


def _is_whole(value: object, high: int) -> bool:
    return type(value) is int and 0 < value <= high


def _attribute_changes(text: str) -> dict[str, str]:
    """Return "+name=value,-name" as a request holds it. Raises UsageError."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if name[:1] not in "+-" or len(name) < 2 or (name[0] == "+") != bool(equals):
            raise UsageError(f"attribute {part!r}: +name=value or -name is needed")
        found[name] = value
    return found


class GroupOperations(ClusterClient):
    """The operations on groups, a part of AsyncAdmin."""

    async def list_groups(self, topic: str | None = None, *, system: bool = False) -> list[str]:
        """Return the names of all consumer groups that brokers know, sorted.

        `topic`: only those that subscribe to this topic, or have committed offsets in it; `system`: also the groups
        that brokers make for themselves. Raises RouteNotFound for an unknown topic, or what a broker raises.
        """
        if topic is None:
            known = await self._ask_all(
                await self._readable(), "list of groups", lambda p: group_api.groups(p, timeout_ms=self._timeout_ms)
            )
            return sorted(name for name in set().union(*known.values()) if system or not is_system_group(name))
        route = await self._routes.refresh(validators.check_topic(topic))
        peers = [await self._broker(broker.master) for broker in route.brokers if broker.master]
        found = await asyncio.gather(
            *(admin_api.groups_of_topic(peer, topic, timeout_ms=self._timeout_ms) for peer in peers)
        )
        return sorted(set().union(*found))

    async def check_known(self, group: str) -> None:
        """Raise UsageError for a group that no broker knows; it passes where the user may not list groups."""
        check_name(group)
        known = await self._known_groups(await self._readable())
        if known and not any(group in groups for groups in known.values()):
            raise UsageError(f"no broker knows group {group!r}: `rocketspark group list` names all")

    async def _known_groups(self, targets: Iterable[BrokerState]) -> dict[str, dict[str, GroupConfig]]:
        """Return the groups that each broker knows; nothing if the user may not list groups."""
        try:
            return await self._ask_all(
                targets, "list of groups", lambda peer: group_api.groups(peer, timeout_ms=self._timeout_ms)
            )
        except ServerError as e:
            if not e.no_permission:
                raise
            return {}

    async def put_group(
        self,
        group: str,
        settings: GroupSettings | None = None,
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> dict[str, GroupConfig]:
        """Create a group on masters, or change its settings there; returns its settings by broker.

        `cluster`, `brokers`: only that cluster's brokers, or those of the names given; by default all masters. Raises
        MessageIllegal for an illegal name, UsageError for illegal settings, or what a broker raises.
        """
        validators.check_group(group)
        wanted = settings or GroupSettings()
        wanted.over(GroupConfig(group_name=group))

        async def put(peer: Peer) -> None:
            known = await admin_api.group_settings(peer, group, timeout_ms=self._timeout_ms)
            config = wanted.over(known or GroupConfig(group_name=group))
            await admin_api.put_group(peer, config, timeout_ms=self._timeout_ms)

        await self._each(await self._masters(cluster, brokers), f"settings of group {group!r}", put)
        return await self.show_group(group, cluster=cluster, brokers=brokers)

    async def show_group(
        self, group: str, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> dict[str, GroupConfig]:
        """Return a group's settings by broker; brokers that do not know the group are left out. Raises what a broker
        raises.
        """
        validators.check_group(group)
        found = {}
        for target in await self._masters(cluster, brokers):
            peer = await self._broker(target.address)
            config = await admin_api.group_settings(peer, group, timeout_ms=self._timeout_ms)
            if config is not None:
                found[target.broker_name] = config
        return found

    async def set_request_mode(
        self,
        topic: str,
        group: str,
        mode: str,
        *,
        pop_share_queue_count: int | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Set whether a group pulls or pops a topic's messages; for groups whose members let brokers assign their
        queues.

        Args:
            mode: "PULL" or "POP".
            pop_share_queue_count: with POP, a member also pops the queues of so many other members; 0 or less: all
                queues; None: as before, 0 at first.
            cluster, brokers: only that cluster's brokers, or those of the names given; by default all.

        Returns the brokers' names. Raises MessageIllegal, UsageError, or what a broker raises.
        """
        validators.check_topic(topic)
        validators.check_group(group)
        if mode not in MODES:
            raise UsageError(f"mode {mode!r} is not one of {', '.join(MODES)}")
        share = pop_share_queue_count
        if share is not None and not -TIMES_MAX <= share <= TIMES_MAX:
            raise UsageError(f"pop_share_queue_count {share} is beyond {TIMES_MAX}")

        async def put(peer: Peer) -> None:
            kept = 0
            if share is None:
                known = await admin_api.request_modes(peer, timeout_ms=self._timeout_ms)
                kept = known.get(topic, {}).get(group, RequestMode()).pop_share_queue_num
            wanted = RequestMode(
                topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=kept if share is None else share
            )
            await admin_api.set_request_mode(peer, wanted, timeout_ms=self._timeout_ms)

        doing = f"request mode of group {group!r}"
        return list(await self._each(await self._masters(cluster, brokers), doing, put))

    async def list_request_modes(self, group: str) -> dict[str, RequestMode]:
        """Return, by topic, whether a group pulls or pops it, where that was set; of brokers that differ the first
        one's. Raises what a broker raises.
        """
        check_name(group)
        told = await self._ask_all(
            await self._readable(),
            "request modes",
            lambda peer: admin_api.request_modes(peer, timeout_ms=self._timeout_ms),
        )
        found: dict[str, RequestMode] = {}
        for modes in told.values():
            for topic, by_group in modes.items():
                if group in by_group:
                    found.setdefault(topic, by_group[group])
        return dict(sorted(found.items()))

    async def delete_group(
        self,
        group: str,
        *,
        offsets: bool = False,
        topics: bool = False,
        force: bool = False,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Remove a consumer group from masters; returns the names of those that knew it.

        Args:
            offsets: also remove its offsets; else a new group of this name continues where this one was.
            topics: also remove its topics of retries and dead letters, with the messages in them.
            force: also a group with connected members, which make it anew at their next heartbeat.
            cluster, brokers: only on that cluster's brokers, or those of the names given; by default on all.

        Raises UsageError if no broker knows the group, or it has members; or what a broker raises.
        """
        check_name(group)
        targets = await self._masters(cluster, brokers)
        known = await self._ask_all(
            targets, "list of groups", lambda peer: group_api.groups(peer, timeout_ms=self._timeout_ms)
        )
        if not any(group in groups for groups in known.values()) and not offsets:
            raise UsageError(f"no broker knows group {group!r}: `rocketspark group list` names all")
        if not force:
            await self._check_offline(group, targets)
        await self._each(
            targets,
            f"delete group {group!r}",
            lambda peer: group_api.delete_group(peer, group, offsets=offsets, timeout_ms=self._timeout_ms),
        )
        if topics:
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                await self._drop_topic(prefix + group, targets)
        return [name for name, groups in known.items() if group in groups]

    async def _check_offline(self, group: str, targets: Iterable[BrokerState]) -> None:
        connected = await self._ask_all(
            targets,
            f"members of group {group!r}",
            lambda peer: group_api.connections(peer, group, timeout_ms=self._timeout_ms),
        )
        ids = {c.client_id for each in connected.values() if each is not None for c in each.connection_set}
        if ids:
            raise UsageError(
                f"group {group!r} has {len(ids)} connected member{'s' if len(ids) > 1 else ''},"
                f" {', '.join(sorted(ids)[:3])}{', …' if len(ids) > 3 else ''}: stop them first, or use force"
            )

    async def _drop_topic(self, topic: str, targets: Iterable[BrokerState]) -> None:
        await self._each(
            targets,
            f"delete topic {topic!r}",
            lambda peer: admin_api.delete_topic(peer, topic, timeout_ms=self._timeout_ms),
        )
        self._routes.forget(topic)
        await self._routes.ask_all(lambda peer: admin_api.delete_topic_route(peer, topic, timeout_ms=self._timeout_ms))
