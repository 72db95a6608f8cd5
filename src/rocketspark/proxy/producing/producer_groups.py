"""What brokers are told of the proxy's producers, and what they ask them: how an orphaned transaction is to end.

Rule: the producer group of a topic has the topic's name, and the proxy is a producer of every topic whose producers it
has; brokers are told when the first producer comes, then from time to time, and when the last one has gone
(ClusterTransactionService, 5.5.0, which lets the group expire). A broker's question goes to one producer of the topic,
over its Telemetry stream; he answers by EndTransaction. A question that nobody can be asked is dropped: the broker asks
again (ProxyClientRemotingProcessor and GrpcClientChannel, 5.5.0).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from rocketspark import machine
from rocketspark.access.policies import PUB
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import unique_name
from rocketspark.errors import RecordError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol import topic_attributes
from rocketspark.protocol.headers import CheckTransactionHeader, Request
from rocketspark.protocol.json.bodies import Heartbeat, ProducerData
from rocketspark.protocol.message import properties, record
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.message_form import MESSAGE_ID, PRODUCER_GROUP, message_apart, pairs_of
from rocketspark.proxy.producing.transactions import HalfPlace, TransactionData, monotonic_ms
from rocketspark.proxy.wire import messages
from rocketspark.transport.peer import Peer
from rocketspark.transport.shared_task import end_tasks

log = LimitedLog("rocketspark.proxy")

# In one heartbeat, as Apache's proxy has it.
GROUPS_MAX = 200
# Brokers are told this far apart, however often clients change their settings.
APART_S = 1.0


class ProducerGroups:
    """Tells brokers of the producer groups of one proxy's clients. `begin` is called on the running loop."""

    def __init__(self, brokers: Brokers, clients: Clients, interval_s: float) -> None:
        self._brokers = brokers
        self._clients = clients
        self._interval_s = interval_s
        self.client_id = f"rmq-proxy-producer-client@{unique_name()}"
        self._wanted = asyncio.Event()
        # By group, the brokers that were told of it.
        self._told: dict[str, set[str]] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to tell brokers of producer groups, in the background."""
        self._task = asyncio.ensure_future(self._run())

    def changed(self, client: ProxyClient) -> None:
        """Have brokers told at once if a client publishes to a topic whose producer group they were not told of."""
        if any(topic not in self._told for topic in client.topics):
            self._wanted.set()

    async def gone(self, client: ProxyClient) -> None:
        """Unregister the producer groups of a client that is gone, except those that other clients are in."""
        for topic in client.topics & self._told.keys():
            if not any(topic in other.topics for other in self._clients.all()):
                await self._leave(topic, self._told.pop(topic))

    async def _leave(self, group: str, broker_names: set[str]) -> None:
        for name in broker_names:
            peer = self._brokers.open_peer(name)
            if peer is not None:
                try:
                    await client_api.unregister(peer, self.client_id, producer_group=group)
                except RocketSparkError as e:
                    log.info("broker %s was not told that producer group %s has ended: %s", name, group, e)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self.tell()
            except RocketSparkError as e:
                log.info("brokers were not told of producer groups: %s", e)
            except Exception:
                log.exception("brokers were not told of producer groups")
            await asyncio.sleep(min(APART_S, self._interval_s))

    async def tell(self) -> None:
        """Tell the brokers of each topic with transactions that the proxy has producers of it."""
        groups: dict[str, list[str]] = {}
        published = {topic for client in self._clients.all() for topic in client.topics}
        # First those that have transactions: clients may name many topics that are not there.
        for topic in [*(published & self._told.keys()), *(published - self._told.keys())]:
            try:
                if await self._brokers.topic_type(topic) in (topic_attributes.TRANSACTION, topic_attributes.MIXED):
                    for broker in (await self._brokers.route(topic)).brokers:
                        if broker.master is not None:
                            groups.setdefault(broker.broker_name, []).append(topic)
            except RocketSparkError as e:
                log.info("brokers of topic %s were not told of its producers: %s", topic, e)
        await asyncio.gather(*(self._tell(name, topics) for name, topics in groups.items()))

    async def _tell(self, broker_name: str, topics: list[str]) -> None:
        try:
            peer = await self._brokers.peer(broker_name)
            for at in range(0, len(topics), GROUPS_MAX):
                part = topics[at : at + GROUPS_MAX]
                body = Heartbeat(client_id=self.client_id, producer_data_set=[ProducerData(group_name=t) for t in part])
                await client_api.heartbeat(peer, body)
                for topic in part:
                    self._told.setdefault(topic, set()).add(broker_name)
        except RocketSparkError as e:
            log.info("broker %s was not told of producer groups: %s", broker_name, e)

    async def close(self) -> None:
        """Stop telling brokers of producer groups."""
        await end_tasks(self._task)


class Orphans:
    """Passes on to a producer what a broker asks about an orphaned transaction."""

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
        # Under the topic that the message goes to: the group may have the name of another, whose users may not end it.
        if not self._data.add_checked(topic, transaction_id, place, monotonic_ms()):
            log.info("transaction %s has its end: nobody is asked", shown(transaction_id))
            return
        message = await message_apart(half, topic, pairs, int(machine.time() * 1000))
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
