"""Where a queue is read from now. Rule: asked for only after a failure; without an answer what was known stays."""

from __future__ import annotations

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json import bodies
from rocketspark.spark.options import ReadOptions
from rocketspark.spark.read.pipelined_connection import PipelinedConnection
from rocketspark.transport.connections import parse_addresses

# A NameServer answers in a millisecond; one that hangs is passed over.
TIMEOUT_MS = 3000.0


def addresses_now(queue: MessageQueue, known: tuple[str, ...], options: ReadOptions) -> tuple[str, ...]:
    """Return the addresses of a queue's broker as a NameServer knows them, its master first; else those known."""
    for namesrv in parse_addresses(options.namesrv):
        try:
            return _asked(namesrv, queue, options) or known
        except RocketSparkError:
            continue
    return known


def _asked(namesrv: str, queue: MessageQueue, options: ReadOptions) -> tuple[str, ...]:
    access = options.access
    topic = access.wire(queue.topic)
    timeout_ms = min(options.timeout_ms, TIMEOUT_MS)
    link = PipelinedConnection(namesrv, timeout_ms=timeout_ms, signer=access.signer())
    try:
        link.send(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic=topic, standard_json=True))
        reply = link.receive()[0]
        if reply.code != ResponseCode.SUCCESS:
            return ()
        route = bodies.decode_route(topic, bytes(reply.buffer[reply.start : reply.end]))
    finally:
        link.close()
    broker = route.broker(queue.broker_name)
    return tuple(address for _, address in sorted(broker.addresses.items())) if broker is not None else ()
