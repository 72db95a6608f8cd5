"""Serves scrapes from a thread of its own. Rule: it touches nothing of Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from prometheus_client.core import Metric

from rocketspark.transport.metrics_server import MetricsServer

STOP_S = 5.0


class ScrapeThread:
    """A server of metrics in a thread; `port` is the one it listens on."""

    def __init__(self, collect: Callable[[], list[Metric]]) -> None:
        self._server = MetricsServer(collect)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Listen. Raises ConfigError if the port cannot be had."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, ready)), name="rocketspark-metrics", daemon=True
        )
        self._thread.start()
        ready.result()

    async def _serve(self, host: str, port: int, ready: Future[None]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._server.start(host, port, "the metrics' port")
        except BaseException as e:
            ready.set_exception(e)
            return
        self.port = self._server.port
        ready.set_result(None)
        try:
            await self._end.wait()
        finally:
            await self._server.close()

    def stop(self) -> None:
        """Stop listening; the port is free then."""
        loop, end, thread = self._loop, self._end, self._thread
        if loop is None or end is None or thread is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(end.set)
        thread.join(STOP_S)
