"""README's Spark example works as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketspark import Producer
from rocketspark.testing import Cluster

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def test_spark_example(
    spark: SparkSession,
    cluster: Cluster,
    make_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The rows of the topic are shown, and what comes later is copied by the stream."""
    (code,) = re.findall(r"```python\n(from rocketspark.spark.*?)```", README, re.DOTALL)
    orders, copied = make_topic(), make_topic()
    code = code.replace('"orders"', repr(orders)).replace('"orders-copy"', repr(copied))
    code = code.replace("127.0.0.1:9876", cluster.namesrv).replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    with Producer(cluster.namesrv) as producer:
        producer.send(orders, b"early", tag="fruit")
        names: dict[str, object] = {}
        exec(code, names)
        query = names["query"]
        assert isinstance(query.isActive, bool)  # type: ignore[attr-defined]
        try:
            shown = capsys.readouterr().out
            assert re.search(r"\|fruit\|early\| +\d\| +0\|", shown)
            while not query.recentProgress:  # type: ignore[attr-defined]
                query.awaitTermination(0.05)  # type: ignore[attr-defined]
            producer.send(orders, b"late", tag="bread")
            query.processAllAvailable()  # type: ignore[attr-defined]
        finally:
            query.stop()  # type: ignore[attr-defined]
    rows = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", copied).load()
    assert [(bytes(r.body), r.tag) for r in rows.collect()] == [(b"late", "bread")]
