"""Orphaned transactions: what a broker asks goes to one producer of the topic, over its Telemetry stream.

Rule: the producer answers by EndTransaction; a question that nobody can be asked is dropped, the broker asks again
(ProxyClientRemotingProcessor and GrpcClientChannel, 5.5.0).
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from rocketspark.access.resources import PUB
from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.headers import CheckTransactionHeader, Request
from rocketspark.protocol.message import properties, record
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.clients import Clients
from rocketspark.proxy.message_form import message_of, pairs_of
from rocketspark.proxy.messages import MESSAGE_ID, PRODUCER_GROUP
from rocketspark.proxy.producing.transaction_data import HalfPlace, TransactionData, monotonic_ms
from rocketspark.proxy.wire import messages
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.proxy")


class Orphans:
    """Hands on what brokers ask about transactions."""

    def __init__(self, brokers: Brokers, clients: Clients, data: TransactionData) -> None:
        self._brokers = brokers
        self._clients = clients
        self._data = data
        self._turns = itertools.count()

    async def asked(self, peer: Peer, request: Request[CheckTransactionHeader], body: bytes) -> None:
        """Serve CHECK_TRANSACTION_STATE, which has no answer."""
        header = request.ext
        broker_name = header.broker_name or self._brokers.name_at(peer.address)
        if not broker_name:
            log.warning("%s asks about a transaction, but no broker is known there", peer.address)
            return
        try:
            half = record.decode(body, check_crc=False)
        except RecordError as e:
            log.warning("broker %s asks about a transaction, but its message cannot be read: %s", broker_name, e)
            return
        pairs = pairs_of(half)
        group = pairs.get(PRODUCER_GROUP, "")
        topic = pairs.get(properties.REAL_TOPIC) or half.topic.decode("utf-8", "replace")
        transaction_id = header.transaction_id or pairs.get(MESSAGE_ID, "")
        place = HalfPlace(broker_name, header.half_offset, header.physical_offset)
        if not self._data.add_checked(group, transaction_id, place, monotonic_ms()):
            log.info("transaction %s has its end: nobody is asked", shown(transaction_id))
            return
        message = message_of(half, topic, pairs, int(time.time() * 1000))
        recovery = messages.RecoverOrphanedTransactionCommand(message=message, transaction_id=transaction_id)
        command = messages.TelemetryCommand(recover_orphaned_transaction_command=recovery)
        await self._ask(group, topic, transaction_id, command)

    async def _ask(self, group: str, topic: str, transaction_id: str, command: Any) -> None:
        """Ask one producer that may send to the topic, another one if its stream has ended."""
        producers = self._clients.producers_of(group)
        turn = next(self._turns)
        for step in range(len(producers)):
            client = producers[(turn + step) % len(producers)]
            if not await self._clients.may_be_sent(client, topic, PUB):
                continue
            for stream in reversed(client.streams):
                if await stream.send(command):
                    return
        log.warning("transaction %s: no producer of topic %s is there to be asked", shown(transaction_id), shown(group))
