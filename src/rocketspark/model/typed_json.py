"""Values from JSON, by type. Rule: everything of ours that is decoded to a type goes through here.

msgspec learns about a type when it is first used, and a thread that uses it while another one's use is still under way
crashes the process. So a type is learned here, by one thread at a time, before anything is decoded to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.RLock()
_decoders: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}

if hasattr(os, "register_at_fork"):
    # A child never begins with a type that is half learned.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def decoder(kind: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type; without `strict` it takes "3" for 3."""
    found = _decoders.get((kind, strict))
    if found is None:
        with _lock:
            found = _decoders[kind, strict] = msgspec.json.Decoder(kind, strict=strict)
    return found


def decode(data: bytes | bytearray | memoryview | str, kind: type[T], *, strict: bool = True) -> T:
    """Return JSON as a value of a type. Raises msgspec.DecodeError."""
    return decoder(kind, strict=strict).decode(data)


def convert(values: Any, kind: type[T], *, strict: bool = True) -> T:
    """Return plain values as a value of a type. Raises msgspec.ValidationError."""
    decoder(kind, strict=strict)
    return msgspec.convert(values, kind, strict=strict)


class OwnType:
    """A type that was made while the process runs. Nothing of it is kept here once this object is gone."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        with _lock:
            self._decoder = msgspec.json.Decoder(kind)
        self.decode = self._decoder.decode

    def convert(self, values: Any) -> Any:
        """Return plain values as a value of the type. Raises msgspec.ValidationError."""
        return msgspec.convert(values, self._kind)


def plain_decoder(number: Callable[[str], Any]) -> msgspec.json.Decoder[Any]:
    """Return a decoder to plain values. `number` makes the value of a number with a fraction or an exponent from its
    text.
    """
    return msgspec.json.Decoder(float_hook=number)
