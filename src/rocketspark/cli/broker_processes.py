"""Several broker processes of one cluster under one NameServer. Rule: a broker that dies comes back on its own port.

One process can use one core; more brokers are RocketMQ's own way to use more.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import re
import signal
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.errors import RocketSparkError

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings

log = logging.getLogger("rocketspark")

BROKERS_MAX = 26
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
# Between ports of brokers when the first is given: RocketMQ's own brokers take port - 2 and port + 1 as well.
PORT_STEP = 10
RESTART_PAUSE_S = 1.0
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """Return a function by which a child process ends when its parent is killed; None where the system lacks it."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class BrokerProcess:
    """One `rocketspark broker` process. `name`: its brokerName; `store`: its own folder; `port` 0 takes a free one."""

    def __init__(self, name: str, namesrv: str, store: Path, host: str, port: int, options: list[str]) -> None:
        self.name = name
        self.address = ""
        self._namesrv = namesrv
        self._store = store
        self._host = host
        self._port = port
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises RocketSparkError if it ends before."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rocketspark.cli.main", "broker", "--name", self.name, "-n", self._namesrv),
            *("--store", str(self._store), "--host", self._host, "--port", str(self._port), *self._options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is for the parent: it ends the others in order.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = (await self._process.stdout.readline()).decode(errors="replace")
        except TimeoutError:
            line = ""
        found = re.match(r"ready broker=(\S+):(\d+)", line)
        if not found:
            await self._end()
            raise RocketSparkError(f"{self.name} did not start; its log above says why")
        self.address, self._port = f"{found[1]}:{found[2]}", int(found[2])

    def keep(self) -> None:
        """Restart the process whenever it ends by itself."""
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if self._stopping:
                return
            log.warning("%s ended with %d; it is started again on %s", self.name, code, self.address)
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                await self.start()
            except RocketSparkError as e:
                log.error("%s", e)

    async def stop(self) -> None:
        """End the process cleanly."""
        self._stopping = True
        await self._end()
        if self._keeper is not None:
            self._keeper.cancel()

    async def _end(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            log.error("%s did not stop within %.0f s: killed", self.name, STOP_TIMEOUT_S)
            self._process.kill()
            await self._process.wait()


async def wait_in_sync(settings: BrokerSettings, controller: str, name: str, count: int) -> str:
    """Wait until so many replicas of a broker are in sync; returns the master's address. It is asked as they ask.

    Raises RocketSparkError if that takes too long.
    """
    from rocketspark.broker.inner_connections import inner_connections
    from rocketspark.broker.replication.controller_client import ControllerClient

    client = ControllerClient([controller], connections=inner_connections(settings))
    error = f"no {count} replicas of {name} came in sync; the log above says why"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                try:
                    found = await client.replica_info(name)
                except RocketSparkError as e:
                    error = f"{name} is not ready: {e}"
                else:
                    if found.master is not None and len(found.in_sync) >= count:
                        return found.master.address
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise RocketSparkError(error) from None
    finally:
        await client.close()


def names(first: str, count: int) -> list[str]:
    """Names of `count` brokers: broker-a, broker-b, … after a first name that ends in -a, else name-0, name-1, …"""
    if first.endswith("-a"):
        return [first[:-1] + letter for letter in string.ascii_lowercase[:count]]
    return [f"{first}-{i}" for i in range(count)]


def ports(first: int, count: int) -> list[int]:
    """Return a port for each broker; all 0 if the first is."""
    return [first + PORT_STEP * i if first else 0 for i in range(count)]
