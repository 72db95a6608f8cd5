"""Calls of operators on one broker or NameServer: topics, clusters, groups, the quarantine, users and their rules.

Rule: as in client_api.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from rocketspark.client.connection import broker_api, group_api
from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.errors import ServerError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.admin import (
    ListAclHeader,
    ListUsersHeader,
    QuarantinedHeader,
    ResumeCheckHeader,
    SubjectHeader,
    UserHeader,
)
from rocketspark.protocol.headers.static_topics import TopicConfigHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.metadata import PeerDelayOffsets, PeerTimerCounts, RequestMode, RequestModeTable
from rocketspark.protocol.json.operator_bodies import AclInfo, DirectConsumption, UserInfo
from rocketspark.protocol.json.static_topics import TopicConfigAndMapping
from rocketspark.protocol.timers import TimerCount
from rocketspark.transport.peer import Peer

T = TypeVar("T")


async def cluster_info(namesrv: Peer, *, timeout_ms: float = TIMEOUT_MS) -> bodies.ClusterInfo:
    """Return every cluster and broker that the NameServer knows."""
    reply = await namesrv.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=timeout_ms)
    reply.raise_for_code("cluster info")
    return java_json.decode(reply.body, bodies.ClusterInfo)


async def topic_list(namesrv: Peer, *, timeout_ms: float = TIMEOUT_MS) -> list[str]:
    """Return names of all topics, unsorted."""
    reply = await namesrv.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout_ms=timeout_ms)
    reply.raise_for_code("topic list")
    return java_json.decode(reply.body, bodies.TopicList).topic_list


async def delete_topic_route(namesrv: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Remove a topic from the NameServer's routes.

    One that lets this user change nothing has forgotten it already if the topic's brokers, which deleted it, told it.
    """
    reply = await namesrv.request(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.TopicHeader(topic=topic), timeout_ms=timeout_ms
    )
    if reply.code == ResponseCode.NO_PERMISSION:
        asked = headers.RouteHeader(topic=topic)
        route = await namesrv.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, timeout_ms=timeout_ms)
        if route.code == ResponseCode.TOPIC_NOT_EXIST:
            return
    reply.raise_for_code(f"delete topic {topic!r} at the NameServer")


async def groups_of_topic(broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> list[str]:
    """Return groups that subscribe to the topic, or have offsets there, on this broker."""
    header = headers.TopicHeader(topic=topic)
    reply = await broker.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"groups of topic {topic!r}")
    return java_json.decode(reply.body, bodies.GroupList).group_list


async def create_topic(
    broker: Peer, config: bodies.TopicConfig, *, attributes: str = "", timeout_ms: float = TIMEOUT_MS
) -> None:
    """Create a topic on one broker, or replace all settings of one that exists there, except its attributes.

    `attributes`: the changes to them, as "+name=value,-name".
    """
    header = headers.CreateTopicHeader(
        topic=config.topic_name,
        read_queue_count=config.read_queue_nums,
        write_queue_count=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        filter_type=config.topic_filter_type,
        attributes=attributes,
        force=False,
    )
    reply = await broker.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"create topic {config.topic_name!r}")


async def delete_topic(broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Remove a topic and its messages from one broker."""
    reply = await broker.request(
        RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=topic), timeout_ms=timeout_ms
    )
    reply.raise_for_code(f"delete topic {topic!r}")


async def list_quarantine(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> list[bodies.Quarantined]:
    """List a broker's quarantine; nothing for a broker that has none, as RocketMQ's."""
    reply = await broker.request(RequestCode.LIST_QUARANTINE, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return []
    reply.raise_for_code("list what is set aside")
    return java_json.decode(reply.body, bodies.QuarantineTable).entries


async def end_quarantine(broker: Peer, name: str, *, retry: bool, timeout_ms: float = TIMEOUT_MS) -> None:
    """End the quarantine of the message `name` on a broker: with `retry` the broker handles it once more, else forgets
    it.
    """
    code = RequestCode.RETRY_QUARANTINED if retry else RequestCode.DROP_QUARANTINED
    reply = await broker.request(code, QuarantinedHeader(name=name), timeout_ms=timeout_ms)
    reply.raise_for_code(f"{'retry' if retry else 'drop'} {name!r}")


async def topic_config(broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> bodies.TopicConfig | None:
    """Return a topic's settings on one broker, None if it is unknown there."""
    reply = await broker.request(RequestCode.GET_TOPIC_CONFIG, headers.TopicHeader(topic=topic), timeout_ms=timeout_ms)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    reply.raise_for_code(f"settings of topic {topic!r}")
    return java_json.decode(reply.body, bodies.TopicConfig)


async def topic_settings(broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> bodies.TopicConfig | None:
    """As `topic_config`, also from brokers before 5.0, which tell the settings of all topics alone."""
    one = topic_config(broker, topic, timeout_ms=timeout_ms)
    return await _or_of_all(one, lambda: broker_api.topics(broker, timeout_ms=timeout_ms), topic)


async def static_topic_config(
    broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS
) -> TopicConfigAndMapping | None:
    """Return a topic's settings on one broker with its mapping as a static topic; None if it is unknown there."""
    header = TopicConfigHeader(topic=topic, lo=True)
    reply = await broker.request(RequestCode.GET_TOPIC_CONFIG, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    reply.raise_for_code(f"settings of topic {topic!r}")
    return java_json.decode(reply.body, TopicConfigAndMapping)


async def create_static_topic(broker: Peer, wanted: TopicConfigAndMapping, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Create a static topic on one broker, or replace its settings and its mapping there by a later one."""
    header = headers.CreateTopicHeader(
        topic=wanted.topic_name,
        read_queue_count=wanted.read_queue_nums,
        write_queue_count=wanted.write_queue_nums,
        perm=wanted.perm,
        topic_sys_flag=wanted.topic_sys_flag,
        filter_type=wanted.topic_filter_type,
        force=False,
    )
    reply = await broker.request(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, bodies.encode(wanted.mapping_detail), timeout_ms=timeout_ms
    )
    reply.raise_for_code(f"create static topic {wanted.topic_name!r}")


async def group_config(broker: Peer, group: str, *, timeout_ms: float = TIMEOUT_MS) -> bodies.GroupConfig | None:
    """Return a group's settings on one broker, None if it is unknown there. Some brokers create a group that they are
    asked for.
    """
    header = headers.GroupHeader(group=group)
    reply = await broker.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return None
    reply.raise_for_code(f"settings of group {group!r}")
    return java_json.decode(reply.body, bodies.GroupConfig)


async def group_settings(broker: Peer, group: str, *, timeout_ms: float = TIMEOUT_MS) -> bodies.GroupConfig | None:
    """As `group_config`, also from brokers before 5.0, which tell the settings of all groups alone."""
    one = group_config(broker, group, timeout_ms=timeout_ms)
    return await _or_of_all(one, lambda: group_api.groups(broker, timeout_ms=timeout_ms), group)


async def _or_of_all(one: Awaitable[T | None], all_of: Callable[[], Awaitable[dict[str, T]]], name: str) -> T | None:
    try:
        return await one
    except ServerError as e:
        if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    return (await all_of()).get(name)


async def put_group(broker: Peer, config: bodies.GroupConfig, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Create a group on one broker, or change it. `attributes` are changes: "+name": value, "-name": ""."""
    body = bodies.encode(config)
    reply = await broker.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"settings of group {config.group_name!r}")


async def set_request_mode(broker: Peer, mode: RequestMode, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Set on one broker whether a group pulls or pops a topic's messages."""
    body = bodies.encode(mode)
    reply = await broker.request(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"request mode of group {mode.consumer_group!r}")


async def request_modes(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, dict[str, RequestMode]]:
    """Return, by topic and group, whether messages are pulled or popped on one broker; empty if the broker does not
    tell.
    """
    reply = await broker.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return {}
    reply.raise_for_code("request modes")
    return java_json.decode(reply.body, RequestModeTable).message_request_mode_map


async def create_user(broker: Peer, user: UserInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Create a user; by default a Normal one that is enabled."""
    await _put_user(broker, RequestCode.AUTH_CREATE_USER, user, "create", timeout_ms)


async def update_user(broker: Peer, user: UserInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change a user; what is None in `user` keeps its value."""
    await _put_user(broker, RequestCode.AUTH_UPDATE_USER, user, "update", timeout_ms)


async def _put_user(broker: Peer, code: int, user: UserInfo, doing: str, timeout_ms: float) -> None:
    header = UserHeader(username=user.username)
    reply = await broker.request(code, header, msgspec.json.encode(user), timeout_ms=timeout_ms)
    reply.raise_for_code(f"{doing} user {user.username!r}")


async def delete_user(broker: Peer, username: str, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Remove a user and his rules. A user that does not exist is no error."""
    header = UserHeader(username=username)
    reply = await broker.request(RequestCode.AUTH_DELETE_USER, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"delete user {username!r}")


async def get_user(broker: Peer, username: str, *, timeout_ms: float = TIMEOUT_MS) -> UserInfo | None:
    """Return a user; None if the broker has none of that name."""
    header = UserHeader(username=username)
    reply = await broker.request(RequestCode.AUTH_GET_USER, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"get user {username!r}")
    return java_json.decode(reply.body, UserInfo) if reply.body else None


async def list_users(broker: Peer, part: str = "", *, timeout_ms: float = TIMEOUT_MS) -> list[UserInfo]:
    """Return the users whose names hold `part`."""
    header = ListUsersHeader(filter=part or None)
    reply = await broker.request(RequestCode.AUTH_LIST_USER, header, timeout_ms=timeout_ms)
    reply.raise_for_code("list users")
    return java_json.decode(reply.body, list[UserInfo]) if reply.body else []


async def create_acl(broker: Peer, acl: AclInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Add rules that allow or deny a subject something. His other rules stay; one for the same resource is replaced."""
    await _put_acl(broker, RequestCode.AUTH_CREATE_ACL, acl, "create", timeout_ms)


async def update_acl(broker: Peer, acl: AclInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change the rules of a subject for the resources that `acl` names."""
    await _put_acl(broker, RequestCode.AUTH_UPDATE_ACL, acl, "update", timeout_ms)


async def _put_acl(broker: Peer, code: int, acl: AclInfo, doing: str, timeout_ms: float) -> None:
    header = SubjectHeader(subject=acl.subject)
    reply = await broker.request(code, header, msgspec.json.encode(acl), timeout_ms=timeout_ms)
    reply.raise_for_code(f"{doing} rules of {acl.subject!r}")


async def delete_acl(
    broker: Peer,
    subject: str,
    *,
    policy_type: str | None = None,
    resource: str | None = None,
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Remove a subject's rule for a resource; without `resource` all of its rules."""
    header = SubjectHeader(subject=subject, policy_type=policy_type, resource=resource)
    reply = await broker.request(RequestCode.AUTH_DELETE_ACL, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"delete rules of {subject!r}")


async def get_acl(broker: Peer, subject: str, *, timeout_ms: float = TIMEOUT_MS) -> AclInfo | None:
    """Return a subject's rules, None if it has none."""
    header = SubjectHeader(subject=subject)
    reply = await broker.request(RequestCode.AUTH_GET_ACL, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"get rules of {subject!r}")
    return java_json.decode(reply.body, AclInfo) if reply.body else None


async def list_acls(
    broker: Peer, subject_part: str = "", resource_part: str = "", *, timeout_ms: float = TIMEOUT_MS
) -> list[AclInfo]:
    """Return the rules whose subject contains `subject_part` and whose resource contains `resource_part`."""
    header = ListAclHeader(subject_filter=subject_part or None, resource_filter=resource_part or None)
    reply = await broker.request(RequestCode.AUTH_LIST_ACL, header, timeout_ms=timeout_ms)
    reply.raise_for_code("list rules")
    return java_json.decode(reply.body, list[AclInfo]) if reply.body else []


async def consume_directly(
    broker: Peer, group: str, client_id: str, topic: str, offset_message_id: str, *, timeout_ms: float = TIMEOUT_MS
) -> DirectConsumption:
    """Have a client that is connected to a broker handle a message of this broker's at once."""
    header = headers.ConsumeDirectlyHeader(group=group, client_id=client_id, message_id=offset_message_id, topic=topic)
    reply = await broker.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"message {offset_message_id} given to {client_id!r}")
    return java_json.decode(reply.body, DirectConsumption)


async def resume_check(broker: Peer, topic: str, offset_message_id: str, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Have a broker ask the producers of a half message of its own again how the transaction ended."""
    header = ResumeCheckHeader(topic=topic, message_id=offset_message_id)
    reply = await broker.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"check of half message {offset_message_id}")


async def delay_offsets(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[int, int]:
    """Return by delay level the offset in its queue up to which a broker has delivered."""
    reply = await broker.request(RequestCode.GET_ALL_DELAY_OFFSET, timeout_ms=timeout_ms)
    reply.raise_for_code("progress of delay levels")
    return java_json.decode(reply.body, PeerDelayOffsets).offset_table


async def timer_counts(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, TimerCount] | None:
    """Return how many timer messages wait on a broker, by topic; None if the broker knows no timer messages."""
    reply = await broker.request(RequestCode.GET_TIMER_METRICS, timeout_ms=timeout_ms)
    unknown = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR)
    if reply.code in unknown and not reply.no_permission:
        return None
    reply.raise_for_code("counts of timer messages")
    return java_json.decode(reply.body, PeerTimerCounts).counts
