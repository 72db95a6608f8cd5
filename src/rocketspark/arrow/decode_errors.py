"""Errors that a decoder finds in records. Rule: the reader decides what to do: by default a spoiled body raises."""

from __future__ import annotations

from rocketspark.errors import RecordError


class DecodeFindings:
    """Receives the findings; this one raises an error for a spoiled body and ignores missing records."""

    def missing(self, first: int, end: int) -> None:
        """Take note that no record of the queue offsets [first, end) came, though all of the range were asked for."""

    def spoiled(self, offset: int, why: str, stored: bytes | None) -> bytes | None:
        """Return the bytes in place of a message's body that cannot be read.

        `stored`: its bytes as they are, None where a batch of messages is one body: then the whole batch is lost.
        """
        raise RecordError(f"the message at queue offset {offset}: {why}")


STRICT = DecodeFindings()
