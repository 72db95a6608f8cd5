"""A console on a port of this machine, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rocketspark.console import ConsoleServer, ConsoleSettings


@contextmanager
def console(namesrv: str, **settings: Any) -> Iterator[str]:
    """A running console of a cluster; gives its address, without a slash at the end."""
    asked = ConsoleSettings(namesrv=namesrv, port=0, sample_interval_s=1.0, **settings)
    started = threading.Event()
    told: list[Any] = []

    async def serve() -> None:
        server = ConsoleServer(asked)
        stop = asyncio.Event()
        await server.start()
        told.extend((server.url.rstrip("/"), asyncio.get_running_loop(), stop))
        started.set()
        await stop.wait()
        await server.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as e:
            told.append(e)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="console")
    thread.start()
    started.wait()
    if len(told) == 1:
        raise told[0]
    url, loop, stop = told
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
