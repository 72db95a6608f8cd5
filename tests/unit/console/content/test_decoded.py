"""Bodies decoded by a schema that somebody gave: their values, and one line for what cannot be decoded."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from rocketspark.console.content.decoded import decoded
from rocketspark.console.content.shown_body import JSON_BYTES_MAX, JSON_LAID_OUT_MAX
from rocketspark.errors import RocketSparkError, UsageError

pytestmark = pytest.mark.shows("the console decodes bodies by a schema, up to 1 MiB")

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


def test_what_becomes_gigabytes_is_not_decoded() -> None:
    many = json.dumps({"type": "array", "items": "boolean"})
    count = JSON_LAID_OUT_MAX // len("  false,\n")
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(many)), [False] * (count + 1000))
    with pytest.raises(UsageError, match="too long to be shown"):
        decoded(body.getvalue(), "avro", many)
    with pytest.raises(UsageError, match="more than 1048576 bytes"):
        decoded(b"\0" * (JSON_BYTES_MAX + 1), "avro", many)
