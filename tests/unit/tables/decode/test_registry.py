"""The registry's client against a small server: what is kept, retried, refused, and that no error shows a secret. The
wire format: golden bytes, and whatever bytes come.
"""

from __future__ import annotations

import json
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.decode.framed_bodies import join, write_indexes
from tests.spark.decode.orders import V1, V2, avro
from tests.spark.decode.registry_server import RegistryServer, registry_server
from tests.support.certificates import Issuer

from rocketspark.errors import ConfigError, RegistryAway, RegistryRefused, SchemaUnknown
from rocketspark.tables.decode import registry as module
from rocketspark.tables.decode.bodies import BodyDecoder, resolve
from rocketspark.tables.decode.registry import Registry, RegistryOptions, check_url, frame_of, read_indexes
from rocketspark.tables.options import parse_decode_options
from rocketspark.transport.tls.client_tls import ClientTls

pytestmark = pytest.mark.shows(
    "a schema registry: basic authentication, bearer tokens, TLS, client certificates (one that is not taken "
    "is told at once), several addresses, references (Avro, Protobuf), retries, schemas kept per process, "
    "unknown ids, a registry that is away",
    "wire format, its list of message indexes",
)


class Clock:
    """Time that passes by pauses."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def client(server: RegistryServer, clock: Clock, **options: Any) -> Registry:
    return Registry(RegistryOptions(urls=(server.url,), **options), clock_s=clock, pause=clock.pause)


def test_a_schema_is_asked_for_once_and_outlives_its_registry() -> None:
    clock = Clock()
    with registry_server() as server:
        number = server.add("orders", V1)
        asking = client(server, clock)
        assert asking.by_id(number).text == V1
        assert asking.by_id(number).kind == "AVRO"
        assert server.paths == [f"/schemas/ids/{number}?format=serialized"]
    assert asking.by_id(number).text == V1
    with pytest.raises(RegistryAway, match=r"no answer about schema id 9; check the address"):
        asking.by_id(9)


@pytest.mark.shows("mended: a registry that stays away holds bodies of known schemas for half a minute again and again")
def test_one_that_was_given_up_is_asked_once_until_it_answers() -> None:
    clock = Clock()
    with registry_server() as server:
        number = server.add("orders", V1)
        asking = client(server, clock, timeout_ms=30_000)
        for waited_s, asked in ((25, 10), (0, 1), (0, 1)):
            server.failures, server.paths, began_s = [503] * 100, [], clock.now_s
            with pytest.raises(RegistryAway):
                asking.by_id(number)
            assert clock.now_s - began_s >= waited_s
            assert (len(server.paths) >= asked) if waited_s else (clock.now_s, len(server.paths)) == (began_s, asked)
            clock.now_s += 11
        server.failures = []
        assert asking.by_id(number).text == V1
        server.failures, began_s = [503] * 3, clock.now_s
        assert asking.by_id(server.add("orders", V2)).text == V2
        assert clock.now_s > began_s


def test_failures_that_pass_are_retried() -> None:
    clock = Clock()
    with registry_server() as server:
        number = server.add("orders", V1)
        server.failures = [500, 503, 429]
        assert client(server, clock).by_id(number).text == V1
        assert clock.now_s == pytest.approx(100 + 0.1 + 0.3 + 1.0)
        server.failures = [500] * 100
        with pytest.raises(RegistryAway, match="it answers 500"):
            # The last request may take what is left, of which a busy machine needs some.
            client(server, clock, timeout_ms=15_390).by_id(number)


def test_an_unknown_id_is_asked_for_again_after_a_while() -> None:
    clock = Clock()
    with registry_server() as server:
        asking = client(server, clock)
        for _ in range(3):
            with pytest.raises(SchemaUnknown, match="has no schema id 5"):
                asking.by_id(5)
        assert len(server.paths) == 1
        server.add("late", V1, schema_id=5)
        clock.now_s += module.UNKNOWN_S + 1
        assert asking.by_id(5).text == V1


@pytest.mark.shows(
    "mended: bodies with random schema ids cost a request each; an error told again kept all that it went "
    "through; a schema of no use was read anew for each body; an id that a registry calls wrong (400, 422) "
    "ended the task"
)
def test_a_flood_of_unknown_ids_costs_few_requests() -> None:
    clock = Clock()
    with registry_server() as server:
        asking = client(server, clock)
        known = server.add("orders", V1, schema_id=7)

        def ask(first: int, count: int) -> int:
            before = len(server.paths)
            for number in range(first, first + count):
                with pytest.raises(SchemaUnknown):
                    asking.by_id(number)
            return len(server.paths) - before

        assert ask(1000, 5000) == module.UNKNOWN_MAX
        with pytest.raises(SchemaUnknown, match="schema id 7 was not asked for, as too many others are unknown"):
            asking.by_id(known)
        # What was refused so is not kept: it is asked for as soon as there is room.
        clock.now_s += 2 / module.UNKNOWN_PER_S
        assert asking.by_id(known).text == V1
        assert ask(10_000, 100) == 2
        clock.now_s += 3600
        assert ask(20_000, 5000) == module.UNKNOWN_MAX
        assert asking.by_id(known).text == V1
        assert len(asking._failures) <= module.SCHEMAS_MAX


@pytest.mark.shows(
    "mended: bodies with random schema ids cost a request each; an error told again kept all that it went "
    "through; a schema of no use was read anew for each body; an id that a registry calls wrong (400, 422) "
    "ended the task"
)
def test_slow_answers_about_unknown_ids_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with registry_server() as server:
        answer = server.answer

        def slowly(path: str, authorization: str | None) -> tuple[int, Any]:
            clock.now_s += 5
            return answer(path, authorization)

        monkeypatch.setattr(server, "answer", slowly)
        asking = client(server, clock)
        for number in range(1000):
            with pytest.raises(SchemaUnknown):
                asking.by_id(number)
        assert len(server.paths) == 1


def test_bodies_of_anything_are_bad_rows_between_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNKNOWN_PER_S", 0.0)
    order = {"id": 1, "fruit": "fig", "price": 2.0}
    with registry_server() as server:
        number = server.add("orders", V1)
        given = {"decode": "avro", "schemaRegistry": server.url, "schemaRegistrySubject": "orders"}
        decoder = BodyDecoder(resolve(parse_decode_options(given)))
        good = join(number, avro(order))
        bodies = [good, *(join(1000 + n, b"x") for n in range(2000)), good]
        values, reasons = decoder.decode(bodies)
    assert (reasons[0], reasons[-1]) == (None, None)
    assert all(reason is not None and "schema id" in reason for reason in reasons[1:-1])
    assert values[0].as_py() == values[-1].as_py() == order
    assert 2 < len(server.paths) <= 2 + module.UNKNOWN_MAX


@pytest.mark.shows(
    "mended: bodies with random schema ids cost a request each; an error told again kept all that it went "
    "through; a schema of no use was read anew for each body; an id that a registry calls wrong (400, 422) "
    "ended the task"
)
def test_an_error_that_is_told_again_is_a_new_one() -> None:
    with registry_server() as server:
        asking = client(server, Clock())
        told = []
        for _ in range(3):
            with pytest.raises(SchemaUnknown) as e:
                asking.by_id(5)
            told.append(e.value)
    assert len({id(error) for error in told}) == 3
    assert len({str(error) for error in told}) == 1


@pytest.mark.shows(
    "mended: bodies with random schema ids cost a request each; an error told again kept all that it went "
    "through; a schema of no use was read anew for each body; an id that a registry calls wrong (400, 422) "
    "ended the task"
)
def test_a_schema_that_is_of_no_use_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with registry_server() as server:
        server.add("orders", V1)
        number = server.add("wrong", json.dumps({"type": "record", "name": "x"}))
        given = {"decode": "avro", "schemaRegistry": server.url, "schemaRegistrySubject": "orders"}
        decoder = BodyDecoder(resolve(parse_decode_options(given)))
        made: list[int] = []
        monkeypatch.setattr(decoder, "_avro_writer", lambda id_: made.append(id_) or original(id_))  # type: ignore[func-returns-value]
        original = type(decoder)._avro_writer.__get__(decoder)
        _, reasons = decoder.decode([join(number, b"x")] * 3)
    assert made == [number]
    assert len(set(reasons)) == 1
    assert reasons[0] is not None
    assert reasons[0].startswith(f"schema id {number}: ")


@pytest.mark.shows("a 404 that is no schema registry's")
@pytest.mark.parametrize("body", [b"<html>default backend - 404</html>", b"", b"[]", b'{"message": "no such page"}'])
def test_a_404_that_is_no_registry_s_says_nothing_of_a_schema(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ingress answers so while its registry is started anew; a wrong path does for ever."""
    with registry_server() as server:
        number, clock, real = server.add("orders", V1), Clock(), server.answer
        monkeypatch.setattr(server, "answer", lambda *asked: (404, body) if clock.now_s < 110 else real(*asked))
        assert client(server, clock).by_id(number).text == V1
        assert 110 <= clock.now_s < 120
        monkeypatch.setattr(server, "answer", lambda *_: (404, body))
        with pytest.raises(RegistryAway, match=r"it answers 404, and not as a schema registry does.*check the address"):
            client(server, clock).by_id(number)


@pytest.mark.shows(
    "mended: bodies with random schema ids cost a request each; an error told again kept all that it went "
    "through; a schema of no use was read anew for each body; an id that a registry calls wrong (400, 422) "
    "ended the task"
)
@pytest.mark.parametrize("status", [400, 404, 410, 422])
def test_an_id_that_it_calls_wrong_costs_its_row(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry_server() as server:
        monkeypatch.setattr(server, "answer", lambda *_: (status, {"error_code": 42202, "message": "no id"}))
        with pytest.raises(SchemaUnknown, match="has no schema id 4294967295"):
            client(server, Clock()).by_id(2**32 - 1)
        monkeypatch.setattr(server, "answer", lambda *_: (status, b"<html>"))
        with pytest.raises(RegistryAway if status == 404 else RegistryRefused, match=f"answers {status}"):
            client(server, Clock()).by_id(1)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCHEMAS_MAX", 2)
    with registry_server() as server:
        asking = client(server, Clock())
        for number in (1, 2, 3, 1):
            server.schemas[number] = {"schema": V1}
            asking.by_id(number)
        assert len(server.paths) == 4


def test_a_wrong_password_is_refused_without_showing_it() -> None:
    with registry_server(user="us", password="right-8812") as server:
        number = server.add("orders", V1)
        assert client(server, Clock(), user="us", password="right-8812").by_id(number).text == V1
        options = RegistryOptions(urls=(server.url,), user="us", password="wrong-7719")
        with pytest.raises(RegistryRefused, match=r"refuses \(401\)") as told:
            Registry(options).by_id(number)
        assert "wrong-7719" not in str(told.value) + repr(options)


def test_tls(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    pair = issuer.pair("registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    with registry_server(tls=context) as server:
        number = server.add("orders", V1)
        assert client(server, Clock(), tls=ClientTls(ca=issuer.ca)).by_id(number).text == V1
        # A certificate that is not trusted now is not in 30 s either.
        clock = Clock()
        with pytest.raises(RegistryAway, match=r"certificate verify failed.*schemaRegistryCa"):
            client(server, clock).by_id(number)
        assert clock.now_s == 100


def test_a_registry_that_wants_certificates(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    own = issuer.pair("reader", password="key-5530")
    (tmp_path / "password").write_text("key-5530\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issuer.pair("registry"))
    context.load_verify_locations(issuer.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with registry_server(tls=context) as server:
        number = server.add("orders", V1)
        given = {"decode": "avro", "schemaRegistry": server.url, "schemaRegistrySubject": "orders"}
        given |= {"schemaRegistryCa": issuer.ca}
        shown = {"schemaRegistryCert": own.cert, "schemaRegistryKey": own.key}
        secret = {"schemaRegistryKeyPasswordFile": str(tmp_path / "password")}
        options = resolve(parse_decode_options(given | shown | secret))
        order = {"id": 1, "fruit": "fig", "price": 2.0}
        # As an executor has them: what came over the wire, a schema that its process was not told.
        values, reasons = BodyDecoder(pickle.loads(pickle.dumps(options))).decode([join(number, avro(order))])
        assert (values.to_pylist(), reasons) == ([order], [None])
        assert len(server.paths) == 2
        assert "key-5530" not in repr(options)
        given["schemaRegistryTimeoutMs"] = "1"
        with pytest.raises(RegistryAway, match="schemaRegistryCert"):
            resolve(parse_decode_options(given))
        others = Issuer(tmp_path / "others", "others").pair("stranger")
        stranger = {"schemaRegistryCert": others.cert, "schemaRegistryKey": others.key}
        with pytest.raises(RegistryAway, match="schemaRegistryCert"):
            resolve(parse_decode_options(given | stranger))
        with pytest.raises(ConfigError, match="password") as told:
            resolve(parse_decode_options(given | shown | {"schemaRegistryKeyPassword": "wrong-1199"}))
        assert "wrong-1199" not in str(told.value)
        assert len(server.paths) == 2


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"schema": 3}', b'{"schema": "x", "references": 1}'])
def test_answers_that_are_none_of_a_registrys(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry_server() as server:
        monkeypatch.setattr(server, "answer", lambda *_: (200, body))
        with pytest.raises(RegistryRefused, match="none of a schema registry's"):
            client(server, Clock()).by_id(1)


@pytest.mark.parametrize(
    ("url", "said"),
    [("http://u:pw@h", "holds a user"), ("x", "is needed"), ("http://", "is needed"), ("http://h:x", "no address")],
)
def test_wrong_addresses(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as told:
        check_url(url, "schemaRegistry")
    assert "pw" not in str(told.value)


def test_references_are_followed() -> None:
    shop = json.dumps({"type": "record", "name": "Shop", "namespace": "s", "fields": [{"name": "n", "type": "string"}]})
    order = {
        "type": "record",
        "name": "O",
        "fields": [{"name": "a", "type": "s.Shop"}, {"name": "b", "type": "s.Shop"}],
    }
    with registry_server() as server:
        server.add("shop", shop)
        number = server.add("orders", json.dumps(order), references=[("s.Shop", "shop", 1)])
        given = {"decode": "avro", "schemaRegistry": server.url, "schemaRegistrySubject": "orders"}
        options = resolve(parse_decode_options(given))
        body = join(number, b"\x02x\x04yz")
        values, reasons = BodyDecoder(options).decode([body])
    assert reasons == [None]
    assert values.to_pylist() == [{"a": {"n": "x"}, "b": {"n": "yz"}}]


def test_a_registry_that_is_away_costs_rows_or_the_task_by_choice() -> None:
    with registry_server() as server:
        one, two = server.add("orders", V1), server.add("orders", V2)
        given = {"decode": "avro", "schemaRegistry": server.url, "schemaRegistrySubject": "orders"}
        given["schemaRegistryTimeoutMs"] = "50"
        order = {"id": 1, "fruit": "fig", "price": 2.0}
        known, unknown = join(one, avro(order)), join(two, avro(order | {"note": "n"}, V2))
        decoders = [
            BodyDecoder(resolve(parse_decode_options(given | {"schemaRegistryFailure": choice})))
            for choice in ("error", "badRow")
        ]
        for decoder in decoders:
            assert decoder.decode([known])[1] == [None]
    with pytest.raises(RegistryAway):
        decoders[0].decode([unknown])
    values, reasons = decoders[1].decode([known, unknown, None])
    assert values.to_pylist() == [order | {"note": None}, None, None]
    assert reasons[0] is None
    assert reasons[1] is not None
    assert "no answer about schema id 2" in reasons[1]
    assert reasons[2] is None


GOLDEN = [((0,), b"\0"), ((1,), b"\x02\x02"), ((1, 0), b"\x04\x02\x00"), ((64,), b"\x02\x80\x01")]


@pytest.mark.parametrize(("indexes", "encoded"), GOLDEN)
def test_indexes_as_confluents_serializer_writes_them(indexes: tuple[int, ...], encoded: bytes) -> None:
    assert write_indexes(indexes) == encoded
    assert read_indexes(b"abcde" + encoded + b"rest", 5) == (indexes, 5 + len(encoded))


def test_a_frame() -> None:
    assert join(258, b"xy") == b"\0\0\0\1\2xy"
    assert frame_of(b"\0\0\0\1\2xy") == (258, 5)
    with pytest.raises(ValueError, match="4 bytes are too short"):
        frame_of(b"\0\0\0\1")
    with pytest.raises(ValueError, match="the magic byte is 7, not 0"):
        frame_of(b"\7\0\0\0\1")


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=100).map(tuple), st.binary(max_size=20))
def test_indexes_round_trip(indexes: tuple[int, ...], rest: bytes) -> None:
    encoded = write_indexes(indexes)
    assert read_indexes(encoded + rest, 0) == (indexes, len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(ValueError):
            read_indexes(encoded[:cut], 0)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_reason(body: bytes) -> None:
    try:
        found = frame_of(body)
        indexes, at = read_indexes(body, found.start)
    except ValueError:
        return
    assert 0 <= found.schema_id < 2**32
    assert all(0 <= index < 2**31 for index in indexes)
    assert found.start < at <= len(body)
