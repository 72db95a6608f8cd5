"""Tells brokers that the proxy answers for transactions: it is a producer of every topic whose producers it has.

Rule: the producer group of a topic has the topic's name; brokers are told when the first producer comes, then from time
to time, and when the last one has gone (ClusterTransactionService, 5.5.0, which lets the group expire).
"""

from __future__ import annotations

import asyncio

from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import unique_name
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.json.bodies import Heartbeat, ProducerData
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.messages import MIXED, TRANSACTIONAL

log = LimitedLog("rocketspark.proxy")

# In one heartbeat, as Apache's proxy has it.
GROUPS_MAX = 200


class ProducerGroups:
    """The producer groups of one proxy. `begin` needs the running loop."""

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
        """Begin to tell brokers."""
        self._task = asyncio.ensure_future(self._run())

    def changed(self, client: ProxyClient) -> None:
        """Have brokers told at once, if a client publishes a topic that they do not know of."""
        if any(topic not in self._told for topic in client.topics):
            self._wanted.set()

    async def gone(self, client: ProxyClient) -> None:
        """Take leave of the groups of a client that is gone, unless others are in them."""
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

    async def tell(self) -> None:
        """Tell the brokers of all topics with transactions that the proxy has producers of them."""
        groups: dict[str, list[str]] = {}
        published = {topic for client in self._clients.all() for topic in client.topics}
        # First those that have transactions: clients may name many topics that are not there.
        for topic in [*(published & self._told.keys()), *(published - self._told.keys())]:
            try:
                if await self._brokers.topic_type(topic) in (TRANSACTIONAL, MIXED):
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
        """Tell nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
