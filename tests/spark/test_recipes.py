"""The recipes of docs/use/spark.md for what is in a message, run as they stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from rocketspark.client import Producer
from rocketspark.testing import Cluster

pytestmark = pytest.mark.shows(
    "columns, subsets, properties, compressed bodies, headers only; recipes for JSON and Avro",
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "use" / "spark.md").read_text("utf-8")
ORDERS = [{"id": i, "fruit": "apple" if i % 2 else "pear", "price": i / 4} for i in range(20)]

Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str]) -> Run:
    """run(heading): the names that the code under a heading leaves, its topics loaded before."""

    def execute(heading: str) -> dict[str, Any]:
        (code,) = re.findall(rf"#### {heading}\n.*?```python\n(.*?)```", PAGE, re.DOTALL)[:1]
        (name,) = re.findall(r'"topic", "(.*?)"', code)
        topic = make_topic()
        with Producer(cluster.namesrv, "recipes") as producer:
            for order in ORDERS:
                body = as_avro(order) if name == "orders-avro" else json.dumps(order).encode()
                region = {"region": "north" if order["id"] < 5 else "south"}
                producer.send(topic, body, tag=order["fruit"], properties=region)
            if name == "orders-json":
                producer.send(topic, b"not JSON", tag="apple")
        names: dict[str, Any] = {"spark": spark, "__name__": "__main__"}
        exec(code.replace("127.0.0.1:9876", cluster.namesrv).replace(name, topic), names)
        return names

    return execute


def as_avro(order: dict[str, Any]) -> bytes:
    kinds = {"id": "int", "fruit": "string", "price": "double"}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema({"type": "record", "name": "O", "fields": fields}), order)
    return out.getvalue()


def test_json(run: Run) -> None:
    found = run("JSON")
    assert sorted((r.asDict() for r in found["good"].collect()), key=lambda r: r["id"]) == ORDERS
    assert [bytes(r.body) for r in found["bad"].collect()] == [b"not JSON"]


def test_avro(run: Run) -> None:
    rows = run("Avro")["avro_orders"].collect()
    assert sorted((r.asDict() for r in rows), key=lambda r: r["id"]) == ORDERS


def test_properties_without_bodies(run: Run) -> None:
    found = run("Properties, without bodies")
    counts = {(r["tag"], r["region"]): r["count"] for r in found["by_region"].collect()}
    assert counts == {
        ("pear", "north"): 3,
        ("apple", "north"): 2,
        ("pear", "south"): 7,
        ("apple", "south"): 8,
        ("apple", None): 1,
    }
    assert {"region", "TAGS", "UNIQ_KEY"} <= {r["name"] for r in found["names"].collect()}
