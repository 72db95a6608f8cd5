"""What an executor asks of a cluster while it reads: where a queue's broker is now, and whether a topic is compacted.

Rule: a server is asked only after a failure, or where messages are missing; if no NameServer answers, what was known
before is used.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.errors import ConnectionLost, NotSent, RocketSparkError
from rocketspark.model import BrokerData, MessageQueue
from rocketspark.protocol import headers, topic_attributes
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.json import bodies, java_json
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.read.pipelined_connection import PipelinedConnection
from rocketspark.transport.connections import parse_addresses

# A NameServer answers in a millisecond; one that hangs is passed over.
TIMEOUT_MS = 3000.0


def broker_away(queue: MessageQueue) -> NotSent:
    """Return the error for a queue whose broker no NameServer knows; it is retriable, as the broker may come back."""
    return NotSent(
        f"broker {queue.broker_name!r} has no topic {queue.topic!r} now: start it, or leave it out (option"
        " assign; a stream that has begun to read from it also needs failOnDataLoss false)"
    )


def addresses_now(queue: MessageQueue, known: tuple[str, ...], options: ReadOptions) -> tuple[str, ...]:
    """Return the addresses of a queue's broker, its master's first, as a NameServer has them now; `known` if none
    answers.
    """
    broker = _broker_now(queue, options)
    return known if broker is None else tuple(address for _, address in sorted(broker.addresses.items())) or known


def may_tell_of_loss(address: str, queue: MessageQueue, options: ReadOptions) -> bool:
    """Tell whether messages that the broker at an address lacks are lost: so if it is the master, or no route names the
    broker; a slave may be behind.
    """
    broker = _broker_now(queue, options)
    return broker is None or broker.master == address


def _broker_now(queue: MessageQueue, options: ReadOptions) -> BrokerData | None:
    """Return what the first NameServer that answers tells of a queue's broker; None if it has no route, or none
    answers.
    """
    topic = options.access.wire(queue.topic)
    header = headers.RouteHeader(topic=topic, standard_json=True)
    timeout_ms = min(options.timeout_ms, TIMEOUT_MS)
    for namesrv in parse_addresses(options.namesrv):
        try:
            reply = _ask(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, options, timeout_ms)
            return None if reply is None else bodies.decode_route(topic, reply.body).broker(queue.broker_name)
        except RocketSparkError:
            continue
    return None


def is_compacted(topic: str, addresses: tuple[str, ...], options: ReadOptions) -> bool:
    """Tell whether RocketMQ compacts a topic: then gaps in a queue's offsets are no loss. The first of the brokers that
    answers tells it.

    A compaction (cleanup.policy=COMPACTION, from 5.0 on) keeps the newest message of each key, with the offset it had.
    Raises NotSent, ConnectionLost if no broker answers.
    """
    if not addresses:
        return False
    header = headers.TopicHeader(topic=options.access.wire(topic))
    reply = _ask_first(addresses, RequestCode.GET_TOPIC_CONFIG, header, options)
    if reply is None:
        return False  # Brokers before 5.0 know neither the request nor compaction.
    config = java_json.decode(reply.body, bodies.TopicConfig)
    return topic_attributes.is_compacted(config.attributes)


def end_of(queue: MessageQueue, addresses: tuple[str, ...], options: ReadOptions) -> int:
    """Return the offset that a queue's next message will get, as the first of the brokers that answers tells it; 0 if
    it refuses. Raises NotSent, ConnectionLost if none answers.
    """
    access = options.access
    header = headers.MaxOffsetHeader(
        topic=access.wire(queue.topic), queue_id=queue.queue_id, broker_name=queue.broker_name
    )
    reply = _ask_first(addresses, RequestCode.GET_MAX_OFFSET, header, options)
    return 0 if reply is None else headers.decode_ext(headers.OffsetReply, reply.ext).offset


class _Reply(NamedTuple):
    ext: bytes
    body: bytes


def _ask_first(addresses: tuple[str, ...], code: int, header: Header, options: ReadOptions) -> _Reply | None:
    """Return what the first of the servers that answers says, None if it refuses."""
    for address in addresses[:-1]:
        try:
            return _ask(address, code, header, options, options.timeout_ms)
        except (NotSent, ConnectionLost):
            continue
    return _ask(addresses[-1], code, header, options, options.timeout_ms)


def _ask(address: str, code: int, header: Header, options: ReadOptions, timeout_ms: float) -> _Reply | None:
    """Return a server's answer, None if it refuses."""
    link = PipelinedConnection(address, timeout_ms=timeout_ms, access=options.access)
    try:
        link.send(code, header)
        reply = link.receive()[0]
        if reply.code != ResponseCode.SUCCESS:
            return None
        return _Reply(bytes(reply.ext), bytes(reply.buffer[reply.start : reply.end]))
    finally:
        link.close()
