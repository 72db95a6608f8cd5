"""Opens the table at a place, Delta or Iceberg. Rule: nothing else chooses between the formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse.delta_table import DeltaTable
from rocketspark.spark.lakehouse.iceberg_table import IcebergTable
from rocketspark.spark.lakehouse.packages import EXTENSIONS, NAMES
from rocketspark.spark.lakehouse.table import ArchiveTable, TablePlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_table(spark: SparkSession, place: TablePlace) -> ArchiveTable:
    """Return the table at a place. Raises ConfigError if the session has not its format."""
    if EXTENSIONS[place.format] not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise ConfigError(
            f"this Spark session has no {NAMES[place.format]}: start it with its jar and with spark.sql.extensions="
            f"{EXTENSIONS[place.format]}"
        )
    return DeltaTable(spark, place) if place.format == "delta" else IcebergTable(spark, place)


def read_table(spark: SparkSession, place: TablePlace) -> DataFrame:
    """Return the rows of an archive that is a table. Raises ConfigError if there is none."""
    table = open_table(spark, place)
    if not table.exists():
        raise ConfigError(f"{place} is no archive: there is no {place.format} table")
    table.check()
    return table.read()
