"""How a due message of a slave without a master is sent to another broker, and to which. Pure.

Rules (EscapeBridge, TransactionalMessageUtil, 5.5.0): it goes to any writable queue of its topic whose broker has
another name and a master; a half message goes as its producer sent it, so that the other broker checks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rocketspark.broker import topic_names
from rocketspark.errors import ServerError
from rocketspark.model.route import MASTER_ID, PERM_WRITE
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.json.bodies import QUEUES_OF_BROKER_MAX, RouteBody
from rocketspark.protocol.message import properties, record_layout, sysflags
from rocketspark.protocol.message.record import Record

# What parked the message: the other broker would park it once more.
_PARKED = (b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
# Of a place in this broker's store.
_PLACE = (b"REAL_TOPIC", b"REAL_QID", b"__CRC32#", b"TRANSACTION_PREPARED_QUEUE_OFFSET")
_ON_THE_WHEEL = (b"TIMER_OUT_MS", b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_ROLL_TIMES", b"TIMER_GRID_MS")


class Outgoing(NamedTuple):
    """A message on its way out."""

    topic: str
    producer_group: str
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_time_ms: int
    reconsume_times: int

    def header(self, broker_name: str, queue_id: int) -> SendHeader:
        """Return its header of SEND_MESSAGE_V2 for a queue of a broker."""
        return SendHeader(
            producer_group=self.producer_group,
            topic=self.topic,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_time_ms=self.born_time_ms,
            flag=self.flag,
            properties=self.properties.decode("utf-8", "replace"),
            reconsume_times=self.reconsume_times,
            broker_name=broker_name,
        )


class Exit(NamedTuple):
    """A queue of another broker's master."""

    broker_name: str
    address: str
    queue_id: int


def inner_group(broker_name: str, broker_id: int) -> str:
    """Return the producer group of messages that tell none."""
    return f"InnerProducerGroup_{broker_name}_{broker_id}"


def outgoing(
    kept: Record,
    topic: str,
    stored: bytes,
    own_group: str,
    *,
    delayed: bool = False,
    added_flags: int = 0,
    reconsume_times: int | None = None,
) -> Outgoing | None:
    """Return what leaves for a message that would be stored here under a topic with these properties.

    None for the recall of a timer message that is rolled on: it means nothing to another broker, which may not have
    the message it recalls. `delayed`: it may still be parked there. Raises ServerError 13 if it names no topic.
    """
    pairs = properties.pairs_of(stored)
    sys_flag = kept.sys_flag & ~record_layout.HOST_FLAGS | added_flags
    dropped = set(_PLACE)
    added = {b"WAIT": b"false"}
    if topic == topic_names.HALF_TOPIC:
        topic = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace")
        sys_flag |= sysflags.TRANSACTION_PREPARED
        added[b"TRAN_MSG"] = b"true"
    elif topic == topic_names.TIMER_TOPIC:
        # Not due yet: a timer message of the other broker, at the same time.
        if b"TIMER_DEL_UNIQKEY" in pairs:
            return None
        topic = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace")
        added[b"TIMER_DELIVER_MS"] = pairs.get(b"TIMER_OUT_MS", b"0")
        dropped.update(_PARKED, _ON_THE_WHEEL)
    elif not delayed:
        dropped.update(_PARKED)
    if not topic:
        raise ServerError(ResponseCode.MESSAGE_ILLEGAL, f"the message at {kept.position} names no topic it may go to")
    kept_pairs = {name: value for name, value in pairs.items() if name not in dropped}
    return Outgoing(
        topic,
        pairs.get(b"PGROUP", b"").decode("utf-8", "replace") or own_group,
        kept.body,
        properties.of_pairs(kept_pairs | added),
        kept.flag,
        sys_flag,
        kept.born_time_ms,
        kept.reconsume_times if reconsume_times is None else reconsume_times,
    )


def exits(route: RouteBody, own_name: str) -> list[Exit]:
    """Return the queues that a message may leave to, in the order of the route."""
    masters = {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if data.broker_name != own_name and MASTER_ID in data.broker_addrs
    }
    return [
        Exit(queues.broker_name, masters[queues.broker_name], queue_id)
        for queues in sorted(route.queue_datas, key=lambda q: q.broker_name)
        if queues.broker_name in masters and queues.perm & PERM_WRITE
        for queue_id in range(min(queues.write_queue_nums, QUEUES_OF_BROKER_MAX))
    ]


def chosen(found: Iterable[Exit], turn: int) -> Exit | None:
    """Return the queue whose turn it is; None if there is none."""
    queues = list(found)
    return queues[turn % len(queues)] if queues else None
