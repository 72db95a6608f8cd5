"""The last step of a delayed message: it is stored under its real topic.

`schedule_messages` (delay levels) and `timers/` (timer messages) find what is due and call this.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import PutMessage, pairs_of
from rocketspark.broker.statistics.stats import Stats, count
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record_crc
from rocketspark.protocol.message.record import Record


def delivery(put_message: PutMessage, stats: Stats) -> Callable[[Record], None]:
    """Return the function that puts a parked message back. It raises ServerError 13 if the target is not valid."""

    def deliver(parked: Record) -> None:
        pairs = pairs_of(parked.properties)
        target = topic_names.target_of(pairs)
        if target is None:
            raise ServerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"no topic and queue it may go to: REAL_TOPIC {pairs.get(b'REAL_TOPIC', b'')[:200]!r},"
                f" REAL_QID {pairs.get(b'REAL_QID', b'')[:20]!r}",
            )
        topic, queue_id = target
        put_message.rules.admit_parked(topic, queue_id, parked.position)
        stored = record_crc.without(parked.properties)
        position, _, end = put_message.accept_again(parked, topic, queue_id, stored, pairs)
        count(stats.delivered, topic, end - position)

    return deliver
