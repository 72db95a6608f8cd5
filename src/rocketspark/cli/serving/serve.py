"""Runs servers in this process until SIGTERM or SIGINT. Rule: one ready line on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar

from rocketspark.cli.serving.child_processes import BEAT_S, BEATS
from rocketspark.cli.streams import ReaderLeft, write
from rocketspark.errors import UsageError
from rocketspark.model import freed_memory
from rocketspark.model.limited_log import ShownFormatter

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

GC_THRESHOLDS = (2_000, 10, 100)
# A variable of the environment: the server ends once its standard input does, a pipe to the process that started it.
END_WITH_STDIN = "ROCKETSPARK_END_WITH_STDIN"
# Where a unit of systemd with Type=notify hears of its service (rule: sd_notify).
NOTIFY_SOCKET = "NOTIFY_SOCKET"

Starter = Callable[[AsyncExitStack], Awaitable[str]]


class Server(Protocol):
    """A server: anything that is started once, and closed at the end."""

    async def start(self) -> None:
        """Begin to serve."""

    async def close(self) -> None:
        """Stop serving."""


S = TypeVar("S", bound=Server)


async def start_in(servers: AsyncExitStack, server: S) -> S:
    """Start a server, and return it; it is closed together with the stack `servers`."""
    await server.start()
    servers.push_async_callback(server.close)
    return server


def serve(start: Starter, *, log_level: str = "info") -> None:
    """Start servers, print the ready line, and close them when SIGTERM or SIGINT comes. `start`: starts the servers,
    puts them on the stack that it is given, and returns the line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ShownFormatter(LOG_FORMAT))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    # It has a file of its own.
    logging.getLogger("rocketspark.audit").propagate = False
    # As the JVM does: every connection and every mapped file takes a descriptor.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    freed_memory.keep()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(start))


async def _serve(start: Starter) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    # Not for the processes that it starts: their input, and their state, is another one.
    listening, ends_with_stdin = os.environ.pop(NOTIFY_SOCKET, ""), os.environ.pop(END_WITH_STDIN, "")
    beats = os.environ.pop(BEATS, "")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if ends_with_stdin:
        stdin = sys.stdin.fileno()

        def end() -> None:
            loop.remove_reader(stdin)
            stop.set()

        loop.add_reader(stdin, end)
    async with AsyncExitStack() as servers:
        try:
            line = await start(servers)
        except BaseException:
            # Who called it goes on, and is interrupted as before.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            raise
        try:
            write(f"{line}\n")
        except (ReaderLeft, UsageError) as e:
            # The server runs all the same: others than its starter may need it.
            logging.getLogger("rocketspark").warning(
                "%s; this line could not be written to stdout: %s", line, e or "stdout was closed"
            )
        _tell_systemd(listening, b"READY=1")
        # Until the loop ends: it may take long to close.
        beating = asyncio.create_task(_beat()) if beats else None
        # A server leaves few cycles behind, and with 10,000 queues a full collection stops it for 50 ms.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await stop.wait()
        _tell_systemd(listening, b"STOPPING=1")
        logging.getLogger("rocketspark").info("stopping")
    if beating is not None:
        beating.cancel()


async def _beat() -> None:
    # Who does not read them, as it stands still itself, holds nothing up.
    os.set_blocking(sys.stdout.fileno(), False)
    while True:
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), b"\n")
        await asyncio.sleep(BEAT_S)


def _tell_systemd(listening: str, state: bytes) -> None:
    """Send a state to the socket at which systemd listens; nothing where it has none."""
    if listening:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            # "@" begins a name that no file has.
            told.connect(f"\0{listening[1:]}" if listening.startswith("@") else listening)
            told.send(state)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a new event loop of uvloop; of asyncio where uvloop does not exist (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
