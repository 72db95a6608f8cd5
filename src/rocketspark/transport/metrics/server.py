"""The HTTP server for scrapes of metrics. Rule: few connections, each for a short time; an idle one gives way to a new.

It is imported only where metrics are served, as it needs the extra `metrics`.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from rocketspark.errors import ConfigError
from rocketspark.model.histogram import Histogram
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.transport.metrics.families import COUNTER, GAUGE, HISTOGRAM, Collected, label_texts
from rocketspark.transport.server_bounds import OF_PROCESS, Descriptors

log = LimitedLog("rocketspark.transport")

CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8192
# From the connection to its whole request, and from there to the last byte of the answer.
REQUEST_S = 10.0
ANSWER_S = 30.0
_MAKERS: dict[str, Any] = {COUNTER: CounterMetricFamily, GAUGE: GaugeMetricFamily, HISTOGRAM: HistogramMetricFamily}


class MetricsServer:
    """The HTTP server for metrics. `collect` returns them; each connection serves one request; `port`: the one it
    listens on; `documents`: what makes the JSON at further paths.

    With `connections_max` connections open, a new one takes the place of the one that has waited longest for its
    request.
    """

    def __init__(
        self,
        collect: Callable[[], Collected | list[Metric]],
        *,
        connections_max: int = CONNECTIONS_MAX,
        request_s: float = REQUEST_S,
        answer_s: float = ANSWER_S,
        descriptors: Descriptors = OF_PROCESS,
        documents: Mapping[str, Callable[[], bytes]] | None = None,
    ) -> None:
        self._collect = collect
        self._documents = documents or {}
        self._connections_max = connections_max
        self._request_s = request_s
        self._answer_s = answer_s
        self._descriptors = descriptors
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        # Those that have not asked yet, the oldest first.
        self._silent: dict[asyncio.Task[None], None] = {}
        self._turn = asyncio.Lock()
        self.port = 0

    async def start(self, host: str, port: int, setting: str = "metricsPromExporterPort") -> None:
        """Listen. Raises ConfigError, with the name of the setting, if the port cannot be had."""
        host = host or "127.0.0.1"
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        except OSError as e:
            raise ConfigError(f"{setting} {port} on {shown(host)} cannot be had: {e.strerror or e}") from e
        except ValueError:
            raise ConfigError(f"{setting} {port} on {shown(host)} cannot be had: that is no address") from None
        self.port = int(self._server.sockets[0].getsockname()[1])
        log.info("metrics on http://%s:%d/metrics", host, self.port)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._connections_max and self._silent:
            oldest = next(iter(self._silent))
            # Its place is free at once: it only ends what it holds.
            self._left(oldest)
            oldest.cancel()
        if len(self._open) >= self._connections_max or not self._descriptors.take():
            writer.transport.abort()
            log.warning("a scrape of the metrics is refused: %d connections are open", len(self._open))
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        self._silent[task] = None
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        if task in self._open:
            self._open.discard(task)
            self._silent.pop(task, None)
            self._descriptors.give_back()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._request_s):
                head = await reader.readuntil(b"\r\n\r\n")
            self._silent.pop(task, None)
            async with asyncio.timeout(self._answer_s):
                writer.write(await self._answer(head.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # It was too slow (a TimeoutError is one of these), said too much, or went.
        except Exception:
            log.exception("a scrape of the metrics failed")
        finally:
            writer.transport.abort()

    async def _answer(self, head: str) -> bytes:
        line, *rest = head.split("\r\n")
        method, _, target = line.partition(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
        if method != "GET":
            return _response("200 OK" if method == "OPTIONS" else "405 Method Not Allowed", {"Allow": "OPTIONS,GET"})
        try:
            url = urlsplit(target.rpartition(" ")[0])
            names = set(parse_qs(url.query, max_num_fields=1000).get("name[]", ()))
        except ValueError:
            return _response("400 Bad Request")
        if url.path == "/favicon.ico":
            return _response("200 OK")
        if (document := self._documents.get(url.path)) is not None:
            async with self._turn:
                body = await asyncio.to_thread(document)
            return _response("200 OK", {"Content-Type": "application/json"}, body)
        async with self._turn:
            return await asyncio.to_thread(_page, self._collect(), names, headers)

    async def close(self) -> None:
        """Stop listening; open connections are cut off."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self.collect = lambda: families


def prometheus_metrics(found: Collected) -> list[Metric]:
    """Return the metrics as Prometheus's client has them."""
    metrics: list[Metric] = []
    for kind, name, help_text, rows in found.families:
        if not rows:
            continue
        labels = sorted({key for row, _ in rows for key in row} | found.labels.keys())
        # As OpenTelemetry's exporter for Prometheus writes them.
        metric = _MAKERS[kind](name, help_text, labels=[re.sub(r"\W", "_", label, flags=re.ASCII) for label in labels])
        for row, value in rows:
            values = (value.buckets(), value.total) if isinstance(value, Histogram) else (value,)
            metric.add_metric(label_texts(found.labels | row, labels), *values)
        metrics.append(metric)
    return metrics


def _page(found: Collected | list[Metric], names: set[str], headers: dict[str, str]) -> bytes:
    families = prometheus_metrics(found) if isinstance(found, Collected) else found
    if names:
        families = [f for f in families if f.name in names or any(s.name in names for s in f.samples)]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    try:
        encode, content_type = choose_encoder(headers.get("accept", ""))
    except (TypeError, ValueError):  # Of a version that is none.
        encode, content_type = choose_encoder("")
    body = encode(registry)
    more = {"Content-Type": content_type}
    if "gzip" in headers.get("accept-encoding", ""):
        body, more["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    return _response("200 OK", more, body)


def _response(status: str, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    head = {"Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    return "\r\n".join(lines).encode() + body
