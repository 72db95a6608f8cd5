"""Tables as the brokers of one name ask each other for them, and tables of offsets by queue. Rule: what comes is
checked here, before a table takes it.

A missing version is None, which a peer of today never sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from rocketspark.errors import ProtocolError
from rocketspark.model import MessageQueue
from rocketspark.model.text import INT_MAX, LONG_MAX, shown
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import Body, DataVersion, GroupConfig, Quarantined, QueueBody, TopicConfig
from rocketspark.protocol.json.static_topics import MappingDetail
from rocketspark.protocol.timers import TimerCount, TimerCounts

T = TypeVar("T")

# RocketMQ's limits are 127 and 255; what an older broker once took is taken.
NAME_LENGTH_MAX = 255
QUEUES_MAX = 65_536
# Of a queue that was begun anew a slave makes a file up to there.
QUEUE_END_MAX = LONG_MAX // 64
POLICY_LENGTH_MAX = 4096
# The layout of BrokerState: another one is not read.
STATE_LAYOUT = 1


class TopicPage(Body):
    """Reply to GET_ALL_TOPIC_CONFIG (21): some topics, and the version of the whole table."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion | None = None
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, MappingDetail] | None = None


class GroupPage(Body):
    """Reply to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): some groups, and the version of the whole table."""

    subscription_group_table: dict[str, GroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] | None = None
    data_version: DataVersion | None = None


class PeerOffsets(Body):
    """Reply to GET_ALL_CONSUMER_OFFSET (43): "topic@group" to queue id to offset.

    `readers_anew`, of our brokers alone: of queues that the group had read before the topic was deleted, the offset at
    which it begins in the new topic; by "topic@group" and queue id.
    """

    offset_table: dict[str, dict[int, int]]
    data_version: DataVersion | None = None
    readers_anew: dict[str, dict[int, int]] = {}


class PeerDelayOffsets(Body):
    """Reply to GET_ALL_DELAY_OFFSET (45): delay level to the next queue offset."""

    offset_table: dict[int, int]
    data_version: DataVersion | None = None


class PeerTimerCounts(TimerCounts, rename={"data_version": "dataVersion", "counts": "timingCount"}):
    """Reply to GET_TIMER_METRICS (61): the counts of waiting timer messages by topic."""

    data_version: DataVersion
    counts: dict[str, TimerCount]


class RequestMode(Body):
    """Body of SET_MESSAGE_REQUEST_MODE (401): how a group is given a topic's messages."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: int = 0


class RequestModeTable(Body):
    """messageRequestMode.json and the reply to GET_ALL_MESSAGE_REQUEST_MODE (402): modes by topic and group."""

    message_request_mode_map: dict[str, dict[str, RequestMode]]


class ResetOffset(Body):
    """An offset that an operator set and the consumer has not been told yet."""

    group: str
    topic: str
    queue_id: int
    offset: int


class BrokerState(Body):
    """Reply to GET_BROKER_STATE: what only our brokers keep.

    `deleted_topics`: the end of the log at each topic's deletion; `epoch`: the epoch that the broker is in, 0 without a
    controller. `queue_ends`, only if asked for: by topic and queue id, the next offset of queues that have no messages
    any more; `ends_until`: the last topic that was looked at, None if that was the last of all.
    """

    layout: int = 0
    quarantine: list[Quarantined] = []
    resets: list[ResetOffset] = []
    deleted_topics: dict[str, int] = {}
    epoch: int | None = None
    queue_ends: dict[str, dict[int, int]] = {}
    ends_until: str | None = None


def decode(body: bytes, kind: type[T]) -> T:
    """Decode another broker's table into `kind`, and check it. Raises ProtocolError for values that no broker has."""
    table = java_json.decode(body, kind)
    if isinstance(table, TopicPage):
        _check_topics(table.topic_config_table)
    elif isinstance(table, GroupPage):
        _check_groups(table)
    elif isinstance(table, PeerOffsets):
        for key, queues in table.offset_table.items():
            _check_name(key, length_max=2 * NAME_LENGTH_MAX + 1)
            # RocketMQ takes a commit of any queue.
            _check_numbers(key, queues.keys(), high=INT_MAX)
            _check_numbers(key, queues.values(), low=-1)
        for key, firsts in table.readers_anew.items():
            _check_name(key, length_max=2 * NAME_LENGTH_MAX + 1)
            _check_numbers(key, firsts.keys(), high=INT_MAX)
            _check_numbers(key, firsts.values(), high=0)
    elif isinstance(table, PeerDelayOffsets):
        _check_numbers("delay level", table.offset_table.keys(), low=1, high=INT_MAX)
        _check_numbers("delay level", table.offset_table.values())
    elif isinstance(table, RequestModeTable):
        for topic, modes in table.message_request_mode_map.items():
            for name in (topic, *modes):
                _check_name(name)
            _check_numbers(topic, (m.pop_share_queue_num for m in modes.values()), low=-INT_MAX - 1, high=INT_MAX)
    elif isinstance(table, PeerTimerCounts):
        for topic, count in table.counts.items():
            _check_name(topic)
            _check_numbers(topic, (count.count, count.changed_ms), low=-LONG_MAX - 1)
    elif isinstance(table, BrokerState):
        _check_state(table)
    version = getattr(table, "data_version", None)
    if version is not None:
        _check_numbers("dataVersion", (version.state_version, version.timestamp, version.counter))
    return table


def _check_topics(topics: Mapping[str, TopicConfig]) -> None:
    for name, config in topics.items():
        _check_name(name)
        if config.topic_name != name:
            raise ProtocolError(f"topic {shown(name)!r} comes under another name, {shown(config.topic_name)!r}")
        _check_numbers(name, (config.read_queue_nums, config.write_queue_nums), high=QUEUES_MAX)
        _check_numbers(name, (config.perm, config.topic_sys_flag), high=INT_MAX)


def _check_groups(page: GroupPage) -> None:
    for name, config in page.subscription_group_table.items():
        _check_name(name)
        if config.group_name != name:
            raise ProtocolError(f"group {shown(name)!r} comes under another name, {shown(config.group_name)!r}")
        _check_numbers(name, (config.retry_queue_nums,), high=QUEUES_MAX)
        others = (config.retry_max_times, config.broker_id, config.which_broker_when_consume_slowly)
        _check_numbers(name, (*others, config.group_sys_flag, config.consume_timeout_minute), low=-INT_MAX - 1)
        if len(str(config.group_retry_policy)) > POLICY_LENGTH_MAX:
            raise ProtocolError(f"group {shown(name)!r} has a retry policy of over {POLICY_LENGTH_MAX} characters")
    for group, topics in (page.forbidden_table or {}).items():
        for name in (group, *topics):
            _check_name(name)
        _check_numbers(group, topics.values(), high=INT_MAX)


def _check_state(state: BrokerState) -> None:
    if state.layout != STATE_LAYOUT:
        raise ProtocolError(f"its own state has layout {state.layout}, {STATE_LAYOUT} is known: upgrade this broker")
    for entry in state.quarantine:
        _check_name(entry.topic)
        _check_numbers(entry.name, (entry.physical_offset, entry.first_seen_ms, entry.attempts))
        _check_numbers(entry.name, (entry.queue_id, entry.queue_offset), low=-1)
    for reset in state.resets:
        _check_name(reset.topic)
        _check_name(reset.group)
        _check_numbers(reset.topic, (reset.queue_id,), high=QUEUES_MAX - 1)
        _check_numbers(reset.topic, (reset.offset,))
    for topic in state.deleted_topics:
        _check_name(topic)
    _check_numbers("deleted topic", state.deleted_topics.values())
    for topic, ends in state.queue_ends.items():
        _check_name(topic)
        _check_numbers(topic, ends.keys(), high=QUEUES_MAX - 1)
        _check_numbers(topic, ends.values(), low=1, high=QUEUE_END_MAX)


def _check_name(name: str, *, length_max: int = NAME_LENGTH_MAX) -> None:
    if not name or len(name) > length_max or not name.isprintable():
        raise ProtocolError(f"{shown(name)!r} is no name of a topic or group")


def _check_numbers(what: str, numbers: Iterable[int], *, low: int = 0, high: int = LONG_MAX) -> None:
    for number in numbers:
        if not low <= number <= high:
            raise ProtocolError(f"{shown(what)}: {number} is not between {low} and {high}")


def encode_version(version: DataVersion | None) -> str:
    """Return a version as the requests for pages hold it; empty for None."""
    return "" if version is None else msgspec.json.encode(version, order="sorted").decode()


def decode_version(text: str | None) -> DataVersion | None:
    """Return the version in a request for a page; None for a text that is none."""
    try:
        return java_json.decode_request((text or "").encode(), DataVersion)
    except ProtocolError:
        return None


def is_older(one: DataVersion, other: DataVersion) -> bool:
    """Tell whether a table is older than another (rule: DataVersion.compare, 5.x)."""
    return (one.state_version, one.counter, one.timestamp) < (
        other.state_version,
        other.counter,
        other.timestamp,
    )


class MemberGroupOfName(Body):
    """The addresses of the live brokers of one name, by id."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}


class MemberGroupReply(Body):
    """Reply to GET_BROKER_MEMBER_GROUP (901): the live brokers of a name; without addresses if the name is not
    known.
    """

    broker_member_group: MemberGroupOfName = msgspec.field(default_factory=MemberGroupOfName)


class OffsetBody(QueueBody):
    """An offset with its queue."""

    offset: int


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the text of an offsets file: RocketMQ's JSON, with queues as keys."""
    rows = [(QueueBody.of(queue), offset) for queue, offset in sorted(offsets.items())]
    return b'{"offsetTable":%b}' % java_json.encode_object_keys(rows)


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Return the offsets in the text of an offsets file, or in the body of RESET_CONSUMER_CLIENT_OFFSET.

    The C++ client's form of that body is a list, which is read too. Raises ProtocolError.
    """
    table = java_json.decode(data, dict[str, dict[str, int] | list[OffsetBody]]).get("offsetTable", {})
    if isinstance(table, list):
        return {row.queue(): row.offset for row in table}
    return {java_json.decode(key.encode(), QueueBody).queue(): offset for key, offset in table.items()}
