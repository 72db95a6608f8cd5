"""What brokers can do with half messages beyond RocketMQ's protocol. Rule: the master of a queue is asked, and a new
master is asked again, as it may be another kind of broker.
"""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.admin import RuntimeInfoHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import KvTable
from rocketspark.spark.exactly_once.commit_topic import CommitTopic

# Names in the broker's runtime table: it ends each transaction once, however often it is asked to; it takes half
# messages in batches, and their ends by ranges.
ENDS_ONCE = "transactionEndsOnce"
BATCHES = "halfBatches"


class Abilities(NamedTuple):
    """What a broker can do. `ends_once`: an end that is sent again changes nothing; `batches`: it takes batches of half
    messages.
    """

    ends_once: bool
    batches: bool


class BrokerAbilities:
    """The abilities of the masters of queues; each master is asked once."""

    def __init__(self, commit_log: CommitTopic, timeout_ms: int) -> None:
        self._log = commit_log
        self._timeout_ms = timeout_ms
        self._known: dict[str, Abilities] = {}

    def _address(self, queue: MessageQueue) -> str:
        return self._log.instance.routes.master(queue.broker_name) or ""

    async def of(self, queue: MessageQueue) -> Abilities:
        """Return the abilities of the master of a queue. Raises RocketSparkError if it does not answer in time."""
        known = self._known.get(self._address(queue))
        if known is None:
            table = await self.runtime(queue)
            known = Abilities(table.get(ENDS_ONCE) == "true", table.get(BATCHES) == "true")
            self._known[self._address(queue)] = known
        return known

    def no_batches(self, queue: MessageQueue) -> None:
        """Note that the master of a queue takes half messages only one by one, whatever it reported about itself."""
        known = self._known.get(self._address(queue))
        if known is not None:
            self._known[self._address(queue)] = known._replace(batches=False)

    def forget(self, queue: MessageQueue) -> None:
        """Have the master of a queue asked again before its next use: its abilities were not those that it reported."""
        self._known.pop(self._address(queue), None)

    async def runtime(self, queue: MessageQueue) -> dict[str, str]:
        """Ask a queue's master for its runtime table, whose entries tell its abilities."""

        async def ask() -> dict[str, str]:
            peer = await self._log.instance.master_of(queue)
            reply = await peer.request(
                RequestCode.GET_BROKER_RUNTIME_INFO, RuntimeInfoHeader(extensions=True), timeout_ms=self._timeout_ms
            )
            reply.raise_for_code(f"runtime of broker {queue.broker_name!r}")
            return java_json.decode(reply.body, KvTable).table

        return await self._log.again(ask, topic=queue.topic)
