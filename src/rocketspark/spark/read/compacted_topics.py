"""Compacted topics, whose queues may have gaps in their offsets. Rule: only one that RocketMQ compacts may; else they
are loss.

A compaction (cleanup.policy=COMPACTION, from 5.0 on) keeps the newest message of each key, with the offset it had.
"""

from __future__ import annotations

from rocketspark.errors import ConnectionLost, NotSent
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json import bodies, java_json
from rocketspark.spark.options import ReadOptions
from rocketspark.spark.read.pipelined_connection import PipelinedConnection

_POLICY, _COMPACTED = "cleanup.policy", "COMPACTION"


def is_compacted(topic: str, addresses: tuple[str, ...], options: ReadOptions) -> bool:
    """Tell whether a topic is compacted, by the first of the brokers that answers. Raises NotSent, ConnectionLost if
    none does.
    """
    if not addresses:
        return False
    for address in addresses[:-1]:
        try:
            return _is_compacted_at(topic, address, options)
        except (NotSent, ConnectionLost):
            continue
    return _is_compacted_at(topic, addresses[-1], options)


def _is_compacted_at(topic: str, address: str, options: ReadOptions) -> bool:
    access = options.access
    link = PipelinedConnection(address, timeout_ms=options.timeout_ms, access=access)
    try:
        link.send(RequestCode.GET_TOPIC_CONFIG, headers.TopicHeader(topic=access.wire(topic)))
        reply = link.receive()[0]
        if reply.code != ResponseCode.SUCCESS:
            return False  # Brokers before 5.0 know neither the request nor compaction.
        config = java_json.decode(bytes(reply.buffer[reply.start : reply.end]), bodies.TopicConfig)
    finally:
        link.close()
    return config.attributes.get(_POLICY, "").upper() == _COMPACTED
