"""Rows to batch items: exact contents, and the rules that are checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from rocketspark.arrow.columns import STRING_MAP
from rocketspark.errors import ConfigError, MessageIllegal
from rocketspark.protocol import batch, properties
from rocketspark.spark.columns import READ_SCHEMA, check_written, wanted_columns
from rocketspark.spark.rows import Rows


def rows(**columns: Any) -> Rows:
    columns.setdefault("body", [b"x"])
    arrays = {name: pa.array(values, STRING_MAP if name == "properties" else None) for name, values in columns.items()}
    return Rows(pa.RecordBatch.from_pydict(arrays), None if "topic" in columns else "t")


def decoded(made: Rows) -> list[tuple[bytes, dict[str, str], int]]:
    found = [batch.decode(item)[0] for item in made.items()]
    return [(i.body, properties.decode(i.properties.decode()), i.flag) for i in found]


def test_every_column_arrives() -> None:
    made = rows(
        body=["a", "ü"],
        tag=["T", None],
        keys=[["k1", "k2"], []],
        properties=[[("n", "1"), ("UNIQ_KEY", "other"), ("gone", None)], None],
        shardingKey=["s", ""],
        flag=pa.array([5, None], pa.int32()),
    )
    (body, pairs, flag), (body2, pairs2, flag2) = decoded(made)
    assert (body, flag, body2, flag2) == (b"a", 5, "ü".encode(), 0)
    assert len(pairs.pop("UNIQ_KEY")) == 32
    assert pairs == {"WAIT": "true", "TAGS": "T", "KEYS": "k1 k2", "__SHARDINGKEY": "s", "n": "1"}
    assert len(pairs2.pop("UNIQ_KEY")) == 32
    assert pairs2 == {"WAIT": "true"}


def test_keys_may_be_one_text() -> None:
    assert decoded(rows(keys=["k1 k2"]))[0][1]["KEYS"] == "k1 k2"


def test_a_row_alone_is_the_same_message() -> None:
    message = rows(
        body=[b"a"], tag=["T"], keys=[["k1", "k2"]], properties=[[("n", "1")]], shardingKey=["s"], delayLevel=[3]
    ).message(0)
    assert (message.topic, message.body, message.tag, message.keys) == ("t", b"a", "T", ["k1", "k2"])
    assert (message.properties, message.sharding_key, message.delay_level) == ({"n": "1"}, "s", 3)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": [None, b"x"]}, "no body"),
        ({"body": [b""]}, "body is empty"),
        ({"body": [bytes((4 << 20) + 1)]}, "at most 4194304"),
        ({"topic": [None]}, "topic is null"),
        ({"topic": ["a b"]}, "only letters"),
        ({"tag": ["a\x01b"]}, "tag holds the character 0x01 or 0x02"),
        ({"keys": [["a b"]]}, "one with a blank"),
        ({"keys": [[""]]}, "an empty one"),
        ({"keys": [["a", None]]}, "keys hold a null"),
        ({"properties": [[("a", "")]]}, "'a' has no value"),
        ({"properties": [[("a", "x\x02")]]}, "0x01 and 0x02"),
        ({"properties": [[("a", "x" * 40000)]]}, "32767 are allowed"),
    ],
)
def test_rules(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        list(rows(**columns).items())


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_written_schema() -> None:
    check_written(READ_SCHEMA, None)
    check_written(schema(body=StringType(), keys=StringType(), queueId=LongType()), "t")
    for columns, topic, says in [
        ({"value": StringType()}, "t", "no column 'body'"),
        ({"body": StringType()}, None, "option topic is missing"),
        ({"body": StringType(), "tags": StringType()}, "t", "column 'tags' is not understood"),
        ({"body": LongType()}, "t", "column 'body' is bigint, not binary or string"),
    ]:
        with pytest.raises(ConfigError, match=says):
            check_written(schema(**columns), topic)


def test_wanted_columns() -> None:
    assert wanted_columns(schema(body=BinaryType(), queueOffset=LongType())) == ["body", "queueOffset"]
    assert len(wanted_columns(READ_SCHEMA)) == 18
    with pytest.raises(ConfigError, match="no column 'value'; there are: topic string"):
        wanted_columns(schema(value=BinaryType()))
    with pytest.raises(ConfigError, match="column 'body' is binary, not string"):
        wanted_columns(schema(body=StringType()))
