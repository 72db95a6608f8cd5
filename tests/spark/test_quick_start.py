"""The quick starts of docs/start/spark.md and docs/use/spark.md work as they stand there, cell after cell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.topics import messages_of

from rocketspark import Producer
from rocketspark.spark.pipelines import sql
from rocketspark.spark.pipelines.parts.sql_file import parse_yaml, substitute
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "the examples of README, spark.md's quick start and pipelines/sql.md one after the other",
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, PIPELINES = ((DOCS / "use" / name).read_text("utf-8") for name in ("spark.md", "pipelines/sql.md"))


def test_quick_start(
    spark: SparkSession,
    cluster: Cluster,
    make_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = re.findall(r"```python\n(.*?)```", PAGE[: PAGE.index("## On a cluster")], re.DOTALL)
    assert len(cells) == 6
    orders, totals, copied = make_topic(), make_topic(), make_topic()
    names: dict[str, object] = {}
    # Spark's worker processes run where the session was started: its files need their whole path.
    here = {"127.0.0.1:9876": cluster.namesrv, '"shop-orders"': f'"{orders}"', '"order-totals"': f'"{totals}"'}
    here['"dear-orders"'] = f'"{copied}"'
    here['"out/'] = f'"{tmp_path}/out/'
    shown = []
    for cell in cells:
        for told, meant in here.items():
            cell = cell.replace(told, meant)
        exec(cell, names)
        shown.append(capsys.readouterr().out)
    spark.catalog.dropTempView("sold")
    # The next page's pipeline, over the same orders.
    [text] = re.findall(r"```yaml\n(# totals.yaml.*?)```", PIPELINES, re.DOTALL)
    (tmp_path / "shops.csv").write_text("Wien,Austria\nKöln,Germany\nParis,France\n")
    dear = make_topic()
    for told, meant in {
        "shops.csv": f"{tmp_path}/shops.csv",
        "out/": f"{tmp_path}/out/",
        "shop-orders": orders,
    }.items():
        text = text.replace(told, meant)
    plan = parse_yaml(substitute(text.replace("dear-orders", dear), {"least": "10"}), "totals")
    done = sql.run(spark, plan, cluster.namesrv, checkpoint=tmp_path / "checkpoints")
    assert [(result.sink, result.rows, result.bad_rows) for result in done.sinks] == [
        ("dear", 300, 0),
        ("files", 300, 0),
    ]
    assert len(messages_of(cluster.namesrv, dear)) == 260
    assert spark.read.parquet(f"{tmp_path}/out/dear").groupBy("country").count().count() == 3
    assert shown[1] == "300 orders\n"
    assert len(messages_of(cluster.namesrv, copied)) == 100
    assert '"price": ' in shown[3]
    assert re.search(r"\| *Wien\| +100\| *3787\.5\|", shown[4])
    found = sorted(
        (json.loads(m.body)["shop"], json.loads(m.body)["total"], m.tag, m.keys)
        for m in messages_of(cluster.namesrv, totals)
    )
    assert found == [
        ("Köln", 3737.5, "total", ("Köln",)),
        ("Paris", 3762.5, "total", ("Paris",)),
        ("Wien", 3787.5, "total", ("Wien",)),
    ]


def test_spark_in_five_minutes(
    spark: SparkSession,
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    page = (DOCS / "start" / "spark.md").read_text("utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)```\n", page, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["python", "python", "text", "python", "text"]
    names: dict[str, object] = {}
    for kind, block in blocks:
        if kind == "text":
            assert capsys.readouterr().out.strip() == block.strip()
            continue
        code = block.replace("127.0.0.1:9876", cluster.namesrv).replace('"checkpoint"', f'"{tmp_path}/checkpoint"')
        exec(code, names)


def test_the_first_programs_of_the_page_on_decoding(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "use" / "decode.md").read_text("utf-8")
    first, shown, second, *_ = re.findall(r"^```(?:python|text)\n(.*?)```\n", page, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(first.replace("127.0.0.1:9876", cluster.namesrv), names)
    assert capsys.readouterr().out.split() == shown.split()
    exec(second.replace("127.0.0.1:9876", cluster.namesrv), names)
    assert [m.body for m in messages_of(cluster.namesrv, "decode-bad")] == [b"not JSON"]


def test_the_batch_of_the_page_on_exactly_once_writes_each_row_once(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "use" / "exactly_once.md").read_text("utf-8").replace("127.0.0.1:9876", cluster.namesrv)
    batch, check, shown = (
        re.search(rf"^```\w+\n({beginning}.*?)```\n", page, re.DOTALL | re.MULTILINE).group(1)  # type: ignore[union-attr]
        for beginning in ("# batch.py", "# check.py", "1000 messages")
    )
    with Producer(cluster.namesrv) as producer:
        producer.send_many("once-numbers", [b"%d" % number for number in range(1, 1001)])
    exec(batch, {})
    exec(batch, {})
    monkeypatch.setattr("sys.argv", ["check.py", "once-batch"])
    capsys.readouterr()
    exec(check, {})
    assert capsys.readouterr().out == shown
