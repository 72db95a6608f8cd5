"""Calls of operators on one broker about consumer groups, their offsets, and connected clients.

Rule: as in client_api.
"""

from __future__ import annotations

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.model import MessageQueue
from rocketspark.protocol import headers, light_queues
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.topics import KnownStateHeader
from rocketspark.protocol.json import bodies, group_bodies, java_json, metadata
from rocketspark.protocol.json.group_bodies import (
    GroupConnections,
    GroupSums,
    ProducerConnection,
    QueueStats,
    RunningInfo,
)
from rocketspark.transport.peer import Peer


async def groups(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, bodies.GroupConfig]:
    """Return the settings of all groups that a broker knows, its own groups too."""
    reply = await broker.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_ms=timeout_ms)
    reply.raise_for_code("list of groups")
    return java_json.decode(reply.body, metadata.GroupPage).subscription_group_table


async def delete_group(broker: Peer, group: str, *, offsets: bool, timeout_ms: float = TIMEOUT_MS) -> None:
    """Remove a group's settings from one broker, and its offsets with `offsets`. One that is not there is no error."""
    header = headers.DeleteGroupHeader(group=group, clean_offsets=offsets)
    reply = await broker.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"delete group {group!r}")


# -- connections --------------------------------------------------------------------------------------------------


async def connections(broker: Peer, group: str, *, timeout_ms: float = TIMEOUT_MS) -> GroupConnections | None:
    """Return a consumer group's members that are connected with one broker, and what it subscribes to; None if there
    are none.
    """
    header = headers.ConsumerListHeader(group=group)
    reply = await broker.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return None
    reply.raise_for_code(f"members of group {group!r}")
    return java_json.decode(reply.body, GroupConnections)


async def producers(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, list[ProducerConnection]]:
    """Return the producers that are connected with one broker, by group; none if the broker does not tell, as before
    RocketMQ 5.
    """
    reply = await broker.request(RequestCode.GET_ALL_PRODUCER_INFO, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return {}
    reply.raise_for_code("list of producers")
    return java_json.decode(reply.body, group_bodies.ProducerTable).data


async def running_info(
    broker: Peer, group: str, client_id: str, *, stacks: bool = False, timeout_ms: float = TIMEOUT_MS
) -> RunningInfo:
    """Have a broker ask a connected consumer what it is doing. `stacks`: with those of its threads."""
    header = headers.RunningInfoHeader(group=group, client_id=client_id, stacks=stacks)
    reply = await broker.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"state of client {client_id!r}")
    return java_json.decode(reply.body, RunningInfo)


# -- progress and offsets -----------------------------------------------------------------------------------------


async def consume_stats(
    broker: Peer, group: str, topic: str | None = None, *, timeout_ms: float = TIMEOUT_MS
) -> tuple[float, dict[MessageQueue, QueueStats]]:
    """Return how many messages a second a group consumes on one broker, and its progress by queue: of one topic, or of
    all in which it has offsets.
    """
    header = headers.ConsumerStatsHeader(group=group, topic=topic)
    reply = await broker.request(RequestCode.GET_CONSUME_STATS, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"progress of group {group!r}")
    stats = java_json.decode(reply.body, group_bodies.ConsumeStats)
    return stats.consume_tps, group_bodies.by_queue(stats.offset_table)


async def group_states(
    broker: Peer, names: list[str], *, timeout_ms: float = TIMEOUT_MS
) -> dict[str, GroupSums] | None:
    """Return members and lag of up to 100 groups on one broker; None of one of RocketMQ's, which tells them group by
    group.
    """
    body = bodies.encode(group_bodies.GroupNames(groups=names))
    reply = await broker.request(RequestCode.GET_GROUP_STATES, None, body, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    reply.raise_for_code("states of groups")
    return java_json.decode(reply.body, group_bodies.GroupStates).groups


async def delays(
    broker: Peer, group: str, topic: str, *, timeout_ms: float = TIMEOUT_MS
) -> dict[MessageQueue, int] | None:
    """Return by queue how long the oldest message that a group has not consumed is stored already, in ms, 0 if there is
    none; None for a topic that is not on this broker.
    """
    header = headers.GroupTopicHeader(group=group, topic=topic)
    reply = await broker.request(RequestCode.QUERY_CONSUME_TIME_SPAN, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    reply.raise_for_code(f"delay of group {group!r} in topic {topic!r}")
    spans = java_json.decode(reply.body, group_bodies.TimeSpans).consume_time_span_set
    return {span.message_queue.queue(): max(0, span.delay_time) for span in spans}


async def all_offsets(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> list[tuple[str, str, int, int]]:
    """Return group, topic, queue id and committed offset of every offset that a broker keeps."""
    reply = await broker.request(RequestCode.GET_ALL_CONSUMER_OFFSET, KnownStateHeader(), timeout_ms=timeout_ms)
    reply.raise_for_code("all offsets")
    found = []
    for key, offsets in metadata.decode(reply.body, metadata.PeerOffsets).offset_table.items():
        topic, group = light_queues.topic_and_group(key)
        if group:
            found += [(group, topic, queue_id, offset) for queue_id, offset in offsets.items() if offset >= 0]
    return found


async def resets_here(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> bool:
    """Tell whether a broker sets offsets itself (useServerSideResetOffset), instead of having a group's members do
    it.
    """
    reply = await broker.request(RequestCode.GET_BROKER_CONFIG, timeout_ms=timeout_ms)
    reply.raise_for_code("settings of the broker")
    lines = bytes(reply.body).decode("utf-8", "replace").splitlines()
    return "useServerSideResetOffset=true" in (line.strip() for line in lines)


async def reset_topic(
    broker: Peer, group: str, topic: str, time_ms: int, *, timeout_ms: float = TIMEOUT_MS
) -> dict[MessageQueue, int]:
    """Set a group's offsets in all queues of a topic on one broker to the first message stored at or after `time_ms`,
    to the end if that is -1; return them.
    """
    header = headers.ResetOffsetHeader(group=group, topic=topic, time_ms=time_ms, force=True)
    return await _reset(broker, header, timeout_ms)


async def reset_queue(
    broker: Peer, group: str, queue: MessageQueue, offset: int, *, timeout_ms: float = TIMEOUT_MS
) -> None:
    """Set a group's offset in a queue. Only for a broker that `resets_here`: others reset the whole topic then."""
    header = headers.ResetOffsetHeader(
        group=group, topic=queue.topic, queue_id=queue.queue_id, offset=offset, time_ms=-1, force=True
    )
    await _reset(broker, header, timeout_ms)


async def _reset(broker: Peer, header: headers.ResetOffsetHeader, timeout_ms: float) -> dict[MessageQueue, int]:
    reply = await broker.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"reset of group {header.group!r} in topic {header.topic!r}")
    return metadata.decode_offsets(reply.body)
