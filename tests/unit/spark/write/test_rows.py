"""Rows to batch items: exact contents, and the rules that are checked before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from rocketspark.arrow.message_columns import STRING_MAP
from rocketspark.client.producer.prepared_message import PreparedMessage, properties_text
from rocketspark.errors import ConfigError, MessageIllegal
from rocketspark.model import Message
from rocketspark.protocol.message import batch, properties
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.spark.schemas import READ_SCHEMA, check_written, wanted_columns
from rocketspark.spark.write.batch_encoding import encode
from rocketspark.spark.write.rows import PART_BYTES_MAX, PART_ROWS_MAX, CheckedRows, Text, parts

pytestmark = pytest.mark.shows(
    "batch and stream, all columns and options, delivery times, bounded memory, order per queue, a killed "
    "broker, inner batches"
)


def rows(**columns: Any) -> CheckedRows:
    columns.setdefault("body", [b"x"])
    kinds = {"properties": STRING_MAP, "deliverTime": pa.timestamp("us", "UTC")}
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    return CheckedRows(pa.RecordBatch.from_pydict(arrays), None if "topic" in columns else "t")


def decoded(made: CheckedRows) -> list[tuple[bytes, dict[str, str], int]]:
    found = batch.decode(encode(made, UniqueIdBlocks()).data)
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


class Ids(UniqueIdBlocks):
    """Gives out numbers from `first` on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._next = first

    def take(self, count: int) -> tuple[str, int]:
        first, self._next = self._next, self._next + count
        return "7F" * 10, first


@pytest.mark.shows("batch writes: room prepared ahead, one write of the log file, rows read while others are sent")
@pytest.mark.parametrize("first", [0, 0xFFFD, 0xFFFF_FFFD, 0x1234_5678_9ABC, (1 << 48) - 5])
@pytest.mark.parametrize(
    "bodies", [[b"abc", b"\0\1\2", b"xyz", b"123", b"end"], [b"abc", b"\0\1", b"xyz", b"1234", b"e"]]
)
@pytest.mark.parametrize("sliced", [0, 2])
def test_rows_alike_are_encoded_as_others_are(bodies: list[bytes], first: int, sliced: int) -> None:
    made = CheckedRows(pa.RecordBatch.from_pydict({"body": pa.array(bodies)}).slice(sliced), "t")
    items = encode(made, Ids(first))
    wanted = [
        batch.encode_item(0, body, b"UNIQ_KEY\x01%b%012X\x02WAIT\x01true\x02" % (b"7F" * 10, first + n))
        for n, body in enumerate(bodies[sliced:])
    ]
    assert bytes(items.data) == b"".join(wanted)
    assert np.diff(items.starts).tolist() == [len(item) for item in wanted]
    order = np.array([len(wanted) - 1, 0], np.int64)
    assert bytes(items.take(order).data) == wanted[-1] + wanted[0]


def test_keys_may_be_one_text() -> None:
    found = decoded(rows(body=["a"] * 4, keys=["k1 k2", " k1\t k2\u3000", " ", None]))
    assert [pairs.get("KEYS") for _, pairs, _ in found] == ["k1 k2", "k1 k2", None, None]


def test_what_asks_for_a_later_time() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    made = rows(
        body=["a"] * 5,
        delayLevel=[None, 3, 0, None, None],
        delayMs=[None, None, 1500, 0, None],
        # Half a millisecond more: not before its time.
        deliverTime=[None, None, None, noon, noon + timedelta(microseconds=500)],
    )
    names = ("DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
    noon_ms = int(noon.timestamp() * 1000)
    assert [{n: pairs[n] for n in names if n in pairs} for _, pairs, _ in decoded(made)] == [
        {},
        {"DELAY": "3"},
        {"TIMER_DELAY_MS": "1500"},
        {"TIMER_DELIVER_MS": str(noon_ms)},
        {"TIMER_DELIVER_MS": str(noon_ms + 1)},
    ]
    assert made.delayed is not None
    assert made.delayed.tolist() == [False, True, True, True, True]
    assert rows(delayLevel=[0]).delayed is None


def test_texts_that_are_the_same_for_all_rows() -> None:
    made = rows(body=["a", "b"], tag=["x", None], keys=["k", "l"])
    made.texts |= {"P": Text("all"), "Q": Text("row ", pa.array(["1", "22"])), "R": Text("end")}
    found = [pairs for _, pairs, _ in decoded(made)]
    for pairs in found:
        del pairs["UNIQ_KEY"], pairs["WAIT"]
    # In this order.
    assert [list(pairs.items()) for pairs in found] == [
        [("TAGS", "x"), ("KEYS", "k"), ("P", "all"), ("Q", "row 1"), ("R", "end")],
        [("KEYS", "l"), ("P", "all"), ("Q", "row 22"), ("R", "end")],
    ]


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
words = texts.map(lambda text: "".join(text.split())).filter(bool)
messages = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(min_size=1, max_size=40),
    tag=st.none() | texts,
    keys=st.lists(words, max_size=3),
    properties=st.dictionaries(words.filter(lambda name: name not in properties.SYSTEM_NAMES), words, max_size=3),
    sharding_key=st.none() | texts,
    delay_level=st.integers(0, 18),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)


@given(st.lists(messages, max_size=20), st.data())
def test_items_are_those_of_the_producer(sent: list[Message], data: st.DataObject) -> None:
    given_rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([m.body for m in sent], pa.binary()),
            "tag": pa.array([m.tag for m in sent], pa.string()),
            "keys": pa.array([m.keys for m in sent], pa.list_(pa.string())),
            "properties": pa.array([list(m.properties.items()) or None for m in sent], STRING_MAP),
            "shardingKey": pa.array([m.sharding_key for m in sent], pa.string()),
            "delayLevel": pa.array([m.delay_level or None for m in sent], pa.int32()),
            "flag": pa.array([m.flag for m in sent], pa.int32()),
        }
    )
    # A slice, as an Arrow batch may be one of another.
    first = data.draw(st.integers(0, len(sent)))
    items = encode(CheckedRows(given_rows.slice(first), "t"), UniqueIdBlocks())
    sent = sent[first:]
    assert items.count == len(sent)
    found = batch.decode(items.data[items.starts[0] :])
    ids = [properties.decode(item.properties.decode())["UNIQ_KEY"] for item in found]
    assert len(set(ids)) == len(ids)
    wanted = [properties_text(m, unique_id) for m, unique_id in zip(sent, ids, strict=True)]
    assert found == [batch.BatchItem(m.flag, m.body, text.encode()) for m, text in zip(sent, wanted, strict=True)]
    turned = items.take(np.arange(len(sent), dtype=np.int64)[::-1].copy())
    assert batch.decode(turned.data[turned.starts[0] :]) == found[::-1]
    for row, (message, text) in enumerate(zip(sent, wanted, strict=True)):
        assert items.outgoing(row, "t") == PreparedMessage("t", message.body, text, 0, message.flag, ids[row])


def test_large_types_and_dictionaries_are_the_same() -> None:
    plain = {"body": [b"a", b"bc"], "tag": ["T", "T"], "keys": [["k"], ["l", "m"]], "topic": ["t", "u"]}
    large = {
        "body": pa.array(plain["body"], pa.large_binary()),
        "tag": pa.array(plain["tag"], pa.large_string()),
        "keys": pa.array(plain["keys"], pa.large_list(pa.large_string())),
        "topic": pa.array(plain["topic"]).dictionary_encode(),
    }

    def told(columns: dict[str, Any]) -> list[Any]:
        made = CheckedRows(pa.RecordBatch.from_pydict(columns), None)
        assert made.topics is not None
        items_of = [(body, pairs.pop("UNIQ_KEY") and pairs, flag) for body, pairs, flag in decoded(made)]
        return [items_of, made.topics.to_pylist()]

    assert told(large) == told(plain)


@pytest.mark.parametrize("name", ["tag", "keys", "shardingKey", "broker", "topic", "properties"])
def test_text_that_is_none_is_named(name: str) -> None:
    # As Spark's cast of bytes to text makes it: nothing is looked at.
    odd = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    if name == "properties":
        odd = pa.MapArray.from_arrays([0, 1], pa.array(["n"]), odd)
    columns = {"body": pa.array(["x"]), name: odd} | ({} if name == "topic" else {"topic": pa.array(["t"])})
    with pytest.raises(MessageIllegal, match=f"a row's {name} is no UTF-8 text"):
        CheckedRows(pa.RecordBatch.from_pydict(columns), None)


def test_parts_are_bounded_and_whole() -> None:
    sizes = [1, PART_BYTES_MAX - 1, 1, PART_BYTES_MAX + 5, 2, 3]
    large = pa.RecordBatch.from_pydict({"body": [b"x" * size for size in sizes], "flag": list(range(6))})
    assert [part.column("flag").to_pylist() for part in parts(large)] == [[0, 1], [2], [3], [4, 5]]
    many = pa.RecordBatch.from_pydict({"body": [b"x", None] * PART_ROWS_MAX})
    assert [part.num_rows for part in parts(many)] == [PART_ROWS_MAX, PART_ROWS_MAX]
    assert list(parts(many.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": [None, b"x"]}, "no body"),
        ({"body": [b""]}, "body is empty"),
        ({"body": [bytes((4 << 20) + 1)]}, "at most 4194304"),
        ({"topic": [None]}, "topic is null"),
        ({"topic": ["a b"]}, "only letters"),
        ({"topic": ["SPARK_TX_q"]}, "holds the records of exactly-once writes"),
        ({"tag": ["a\x01b"]}, "tag holds the character 0x01 or 0x02"),
        ({"keys": [["a b"]]}, "one with a blank"),
        ({"keys": [[""]]}, "an empty one"),
        ({"keys": [["a", None]]}, "keys hold a null"),
        ({"properties": [[("a", "")]]}, "'a' has no value"),
        ({"properties": [[("a", "x\x02")]]}, "0x01 and 0x02"),
        ({"properties": [[("a", "1"), ("b\x01", "x")]]}, r"'b\\x01': names and values"),
        ({"keys": [["a\u2003b"]]}, "one with a blank"),
        ({"delayLevel": [-1]}, "delayLevel is -1"),
        ({"delayMs": [-5]}, "delayMs is -5"),
        ({"deliverTime": [datetime(1969, 1, 1, tzinfo=UTC)]}, "before 1970"),
        ({"delayLevel": [1], "delayMs": [1]}, "give it one"),
        ({"properties": [[("a", "x" * 40000)]]}, "32767 are allowed"),
    ],
)
def test_rules(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        encode(rows(**columns), UniqueIdBlocks())


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
        ({"body": StringType(), "deliverTime": StringType()}, "t", "column 'deliverTime' is string, not timestamp"),
        ({"body": StringType(), "delayMs": StringType()}, "t", "column 'delayMs' is string, not bigint or int"),
    ]:
        with pytest.raises(ConfigError, match=says):
            check_written(schema(**columns), topic)
    check_written(schema(body=StringType(), order=StringType()), "t", "order")
    check_written(schema(body=StringType(), messageId=StringType()), "t", "messageId")
    for columns in ({}, {"order": LongType()}):
        with pytest.raises(ConfigError, match="option comparedColumn is 'order': a column of the rows, binary or str"):
            check_written(schema(body=StringType(), **columns), "t", "order")


def test_wanted_columns() -> None:
    assert wanted_columns(schema(body=BinaryType(), queueOffset=LongType())) == ["body", "queueOffset"]
    assert len(wanted_columns(READ_SCHEMA)) == 18
    with pytest.raises(ConfigError, match="no column 'value'; there are: topic string"):
        wanted_columns(schema(value=BinaryType()))
    with pytest.raises(ConfigError, match="column 'body' is binary, not string"):
        wanted_columns(schema(body=StringType()))
