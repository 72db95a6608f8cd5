"""Where a queue is read from now. Rule: asked for only after a failure; without an answer what was known stays."""

from __future__ import annotations

from rocketspark.errors import NotSent, RocketSparkError
from rocketspark.model import BrokerData, MessageQueue
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json import bodies
from rocketspark.spark.options import ReadOptions
from rocketspark.spark.read.pipelined_connection import PipelinedConnection
from rocketspark.transport.connections import parse_addresses

# A NameServer answers in a millisecond; one that hangs is passed over.
TIMEOUT_MS = 3000.0


def broker_away(queue: MessageQueue) -> NotSent:
    """Return the error of a queue whose broker no NameServer knows: it may come back."""
    return NotSent(f"broker {queue.broker_name!r} has no topic {queue.topic!r} now: start it, or leave it out")


def addresses_now(queue: MessageQueue, known: tuple[str, ...], options: ReadOptions) -> tuple[str, ...]:
    """Return the addresses of a queue's broker as a NameServer knows them, its master first; else those known."""
    broker = _broker_now(queue, options)
    return known if broker is None else tuple(address for _, address in sorted(broker.addresses.items())) or known


def may_tell_of_loss(address: str, queue: MessageQueue, options: ReadOptions) -> bool:
    """Tell whether a broker's word holds for what is gone from a queue: that of its master, or of one unknown."""
    broker = _broker_now(queue, options)
    return broker is None or broker.master == address


def _broker_now(queue: MessageQueue, options: ReadOptions) -> BrokerData | None:
    """Return what the first NameServer that answers tells of a queue's broker; None if it has no route, or none
    answers.
    """
    for namesrv in parse_addresses(options.namesrv):
        try:
            return _asked(namesrv, queue, options)
        except RocketSparkError:
            continue
    return None


def _asked(namesrv: str, queue: MessageQueue, options: ReadOptions) -> BrokerData | None:
    access = options.access
    topic = access.wire(queue.topic)
    timeout_ms = min(options.timeout_ms, TIMEOUT_MS)
    link = PipelinedConnection(namesrv, timeout_ms=timeout_ms, access=access)
    try:
        link.send(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic, standard_json=True))
        reply = link.receive()[0]
        if reply.code != ResponseCode.SUCCESS:
            return None
        route = bodies.decode_route(topic, bytes(reply.buffer[reply.start : reply.end]))
    finally:
        link.close()
    return route.broker(queue.broker_name)
