"""The metrics' HTTP server: short requests of few, whoever else connects and says nothing."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.live.support import run, until

pytest.importorskip("prometheus_client")

from prometheus_client.core import GaugeMetricFamily, Metric

from rocketspark.errors import ConfigError
from rocketspark.model.histogram import Histogram
from rocketspark.transport.metrics.families import Collected, Family
from rocketspark.transport.metrics.server import HEAD_BYTES_MAX, MetricsServer
from rocketspark.transport.server_bounds import Descriptors

pytestmark = pytest.mark.shows(
    "mended: idle connections to the NameServer, half HTTP requests to the metrics port use all descriptors",
    "mended: metrics: an address that is none and a scrape of a version that is none were tracebacks",
)


def two() -> list[Metric]:
    return [GaugeMetricFamily("a", "A.", value=1), GaugeMetricFamily("b", "B.", value=2)]


@asynccontextmanager
async def serving(collect: Callable[[], list[Metric]] = two, **options: Any) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(collect, **options)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()
        assert server._open == set()


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(server: MetricsServer, text: bytes = b"") -> Link:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text)
    return reader, writer


async def answer(link: Link) -> bytes:
    """All that comes until the server closes."""
    reader, writer = link
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(server: MetricsServer, target: str = "/metrics", more: str = "") -> bytes:
    return await answer(await connected(server, f"GET {target} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()))


def test_what_is_asked_is_answered_and_closed() -> None:
    async def main() -> None:
        async with serving() as server:
            head, _, body = (await get(server)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert f"Content-Length: {len(body)}".encode() in head
            assert b"a 1.0\n" in body
            assert b"b 2.0\n" in body
            body = (await get(server, "/metrics?name[]=b")).partition(b"\r\n\r\n")[2]
            assert b"a 1.0" not in body
            assert b"b 2.0\n" in body
            body = (await get(server, "/", "Accept-Encoding: gzip\r\n")).partition(b"\r\n\r\n")[2]
            assert b"a 1.0\n" in gzip.decompress(body)
            open_metrics = await get(server, "/", "Accept: application/openmetrics-text; version=1.0.0\r\n")
            assert open_metrics.endswith(b"# EOF\n")

    run(main())


def test_labels_of_every_metric_have_names_that_prometheus_takes() -> None:
    async def main() -> None:
        histogram = Histogram((10,))
        histogram.add(5)
        families = [
            Family("counter", "c", "C.", [({"topic": "t"}, 3)]),
            Family("gauge", "none", "None.", []),
            Family("histogram", "h", "H.", [({}, histogram)]),
        ]
        async with serving(lambda: Collected({"my.zone-a": "z"}, families)) as server:
            page = (await get(server)).partition(b"\r\n\r\n")[2].decode()
        rows = [line for line in page.splitlines() if not line.startswith("#") and "_created" not in line]
        assert rows == [
            'c_total{my_zone_a="z",topic="t"} 3.0',
            *('h_bucket{le="10.0",my_zone_a="z"} 1.0', 'h_bucket{le="+Inf",my_zone_a="z"} 1.0'),
            *('h_count{my_zone_a="z"} 1.0', 'h_sum{my_zone_a="z"} 5.0'),
        ]

    run(main())


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"OPTIONS / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET /favicon.ico HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET http://[ HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /?" + b"name[]=a&" * 900 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 "),
        (b"\xff\x00\r\n\r\n", b"HTTP/1.1 405 "),
        (b"x" * (HEAD_BYTES_MAX + 100_000), b""),
    ],
)
def test_anything_else_ends_its_own_connection(text: bytes, begins: bytes) -> None:
    async def main() -> None:
        async with serving() as server:
            got = await answer(await connected(server, text))
            assert got.startswith(begins)
            assert bool(got) == bool(begins)
            assert b"a 1.0\n" in await get(server)

    run(main())


@pytest.mark.parametrize(
    "kind", ["application/openmetrics-text;version=1e9", "text/plain;version=x;escaping=y", ",;=,"]
)
def test_a_version_that_is_none_gets_the_plain_text(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as server:
            assert b"a 1.0\n" in await get(server, "/", f"Accept: {kind}\r\n")

    run(main())
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("host", ["a..b", "\x00", "x" * 70 + ".example", "256.1.1.1"])
def test_a_host_that_is_none_is_a_mistake_of_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot be had") as told:
        run(MetricsServer(two).start(host, 0, "the metrics' port"))
    assert "\x00" not in str(told.value)


def test_who_says_nothing_keeps_nobody_out_and_holds_no_descriptor() -> None:
    descriptors = Descriptors(100)

    async def main() -> None:
        async with serving(connections_max=4, descriptors=descriptors) as server:
            links = [await connected(server, b"GET /metrics HTTP/1.1\r\nX: ") for _ in range(40)]
            assert b"a 1.0\n" in await get(server)
            # The oldest gave way.
            assert [await answer(link) for link in links[:36]] == [b""] * 36
            await until(lambda: descriptors.taken <= 4)
            assert b"a 1.0\n" in await get(server)
        assert descriptors.taken == 0
        for _, writer in links:
            writer.close()

    run(main())


def test_a_request_that_does_not_come_in_time_is_not_waited_for() -> None:
    async def main() -> None:
        async with serving(request_s=0.05) as server:
            assert await answer(await connected(server, b"GET /metrics")) == b""

    run(main())


def test_a_scrape_waits_for_no_descriptor() -> None:
    async def main() -> None:
        async with serving(descriptors=Descriptors(0)) as server:
            assert await get(server) == b""

    run(main())


def test_a_scrape_that_fails_is_that_one_alone() -> None:
    calls = []

    def fails_once() -> list[Metric]:
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return two()

    async def main() -> None:
        async with serving(fails_once) as server:
            assert await get(server) == b""
            assert b"a 1.0\n" in await get(server)

    run(main())
