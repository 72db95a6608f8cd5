"""EndTransaction, and where the half messages of open transactions lie. Times are those of `monotonic_ms`.

Rule: an end is told to the broker that has the half message, which answers nothing; if it gets lost, the broker asks
about the transaction. Where the half message lies is known from its send or from the broker's question; else it is
looked for in the brokers' indexes, unless this proxy has told its end before (EndTransactionActivity and
TransactionDataManager, 5.5.0). What is known of a half message is forgotten whole when it ends, so that a second end,
or the answer to a check that crossed the first one, ends nothing twice; the number of transactions is bounded, and the
oldest are dropped. Of several copies of a half message, which a broker stores anew at each check, the newest counts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

from rocketspark import machine
from rocketspark.client.connection import client_api
from rocketspark.errors import NoReply, NotSent
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.headers import EndTransactionHeader
from rocketspark.protocol.message import properties, sysflags
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.call import Call
from rocketspark.proxy.checks import checked_topic, is_blank
from rocketspark.proxy.message_form import MESSAGE_ID
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code, TransactionResolution, TransactionSource
from rocketspark.proxy.wire.statuses import Refused, status
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.proxy")


# Of how many half messages one transaction id may be: each attempt of a send may have made one.
PER_ID_MAX = 15
IDS_MAX = 100_000
EXPIRY_MS = 30_000
# A check that comes so soon after an end was under way with it; if the end was lost, the broker checks again.
CROSSED_MS = 3000

# Characters of an id that is kept as it is; of a longer one its digest is: an id may fill a message's properties.
ID_KEPT_MAX = 128

Key = tuple[str, str]


def _key(topic: str, transaction_id: str) -> Key:
    if len(transaction_id) > ID_KEPT_MAX:
        transaction_id = hashlib.sha256(transaction_id.encode()).hexdigest()
    return topic, transaction_id


def monotonic_ms() -> int:
    """Return the ms of a clock that only goes forward, whatever the time of day is set to."""
    return machine.monotonic_ns() // 1_000_000


class HalfPlace(NamedTuple):
    """The place of a half message: its broker, its offset in the half queue, and its physical offset in the log."""

    broker_name: str
    half_offset: int
    physical_offset: int


class TransactionData:
    """Remembers where the half messages of open transactions are, and which transactions were ended a short time ago.

    A half message is forgotten after `expiry_ms`; `per_id_max` copies of one and `ids_max` transactions are remembered.
    """

    def __init__(self, expiry_ms: int = EXPIRY_MS, per_id_max: int = PER_ID_MAX, ids_max: int = IDS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._per_id_max = per_id_max
        self._ids_max = ids_max
        # By key, in the order of their last change: places and when they were told of, the newest last.
        self._open: OrderedDict[Key, dict[HalfPlace, int]] = OrderedDict()
        self._ended: OrderedDict[Key, dict[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, topic: str, transaction_id: str, place: HalfPlace, now_ms: int) -> None:
        """Remember the place of a half message of a transaction."""
        key = _key(topic, transaction_id)
        places = self._open.get(key)
        if places is None:
            places = self._open[key] = {}
            if len(self._open) > self._ids_max:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(key)
            places.pop(place, None)
        places[place] = now_ms
        if len(places) > self._per_id_max:
            del places[next(iter(places))]

    def add_checked(self, topic: str, transaction_id: str, place: HalfPlace, now_ms: int) -> bool:
        """Remember the half message that a broker asks about, in place of its earlier copies on that broker: only the
        newest counts.

        Returns False if the broker was told the end just now: then no client is to be asked.
        """
        key = _key(topic, transaction_id)
        ended = self._ended.get(key)
        if ended is not None and abs(now_ms - ended.get(place.broker_name, -(1 << 60))) < CROSSED_MS:
            return False
        for older in [p for p in self._open.get(key, ()) if p.broker_name == place.broker_name]:
            del self._open[key][older]
        self.add(topic, transaction_id, place, now_ms)
        return True

    def take(self, topic: str, transaction_id: str, now_ms: int) -> HalfPlace | None:
        """Return the newest half message of a transaction, and forget all its copies on that broker. None if none is
        known, or only ones that were noted too long ago.
        """
        key = _key(topic, transaction_id)
        places = self._open.get(key)
        if places is None:
            return None
        place, told_ms = places.popitem()
        if now_ms - told_ms > self._expiry_ms:
            del self._open[key]
            return None
        for other in [p for p in places if p.broker_name == place.broker_name]:
            del places[other]
        if not places:
            del self._open[key]
        return place

    def note_end(self, topic: str, transaction_id: str, broker_name: str, now_ms: int) -> None:
        """Remember that a broker was told the end of a transaction."""
        key = _key(topic, transaction_id)
        self._ended.setdefault(key, {})[broker_name] = now_ms
        self._ended.move_to_end(key)
        if len(self._ended) > self._ids_max:
            self._ended.popitem(last=False)

    def forget_end(self, topic: str, transaction_id: str, broker_name: str) -> None:
        """Undo `note_end`, as the broker could not be told after all."""
        key = _key(topic, transaction_id)
        brokers = self._ended.get(key)
        if brokers is not None:
            brokers.pop(broker_name, None)
            if not brokers:
                del self._ended[key]

    def was_ended(self, topic: str, transaction_id: str) -> bool:
        """Tell whether a broker was told the end of a transaction a short time ago."""
        return _key(topic, transaction_id) in self._ended

    def sweep(self, now_ms: int) -> None:
        """Forget the half messages and the ends that were noted too long ago."""
        while self._open:
            key, places = next(iter(self._open.items()))
            if now_ms - max(places.values(), default=0) <= self._expiry_ms:
                break
            del self._open[key]
        while self._ended:
            key, brokers = next(iter(self._ended.items()))
            if now_ms - max(brokers.values()) <= 2 * self._expiry_ms:
                break
            del self._ended[key]


HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
# Its offset in the half queue: half messages before it have their end, or were given up.
HALF_GROUP = "CID_RMQ_SYS_TRANS"
# A broker answers with so many at most; a half message may have been checked 15 times.
FOUND_MAX = 32
# A half message that seems done may just be stored anew: then its index follows.
LOOKS = 3
LOOK_INTERVAL_S = 0.1


async def find_half_message(brokers: Brokers, topic: str, transaction_id: str, timeout_ms: float) -> HalfPlace | None:
    """Return where the open half message of a transaction lies; None if no broker has it, or it was committed.

    Raises RocketSparkError if a broker that may have it does not answer.
    """
    route = await brokers.route(topic)
    names = [broker.broker_name for broker in route.brokers if broker.master is not None]
    found = await asyncio.gather(
        *(_look(brokers, topic, name, transaction_id, timeout_ms) for name in names), return_exceptions=True
    )
    places = [place for place in found if isinstance(place, HalfPlace)]
    if places:
        return places[0]
    for error in found:
        if isinstance(error, BaseException):
            raise error
    return None


async def _look(
    brokers: Brokers, topic: str, broker_name: str, transaction_id: str, timeout_ms: float
) -> HalfPlace | None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            peer = await brokers.peer(broker_name)
            for _ in range(LOOKS):
                # Before the index: what a check has stored anew is in it by then, or soon.
                queue = MessageQueue(HALF_TOPIC, broker_name, 0)
                done = await client_api.query_consumer_offset(peer, queue, HALF_GROUP, timeout_ms=timeout_ms)
                halves = await _query(peer, HALF_TOPIC, transaction_id, broker_name, timeout_ms)
                ours = [half for half in halves if half.properties.get(properties.REAL_TOPIC) == topic]
                if not ours or await _query(peer, topic, transaction_id, broker_name, timeout_ms):
                    return None
                newest = max(ours, key=lambda half: half.queue_offset)
                if done is None or newest.queue_offset >= done:
                    return HalfPlace(broker_name, newest.queue_offset, newest.physical_offset)
                await asyncio.sleep(LOOK_INTERVAL_S)
            return None
    except TimeoutError:
        raise NoReply(f"broker {broker_name} did not tell in time where transaction {transaction_id} lies") from None


async def _query(
    peer: Peer, topic: str, transaction_id: str, broker_name: str, timeout_ms: float
) -> list[ReceivedMessage]:
    found = await client_api.query_message(
        peer, topic, transaction_id, count_max=FOUND_MAX, unique=True, broker_name=broker_name, timeout_ms=timeout_ms
    )
    # The index has hashes of ids.
    return [message for message in found.messages if message.properties.get(MESSAGE_ID) == transaction_id]


_OUTCOMES: dict[int, int] = {
    TransactionResolution.COMMIT: sysflags.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: sysflags.TRANSACTION_ROLLBACK,
}


class Transactions:
    """Serves EndTransaction for one proxy."""

    def __init__(self, brokers: Brokers, data: TransactionData) -> None:
        self._brokers = brokers
        self._data = data

    async def end_transaction(self, call: Call, request: Any) -> Any:
        """Serve EndTransaction. Raises Refused, RocketSparkError."""
        topic = checked_topic(request.topic.name)
        transaction_id = request.transaction_id
        if is_blank(transaction_id):
            raise Refused(Code.INVALID_TRANSACTION_ID, "transaction id: it is blank")
        outcome = _OUTCOMES.get(request.resolution, 0)
        timeout_ms = call.ask_timeout_ms
        place = self._data.take(topic, transaction_id, monotonic_ms())
        if place is None:
            place = await self._find(topic, transaction_id, timeout_ms)
        header = EndTransactionHeader(
            topic=topic,
            producer_group=topic,
            half_offset=place.half_offset,
            physical_offset=place.physical_offset,
            outcome=outcome,
            from_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
            message_id=request.message_id,
            transaction_id=transaction_id,
            broker_name=place.broker_name,
        )
        await self._tell(topic, place, header, timeout_ms)
        return messages.EndTransactionResponse(status=status(Code.OK))

    async def _find(self, topic: str, transaction_id: str, timeout_ms: float) -> HalfPlace:
        place = None
        if not self._data.was_ended(topic, transaction_id):
            place = await find_half_message(self._brokers, topic, transaction_id, timeout_ms)
            # Another call may have found it meanwhile.
        if place is None or self._data.was_ended(topic, transaction_id):
            raise Refused(Code.INTERNAL_SERVER_ERROR, f"cannot found transaction data: {shown(transaction_id)}")
        return place

    async def _tell(self, topic: str, place: HalfPlace, header: EndTransactionHeader, timeout_ms: float) -> None:
        """Tell the broker; if that fails, the half message can be ended again."""
        transaction_id = header.transaction_id or ""
        if header.outcome:
            # Noted before any wait, so that a call served meanwhile finds the transaction ended.
            self._data.note_end(topic, transaction_id, place.broker_name, monotonic_ms())
        try:
            peer = self._brokers.open_peer(place.broker_name)
            if peer is None:
                async with asyncio.timeout(timeout_ms / 1000):
                    peer = await self._brokers.peer(place.broker_name)
            client_api.end_transaction(peer, header)
        except BaseException as e:
            self._data.forget_end(topic, transaction_id, place.broker_name)
            self._data.add(topic, transaction_id, place, monotonic_ms())
            if isinstance(e, TimeoutError):
                text = f"no connection to broker {place.broker_name} in time: the end was not sent"
                raise NotSent(text) from None
            raise
        if not header.outcome:
            # It is as open as before.
            self._data.add(topic, transaction_id, place, monotonic_ms())
