"""Connects the parts of pops: messages in flight, ordered pops, waiting requests. It holds nothing of its own."""

from __future__ import annotations

from collections.abc import Iterable

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.ordered import BlockEnds, OrderedPops
from rocketspark.broker.pop.waiting_pops import ALL_QUEUES, WaitingPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.model.namespace import RETRY_PREFIX
from rocketspark.protocol import pop_answers
from rocketspark.protocol.pop_answers import RETRY_V1, RETRY_V2


class Pops:
    """What handlers know of pops. `waiting`: held POP_MESSAGE requests; `notified`: held NOTIFICATION requests."""

    def __init__(
        self,
        settings: BrokerSettings,
        tables: Tables,
        arrivals: LongPolling,
        in_flight: InFlightMessages,
        ordered: OrderedPops,
    ) -> None:
        self._settings = settings
        self._topics, self._groups, self._offsets = tables.topics, tables.groups, tables.offsets
        self.in_flight = in_flight
        self.ordered = ordered
        self.waiting = self._waiting(arrivals)
        self.notified = self._waiting(arrivals, notifies=True)
        # Held requests of all kinds, those for lite topics too.
        self.held = [self.waiting, self.notified]
        self.block_ends = BlockEnds(ordered, self.wake, enabled=lambda: settings.wake_after_order_block)

    def _waiting(self, arrivals: LongPolling, *, notifies: bool = False) -> WaitingPops:
        s = self._settings
        return WaitingPops(
            arrivals,
            self._retry_topics,
            of_queue_max=lambda: s.pop_waiting_of_queue_max,
            all_max=lambda: s.pop_waiting_max,
            notifies=notifies,
        )

    @staticmethod
    def _retry_topics(topic: str, group: str) -> Iterable[str]:
        return [pop_answers.retry_topic(topic, group, flag) for flag in (RETRY_V1, RETRY_V2)]

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of a queue a group popped and has not acknowledged."""
        return self.in_flight.count(topic, group, queue_id) + self.ordered.count(topic, group, queue_id)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Have the held requests for a queue of a group try again."""
        self.waiting.wake(topic, group, queue_id)
        self.notified.wake(topic, group, queue_id)

    def drop_owner(self, peer: object) -> None:
        """Forget the held requests of a connection that ended."""
        for held in self.held:
            held.drop_owner(peer)

    def answer_all(self) -> None:
        """Answer all held requests now, without messages if there are none."""
        for held in self.held:
            held.answer_all()

    def close(self) -> None:
        """Answer all held requests, and hold none from now on."""
        self.block_ends.close()
        for held in self.held:
            held.closed = True
        self.answer_all()

    # -- forgetting -----------------------------------------------------------------------------------------------

    def reset(self, topic: str, group: str, queue_id: int) -> None:
        """Make pops of a queue go on from an offset that was set by hand, and wake those that wait.

        Where the last pop ended, and what blocks an ordered pop, is forgotten; messages in flight stay in flight.
        """
        self.ordered.forget(topic, group, queue_id)
        self.in_flight.forget(topic, group, queue_id)
        self.wake(topic, group, queue_id if queue_id >= 0 else ALL_QUEUES)

    def retry_topics_of(self, topic: str) -> list[str]:
        """Return the retry topics, of all groups, that hold retries of this topic and of no other.

        RocketMQ mixes them up: the retry topic of group `a_b` is also that of group `a` for topic `b`.
        """
        # A group may be there without an offset, as one that was deleted with its offsets and made again.
        groups = dict.fromkeys([*self._offsets.groups_of(topic), *self._groups.table])
        names = (name for group in groups for name in self._retry_topics(topic, group))
        return [name for name in names if name in self._topics.table and not self._is_of_others(name, topic)]

    def _is_of_others(self, retry_topic: str, topic: str) -> bool:
        """Tell whether a retry topic that a topic's messages are in is another group's, or one of another topic."""
        if pop_answers.retry_flag(retry_topic) != RETRY_V1:
            return False
        rest = retry_topic.removeprefix(RETRY_PREFIX)
        if rest in self._groups.table:
            return True
        marks = (at for at, mark in enumerate(rest) if mark == "_")
        pairs = ((rest[:at], rest[at + 1 :]) for at in marks)
        return any(of != topic and of in self._topics.table and group in self._groups.table for group, of in pairs)

    def delete_topic(self, topic: str) -> None:
        """Forget the pops of a topic that is being deleted; called before its offsets are deleted."""
        for group in self._offsets.groups_of(topic):
            for queue_id in self._offsets.of(group, topic):
                self.in_flight.forget(topic, group, queue_id)
            self.wake(topic, group, ALL_QUEUES)
        self.in_flight.delete_topic(topic)
        self.ordered.delete_topic(topic)

    def delete_group(self, group: str) -> None:
        """Forget the pops of a group that is being deleted; called before its offsets are deleted."""
        for topic in self._offsets.topics_of(group):
            for queue_id in self._offsets.of(group, topic):
                self.in_flight.forget(topic, group, queue_id)
            self.wake(topic, group, ALL_QUEUES)
        self.ordered.delete_group(group)

    def _read_queues(self, topic: str) -> int:
        config = self._topics.table.get(topic)
        return 0 if config is None else config.read_queue_nums

    def save(self) -> None:
        """Write consumerOrderInfo.json, without batches that are too old. Raises StoreError."""
        if self.ordered.table:
            self.ordered.clean(self._read_queues, self._groups.table.__contains__, now_ms())
        self.ordered.save()
