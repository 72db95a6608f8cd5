"""Who a call says it is from: the metadata `authorization` and what it signs. Pure.

Rule: DefaultAuthenticationContextBuilder and DefaultAuthenticationHandler, 5.5.0; the signature is HMAC-SHA1 of the
date's text, in hex of either case. A call without the field is from nobody.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, NamedTuple

AUTHORIZATION, DATE = "authorization", "x-mq-date-time"
UNREADABLE = "create authentication context error."


class Credentials(NamedTuple):
    """What a call shows. `username`: None if it names none; `signed`: the bytes that `signature` is for."""

    username: str | None
    signed: bytes = b""
    signature: bytes = b""

    def are_signed_with(self, secret: bytes) -> bool:
        """Tell whether the signature was made with a secret."""
        return hmac.compare_digest(hmac.digest(secret, self.signed, "sha1"), self.signature)


class NotReadable(Exception):
    """The field says nothing that can be checked; the message is what the client is told."""


def credentials_of(metadata: Mapping[str, Any]) -> Credentials:
    """Return what a call's metadata shows. Raises NotReadable."""
    text = metadata.get(AUTHORIZATION) or ""
    if not text:
        return Credentials(None)
    date = metadata.get(DATE) or ""
    if not isinstance(text, str) or not isinstance(date, str):
        raise NotReadable(UNREADABLE)
    if not date.strip():
        raise NotReadable("datetime is null.")
    _, space, items = text.partition(" ")
    if not space:
        raise NotReadable("authentication header is incorrect.")
    username: str | None = None
    signature = b""
    for item in items.split(","):
        name, equals, value = item.strip().partition("=")
        if not equals:
            raise NotReadable("authentication keyValues length is incorrect, actual length=1.")
        if name == "Credential":
            username = value.partition("/")[0]
        elif name == "Signature":
            try:
                # Java's decoder knows no spaces between.
                signature = bytes.fromhex(value) if " " not in value else b""
            except ValueError:
                raise NotReadable(UNREADABLE) from None
    return Credentials(username, date.encode("utf-8", "replace"), signature)
