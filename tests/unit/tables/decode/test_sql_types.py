"""Types of decoded columns: named, written and turned into Arrow as Spark does with its own."""

from __future__ import annotations

from typing import Any

import pyspark.sql.types as spark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.spark.schemas import sql_type
from rocketspark.spark.spark_features import arrow_schema
from rocketspark.tables.decode import sql_types
from rocketspark.tables.decode.json_bodies import of_ddl, quoted

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows("decoding needs no Spark: its types are written and turned into Arrow as Spark's are"),
]

LEAVES: list[spark.DataType] = [
    *(spark.BooleanType(), spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType()),
    *(spark.FloatType(), spark.DoubleType(), spark.StringType(), spark.BinaryType(), spark.DateType()),
    *(spark.TimestampType(), spark.TimestampNTZType(), spark.DecimalType(9, 2), spark.DecimalType(38, 0)),
]


def struct(kinds: list[tuple[spark.DataType, bool]]) -> spark.DataType:
    return spark.StructType([spark.StructField(f"f`,<{i} ä", kind, null) for i, (kind, null) in enumerate(kinds)])


types = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.builds(spark.ArrayType, inner, st.booleans())
        | st.builds(spark.MapType, st.just(spark.StringType()), inner, st.booleans())
        | st.lists(st.tuples(inner, st.booleans()), max_size=3).map(struct)
    ),
    max_leaves=10,
)


@given(types)
def test_a_type_is_what_it_is_in_spark(kind: spark.DataType) -> None:
    own = sql_type(kind)
    assert own.simpleString() == kind.simpleString()
    assert own.json() == kind.json()
    assert own.arrow() == arrow_schema(spark.StructType([spark.StructField("v", kind)])).field(0).type


def with_nulls(kind: Any) -> Any:
    """The type with nulls everywhere, as DDL without NOT NULL says."""
    text = kind.json()
    for name in ("nullable", "containsNull", "valueContainsNull"):
        text = text.replace(f'"{name}":false', f'"{name}":true')
    return spark._parse_datatype_json_string(text)


@given(types)
def test_the_ddl_of_a_type_is_that_type(kind: spark.DataType) -> None:
    own = sql_type(with_nulls(kind))
    if not isinstance(own, sql_types.StructType):
        own = sql_types.StructType([sql_types.StructField("v", own)])
    assert of_ddl(quoted(own)) == own


@pytest.mark.parametrize(
    ("ddl", "wanted"),
    [
        ("struct<a:DEC>", sql_types.DecimalType()),
        ("struct<a:numeric( 5 , 2 )>", sql_types.DecimalType(5, 2)),
        ("struct<a varchar(10) COMMENT 'x'>", sql_types.StringType()),
        ("struct<a timestamp without time zone>", sql_types.TimestampNTZType()),
        ("struct<a TIMESTAMP_LTZ>", sql_types.TimestampType()),
        ("struct<a interval day to second>", sql_types.OtherType("interval")),
        ("struct<a array<int not null>>", sql_types.ArrayType(sql_types.IntegerType(), False)),
    ],
)
def test_words_of_ddl(ddl: str, wanted: sql_types.DataType) -> None:
    found = of_ddl(ddl)
    assert isinstance(found, sql_types.StructType)
    assert found.fields[0].dataType == wanted


@pytest.mark.parametrize("ddl", ["struct<a decimal(39,0)>", "struct<a decimal(3,4)>", "struct<a decimal(x)>"])
def test_decimals_that_nothing_holds(ddl: str) -> None:
    with pytest.raises(ConfigError, match="decodeSchema is no schema, from"):
        of_ddl(ddl)


@pytest.mark.parametrize(
    "value", ["word", {"type": "word"}, {"type": "struct", "fields": [{"name": "a", "type": "x"}]}]
)
def test_json_that_is_no_type(value: Any) -> None:
    with pytest.raises(ValueError, match="is no type"):
        sql_types.of_json(value)
    assert sql_types.of_json("variant").simpleString() == "variant"
    with pytest.raises(ConfigError, match="bodies are not decoded to variant"):
        sql_types.of_json("variant").arrow()
