"""Processes that run beside this one: more brokers, since one process can use one core only, and the proxy.

Rule: one that dies comes back on its own port, one that keeps nothing and stands still is killed for that, and none
outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.errors import RocketSparkError

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings


log = logging.getLogger("rocketspark")

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
RESTART_PAUSE_S = 1.0
# A variable of the environment: the server says each BEAT_S on stdout, a pipe to the process that started it, that its
# loop runs.
BEATS = "ROCKETSPARK_BEATS"
BEAT_S = 1.0
# So many beats long may a process be silent. They are counted, not timed: while this process stands still too, as the
# whole machine may, none is missed.
MISSED_BEATS_MAX = 30
_PR_SET_PDEATHSIG = 1
# Between the ports of brokers when the first is given: RocketMQ's own brokers take port - 2 and port + 1 as well.
PORT_STEP = 10


def die_with_parent() -> Callable[[], None] | None:
    """Return a function that a child process calls at its start, so that it ends when its parent is killed; None where
    the system cannot do that.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class ChildProcess:
    """One `rocketspark` command that runs as a child process.

    `name`: what errors call it; `kind`: it is ready once it prints "ready `kind`=HOST:PORT". `arguments`: returns its
    command line for a port; `port`: 0 takes a free one, which is kept over restarts. `environment`: variables that it
    gets besides those of this process, such as secrets; `behind`: by how much its niceness is above this process's.
    `beats`: it says each second that its loop runs; one that does not for half a minute is killed and started again, so
    that its clients, whose connections it keeps open, go elsewhere.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        arguments: Callable[[int], list[str]],
        port: int,
        environment: Mapping[str, str] | None = None,
        behind: int = 0,
        *,
        beats: bool = False,
    ) -> None:
        self.name = name
        self.address = ""
        self._ready = re.compile(rf"ready {kind}=(\S+):(\d+)")
        self._arguments = arguments
        self._environment = {**os.environ, **(environment or {}), **({BEATS: "1"} if beats else {})}
        self._beats = beats
        self._port = port
        self._behind = behind
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The id of the process; 0 while none runs."""
        return 0 if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises RocketSparkError if it ends before."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rocketspark.cli.main", *self._arguments(self._port)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
            # Ctrl-C is for the parent: it ends the others in order.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        if self._behind and hasattr(os, "setpriority"):
            # Now, while it has one thread: those that it makes have the same. It may have ended already.
            with contextlib.suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self._process.pid, own + self._behind)
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = (await self._process.stdout.readline()).decode(errors="replace")
        except TimeoutError:
            line = ""
        found = self._ready.match(line)
        if not found:
            await self._end()
            raise RocketSparkError(f"{self.name} did not start; its log above says why")
        self.address, self._port = f"{found[1]}:{found[2]}", int(found[2])

    async def start_in(self, processes: AsyncExitStack) -> str:
        """Start the process, and restart it whenever it dies, until the stack of `processes` ends; returns its address.
        Raises RocketSparkError.
        """
        processes.push_async_callback(self.stop)
        await self.start()
        self.keep()
        return self.address

    def keep(self) -> None:
        """Restart the process whenever it ends by itself."""
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._ended(self._process)
            if self._stopping:
                return
            log.warning("%s ended with %d; it is started again on %s", self.name, code, self.address)
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                await self.start()
            except RocketSparkError as e:
                log.error("%s", e)
            except (OSError, subprocess.SubprocessError) as e:
                # No memory, process or descriptor can be had just now.
                log.error("%s cannot be started, it is tried again: %s", self.name, e)

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Wait until the process has ended; one that stands still is killed. Returns its exit code."""
        missed = 0
        while self._beats and missed < MISSED_BEATS_MAX:
            assert process.stdout is not None
            try:
                async with asyncio.timeout(BEAT_S):
                    if not await process.stdout.read(1 << 12):
                        break
                missed = 0
            except TimeoutError:
                missed += 1
        if missed == MISSED_BEATS_MAX and process.returncode is None:
            log.warning("%s (pid %d) stood still for %.0f s: killed", self.name, process.pid, missed * BEAT_S)
            process.kill()
        return await process.wait()

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


class BrokerProcess(ChildProcess):
    """One `rocketspark broker` process. `name`: its brokerName; `store`: its own folder; `port` 0 takes a free one."""

    def __init__(self, name: str, namesrv: str, store: Path, host: str, port: int, options: list[str]) -> None:
        given = ["broker", "--name", name, "-n", namesrv, "--store", str(store), "--host", host, *options]
        super().__init__(name, "broker", lambda port: [*given, "--port", str(port)], port)


async def wait_in_sync(settings: BrokerSettings, controller: str, name: str, count: int) -> str:
    """Wait until `count` replicas of the broker `name` are in sync; returns the master's address.

    `controller`: "host:port" of the controllers, several with ; between. They are asked with the TLS and keys of
    `settings`. Raises RocketSparkError if it takes too long.
    """
    from rocketspark.broker.inner_connections import inner_connections
    from rocketspark.broker.replication.controller_client import ControllerClient
    from rocketspark.transport.connections import parse_addresses

    client = ControllerClient(parse_addresses(controller), connections=inner_connections(settings))
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


def broker_names(first: str, count: int) -> list[str]:
    """Return the names of `count` brokers: broker-a, broker-b, … if the first ends in -a, else name-0, name-1, …"""
    if first.endswith("-a"):
        return [first[:-1] + letter for letter in string.ascii_lowercase[:count]]
    return [f"{first}-{i}" for i in range(count)]


def broker_ports(first: int, count: int) -> list[int]:
    """Return a port for each of `count` brokers, ascending from the first; all 0, for free ones, if the first is 0."""
    return [first + PORT_STEP * i if first else 0 for i in range(count)]


def store_folders(root: Path, first: str, brokers: int, replicas: int) -> list[Path]:
    """Return the store folders of `server --brokers N --replicas M` below the folder `root`; a single broker has `root`
    itself.
    """
    if replicas > 1:
        return [
            root / name / f"replica-{number}"
            for name in broker_names(first, brokers)
            for number in range(1, replicas + 1)
        ]
    return [root / name for name in broker_names(first, brokers)] if brokers > 1 else [root]


def unserved_stores(root: Path, served: list[Path]) -> list[Path]:
    """Return the stores below the folder `root` that are not `served`: they were made with other --brokers or
    --replicas.
    """
    found = [root, *sorted(root.glob("*")), *sorted(root.glob("*/replica-*"))]
    return [path for path in found if path not in served and any((path / "commitlog").glob("0*"))]
