"""Asks the brokers that a send could not reach whether they answer again; `latency_faults` keeps what is known of them.

Rule: LatencyFaultToleranceImpl.detectByOneRound, 5.x.
"""

from __future__ import annotations

import asyncio
import logging

from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.producer.latency_faults import LatencyFaults
from rocketspark.errors import RocketSparkError, ServerError
from rocketspark.model import MessageQueue

log = logging.getLogger("rocketspark.client")

INTERVAL_S = 2.0
TIMEOUT_MS = 200.0
# Any question does: also a refusal is an answer.
QUEUE = MessageQueue("TBW102", "", 0)


class FaultDetector:
    """Sends every unreachable broker a request, every 2 s; the first reply makes it reachable."""

    def __init__(self, instance: Instance, faults: LatencyFaults, *, interval_s: float = INTERVAL_S) -> None:
        self._instance = instance
        self._faults = faults
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask unreachable brokers, in the background."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for name in list(self._faults.unreachable):
                try:
                    await self.look(name)
                except Exception:
                    log.exception("broker %s could not be looked at; the others are", name)

    async def look(self, broker_name: str) -> None:
        """Send a request to one broker, to see whether it answers."""
        address = self._instance.routes.master(broker_name)
        if address is None:
            self._faults.reached(broker_name)
            return
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                peer = await self._instance.broker(address)
                await client_api.max_offset(peer, QUEUE, timeout_ms=TIMEOUT_MS)
        except ServerError:
            pass
        except (RocketSparkError, TimeoutError) as e:
            log.debug("broker %s is still not reached: %s", broker_name, e)
            return
        self._faults.reached(broker_name)
