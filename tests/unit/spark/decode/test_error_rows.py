"""Bad rows as messages: whatever a body and its reason hold, a topic takes them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rocketspark.errors import RocketSparkError, TransportError
from rocketspark.model import Message
from rocketspark.tables.client_access import Access
from rocketspark.tables.decode import error_rows
from rocketspark.tables.decode.bodies import PLACE

pytestmark = pytest.mark.shows(
    "mended: a `decodeErrorTopic` that is read itself, by name or pattern, went round for ever; a bad body "
    "over 4 MiB inflated ended the query"
)


class Bad:
    """A batch of bad rows, with their reasons."""

    def __init__(self, *reasons: str) -> None:
        self.reasons, self.bad = list(reasons), list(range(len(reasons)))


class Sends:
    """Keeps messages, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.messages = error, list[Message]()

    def send(self, message: Message) -> None:
        if self.error is not None:
            raise self.error
        self.messages.append(message)


def sent(monkeypatch: pytest.MonkeyPatch, producer: Sends, bodies: list[bytes], *reasons: str) -> list[Message]:
    monkeypatch.setattr(error_rows, "_producer", lambda *_: producer)
    place = {name: pa.array(["1"] * len(bodies)) for name in PLACE}
    batch: Any = Bad(*reasons)
    error_rows.send(batch, pa.array(bodies, pa.binary()), place, "bad", "127.0.0.1:9", Access())
    return producer.messages


def test_every_bad_row_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"x" * (error_rows.BODY_BYTES_MAX + 5)
    first, second = sent(monkeypatch, Sends(), [b"", long], "", "a\x01b\n" + "r" * 1000)
    assert (first.body, first.properties["decodeError"]) == (b" ", "unknown")
    assert second.body == long[: error_rows.BODY_BYTES_MAX]
    assert second.properties["originBodyBytes"] == str(len(long))
    assert second.properties["decodeError"].startswith("a?b?rrr")
    assert len(second.properties["decodeError"]) == error_rows.REASON_CHARACTERS_MAX


def test_a_topic_that_refuses_is_named_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RocketSparkError, match="option decodeErrorTopic: a bad row was not sent: no broker"):
        sent(monkeypatch, Sends(TransportError("no broker")), [b"x"], "why")
