"""Keeps the broker known to every NameServer: at the start, every 30 s, on each change, and after a lost connection."""

from __future__ import annotations

import asyncio
import logging
import zlib

from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.topics import Topics
from rocketspark.errors import RocketSparkError
from rocketspark.protocol import bodies, java_json
from rocketspark.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import BrokerHeader, RegisterBrokerHeader
from rocketspark.transport.dial import Connections

log = logging.getLogger("rocketspark.broker")

RETRY_S = 1.0
TIMEOUT_MS = 6000
# Less than an admin client waits for its own request (5 s).
SETTLE_S = 3.0


class Registration:
    """Registers one broker at its NameServers; none of them can hold up another."""

    def __init__(self, settings: BrokerSettings, topics: Topics) -> None:
        self._settings = settings
        self._topics = topics
        self._connections = Connections(language="JAVA")
        self._address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._warnings: set[asyncio.Task[None]] = set()
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, address: str) -> None:
        """Register everywhere; a NameServer that is not there yet is tried again in the background."""
        self._address = address
        first = [asyncio.Event() for _ in self._settings.namesrvs()]
        for namesrv, done in zip(self._settings.namesrvs(), first, strict=True):
            self._keepers.append(asyncio.create_task(self._keep(namesrv, done)))
        if first:
            await asyncio.wait([asyncio.ensure_future(e.wait()) for e in first], timeout=TIMEOUT_MS / 1000)

    async def _keep(self, namesrv: str, first: asyncio.Event) -> None:
        interval_s = self._settings.register_interval_ms / 1000
        failing = False
        while True:
            wait_s = interval_s
            try:
                await self._register(namesrv, self._topics.wrapper())
                failing = False
            except RocketSparkError as e:
                if not failing:
                    log.warning("NameServer %s: %s; tried again every %.0f s", namesrv, e, RETRY_S)
                failing = True
                wait_s = min(RETRY_S, interval_s)
            first.set()
            peer = self._connections.open_peer(namesrv)
            if peer is None:
                await asyncio.sleep(wait_s)
                continue
            # A connection that ends means a NameServer that forgot this broker: register again soon.
            try:
                async with asyncio.timeout(wait_s):
                    await peer.wait_closed()
                await asyncio.sleep(min(0.1, wait_s))
            except TimeoutError:
                pass

    def changed(self, configs: list[TopicConfig]) -> None:
        """Tell every NameServer of changed topics at once."""
        if not self._address:
            return
        # Now, with the version of this very change: a later one would make the two look alike.
        table = self._topics.wrapper(configs)
        for namesrv in self._settings.namesrvs():
            task = asyncio.get_running_loop().create_task(self._tell(namesrv, table))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def created_automatically(self, topic: str) -> None:
        """A topic was made by its first send, here only: say so if the cluster has other brokers."""
        task = asyncio.get_running_loop().create_task(self._warn_if_several(topic))
        self._warnings.add(task)
        task.add_done_callback(self._warnings.discard)

    async def _warn_if_several(self, topic: str) -> None:
        for namesrv in self._settings.namesrvs()[:1]:
            try:
                peer = await self._connections.get(namesrv)
                answer = await peer.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                info = java_json.decode(answer.raise_for_code("cluster").body, bodies.ClusterInfo)
            except RocketSparkError as e:
                log.info("NameServer %s was not asked for the cluster: %s", namesrv, e)
                return
            others = len(info.cluster_addr_table.get(self._settings.cluster_name, [])) - 1
            if others > 0:
                log.warning(
                    "topic %s was created automatically on this broker only; %d other broker(s) of the cluster do not"
                    " have it: `rocketspark topic create %s` spreads it over all",
                    topic,
                    others,
                    topic,
                )

    async def settled(self) -> None:
        """Wait until the NameServers have heard of every change so far, or do not answer."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=SETTLE_S)

    async def _tell(self, namesrv: str, table: TopicConfigTable) -> None:
        try:
            await self._register(namesrv, table)
        except RocketSparkError as e:
            log.warning("NameServer %s was not told of a changed topic: %s; it will be", namesrv, e)

    async def _register(self, namesrv: str, table: TopicConfigTable) -> None:
        s = self._settings
        body = bodies.encode(RegisterBrokerBody(topic_config_serialize_wrapper=table))
        host, _, port = self._address.rpartition(":")
        header = RegisterBrokerHeader(
            broker_name=s.broker_name,
            address=self._address,
            cluster=s.cluster_name,
            ha_address=f"{host}:{int(port) + 1}",
            broker_id=s.broker_id,
            acting_master=False,
            compressed=False,
            crc=zlib.crc32(body) & 0x7FFFFFFF,
        )
        peer = await self._connections.get(namesrv)
        reply = await peer.request(RequestCode.REGISTER_BROKER, header, body, timeout_ms=TIMEOUT_MS)
        reply.raise_for_code(f"register at NameServer {namesrv}")

    async def stop(self) -> None:
        """Leave every NameServer that can be reached."""
        for task in [*self._keepers, *self._tasks, *self._warnings]:
            task.cancel()
        if self._address:
            s = self._settings
            header = BrokerHeader(
                broker_name=s.broker_name, address=self._address, cluster=s.cluster_name, broker_id=s.broker_id
            )
            for namesrv in s.namesrvs():
                peer = self._connections.open_peer(namesrv)
                if peer is None:
                    continue
                try:
                    await peer.request(RequestCode.UNREGISTER_BROKER, header, timeout_ms=1000)
                except RocketSparkError as e:
                    log.info("NameServer %s was not told of the end: %s", namesrv, e)
        await self._connections.close()
