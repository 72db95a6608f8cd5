"""The attributes by which a topic tells what it is for, as brokers store and answer them.

Source: TopicAttributes, TopicMessageType, CQType and CleanupPolicy of RocketMQ 5.
"""

from __future__ import annotations

from collections.abc import Mapping

# What clients may send to it: PRIORITY has queues popped by priority, LITE has lite topics.
MESSAGE_TYPE = "message.type"
NORMAL, FIFO, DELAY, TRANSACTION = "NORMAL", "FIFO", "DELAY", "TRANSACTION"
PRIORITY, LITE, MIXED = "PRIORITY", "LITE", "MIXED"
MESSAGE_TYPES = (NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE, MIXED)
# A broker takes this one too, for a topic that says nothing.
UNSPECIFIED = "UNSPECIFIED"
KNOWN_TYPES = (UNSPECIFIED, *MESSAGE_TYPES)
# What its queues are. In a topic with batch queues a batch that is sent is one record, its messages unread.
QUEUE_TYPE = "queue.type"
SIMPLE, BATCH = "SimpleCQ", "BatchCQ"
# What goes of its messages: DELETE all by age, COMPACTION all but the newest of each key.
CLEANUP_POLICY = "cleanup.policy"
DELETE, COMPACTION = "DELETE", "COMPACTION"
# How long, in ms, the second tier keeps its messages; -1: as long as the broker says.
RESERVE_TIME = "reserve.time"


def is_compacted(attributes: Mapping[str, object]) -> bool:
    """Tell whether of a topic with these attributes the newest message of each key is kept, and older ones go."""
    policy = attributes.get(CLEANUP_POLICY)
    return isinstance(policy, str) and policy.upper() == COMPACTION


def is_lite(attributes: Mapping[str, object]) -> bool:
    """Tell whether a topic with these attributes has lite topics."""
    return attributes.get(MESSAGE_TYPE) == LITE
