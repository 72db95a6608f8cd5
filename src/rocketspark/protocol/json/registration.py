"""The deflated form of a broker's registration (compressed=true): parts with a length before each."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from itertools import islice

import msgspec

from rocketspark.errors import ProtocolError
from rocketspark.model import typed_json
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import (
    Body,
    DataVersion,
    QueueMapping,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)

# Some 300,000 topics; what is sent plain is bounded by a frame's size.
INFLATED_BYTES_MAX = 32 << 20
TOPICS_MAX = 200_000


# Topics are read in pieces of so many bytes, some 100 of them.
_PIECE_BYTES = 16 << 10
# A place that looks like the end of a topic may lie within one; so many are tried.
_PLACES_MAX = 16
_TOPIC_ENDS = re.compile(rb'\},"[^"]*":\{')


class _Raw(TopicConfigTable):
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]


class _RawBody(Body):
    topic_config_serialize_wrapper: _Raw = msgspec.field(default_factory=_Raw)
    filter_server_list: list[str] = []


def decode_plain(body: bytes) -> RegisterBrokerBody:
    """Return the registration in a body that is not deflated. Raises ProtocolError.

    Its topics are decoded in pieces, so that other threads get their turns: 60,000 of them in one call would stop all
    threads for 60 ms, so they are stopped for 6.
    """
    try:
        raw = typed_json.decode(body, _RawBody, strict=False)
        table = raw.topic_config_serialize_wrapper
        topics = _topics(bytes(table.topic_config_table))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return java_json.decode(body, RegisterBrokerBody)
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            **msgspec.structs.asdict(table) | {"topic_config_table": topics}
        ),
        filter_server_list=raw.filter_server_list,
    )


def _topics(text: bytes) -> dict[str, TopicConfig]:
    """Return the topics of a JSON object. Raises msgspec.DecodeError."""
    decode = typed_json.decoder(dict[str, TopicConfig], strict=False).decode
    topics: dict[str, TopicConfig] = {}
    at = 1
    while True:
        for found in islice(_TOPIC_ENDS.finditer(text, at + _PIECE_BYTES), _PLACES_MAX):
            end = found.start() + 1
            try:
                # JSON to its end, so whole topics: within one the braces do not match.
                topics |= decode(b"{%b}" % text[at:end])
            except msgspec.DecodeError:
                continue
            at = end + 1
            break
        else:
            return topics | decode(b"{" + text[at:])


def decode_compressed(body: bytes) -> RegisterBrokerBody:
    """Return the registration in a deflated body. Raises ProtocolError if it does not inflate or its parts do not
    fit.
    """
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as e:
        raise ProtocolError(f"the registration does not inflate: {e}") from e
    if inflater.unconsumed_tail:
        raise ProtocolError(f"the registration inflates to over {INFLATED_BYTES_MAX >> 20} MiB")
    version, at = _part(data, 0)
    count, at = _number(data, at)
    if count > TOPICS_MAX:
        raise ProtocolError(f"{count} topics in one registration: {TOPICS_MAX} are taken, set enableSplitRegistration")
    topics = {}
    for _ in range(count):
        line, at = _part(data, at)
        config = _topic(line.decode("utf-8", "replace"))
        topics[config.topic_name] = config
    filters, at = _part(data, at)
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            topic_config_table=topics,
            data_version=java_json.decode(version, DataVersion),
            topic_queue_mapping_info_map=_mappings(data, at),
        ),
        filter_server_list=java_json.decode(filters, list[str]) if filters else [],
    )


def _mappings(data: bytes, at: int) -> dict[str, QueueMapping]:
    """Return the mappings of static topics; brokers before 5.0 write none, not even their count."""
    mappings: dict[str, QueueMapping] = {}
    count, at = _number(data, at) if at < len(data) else (0, at)
    for _ in range(count):
        text, at = _part(data, at)
        mapping = java_json.decode(text, QueueMapping)
        mappings[mapping.topic] = mapping
    return mappings


def _topic(line: str) -> TopicConfig:
    fields = line.split(" ", 5)
    try:
        return TopicConfig(
            topic_name=fields[0],
            read_queue_nums=_int(fields[1]),
            write_queue_nums=_int(fields[2]),
            perm=_int(fields[3]),
            topic_filter_type=fields[4],
            attributes=java_json.decode(fields[5].encode(), dict[str, str]) if len(fields) > 5 else {},
        )
    except (IndexError, ValueError) as e:
        raise ProtocolError(f"the topic line {shown(line)!r} of a registration cannot be read") from e


@lru_cache(1024)
def _int(text: str) -> int:
    number = whole_number(text, low=-INT_MAX - 1, high=INT_MAX)
    if number is None:
        raise ValueError
    return number


def _number(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise ProtocolError(f"the registration ends at byte {len(data)}, a number is due at {at}")
    return int.from_bytes(data[at : at + 4], "big"), at + 4


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _number(data, at)
    if at + length > len(data):
        raise ProtocolError(f"the registration ends at byte {len(data)}, a part of {length} bytes is due at {at}")
    return data[at : at + length], at + length
