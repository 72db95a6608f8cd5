"""`pipeline sql`: topics through SQL into topics and files, from a YAML file and from statements, and declared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.standalone import environment
from tests.spark.topics import bodies_of, messages_of

from rocketspark import Message, Producer
from rocketspark.cli.main import run as cli
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.lakehouse.object_store import literal
from rocketspark.spark.pipelines import declarative, sql
from rocketspark.spark.pipelines.parts.sql_file import SqlPlan, parse_sql, parse_yaml
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows("`sql`: YAML or statements; as a declarative pipeline")

PLAN = """
sources:
  - name: orders
    topic: {source}
    stream: true
    json: "id INT, shop STRING, price DOUBLE"
    options: {{startingOffsets: earliest}}
  - {{name: shops, format: parquet, path: {folder}/shops}}
steps:
  - name: named
    sql: >
      SELECT value.id AS id, value.price AS price, shops.city AS city, orders.tag AS tag
      FROM orders JOIN shops ON value.shop = shops.shop WHERE value.price > 2
sinks:
  - {{name: dear, from: named, topic: {target}}}
  - {{name: files, from: named, format: parquet, path: {folder}/out, partition_by: [city]}}
  - {{name: cities, sql: "SELECT city FROM shops", format: json, path: {folder}/cities, mode: overwrite}}
"""


def fill(producer: Producer, topic: str, first: int, count: int) -> None:
    producer.send_batch(
        [
            Message(topic=topic, body=json.dumps({"id": i, "shop": "ab"[i % 2], "price": float(i)}).encode(), tag="new")
            for i in range(first, first + count)
        ]
    )


def test_streams_and_batches_go_on_where_they_were(
    spark: SparkSession, cluster: Cluster, producer: Producer, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = make_topic(), make_topic()
    spark.createDataFrame([("a", "Wien"), ("b", "Köln")], "shop string, city string").coalesce(1).write.parquet(
        f"{tmp_path}/shops"
    )
    plan = parse_yaml(PLAN.format(source=source, target=target, folder=tmp_path), "plan")
    fill(producer, source, 0, 5)
    first = sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / "checkpoints")
    assert [tuple(result)[:4] for result in first.sinks] == [
        ("cities", f"json {tmp_path}/cities", 2, 1),
        ("dear", f"rocketmq {target}", 5, 1),
        ("files", f"parquet {tmp_path}/out", 5, 1),
    ]
    fill(producer, source, 5, 2)
    # Bodies that are no JSON, or no such JSON, have no price.
    producer.send(source, b"0 apples")
    producer.send(source, b'{"id": "none"}')
    again = sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / "checkpoints")
    assert [(result.rows, result.bad_rows) for result in again.sinks] == [(2, 0), (4, 2), (4, 2)]
    cities = {0: "Wien", 1: "Köln"}
    wanted = [{"id": i, "price": float(i), "city": cities[i % 2]} for i in range(3, 7)]
    found = messages_of(cluster.namesrv, target)
    assert sorted((json.loads(m.body) for m in found), key=lambda row: row["id"]) == wanted
    assert {m.tag for m in found} == {"new"}
    rows = spark.read.parquet(f"{tmp_path}/out").orderBy("id").collect()
    assert [(r.id, r.price, r.city, r.tag) for r in rows] == [(w["id"], w["price"], w["city"], "new") for w in wanted]
    assert spark.read.json(f"{tmp_path}/cities").count() == 2


@pytest.mark.shows("`pipeline sql` beside what is in a sink's folder")
def test_nothing_is_deleted_unasked_and_no_batch_is_left_out(
    spark: SparkSession, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    fill(producer, topic, 0, 4)
    source = f"CREATE STREAMING SOURCE m USING rocketmq OPTIONS (topic '{topic}', startingOffsets 'earliest');"
    source += f"CREATE SOURCE b USING rocketmq OPTIONS (topic '{topic}');"

    def plan(name: str, options: str, view: str) -> SqlPlan:
        return parse_sql(f"{source} CREATE SINK s USING json OPTIONS ({options}) AS SELECT tag FROM {view}", name)

    def run(plan: SqlPlan, checkpoint: str = "one") -> int:
        return sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / checkpoint).sinks[0].rows

    out, old = tmp_path / "[out]", tmp_path / "old"
    stream = plan("p", f"path '{out}'", "m")
    assert run(stream) == 4
    # Another checkpoint, or that of another query: Spark would leave its first batch out, and say success.
    with pytest.raises(ConfigError, match=r"sink s: .*out. has batches up to 0 of another query.*two/s"):
        run(stream, "two")
    with pytest.raises(ConfigError, match="has batches up to 0"):
        sql.dry_run(spark, stream, cluster.namesrv, checkpoint=tmp_path / "two")
    with pytest.raises(ConfigError, match="a stream writes to"):
        run(plan("p", f"path '{out}', mode 'append'", "b"))
    fill(producer, topic, 4, 3)
    assert run(stream) == 3
    assert spark.read.json(literal(f"{out}")).count() == 7
    # What others put into a folder.
    old.mkdir()
    assert run(plan("p", f"path '{old}'", "b")) == 7
    (old / "notes.txt").write_text("mine")
    for view in "bm":
        with pytest.raises(ConfigError, match="old is not empty"):
            run(plan("p", f"path '{old}'", view), "three")
    assert run(plan("p", f"path '{old}', mode 'append'", "b")) == 7
    assert (old / "notes.txt").read_text() == "mine"
    overwriting = plan("p", f"path '{old}', mode 'overwrite'", "b")
    shown = sql.dry_run(spark, overwriting, cluster.namesrv, checkpoint=tmp_path / "c").sinks[0]
    there = sum(not name.endswith(".crc") for name in os.listdir(old))
    assert (shown["mode"], shown["deletes"]) == ("overwrite", f"all in {old} ({there} files and folders)")
    assert run(overwriting) == 7
    assert not (old / "notes.txt").exists()
    assert spark.read.json(str(old)).count() == 7


@pytest.mark.shows("mended: `sql` refuses a stream's folder once its first start failed, or was killed, before a batch")
def test_a_stream_into_files_whose_first_start_failed_goes_on(
    spark: SparkSession, cluster: Cluster, producer: Producer, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, out = f"late-{uuid.uuid4().hex[:8]}", tmp_path / "out"
    text = f"CREATE STREAMING SOURCE m USING rocketmq OPTIONS (topic '{topic}', startingOffsets 'earliest');"
    plan = parse_sql(f"{text} CREATE SINK s USING json OPTIONS (path '{out}') AS SELECT tag FROM m", "late")
    with pytest.raises(RocketSparkError, match="no topic"):
        sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / "c")
    assert [path.name for path in out.iterdir()] == ["_spark_metadata"]
    make_topic(name=topic)
    fill(producer, topic, 0, 3)
    assert sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / "c").sinks[0].rows == 3
    assert spark.read.json(str(out)).count() == 3


def test_the_command_runs_statements(
    spark: SparkSession,
    cluster: Cluster,
    load: Callable[..., Any],
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = make_topic(), make_topic()
    load(source, 60)
    file = tmp_path / "tags.sql"
    file.write_text(
        "CREATE SOURCE m USING rocketmq OPTIONS (topic '${topic}', tags 'A || B');\n"
        f"CREATE SINK counts USING rocketmq OPTIONS (topic '{target}') AS\n"
        "SELECT concat(tag, '=', count(*)) AS body, tag FROM m GROUP BY tag;\n"
    )
    common = ["pipeline", "sql", str(file), "--var", f"topic={source}", "-n", cluster.namesrv, "--json"]
    assert cli([*common, "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sinks"] == [
        {"sink": "counts", "to": f"rocketmq {target}", "kind": "batch", "mode": "append", "deletes": ""}
    ]
    assert told["views"][0]["name"] == "m"
    assert "storeTime:timestamp" in told["views"][0]["columns"]
    assert bodies_of(cluster.namesrv, target) == []
    assert cli(common) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sinks"] == [{"sink": "counts", "to": f"rocketmq {target}", "rows": 2, "batches": 1, "bad_rows": 0}]
    assert bodies_of(cluster.namesrv, target) == [b"A=16", b"B=16"]
    assert cli(["pipeline", "sql", str(file), "-n", cluster.namesrv]) == 1
    assert "${topic} has no value: give it with --var topic=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("view", "sink", "error"),
    [
        ("SELECT nothing FROM m", "SELECT * FROM v", "step v: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ("SELECT body FROM m", "SELECT * FROM w", "sink s: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("SELECT tag FROM m", "SELECT * FROM v", "sink s: no column is left for the body"),
        ("SELECT BODY FROM m", "SELECT * FROM v", "sink s: column BODY is body but for its capitals"),
    ],
)
def test_mistakes_name_the_part(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path, view: str, sink: str, error: str
) -> None:
    plan = parse_sql(
        f"CREATE SOURCE m USING rocketmq OPTIONS (topic '{topic}'); CREATE VIEW v AS {view};"
        f"CREATE SINK s USING rocketmq OPTIONS (topic 'x') AS {sink}",
        "p",
    )
    # Other tests of the session may have left some.
    before = {view.name for view in spark.catalog.listTables() if view.isTemporary}
    with pytest.raises(RocketSparkError) as caught:
        sql.dry_run(spark, plan, cluster.namesrv, checkpoint=tmp_path)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {view.name for view in spark.catalog.listTables() if view.isTemporary} == before


@pytest.mark.every_spark
@pytest.mark.official
def test_as_a_declarative_pipeline(
    cluster: Cluster, load: Callable[..., Any], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = make_topic(), make_topic()
    sent = load(source, 40)
    (tmp_path / "tags.sql").write_text(
        f"CREATE STREAMING SOURCE m USING rocketmq OPTIONS (topic '{source}', startingOffsets 'earliest');\n"
        "CREATE VIEW tagged AS SELECT body, tag FROM STREAM m WHERE tag = 'A';\n"
        f"CREATE SINK copies USING rocketmq OPTIONS (topic '{target}') AS SELECT * FROM STREAM tagged;\n"
    )
    if find_spec("pyspark.pipelines") is None:
        with pytest.raises(ConfigError, match=r"declarative pipelines need Spark 4\.1 or later"):
            declarative.define(tmp_path / "tags.sql", cluster.namesrv)
        return
    (tmp_path / "graph.py").write_text(
        "from rocketspark.spark.pipelines.declarative import define\n"
        f"define({str(tmp_path / 'tags.sql')!r}, {cluster.namesrv!r})\n"
    )
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: tags\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: graph.py\n"
    )
    settings = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    settings += ["--conf", "spark.ui.enabled=false", "--conf", "spark.connect.grpc.binding.address=127.0.0.1"]
    program = Path(sys.modules["pyspark"].__file__ or "").parent / "bin" / "spark-pipelines"
    done = subprocess.run(
        [str(program), "run", *settings, "--spec", str(tmp_path / "spark-pipeline.yml")],
        cwd=tmp_path,
        env=environment() | {"SPARK_TESTING": "1", "PYSPARK_DRIVER_PYTHON": sys.executable, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert bodies_of(cluster.namesrv, target) == sorted(m.body for m in sent.values() if m.tag == "A")
