"""Registries that are slow, cut, wrong or built to harm: each ends in its time with one line."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.spark.decode.framed_bodies import join, write_indexes
from tests.spark.decode.orders import V1, order_file, serialized
from tests.spark.decode.registry_server import registry_server
from tests.support.certificates import Issuer

from rocketspark.errors import ConfigError, RegistryAway, RegistryRefused, RocketSparkError
from rocketspark.tables.decode.bodies import BodyDecoder, resolve
from rocketspark.tables.decode.registry import Registry, RegistryOptions, check_url
from rocketspark.tables.options import parse_decode_options
from rocketspark.transport.tls.client_tls import ClientTls

pytestmark = pytest.mark.shows(
    "a schema registry: basic authentication, bearer tokens, TLS, client certificates (one that is not taken "
    "is told at once), several addresses, references (Avro, Protobuf), retries, schemas kept per process, "
    "unknown ids, a registry that is away",
    "a registry that drips, is cut off, answers something else, or whose schemas refer to each other without "
    "end; schemas that multiply",
)

Answer = Callable[[socket.socket], None]


@contextmanager
def peer(answer: Answer, *, reads: bool = True) -> Iterator[str]:
    """An address where each connection is answered by a function, which may go on until it is closed."""
    listening = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                if reads:
                    connection.recv(65536)
                answer(connection)
            except OSError:
                pass

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def json_answer(value: Any, *, more: bytes = b"", left: int = 0) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (len(body) + left, more) + body


def dripping(head: bytes, drop: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(drop)
            time.sleep(0.1)

    return answer


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_an_answer_that_drips_ends_in_its_time(head: bytes, drop: bytes) -> None:
    with peer(dripping(head, drop)) as url:
        began_s = time.monotonic()
        with pytest.raises(RegistryAway, match="timed out"):
            Registry(RegistryOptions(urls=(url,), timeout_ms=500)).by_id(1)
        # Without its bound it would never end.
        assert time.monotonic() - began_s < 60


def test_a_handshake_that_drips_ends_in_its_time(tmp_path: Path) -> None:
    # A record of TLS that says it is 16 KiB long.
    with peer(dripping(b"\x16\x03\x03\x40\x00", b"\x02"), reads=False) as url:
        options = RegistryOptions(
            urls=(url.replace("http:", "https:"),), timeout_ms=500, tls=ClientTls(ca=Issuer(tmp_path).ca)
        )
        with pytest.raises(RegistryAway, match="timed out"):
            Registry(options).by_id(1)


def test_an_answer_that_is_cut_is_asked_for_again() -> None:
    answers = itertools.chain([json_answer({"schema": V1}, left=9)], itertools.repeat(json_answer({"schema": V1})))
    with peer(lambda connection: connection.sendall(next(answers))) as url:
        assert Registry(RegistryOptions(urls=(url,))).by_id(1).text == V1


@pytest.mark.shows("redirects say where the registry is, without what may be secret; `Retry-After` is kept")
def test_a_registry_is_asked_again_when_it_wants_to_be() -> None:
    busy = b"HTTP/1.1 429 Too Many\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n"
    answers = iter([busy % b"7", busy % b"Fri, 01 Jan 2100 00:00:00 GMT", json_answer({"schema": V1})])
    pauses: list[float] = []
    with peer(lambda connection: connection.sendall(next(answers))) as url:
        asking = Registry(RegistryOptions(urls=(url,)), clock_s=lambda: 0.0, pause=pauses.append)
        assert asking.by_id(1).text == V1
    assert pauses == [7, 0.3]


def _deeper() -> Answer:
    counts = itertools.count(1)

    def answer(connection: socket.socket) -> None:
        reference = {"name": "a", "subject": "b", "version": next(counts)}
        connection.sendall(json_answer({"schema": V1, "references": [reference]}))

    return answer


@pytest.mark.shows("redirects say where the registry is, without what may be secret; `Retry-After` is kept")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda c: c.sendall(b"SSH-2.0-x\r\n\r\n"), "SSH-2.0-x: no answer"),
        (
            lambda c: c.sendall(b"HTTP/1.1 302 Found\r\nLocation: https://u:p@h:1/x\r\nContent-Length: 0\r\n\r\n"),
            "answers 302: it is at https://h:1; give that as schemaRegistry$",
        ),
        (
            lambda c: c.sendall(b"HTTP/1.1 308 X\r\nLocation: /login?token=s\r\nContent-Length: 0\r\n\r\n"),
            "at another path of it;",
        ),
        (lambda c: c.sendall(b"HTTP/1.1 429 X\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"), "it answers 429"),
        (
            lambda c: c.sendall(json_answer({"schema": V1, "references": [{"name": "a"}]})),
            "none of a schema registry's",
        ),
        (
            lambda c: c.sendall(
                json_answer({"schema": V1, "references": [{"name": "a", "subject": "b", "version": float("inf")}]})
            ),
            "none of a schema registry's",
        ),
        (_deeper(), "refer to each other more than 50 deep"),
        (lambda c: c.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (17 << 20)), "none of a schema registry's"),
        (lambda c: c.sendall(json_answer({"schema": V1, "schemaType": "A\n\x1b[31m"})), r"of type A\\n\\x1b"),
    ],
)
def test_answers_that_are_wrong_are_one_line(answer: Answer, said: str) -> None:
    # Those two are asked again until the time is over; a busy machine takes long for 17 MiB, or for 51 answers.
    patient = "no answer" not in said and "429" not in said
    with peer(answer) as url:
        given = {
            "decode": "avro",
            "schemaRegistry": url,
            "schemaRegistrySubject": "x",
            "schemaRegistryTimeoutMs": "60000" if patient else "300",
        }
        with pytest.raises(RocketSparkError, match=said) as told:
            resolve(parse_decode_options(given))
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    ["http://a..b", f"http://{'a' * 70}.example", "http://h/a b", "http://h/\u00e9", "http://h/\x1b", "http://h\x00"],
)
def test_addresses_that_no_request_can_name(url: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port") as told:
        check_url(url, "schemaRegistry")
    assert "\x1b" not in str(told.value)


def test_several_addresses_and_a_bearer_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-4711\n")
    given = {"decode": "avro", "schemaRegistrySubject": "orders", "schemaRegistryTimeoutMs": "60000"}
    with registry_server(token="secret-4711") as server:
        server.add("orders", V1)
        # The first listens and hangs up.
        with peer(lambda _: None) as away:
            given["schemaRegistry"] = f"{away}, {server.url}"
            found = resolve(parse_decode_options(given | {"schemaRegistryTokenFile": str(token)}))
        assert json.loads(found.schema)["name"] == "Order"
        assert "secret-4711" not in repr(found)
        given["schemaRegistry"] = server.url
        with pytest.raises(RegistryRefused, match=r"refuses \(401\)") as told:
            resolve(parse_decode_options(given | {"schemaRegistryToken": "wrong-0815"}))
        assert "wrong-0815" not in str(told.value)
        # A header that cannot be sent would show it.
        for odd in ("wrong\n0815", "wrong 0815", "wrong\u20ac0815"):
            with pytest.raises(ConfigError, match="a character that no token has") as refused:
                parse_decode_options(given | {"schemaRegistryToken": odd})
            assert "0815" not in str(refused.value)


def test_references_of_protobuf_are_followed() -> None:
    file = order_file()
    file.name, file.package = "other.proto", "main"
    del file.message_type[:], file.enum_type[:], file.dependency[:]
    file.dependency.append("shop/shop.proto")
    message = file.message_type.add(name="Basket")
    message.field.add(name="order", number=1, type=11, label=1, type_name=".shop.Order.Item")
    with registry_server() as server:
        server.add("shop", serialized(), "PROTOBUF")
        number = server.add("basket", serialized(file), "PROTOBUF", references=[("shop/shop.proto", "shop", 1)])
        given = {"decode": "protobuf", "schemaRegistry": server.url, "schemaRegistrySubject": "basket"}
        options = resolve(parse_decode_options(given))
        assert options.message == "main.Basket"
        values, reasons = BodyDecoder(options).decode([join(number, write_indexes((0,)) + b"\n\x03\n\x01s")])
    assert (values.to_pylist(), reasons) == ([{"order": {"sku": "s"}}], [None])
