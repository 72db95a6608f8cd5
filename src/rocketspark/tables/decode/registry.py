"""A schema registry, asked over HTTP (Confluent's REST interface), and the wire format of bodies that name its schemas.

Rule: the schema of an id never changes, so each process asks for it once; ids that the registry does not know are asked
for a bounded number of times; no error shows a credential.

The wire format: a zero byte, the schema's id in four bytes, for Protobuf the place of the message in its file, then the
body. Whatever the bytes are, the outcome is a value or a ValueError that says why.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from rocketspark.errors import ConfigError, RegistryAway, RegistryFailed, RegistryRefused, SchemaUnknown
from rocketspark.model.text import shown, whole_number
from rocketspark.transport.tls.client_tls import ClientTls

SCHEMAS_MAX = 1000
ANSWER_BYTES_MAX = 16 << 20
# How many schemas one may need in all, and how deep they refer to each other.
REFERENCES_MAX = 200
REFERENCES_DEPTH_MAX = 50
# An id that is not there is asked for again after so long: a registry may learn of it late.
UNKNOWN_S = 30.0
# Bodies of anything else have ids too, each another: so many unknown ones are asked for at once, then so many a second,
# and as if each second that the answers took were so many more.
UNKNOWN_MAX, UNKNOWN_PER_S, UNKNOWN_PER_ANSWER_S = 100, 5.0, 50.0
# After a registry was given up, it is asked again after so long; once, until it answers: known bodies wait meanwhile.
AWAY_S = 10.0
REQUEST_S = 10.0
PAUSES_S = (0.1, 0.3, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """The addresses of a schema registry, and the credentials for it. `timeout_ms`: for how long a registry that does
    not answer is asked again. `subject`: of RocketMQ's own registry, which knows a schema by its subject and its id.
    """

    urls: tuple[str, ...]
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls: ClientTls | None = None
    timeout_ms: int = 30_000
    subject: str = ""


class Reference(NamedTuple):
    """A schema that another schema refers to: the name by which it does, and the subject and version that the registry
    has it under.
    """

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema as a registry has it. `kind`: AVRO, PROTOBUF or JSON; `id` is None if the registry's answer does not
    tell it.
    """

    kind: str
    text: str
    references: tuple[Reference, ...]
    id: int | None = None


class Registry:
    """A client of a schema registry that keeps the schemas it got. `clock_s` and `pause` are replaced in tests."""

    def __init__(
        self,
        options: RegistryOptions,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._clock_s, self._pause = options, clock_s, pause
        self._schemas: OrderedDict[str, RegisteredSchema] = OrderedDict()
        # Path -> when it was found unknown, and why; "" for a registry that is away. Texts: an error that is raised
        # again and again keeps what it went through each time.
        self._failures: OrderedDict[str, tuple[float, type[RegistryFailed], str]] = OrderedDict()
        self._allowance = _Allowance(clock_s)
        self._lock = threading.Lock()

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id; a Protobuf schema as a serialized descriptor. Raises SchemaUnknown,
        RegistryRefused, RegistryAway.
        """
        path = f"/schemas/ids/{schema_id}?format=serialized"
        return self._kept(path, f"schema id {schema_id}", self._allowance)

    def by_version(self, subject: str, version: int) -> RegisteredSchema:
        """Return one version of a subject's schema, which never changes. Raises as `by_id`."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?format=serialized"
        return self._kept(path, f"version {version} of subject {shown(subject)}")

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest version of a subject's schema; the registry is asked each time. Raises as `by_id`."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest?format=serialized"
        return self._ask(path, f"subject {shown(subject)}")

    def referenced(self, schema: RegisteredSchema) -> Iterator[tuple[Reference, RegisteredSchema]]:
        """Return the schemas that a schema refers to, also by way of others, each once and after those that it needs
        itself. Raises as `by_id`.
        """
        done: set[Reference] = set()

        def walk(references: tuple[Reference, ...], above: frozenset[Reference]) -> Iterator[Any]:
            if len(above) > REFERENCES_DEPTH_MAX:
                raise RegistryRefused(
                    f"schema registry: schemas refer to each other more than {REFERENCES_DEPTH_MAX} deep"
                )
            for reference in references:
                if reference in above:
                    raise RegistryRefused(f"schema registry: subject {shown(reference.subject)} refers to itself")
                if reference in done:
                    continue
                if len(done) >= REFERENCES_MAX:
                    raise RegistryRefused(f"schema registry: a schema refers to more than {REFERENCES_MAX} others")
                found = self.by_version(reference.subject, reference.version)
                yield from walk(found.references, above | {reference})
                done.add(reference)
                yield reference, found

        yield from walk(schema.references, frozenset())

    def _kept(self, path: str, name: str, allowance: _Allowance | None = None) -> RegisteredSchema:
        with self._lock:
            if (found := self._schemas.get(path)) is not None:
                self._schemas.move_to_end(path)
                return found
            for key, keep_s in ((path, UNKNOWN_S), ("", AWAY_S)):
                at, kind, why = self._failures.get(key, (0.0, None, ""))
                if kind is not None and self._clock_s() - at < keep_s:
                    raise kind(why)
            if allowance is not None and not allowance.is_left():
                raise SchemaUnknown(
                    f"schema registry: {name} was not asked for, as too many others are unknown: are these bodies in"
                    " the wire format? If so, read them again"
                )
            began_s = self._clock_s()
            try:
                found = self._ask(path, name, once=self._failures.pop("", None) is not None)
            except RegistryFailed as e:
                now_s = self._clock_s()
                if allowance is not None and not isinstance(e, RegistryAway):
                    allowance.spend(1 + (now_s - began_s) * UNKNOWN_PER_ANSWER_S)
                self._failures["" if isinstance(e, RegistryAway) else path] = now_s, type(e), str(e)
                while len(self._failures) > SCHEMAS_MAX:
                    self._failures.popitem(last=False)
                raise
            self._schemas[path] = found
            while len(self._schemas) > SCHEMAS_MAX:
                self._schemas.popitem(last=False)
            return found

    def _ask(self, path: str, name: str, *, once: bool = False) -> RegisteredSchema:
        """Ask the addresses in turn until one answers or the time is over, or `once`."""
        end = self._clock_s() + self._options.timeout_ms / 1000
        attempt = 0
        while True:
            why, advice, may_pass, wanted_s = "", "", False, 0.0
            for url in self._options.urls:
                left_s = max(0.05, end - self._clock_s())
                try:
                    return self._fetch(url, path, name, min(REQUEST_S, left_s))
                except (OSError, http.client.HTTPException, Busy) as e:
                    why, advice = f"{url}: {shown(_reason(e))}", _advice(e, url)
                    may_pass |= not _is_final(e)
                    wanted_s = max(wanted_s, e.after_s if isinstance(e, Busy) else 0.0)
            pause_s = max(wanted_s, PAUSES_S[min(attempt, len(PAUSES_S) - 1)])
            attempt += 1
            if once or not may_pass or self._clock_s() + pause_s >= end:
                raise RegistryAway(f"schema registry {why}: no answer about {name}; {advice}")
            self._pause(pause_s)

    def _fetch(self, url: str, path: str, name: str, timeout_s: float) -> RegisteredSchema:
        return _parse(*get(url, path, self._options, timeout_s), name=name, url=url)


class _Allowance:
    """A bound on how many unknown ids are asked for: UNKNOWN_MAX at once, then UNKNOWN_PER_S."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._left, self._at_s = float(UNKNOWN_MAX), clock_s()

    def is_left(self) -> bool:
        """Tell whether one more id may be asked for."""
        now_s = self._clock_s()
        self._left = min(UNKNOWN_MAX, self._left + (now_s - self._at_s) * UNKNOWN_PER_S)
        self._at_s = now_s
        return self._left >= 1

    def spend(self, count: float) -> None:
        """Take so much from what is left."""
        self._left -= count


class Busy(Exception):
    """Raised if the server cannot answer now. `after_s`: how long it wants to be left alone, if it tells."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).strip() or type(error).__name__


def _is_final(error: Exception) -> bool:
    """Tell whether asking again is of no use, because one side does not accept the other's certificate."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")
    )


def _advice(error: Exception, url: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "give the authority that signed its certificate as schemaRegistryCa, and the name that it is for"
    if _is_final(error):
        return "it does not take our certificate, or wants one: check schemaRegistryCert and schemaRegistryKey"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not talk TLS there: is it http://?"
    # A server that refuses a certificate may just close.
    of_tls = ", and schemaRegistryCert if it wants certificates" if url.startswith("https") else ""
    return f"check the address and the server{of_tls}"


class _Https(http.client.HTTPSConnection):
    """A connection whose `sock` is set before the TLS handshake, so that `_Watch` can end that too."""

    def __init__(self, host: str, port: int | None, *, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls = context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        wrapped = self._tls.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = wrapped
        wrapped.do_handshake()


class _Watch:
    """Ends a connection that takes too long as a whole: the time-out of a socket begins again with each byte."""

    def __init__(self, connection: http.client.HTTPConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True
        self.is_over = False

    def _end(self) -> None:
        self.is_over = True
        if (sock := self._connection.sock) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def __enter__(self) -> _Watch:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def get(url: str, path: str, options: RegistryOptions, timeout_s: float) -> tuple[int, bytes]:
    """Return the status and the body of a server's answer. Raises OSError, HTTPException, Busy, RegistryRefused."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = (options.tls or ClientTls()).context()
        connection = _Https(parts.hostname, parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "Connection": "close"}
    if options.token:
        headers["Authorization"] = f"Bearer {options.token}"
    elif options.user:
        both = f"{options.user}:{options.password}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
    watch = _Watch(connection, timeout_s)
    try:
        with watch:
            try:
                connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
                answer = connection.getresponse()
                body = answer.read(ANSWER_BYTES_MAX + 1)
                if answer.length and len(body) <= ANSWER_BYTES_MAX:
                    raise http.client.IncompleteRead(body, answer.length)
            except Exception:
                if watch.is_over:
                    raise TimeoutError("timed out") from None
                raise
        if watch.is_over:
            raise TimeoutError("timed out")
        if answer.status == 429 or answer.status >= 500:
            raise Busy(f"it answers {answer.status}", whole_number(answer.headers.get("Retry-After")) or 0)
        if answer.status in (301, 302, 303, 307, 308):
            # Credentials go to no other address than the one that was given.
            raise RegistryRefused(
                f"schema registry {url} answers {answer.status}: it is at {_place(answer.headers.get('Location'))};"
                " give that as schemaRegistry"
            )
        return answer.status, body
    finally:
        connection.close()


def _place(location: str | None) -> str:
    """Return where an answer sends us to, without what may be secret in it."""
    try:
        parts = urlsplit(location or "")
        port = f":{parts.port}" if parts.port is not None else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    except ValueError:
        return "another address"
    return shown(f"{parts.scheme}://{host}{port}") if host else "another path of it"


def _is_error(body: bytes) -> bool:
    """Tell whether it is what a schema registry says of something that it does not have."""
    try:
        return isinstance(json.loads(body).get("error_code"), int)
    except (ValueError, AttributeError, RecursionError):
        return False


def unknown(url: str, name: str) -> SchemaUnknown:
    """Return the error for a schema that a registry does not have."""
    return SchemaUnknown(f"schema registry {url} has no {name}: check it, and that this is the right registry")


def check_status(status: int, url: str, who: str) -> None:
    """Raise RegistryRefused for a status that refuses credentials, Busy for a 404 of something else than `who`."""
    if status == 404:
        # Of what stands before a registry that is started anew, or of a wrong path: not a word on the schema.
        raise Busy(f"it answers 404, and not as {who} does")
    if status in (401, 403):
        raise RegistryRefused(
            f"schema registry {url} refuses ({status}): check schemaRegistryUser and schemaRegistryPassword, or"
            " schemaRegistryToken"
        )


def _parse(status: int, body: bytes, *, name: str, url: str) -> RegisteredSchema:
    # An id of more than 31 bits, or of a body that only looks framed, is none that it could have.
    if status in (400, 404, 410, 422) and _is_error(body):
        raise unknown(url, name)
    check_status(status, url, "a schema registry")
    if status != 200:
        raise RegistryRefused(f"schema registry {url} answers {status} to {name}: is it a schema registry?")
    try:
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("it is too long")
        found = json.loads(body)
        references = tuple(
            Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
            for one in found.get("references") or ()
        )
        text = found["schema"]
        if not isinstance(text, str):
            raise TypeError("the schema is no text")
        return RegisteredSchema(str(found.get("schemaType") or "AVRO").upper(), text, references, found.get("id"))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise RegistryRefused(
            f"schema registry {url}: its answer about {name} is none of a schema registry's; check the address"
        ) from None


def check_url(url: str, option: str) -> str:
    """Return the address of a registry. Raises ConfigError, which names `option`, if it is no URL of one."""
    try:
        parts = urlsplit(url)
        port_is_right = parts.port is None or parts.port > 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise ConfigError(f"option {option}: it is no address; http://host:port is needed") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"option {option} holds a user or password, which plans and logs would show: give schemaRegistryUser and"
            " schemaRegistryPassword"
        )
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port_is_right
        or parts.query
        or parts.fragment
        or not parts.path.isascii()
        or any(c <= " " or c == "\x7f" for c in url)
    ):
        raise ConfigError(f"option {option} is {shown(url)!r}: http://host:port or https://host:port is needed")
    return url.rstrip("/")


MAGIC = 0
PREFIX_BYTES = 5
# Messages that lie within each other: no compiler takes files that are nested deeper.
INDEXES_MAX = 100
_INDEX_MAX = 2**31 - 1


class Framed(NamedTuple):
    """The head of a body in the wire format: the id of its schema, and the position at which the payload begins."""

    schema_id: int
    start: int


def frame_of(body: bytes) -> Framed:
    """Read the head of a body in the wire format. Raises ValueError if it has none."""
    if len(body) < PREFIX_BYTES:
        raise ValueError(f"{len(body)} bytes are too short for a magic byte and a schema id")
    if body[0] != MAGIC:
        raise ValueError(f"the magic byte is {body[0]}, not 0: the body is not in the wire format of a schema registry")
    return Framed(int.from_bytes(body[1:PREFIX_BYTES], "big"), PREFIX_BYTES)


def read_indexes(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read the message indexes behind the head of a Protobuf body, from position `at` on: return them, as `place_of`
    has them, and where the payload begins. Raises ValueError.
    """
    count, at = _read_zigzag(body, at)
    if count == 0:
        return (0,), at  # Short for the first message.
    if not 0 < count <= INDEXES_MAX:
        raise ValueError(f"the list of message indexes has {count} entries")
    indexes = []
    for _ in range(count):
        index, at = _read_zigzag(body, at)
        if not 0 <= index <= _INDEX_MAX:
            raise ValueError(f"{index} is no index of a message")
        indexes.append(index)
    return tuple(indexes), at


def _read_zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(body):
            raise ValueError("the body ends within the list of message indexes")
        if shift > 63:
            raise ValueError("a message index has more than ten bytes")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
