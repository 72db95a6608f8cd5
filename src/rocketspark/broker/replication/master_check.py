"""What a slave makes sure of before it copies: that the master is of its own name, and that both have the same log.

The link tells neither. `MasterIdentity` asks which broker is at the address, and compares one record; `mend_log`
replaces what is damaged in the slave's log by the master's records, so that a slave with a hole is not in sync, nor
elected; `mend_doubtful` does so with records that are not what their queues say.

Rules: only what is sure counts. A broker that cannot be asked, or that has another replication port, proves nothing,
and the slave copies as RocketMQ's would. Damage is mended only by whole records that fill it exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rocketspark.broker.replication.link.links import NOWHERE
from rocketspark.broker.replication.master_api import ask_ha_info
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, RecordError, ReplicationError, RocketSparkError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header, ViewMessageHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import ClusterInfo
from rocketspark.protocol.message import record, record_layout
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections, parse_address

log = LimitedLog("rocketspark.broker.replication")

# All that is asked before a connection takes no longer.
IDENTITY_LIMIT_S = 2.0
IDENTITY_TIMEOUT_MS = 1000
# More brokers of one host are not asked.
BROKERS_MAX = 8
# So many of the log's last records are looked at, while the later ones are in doubt.
LAST_RECORDS_MAX = 16

RECORD_TIMEOUT_MS = 3000
# Longer damage is no matter of some records: the store has to be copied anew.
MENDED_BYTES_MAX = 16 << 20


class MasterIdentity:
    """Asks which broker is at an address of a replication port."""

    def __init__(self, settings: BrokerSettings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections

    async def check(self, address: str) -> str | None:
        """Return the request address of the broker with this replication address; None if it cannot be found out.

        Raises ReplicationError if the broker is of another cluster or name.
        """
        s = self._settings
        try:
            async with asyncio.timeout(IDENTITY_LIMIT_S):
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

    async def other_record(self, master: str, store: Store) -> int:
        """Return where a last record of the log lies in whose place the master has another one; NOWHERE if it has the
        same, or tells of none.

        The link alone would notice only if the master had no record that begins where this log ends. Of a record that
        is damaged here, in doubt, or no other than by a flipped bit, which is put in doubt, the one before tells.
        """
        log, end, differs_at = store.log, None, NOWHERE
        for _ in range(LAST_RECORDS_MAX):
            newest = store.newest_record(end)
            theirs = None if newest is None else await self._record_of(master, newest[0])
            if newest is None or theirs is None:
                break
            end, own = newest
            if theirs == own:
                return NOWHERE
            if not _is_flipped(own, theirs):
                differs_at = max(differs_at, end)
                if end not in log.doubtful and _is_whole(own):
                    break
            log.doubt(end, len(own))
        return differs_at

    async def _record_of(self, master: str, position: int) -> bytes | None:
        header = ViewMessageHeader(physical_offset=position)
        try:
            async with asyncio.timeout(IDENTITY_LIMIT_S):
                peer = await self._connections.get(master)
                reply = await peer.request(RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=IDENTITY_TIMEOUT_MS)
        except (TimeoutError, RocketSparkError):
            return None
        return bytes(reply.body) if reply.code == ResponseCode.SUCCESS else None

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
        """Return the cluster and name in a broker's settings, if that replication port is its own."""
        try:
            peer = await self._connections.get(broker)
            reply = await peer.request(RequestCode.GET_BROKER_CONFIG, Header(), timeout_ms=IDENTITY_TIMEOUT_MS)
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
                reply = await peer.request(
                    RequestCode.GET_BROKER_CLUSTER_INFO, Header(), timeout_ms=IDENTITY_TIMEOUT_MS
                )
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


def _is_whole(own: bytes) -> bool:
    try:
        record.decode(own)
    except RecordError:
        return False
    return True


def _is_flipped(own: bytes, theirs: bytes) -> bool:
    """Tell whether a flipped bit makes one record of the other: two messages differ in more."""
    differing = int.from_bytes(own, "big") ^ int.from_bytes(theirs, "big")
    return len(own) == len(theirs) and differing.bit_count() == 1


async def mend_log(store: Store, connections: Connections, master: str) -> None:
    """Replace each damaged stretch of the log by the master's records; what the master lacks stays damaged."""
    for begin, end in store.log.damaged:
        try:
            found = await _records(connections, master, begin, end, store.log.file_bytes)
        except RocketSparkError as e:
            log.warning(
                "%d bytes of the log at %d are damaged, and were not taken from the master at %s: %s. If the master has"
                " these messages, stop this broker, remove its store and start it again",
                end - begin,
                begin,
                master,
                e,
            )
            continue
        if store.mend(begin, found):
            log.warning(
                "%d damaged bytes of the log at %d are mended with the master's: check the disk", end - begin, begin
            )
    await mend_doubtful(store, connections, master)


async def mend_doubtful(store: Store, connections: Connections, master: str) -> None:
    """Hold each record of the log that is in doubt against the master's, and take that one where they differ.

    Its CRC does not cover a record's queue, offset and topic, so the record alone does not tell.
    """
    for begin, size in tuple(store.log.doubtful.items()):
        try:
            found = await _records(connections, master, begin, begin + size, store.log.file_bytes)
        except TransportError:
            return
        except RocketSparkError:
            # No record is there: what named this place is wrong.
            store.log.doubtful.pop(begin, None)
            continue
        if found == store.log_bytes(begin, size):
            store.log.doubtful.pop(begin, None)
        elif store.mend(begin, found):
            for queue in store.consume_queues.loaded():
                queue.proven = ()
            log.warning(
                "the record of %d bytes at %d was another one than the master's, and is mended with that: check the"
                " disk",
                size,
                begin,
            )


async def _records(connections: Connections, master: str, begin: int, end: int, file_bytes: int) -> bytes:
    """Return what the master has from one position to the other. Raises RocketSparkError if records do not fill it.

    A file's end may be unused: its mark is as little in the log after a power cut as a record is.
    """
    if end - begin > MENDED_BYTES_MAX:
        raise RecordError(f"more than {MENDED_BYTES_MAX} bytes are not taken one record after the other")
    found = b""
    peer = await connections.get(master)
    while begin + len(found) < end:
        at = begin + len(found)
        header = ViewMessageHeader(physical_offset=at, unused=True)
        reply = await peer.request(RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=RECORD_TIMEOUT_MS)
        body = bytes(reply.raise_for_code(f"view of the message at {at}").body)
        left = file_bytes - at % file_bytes
        if len(body) == record_layout.BLANK_BYTES_MIN and record_layout.is_blank(body, 0, left):
            body = body.ljust(left, b"\0")
        else:
            there = record.decode(body)
            if (there.position, there.size) != (at, len(body)):
                raise RecordError(f"what the master has at {at} is no record that was here")
        if at + len(body) > end:
            raise RecordError(f"what the master has at {at} is no record that was here")
        found += body
    return found
