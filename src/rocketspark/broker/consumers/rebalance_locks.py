"""Queue locks of orderly consumers: which client of a group holds a queue.

With lockInStrictMode a client has a lock only if most of the brokers that share one brokerName give it (LockQuorum), so
that no lock is given twice at a failover. The locks themselves are pure: the time is an argument."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import LockReply, LockRequest
from rocketspark.transport.connections import Connections

# Of all groups, and of one: beyond them a queue that nobody holds is not given (it is asked for again in 20 s).
LOCKS_MAX = 500_000
GROUP_LOCKS_MAX = 65_536
# So many characters of the names of a lock count as one more.
NAME_CHARACTERS = 256
# Looked at in one turn of the loop: 1 to 4 ms.
LOOKED_AT_IN_TURN = 16_384


class RebalanceLocks:
    """All queue locks. A lock lives 60 s from the last call that took it (rule: RebalanceLockManager, 5.x).

    `count`: of all locks, long names counted as more.
    """

    def __init__(self, expiry_ms: int = 60_000) -> None:
        self._expiry_ms = expiry_ms
        self.count = 0
        self._held: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock the queues that no other client holds, or renew the client's locks; return those that it holds now."""
        held = self._held.get(group, {})
        taken = []
        for queue in queues:
            is_new = queue not in held
            owner, since_ms = held.get(queue, (client_id, now_ms))
            if owner == client_id or now_ms - since_ms > self._expiry_ms:
                more = _weight(queue, client_id) if is_new else _weight(queue, client_id) - _weight(queue, owner)
                if (is_new and len(held) >= GROUP_LOCKS_MAX) or (more > 0 and self.count + more > LOCKS_MAX):
                    continue
                self.count += more
                held[queue] = (client_id, now_ms)
                taken.append(queue)
        if held:
            self._held[group] = held
        return taken

    def expire_steps(self, now_ms: int) -> Iterator[None]:
        """Forget locks that nobody renewed; yields between pieces, and keeps a lock that is renewed in between."""
        oldest_ms = now_ms - self._expiry_ms
        looked_at = 0
        for group in list(self._held):
            queues = list(self._held.get(group, ()))
            for at in range(0, len(queues), LOOKED_AT_IN_TURN):
                part = queues[at : at + LOOKED_AT_IN_TURN]
                looked_at += len(part)
                if looked_at > LOOKED_AT_IN_TURN:
                    yield
                    looked_at = len(part)
                self._forget_old(group, part, oldest_ms)

    def _forget_old(self, group: str, queues: Iterable[MessageQueue], oldest_ms: int) -> None:
        held = self._held.get(group, {})
        for queue in [q for q in queues if q in held and held[q][1] < oldest_ms]:
            self.count -= _weight(queue, held.pop(queue)[0])
        if not held:
            self._held.pop(group, None)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release a client's locks; locks of other clients stay."""
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0))[0] == client_id:
                del held[queue]
                self.count -= _weight(queue, client_id)
        if not held:
            self._held.pop(group, None)


def _weight(queue: MessageQueue, client_id: str) -> int:
    return 1 + (len(queue.topic) + len(queue.broker_name) + len(client_id)) // NAME_CHARACTERS


log = LimitedLog("rocketspark.broker")

TIMEOUT_MS = 1000


def quorum(replicas_total: int) -> int:
    """Return how many of a name's `replicas_total` brokers have to give a lock: more than half."""
    return replicas_total // 2 + 1


def agreed(own: list[MessageQueue], others: Iterable[Iterable[MessageQueue]], wanted: int) -> list[MessageQueue]:
    """Return those of the `own` locked queues that at least `wanted` brokers have locked, this broker among them.

    `others`: the queues that each other broker has locked.
    """
    given = Counter(queue for answer in others for queue in set(answer))
    return [queue for queue in own if 1 + given[queue] >= wanted]


class LockQuorum:
    """Asks the other brokers with this broker's name for queue locks.

    `others`: returns the addresses of the live ones.
    """

    def __init__(self, settings: BrokerSettings, connections: Connections, others: Callable[[], Iterable[str]]) -> None:
        self._settings = settings
        self._connections = connections
        self._others = others

    def is_needed(self, asked: LockRequest) -> bool:
        """Tell whether the other brokers with this broker's name must be asked for these locks as well."""
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
        """Release the locks on all other brokers with this broker's name."""
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
