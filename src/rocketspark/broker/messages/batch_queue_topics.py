"""Topics with batch queues (attribute queue.type=BatchCQ): a batch sent to one is one record, its messages unread.

Rules: SendMessageProcessor, HookUtils and TopicAttributes, 5.x; a topic's kind of queue stays what it was made with.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import sysflags

QUEUE_TYPE = "queue.type"
SIMPLE, BATCH = "SimpleCQ", "BatchCQ"


def has_batch_queues(config: TopicConfig) -> bool:
    """Tell whether a topic's queues are batch queues."""
    return config.attributes.get(QUEUE_TYPE) == BATCH


def batch_topics(configs: Iterable[TopicConfig]) -> list[str]:
    """Return the names of those topics that have batch queues."""
    return [config.topic_name for config in configs if has_batch_queues(config)]


def check_queue_type(topic: str, known: TopicConfig | None, attributes: dict[str, str]) -> None:
    """Raise ServerError 29 for an unknown kind of queue, or a change of the kind."""
    wanted = attributes.get(QUEUE_TYPE, SIMPLE)
    if wanted not in (SIMPLE, BATCH):
        raise ServerError(
            ResponseCode.INVALID_PARAMETER, f"topic[{topic}]: {QUEUE_TYPE} {wanted!r} is neither {SIMPLE} nor {BATCH}"
        )
    if known is not None and known.attributes.get(QUEUE_TYPE, SIMPLE) != wanted:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"topic[{topic}]: {QUEUE_TYPE} cannot change; delete the topic and create it anew",
        )


def check_sent(topic: str, config: TopicConfig | None, sys_flag: int) -> None:
    """Raise ServerError 13 for a record of several messages that is sent to a topic with simple queues."""
    if sys_flag & sysflags.INNER_BATCH and (config is None or not has_batch_queues(config)):
        raise ServerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: inner batches need {QUEUE_TYPE}={BATCH}, {topic} has not",
        )
