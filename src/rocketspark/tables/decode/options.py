"""The options of decoding, which reads and `decode` take. Rule: files are read here, on the driver; executors get their
content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rocketspark.client import validators
from rocketspark.errors import ConfigError, MessageIllegal
from rocketspark.model.text import shown
from rocketspark.tables.given_options import GivenOptions, refuse_if
from rocketspark.tables.option_values import matching
from rocketspark.transport.tls.client_tls import ClientTls

if TYPE_CHECKING:
    from rocketspark.tables.decode.registry import RegistryOptions

JSON, AVRO, PROTOBUF = "json", "avro", "protobuf"
FORMATS = (JSON, AVRO, PROTOBUF)
PLAIN, CONFLUENT, ROCKETMQ = "plain", "confluent", "rocketmq"
# Of a schema's record id in RocketMQ's registry; and what stands before JSON.
ID_BYTES = 8
JSON_STARTS = {PLAIN: 0, CONFLUENT: 5, ROCKETMQ: ID_BYTES}
PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
FILE_BYTES_MAX = 16 << 20
RECURSION_MAX = 15
# Columns that a schema may have in all, those within others too: types that name each other are small, and multiply.
COLUMNS_MAX = 10_000

NAMES = (
    *("decode", "decodeSchema", "decodeSchemaFile", "decodeDescriptorFile", "decodeMessage", "decodeWireFormat"),
    *("decodeMode", "decodeInto", "columnNameOfDecodeError", "decodeErrorTopic", "recursiveFieldMaxDepth"),
    *("decodeSampleRows", "schemaRegistry", "schemaRegistrySubject", "schemaRegistryVersion", "schemaRegistryUser"),
    *("schemaRegistryPassword", "schemaRegistryPasswordFile", "schemaRegistryToken", "schemaRegistryTokenFile"),
    *("schemaRegistryCa", "schemaRegistryCert", "schemaRegistryKey", "schemaRegistryKeyPassword"),
    *("schemaRegistryKeyPasswordFile", "schemaRegistryTimeoutMs", "schemaRegistryFailure"),
)


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How bodies are decoded into a column.

    `schema`: for JSON the DDL of Spark or the JSON of its type, else an Avro schema; empty: it is inferred, or the
    registry's. `descriptor`: a FileDescriptorSet, for Protobuf. `value_type`: the JSON of the decoded column's type,
    once it is known.
    """

    format: str
    schema: str = ""
    descriptor: bytes = field(default=b"", repr=False)
    message: str = ""
    wire: str = PLAIN
    registry: RegistryOptions | None = None
    subject: str = ""
    version: int | None = None
    mode: str = PERMISSIVE
    into: str = "value"
    error_column: str = "_decode_error"
    error_topic: str = ""
    recursion_max: int = 0
    sample_rows: int = 1000
    registry_failure_is_error: bool = True
    value_type: str = field(default="", repr=False)


def parse_decode(given: GivenOptions, topics: tuple[str, ...] = ()) -> DecodeOptions | None:
    """Parse the options of decoding; None if bodies are not decoded. Raises ConfigError.

    `topics`: the topics that are read; the registry's subject is named after the topic unless an option names it.
    """
    if not given.text("decode", ""):
        if other := next((name for name in NAMES if given.text(name, "")), None):
            raise ConfigError(f"option {other} goes with option decode, which is missing: json, avro or protobuf")
        return None
    format_ = given.choice("decode", *FORMATS)
    registry = _registry(given)
    subject = given.text("schemaRegistrySubject", "")
    wire = given.choice("decodeWireFormat", *((CONFLUENT, PLAIN) if registry else (PLAIN, CONFLUENT)), ROCKETMQ)
    if registry is not None and not subject and len(topics) == 1:
        subject = topics[0] if wire == ROCKETMQ else f"{topics[0]}-value"
    if registry is not None and wire == ROCKETMQ:
        registry = replace(registry, subject=subject)
    parsed = DecodeOptions(
        format=format_,
        schema=_schema(given, format_),
        descriptor=_descriptor(given, format_),
        message=given.text("decodeMessage", ""),
        wire=wire,
        registry=registry,
        subject=subject,
        version=given.number("schemaRegistryVersion", None, 1),
        mode=given.choice("decodeMode", *(mode.lower() for mode in (PERMISSIVE, DROPMALFORMED, FAILFAST))).upper(),
        into=_column(given, "decodeInto", "value"),
        error_column=_column(given, "columnNameOfDecodeError", "_decode_error"),
        error_topic=given.text("decodeErrorTopic", ""),
        recursion_max=given.number("recursiveFieldMaxDepth", 0, 0, RECURSION_MAX),
        sample_rows=given.number("decodeSampleRows", 1000, 1, 100_000),
        registry_failure_is_error=given.choice("schemaRegistryFailure", "error", "badrow") == "error",
    )
    _check(parsed)
    return parsed


def check_error_topic(topic: str, topics: Iterable[str], pattern: str | None) -> None:
    """Raise ConfigError for a decodeErrorTopic that cannot be written, or that is one of the topics read: by name, or
    by a pattern.
    """
    if not topic:
        return
    try:
        validators.check_target(topic)
    except MessageIllegal as e:
        raise ConfigError(f"option decodeErrorTopic: {e}") from None
    if topic in topics or (pattern is not None and matching(pattern, [topic], ())):
        raise ConfigError(
            f"option decodeErrorTopic is {topic!r}, which is read too: bad rows would come in again; give it another"
        )


def _check(parsed: DecodeOptions) -> None:
    """Raise ConfigError for options that contradict each other, or lack another one."""
    has_schema = bool(parsed.schema or parsed.descriptor)
    has_registry = parsed.registry is not None
    refuse_if(
        (
            parsed.into.lower() == parsed.error_column.lower(),
            "options decodeInto and columnNameOfDecodeError name the same column: give it another name",
        ),
        (
            parsed.mode == FAILFAST and parsed.error_topic,
            "option decodeErrorTopic: with decodeMode FAILFAST no bad row is left to send; leave one out",
        ),
        (
            parsed.message and parsed.format != PROTOBUF,
            f"option decodeMessage is for protobuf, and decode is {parsed.format}: leave it out",
        ),
        (
            parsed.format == PROTOBUF and parsed.descriptor and not parsed.message,
            "option decodeMessage is missing: the full name of the message in decodeDescriptorFile",
        ),
        (
            not has_registry and parsed.format == AVRO and not has_schema,
            "option decodeSchema is missing: an Avro schema, or decodeSchemaFile, or schemaRegistry",
        ),
        (
            not has_registry and parsed.format == PROTOBUF and not has_schema,
            "option decodeDescriptorFile is missing: what `protoc -o FILE --include_imports` writes",
        ),
        (
            not has_registry and parsed.wire != PLAIN and parsed.format == AVRO,
            f"option decodeWireFormat is {parsed.wire}: Avro needs the writers' schemas; give schemaRegistry",
        ),
        (
            parsed.wire == ROCKETMQ and parsed.format == PROTOBUF,
            "option decodeWireFormat is rocketmq, whose registry has serializers for JSON and Avro, not for protobuf",
        ),
        (
            has_registry and parsed.wire == ROCKETMQ and parsed.format == AVRO and not parsed.subject,
            "option schemaRegistrySubject is missing: RocketMQ's schema registry finds a schema by its subject",
        ),
        (
            has_registry and parsed.wire == PLAIN and has_schema,
            "option schemaRegistry: bodies are plain and their schema is given, so it has no use; drop it",
        ),
        (
            has_registry and not has_schema and parsed.format != JSON and not parsed.subject,
            "option schemaRegistrySubject is missing: whose newest schema gives the columns",
        ),
    )


def _column(given: GivenOptions, name: str, default: str) -> str:
    text = given.text(name, default)
    if not re.fullmatch(r"[A-Za-z_]\w{0,99}", text):
        raise ConfigError(f"option {name} is {shown(text)!r}: a name of letters, digits and _ is needed")
    return text


def _schema(given: GivenOptions, format_: str) -> str:
    text, path = given.text("decodeSchema", ""), given.text("decodeSchemaFile", "")
    if text and path:
        raise ConfigError("options decodeSchema and decodeSchemaFile are both given: give one of them")
    if (text or path) and format_ == PROTOBUF:
        raise ConfigError("option decodeSchema is not for protobuf: give decodeDescriptorFile and decodeMessage")
    if not path:
        return text
    try:
        found = _read(path, "decodeSchemaFile").decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"option decodeSchemaFile: {shown(path)} is no UTF-8 text, so it is no schema") from None
    if not found:
        raise ConfigError(f"option decodeSchemaFile: {shown(path)} is empty")
    return found


def _descriptor(given: GivenOptions, format_: str) -> bytes:
    path = given.text("decodeDescriptorFile", "")
    if not path:
        return b""
    if format_ != PROTOBUF:
        raise ConfigError(f"option decodeDescriptorFile is for protobuf, and decode is {format_}: leave it out")
    found = _read(path, "decodeDescriptorFile")
    if not found:
        raise ConfigError(f"option decodeDescriptorFile: {shown(path)} is empty, so it is no descriptor file")
    return found


def _read(path: str, option: str) -> bytes:
    try:
        with open(path.removeprefix("file://"), "rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise ConfigError(f"option {option}: {shown(path)} cannot be read on the driver: {why}") from None
    if len(found) > FILE_BYTES_MAX:
        raise ConfigError(f"option {option}: {shown(path)} is longer than {FILE_BYTES_MAX >> 20} MiB")
    return found


def _registry(given: GivenOptions) -> RegistryOptions | None:
    named = given.several("schemaRegistry")
    # Not with the module: few reads have a registry.
    from rocketspark.tables.decode.registry import RegistryOptions, check_url

    urls = tuple(check_url(url, "schemaRegistry") for url in named)
    user, password = given.text("schemaRegistryUser", ""), given.secret("schemaRegistryPassword")
    token = given.secret("schemaRegistryToken")
    names = ("schemaRegistryCa", "schemaRegistryCert", "schemaRegistryKey")
    ca, cert, key = (given.text(name, "") for name in names)
    key_password = given.secret("schemaRegistryKeyPassword")
    if not urls:
        if any((user, password, token, ca, cert, key, key_password, given.text("schemaRegistrySubject", ""))):
            raise ConfigError("option schemaRegistry is missing: http://host:port of the registry")
        return None
    if bool(user) != bool(password):
        raise ConfigError(
            "options schemaRegistryUser and schemaRegistryPassword belong together: give both, or neither"
        )
    if not re.fullmatch("[!-~]*", token):
        raise ConfigError("option schemaRegistryToken: it holds a blank, or a character that no token has")
    if user and token:
        raise ConfigError("options schemaRegistryUser and schemaRegistryToken: give one of them")
    try:
        tls = ClientTls(ca=ca, cert=cert, key=key, key_password=key_password)
        if any(url.startswith("https") for url in urls):
            tls.context()
    except ConfigError as e:
        said = re.sub(r"\btls_(\w+)", lambda found: f"schemaRegistry{found[1].title().replace('_', '')}", str(e))
        raise ConfigError(f"option {said}") from None
    return RegistryOptions(
        urls=urls,
        user=user,
        password=password,
        token=token,
        tls=tls,
        timeout_ms=given.number("schemaRegistryTimeoutMs", 30_000, 1),
    )
