"""Archives that are tables over Spark Connect: the server has the jars, and the same disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lakehouse.drivers import command, connect_server

from rocketspark import Message, Producer
from rocketspark.testing import Cluster, run_cluster

pytestmark = [
    pytest.mark.official,
    pytest.mark.shows(
        "tables over Spark Connect, whose server has the jars: `archive` (decoded columns too), `restore` and "
        "`audit` of both formats, as commands"
    ),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    folder = tmp_path_factory.mktemp("connect")
    with run_cluster(store=folder / "store") as cluster, connect_server(folder) as remote:
        yield cluster, remote


@pytest.mark.parametrize("table_format", [pytest.param("delta", marks=pytest.mark.soak), "iceberg"])
def test_archive_restore_and_audit(scene: tuple[Cluster, str], table_format: str, tmp_path: Path) -> None:
    (cluster, remote), topic = scene, f"connect-{table_format}"
    where = ("--namesrv", cluster.namesrv, "--remote", remote, "--json")
    place = str(tmp_path / "table")

    def send(first: int, end: int) -> None:
        with Producer(cluster.namesrv, group="connect") as producer:
            for n in range(first, end):
                producer.send(Message(topic=topic, body=b'{"n": %d}' % n if n % 10 else b"bad"))

    def run(*arguments: str, exit_code: int = 0) -> Any:
        done = command("pipeline", *arguments, *where)
        assert done.returncode == exit_code, done.stderr[-3000:]
        return json.loads(done.stdout) if done.stdout else done.stderr

    archive = ("archive", topic, "--to", place, "--format", table_format, "--once", "-o", "decode=json")
    send(0, 30)
    first = run(*archive, "-o", "decodeSchema=n INT")
    assert (first["rows"], first["total_rows"]) == (30, 30)
    send(30, 40)
    again = run(*archive, "-o", "decodeSchema=n INT, later STRING", "--batch-rows", "5")
    assert (again["rows"], again["total_rows"]) == (10, 40)
    refused = run(*archive, "-o", "decodeSchema=n STRING", exit_code=1)
    assert refused.count("\n") == 1
    assert "column value.n is int in the table and string by the schema" in refused
    sent = run("restore", place, topic, "--to", f"{topic}-again", "--state", str(tmp_path / "state"))
    assert (sent["rows"], sent["refused"]) == (40, 0)
    same = run("audit", f"{topic}-again", "--against-archive", place, "--against", topic)
    assert same["ok"], same
