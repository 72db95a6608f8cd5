"""PEEK_MESSAGE: what a pop would give, left where it is. Rule: PeekMessageProcessor, 5.5.0."""

from __future__ import annotations

from collections.abc import Generator
from random import randrange

from rocketspark.broker.operations.long_scans import LongScans
from rocketspark.broker.pop.reading import PopReading, own_retries
from rocketspark.broker.pop.requests import COUNT_MAX, PopChecks, refusing
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError
from rocketspark.protocol import pop_answers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PeekHeader, PopReply, Request
from rocketspark.protocol.pop_answers import RETRY_V1, RETRY_V2
from rocketspark.store.get_message import GetStatus
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# One of so many looks reads the retries first.
RETRIES_FIRST_EVERY = 5
# Queues that are looked at in one turn of the loop: some ms.
QUEUES_IN_TURN = 1024


class PeekHandler:
    """Serves looks at what is to be popped."""

    def __init__(
        self,
        settings: BrokerSettings,
        checks: PopChecks,
        store: Store,
        topics: Topics,
        reading: PopReading,
        scans: LongScans,
    ) -> None:
        self._scans = scans
        self._settings = settings
        self._checks = checks
        self._store = store
        self._topics = topics
        self._reading = reading

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.PEEK_MESSAGE, self.peek, PeekHeader)

    def peek(self, peer: Peer, request: Request[PeekHeader], body: bytes) -> Answer:
        """PEEK_MESSAGE (200052)."""
        return refusing(request, PopReply(), lambda: self._scans.answer(peer, self._peek(peer, request)))

    def _peek(self, peer: Peer, request: Request[PeekHeader]) -> Generator[None, None, bytes]:
        h = request.ext
        self._checks.check_readable()
        config = self._checks.check_queue(peer, h.topic, h.queue_id)
        self._checks.check_group(peer, h.group, h.topic)
        if not 0 < h.count_max <= COUNT_MAX:
            # RocketMQ looks at as many as are asked.
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, f"{h.count_max} messages are to be peeked, 1 to {COUNT_MAX} may be"
            )
        chance = randrange(100)
        queues = [h.queue_id]
        if h.queue_id < 0:
            queues = [(chance + n) % config.read_queue_nums for n in range(config.read_queue_nums)]
        places = [(h.topic, queue_id) for queue_id in queues]
        retries = self._retries(h)
        places = [*retries, *places] if chance % RETRIES_FIRST_EVERY == 0 else [*places, *retries]
        found: list[memoryview] = []
        rest = count = size = 0
        for number, (topic, queue_id) in enumerate(places, 1):
            if number % QUEUES_IN_TURN == 0:
                yield
            offset = self._reading.next_offset(topic, h.group, queue_id)
            rest += max(self._store.queue_range(topic, queue_id)[1] - offset, 0)
            bytes_max = self._settings.pull_bytes_max - size
            if count >= h.count_max or bytes_max <= 0:
                continue
            own = own_retries(topic, h.group)
            read = self._store.read(topic, queue_id, offset, h.count_max - count, bytes_max, accepts=own)
            if read.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_TOO_BIG, GetStatus.REMOVED):
                read = self._store.read(topic, queue_id, read.next_offset, h.count_max - count, bytes_max, accepts=own)
            found += read.records
            count, size = count + read.count, size + read.size
        header = PopReply(rest_count=rest)
        if not count:
            return reply(request.opaque, ResponseCode.PULL_NOT_FOUND, header, remark="NO_MESSAGE_IN_QUEUE")
        return reply(request.opaque, 0, header, b"".join(found), remark="FOUND")

    def _retries(self, h: PeekHeader) -> list[tuple[str, int]]:
        name = pop_answers.retry_topic(h.topic, h.group, RETRY_V2 if self._settings.retry_topics_v2 else RETRY_V1)
        config = self._topics.table.get(name)
        return [] if config is None else [(name, queue_id) for queue_id in range(config.read_queue_nums)]
