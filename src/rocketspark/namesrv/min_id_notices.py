"""Tells brokers of a new lowest id in their group. Rule: no broker that hangs or is gone holds up another.

As 5.5.0 does it the NameServer connects to the broker's own address: a Java broker serves no requests on the connection
it registers over. A notice that cannot be sent is left out, as brokers ask for their group each second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque

from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.namesrv.acting_master import MinIdChange
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import MinBrokerIdHeader
from rocketspark.transport.connections import dial
from rocketspark.transport.descriptors import OF_PROCESS
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.namesrv")

CONNECT_MS = 1000
# A connection is kept for so long after its last notice: several come in a row, and they stay in order.
LINGER_S = 5.0
# Brokers that are told at once; one more takes the place of the one that was to be told first.
BROKERS_MAX = 500
# Notices that wait for one broker; the oldest give way.
NOTICES_MAX = 16


class _Told:
    """One broker with the notices that wait for it, and the task that sends them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.waiting: deque[MinBrokerIdHeader] = deque(maxlen=NOTICES_MAX)
        self.more = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def add(self, notice: MinBrokerIdHeader) -> None:
        self.waiting.append(notice)
        self.more.set()

    async def _run(self) -> None:
        if not OF_PROCESS.take():
            log.warning("broker %s is not told of a new lowest id: too many connections are open", self.address)
            return
        peer: Peer | None = None
        try:
            while self.waiting:
                if peer is None or not peer.is_open:
                    peer = await dial(self.address, timeout_ms=CONNECT_MS, language="JAVA")
                while self.waiting:
                    self._send(peer, self.waiting.popleft())
                self.more.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self.more.wait()
        except RocketSparkError as e:
            log.warning("broker %s is not told of a new lowest id: %s", self.address, e)
        except Exception:
            log.exception("broker %s is not told of a new lowest id", self.address)
        finally:
            OF_PROCESS.give_back()
            if peer is not None:
                peer.close()

    def _send(self, peer: Peer, notice: MinBrokerIdHeader) -> None:
        if peer.is_writable:
            peer.oneway(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        else:
            log.warning("broker %s is not told of a new lowest id: it does not read", self.address)


class MinIdNotices:
    """The notices of one NameServer, each broker's in order."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def send(self, change: MinIdChange) -> None:
        """Tell the brokers of a change, each by itself; returns at once."""
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
            told = self._told[address] = _Told(address)
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
