"""Sockets towards servers, and free ports for them.

Rule: a host that is given by its number needs no look-up, and no thread for one.
uvloop looks up numbers too, in threads of its own. A forked process has not got them: it would wait for them as it
ends, and die of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator

from rocketspark.model.text import shown


async def connect_protocol(make: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
    """Connect to a server, with the asyncio protocol that `make` returns. Raises OSError."""
    loop = asyncio.get_running_loop()
    family = _family(host)
    if family is None:
        with _naming(host):
            await loop.create_connection(make, host, port)
        return
    # asyncio sends at once on what says that it is TCP.
    connected = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        connected.setblocking(False)
        await _finish(connected, connected.connect_ex((host, port)))
        await loop.create_connection(make, sock=connected)
    except BaseException:
        connected.close()
        raise


async def own_ip(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches a server; no packet is sent. Raises OSError."""
    family = _family(host)
    if family is None:
        loop = asyncio.get_running_loop()
        with _naming(host):
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=(host, port))
        try:
            return str(transport.get_extra_info("sockname")[0])
        finally:
            transport.close()
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        towards.connect((host, port))
        return str(towards.getsockname()[0])


async def number_of(host: str) -> str:
    """Return the address that a host's name stands for, of several one of IPv4; a number as it is. Raises OSError."""
    if _family(host) is not None:
        return host
    loop = asyncio.get_running_loop()
    with _naming(host):
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    numbers = [str(address[0]) for family, _, _, _, address in found if family in (socket.AF_INET, socket.AF_INET6)]
    return min(numbers, key=lambda number: ":" in number)


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` ports that are free on this machine's address `host`. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probes = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@contextlib.contextmanager
def _naming(host: str) -> Iterator[None]:
    """Say of what can be no name what a look-up says of one that nobody has. Raises OSError."""
    try:
        if "\0" in host:
            raise ValueError(host)  # uvloop would look for what stands before it.
        yield
    except ValueError:
        # Of what is too long, or holds a zero or half a character.
        raise OSError(errno.EINVAL, f"{shown(host, characters_max=100)} can be no name of a host") from None


def _family(host: str) -> int | None:
    """Return the kind of a number; None for a name, and where loops watch no sockets."""
    for family in (socket.AF_INET, socket.AF_INET6) if sys.platform != "win32" else ():
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return family
    return None


async def _finish(connected: socket.socket, error: int) -> None:
    """Wait until a connection that was begun is there. Raises OSError."""
    if error in (errno.EINPROGRESS, errno.EINTR):
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def writable() -> None:
            if not done.done():
                done.set_result(None)

        loop.add_writer(connected, writable)
        try:
            await done
        finally:
            loop.remove_writer(connected)
        error = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
