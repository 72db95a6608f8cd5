"""The columns of a read: those of a schema, in its order, under its names."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rocketspark.errors import ConfigError
from rocketspark.spark.schemas import READ_ONLY, READ_SCHEMA, check_written, read_schema, wanted_columns
from rocketspark.spark.spark_features import arrow_schema
from rocketspark.tables.read_columns import ReadColumns

pytestmark = pytest.mark.shows(
    "`seek_to_beginning`, `ReceivedMessage.physical_offset`, Spark's column `physicalOffset`",
)


def schema(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


def decoded(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array([number, number * 10]) for number, name in enumerate(names, 1)})


def test_without_a_schema_the_physical_offset_has_its_published_name() -> None:
    assert "logPosition" in READ_SCHEMA.fieldNames()
    assert "physicalOffset" not in READ_SCHEMA.fieldNames()
    assert len(ReadColumns(READ_SCHEMA.fieldNames()).decoded) == len(READ_SCHEMA.fields) == 18


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("queueOffset", "logPosition"), ["queueOffset", "logPosition"]),
        (("physicalOffset", "queueOffset"), ["logPosition", "queueOffset"]),
        (("physicalOffset", "queueOffset", "logPosition"), ["logPosition", "queueOffset"]),
        (("logPosition", "physicalOffset"), ["logPosition"]),
    ],
)
def test_a_column_with_two_names_is_decoded_once(names: tuple[str, ...], columns: list[str]) -> None:
    found = ReadColumns(names, arrow_schema(schema(*names)))
    assert found.decoded == columns
    batch = decoded(*columns)
    given = found.given(batch)
    assert given.schema.names == list(names)
    same = {"physicalOffset": "logPosition"}
    assert given.to_pydict() == {name: batch.column(same.get(name, name)).to_pylist() for name in names}


def test_a_batch_that_needs_nothing_is_given_as_it_is() -> None:
    batch = decoded("queueOffset", "logPosition")
    assert ReadColumns(("queueOffset", "logPosition")).given(batch) is batch


def test_the_name_is_checked_as_others_are() -> None:
    with pytest.raises(ConfigError, match="column 'physicalOffset' is bigint, not string"):
        wanted_columns(StructType([StructField("physicalOffset", StringType())]))
    with pytest.raises(ConfigError, match=r"there are: .*logPosition bigint, physicalOffset bigint"):
        wanted_columns(schema("position"))


def test_the_option_names_columns_in_its_order() -> None:
    assert read_schema() == READ_SCHEMA
    found = read_schema(("physicalOffset", "body", "keys", "properties"))
    assert found.simpleString() == (
        "struct<physicalOffset:bigint,body:binary,keys:array<string>,properties:map<string,string>>"
    )
    assert wanted_columns(found, found.fieldNames()) == found.fieldNames()


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (("body", "value"), r"option columns: there is no column 'value'; there are: topic, .*, physicalOffset$"),
        (("Body",), "there is no column 'Body'"),
        (("body", "tag", "body"), "option columns: a column stands there twice: body, tag, body"),
    ],
)
def test_wrong_names_of_the_option(named: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_schema(named)
    with pytest.raises(ConfigError, match=says):
        wanted_columns(READ_SCHEMA, named)


def test_the_option_and_a_schema_say_the_same() -> None:
    both = StructType([READ_SCHEMA["body"], READ_SCHEMA["tag"]])
    assert wanted_columns(both, ("body", "tag")) == ["body", "tag"]
    for named in (("body",), ("tag", "body"), ("body", "tag", "keys")):
        with pytest.raises(ConfigError, match=r"option columns names .*, and the schema body, tag: leave one of them"):
            wanted_columns(both, named)


def test_a_null_in_a_column_that_may_hold_none_is_one_clear_line() -> None:
    wanted = StructType([READ_SCHEMA["queueOffset"], StructField("tag", StringType(), nullable=False)])
    columns = ReadColumns(wanted.fieldNames(), arrow_schema(wanted))
    batch = pa.RecordBatch.from_pydict({"queueOffset": [1, 2], "tag": ["A", None]})
    assert columns.given(batch.slice(0, 1)).schema.field("tag").nullable is False
    with pytest.raises(ConfigError, match=r"^schema: .*'tag' with null values .*: leave out that it is not null"):
        columns.given(batch)


def test_rows_that_hold_it_can_be_written() -> None:
    assert {"physicalOffset", "logPosition", "queueOffset"} <= READ_ONLY
    fields = [StructField("body", StringType()), StructField("physicalOffset", LongType())]
    check_written(StructType(fields), "t")
