"""The console's page of Spark streams: what a process publishes of them, beside where the brokers' queues end."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.console.support import log_in, opened

from rocketspark.admin import Admin
from rocketspark.console import ConsoleSettings
from rocketspark.console.cluster import streams as heard
from rocketspark.console.drawing import NONE
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue, stream_progress
from rocketspark.spark.metrics.exposition import ScrapeThread, families
from rocketspark.spark.metrics.progress_reports import parse_report
from rocketspark.spark.metrics.query_figures import QueryFigures
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("the console: Spark streams that publish progress, with lag by queue and rows a second")
CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def publishing(figures: QueryFigures) -> Iterator[ScrapeThread]:
    """What metrics.listen serves, without Spark."""
    documents = {stream_progress.PATH: lambda: msgspec.json.encode(figures.progress())}
    server = ScrapeThread(lambda: families(figures, None), documents)
    server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        server.stop()


def batch(number: int, rows: int, offsets: Any) -> Any:
    source = {"startOffset": {}, "endOffset": offsets, "numInputRows": rows, "inputRowsPerSecond": rows / 2}
    durations = {"triggerExecution": 1500, "addBatch": 1000}
    return parse_report({"batchId": number, "numInputRows": rows, "durationMs": durations, "sources": [source]})


def rows_of(client: TestClient, path: str) -> list[list[str]]:
    """The cells of the rows of a page's last table, as text."""
    return _rows(client.get(path).text)


def _rows(page: str) -> list[list[str]]:
    body = page.rpartition("<tbody>")[2].partition("</tbody>")[0]
    texts = [[re.sub(r"<[^>]*>", " ", cell).strip() for cell in CELL.findall(row)] for row in body.split("</tr>")]
    return [cells for cells in texts if cells]


def test_streams_are_shown_with_lag_by_queue_and_silent_ones_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "LIFE_S", -1.0)
    figures = QueryFigures(queries_max=5, topics_max=5, now_s=(clock := Clock()))
    with run_cluster() as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("orders", queue_count=3)
        for queue, count in ((0, 4), (1, 2), (2, 1)):
            for _ in range(count):
                admin.send_message("orders", b"x", queue=MessageQueue("orders", "broker-a", queue))
        figures.started("run-1", "query-1", "<b>copy")
        figures.progressed("run-1", "query-1", "<b>copy", batch(7, 40, {"orders": {"broker-a": {"0": 1, "1": 2}}}))
        figures.started("run-2", "query-2", "other")
        clock.now_s += 30
        figures.ended("run-2", "query-2", failed=True, error="the disk is <full>\n\tat java.lang")
        with publishing(figures) as server:
            url = f"http://127.0.0.1:{server.port}/metrics"
            with opened(cluster.namesrv, spark_streams=(url,)) as client:
                first, second = rows_of(client, "/streams")
                assert first[:6] == ["&lt;b&gt;copy", "running", "orders", "4", "20.0", "40"]
                assert first[6] == "40 rows in 1.5 s, 30 s ago"
                assert second[:3] == ["other", "failed", NONE]
                assert "the disk is &lt;full&gt;" in second[7]
                assert "java.lang" not in second[7]
                path = f"/stream?at=127.0.0.1:{server.port}&run=run-1"
                assert rows_of(client, path) == [
                    ["orders", "broker-a", "0", "1", "4", "3"],
                    ["orders", "broker-a", "1", "2", "2", "0"],
                    ["orders", "broker-a", "2", NONE, "1", "1"],
                ]
                assert "Spark streams" in client.get("/").text
                assert client.get("/stream?at=127.0.0.1:1&run=run-1").status_code == 400
                # It says nothing for a minute; then its process is gone.
                clock.now_s += 31
                assert rows_of(client, "/streams")[0][1] == "silent"
                clock.now_s += 1
                figures.idled("run-1")
                assert rows_of(client, "/streams")[0][1] == "running"
                server.stop()
                first, second = rows_of(client, "/streams")
                assert (first[1], second[1]) == ("silent", "failed")
                assert first[3:6] == ["4", "20.0", "40"]
                assert f"127.0.0.1:{server.port} does not answer" in client.get("/streams").text


def test_who_may_not_look_at_a_topic_sees_no_stream_of_it() -> None:
    figures = QueryFigures(queries_max=5, topics_max=5, now_s=Clock())
    for topic in ("orders", "pay"):
        figures.progressed(topic, topic, f"copy-{topic}", batch(1, 1, {topic: {"broker-a": {"0": 0}}}))
    with run_cluster(secure=True) as cluster, publishing(figures) as server:
        options = cluster.client_options
        tls = {name: value for name, value in options.items() if name.startswith(("use_tls", "tls_"))}
        with Admin(cluster.namesrv, **options) as admin:
            for topic in ("orders", "pay"):
                admin.create_topic(topic, queue_count=1)
            admin.create_user("clerk", "clerk-secret")
            admin.create_acl("User:clerk", ["Topic:orders"], ["Get", "Sub"])
            admin.create_acl("User:clerk", ["Cluster:*"], ["Get"])
        at = (f"127.0.0.1:{server.port}",)
        with opened(cluster.namesrv, options=tls, spark_streams=at) as client:
            assert client.get("/streams").status_code == 303
            assert log_in(client, "clerk", "clerk-secret").status_code == 303
            assert [row[0] for row in rows_of(client, "/streams")] == ["copy-orders"]
            hidden = client.get(f"/stream?at={at[0]}&run=pay")
            assert (hidden.status_code, "pay" in hidden.text) == (400, False)


NONSENSE = (
    {"offsets": {"orders": {"broker-a": {"x": 1}}}},
    {"offsets": {"orders": {"broker-a": {"0": 10**4000}}}},
    {"rows": 10**4000},
    {"batch_at_s": -1e308},
)


def test_a_process_that_says_nonsense_or_never_ends_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "LIFE_S", -1.0)
    monkeypatch.setattr(heard, "WAIT_S", 0.1)
    figures = QueryFigures(queries_max=5, topics_max=5, now_s=Clock())
    figures.started("run-1", "query-1", "copy")
    asked: list[socket.socket] = []
    end = threading.Event()

    def trickle(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                asked.append(listening.accept()[0])
                asked[-1].recv(4096)
                # A head that never ends: each piece of it comes in time.
                threading.Thread(target=drip, args=(asked[-1],), daemon=True).start()

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not end.wait(0.01):
                connection.sendall(b"x")

    base = {"name": "bad", "query_id": "q", "run_id": "r", "state": "running", "started_s": 1, "seen_s": 1}
    said = {"": base}
    nonsense = ScrapeThread(
        lambda: families(figures, None),
        {stream_progress.PATH: lambda: json.dumps({"said_s": 1, "streams": [said[""]]}).encode()},
    )
    nonsense.start("127.0.0.1", 0)
    with run_cluster() as cluster, publishing(figures) as good, socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=trickle, args=(silent,), daemon=True).start()
        at = tuple(f"127.0.0.1:{port}" for port in (good.port, nonsense.port, silent.getsockname()[1]))
        try:
            with opened(cluster.namesrv, spark_streams=at) as client:
                for each in NONSENSE:
                    said[""] = base | each
                    # On a busy machine the other two may take longer than the wait that is set here.
                    for _ in range(50):
                        page = client.get("/streams")
                        assert page.status_code == 200
                        assert f"{at[2]} does not answer: no answer within" in page.text
                        if not any(f"{other} does not answer: no answer" in page.text for other in at[:2]):
                            break
                    assert f"{at[1]} does not answer: its answer is no progress of streams" in page.text
                    assert [row[0] for row in _rows(page.text)] == ["copy"]
                # One connection and one thread, however often somebody looked.
                assert len(asked) == 1
        finally:
            end.set()
            nonsense.stop()
            silent.shutdown(socket.SHUT_RDWR)
            for connection in asked:
                connection.close()


@pytest.mark.parametrize("address", ["", "ftp://a:1", "http://a", "http://a:1/else", "http://a:x", "a:0"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"such as http://127\.0\.0\.1:9464"):
        ConsoleSettings(spark_streams=(address,)).check()
