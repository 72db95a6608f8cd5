"""Schemas that a registry gives as text: compiled by grpcio-tools, whatever the text is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.spark.decode.framed_bodies import join, write_indexes
from tests.spark.decode.registry_server import registry_server

from rocketspark.errors import ConfigError
from rocketspark.tables.decode import protobuf_bodies
from rocketspark.tables.decode.bodies import BodyDecoder, resolve
from rocketspark.tables.options import parse_decode_options

pytestmark = pytest.mark.shows(
    "Protobuf that a registry gives as text (no `format=serialized`): imports, Google's own types, hostile texts"
)

ITEM = 'syntax = "proto3"; package shop; message Item { string sku = 1; }'
BASKET = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/item.proto";
message Other { int32 x = 1; }
message Basket {  // the second
  Item first = 1;
  google.protobuf.Timestamp at = 2;
  optional int32 count = 3;
  message Within { bool yes = 1; }
}
"""


def decoder(url: str, **given: Any) -> BodyDecoder:
    options = {"decode": "protobuf", "schemaRegistry": url, "schemaRegistrySubject": "basket", **given}
    return BodyDecoder(resolve(parse_decode_options(options)))


def test_texts_that_import_others() -> None:
    with registry_server() as server:
        server.add("item", ITEM, "PROTOBUF")
        number = server.add("basket", BASKET, "PROTOBUF", references=[("shop/item.proto", "item", 1)])
        made = decoder(server.url, decodeMessage="shop.Basket")
        asked = len(server.paths)
        body = b"\x0a\x03\x0a\x01s\x12\x02\x08\x01\x18\x00"
        bodies = [join(number, write_indexes(place) + body) for place in ((1,), (0,), (1, 0))] * 2
        values, reasons = made.decode(bodies)
        found = values.to_pylist()
        assert (found[0]["first"], found[0]["at"].timestamp(), found[0]["count"]) == ({"sku": "s"}, 1, 0)
        assert found[0] == found[3]
        assert reasons[1:3] == ["the body is a shop.Other, not a shop.Basket", reasons[2]]
        assert "shop.Basket.Within" in str(reasons[2])
        # The id, and what it imports, which was asked for already.
        assert len(server.paths) == asked + 1


@pytest.mark.shows(
    "mended: Protobuf bodies without a `required` field were good rows with nulls; a registry's schema "
    "without a message was a traceback"
)
def test_required_fields_are() -> None:
    text = 'syntax = "proto2"; message B { required string r = 1; optional In i = 2; }'
    text += "message In { required int32 q = 1; }"
    with registry_server() as server:
        number = server.add("basket", text, "PROTOBUF")
        bodies = [join(number, b"\0" + body) for body in (b"\x0a\x01x", b"", b"\x0a\x01x\x12\x00")]
        values, reasons = decoder(server.url).decode(bodies)
    assert values.to_pylist() == [{"r": "x", "i": None}, None, None]
    said = "the body is no message of the schema: it lacks what is required: "
    assert reasons == [None, f"{said}r", f"{said}i.q"]


@pytest.mark.shows("mended: Protobuf bodies were all bad rows where a field is called `HasField` or `IsInitialized`")
def test_fields_may_be_called_as_methods_of_messages_are() -> None:
    text = 'syntax = "proto2"; message B { required int32 IsInitialized = 1; optional string HasField = 2; }'
    with registry_server() as server:
        number = server.add("basket", text, "PROTOBUF")
        bodies = [join(number, b"\0" + body) for body in (b"\x08\x05\x12\x01x", b"\x08\x05", b"")]
        values, reasons = decoder(server.url).decode(bodies)
    assert values.to_pylist() == [{"IsInitialized": 5, "HasField": "x"}, {"IsInitialized": 5, "HasField": None}, None]
    assert [reason is None for reason in reasons] == [True, True, False]


@pytest.mark.shows(
    "mended: Protobuf bodies without a `required` field were good rows with nulls; a registry's schema "
    "without a message was a traceback"
)
@pytest.mark.parametrize(
    ("text", "references", "said"),
    [
        ('syntax = "proto3"; mess\x1bage {}', [], r"does not compile: registered_schema\.proto:1:"),
        ('syntax = "proto3"; import "nowhere.proto";', [], "does not compile: nowhere.proto: File not found"),
        ('syntax = "proto3"; import "/etc/passwd";', [], "does not compile"),
        ('syntax = "proto3"; import "../../etc/passwd";', [], "does not compile"),
        ('syntax = "proto3"; import "registered_schema.proto";', [], "does not compile"),
        ("message M {" * 100_000, [], "does not compile"),
        ('syntax = "proto3"; //' + "x" * (5 << 20), [], "longer than 4 MiB"),
        ('syntax = "proto3";', ["../x.proto"], "no name of a .proto file"),
        ('syntax = "proto3";', ["/x.proto"], "no name of a .proto file"),
        ('syntax = "proto3";', ["grpc_tools/protoc.py"], "no name of a .proto file"),
        ('syntax = "proto3";', ["a\x00.proto"], "no name of a .proto file"),
        ('syntax = "proto3";', [], "has no message of its own"),
    ],
)
def test_texts_that_do_not_compile_are_one_line(text: str, references: list[str], said: str) -> None:
    with registry_server() as server:
        server.add("item", ITEM, "PROTOBUF")
        server.add("basket", text, "PROTOBUF", references=[(name, "item", 1) for name in references])
        with pytest.raises(ConfigError, match=said) as told:
            decoder(server.url)
    assert not {"\n", "\x1b", "\x00"} & set(str(told.value))
    assert "Traceback" not in str(told.value)


def test_one_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_bodies, "_COMPILE", "import time; time.sleep(600)")
    monkeypatch.setattr(protobuf_bodies, "COMPILE_S", 0.1)
    with pytest.raises(ValueError, match=r"takes more than 0\.1 s to compile"):
        protobuf_bodies.compiled_texts([("", ITEM)])


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for text in (ITEM, "no"):
        try:
            assert protobuf_bodies.compiled_texts([("shop/item.proto", ITEM), ("", text)])
        except ValueError:
            assert text == "no"
    assert list(tmp_path.iterdir()) == []


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "grpc_tools" else find(name, *more)
    )
    with registry_server() as server:
        server.add("basket", ITEM, "PROTOBUF")
        with pytest.raises(ConfigError, match=r"only as text: pip install 'rocketspark\[protoc\]', on executors too"):
            decoder(server.url)
