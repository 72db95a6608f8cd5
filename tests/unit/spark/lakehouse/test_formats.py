"""Which jars of a table format fit which Spark. No Spark starts."""

from __future__ import annotations

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse import formats
from rocketspark.spark.lakehouse.table import table_place
from rocketspark.spark.pipelines.parts.session import SessionOptions, open_session


@pytest.mark.parametrize(
    ("table_format", "spark", "package"),
    [
        ("delta", "4.0.5", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("delta", "4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("iceberg", "4.0.5", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"),
        ("iceberg", "4.1.4", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"),
    ],
)
def test_a_release_that_fits(table_format: str, spark: str, package: str) -> None:
    assert formats.packages_of(table_format, spark) == (package,)


@pytest.mark.parametrize(
    ("table_format", "spark", "says"),
    [
        ("delta", "4.3.0", "Delta Lake has no release for Spark 4.3: there are ones for Spark 4.0, 4.1 and 4.2"),
        ("iceberg", "4.2.1", "Apache Iceberg has no release for Spark 4.2: there are ones for Spark 4.0 and 4.1"),
    ],
)
def test_a_spark_without_a_release_is_told_those_that_have_one(table_format: str, spark: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        formats.settings_for(table_format, "", {}, spark, [])
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)


def test_jars_that_are_given_are_taken_whatever_the_spark() -> None:
    for conf, jars in (
        ({"spark.jars": "/x/delta-spark_4.3_2.13-9.jar"}, []),
        ({"spark.jars.packages": "io.delta:delta-spark_4.3_2.13:9"}, []),
        ({}, ["delta-spark_4.3_2.13-9.jar"]),
    ):
        found = formats.settings_for("delta", "", conf, "4.3.0", jars)
        assert "spark.jars.packages" not in found
        assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


def test_what_is_given_stays() -> None:
    conf = {"spark.sql.extensions": "a.B", "spark.jars.packages": "x:y:1", "spark.jars.excludes": "p:q"}
    found = formats.settings_for("iceberg", "jdbc:sqlite:/c.db", conf, "4.0.1", [])
    assert found["spark.sql.extensions"].startswith("a.B,org.apache.iceberg")
    assert found["spark.jars.packages"].split(",")[0] == "x:y:1"
    assert found["spark.jars.packages"].split(",")[2] == formats.SQLITE_DRIVER
    assert found["spark.jars.excludes"].startswith("p:q,org.slf4j:slf4j-api")
    assert "spark.sql.catalog.spark_catalog" not in found
    again = formats.settings_for("iceberg", "jdbc:sqlite:/c.db", conf | found, "4.0.1", [])
    assert "spark.jars.packages" not in again
    assert again["spark.sql.extensions"] == found["spark.sql.extensions"]


@pytest.mark.parametrize(
    ("catalog", "driver"),
    [("jdbc:sqlite:/c.db", formats.SQLITE_DRIVER), ("jdbc:postgresql://h/d", formats.POSTGRESQL_DRIVER)],
)
def test_a_catalog_s_driver_comes_unless_it_is_there(catalog: str, driver: str) -> None:
    assert driver in formats.settings_for("iceberg", catalog, {}, "4.0.1", [])["spark.jars.packages"].split(",")
    jar = "-".join(driver.split(":")[1:]) + ".jar"
    assert driver not in formats.settings_for("iceberg", catalog, {}, "4.0.1", [jar])["spark.jars.packages"]


def test_nothing_starts_on_a_spark_without_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.spark.spark_features.VERSION", "4.3.0")
    monkeypatch.setattr(formats, "spark_jars", list)
    options = SessionOptions("local[1]", tables=(table_place("delta", "/x"),))
    with pytest.raises(ConfigError, match=r"no release for Spark 4\.3"), open_session("archive", options):
        raise AssertionError("it started")
