"""What a read does about messages that are gone and bodies that cannot be decoded. Rule: each is named by its queue and
offset; with failOnDataLoss=false, or as option badBodies says, the read goes on.
"""

from __future__ import annotations

import logging

from rocketspark.arrow.decode_request import DecodeFindings
from rocketspark.errors import RecordError, RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import BAD_AS_STORED, BAD_IS_ERROR, ReadOptions
from rocketspark.tables.read.executor_queries import addresses_now, is_compacted

log = logging.getLogger("rocketspark.spark")

# Bad bodies of one partition that are named one by one; the others are counted.
_NAMED_MAX = 20


class DataLost(RocketSparkError):
    """Raised when messages that were to be read are no longer there."""

    def __init__(self, source: OffsetRange, at: int, found: int, why: str) -> None:
        queue = source.queue
        which = f"{at} to {found}" if found >= at else f"from {at} on"
        super().__init__(
            f"messages {which} of queue {queue.queue_id} of topic {queue.topic!r} on broker"
            f" {queue.broker_name!r} are gone ({why}); set failOnDataLoss to false to go on without them"
        )


def lost(gone: OffsetRange, why: str, options: ReadOptions) -> None:
    """Raise DataLost for offsets that are gone, with the reason `why`; with failOnDataLoss=false only warn of them."""
    error = DataLost(gone, gone.first, gone.end - 1, why)
    if options.fail_on_data_loss:
        raise error
    log.warning("%s", error)


class ReadFindings(DecodeFindings):
    """Treats missing messages and bad bodies that the read of one partition finds, as the options say. `addresses`:
    those of the queue's broker; none if files are read.
    """

    def __init__(self, queue: MessageQueue, addresses: tuple[str, ...], options: ReadOptions) -> None:
        self._queue = queue
        self._addresses = addresses
        self._options = options
        self._may_have_gaps: bool | None = None
        self.bad_bodies = 0

    def missing(self, first: int, end: int) -> None:
        """Treat missing offsets as data loss, unless the topic is one that RocketMQ compacts."""
        if self._may_have_gaps is None:
            self._may_have_gaps = self._options.store is None and is_compacted(
                self._queue.topic, addresses_now(self._queue, self._addresses, self._options), self._options
            )
        if not self._may_have_gaps:
            why = "the broker did not send them: it removed them, cannot read them, or the topic was made anew"
            lost(OffsetRange(self._queue, first, end), why, self._options)

    def spoiled(self, offset: int, why: str, stored: bytes | None) -> bytes | None:
        """Treat a body that cannot be decoded as option badBodies says. Raises RecordError."""
        queue = self._queue
        where = (
            f"message {offset} of queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r}"
            f" has no body that can be read ({why})"
        )
        what = self._options.bad_bodies
        if what == BAD_IS_ERROR:
            raise RecordError(f"{where}; set badBodies to null or stored to go on")
        self.bad_bodies += 1
        if self.bad_bodies <= _NAMED_MAX:
            log.warning("%s: it is given %s", where, "as it is stored" if what == BAD_AS_STORED else "as null")
        return stored if what == BAD_AS_STORED else None

    def done(self) -> None:
        """Log how many bad bodies there were beyond those that were named."""
        if self.bad_bodies > _NAMED_MAX:
            queue = self._queue
            log.warning(
                "%d messages of queue %d of topic %r on broker %r have no body that can be read",
                *(self.bad_bodies, queue.queue_id, queue.topic, queue.broker_name),
            )
