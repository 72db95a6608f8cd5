"""Bodies decoded by a schema that somebody gave: their values, and one line for what cannot be decoded."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from rocketspark.console.content.decoded import decoded
from rocketspark.errors import RocketSparkError

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": "string"},
            {"name": "raw", "type": "bytes"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "more", "type": {"type": "map", "values": "int"}},
        ],
    }
)
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }'


def avro_body() -> bytes:
    sink = io.BytesIO()
    row = {"id": 7, "note": "\u202e<b>", "raw": b"\0\xff", "at": 0, "more": {"a": 1}}
    fastavro.schemaless_writer(sink, fastavro.parse_schema(json.loads(AVRO)), row)
    return sink.getvalue()


@pytest.mark.parametrize("prefix", [b"", b"\0\0\0\0\x2a"])
def test_avro_is_decoded_with_and_without_a_registry_s_prefix(prefix: bytes) -> None:
    view = decoded(prefix + avro_body(), "avro", AVRO)
    assert "\u202e" not in view.text
    found = json.loads(view.text)
    assert (found["id"], found["note"], found["raw"], found["more"]) == (7, "\u202e<b>", "AP8=", {"a": 1})
    assert found["at"].startswith("1970-01-01T00:00:00")


def test_protobuf_is_decoded_by_the_text_of_its_file() -> None:
    view = decoded(b"\x08\x07\x12\x02hi", "protobuf", PROTO)
    assert json.loads(view.text) == {"id": 7, "note": "hi"}
    assert view == decoded(b"\x08\x07\x12\x02hi", "protobuf", PROTO, "Order")


@pytest.mark.parametrize(
    ("kind", "schema", "text"),
    [
        ("xml", AVRO, "decoded as avro or protobuf, not xml"),
        ("avro", "", "give the schema"),
        ("avro", "{", "schema"),
        ("avro", AVRO, "the body is not of this schema"),
        ("protobuf", "message {", "proto"),
    ],
)
def test_what_cannot_be_decoded_is_one_line(kind: str, schema: str, text: str) -> None:
    with pytest.raises(RocketSparkError) as refused:
        decoded(b"\xff", kind, schema)
    assert text in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 2
