"""Names of system topics and groups, and the rules for names. Rule: TopicValidator, 5.x."""

from __future__ import annotations

import re

from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
DEFAULT_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"

TOPIC_LENGTH_MAX = 127
GROUP_LENGTH_MAX = 255
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")

# Topics that a client may not send to.
NOT_SENDABLE = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
SYSTEM_TOPICS = NOT_SENDABLE | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRACE_TOPIC"}
# Names that 5.x keeps for itself and this broker has no topics of.
RESERVED_TOPICS = frozenset(
    {"CHECKPOINT_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"}
)
SYSTEM_PREFIX = "rmq_sys_"


def retry_topic(group: str) -> str:
    """The topic of a group's retries."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return DLQ_PREFIX + group


def is_system_topic(topic: str) -> bool:
    """True for the topics that RocketMQ keeps for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def check_topic(topic: str) -> None:
    """Raise ServerError 29 for a name no topic may have."""
    if not topic.strip():
        raise ServerError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if not _LEGAL.match(topic):
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic: {topic}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if len(topic) > TOPIC_LENGTH_MAX:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER, f"The specified topic: {topic}, is longer than topic max length: 127"
        )


def check_group(group: str) -> None:
    """Raise ServerError 29 for a name no group may have."""
    if not group.strip() or not _LEGAL.match(group) or len(group) > GROUP_LENGTH_MAX:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified group: {group!r}: 1 to {GROUP_LENGTH_MAX} characters of ^[%|a-zA-Z0-9_-]+$ are needed",
        )
