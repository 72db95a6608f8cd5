"""The table formats of an archive, Delta and Iceberg: their jars, the settings of a session that has them, and how a
table is opened. Rule: only this file chooses between the formats.

Where no release of a format fits the Spark at hand, an error names the Sparks that have one, before anything starts.
The package delta-spark of PyPI is not used: it pins PySpark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse.delta_table import DeltaTable
from rocketspark.spark.lakehouse.iceberg_table import IcebergTable
from rocketspark.spark.lakehouse.object_store import joined, spark_jars
from rocketspark.spark.lakehouse.table import ArchiveTable, TablePlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCALA = "2.13"
DELTA_VERSION = "4.4.0"
ICEBERG_VERSION = "1.11.0"
SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRESQL_DRIVER = "org.postgresql:postgresql:42.7.8"
# The Sparks for which these versions were released, by format.
RELEASES = {"delta": ("4.0", "4.1", "4.2"), "iceberg": ("4.0", "4.1")}
NAMES = {"delta": "Delta Lake", "iceberg": "Apache Iceberg"}
# What each Spark has in its own version, and Delta's parts that an archive never uses.
EXCLUDED = (
    "org.slf4j:slf4j-api,org.xerial.snappy:snappy-java,org.apache.hadoop:hadoop-client-*,"
    "io.delta:delta-kernel*,io.unitycatalog:*,org.checkerframework:checker-qual"
)
_JARS = {"delta": "delta-spark_", "iceberg": "iceberg-spark-runtime-"}
_DRIVERS = {"jdbc:sqlite:": ("sqlite-jdbc", SQLITE_DRIVER), "jdbc:postgresql:": ("postgresql-", POSTGRESQL_DRIVER)}
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_CATALOG = "spark.sql.catalog.spark_catalog"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# Delta divides the state of its log into 50 parts, each a task: one does for an archive.
_DELTA_PARTS = {"spark.databricks.delta.snapshotPartitions": "1"}


def packages_of(table_format: str, spark_version: str) -> tuple[str, ...]:
    """Return the Maven coordinates of a table format's jars for a version of Spark. The packages in EXCLUDED must be
    left out of their dependencies.

    Raises ConfigError where no release fits, naming the Sparks that have one.
    """
    minor = ".".join(spark_version.split(".")[:2])
    sparks = RELEASES[table_format]
    if minor not in sparks:
        some = f"{', '.join(sparks[:-1])} and {sparks[-1]}"
        raise ConfigError(
            f"{NAMES[table_format]} has no release for Spark {minor}: there are ones for Spark {some} (pip install"
            f" 'pyspark=={sparks[-1]}.*'); or give a jar that fits with --conf spark.jars=…"
        )
    if table_format == "delta":
        return (f"io.delta:delta-spark_{minor}_{SCALA}:{DELTA_VERSION}",)
    return (f"org.apache.iceberg:iceberg-spark-runtime-{minor}_{SCALA}:{ICEBERG_VERSION}",)


def settings_for(
    table_format: str, catalog: str, conf: Mapping[str, str], spark_version: str, jars: Collection[str] | None = None
) -> dict[str, str]:
    """Return the settings that a session needs for tables of a format; settings that are lists include the values of
    `conf`.

    catalog: the URI of Iceberg's catalog. jars: names of Spark's own jars; those that PySpark brought if not given.
    Raises ConfigError where no release fits and no jar is given.
    """
    given = ",".join(
        [conf.get(n, "") for n in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")]
        + list(spark_jars() if jars is None else jars)
    )
    wanted: list[str] = []
    # A coordinate has a colon before the version where a file's name has a dash.
    if _JARS[table_format] not in given:
        wanted += packages_of(table_format, spark_version)
    for start, (name, package) in _DRIVERS.items():
        if catalog.startswith(start) and name not in given and name.rstrip("-") + ":" not in given:
            wanted.append(package)
    settings = {"spark.sql.extensions": joined(conf.get("spark.sql.extensions"), EXTENSIONS[table_format])}
    if table_format == "delta":
        settings |= {_CATALOG: _DELTA_CATALOG} | _DELTA_PARTS
    settings = {name: value for name, value in settings.items() if name not in conf or name == "spark.sql.extensions"}
    if wanted:
        settings["spark.jars.packages"] = joined(conf.get("spark.jars.packages"), *wanted)
        settings["spark.jars.excludes"] = joined(conf.get("spark.jars.excludes"), EXCLUDED)
    return settings


def open_table(spark: SparkSession, place: TablePlace) -> ArchiveTable:
    """Return the archive's table at a place. Raises ConfigError if the session lacks the jars or settings of its
    format.
    """
    if EXTENSIONS[place.format] not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise ConfigError(
            f"this Spark session has no {NAMES[place.format]}: start it with its jar and with spark.sql.extensions="
            f"{EXTENSIONS[place.format]}"
        )
    return DeltaTable(spark, place) if place.format == "delta" else IcebergTable(spark, place)


def read_table(spark: SparkSession, place: TablePlace) -> DataFrame:
    """Return the rows of an archive that is kept in a table. Raises ConfigError if the table does not exist."""
    return _whole_table(spark, place).read()


def read_version(spark: SparkSession, place: TablePlace) -> tuple[DataFrame, str]:
    """Return the rows that such a table has now, which are the same in later jobs, and the id that it got when it was
    made. Raises as `read_table`.
    """
    table = _whole_table(spark, place)
    return table.read_version(), table.identity()


def _whole_table(spark: SparkSession, place: TablePlace) -> ArchiveTable:
    table = open_table(spark, place)
    if not table.exists():
        raise ConfigError(f"{place} is no archive: there is no {place.format} table")
    table.check()
    return table
