"""Calls of operators about one broker or controller itself: its state, settings, counters, replication, all its topics
and groups.

Rule: as in client_api.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.errors import ConfigError, ProtocolError
from rocketspark.model import typed_json
from rocketspark.model.conf_lines import parse_properties
from rocketspark.model.text import shown
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.admin import BrokerConsumeStatsHeader, StatsHeader
from rocketspark.protocol.headers.controller import ControllerMetadataReply
from rocketspark.protocol.headers.topics import TopicPageHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import Body, KvTable, QueueBody, TopicConfig, TopicConfigTable
from rocketspark.protocol.json.group_bodies import ConsumeStats
from rocketspark.protocol.json.operator_bodies import ReplicasInfo, ReplicasOfSet
from rocketspark.transport.peer import Peer


class Window(Body):
    """A counter in one window of time: the sum, the sum a second, and the mean of what was added at a time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class Counter(Body):
    """One counter of a broker, in the last minute, hour and day."""

    stats_minute: Window = msgspec.field(default_factory=Window)
    stats_hour: Window = msgspec.field(default_factory=Window)
    stats_day: Window = msgspec.field(default_factory=Window)


class SlaveLink(Body):
    """A slave's connection, as its master tells it: where it copies from, and how far it is."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class MasterLink(Body):
    """A slave's connection to its master, as the slave tells it."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


class HaStatus(Body):
    """How replication stands on a broker."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[SlaveLink] = []
    ha_client_runtime_info: MasterLink | None = None


class Epoch(Body):
    """A part of the log that was written in one epoch; `end_offset` of the last one is not known: a large number."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0


class EpochCache(Body):
    """The epochs of a broker under a controller, oldest first."""

    broker_name: str = ""
    broker_id: int = 0
    epoch_list: list[Epoch] = []
    max_offset: int = 0


class QueueBounds(Body):
    """The offsets of a queue; `last_update_timestamp`: when its last message was stored, 0 without one."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(Body):
    """A topic's queues on one broker, and its sends a second there."""

    offset_table: dict[str, QueueBounds] = {}
    topic_put_tps: float = 0.0


class BrokerLag(Body):
    """How far all groups are on one broker."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []


def queue_of(key: str) -> QueueBody:
    """Return the queue that is a key of a table by queues. Raises ProtocolError."""
    try:
        return typed_json.decode(key.encode(), QueueBody)
    except (msgspec.DecodeError, UnicodeEncodeError) as e:
        raise ProtocolError(f"{shown(key)!r} is no queue: {e}") from e


async def runtime_info(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, str]:
    """Return a broker's state and figures, by RocketMQ's names."""
    reply = await broker.request(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=timeout_ms)
    reply.raise_for_code("state of the broker")
    return java_json.decode(reply.body, KvTable).table


async def config(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, str]:
    """Return a broker's settings."""
    reply = await broker.request(RequestCode.GET_BROKER_CONFIG, timeout_ms=timeout_ms)
    reply.raise_for_code("settings of the broker")
    try:
        return parse_properties(reply.body.decode("utf-8", "replace"), "the broker's answer")
    except ConfigError as e:
        raise ProtocolError(str(e)) from e


async def put_config(broker: Peer, values: dict[str, str], *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change settings of a broker that runs."""
    body = "".join(f"{key}={value}\n" for key, value in values.items()).encode()
    reply = await broker.request(RequestCode.UPDATE_BROKER_CONFIG, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"change {', '.join(values)}")


async def counter(broker: Peer, name: str, key: str, *, timeout_ms: float = TIMEOUT_MS) -> Counter | None:
    """Return a counter, such as TOPIC_PUT_NUMS of a topic; None if it never counted."""
    reply = await broker.request(
        RequestCode.VIEW_BROKER_STATS_DATA, StatsHeader(name=name, key=key), timeout_ms=timeout_ms
    )
    if reply.code == ResponseCode.SYSTEM_ERROR and "not exist" in (reply.remark or ""):
        return None
    reply.raise_for_code(f"counter {name} of {key!r}")
    return java_json.decode(reply.body, Counter)


async def ha_status(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> HaStatus:
    """Return how replication stands on a broker."""
    reply = await broker.request(RequestCode.GET_BROKER_HA_STATUS, timeout_ms=timeout_ms)
    reply.raise_for_code("replication of the broker")
    return java_json.decode(reply.body, HaStatus)


async def epochs(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> EpochCache | None:
    """Return the epochs of a broker's log; None for a broker without a controller."""
    reply = await broker.request(RequestCode.GET_BROKER_EPOCH_CACHE, timeout_ms=timeout_ms)
    unknown = (ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    if reply.code in unknown and not reply.no_permission:
        return None
    reply.raise_for_code("epochs of the broker")
    return java_json.decode(reply.body, EpochCache)


async def topic_stats(broker: Peer, topic: str, *, timeout_ms: float = TIMEOUT_MS) -> TopicStatsTable:
    """Return the offsets of a topic's queues on a broker, and its rate."""
    header = headers.TopicHeader(topic=topic)
    reply = await broker.request(RequestCode.GET_TOPIC_STATS_INFO, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"queues of topic {topic!r}")
    return java_json.decode(reply.body, TopicStatsTable)


async def topics(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, TopicConfig]:
    """Return the settings of all topics on a broker, by name."""
    reply = await broker.request(RequestCode.GET_ALL_TOPIC_CONFIG, TopicPageHeader(), timeout_ms=timeout_ms)
    reply.raise_for_code("topics of the broker")
    return java_json.decode(reply.body, TopicConfigTable).topic_config_table


async def lags(broker: Peer, *, timeout_ms: float = TIMEOUT_MS) -> BrokerLag:
    """Return how far all groups are in all topics of a broker."""
    header = BrokerConsumeStatsHeader(order=False)
    reply = await broker.request(RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms)
    reply.raise_for_code("progress of all groups")
    return java_json.decode(reply.body, BrokerLag)


async def controller_leader(controller: Peer, *, timeout_ms: float = TIMEOUT_MS) -> str:
    """Return the address of the controller that leads; "" while none does."""
    reply = await controller.request(RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_ms=timeout_ms)
    found: Any = reply.raise_for_code("who leads the controllers").header(ControllerMetadataReply)
    return found.controller_leader_address or ""


async def replica_sets(
    controller: Peer, names: list[str], *, timeout_ms: float = TIMEOUT_MS
) -> dict[str, ReplicasOfSet]:
    """Return the replicas of these broker names, as the controller that leads knows them."""
    body = bodies.encode(names)
    reply = await controller.request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code("replicas of the brokers")
    return java_json.decode(reply.body, ReplicasInfo).replicas_info_table
