"""Whole commands whose checkpoints, tables and reports lie on an s3a:// that fails by plan, on Spark 4.0."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lakehouse.drivers import driver, settings
from tests.spark.lakehouse.fault_plan import sometimes
from tests.spark.lakehouse.kills_on_s3a import KEYS
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, s3_store
from tests.spark.lakehouse.test_table_archives import Scene
from tests.spark.topics import bodies_of

from rocketspark import Message, Producer
from rocketspark.admin.operations import Admin
from rocketspark.spark.pipelines.dedupe import ROCKSDB
from rocketspark.testing import run_cluster

pytestmark = [
    pytest.mark.official,
    pytest.mark.shows(
        "reports on s3a://: `trace --html`, checkpoints of `dedupe`, `outbox`, `sql` and its tables there: "
        "each command whole, twice, behind a store that refuses, cuts and errs by plan; a bucket that is not "
        "there is one line"
    ),
]

PLAN = """
sources:
  - {name: orders, topic: orders, stream: true, json: "id INT, price INT", options: {startingOffsets: earliest}}
  - {name: shops, format: delta, path: "s3a://lake/shops"}
sinks:
  - {name: all, sql: "SELECT value.* FROM orders", format: parquet, path: "s3a://lake/all"}
  - {name: sums, sql: "SELECT value.id AS id, sum(value.price) AS s FROM orders GROUP BY value.id", topic: sums,
      mode: complete}
  - {name: copy, sql: "SELECT * FROM shops", format: delta, path: "s3a://lake/copy", mode: overwrite}
"""


class Commands(Scene):
    """A cluster, an object store that fails by plan, and a driver that runs commands."""

    def call(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run one; what it told as JSON. Fails unless it ended well."""
        given = ["pipeline", name, *arguments, "--namesrv", self.cluster.namesrv, "--json"]
        called = self.job.ask(do="call", arguments=given)
        assert called.get("exit_code") == 0, called
        told: dict[str, Any] = json.loads(called["stdout"])
        return told

    def refused(self, name: str, *arguments: str) -> str:
        """Run one that fails; the line that it said."""
        called = self.job.ask(do="call", arguments=["pipeline", name, *arguments, "--namesrv", self.cluster.namesrv])
        assert called["exit_code"] == 1, called
        return str(called["told"]).strip()

    def rows(self, sql: str) -> list[list[Any]]:
        return [list(row.values()) for row in self.job.ask(do="sql", sql=sql)]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("commands")
    with run_cluster(store=folder / "store") as cluster, s3_store("lake") as store:
        conf = settings(store, folder) | {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
        with driver({"conf": conf, "places": ["s3a://lake"]}, folder / "log", KEYS, "archive_job") as job:
            job.until("ready")
            store.proxy.plan = sometimes
            made = Commands(cluster, store, job)
            with Admin(cluster.namesrv) as operations:
                for topic in ("orders", "sums", "repeated", "once", "rows"):
                    operations.create_topic(topic, queue_count=2)
            yield made
            assert {"cut", "refuse", "503"} <= store.proxy.faults.keys(), store.proxy.faults
        printed = (folder / "log").read_text(errors="replace")
        assert ACCESS_KEY not in printed
        assert SECRET_KEY not in printed


def send(scene: Commands, topic: str, *ids: int) -> None:
    with Producer(scene.cluster.namesrv, "commands", trace=True) as producer:
        for number in ids:
            producer.send(Message(topic=topic, body=json.dumps({"id": number, "price": 2}).encode(), keys=f"k{number}"))


@pytest.mark.soak
def test_sql(scene: Commands, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    made = scene.job.ask(do="sql", sql="CREATE TABLE delta.`s3a://lake/shops` USING delta AS SELECT 1 AS shop")
    assert "error" not in made, made
    for turn, ids in enumerate([(1, 2, 3), (3, 4)]):
        send(scene, "orders", *ids)
        done = scene.call("sql", str(tmp_path / "plan.yaml"), "--checkpoint", "s3a://lake/checkpoints")
        rows = {sink["sink"]: sink["rows"] for sink in done["sinks"]}
        assert rows == {"all": len(ids), "sums": len(ids), "copy": 1}, turn
    assert scene.rows("SELECT id, count(*) FROM parquet.`s3a://lake/all` GROUP BY id ORDER BY id") == [
        *([1, 1], [2, 1], [3, 2], [4, 1])
    ]
    assert scene.rows("SELECT * FROM delta.`s3a://lake/copy`") == [[1]]
    sums = {(found["id"], found["s"]) for found in map(json.loads, bodies_of(scene.cluster.namesrv, "sums"))}
    # The state was on the store too: the second run knew of the first one's 3.
    assert sums == {(1, 2), (2, 2), (3, 2), (3, 4), (4, 2)}


@pytest.mark.soak
def test_dedupe(scene: Commands) -> None:
    for ids in ((1, 2, 1), (2, 3)):
        send(scene, "repeated", *ids)
        scene.call("dedupe", "repeated", "once", "--checkpoint", "s3a://lake/dedupe")
    assert sorted(json.loads(body)["id"] for body in bodies_of(scene.cluster.namesrv, "once")) == [1, 2, 3]


def test_outbox(scene: Commands, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, payload VARCHAR(99))")
    database = f"sqlite:///{tmp_path}/shop.db"
    for ids in ((1, 2, 3), (4,)):
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
            connection.executemany("INSERT INTO orders VALUES (?, ?)", [(i, f"order {i}") for i in ids])
        where = ("-t", "rows", "--body-column", "payload", "--checkpoint", "s3a://lake/outbox")
        done = scene.call("outbox", "-d", database, "--table", "orders", *where)
        assert done["rows"] == len(ids), done
    assert sorted(bodies_of(scene.cluster.namesrv, "rows")) == [b"order 1", b"order 2", b"order 3", b"order 4"]


def test_the_report_of_trace(scene: Commands) -> None:
    send(scene, "orders", 9)
    told = scene.job.ask(
        do="call",
        arguments=[
            *("pipeline", "trace", "--html", "s3a://lake/reports/trace.html", "--namesrv", scene.cluster.namesrv)
        ],
    )
    assert told["exit_code"] == 0, told
    assert "trace: the report is in s3a://lake/reports/trace.html" in told["told"]
    (page,) = scene.rows("SELECT concat_ws('', collect_list(value)) FROM text.`s3a://lake/reports/trace.html`")[0]
    assert page.lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "orders" in page


def test_a_bucket_that_is_not_there_is_one_line_before_the_work(scene: Commands, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    said = "there is no such bucket"
    for command in (
        ("sql", str(tmp_path / "plan.yaml"), "--checkpoint", "s3a://none-such/c"),
        ("dedupe", "repeated", "none", "--checkpoint", "s3a://none-such/c"),
        ("outbox", "-d", "sqlite:///none.db", "--table", "o", "-t", "none", "--checkpoint", "s3a://none-such/c"),
        ("trace", "--html", "s3a://none-such/trace.html"),
    ):
        told = scene.refused(*command)
        assert said in told
        assert "\n" not in told, told
