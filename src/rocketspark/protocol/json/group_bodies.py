"""JSON bodies of what brokers and clients tell operators about groups and clients: connections, progress, and what a
client is doing. Rule: what a server or client of another version leaves out has a value that says so.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rocketspark.model import MessageQueue
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import Body, QueueBody, SubscriptionBody

T = TypeVar("T")


class ConnectionBody(Body):
    """A client's connection with a broker. `version`: a number of RocketMQ's list of versions."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


class GroupConnections(Body):
    """Reply to GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: list[ConnectionBody] = []
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_table: dict[str, SubscriptionBody] = {}


class ProducerConnection(Body):
    """A producer's connection with a broker; `last_update_timestamp`: its last heartbeat, in ms."""

    client_id: str = ""
    language: str = ""
    last_update_timestamp: int = 0
    remote_ip: str = msgspec.field(name="remoteIP", default="")
    version: int = 0


class ProducerTable(Body):
    """Reply to GET_ALL_PRODUCER_INFO (328): the connections of each producer group."""

    data: dict[str, list[ProducerConnection]] = {}


class QueueStats(Body):
    """A group's progress in a queue; `last_timestamp`: when the last message that it consumed was stored, 0 for none;
    `pull_offset`: up to which its members have pulled.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


class ConsumeStats(Body):
    """Reply to GET_CONSUME_STATS (208), by queue as text."""

    consume_tps: float = 0.0
    offset_table: dict[str, QueueStats] = {}


class GroupNames(Body):
    """Body of GET_GROUP_STATES (7310007)."""

    groups: list[str] = []


class GroupSums(Body):
    """What a broker knows of a group: its members' connections, None for none, the messages a second that it consumes,
    and how many it has not consumed, or has fetched and not consumed.
    """

    connections: GroupConnections | None = None
    consume_tps: float = 0.0
    lag: int = 0
    in_flight: int = 0


class GroupStates(Body):
    """Reply to GET_GROUP_STATES (7310007), by group."""

    groups: dict[str, GroupSums] = {}


class TimeSpan(Body):
    """How long a queue's oldest message waits for a group, in ms: `delay_time`, not above 0 if none does."""

    message_queue: QueueBody
    delay_time: int = 0


class TimeSpans(Body):
    """Reply to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[TimeSpan] = []


class ProcessQueueBody(Body):
    """What a consumer holds of a queue; times in ms. `droped`: it no longer reads the queue."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    locked: bool = False
    droped: bool = False
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopQueueBody(Body):
    """What a consumer pops of a queue: when it last did, in ms, and how many messages it has not acknowledged."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class TopicStatus(Body):
    """A consumer's rates in a topic: messages a second, times in ms, failures of an hour."""

    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class RunningInfo(Body):
    """Reply to GET_CONSUMER_RUNNING_INFO (307); queues as text."""

    properties: dict[str, str | None] = {}
    subscription_set: list[SubscriptionBody] = []
    mq_table: dict[str, ProcessQueueBody] = {}
    mq_pop_table: dict[str, PopQueueBody] = {}
    status_table: dict[str, TopicStatus] = {}
    jstack: str | None = None


def by_queue(table: dict[str, T]) -> dict[MessageQueue, T]:
    """Return a table with its queues as values of their own, sorted. Raises ProtocolError for a key that is none."""
    pairs = ((java_json.decode(key.encode(), QueueBody).queue(), value) for key, value in table.items())
    return dict(sorted(pairs, key=lambda pair: pair[0]))
