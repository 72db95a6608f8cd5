"""Tells brokers of a new lowest id in their group. Rule: no broker that hangs or is gone holds up another.

As 5.5.0 does it the NameServer connects to the broker's own address: a Java broker serves no requests on the connection
it registers over. A notice that cannot be sent is left out, as brokers ask for their group each second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections import OrderedDict, deque
from typing import Any

from rocketspark.errors import NotSent, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.namesrv.acting_master import MinIdChange
from rocketspark.namesrv.registration_limits import REPLICAS_MAX
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import MinBrokerIdHeader
from rocketspark.transport.connections import dial, parse_address
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import RpcHooks
from rocketspark.transport.server_bounds import OF_PROCESS
from rocketspark.transport.tls.client_tls import ClientTls

log = LimitedLog("rocketspark.namesrv")

CONNECT_MS = 1000
# A connection is kept for so long after its last notice: several come in a row, and they stay in order.
LINGER_S = 5.0
# Between tries to connect to one broker.
PAUSE_S = 1.0
# Brokers that are told at once; one more takes the place of the one that was to be told first.
BROKERS_MAX = REPLICAS_MAX
# Notices that wait for one broker; the oldest give way.
NOTICES_MAX = 16
# Names that are looked up at once. A look-up takes a thread until it is over, and many brokers have no name.
LOOKUPS_MAX = 4


class _Lookups:
    """Addresses of brokers that are known by name."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LOOKUPS_MAX)

    async def address(self, address: str) -> str:
        """Return "host:port" with the host looked up, as "ip:port". Raises RocketSparkError."""
        host, port = parse_address(address)
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return address
        await self._free.acquire()
        found = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
        # Whoever waits may be gone by then.
        found.add_done_callback(self._done)
        try:
            places = await asyncio.shield(found)
        except OSError as e:
            raise NotSent(f"{host} is not known: {e.strerror or e}", address=address) from None
        ip = str(places[0][4][0])
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    def _done(self, found: asyncio.Task[Any]) -> None:
        self._free.release()
        if not found.cancelled():
            found.exception()


class _Told:
    """One broker with the notices that wait for it, and the task that sends them."""

    def __init__(self, address: str, lookups: _Lookups, tls: ClientTls | None, signer: RpcHooks | None) -> None:
        self.address = address
        self._tls = tls
        self._signer = signer
        self._lookups = lookups
        self._peer: Peer | None = None
        self.waiting: deque[MinBrokerIdHeader] = deque(maxlen=NOTICES_MAX)
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def add(self, notice: MinBrokerIdHeader) -> None:
        self.waiting.append(notice)
        self._more.set()

    async def _run(self) -> None:
        while self.waiting:
            try:
                await self._tell()
            except RocketSparkError as e:
                self._left_out(e)
            except Exception as e:
                log.exception("a broker is not told of a new lowest id")
                self._left_out(e)
            else:
                continue
            await asyncio.sleep(PAUSE_S)

    def _left_out(self, why: object) -> None:
        self.waiting.clear()
        log.warning("broker %s is not told of a new lowest id: %s", self.address, why)

    async def _tell(self) -> None:
        """Send what waits and what comes, until nothing came for a while."""
        if not OF_PROCESS.take():
            raise NotSent("too many connections are open", address=self.address)
        try:
            while self.waiting:
                if self._peer is None or not self._peer.is_open:
                    self._peer = await self._connected()
                while self.waiting:
                    self._send(self._peer, self.waiting.popleft())
                self._more.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self._more.wait()
        finally:
            OF_PROCESS.give_back()
            if self._peer is not None:
                self._peer.close()

    async def _connected(self) -> Peer:
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                place = await self._lookups.address(self.address)
                return await dial(place, timeout_ms=CONNECT_MS, language="JAVA", hooks=self._signer, tls=self._tls)
        except TimeoutError:
            raise NotSent(f"it did not answer within {CONNECT_MS} ms", address=self.address) from None

    def _send(self, peer: Peer, notice: MinBrokerIdHeader) -> None:
        if peer.is_writable:
            peer.oneway(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        else:
            self._left_out("it does not read")


class MinIdNotices:
    """Sends the notices of one NameServer, to each broker in order.

    `tls`: for the connections to brokers, None for plain ones; `signer`: signs the notices, None for unsigned ones.
    """

    def __init__(self, tls: ClientTls | None = None, signer: RpcHooks | None = None) -> None:
        self._tls = tls
        self._signer = signer
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._lookups = _Lookups()

    def send(self, change: MinIdChange) -> None:
        """Send a notice to all brokers that it is for, to each by itself; returns at once."""
        notice = MinBrokerIdHeader(
            broker_id=change.broker_id,
            address=change.address,
            offline_address=change.offline_address,
            ha_address=change.ha_address,
        )
        log.info(
            "the lowest broker id is %d (%s) now: %d brokers are told",
            change.broker_id,
            change.address,
            len(change.told),
        )
        for address in change.told[-BROKERS_MAX:]:
            self._to(address).add(notice)

    def _to(self, address: str) -> _Told:
        told = self._told.get(address)
        if told is None or told.task.done():
            while len(self._told) >= BROKERS_MAX:
                _, oldest = self._told.popitem(last=False)
                oldest.task.cancel()
            told = self._told[address] = _Told(address, self._lookups, self._tls, self._signer)
            told.task.add_done_callback(lambda _: self._ended(address, told))
        self._told.move_to_end(address)
        return told

    def _ended(self, address: str, told: _Told) -> None:
        if self._told.get(address) is told:
            del self._told[address]

    async def close(self) -> None:
        """End all connections."""
        tasks = [told.task for told in self._told.values()]
        self._told.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
