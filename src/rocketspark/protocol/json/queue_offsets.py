"""Tables of offsets by queue, as RocketMQ writes them: {"offsetTable":{{queue}:offset}}. Rule: as for all its JSON."""

from __future__ import annotations

from collections.abc import Mapping

from rocketspark.model import MessageQueue
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import QueueBody


class OffsetBody(QueueBody):
    """An offset with its queue."""

    offset: int


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the file's text: RocketMQ's JSON, with queues as keys."""
    rows = [(QueueBody.of(queue), offset) for queue, offset in sorted(offsets.items())]
    return b'{"offsetTable":%b}' % java_json.encode_object_keys(rows)


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """The offsets of such a text; also the body of RESET_CONSUMER_CLIENT_OFFSET, of which the C++ client's form is a
    list. Raises ProtocolError.
    """
    table = java_json.decode(data, dict[str, dict[str, int] | list[OffsetBody]]).get("offsetTable", {})
    if isinstance(table, list):
        return {row.queue(): row.offset for row in table}
    return {java_json.decode(key.encode(), QueueBody).queue(): offset for key, offset in table.items()}
