"""RocketMQ's own schema registry, played by a stand-in after its source, and bodies as its serializers write them."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import unquote

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.decode.registry_server import RegistryServer

from rocketspark.errors import ConfigError, RegistryAway, RegistryRefused
from rocketspark.tables.decode.bodies import BodyDecoder, resolve, typed
from rocketspark.tables.decode.json_bodies import of_ddl
from rocketspark.tables.decode.options import AVRO, JSON, NAMES, DecodeOptions, parse_decode
from rocketspark.tables.decode.rocketmq_registry import frame_of, place_of
from rocketspark.tables.given_options import GivenOptions
from rocketspark.tables.options import parse_decode_options

pytestmark = pytest.mark.shows(
    "bodies of RocketMQ's own schema registry: its wire format for Avro and JSON, its REST interface by a stand-in"
)

V1 = {"type": "record", "name": "Charge", "namespace": "n", "fields": [{"name": "item", "type": "string"}]}
V2 = V1 | {"fields": [*V1["fields"], {"name": "amount", "type": "double", "default": 0.5}]}
# Of a subject's versions, whose number is in the last 14 bits.
ID = 0x0123456789AB << 14


class RocketMqServer(RegistryServer):
    """Record ids by subject. Statuses of errors have five digits, as those of RocketMQ's server."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.records: dict[str, list[dict[str, Any]]] = {}

    def put(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        """Register a version of a subject ("cluster/tenant/name"); return its record id."""
        versions = self.records.setdefault(subject, [])
        number = ID | (len(versions) + 1)
        record = {"subjectFullName": subject, "schemaFullName": "default/Charge", "version": len(versions) + 1}
        versions.append(record | {"recordId": number, "idl": json.dumps(schema), "dependency": None, "type": kind})
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.paths.append(path)
        if self.failures:
            return self.failures.pop(0), b'{"status":50001,"message":"x"}'
        parts = [unquote(part) for part in path.removeprefix("/schema-registry/v1/").split("/")]
        named = dict(zip(parts[::2], parts[1::2], strict=False))
        subject = "/".join((named.get("cluster", "default"), named.get("tenant", "default"), named["subject"]))
        versions = self.records.get(subject, [])
        if parts[-1] == "schema" and "recordId" in named:
            found = [one for one in versions if one["recordId"] == int(named["recordId"])]
        else:
            found = versions[-1:] if parts[-1] == "schema" else versions[int(parts[-1]) - 1 :][:1]
        return (200, found[0]) if found else (40402, b'{"status":40402,"message":"Schema: not found"}')


@pytest.fixture
def server() -> Any:
    server = RocketMqServer()
    yield server
    server.close()


def avro(number: int, schema: Any, **row: Any) -> bytes:
    """A body as AvroSerializer of RocketMQ's writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return b"\x10" + number.to_bytes(8, "big") + out.getvalue()


def decoder(server: RegistryServer, format_: str, topic: str = "charges", **options: str) -> BodyDecoder:
    given = {"decode": format_, "decodeWireFormat": "rocketmq", "schemaRegistry": server.url} | options
    lower = {name.lower(): value for name, value in given.items()}
    parsed = parse_decode(GivenOptions(lower, NAMES, ()), (topic,))
    assert parsed is not None
    return decoder_of(parsed)


def decoder_of(parsed: DecodeOptions) -> BodyDecoder:
    resolved = resolve(parsed)
    return BodyDecoder(typed(resolved, of_ddl(resolved.schema)) if parsed.format == JSON else resolved)


def rows(asked: BodyDecoder, *bodies: bytes) -> tuple[list[Any], list[str | None]]:
    values, reasons = asked.decode(bodies)
    return values.to_pylist(), reasons


def test_avro_is_read_by_the_schema_of_its_record_id(server: RocketMqServer) -> None:
    first, second = (server.put("default/default/charges", schema) for schema in (V1, V2))
    asked = decoder(server, "avro")
    bodies = [avro(first, V1, item="old"), avro(second, V2, item="new", amount=2.5), avro(first, V1, item="again")]
    values = [{"item": "old", "amount": 0.5}, {"item": "new", "amount": 2.5}, {"item": "again", "amount": 0.5}]
    assert rows(asked, *bodies) == (values, [None] * 3)
    # The newest gives the columns; each id is asked for once.
    root = "/schema-registry/v1/subject/charges"
    assert server.paths == [f"{root}/schema", f"{root}/recordId/{first}/schema", f"{root}/recordId/{second}/schema"]
    values, reasons = rows(asked, avro(ID | 9, V1, item="x"), b"\0" + bodies[0][1:], bodies[0][:8], bodies[0][:9])
    assert values == [None] * 4
    assert f"has no schema record {ID | 9} of subject charges" in (reasons[0] or "")
    assert "it begins with 0, not with 16" in (reasons[1] or "")
    assert reasons[2] == "8 bytes are too short for a schema's record id"
    assert reasons[3] is not None


def test_subjects_of_clusters_and_tenants_and_versions(server: RocketMqServer) -> None:
    number = server.put("east/shop/charges of all", V1)
    server.put("east/shop/charges of all", V2)
    named = {"schemaRegistrySubject": "east/shop/charges of all", "schemaRegistryVersion": "1"}
    assert rows(decoder(server, "avro", **named), avro(number, V1, item="a"))[0] == [{"item": "a"}]
    root = "/schema-registry/v1/cluster/east/tenant/shop/subject/charges%20of%20all"
    assert server.paths == [f"{root}/schema/versions/1", f"{root}/recordId/{number}/schema"]
    for wrong in ("a/b", "a//b", "a/b/c/d"):
        with pytest.raises(ConfigError, match="a name, or cluster/tenant/name, is needed"):
            place_of(wrong)


def test_json_stands_behind_its_record_id(server: RocketMqServer) -> None:
    schema = {"type": "object", "properties": {"item": {"type": "string"}, "amount": {"type": "number"}}}
    number = server.put("default/default/charges", schema, "JSON")
    asked = decoder(server, "json")
    body = b'{"item": "a", "amount": 1.5}'
    framed = number.to_bytes(8, "big") + body
    values, reasons = rows(asked, framed, body, framed[:7], framed[:8])
    assert values == [{"item": "a", "amount": 1.5}, None, None, None]
    assert reasons[1] == "it begins as JSON does, not with a schema's record id: is decodeWireFormat plain?"
    assert reasons[2] == "7 bytes are too short for a schema's record id"


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (40101, RegistryRefused, r"refuses \(401\)"),
        (40901, RegistryRefused, r"\(409\) is none of RocketMQ's schema registry"),
        (404, RegistryAway, "it answers 404, and not as RocketMQ's"),
        (50001, RegistryAway, "it answers 50001"),
        (200, RegistryRefused, r"\(200\) is none of RocketMQ's schema registry"),
        (402, RegistryRefused, r"\(402\) is none"),
        (999, RegistryAway, "it answers 999"),
    ],
)
def test_answers_that_are_errors(server: RocketMqServer, status: int, error: type[Exception], said: str) -> None:
    server.failures = [status] * 50
    with pytest.raises(error, match=said):
        decoder(server, "avro", schemaRegistryTimeoutMs="150")


def test_options_that_do_not_go_together(server: RocketMqServer) -> None:
    given = {"decodeWireFormat": "rocketmq"}
    for more, said in (
        (
            {"decode": "avro", "decodeSchema": json.dumps(V1)},
            "decodeWireFormat is rocketmq: Avro needs the writers' schemas",
        ),
        ({"decode": "avro", "schemaRegistry": server.url}, "schemaRegistrySubject is missing: RocketMQ's"),
        ({"decode": "protobuf", "schemaRegistry": server.url}, "has serializers for JSON and Avro, not for protobuf"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_decode_options(given | more)
    # Without a registry the id is passed over.
    asked = decoder_of(parse_decode_options(given | {"decode": "json", "decodeSchema": "item STRING"}))
    assert rows(asked, bytes(8) + b'{"item": "a"}')[0] == [{"item": "a"}]


@given(st.binary(max_size=40), st.sampled_from([AVRO, JSON]))
def test_whatever_bytes_come_there_is_an_id_or_a_reason(body: bytes, format_: str) -> None:
    try:
        found = frame_of(body, format_)
    except ValueError:
        assert len(body) < 8 + (format_ == AVRO) or body[:1] in (b"{", b"[") or body[0] != 16
    else:
        assert body[found.start - 8 : found.start] == found.schema_id.to_bytes(8, "big", signed=True)
