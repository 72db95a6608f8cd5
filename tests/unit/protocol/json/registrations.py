"""The deflated form of a registration, as Java's brokers write it."""

from __future__ import annotations

import zlib

import msgspec

from rocketspark.protocol.json.bodies import RegisterBrokerBody


def encode_compressed(body: RegisterBrokerBody) -> bytes:
    """Return the deflated form of a registration."""
    table = body.topic_config_serialize_wrapper
    parts = [lengthed(msgspec.json.encode(table.data_version)), len(table.topic_config_table).to_bytes(4, "big")]
    for c in table.topic_config_table.values():
        line = f"{c.topic_name} {c.read_queue_nums} {c.write_queue_nums} {c.perm} {c.topic_filter_type}"
        if c.attributes:
            line += " " + msgspec.json.encode(c.attributes).decode()
        parts.append(lengthed(line.encode()))
    parts.append(lengthed(msgspec.json.encode(body.filter_server_list)))
    mappings = table.topic_queue_mapping_info_map.values()
    parts.append(len(mappings).to_bytes(4, "big"))
    parts.extend(lengthed(msgspec.json.encode(mapping)) for mapping in mappings)
    return zlib.compress(b"".join(parts))


def lengthed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
