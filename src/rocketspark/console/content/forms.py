"""Forms that browsers post, read and bounded.

Rule: who has not logged in may send a small form alone, and all that are on their way take so much memory together. A
form is decoded a run of escapes at a time, so that one full of them takes no more than another.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocketspark.errors import UsageError
from rocketspark.model.text import shown

FIELDS_MAX = 2000
# What a form may have that comes before a login, and what each has without counting.
SMALL_BYTES_MAX = 64 << 10
# All others are names, numbers and lists, which are looked at piece by piece.
LONG_FIELDS = frozenset(("body", "json"))
_no_escape = re.compile(rb"%(?![0-9A-Fa-f]{2})").search
# Of all larger ones that are on their way.
BYTES_MAX = 64 << 20


class Forms:
    """Reads forms, and counts the bytes of those that are on their way. `held`: these bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.held = 0

    @asynccontextmanager
    async def read(self, pieces: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes]:
        """Give the bytes of a form, which count while the block runs. Raises UsageError if they are more than may be,
        or those of all forms are.
        """
        body, counted = bytearray(), 0
        try:
            async for piece in pieces:
                body += piece
                if len(body) > bytes_max:
                    raise UsageError(f"a form of more than {bytes_max} bytes")
                if (more := len(body) - SMALL_BYTES_MAX - counted) > 0:
                    if self.held + more > self._bytes_max:
                        raise UsageError("as many large forms are on their way as may be at a time: send it again")
                    self.held, counted = self.held + more, counted + more
            yield bytes(body)
        finally:
            self.held -= counted


def fields_of(body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raises UsageError."""
    if body.count(b"&") >= FIELDS_MAX:
        raise UsageError(f"a form of more than {FIELDS_MAX} fields")
    if _no_escape(body):
        raise UsageError("a form with a % that begins no escape")
    pairs = (piece.partition(b"=") for piece in body.split(b"&") if piece)
    try:
        fields = {_text(name): _text(value) for name, _, value in pairs}
    except UnicodeDecodeError:
        raise UsageError("a form that is no UTF-8") from None
    for name, value in fields.items():
        if len(name) + len(value) > SMALL_BYTES_MAX and name not in LONG_FIELDS:
            raise UsageError(f"field {shown(name)} has more than {SMALL_BYTES_MAX} characters")
    return fields


def _text(written: bytes) -> str:
    """Return the text of a field, in which "+" is a space and %20 too. As a mail's, which has = in place of %, it is
    decoded in one call: four million escapes one by one take seconds.
    """
    return binascii.a2b_qp(written.replace(b"=", b"=3D").replace(b"+", b" ").replace(b"%", b"=")).decode()
