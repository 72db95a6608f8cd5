"""Typed ext fields: the base of all headers, and how they become text and come back.

A header is a Struct. On the wire its fields have their names in camel case, or the `name` that stands at the field.
`request_decoder` makes the decoder that reads a whole JSON header in one pass; `to_ext` and `from_ext` turn a header
into text fields and back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from rocketspark.errors import FrameError
from rocketspark.model import typed_json
from rocketspark.protocol.frames import LANGUAGES, Frame, language_name

H = TypeVar("H", bound="Header")


# Numbers of ext fields are Java's longs, or its ints: no header holds more digits, nor does what is kept of one.
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of all typed headers. Ext fields that a header does not name are ignored."""


class NoHeader(Header, kw_only=True, gc=False):
    """A header without ext fields."""


class Request(msgspec.Struct, Generic[H], rename={"ext": "extFields"}, gc=False):
    """A request's whole JSON header with its ext fields typed.

    `language` is a name, or a number as some clients write it; `version` the ordinal of the sender's release.
    """

    code: int
    ext: H
    opaque: int = 0
    flag: int = 0
    language: str | int = "OTHER"
    version: int = 0
    remark: str | None = None


class ReplyHead(msgspec.Struct, rename={"ext": "extFields"}, gc=False):
    """A reply's JSON header, its ext fields left undecoded."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str | int = "OTHER"
    version: int = 0
    ext: msgspec.Raw = msgspec.Raw(b"{}")


@lru_cache(maxsize=256)
def request_decoder(kind: type[H]) -> msgspec.json.Decoder[Request[H]]:
    """Return the decoder of whole JSON headers whose ext fields are a `kind`; texts become values of its types."""
    if any(f.required for f in msgspec.structs.fields(kind)):
        return typed_json.decoder(Request[kind], strict=False)  # type: ignore[valid-type]
    # Clients leave extFields out when there is none.
    lenient: Any = msgspec.defstruct(
        f"Request_{kind.__name__}",
        [
            ("code", int),
            ("ext", kind, msgspec.field(default_factory=kind)),
            ("opaque", int, 0),
            ("flag", int, 0),
            ("language", str | int, "OTHER"),
            ("version", int, 0),
        ],
        rename={"ext": "extFields"},
        gc=False,
    )
    made: msgspec.json.Decoder[Request[H]] = typed_json.decoder(lenient, strict=False)
    return made


head_decoder = typed_json.decoder(ReplyHead, strict=False)


@lru_cache(maxsize=256)
def _ext_decoder(kind: type[H]) -> msgspec.json.Decoder[H]:
    return typed_json.decoder(kind, strict=False)


def decode_ext(kind: type[H], ext: bytes | msgspec.Raw) -> H:
    """Return a header from the JSON text of its ext fields. Raises FrameError naming the field that is wrong."""
    try:
        header: H = _ext_decoder(kind).decode(ext)
        return header
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise FrameError(f"{kind.__name__}: {e}") from e


def from_ext(kind: type[H], ext: dict[str, str] | None) -> H:
    """Return a header from text fields. Raises FrameError naming the field that is missing or wrong."""
    try:
        return typed_json.convert(ext or {}, kind, strict=False)
    except msgspec.ValidationError as e:
        raise FrameError(f"{kind.__name__}: {e}") from e


def from_frame(kind: type[H], frame: Frame) -> Request[H]:
    """Return a typed request from a frame that was read the general way (a binary header)."""
    return Request(
        frame.code, from_ext(kind, frame.ext), frame.opaque, frame.flag, frame.language, frame.version, frame.remark
    )


@lru_cache(maxsize=256)
def _fields(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, f.encode_name) for f in msgspec.structs.fields(kind))


def to_ext(header: Header) -> dict[str, str]:
    """Return the header as text fields; None is left out, booleans are "true" and "false"."""
    ext = {}
    for name, wire_name in _fields(type(header)):
        value: Any = getattr(header, name)
        if value is None:
            continue
        if value is True:
            ext[wire_name] = "true"
        elif value is False:
            ext[wire_name] = "false"
        else:
            ext[wire_name] = value if type(value) is str else str(value)
    return ext


def to_ext_of(header: Header, *varying: str) -> Callable[..., dict[str, str]]:
    """Return a function that does what `to_ext` does for headers like this one, which differ only in the numbers of
    some fields.

    `varying`: the names of these fields; the function is called with their numbers in this order.
    """
    same = to_ext(header)
    wire_names = dict(_fields(type(header)))
    keys = [wire_names[name] for name in varying]

    def ext(*values: int) -> dict[str, str]:
        made = same.copy()
        for key, value in zip(keys, values, strict=True):
            made[key] = str(value)
        return made

    return ext


def sender_language(language: str | int) -> str:
    """Return the name of a sender's language, however its header wrote it; OTHER for one that RocketMQ does not know:
    it is kept with the sender and labels figures.
    """
    if isinstance(language, str):
        return language if language in LANGUAGES else "OTHER"
    return language_name(language)
