"""Asks the other brokers of a cluster for their parts of logical queues. Addresses come from the NameServers."""

from __future__ import annotations

from rocketspark.broker.inner_connections import inner_connections
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError, ServerError, TransportError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.headers.static_topics import TopicConfigHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import ClusterInfo, QueueMapping, RouteBody
from rocketspark.protocol.json.static_topics import MappingDetail, TopicConfigAndMapping
from rocketspark.transport.request_frames import Reply

# Rule: forwardTimeout, 5.x.
FORWARD_TIMEOUT_MS = 3000


class OtherBrokers:
    """Sends requests to the other brokers of the cluster, over one connection to each."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._connections = inner_connections(settings)
        self._addresses: dict[str, str] = {}

    async def ask(self, broker_name: str, code: int, header: Header) -> Reply:
        """Send a request to a broker; return its reply, whatever its code. Raises ServerError 1 if there is none."""
        try:
            known = self._addresses.get(broker_name)
            if known is not None:
                try:
                    return await self._request(known, code, header)
                except TransportError:
                    # It may have another address now.
                    del self._addresses[broker_name]
            return await self._request(await self._address(broker_name), code, header)
        except RocketSparkError as e:
            raise ServerError(
                ResponseCode.SYSTEM_ERROR, f"broker {shown(broker_name)}, which holds a part of the queue: {e}"
            ) from e

    async def _request(self, address: str, code: int, header: Header) -> Reply:
        peer = await self._connections.get(address)
        return await peer.request(code, header, timeout_ms=FORWARD_TIMEOUT_MS)

    async def mapping(self, broker_name: str, topic: str) -> MappingDetail | None:
        """Return a static topic's mapping on another broker, None if it has none. Raises ServerError."""
        reply = await self.ask(broker_name, RequestCode.GET_TOPIC_CONFIG, TopicConfigHeader(topic=topic, lo=True))
        return java_json.decode(reply.raise_for_code("settings of a topic").body, TopicConfigAndMapping).mapping_detail

    async def mappings(self, topic: str) -> dict[str, QueueMapping]:
        """Return each broker's mapping of a topic, from the topic's route. Raises RocketSparkError."""
        failed: RocketSparkError | None = None
        for namesrv in self._settings.namesrvs():
            try:
                reply = await self._request(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=topic))
                return (
                    java_json.decode(reply.raise_for_code("route").body, RouteBody).topic_queue_mapping_by_broker or {}
                )
            except RocketSparkError as e:
                failed = e
        raise failed or ServerError(ResponseCode.SYSTEM_ERROR, "no NameServer is set")

    async def _address(self, broker_name: str) -> str:
        failed: RocketSparkError | None = None
        for namesrv in self._settings.namesrvs():
            try:
                reply = await self._request(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, Header())
                table = java_json.decode(reply.raise_for_code("cluster").body, ClusterInfo).broker_addr_table
            except RocketSparkError as e:
                failed = e
                continue
            if (broker := table.get(broker_name)) is not None and broker.broker_addrs:
                # The master, or the one in its place.
                address = broker.broker_addrs[min(broker.broker_addrs)]
                self._addresses[broker_name] = address
                return address
        raise failed or ServerError(ResponseCode.SYSTEM_ERROR, "no NameServer knows its address")

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()
