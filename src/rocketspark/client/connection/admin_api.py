"""Calls of operators on one broker or NameServer: topics, clusters, groups, the quarantine. Rule: as in client_api."""

from __future__ import annotations

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.admin import QuarantinedHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.metadata import RequestMode, RequestModeTable
from rocketspark.transport.peer import Peer


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
    """Remove a topic from the NameServer's routes."""
    reply = await namesrv.request(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.TopicHeader(topic=topic), timeout_ms=timeout_ms
    )
    reply.raise_for_code(f"delete topic {topic!r} at the NameServer")


async def groups_of_topic(broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> list[str]:
    """Return groups that subscribe to the topic, or have offsets there, on this broker."""
    header = headers.TopicHeader(topic=topic)
    reply = await broker.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"groups of topic {topic!r}")
    return java_json.decode(reply.body, bodies.GroupList).group_list


async def create_topic(
    broker: Peer,
    topic: str,
    *,
    read_queue_count: int,
    write_queue_count: int,
    perm: int = 6,
    order: bool = False,
    topic_sys_flag: int = 0,
    attributes: str = "",
    filter_type: str = "SINGLE_TAG",
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Create a topic on one broker, or write over what it is there; only attributes are changes.

    `perm`: 4 read + 2 write; `topic_sys_flag`: 1 unit + 2 has unit subscriptions; `attributes`: "+name=value,-name".
    """
    header = headers.CreateTopicHeader(
        topic=topic,
        read_queue_count=read_queue_count,
        write_queue_count=write_queue_count,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
        order=order,
        filter_type=filter_type,
        attributes=attributes,
        force=False,
    )
    reply = await broker.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"create topic {topic!r}")


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
    """Have a broker handle a message of its quarantine once more, or forget it."""
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


async def group_config(broker: Peer, group: str, *, timeout_ms: float = TIMEOUT_MS) -> bodies.GroupConfig | None:
    """Return a group's settings on one broker, None if it is unknown there; some brokers make it by the question."""
    header = headers.GroupHeader(group=group)
    reply = await broker.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return None
    reply.raise_for_code(f"settings of group {group!r}")
    return java_json.decode(reply.body, bodies.GroupConfig)


async def put_group(broker: Peer, config: bodies.GroupConfig, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Create a group on one broker, or change it. `attributes` are changes: "+name": value, "-name": ""."""
    body = bodies.encode(config)
    reply = await broker.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"settings of group {config.group_name!r}")


async def set_request_mode(broker: Peer, mode: RequestMode, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Say on one broker how a group is given a topic's messages."""
    body = bodies.encode(mode)
    reply = await broker.request(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"request mode of group {mode.consumer_group!r}")


async def request_modes(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, dict[str, RequestMode]]:
    """Return how groups are given messages on one broker, by topic and group; nothing where a broker does not tell."""
    reply = await broker.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return {}
    reply.raise_for_code("request modes")
    return java_json.decode(reply.body, RequestModeTable).message_request_mode_map
