"""Sends rows with bad bodies to a topic. Rule: a task ends once its bad rows are stored; a task that runs again sends
them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from rocketspark.client import Producer
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message
from rocketspark.tables.client_access import Access
from rocketspark.tables.decode.bodies import PLACE, Decoded

# Properties of a bad row's message: its place, and why it is there.
TOPIC, BROKER, QUEUE_ID, QUEUE_OFFSET = "originTopic", "originBroker", "originQueueId", "originQueueOffset"
REASON = "decodeError"
# How long a body was that is cut, as no topic takes it whole: compressed ones may have been sent.
BODY_BYTES = "originBodyBytes"
BODY_BYTES_MAX = 4 << 20
NAMES = dict(zip(PLACE, (TOPIC, BROKER, QUEUE_ID, QUEUE_OFFSET), strict=True))
GROUP = "SPARK_DECODE_ERRORS"
REASON_CHARACTERS_MAX = 500


def send(
    decoded: Decoded, bodies: pa.Array, place: Mapping[str, pa.Array], topic: str, namesrv: str, access: Access
) -> None:
    """Send the rows of a batch whose bodies are bad to a topic. `place`: the columns that say where each message is.

    An empty body, which no topic takes, is sent as one blank, and a body that is too long is cut. Raises
    RocketSparkError naming the option.
    """
    if not decoded.bad:
        return
    producer = _producer(namesrv, access)
    for i in decoded.bad:
        properties = {NAMES[name]: str(column[i].as_py()) for name, column in place.items()}
        body = bodies[i].as_py()
        body = body.encode() if isinstance(body, str) else body or b""
        properties[REASON] = _clean(decoded.reasons[i] or "") or "unknown"
        if len(body) > BODY_BYTES_MAX:
            properties[BODY_BYTES] = str(len(body))
        try:
            producer.send(Message(topic=topic, body=body[:BODY_BYTES_MAX] or b" ", properties=properties))
        except RocketSparkError as e:
            raise RocketSparkError(f"option decodeErrorTopic: a bad row was not sent: {e}") from e


def _clean(reason: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in reason)[:REASON_CHARACTERS_MAX]


@lru_cache(maxsize=4)
def _producer(namesrv: str, access: Access) -> Producer:
    """Return the process's own producer, started; it ends with the process."""
    producer = Producer(namesrv, GROUP, **access.client_options())
    producer.start()
    return producer
