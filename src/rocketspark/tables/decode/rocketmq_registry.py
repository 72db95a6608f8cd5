"""RocketMQ's own schema registry (rocketmq-schema-registry), and the wire format of its serializers.

A schema is asked for by its subject, named after the topic, and its record id. Its serializers write that id in eight
bytes before JSON, and before Avro as Avro's own bytes, so with their length in front. Errors have statuses of five
digits, as of 40402 for what is not there.

Rule: nothing here was held to a running server, as none can be had by a package registry: its source says so.
"""

from __future__ import annotations

import http.client
import json
import re
from functools import lru_cache
from urllib.parse import quote

from rocketspark.errors import ConfigError, RegistryRefused
from rocketspark.model.text import shown
from rocketspark.tables.decode.options import AVRO, ID_BYTES
from rocketspark.tables.decode.registry import (
    ANSWER_BYTES_MAX,
    Busy,
    Framed,
    RegisteredSchema,
    Registry,
    RegistryOptions,
    check_status,
    get,
    unknown,
)

_ROOT = "/schema-registry/v1"
# The length of the id as Avro writes it.
_AVRO_ID_LENGTH = 2 * ID_BYTES


class RocketMqRegistry(Registry):
    """A client of RocketMQ's registry, used like that of others."""

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of a record id, as of the subject that the options name. Raises as `Registry.by_id`."""
        subject = self._options.subject
        path = f"{place_of(subject)}/recordId/{schema_id}/schema"
        return self._kept(path, f"schema record {schema_id} of subject {shown(subject)}", self._allowance)

    def by_version(self, subject: str, version: int) -> RegisteredSchema:
        """Return one version of a subject's schema. Raises as `Registry.by_id`."""
        path = f"{place_of(subject)}/schema/versions/{version}"
        return self._kept(path, f"version {version} of subject {shown(subject)}")

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the schema that a subject is bound to, its newest; asked each time. Raises as `Registry.by_id`."""
        return self._ask(f"{place_of(subject)}/schema", f"subject {shown(subject)}")

    def _fetch(self, url: str, path: str, name: str, timeout_s: float) -> RegisteredSchema:
        try:
            status, body = get(url, path, self._options, timeout_s)
        except http.client.BadStatusLine as e:
            found = re.match(r"HTTP/1\.\d ([1-5]\d\d)\d\d(\s|$)", str(e.args[0]))
            if found is None:
                raise
            status, body = int(found[1]), b""
            if status == 404:
                raise unknown(url, name) from None
            if status >= 500:
                raise Busy(f"it answers {str(e.args[0]).split()[1]}") from None
        check_status(status, url, "RocketMQ's schema registry")
        return _parse(status, body, name=name, url=url)


@lru_cache(maxsize=16)
def registry_of(options: RegistryOptions) -> Registry:
    """Return the client of a registry, RocketMQ's where the options name a subject, one for the whole process, with the
    schemas that it has got.
    """
    return RocketMqRegistry(options) if options.subject else Registry(options)


def _parse(status: int, body: bytes, *, name: str, url: str) -> RegisteredSchema:
    try:
        if status != 200 or len(body) > ANSWER_BYTES_MAX:
            raise ValueError(status)
        found = json.loads(body)
        text, kind, number = found["idl"], str(found.get("type") or "AVRO").upper(), found["recordId"]
        if not isinstance(text, str) or type(number) is not int:
            raise TypeError(text)
        return RegisteredSchema(kind, text, (), number)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RegistryRefused(
            f"schema registry {url}: its answer about {name} ({status}) is none of RocketMQ's schema registry; check"
            " the address, and decodeWireFormat"
        ) from None


def place_of(subject: str) -> str:
    """Return where a registry has a subject, "name" or "cluster/tenant/name". Raises ConfigError."""
    parts = subject.split("/")
    if len(parts) not in (1, 3) or not all(parts):
        raise ConfigError(
            f"option schemaRegistrySubject is {shown(subject)!r}: a name, or cluster/tenant/name, is needed"
        )
    *where, name = (quote(part, safe="") for part in parts)
    above = f"/cluster/{where[0]}/tenant/{where[1]}" if where else ""
    return f"{_ROOT}{above}/subject/{name}"


def frame_of(body: bytes, format_: str) -> Framed:
    """Read the record id before a body of JSON or Avro. Raises ValueError if there is none."""
    start = ID_BYTES + (format_ == AVRO)
    if len(body) < start:
        raise ValueError(f"{len(body)} bytes are too short for a schema's record id")
    if format_ == AVRO and body[0] != _AVRO_ID_LENGTH:
        raise ValueError(
            f"it begins with {body[0]}, not with {_AVRO_ID_LENGTH}, the length of a schema's record id: the body is not"
            " in the wire format of RocketMQ's schema registry"
        )
    if format_ != AVRO and body[:1] in (b"{", b"["):
        raise ValueError("it begins as JSON does, not with a schema's record id: is decodeWireFormat plain?")
    return Framed(int.from_bytes(body[start - ID_BYTES : start], "big", signed=True), start)
