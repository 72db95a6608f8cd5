"""RocketMQ's rules for topics, groups and bodies. Rule: Validators and TopicValidator, 5.x; checked before sending."""

from __future__ import annotations

import re
from functools import lru_cache

from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.model.route import MessageQueue

TOPIC_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 120
BODY_BYTES_MAX = 4 << 20
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
REPLY_SUFFIX = "_REPLY_TOPIC"

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
# Brokers write these themselves; a client's send to them is refused.
SYSTEM_TOPICS = frozenset(
    """SCHEDULE_TOPIC_XXXX RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC
    RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT""".split()
)
DEFAULT_GROUPS = frozenset(("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"))


@lru_cache(maxsize=4096)
def check_topic(topic: str) -> str:
    """Return the topic. Raises MessageIllegal if it is empty, too long or has characters that are not allowed."""
    if not isinstance(topic, str) or not topic.strip():
        raise MessageIllegal("the topic is empty: give the name of a topic", topic=str(topic))
    if len(topic) > TOPIC_CHARACTERS_MAX:
        text = f"topic {topic[:40]!r}… has {len(topic)} characters; at most {TOPIC_CHARACTERS_MAX} are allowed"
        raise MessageIllegal(text, topic=topic)
    if not _LEGAL.fullmatch(topic):
        raise MessageIllegal(f"topic {topic!r}: only letters, digits and % | _ - are allowed", topic=topic)
    return topic


@lru_cache(maxsize=4096)
def check_target(topic: str) -> str:
    """Return a topic that clients may send to. Raises MessageIllegal also for RocketMQ's own topics."""
    if check_topic(topic) in SYSTEM_TOPICS:
        raise MessageIllegal(f"topic {topic!r} belongs to the broker itself; choose another", topic=topic)
    return topic


@lru_cache(maxsize=1024)
def check_group(group: str) -> str:
    """Return the group. Raises MessageIllegal if it is empty, too long, has other characters or is a placeholder."""
    if not isinstance(group, str) or not group.strip():
        raise MessageIllegal("the group is empty: give producers and consumers the name of a group")
    if len(group) > GROUP_CHARACTERS_MAX:
        text = f"group {group[:40]!r}… has {len(group)} characters; at most {GROUP_CHARACTERS_MAX} are allowed"
        raise MessageIllegal(text)
    if not _LEGAL.fullmatch(group):
        raise MessageIllegal(f"group {group!r}: only letters, digits and % | _ - are allowed")
    if group in DEFAULT_GROUPS:
        raise MessageIllegal(f"group {group!r} is RocketMQ's placeholder; choose a name of your own")
    return group


def check_body(topic: str, body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise MessageIllegal unless the body is bytes, not empty and within the limit."""
    if not isinstance(body, bytes):
        kind = type(body).__name__
        raise MessageIllegal(f"message for topic {topic!r}: the body must be bytes, not {kind}; encode it", topic=topic)
    if not body:
        raise MessageIllegal(f"message for topic {topic!r}: the body is empty; RocketMQ takes none such", topic=topic)
    if len(body) > bytes_max:
        text = f"message for topic {topic!r}: the body has {len(body)} bytes; at most {bytes_max} are allowed"
        raise MessageIllegal(text, topic=topic)


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Return the queue. Raises UsageError for what is none."""
    if not isinstance(queue, MessageQueue):
        raise UsageError(
            f"{queue!r} is no MessageQueue: take a message's or result's `queue`, or one of `queues(topic)`"
        )
    return queue
