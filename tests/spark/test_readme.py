"""README's Spark example works as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketspark import Producer
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "README's examples",
    "the examples of README, spark.md's quick start and pipelines/sql.md one after the other",
)

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


@pytest.mark.shows('Spark: `format("rocketmq")` is found without registration')
def test_spark_example(
    spark: SparkSession,
    cluster: Cluster,
    make_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The rows of the topic are shown and copied, and the program ends; started again, it copies what came since."""
    (code,) = re.findall(r"```python\n(from rocketspark.spark.*?)```", README, re.DOTALL)
    orders, copied = make_topic(), make_topic()
    code = code.replace('"orders"', repr(orders)).replace('"orders-copy"', repr(copied))
    code = code.replace("127.0.0.1:9876", cluster.namesrv).replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    with Producer(cluster.namesrv) as producer:
        producer.send(orders, b"early", tag="fruit")
        exec(code, {})
        assert re.search(r"\|fruit\|early\| +\d\| +0\|", capsys.readouterr().out)
        producer.send(orders, b"late", tag="bread")
        exec(code, {})
    rows = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", copied).load()
    assert sorted((bytes(r.body), r.tag) for r in rows.collect()) == [(b"early", "fruit"), (b"late", "bread")]
