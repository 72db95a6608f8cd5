"""Whose master it is that a slave is about to copy from, and of which log: the link itself tells neither.

Rule: only what is sure counts. A broker that cannot be asked, or whose port of replication is another, proves nothing,
and the slave copies as RocketMQ's would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rocketspark.broker.replication.tables.ha_info import ask_ha_info
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, ReplicationError, RocketSparkError
from rocketspark.model.route import MASTER_ID
from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header, ViewMessageHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import ClusterInfo
from rocketspark.transport.connections import Connections, parse_address

# All that is asked before a connection takes no longer.
LIMIT_S = 2.0
TIMEOUT_MS = 1000
# More brokers of one host are not asked.
BROKERS_MAX = 8


class MasterIdentity:
    """Asks who a master is, by the address of its replication."""

    def __init__(self, settings: BrokerSettings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections

    async def check(self, address: str) -> str | None:
        """Return where the broker that listens for slaves there takes requests, None if that cannot be known.

        Raises ReplicationError if it is of another cluster or name.
        """
        s = self._settings
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await self._owner(address)
        except (TimeoutError, RocketSparkError):
            return None
        if found is None or found[:2] == (s.cluster_name, s.broker_name):
            return None if found is None else found[2]
        cluster, name = (shown(word) for word in found[:2])
        raise ReplicationError(
            f"the master there is broker {name} of cluster {cluster}, and this slave is broker {s.broker_name} of"
            f" cluster {s.cluster_name}: nothing is copied; correct haMasterAddress, brokerName or brokerClusterName",
            reason="another-master",
        )

    async def check_log(self, master: str, position: int, record: bytes) -> None:
        """Raise ReplicationError if the master at an address has another record where this log has its last one.

        The link alone notices only if none begins where this log ends.
        """
        header = ViewMessageHeader(physical_offset=position)
        try:
            async with asyncio.timeout(LIMIT_S):
                peer = await self._connections.get(master)
                reply = await peer.request(RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=TIMEOUT_MS)
        except (TimeoutError, RocketSparkError):
            return
        if reply.code == ResponseCode.SUCCESS and reply.body != record:
            raise ReplicationError(
                f"the log here is no copy of this master's: at {position}, where its last record is, the master has"
                " another one. Nothing is copied. Stop this broker, save what it alone has, remove its store and start"
                " it again",
                reason="diverged",
            )

    async def _owner(self, address: str) -> tuple[str, str, str] | None:
        """Return (cluster, name, address) of the broker with that address of replication, None if it is not known."""
        host, port = parse_address(address)
        beside = f"[{host}]:{port - 1}" if ":" in host else f"{host}:{port - 1}"
        if port > 1 and (found := await self._said(beside, port)) is not None:
            return *found, beside
        async for cluster, name, master in self._masters_on(host):
            try:
                info = await ask_ha_info(self._connections, master)
                if info is not None and parse_address(info.ha_address) == (host, port):
                    return cluster, name, master
            except RocketSparkError:
                continue
        return None

    async def _said(self, broker: str, ha_port: int) -> tuple[str, str] | None:
        """Return what a broker's settings say, if that port of replication is its own."""
        try:
            peer = await self._connections.get(broker)
            reply = await peer.request(RequestCode.GET_BROKER_CONFIG, Header(), timeout_ms=TIMEOUT_MS)
            body = bytes(reply.raise_for_code("ask for a master's name").body)
        except RocketSparkError:
            return None
        told = dict(line.split("=", 1) for line in body.decode("utf-8", "replace").splitlines() if "=" in line)
        # 0: the one behind its port of requests (ours; RocketMQ's broker tells what it took).
        port = whole_number(told.get("haListenPort", "0"), high=65535)
        listen = whole_number(told.get("listenPort", ""), high=65535)
        if (port or (listen or 0) + 1) != ha_port:
            return None
        cluster, name = told.get("brokerClusterName", ""), told.get("brokerName", "")
        return (cluster, name) if cluster and name else None

    async def _masters_on(self, host: str) -> AsyncIterator[tuple[str, str, str]]:
        """Give (cluster, name, address) of the masters of other names on a host that the NameServers know."""
        s = self._settings
        for namesrv in s.namesrvs():
            try:
                peer = await self._connections.get(namesrv)
                reply = await peer.request(RequestCode.GET_BROKER_CLUSTER_INFO, Header(), timeout_ms=TIMEOUT_MS)
                table = java_json.decode(reply.raise_for_code("cluster").body, ClusterInfo).broker_addr_table
            except RocketSparkError:
                continue
            count = 0
            for name, broker in table.items():
                master = broker.broker_addrs.get(MASTER_ID)
                if master is None or name == s.broker_name:
                    continue
                try:
                    is_there = parse_address(master)[0] == host
                except ConfigError:
                    continue
                if is_there and count < BROKERS_MAX:
                    count += 1
                    yield broker.cluster, name, master
            return
