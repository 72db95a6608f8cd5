"""Finds a half message in the indexes of the brokers, when the proxy does not know where it lies.

It may have been sent through another proxy, or by this one before it was restarted, or longer ago than is remembered.
Rule: a transaction whose message is there already was committed and has no end any more; of several copies of a half
message, which a broker stores anew at each check, the newest counts.
"""

from __future__ import annotations

import asyncio

from rocketspark.client.connection import client_api
from rocketspark.errors import NoReply
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.message import properties
from rocketspark.proxy import messages
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.producing.transaction_data import HalfPlace
from rocketspark.transport.peer import Peer

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
    return [message for message in found.messages if message.properties.get(messages.MESSAGE_ID) == transaction_id]
