"""The accumulator: gathers many small sends into one request. Rule: each send has its own result; what is gathered for
one queue goes in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rocketspark.client.callbacks import Tasks
from rocketspark.client.producer.in_flight_send import InFlightSend
from rocketspark.client.producer.prepared_message import PreparedMessage, queue_of_key
from rocketspark.client.producer.send_path import SendPath
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError, NotSent
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, properties
from rocketspark.protocol.message.message_ids import unique_ids

log = logging.getLogger("rocketspark.client")

# By topic, queue if it is given, and whether the flush is waited for.
Kind = tuple[str, MessageQueue | None, bool]


class Accumulator:
    """Gathers sends of one kind until they are `bytes_max` bytes together, or the first of them has waited for
    `linger_ms`.

    With `linger_ms` 0 the sends of one turn of the loop go together, and nothing waits. A full batch is a send by
    `path`, with up to `attempts` attempts, whose time budget begins then. Sends to one queue go in the order in which
    they came: each batch, and each send that goes alone, waits for the one before.
    """

    def __init__(self, path: SendPath[InFlightSend], attempts: int, *, linger_ms: float, bytes_max: int) -> None:
        if not linger_ms >= 0 or bytes_max < 1:
            raise ConfigError("linger_ms must be 0 or more, batch_bytes 1 or more")
        self._path = path
        self._attempts = attempts
        self._linger_s = linger_ms / 1000
        self._bytes_max = bytes_max
        # By topic: sends by sharding key that wait for the route, in the order in which they came.
        self._unrouted: dict[str, list[InFlightSend]] = {}
        self._routing = Tasks()
        self._waiting: dict[Kind, list[InFlightSend]] = {}
        self._sizes: dict[Kind, int] = {}
        self._timers: dict[Kind, asyncio.Handle] = {}

    def add(self, send: InFlightSend) -> bool:
        """Take a send, to be sent with others later. False if it cannot be gathered: then the caller sends it alone,
        now.
        """
        if send.queue is None and send.sharding_key:
            topic = send.out.topic
            unrouted = self._unrouted.get(topic)
            if unrouted is not None:
                unrouted.append(send)
                return True
            queues = self._path.attempts.known_queues(topic)
            if not queues:
                self._unrouted[topic] = [send]
                self._routing.begin(self._route(topic))
                return True
            send.queue = queue_of_key(send.sharding_key, queues)
        return self._place(send)

    async def _route(self, topic: str) -> None:
        path = self._path
        try:
            queues = await path.attempts.queues(topic, path.attempts.end_s(None))
        except BaseException as e:
            for send in self._unrouted.pop(topic):
                send.finish(None, e)
            if not isinstance(e, Exception):
                raise
            return
        for send in self._unrouted.pop(topic):
            try:
                send.queue = queue_of_key(send.sharding_key or "", queues)
                if not send.done() and not self._place(send):
                    send.begin_now()
            except Exception as e:
                send.finish(None, e)

    def _place(self, send: InFlightSend) -> bool:
        out, queue = send.out, send.queue
        if not send.gathers:
            assert queue is not None
            self._flush((out.topic, queue, True))
            self._flush((out.topic, queue, False))
            send.follow(queue)
            return False
        kind = (out.topic, queue, send.wait_store_ok)
        if queue is not None:
            self._flush((out.topic, queue, not send.wait_store_ok))
        send.item = item = batch.encode_item(out.flag, out.body, out.properties.encode())
        size = self._sizes.get(kind, 0)
        if size and size + len(item) > self._bytes_max:
            self._flush(kind)
            size = 0
        waiting = self._waiting.get(kind)
        if waiting is None:
            waiting = self._waiting[kind] = []
            loop = asyncio.get_running_loop()
            if self._linger_s:
                self._timers[kind] = loop.call_later(self._linger_s, self._flush, kind)
            else:
                self._timers[kind] = loop.call_soon(self._flush, kind)
        waiting.append(send)
        self._sizes[kind] = size = size + len(item)
        if size >= self._bytes_max or len(waiting) >= batch.COUNT_MAX:
            self._flush(kind)
        return True

    def _flush(self, kind: Kind) -> None:
        sends = self._waiting.pop(kind, None)
        if sends is None:
            return
        self._sizes.pop(kind)
        self._timers.pop(kind).cancel()
        wanted = [send for send in sends if not send.cancelled()]
        if len(wanted) < len(sends):
            for send in sends:
                if send.cancelled():
                    send.finish(None, NotSent("nobody waits for it: nothing was sent"))
        if wanted:
            out = _joined(kind, wanted)
            together = Batch(self._path, out, None, None, None, self._attempts, sends=wanted)
            if kind[1] is not None:
                together.follow(kind[1])
            together.begin_now()

    async def close(self) -> None:
        """Send what waits, and wait for all."""
        while self._waiting or self._routing:
            for kind in list(self._waiting):
                self._flush(kind)
            if self._routing:
                await asyncio.wait(self._routing)


class Batch(InFlightSend, kw_only=True):
    """Sends that go in one request; each gets its own part of the result, or the error."""

    sends: Sequence[InFlightSend]

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Give each send of the batch its part of the result, or the error."""
        sends = self.sends
        part = result
        places: list[str] | None = None
        if result is not None and len(sends) > 1:
            places = result.offset_message_id.split(",")
            if len(places) != len(sends):
                places = [result.offset_message_id] * len(sends)
            status, queue, offset = result.status, result.queue, result.queue_offset
        for number, send in enumerate(sends):
            if places is not None:
                message_id = send.out.message_id
                part = SendResult(status, message_id, places[number], queue, offset + number, message_id)
            try:
                send.finish(part, error)
            except Exception:
                log.exception("a send of a batch could not be ended; the others are")


def _joined(kind: Kind, sends: Sequence[InFlightSend]) -> PreparedMessage:
    if len(sends) == 1:
        return sends[0].out
    wait = "true" if kind[2] else "false"
    outer = properties.encode({properties.UNIQUE_ID: unique_ids.next(), properties.WAIT: wait})
    ids = ",".join([send.out.message_id for send in sends])
    body = b"".join([send.item for send in sends])
    return PreparedMessage(kind[0], body, outer, 0, 0, ids, RequestCode.SEND_BATCH_MESSAGE)
