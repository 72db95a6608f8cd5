"""Names of system topics and groups, and the rules for names. Rule: TopicValidator, 5.x."""

from __future__ import annotations

import re

from rocketspark.errors import ServerError
from rocketspark.model.text import whole_number
from rocketspark.protocol import light_queues
from rocketspark.protocol.codes import ResponseCode

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
# Of light queues, and of groups that RocketMQ keeps no settings of where it has them.
LIGHT_PREFIX = light_queues.NAME_PREFIX
DEFAULT_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# The group whose offsets tell how far both are done.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
# With the cluster's name behind it: what was popped and what was acknowledged of it.
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
# The group whose offsets tell how far that is done.
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"

TOPIC_LENGTH_MAX = 127
# So that the topics made from it are no longer than any (rule: TopicValidator.GROUP_MAX_LENGTH, 5.5.0).
GROUP_LENGTH_MAX = 120
FILE_NAME_BYTES_MAX = 255
QUEUE_ID_MAX = 99_999
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
# With a broker's name behind it: the topic by whose route its replicas find each other.
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


def retry_topic(group: str) -> str:
    """Return the topic of a group's retries."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def is_light(name: str) -> bool:
    """Tell whether a name is one of a light queue, or of a group that reads one. Nobody creates these: a request that
    names one is enough.
    """
    return name.startswith(LIGHT_PREFIX) and len(name) <= FILE_NAME_BYTES_MAX


def is_system_topic(topic: str) -> bool:
    """Tell whether RocketMQ keeps the topic for itself."""
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


def target_of(pairs: dict[bytes, bytes]) -> tuple[str, int] | None:
    """Return (topic, queue id) of a parked message (REAL_TOPIC, REAL_QID); None if no message may go there.

    This does not depend on the sender or on how the message was parked: a topic that no client may send to, or whose
    name is invalid or too long for a file, gets nothing.
    """
    topic = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace")
    queue_id = whole_number(pairs.get(b"REAL_QID", b"0"), high=QUEUE_ID_MAX)
    if queue_id is None or topic == TIMER_TOPIC or topic in NOT_SENDABLE:
        return None
    # Retry topics of groups from before the limit of 120 are longer than topics may be.
    if not _LEGAL.match(topic) or len(topic) > FILE_NAME_BYTES_MAX:
        return None
    return topic, queue_id


def check_group(group: str) -> None:
    """Raise ServerError 29 for a name no group may have."""
    if not group.strip() or not _LEGAL.match(group) or len(group) > GROUP_LENGTH_MAX:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified group: {group!r}: 1 to {GROUP_LENGTH_MAX} characters of ^[%|a-zA-Z0-9_-]+$ are needed",
        )
