"""Queue locks that most brokers of a name have to give (lockInStrictMode), so that none is given twice at a failover.

Rule (AdminBrokerProcessor, 5.x): a lock counts with totalReplicas / 2 + 1 of them; each is asked for itself alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import LockReply, LockRequest
from rocketspark.transport.connections import Connections

log = LimitedLog("rocketspark.broker")

TIMEOUT_MS = 1000


def quorum(replicas_total: int) -> int:
    """Return how many brokers have to give a lock."""
    return replicas_total // 2 + 1


def agreed(own: list[MessageQueue], others: Iterable[Iterable[MessageQueue]], wanted: int) -> list[MessageQueue]:
    """Return the queues locked here that as many brokers as wanted have locked, this one among them."""
    given = Counter(queue for answer in others for queue in set(answer))
    return [queue for queue in own if 1 + given[queue] >= wanted]


class LockQuorum:
    """Asks the others. `others`: the addresses of the other live brokers of the name, now."""

    def __init__(self, settings: BrokerSettings, connections: Connections, others: Callable[[], Iterable[str]]) -> None:
        self._settings = settings
        self._connections = connections
        self._others = others

    def is_needed(self, asked: LockRequest) -> bool:
        """Tell whether this broker alone does not decide."""
        s = self._settings
        return s.strict_locks and not asked.only_this_broker and quorum(s.replicas_total) > 1

    async def lock(self, asked: LockRequest, own: list[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues locked here that are locked by enough brokers."""
        if not own:
            return []
        request = self._alone(asked, own)
        answers = await asyncio.gather(*(self._ask_for_locks(address, request) for address in self._others()))
        return agreed(own, answers, quorum(self._settings.replicas_total))

    async def unlock(self, asked: LockRequest) -> None:
        """Give the locks back everywhere else."""
        request = bodies.encode(msgspec.structs.replace(asked, only_this_broker=True))
        await asyncio.gather(*(self._ask(a, RequestCode.UNLOCK_BATCH_MQ, request) for a in self._others()))

    @staticmethod
    def _alone(asked: LockRequest, queues: list[MessageQueue]) -> bytes:
        rows = [bodies.QueueBody.of(queue) for queue in queues]
        return bodies.encode(msgspec.structs.replace(asked, mq_set=rows, only_this_broker=True))

    async def _ask_for_locks(self, address: str, request: bytes) -> list[MessageQueue]:
        body = await self._ask(address, RequestCode.LOCK_BATCH_MQ, request)
        try:
            return [row.queue() for row in java_json.decode(body, LockReply).lock_ok_mq_set] if body else []
        except RocketSparkError as e:
            log.warning("%s answered no locks: %s", address, e)
            return []

    async def _ask(self, address: str, code: RequestCode, request: bytes) -> bytes:
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                peer = await self._connections.get(address)
                reply = await peer.request(code, None, request, timeout_ms=TIMEOUT_MS)
            return reply.raise_for_code("ask for queue locks").body
        except (RocketSparkError, TimeoutError) as e:
            log.info("%s was not asked for queue locks: %s", address, e or "no answer in time")
            return b""
