"""Finds the queues that a stream reads, anew for each micro-batch, as topics are made and deleted.

Rule: a queue is gone only if its broker says so. If a broker or NameServer does not answer, its queues are away, and
keep their place until it is back.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rocketspark.errors import RocketSparkError, RouteNotFound, TransportError
from rocketspark.model import MessageQueue
from rocketspark.tables.cluster_queries import ClusterQueries
from rocketspark.tables.offset_ranges import Offsets
from rocketspark.tables.option_values import assigned_of, matching
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.queue_bounds import OffsetBounds
from rocketspark.tables.read.partition_planning import closed_parts

log = logging.getLogger("rocketspark.spark")


class DiscoveredQueues(NamedTuple):
    """The queues that exist now, with their offsets; `gone`: queues that were read before and exist no more, with the
    reasons. All other queues are away.
    """

    bounds: dict[MessageQueue, OffsetBounds]
    gone: dict[MessageQueue, str]


class QueueDiscovery:
    """Finds the queues of a stream, and remembers those that it found last."""

    def __init__(self, cluster: ClusterQueries, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._topics: list[str] = list(options.topics)
        self._queues: dict[str, list[MessageQueue]] = {}
        # True if a NameServer answered this time.
        self._asks = True
        self._told: set[str] = set()

    def look(self, held: Offsets | None) -> DiscoveredQueues:
        """Return the queues as of now. `held`: the queues and offsets that the stream has read so far; None at its
        start, when topics may be missing.

        Raises RouteNotFound for a topic that was never there, NotSent if nothing is known and no NameServer answers.
        """
        queues = self.find(held)
        bounds = self._cluster.bounds(queues, if_there=True, seen=held)
        missing = {queue: offset for queue, offset in (held or {}).items() if queue not in bounds and self.reads(queue)}
        gone = self.gone({queue: offset for queue, offset in missing.items() if queue not in queues})
        for queue in sorted(missing.keys() - gone.keys()):
            self.tell(
                f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r} is away: it keeps its"
                " place until it is back"
            )
        return DiscoveredQueues(bounds, gone)

    def reads(self, queue: MessageQueue) -> bool:
        """Tell whether the options name a queue that is in the stream's offset: that may have been written with other
        options.

        A queue that they do not name any more is neither gone nor away, and keeps its place in case that they name it
        again.
        """
        if self._options.topic_pattern is not None:
            return bool(matching(self._options.topic_pattern, (queue.topic,), ()))
        if self._options.assigned is not None:
            return bool(assigned_of((queue,), self._options.assigned))
        return queue.topic in self._options.topics

    def gone(self, missing: Offsets) -> dict[MessageQueue, str]:
        """Return which queues are gone for good, and why. `missing`: queues that no route names, and how far each was
        read.
        """
        if not missing:
            return {}
        try:
            return self._cluster.why_gone(missing)
        except TransportError as e:
            self.tell(f"going on with what is known: {e}")
            return {}

    def find(self, held: Offsets | None) -> set[MessageQueue]:
        """Return the queues that routes name now; those found last if no NameServer answers. `held`: as of `look`."""
        self._asks = True
        if self._options.topic_pattern is not None:
            try:
                self._topics = self._cluster.topics(self._options.topic_pattern)
            except TransportError as e:
                if not self._topics:
                    raise
                self.tell(f"going on with the topics that are known: {e}")
                self._asks = False
        found = [queue for topic in self._topics for queue in self._of_topic(topic, held)]
        return set(found if self._options.assigned is None else assigned_of(found, self._options.assigned))

    def _of_topic(self, topic: str, held: Offsets | None) -> list[MessageQueue]:
        if not self._asks and topic in self._queues:
            return self._queues[topic]
        try:
            self._queues[topic] = self._cluster.queues([topic])
            if not self._queues[topic] and self._options.topic_pattern is None:
                self.tell(f"topic {topic!r} has no queue that may be read: nothing is read of it until it has one")
            for text in closed_parts(self._cluster, self._options, [topic]).values():
                self.tell(text)
        except RouteNotFound:
            is_known = topic in self._queues or held is None or any(queue.topic == topic for queue in held)
            if not is_known and self._options.topic_pattern is None:
                raise
            self._queues[topic] = []
        except TransportError as e:
            if topic not in self._queues:
                raise
            self._asks = False
            self.tell(f"going on with the queues that are known: {e}")
        return self._queues[topic]

    def tell(self, text: str) -> None:
        """Log a text, but each text only once, as triggers come often."""
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)


class QueueGone(RocketSparkError):
    """Raised when a queue that a stream read does not exist any more."""

    def __init__(self, queue: MessageQueue, offset: int, why: str) -> None:
        super().__init__(
            f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r}, read up to offset"
            f" {offset}, is gone ({why}); set failOnDataLoss to false to go on without it"
        )
