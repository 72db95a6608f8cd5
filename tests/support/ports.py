"""Ports of servers that a test starts again at the same address, or that take several.

Rule: they lie below those that the system gives to connections, which might take one while its server is down.
"""

from __future__ import annotations

import random
import socket
from typing import TypedDict


def free_ports(*offsets: int) -> int:
    """A port p below the ephemeral range with every p + offset free on 127.0.0.1."""
    for _ in range(200):
        port = random.randrange(12000, 32000)
        held = []
        try:
            for offset in offsets or (0,):
                held.append(socket.create_server(("127.0.0.1", port + offset)))
        except OSError:
            continue
        finally:
            for taken in held:
                taken.close()
        return port
    raise AssertionError("no free ports found")


class Ports(TypedDict):
    namesrv_port: int
    broker_port: int


def server_ports() -> Ports:
    """Of a ServerProcess."""
    return {"namesrv_port": free_ports(), "broker_port": free_ports()}
