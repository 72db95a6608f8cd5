"""Delivery of a parked message that is due, under its real topic. Rule: wire.md 9.8."""

from __future__ import annotations

from collections.abc import Callable

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import PutMessage, pairs_of
from rocketspark.broker.statistics.stats import Stats, count
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record, record_crc
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
        position, _, end = put_message.accept(
            topic,
            queue_id,
            parked.body,
            record_crc.without(parked.properties),
            pairs,
            parked.flag,
            parked.sys_flag & ~record.HOST_FLAGS,
            parked.born_time_ms,
            parked.born_host,
            parked.reconsume_times,
            delayed=False,
            again=True,
        )
        count(stats.delivered, topic, end - position)

    return deliver
