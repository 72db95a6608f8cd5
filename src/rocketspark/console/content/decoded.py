"""A body decoded by a schema that somebody gives: Avro or Protobuf, as option `decode` of reads does it.

Rule: only the schema's own text counts; nothing here opens a file or asks a registry.
"""

from __future__ import annotations

import base64
from datetime import date, datetime, time
from typing import Any

from rocketspark.console.content.shown_body import JSON_BYTES_MAX, View, laid_out
from rocketspark.errors import ConfigError, UsageError
from rocketspark.model.text import shown

KINDS = ("avro", "protobuf")
SCHEMA_CHARACTERS_MAX = 32_768
NEEDED = "decoding takes the extras arrow and schemas: pip install 'rocketspark[arrow,schemas]'"
# What schema registries put before a body: a zero and the schema's id.
PREFIX_BYTES = 5


def decoded(body: bytes, kind: str, schema: str, message: str = "") -> View:
    """Return a body as the JSON of what it holds.

    `kind`: avro, by a schema in JSON, or protobuf, by the text of a .proto file, of which `message` is the message's
    name (by default the first). Raises UsageError for a schema that is none and a body that is not of it, ConfigError
    if an extra is missing.
    """
    if kind not in KINDS:
        raise UsageError(f"a body is decoded as {' or '.join(KINDS)}, not {shown(kind)}")
    if len(body) > JSON_BYTES_MAX:
        # A byte may be a value, which takes a hundred in memory.
        raise UsageError(f"the body has more than {JSON_BYTES_MAX} bytes: save it, or read it by option decode")
    if not schema.strip() or len(schema) > SCHEMA_CHARACTERS_MAX:
        raise UsageError(f"give the schema, in at most {SCHEMA_CHARACTERS_MAX} characters")
    try:
        from rocketspark.tables.decode.bodies import BodyDecoder, resolve
        from rocketspark.tables.decode.options import DecodeOptions
        from rocketspark.tables.decode.protobuf_bodies import compiled_texts
    except ModuleNotFoundError:
        raise ConfigError(NEEDED) from None
    try:
        if kind == "avro":
            options = DecodeOptions(format=kind, schema=schema)
        else:
            options = DecodeOptions(format=kind, descriptor=compiled_texts([("", schema)]), message=message)
        decoder = BodyDecoder(resolve(options))
    except ValueError as e:
        raise UsageError(f"the schema cannot be used: {shown(str(e))}") from None
    values, (reason,) = decoder.decode([body])
    if reason is not None and body[:1] == b"\0" and len(body) > PREFIX_BYTES:
        values, (again,) = decoder.decode([body[PREFIX_BYTES:]])
        reason = reason if again is not None else None
    if reason is not None:
        raise UsageError(f"the body is not of this schema: {shown(reason)}")
    (value,) = values.to_pylist(maps_as_pydicts="lossy")
    view = laid_out(value, kind, _plain)
    if view is None:
        raise UsageError("what the body holds is too long to be shown: save it, or read it by option decode")
    return view


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)
