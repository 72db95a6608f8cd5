"""Bodies of every kind to values: fastavro and the protobuf package write them; whatever bytes come, a row has a value
or a reason.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import sys
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.decode.framed_bodies import join, write_indexes
from tests.spark.decode.orders import ORDERS, V1, V2, avro, field, order_class, order_file, order_set, serialized
from tests.spark.decode.registry_server import registry_server

from rocketspark.errors import ConfigError
from rocketspark.tables.decode import json_bodies
from rocketspark.tables.decode import sql_types as t
from rocketspark.tables.decode.avro_bodies import AvroDecoder
from rocketspark.tables.decode.bodies import BodyDecoder, resolve, value_type
from rocketspark.tables.options import parse_decode_options
from rocketspark.tables.read_columns import with_schema

pytestmark = pytest.mark.shows(
    "types, odd and hostile bodies; a recursive Avro body that would end fastavro's process",
)

UTC = datetime.UTC


def decoder(**given: Any) -> BodyDecoder:
    return BodyDecoder(resolve(parse_decode_options({name: str(value) for name, value in given.items()})))


def one(schema: Any, value: Any) -> Any:
    """A value through fastavro's writer and our decoder."""
    text = json.dumps(schema)
    values, reasons = decoder(decode="avro", decodeSchema=text).decode([avro(value, text)])
    assert reasons == [None]
    return values.to_pylist()[0]


def record(**kinds: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


AT = datetime.datetime(2026, 1, 31, 12, 30, 1, 234567, UTC)
RECORD = {"member0": None, "member1": {"a": 1}}
TYPES: list[tuple[Any, Any, Any]] = [
    (logical("bytes", "decimal", precision=5, scale=2), Decimal("-1.25"), Decimal("-1.25")),
    (logical("long", "timestamp-micros"), AT, AT),
    (logical("long", "timestamp-millis"), AT, AT.replace(microsecond=234000)),
    (logical("long", "local-timestamp-micros"), AT.replace(tzinfo=None), AT.replace(tzinfo=None)),
    (logical("int", "date"), datetime.date(1969, 12, 31), datetime.date(1969, 12, 31)),
    (logical("int", "time-millis"), datetime.time(0, 0, 1, 5000), 1005),
    (logical("long", "time-micros"), datetime.time(0, 0, 1, 5), 1_000_005),
    (logical("string", "uuid"), "12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678"),
    ({"type": "map", "values": ["null", "int"]}, {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], [], [2, 3]], [[1], [], [2, 3]]),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
    ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, b"0123456789abcdef", b"0123456789abcdef"),
    (["null", "string"], None, None),
    (["int", "long"], 2**40, 2**40),
    (["null", {"type": "int"}, "long"], 2**40, 2**40),
    (["int", "long", "string"], 2**40, {"member0": None, "member1": 2**40, "member2": None}),
    (["int", "long", "string"], 7, {"member0": 7, "member1": None, "member2": None}),
    (["float", "double", "null", "string"], 1.1, {"member0": None, "member1": 1.1, "member2": None}),
    (["float", "double", "string"], 1e300, {"member0": None, "member1": 1e300, "member2": None}),
    (["long", logical("int", "time-millis")], 5, {"member0": 5, "member1": None}),
    (["long", logical("int", "time-millis")], datetime.time(0, 0, 1), {"member0": None, "member1": 1000}),
    (["null", "string", "int"], 5, {"member0": None, "member1": 5}),
    (["string", {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}], {"a": 1}, RECORD),
]


@pytest.mark.shows(
    "mended: Avro: decimals over 38 digits were all bad rows, a uuid of 16 bytes came as the text of its "
    "bytes, names that are none of SQL's or columns over 60 deep failed in Spark",
    "mended: Avro: good bodies were bad rows where a union had `int` and `long` among others, or a `long` "
    "beside a logical `int`; a `double` beside a `float` lost digits",
)
@pytest.mark.parametrize(("schema", "value", "wanted"), TYPES)
def test_types_of_avro(schema: Any, value: Any, wanted: Any) -> None:
    found = one(record(x=schema), {"x": value})["x"]
    assert found == wanted


def test_an_older_and_a_newer_writer() -> None:
    order = {"id": 1, "fruit": "fig", "price": 2.0}
    new, old = json.loads(V2), json.loads(V1)
    assert AvroDecoder(old, new).decode(avro(order)) == order | {"note": None}
    assert AvroDecoder(new, old).decode(avro(order | {"note": "n"}, V2)) == order


def fields(*more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, *more]}


def default(kind: Any, value: Any) -> tuple[Any, Any, Any]:
    """A writer without a field, and a reader whose default for it is `value`."""
    return fields(), fields({"name": "x", "type": kind, "default": value}), {"a": 1}


def named(kind: dict[str, Any], name: str, **more: Any) -> dict[str, Any]:
    return kind | {"name": name, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


MS, US = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
INNER = named(record(z="int"), "Z")
SECOND = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
COUNTS = {"type": "map", "values": "int"}
DATED = named(record(z=MS), "T")
MAPS = named(record(m=COUNTS), "M")
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
EVOLVED: list[tuple[Any, Any, Any, Any]] = [
    # Logical types that one side has alone, or in another unit.
    (record(x="long"), record(x=MS), {"x": 1000}, SECOND),
    (record(x=MS), record(x="long"), {"x": 1000}, 1000),
    (record(x=MS), record(x=US), {"x": SECOND}, SECOND),
    (record(x="int"), record(x=logical("int", "time-millis")), {"x": 5}, 5),
    (record(x=MS), record(x=["null", "string", "long"]), {"x": 1000}, {"member0": None, "member1": 1000}),
    (record(x="long"), record(x=["null", "string", MS]), {"x": 1000}, {"member0": None, "member1": SECOND}),
    (record(x="bytes"), record(x=logical("bytes", "decimal", precision=4, scale=2)), {"x": b"\x7d"}, Decimal("1.25")),
    (record(x=logical("bytes", "decimal", precision=4, scale=2)), record(x="bytes"), {"x": Decimal("1.25")}, b"\x7d"),
    # Defaults are JSON of their types.
    (*default("bytes", "\u00ff"), b"\xff"),
    (*default({"type": "fixed", "name": "F", "size": 2}, "\u0000\u00ff"), b"\0\xff"),
    (*default(MS, 1000), SECOND),
    (*default(logical("int", "date"), 1), datetime.date(1970, 1, 2)),
    (*default(logical("int", "time-millis"), 5), 5),
    (*default(logical("bytes", "decimal", precision=4, scale=2), "\u007d"), Decimal("1.25")),
    (*default([INNER, "string"], {"z": 3}), {"member0": {"z": 3}, "member1": None}),
    (*default(MAPS, {"m": {"k": 1}}), {"m": [("k", 1)]}),
    # A writer without the reader's union.
    (record(x=INNER), record(x=["null", "string", INNER]), {"x": {"z": 1}}, {"member0": None, "member1": {"z": 1}}),
    (record(x="int"), record(x=["null", "string", "long"]), {"x": 1}, {"member0": None, "member1": 1}),
    # Names that changed.
    (record(old="int"), fields() | {"fields": [{"name": "x", "type": "int", "aliases": ["old"]}]}, {"old": 5}, 5),
    (
        record(x=["string", INNER]),
        record(x=["string", named(INNER, "Y", aliases=["Z"])]),
        {"x": {"z": 1}},
        {"member0": None, "member1": {"z": 1}},
    ),
    (
        record(x={"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        record(x={"type": "enum", "name": "E", "symbols": ["A"], "default": "A"}),
        {"x": "B"},
        "A",
    ),
    # A writer's union where the reader has none.
    (record(x=["null", DATED]), record(x=DATED), {"x": {"z": 1000}}, {"z": SECOND}),
    (record(x=["null", FIXED]), record(x=FIXED), {"x": b"ab"}, b"ab"),
    (record(x=["null", ENUM]), record(x=ENUM), {"x": "B"}, "B"),
    (record(x=array(["null", INNER])), record(x=array(INNER)), {"x": [{"z": 1}]}, [{"z": 1}]),
    # A default of a union is of the first member that it fits.
    (*default([ENUM, "string"], "A"), {"member0": "A", "member1": None}),
    (*default([FIXED, "string"], "long"), {"member0": None, "member1": "long"}),
    (*default([MS, "string", "bytes"], "\u00ff"), {"member0": None, "member1": "\u00ff", "member2": None}),
    (*default(["bytes", "int"], "\u00ff"), {"member0": b"\xff", "member1": None}),
    (*default([INNER, COUNTS], {"z": 3}), {"member0": {"z": 3}, "member1": None}),
    (*default([INNER, COUNTS], {"y": 3}), {"member0": None, "member1": [("y", 3)]}),
    (*default(array(["bytes", "string"]), ["a"]), [{"member0": b"a", "member1": None}]),
    (*default(named(fields({"name": "b", "type": "int", "default": 2}), "D"), {"a": 1}), {"a": 1, "b": 2}),
    # A record of another name, beside a map.
    (
        record(x=["string", INNER]),
        record(x=["string", COUNTS, named(INNER, "n.Y", aliases=["Z"])]),
        {"x": {"z": 1}},
        {"member0": None, "member1": None, "member2": {"z": 1}},
    ),
]


@pytest.mark.shows(
    "mended: Avro: a decimal of 1 MB held its task for minutes; a field that became a timestamp (`long` "
    "before) was wrong by a factor of 1,000, one that was one came as a bad row, and so did defaults of "
    "decimals, of records in unions, of records with maps from the second row on, and a record that became a "
    "member of a union; defaults of bytes and of `-millis` had wrong values",
    "mended: Avro: a nullable record, fixed or enum that is not nullable for the reader came as a bad row; a default "
    "of a union of several types stood in another member than the first that it fits, or made the row a bad one",
)
@pytest.mark.parametrize(("writer", "reader", "value", "wanted"), EVOLVED)
def test_schemas_that_evolved(writer: Any, reader: Any, value: Any, wanted: Any) -> None:
    with registry_server() as server:
        number = server.add("x", json.dumps(writer))
        given = {"decode": "avro", "decodeSchema": json.dumps(reader), "schemaRegistry": server.url}
        # Twice: a default is one object for all.
        values, reasons = decoder(**given).decode([join(number, avro(value, json.dumps(writer)))] * 2)
    assert reasons == [None, None]
    assert [row["x"] for row in values.to_pylist()] == [wanted, wanted]


def test_what_a_writer_lacks_without_a_default_is_told() -> None:
    body = avro({"a": 1}, json.dumps(fields()))
    with pytest.raises(ValueError, match="schema does not resolve to the reader's: No default value for field x"):
        AvroDecoder(fields(), fields({"name": "x", "type": "int"})).decode(body)


@pytest.mark.shows(
    "mended: Avro: a decimal of 1 MB held its task for minutes; a field that became a timestamp (`long` "
    "before) was wrong by a factor of 1,000, one that was one came as a bad row, and so did defaults of "
    "decimals, of records in unions, of records with maps from the second row on, and a record that became a "
    "member of a union; defaults of bytes and of `-millis` had wrong values"
)
@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        # 4 MB of digits would take hours.
        (logical("bytes", "decimal", precision=38, scale=2), b"\x80\x89\x7a" + b"\x7f" * 1_000_000, "1000000 bytes"),
        (MS, b"\xfe" + b"\xff" * 8 + b"\1", "outside of the years 1 to 9999"),
        (US, b"\xff" * 9 + b"\1", "outside of the years 1 to 9999"),
        (logical("int", "date"), b"\xfe\xff\xff\xff\x0f", "outside of the years 1 to 9999"),
    ],
)
def test_values_that_no_column_holds_cost_their_row(kind: Any, body: bytes, said: str) -> None:
    values, reasons = decoder(decode="avro", decodeSchema=json.dumps(record(x=kind))).decode([body])
    assert values.to_pylist() == [None]
    assert reasons[0] is not None
    assert said in reasons[0]


# Each record holds the one before twice.
BOMB = record(
    f0=record(x="int") | {"name": "R0"},
    **{f"f{i}": record(a=f"R{i - 1}", b=f"R{i - 1}") | {"name": f"R{i}"} for i in range(1, 40)},
)
NODE = json.dumps(record(v="int", n=["null", "R"]))


def test_a_recursive_schema() -> None:
    with pytest.raises(ConfigError, match="recursiveFieldMaxDepth says how deep"):
        decoder(decode="avro", decodeSchema=NODE)
    deep = decoder(decode="avro", decodeSchema=NODE, recursiveFieldMaxDepth=1)
    body = avro({"v": 1, "n": {"v": 2, "n": {"v": 3, "n": None}}}, NODE)
    # A body nested a million deep would end the process in fastavro.
    values, reasons = deep.decode([body, b"\2\2" * 1_000_000 + b"\2\0"])
    assert values.to_pylist() == [{"v": 1, "n": {"v": 2}}, None]
    assert reasons == [None, "the body is nested more than 64 deep"]


@pytest.mark.shows(
    "a registry that drips, is cut off, answers something else, or whose schemas refer to each other without "
    "end; schemas that multiply",
    "mended: types that hold each other, or `recursiveFieldMaxDepth` over several of them, made columns "
    "without end; a schema inferred from bodies with ever new names did, nested ones and a registry's JSON "
    "Schema too",
)
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{}", "is no Avro schema"),
        ("nope", "is no Avro schema"),
        ('{"type": "record"}', "is no Avro schema"),
        (json.dumps(record(x="other.Type")), "is no Avro schema"),
        (json.dumps(record(x=["null", ["null", "int"]])), "is no Avro schema: a union stands directly in a union"),
        (json.dumps(record(x=["null", {"type": ["null", "int"]}])), "is no Avro schema"),
        (json.dumps({"type": "array", "items": "null"}), "items without bytes"),
        (json.dumps(logical("bytes", "decimal", precision=50, scale=2)), "Spark's have 38 at most"),
        (json.dumps({"type": "int", "logicalType": ["x"]}), "a logicalType is no text"),
        ('{"type": "array", "items": ' * 600 + '"int"' + "}" * 600, "nested too deeply"),
        (json.dumps(BOMB), "more than 10000 columns"),
    ],
)
def test_what_is_no_schema(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as told:
        decoder(decode="avro", decodeSchema=schema)
    assert "\n" not in str(told.value)


AVRO = decoder(
    decode="avro",
    decodeSchema=json.dumps(record(a="long", b=["null", "string", "int"], c={"type": "map", "values": "bytes"})),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_rows(bodies: list[bytes]) -> None:
    for made in (AVRO, PROTOBUF, JSON):
        values, reasons = made.decode(bodies)
        assert len(values) == len(reasons) == len(bodies)
        assert all(reason is None or not value.is_valid for value, reason in zip(values, reasons, strict=True))


def protobuf(**given: Any) -> BodyDecoder:
    options = parse_decode_options({"decode": "json", **given})
    options = dataclasses.replace(options, format="protobuf", descriptor=order_set(), message="shop.Order")
    return BodyDecoder(resolve(options))


PROTOBUF = protobuf()
JSON_TYPE = "struct<id:int,text:string,price:decimal(6,2),at:timestamp,day:date,more:map<string,array<double>>>"


def json_decoder(kind: t.DataType) -> BodyDecoder:
    options = parse_decode_options({"decode": "json", "decodeSchema": "x INT"})
    return BodyDecoder(dataclasses.replace(options, value_type=kind.json()))


JSON = json_decoder(
    t.StructType(
        [
            t.StructField("id", t.IntegerType()),
            t.StructField("text", t.StringType()),
            t.StructField("price", t.DecimalType(6, 2)),
            t.StructField("at", t.TimestampType()),
            t.StructField("more", t.MapType(t.StringType(), t.ArrayType(t.DoubleType()))),
        ]
    )
)
NOTHING = {"id": None, "text": None, "price": None, "at": None, "more": None}


@pytest.mark.shows(
    "mended: a number such as `1e99999999999999999999` in a JSON body ended the query; so did any error "
    "nobody thought of"
)
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"id": 1, "unknown": [1]}', {"id": 1}),
        (b'{"text": 5}', {"text": "5"}),
        (b'{"text": {"a": [1]}}', {"text": '{"a":[1]}'}),
        (b'{"price": 1.005}', {"price": Decimal("1.01")}),
        (b'{"at": "2026-01-31T12:30:01.234567Z"}', {"at": AT}),
        (b'{"more": {"a": [1, null, 2.5]}}', {"more": [("a", [1.0, None, 2.5])]}),
        (b"null", None),
        (b"", None),
        (b"[]", None),
        (b'{"id": 2147483648}', None),
        (b'{"id": 1.5}', None),
        (b'{"id": true}', None),
        (b'{"price": 12345.67}', None),
        (b'{"id": 1} x', None),
        (b"[" * 100_000, None),
        (b'{"text": "\xff"}', None),
        (b'{"price": 1e99999999999999999999}', None),
        (b'{"text": [1e99999999999999999999]}', None),
    ],
)
def test_json_bodies(body: bytes, wanted: dict[str, Any] | None) -> None:
    values, reasons = JSON.decode([body])
    assert values.to_pylist() == [None if wanted is None else NOTHING | wanted]
    assert (reasons[0] is None) == (wanted is not None)


@pytest.mark.shows("decimals of 29 to 38 digits by `decode=json`")
@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ((38, 18), "12345678901.5", "12345678901.5"),
        ((38, 18), "-99999999999999999999.999999999999999999", "-99999999999999999999.999999999999999999"),
        ((38, 18), "99999999999999999999.9999999999999999995", None),
        ((38, 0), "9" * 38, "9" * 38),
        ((38, 0), "1" + "0" * 38, None),
        ((38, 0), "1e37", "1" + "0" * 37),
        ((38, 38), "0." + "9" * 38, "0." + "9" * 38),
        ((38, 38), "1e-38", "1e-38"),
        ((38, 38), "1", None),
        ((10, 2), "99999999.994", "99999999.99"),
        ((10, 2), "99999999.995", None),
        ((1, 1), "0.95", None),
        ((1, 1), "1e-400", "0"),
    ],
)
def test_decimals_at_their_limits(kind: tuple[int, int], text: str, wanted: str | None) -> None:
    """Whatever context the process has: its 28 digits are fewer than Spark's 38."""
    decoder = json_decoder(t.StructType([t.StructField("x", t.DecimalType(*kind))]))
    with localcontext(prec=5):
        values, reasons = decoder.decode([b'{"x": %b}' % text.encode()])
    assert [value and value["x"] for value in values.to_pylist()] == [wanted and Decimal(wanted)]
    assert (reasons[0] is None) == (wanted is not None)


@pytest.mark.shows(
    "mended: JSON: fields whose names are not ASCII were null, without a word (option `decode` of reads)",
)
def test_names_of_any_script_are_fields() -> None:
    kind = t.StructType([t.StructField(name, t.StringType()) for name in ("\u6570\u91cf", "gr\u00f6\u00dfe", "a.b`c")])
    order = {"\u6570\u91cf": "3", "gr\u00f6\u00dfe": "x", "a.b`c": "y"}
    # As the types have them, with escapes, and with numbers where text is wanted.
    bodies = [json.dumps(order).encode(), json.dumps(order, ensure_ascii=False).encode()]
    loose = json.dumps(order | {"\u6570\u91cf": 3}, ensure_ascii=False).encode()
    values, reasons = json_decoder(kind).decode([*bodies, loose])
    assert (values.to_pylist(), reasons) == ([order] * 3, [None] * 3)


@pytest.mark.shows(
    "mended: types that hold each other, or `recursiveFieldMaxDepth` over several of them, made columns "
    "without end; a schema inferred from bodies with ever new names did, nested ones and a registry's JSON "
    "Schema too"
)
def test_what_is_inferred() -> None:
    bodies = [b'{"a": 1, "b": {"c": [1, 2.5]}, "n": null}', b'{"a": "x", "b": {"d": true}, "e": []}', b"no", b"[]"]
    wanted = "`a` string, `b` struct<`c` array<double>, `d` boolean>, `n` string, `e` array<string>"
    assert json_bodies.infer(bodies) == wanted
    numbers = [b'{"a": 1, "b": 1, "c": 1.5}', b'{"a": %d, "b": 2.5, "c": %d}' % (2**70, 2**70)]
    assert json_bodies.infer(numbers) == "`a` decimal(38,0), `b` double, `c` double"
    with pytest.raises(ConfigError, match="no body of the sample is a JSON object"):
        json_bodies.infer([b"1", b"x"])
    # SQL has no name without a letter, and what lies deep is text.
    deep = b'{"": 1, "a": ' + b"[" * 500 + b"]" * 500 + b"}"
    assert json_bodies.infer([deep]) == f"`a` {'array<' * 50}string{'>' * 50}"
    # Fields within others count too.
    for text in (b"%b", b'{"a": %b}', b'{"a": [{"b": %b}]}'):
        with pytest.raises(ConfigError, match="more than 2000 different fields"):
            json_bodies.infer([text % json.dumps({f"{i}-{n}": 1 for i in range(100)}).encode() for n in range(100)])


@pytest.mark.shows(
    "mended: JSON Schema of a registry: fields that may be null as Java's serializers write it (`oneOf`), and "
    "objects by `$ref`, were text"
)
def test_schemas_of_json() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["null", "integer"]}, "b": {"type": "array", "items": {}}}}
    assert json_bodies.of_json_schema(json.dumps(schema)) == "struct<`a`:bigint,`b`:array<string>>"
    # As Java's serializers write them: what may be null, and objects in other ones.
    inner = {"type": "object", "properties": {"x": {"type": "number"}, "self": {"$ref": "#/definitions/I~1n"}}}
    schema = {
        "type": "object",
        "properties": {
            "a": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
            "b": {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/I~1n"}]},
            "c": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "d": {"$ref": "other.json"},
            "e": True,
            "f": {"$ref": "#/none"},
        },
        "definitions": {"I/n": inner},
    }
    wanted = "struct<`a`:bigint,`b`:struct<`x`:double,`self`:string>,`c`:string,`d`:string,`e`:string,`f`:string>"
    assert json_bodies.of_json_schema(json.dumps(schema)) == wanted
    bomb = {f"t{i}": {"type": "object", "properties": {n: {"$ref": f"#/t{i + 1}"} for n in "abcd"}} for i in range(30)}
    with pytest.raises(ConfigError, match="more than 10000 columns"):
        json_bodies.of_json_schema(json.dumps(bomb | {"$ref": "#/t0"}))
    for wrong in ("[", "[]", "3", '{"type": "object", "properties": {"a": 3}}'):
        with pytest.raises(ConfigError, match="no JSON Schema"):
            json_bodies.of_json_schema(wrong)
    many = {f"k{i}": {"type": "integer"} for i in range(10_001)}
    with pytest.raises(ConfigError, match="more than 10000 columns"):
        json_bodies.of_json_schema(json.dumps({"type": "object", "properties": many}))
    assert json_bodies.ddl_of(t.StructType([t.StructField("a", t.LongType())]).json()) == "struct<`a`:bigint>"
    with pytest.raises(ConfigError, match="is no schema"):
        json_bodies.ddl_of("{nope")


whole = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(
    whole,
    st.text(max_size=9),
    st.floats(allow_nan=False),
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.text(max_size=3), whole),
)
def test_protobuf_round_trips(number: int, text: str, price: float, big: int, counts: dict[str, int]) -> None:
    message = order_class()(id=number, fruit=text, price=price, big=big, counts=counts, kind=9, items=[{"sku": text}])
    values, reasons = PROTOBUF.decode([message.SerializeToString(deterministic=True), None, b""])
    assert reasons == [None, None, None]
    found, null, empty = values.to_pylist()
    assert null is None
    assert (empty["id"], empty["fruit"], empty["card"], empty["at"]) == (0, "", None, None)
    assert (found["id"], found["fruit"], found["price"], found["big"]) == (number, text, price, Decimal(big))
    assert dict(found["counts"]) == counts
    assert (found["kind"], found["items"], found["card"]) == ("9", [{"sku": text}], None)


def test_protobuf_of_a_registry() -> None:
    body = order_class()(id=7).SerializeToString()
    with registry_server() as server:
        number = server.add("orders", serialized(), "PROTOBUF")
        avro_id = server.add("other", V1)
        given = {"decode": "protobuf", "schemaRegistry": server.url, "schemaRegistrySubject": "orders"}
        made = decoder(**given, decodeMessage="shop.Order")
        bodies = [join(number, write_indexes(place) + body) for place in ((1,), (0,), (1, 0), (5,))]
        values, reasons = made.decode([*bodies, join(avro_id, write_indexes((1,)) + body)])
        assert values.to_pylist()[0]["id"] == 7
        assert reasons == [
            *(None, "the body is a shop.Other, not a shop.Order", "the body is a shop.Order.Item, not a shop.Order"),
            *("the schema has no message at 5", f"schema id {avro_id}: it is of type AVRO, not PROTOBUF"),
        ]
        assert value_type(resolve(parse_decode_options(given))).simpleString() == "struct<x:int>"
        with pytest.raises(ConfigError, match="subject 'other' has a schema of type AVRO"):
            decoder(**given | {"schemaRegistrySubject": "other"})


def test_protobuf_files(tmp_path: Path) -> None:
    path = tmp_path / "x.desc"
    given = {"decode": "protobuf", "decodeDescriptorFile": path}
    path.write_bytes(order_set())
    with pytest.raises(ConfigError, match=r"no message 'shop.None'; it has: shop.Other, shop.Order"):
        decoder(**given, decodeMessage="shop.None")
    framed = decoder(**given, decodeMessage="shop.Order.Item", decodeWireFormat="confluent")
    assert framed.decode([join(1, write_indexes((1, 0)) + b"\n\1s")])[0].to_pylist() == [{"sku": "s"}]
    assert framed.decode([join(1, b"\0\n\1s")])[1] == [
        "the body is the message at [0] of its file; shop.Order.Item is at [1, 0]"
    ]
    for content in (b"", b"not a descriptor", base64.b64encode(order_set())):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="no descriptor file"):
            decoder(**given, decodeMessage="shop.Order")
    file = order_file()
    file.dependency.append("missing.proto")
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    with pytest.raises(ConfigError, match="--include_imports"):
        decoder(**given, decodeMessage="shop.Order")
    node = descriptor_pb2.FileDescriptorProto(name="n.proto", syntax="proto3")
    message = node.message_type.add(name="Node")
    field(message, "v", 1, descriptor_pb2.FieldDescriptorProto.TYPE_INT32)
    field(message, "n", 2, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, ".Node")
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[node]).SerializeToString())
    with pytest.raises(ConfigError, match="recursiveFieldMaxDepth"):
        decoder(**given, decodeMessage="Node")
    found = decoder(**given, decodeMessage="Node", recursiveFieldMaxDepth=1)
    assert found.decode([b"\x08\1\x12\x04\x08\2\x12\0"])[0].to_pylist() == [{"v": 1, "n": {"v": 2}}]
    for name, number in (("o", 3), ("p", 4)):
        field(message, name, number, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, ".Node")
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[node]).SerializeToString())
    # Three types to the power of 15.
    with pytest.raises(ConfigError, match="more than 10000 columns: give a lower recursiveFieldMaxDepth"):
        decoder(**given, decodeMessage="Node", recursiveFieldMaxDepth=15)


@pytest.mark.shows(
    "mended: a number such as `1e99999999999999999999` in a JSON body ended the query; so did any error "
    "nobody thought of"
)
def test_an_error_that_nobody_thought_of_costs_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    made = protobuf()
    good = made._of_reader

    def odd(body: bytes) -> Any:
        return {}["a\nb"] if body == b"odd" else good(body)

    monkeypatch.setattr(made, "_of_reader", odd)
    values, reasons = made.decode([b"odd", b""])
    assert reasons == ["the body cannot be decoded: KeyError 'a\\nb'", None]
    assert values[1].is_valid


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_an_executor_without_the_package_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"avro": AVRO, "protobuf": PROTOBUF}[name]._options
    monkeypatch.setitem(sys.modules, {"avro": "fastavro", "protobuf": "google.protobuf"}[name], None)
    with pytest.raises(ConfigError, match=r"on executors too: pip install 'rocketspark\[schemas\]'"):
        BodyDecoder(given)


@pytest.mark.shows(
    "a sink of `pipeline sql` with mode update to a topic, which Spark ended after other sinks had written; "
    "bodies in the wire format read without a registry"
)
def test_framed_bodies_that_are_read_as_plain_say_so() -> None:
    hint = "; it begins as in the wire format of a schema registry: is schemaRegistry missing?"
    reading = decoder(decode="avro", decodeSchema=V1)
    _, reasons = reading.decode([join(3, avro(ORDERS[3])), avro(ORDERS[3])[:-1], b"\0\0", None])
    assert [reason is not None and reason.endswith(hint) for reason in reasons] == [True, False, False, False]


def test_an_inferred_schema_is_shown_with_the_option_that_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    found = with_schema(parse_decode_options({"decode": "json"}), iter([b'{"id": 1}']))
    assert found.schema is not None
    assert caplog.messages == [
        'the fields of the JSON were inferred from a sample; to keep them give decodeSchema: "`id` bigint"'
    ]
