"""Which columns of decoded bodies a table gets, and which it cannot have. No Spark starts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse.decoded_columns import held, lacking, path_of

pytestmark = pytest.mark.shows(
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them"
)

FORMATS = ("delta", "iceberg")
ATOMIC = [
    *(ByteType(), ShortType(), IntegerType(), LongType(), DoubleType(), DecimalType(20, 3), StringType()),
    *(BinaryType(), DateType(), TimestampType(), TimestampNTZType()),
]
NAMES = st.text(st.sampled_from("aAbZ1.`-ä/\"'\\:_😀"), min_size=1, max_size=4)


def structs(kinds: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    fields = st.lists(st.tuples(NAMES, kinds), min_size=1, max_size=4, unique_by=lambda one: one[0].lower())
    return fields.map(lambda some: StructType([StructField(*one) for one in some]))


KINDS = st.recursive(
    st.sampled_from(ATOMIC),
    lambda inner: st.one_of(structs(inner), inner.map(ArrayType), inner.map(lambda kind: MapType(StringType(), kind))),
    max_leaves=8,
)


def part_of(kind: DataType, draw: st.DrawFn) -> DataType:
    """A type with some of its fields, their names perhaps in capitals."""
    if isinstance(kind, ArrayType):
        return ArrayType(part_of(kind.elementType, draw))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, part_of(kind.valueType, draw))
    if not isinstance(kind, StructType):
        return kind
    kept = draw(st.lists(st.sampled_from(kind.fields), min_size=1, unique_by=lambda field: field.name))
    return StructType([StructField(draw(cased(field.name)), part_of(field.dataType, draw)) for field in kept])


def cased(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from([name, *(one for one in [name.upper()] if one.lower() == name.lower())])


@st.composite
def versions(draw: st.DrawFn) -> tuple[StructType, StructType]:
    """Two schemas that agree where they meet."""
    whole = draw(structs(KINDS))
    one, other = part_of(whole, draw), part_of(whole, draw)
    assert isinstance(one, StructType)
    assert isinstance(other, StructType)
    return one, other


def with_field(there: DataType, path: tuple[str, ...], kind: DataType) -> DataType:
    """A type with one more field, as ALTER TABLE gives it."""
    if isinstance(there, ArrayType):
        assert path[0] == "element"
        return ArrayType(with_field(there.elementType, path[1:], kind))
    if isinstance(there, MapType):
        assert path[0] == "value"
        return MapType(there.keyType, with_field(there.valueType, path[1:], kind))
    assert isinstance(there, StructType)
    if len(path) == 1:
        assert path[0].lower() not in [field.name.lower() for field in there.fields]
        return StructType([*there.fields, StructField(path[0], kind)])
    assert path[0] in there.names
    return StructType(
        [StructField(f.name, with_field(f.dataType, path[1:], kind)) if f.name == path[0] else f for f in there.fields]
    )


@given(versions())
def test_what_a_table_lacks_is_added_and_nothing_else(schemas: tuple[StructType, StructType]) -> None:
    there, wanted = schemas
    assert lacking(there, there) == []
    table: DataType = there
    for path, kind in lacking(there, wanted):
        table = with_field(table, path, kind)
    assert isinstance(table, StructType)
    # Now it has all of both.
    assert lacking(table, wanted) == lacking(table, there) == []


@given(structs(KINDS), st.sampled_from(FORMATS))
def test_what_a_table_holds_it_holds_again(columns: StructType, table_format: str) -> None:
    try:
        found = held(columns, table_format)
    except ConfigError as e:
        assert "\n" not in str(e)  # noqa: PT017
        assert table_format == "iceberg"
        return
    assert held(found, table_format) == found
    assert found.names == columns.names
    if table_format == "iceberg":
        assert "tinyint" not in found.simpleString()
        assert "smallint" not in found.simpleString()
    else:
        assert found == columns


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_path_is_read_back_from_sql(names: list[str]) -> None:
    parts = re.findall(r"`((?:[^`]|``)*)`", path_of(tuple(names)), re.DOTALL)
    assert [part.replace("``", "`") for part in parts] == names


def field(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind)])


INTERVAL = DayTimeIntervalType()


@pytest.mark.parametrize(
    ("columns", "table_format", "says"),
    [
        (field("value", StructType([])), "delta", "column value is a struct without fields"),
        (field("value", field("a b", StringType())), "delta", "column value.a b: a delta table has no column of that"),
        (field("value", ArrayType(field("a,b", StringType()))), "delta", "column value.element.a,b: a delta table has"),
        (field("value", field("", StringType())), "iceberg", "column value.: an iceberg table has no column of that"),
        (field("value", field("d", INTERVAL)), "iceberg", "column value.d is interval day to second, which no iceberg"),
        (field("value", MapType(StringType(), NullType())), "delta", "column value.value is void, which no delta"),
        (field("value", StructType([StructField("Id", LongType()), StructField("iD", LongType())])), "delta",
         "column value.id is there twice, capitals aside"),
        (field("value", StructType([StructField("a", field("b", LongType())), StructField("a.b", LongType())])),
         "iceberg", "column value.a.b is there twice, as Iceberg joins names by dots"),
    ],
)  # fmt: skip
def test_what_no_table_holds(columns: StructType, table_format: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        held(columns, table_format)
    assert str(raised.value).startswith(says)
    assert "decodeSchema" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_columns_of_iceberg_s_own_are_not_taken() -> None:
    columns = field("_File", StringType())
    assert held(columns, "delta") == columns
    assert held(field("value", columns), "iceberg") == field("value", columns)
    with pytest.raises(ConfigError, match="column _File: Iceberg has a column of its own of that name; choose another"):
        held(columns, "iceberg")


def test_odd_names_and_long_text_are_held() -> None:
    odd = StructType([StructField(name, VarcharType(9)) for name in ("a b", "a,b", "`", "a.b", "ä")])
    assert held(odd, "iceberg") == StructType([StructField(name, StringType()) for name in odd.names])


ID = field("id", IntegerType())


@pytest.mark.parametrize(
    ("there", "wanted", "says"),
    [
        (field("value", ID), field("value", field("ID", LongType())),
         "column value.id is int in the table and bigint by the schema: keep the type with decodeSchema"),
        (field("value", ID), field("value", ArrayType(ID)), "column value is struct<id:int> in the table and array<"),
        (field("v", ArrayType(ID)), field("v", ArrayType(field("id", StringType()))), "column v.element.id is int in"),
        (field("v", MapType(StringType(), ID)), field("v", MapType(StringType(), LongType())),
         "column v.value is struct<id:int> in"),
        (field("v", DecimalType(5, 2)), field("v", DecimalType(6, 2)), "column v is decimal(5,2) in the table and dec"),
        (field("v", field("x" * 500, LongType())), field("v", LongType()), "column v is struct<xxx"),
    ],
)  # fmt: skip
def test_a_type_that_changed_is_told(there: StructType, wanted: StructType, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        lacking(there, wanted)
    assert str(raised.value).startswith(says)
    assert len(str(raised.value)) < 400
    assert "\n" not in str(raised.value)
