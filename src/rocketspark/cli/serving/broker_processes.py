"""Several broker processes of one cluster under one NameServer.

One process can use one core; more brokers are RocketMQ's own way to use more.
"""

from __future__ import annotations

import asyncio
import string
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.cli.serving.child_processes import READY_TIMEOUT_S, ChildProcess
from rocketspark.errors import RocketSparkError

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings

BROKERS_MAX = 26
# Between ports of brokers when the first is given: RocketMQ's own brokers take port - 2 and port + 1 as well.
PORT_STEP = 10


class BrokerProcess(ChildProcess):
    """One `rocketspark broker` process. `name`: its brokerName; `store`: its own folder; `port` 0 takes a free one."""

    def __init__(self, name: str, namesrv: str, store: Path, host: str, port: int, options: list[str]) -> None:
        given = ["broker", "--name", name, "-n", namesrv, "--store", str(store), "--host", host, *options]
        super().__init__(name, "broker", lambda port: [*given, "--port", str(port)], port)


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
