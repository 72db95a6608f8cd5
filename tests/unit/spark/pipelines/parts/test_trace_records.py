"""Trace messages to rows: every field of each kind, batches of ids, and anything else."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.protocol.trace import Consumed, Ended, Published, Received, encode
from rocketspark.spark.pipelines.parts.trace_records import DDL, SCHEMA, decode_batches, rows_of

SENT = Published(
    time_ms=1000,
    region="R",
    group="pg",
    topic="T",
    message_id="M1",
    tag="A",
    keys="k1 k2",
    store_host="h:1",
    body_bytes=7,
    cost_ms=3,
    kind=0,
    offset_message_id="O",
    success=True,
)


def published(**fields: object) -> Published:
    return msgspec.structs.replace(SENT, **fields)


def rows(*records: str) -> list[dict[str, object]]:
    first, *found = rows_of("".join(records).encode())
    assert first == {"kind": "message"}
    return found


def test_every_kind() -> None:
    received = Received(time_ms=5, region="R", group="G", request_id="Q", message_id="M1", retry_times=2, keys="k")
    consumed = Consumed(
        request_id="Q", message_id="M1", cost_ms=4, success=False, keys="k", context=1, time_ms=9, group="G"
    )
    ended = Ended(
        time_ms=8,
        region="R",
        group="pg",
        topic="T",
        message_id="M1",
        tag="A",
        keys="k",
        store_host="h:1",
        kind=2,
        transaction_id="X",
        state="UNKNOW",
        from_check=True,
    )
    common = {"topic": "T", "message_id": "M1", "tag": "A"}
    assert rows(encode(published()), encode(received), encode(consumed), encode(ended)) == [
        {
            **common,
            "kind": "Pub",
            "time_ms": 1000,
            "group": "pg",
            "keys": "k1 k2",
            "body_bytes": 7,
            "cost_ms": 3,
            "message_kind": 0,
            "success": True,
        },
        {
            "kind": "SubBefore",
            "time_ms": 5,
            "group": "G",
            "message_id": "M1",
            "keys": "k",
            "request_id": "Q",
            "retry_times": 2,
        },
        {
            "kind": "SubAfter",
            "time_ms": 9,
            "group": "G",
            "message_id": "M1",
            "keys": "k",
            "cost_ms": 4,
            "success": False,
            "request_id": "Q",
            "context": 1,
        },
        {
            **common,
            "kind": "EndTransaction",
            "time_ms": 8,
            "group": "pg",
            "keys": "k",
            "message_kind": 2,
            "state": "UNKNOW",
            "from_check": True,
        },
    ]


def test_a_batch_has_a_row_for_each_message() -> None:
    found = rows(encode(published(message_id="M1,M2,M3", body_bytes=10)))
    assert [(r["message_id"], r["body_bytes"]) for r in found] == [("M1", 3), ("M2", 3), ("M3", 3)]


def test_java_s_null_is_nothing() -> None:
    (row,) = rows(encode(published(tag="null", keys="null", group="null")))
    assert (row["tag"], row["keys"], row["group"]) == (None, None, None)


def test_what_cannot_be_read_is_counted_alone() -> None:
    whole = encode(published())
    parts = ("Pub\x01soon\x02", whole, "Recall\x011\x02", encode(published(message_id=",")), "SubAfter\x01Q\x02")
    assert [r["kind"] for r in rows(*parts)] == ["broken", "Pub", "other", "broken", "broken"]


def test_numbers_that_no_client_writes_are_broken() -> None:
    for odd in (
        {"time_ms": -1},
        {"time_ms": 10**18},
        {"time_ms": 10**30},
        {"cost_ms": 1 << 31},
        {"body_bytes": -(1 << 40)},
        {"kind": 1 << 40, "time_ms": 1 << 40},
    ):
        assert [r["kind"] for r in rows(encode(published(**odd)))] == ["broken"], odd


def test_ddl_is_the_schema() -> None:
    kinds = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_()}
    pairs = [part.split() for part in DDL.split(", ")]
    assert pa.schema([(name, kinds[kind]) for name, kind in pairs]) == SCHEMA


record_like = st.builds(
    lambda kind, fields: "\x01".join([kind, *fields]) + "\x02",
    st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", ""]),
    st.lists(st.one_of(st.integers().map(str), st.sampled_from(["true", "false", "null", ""]), st.text()), max_size=15),
)


@given(
    st.lists(
        st.one_of(st.binary(), st.lists(record_like, max_size=3).map(lambda p: "".join(p).encode(errors="replace")))
    )
)
def test_any_bodies_make_a_batch(bodies: list[bytes]) -> None:
    source = pa.record_batch([pa.array(bodies, pa.binary())], ["body"])
    (batch,) = decode_batches(iter([source]))
    assert batch.schema == SCHEMA
    assert batch.column("kind").to_pylist().count("message") == len(bodies)
