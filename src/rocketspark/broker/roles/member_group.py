"""The live brokers of this broker's name, as a NameServer knows them."""

from __future__ import annotations

from rocketspark.broker import topic_names
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import NoNameServer, RocketSparkError, ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import MemberGroupHeader
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import RouteBody
from rocketspark.protocol.json.metadata import MemberGroupReply
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer

TIMEOUT_MS = 3000


class MemberGroup:
    """`addresses` by broker id, as they were when last asked for; `alive_count`: this broker always counts."""

    def __init__(self, settings: BrokerSettings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections
        self.addresses: dict[int, str] = {}
        # Until a NameServer was asked, all replicas count (rule: DefaultMessageStore, 5.x).
        self.alive_count = max(settings.replicas_total, 1)

    def others(self) -> list[str]:
        """Return the addresses of the others, as they were when last asked for."""
        return [address for broker_id, address in self.addresses.items() if broker_id != self._settings.broker_id]

    async def ask(self) -> dict[int, str]:
        """Ask the NameServers, the first that answers; return the addresses. Raises RocketSparkError if none does."""
        error: RocketSparkError = NoNameServer("no NameServer is set (namesrvAddr)")
        s = self._settings
        for namesrv in s.namesrvs():
            try:
                peer = await self._connections.get(namesrv)
                by_route = s.slave_acting_master and s.old_nameservers
                found = await (self._routed(peer) if by_route else self._told(peer))
            except RocketSparkError as e:
                error = e
                continue
            self.addresses = dict(found)
            self.alive_count = max(len(found | {s.broker_id: ""}), 1)
            return self.addresses
        raise error

    async def _told(self, peer: Peer) -> dict[int, str]:
        s = self._settings
        header = MemberGroupHeader(cluster=s.cluster_name, broker_name=s.broker_name)
        answer = await peer.request(RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout_ms=TIMEOUT_MS)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ServerError(answer.code, "it is older than 5.0", address=peer.address)
        body = answer.raise_for_code("ask for the brokers of the name").body
        return java_json.decode(body, MemberGroupReply).broker_member_group.broker_addrs

    async def _routed(self, peer: Peer) -> dict[int, str]:
        """Ask as NameServers before 5.0 can be asked (compatibleWithOldNameSrv)."""
        s = self._settings
        header = RouteHeader(topic=topic_names.MEMBER_TOPIC_PREFIX + s.broker_name)
        answer = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        route = java_json.decode(answer.raise_for_code("ask for the brokers of the name").body, RouteBody)
        found = (b.broker_addrs for b in route.broker_datas if b.broker_name == s.broker_name)
        return next((addresses for addresses in found if addresses), {})
