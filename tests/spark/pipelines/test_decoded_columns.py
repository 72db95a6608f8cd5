"""Decoded columns of rows that are read, as a table of other columns has them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rocketspark.spark.lakehouse.decoded_columns import fitted
from rocketspark.spark.lakehouse.table import ddl

pytestmark = pytest.mark.shows(
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them"
)

READ = (
    "i tinyint, `s.t` struct<`a``b`:smallint,B:string>, l array<struct<x:int>>, m map<string,struct<y:tinyint>>, v int"
)
HELD = (
    "i int, `s.t` struct<new:string,`A``b`:int,b:string>, l array<struct<more:map<string,int>,x:int>>,"
    " m map<string,struct<y:int,z:array<int>>>, v int"
)
ROWS: list[Any] = [
    (1, (2, "b"), [(3,), None, (None,)], {"k": (4,), "n": None}, 5),
    (None, None, None, None, None),
    (1, (None, None), [], {}, 5),
]


def test_rows_get_all_fields_of_a_table_and_what_is_null_stays_so(spark: SparkSession) -> None:
    kinds: list[StructType] = [spark.createDataFrame([], text).schema for text in (READ, HELD)]
    rows = spark.createDataFrame(ROWS, READ)
    pairs = zip(*(kind.fields for kind in kinds), strict=True)
    columns = [fitted(F.col(f"`{a.name}`"), a.dataType, b.dataType).alias(b.name) for a, b in pairs]
    found = rows.select(*columns)
    assert ddl(found.schema) == ddl(kinds[1])
    assert [tuple(row) for row in found.collect()] == [
        (1, (None, 2, "b"), [(None, 3), None, (None, None)], {"k": (4, None), "n": None}, 5),
        (None, None, None, None, None),
        (1, (None, None, None), [], {}, 5),
    ]
    assert spark.createDataFrame([], ddl(kinds[1])).schema == kinds[1]
