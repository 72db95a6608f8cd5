"""What another version of Spark lacks: it is said when the query starts, with the version and the option."""

from __future__ import annotations

import sys

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark import source, spark_features
from rocketspark.spark.pipelines import declarative
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import VERSION, reported_offset

pytestmark = pytest.mark.shows(
    "PySpark 4.0 to 4.3 in one code; extras `[spark]` and `[connector]`",
    "limits on 4.0 and 4.1, exact, over restarts; `availableNow` with a limit ends after one micro-batch, "
    "warned once; pipelines repeat until the end noted at their start; what cannot work says so with version "
    "and option",
)


def test_a_spark_without_filters_refuses_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FILTERS", False)
    options = {"namesrv": "127.0.0.1:1", "topic": "t"}
    assert source.RocketMQDataSource(options).reader(READ_SCHEMA) is not None
    pushing = source.RocketMQDataSource({**options, "pushDownPredicate": "true"})
    with pytest.raises(ConfigError, match=r"option pushDownPredicate needs Spark 4\.1 or later") as caught:
        pushing.reader(READ_SCHEMA)
    assert VERSION in str(caught.value)


def test_a_spark_without_declarative_pipelines_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", None)
    monkeypatch.delattr(sys.modules["pyspark"], "pipelines", raising=False)
    with pytest.raises(ConfigError, match=r"need Spark 4\.1 or later") as caught:
        declarative.define("orders.yaml", "127.0.0.1:9876")
    assert VERSION in str(caught.value)
    assert "rocketspark pipeline sql" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (None, None),
        ('{"t": {"broker-a": {"0": 5}}}', {"t": {"broker-a": {"0": 5}}}),
        ("{'t': {'broker-a': {'0': 5}}}", {"t": {"broker-a": {"0": 5}}}),
    ],
)
def test_an_offset_of_a_progress_report(text: str | None, offset: object) -> None:
    assert reported_offset(text) == offset


def test_the_abilities_of_the_version_that_is_installed() -> None:
    abilities = [spark_features.ADMISSION_CONTROL, spark_features.ARROW_STREAM_WRITER, spark_features.FILTERS]
    minor = int(VERSION.split(".")[1])
    assert abilities == [minor >= 2, minor >= 1, minor >= 1]
