"""Shapes of SEND_MESSAGE_V2 headers: a producer's headers differ in a few values, the rest need not be decoded again.

Rule: a header that fits a shape reads exactly as the decoder would read it; in doubt there is no shape.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec

from rocketspark.model import typed_json
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.codec import Request, request_decoder
from rocketspark.protocol.headers.messages import SendHeader
from rocketspark.protocol.message.properties import SYSTEM_NAMES
from rocketspark.protocol.request_signing import (
    ACCESS_KEY,
    SIGNATURE,
    SIGNED_TIME,
    UNSIGNED_QUERY_FIELD,
    signed_bytes,
    signed_names,
)

# Text that stands for itself within JSON: what may vary in a shape is made of it.
PLAIN_TEXT = bytes(c for c in range(0x20, 0x7F) if c not in b'"\\')
VARYING_MAX = 24

_decode = request_decoder(SendHeader).decode
_QUEUE_ID = re.compile(rb'"e":"(0|[1-9]\d{0,3})"')
_BORN_TIME = re.compile(rb'"g":"(0|[1-9]\d{0,17})"')
_OPAQUE = re.compile(rb'"opaque":(0|[1-9]\d{0,9})(?!\d)')
_SIGNATURE = re.compile(rb'"Signature":"([A-Za-z0-9+/=]{4,64})"')
_SIGNED_TIME = re.compile(rb'"SignedTime":"([1-9]\d{0,17})"')
_PROPERTIES = re.compile(rb'"i":"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\u000[12])+)"')
# Clients of 4.9 leave the end of the last pair out.
_PAIR = re.compile(rb"([^\\]+)\\u0001([^\\]+)(?:\\u0002|\Z)")
# Properties of the system whose values differ from message to message; those of applications may all do.
_VARYING_NAMES = frozenset({b"UNIQ_KEY", b"KEYS", b"TAGS", b"CORRELATION_ID", b"__SHARDINGKEY", b"BORN_TIMESTAMP"})
_SYSTEM_NAMES = frozenset(name.encode() for name in SYSTEM_NAMES)
# For the trial: other digits, none of them a leading zero, and other text.
_OTHER_DIGITS = bytes.maketrans(b"0123456789", b"1234567891")
_OTHER_TEXT = bytes(ord("y") if c == ord("x") else ord("x") for c in range(256))
_INT_MAX = 0x7FFFFFFF

# Where a text that varies begins and ends, and its name: of a property, or of a field, in quotation marks.
Text = tuple[int, int, bytes]


class _SignedHead(msgspec.Struct, rename={"ext": "extFields"}):
    ext: dict[str, str]
    language: str | int = "OTHER"
    version: int = 0


_decode_signed = typed_json.decoder(_SignedHead).decode


class SignedValues(NamedTuple):
    """What the signature of a header of this shape covers: `pieces`, of which every other one, from the second on,
    varies.

    `pick` takes those that vary from a header's texts. `signature` and `time`: which texts hold the signature and the
    time at which it was made; 0 for a header without one. `ext`, `language`, `version`: those of the header that the
    shape was learned from.
    """

    pieces: Sequence[bytes]
    pick: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    signature: int
    time: int
    ext: dict[str, str]
    language: str | int
    version: int

    def content(self, texts: tuple[bytes, ...]) -> bytes:
        """Return what the signature covers before the body, for a header that was cut into these texts."""
        pieces = list(self.pieces)
        pieces[1::2] = self.pick(texts)
        return b"".join(pieces)


class SendShape:
    """One shape of SEND_MESSAGE_V2 headers.

    `unpack(data, at)` cuts a header into texts, fixed and varying ones in turn. The header is of this shape if its
    fixed texts, from the first on, equal `fixed`, if the texts at `queue_id`, `born_time` and `opaque` are numbers
    without a leading zero, and if those of properties are plain text. `header`: the one that the shape was learned
    from; `names`: the names of its properties.

    `stored`: the stored form of the properties around the values that vary, which are the texts at `values`; its last
    pair has an end mark. `keys` and `tags`: which texts hold them, 0 where there are none. `signed`: None for a header
    that is not signed.
    """

    __slots__ = (
        *("born_time", "fixed", "header", "keys", "names", "opaque", "others", "queue_id", "stored", "tags"),
        *("signed", "unique_id", "unpack", "values"),
    )

    def __init__(
        self, header: bytes, decoded: SendHeader, texts: list[Text], names: frozenset[bytes], stored: list[bytes]
    ) -> None:
        self.signed: SignedValues | None = None
        self.header = decoded
        self.names = names
        self.stored = stored
        lengths, fixed, at = [], [], 0
        index: dict[bytes, int] = {}
        values: list[int] = []
        for begin, end, name in sorted(texts):
            lengths += [begin - at, end - begin]
            fixed.append(header[at:begin])
            index[name] = len(lengths) - 1
            if name[0] != ord('"'):
                values.append(len(lengths) - 1)
            at = end
        fixed.append(header[at:])
        lengths.append(len(header) - at)
        self.fixed = tuple(fixed)
        self.unpack: Callable[[bytes, int], tuple[bytes, ...]] = struct.Struct(
            "".join(f"{n}s" for n in lengths)
        ).unpack_from
        self.queue_id, self.born_time, self.opaque = index[b'"e"'], index[b'"g"'], index[b'"opaque"']
        self.unique_id, self.keys, self.tags = index[b"UNIQ_KEY"], index.get(b"KEYS", 0), index.get(b"TAGS", 0)
        self.values = slice(values[0], values[-1] + 1, 2)
        # Texts of properties without a check of their own.
        self.others = tuple(i for i in values if i not in (self.unique_id, self.tags))


def learn(header: bytes) -> SendShape | None:
    """Return the shape of this JSON header; None if headers like it have to be decoded one by one."""
    try:
        request = _decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    h = request.ext
    if request.code != RequestCode.SEND_MESSAGE_V2 or request.flag or h.batch:
        return None
    if not all(-1 <= n <= _INT_MAX for n in (h.flag, h.sys_flag, h.reconsume_times)):
        return None
    texts = _texts_of_fields(request, header)
    listed = list(_PROPERTIES.finditer(header))
    if texts is None or len(listed) != 1:
        return None
    properties = listed[0].span(1)
    found = _read_properties(header, properties, texts)
    if found is None or len(texts) > VARYING_MAX:
        return None
    changed = _changed(request, header, texts)
    if changed is None:
        return None
    names, stored = found
    shape = SendShape(header, h, texts, frozenset(names), stored)
    shape.signed = _signed(header, changed, shape, properties, texts)
    return shape


def _texts_of_fields(request: Request[SendHeader], header: bytes) -> list[Text] | None:
    """Return where the fields that vary stand in a header; None if one of them is not there once, as it was decoded."""
    texts: list[Text] = []
    for name, pattern in ((b'"Signature"', _SIGNATURE), (b'"SignedTime"', _SIGNED_TIME)):
        texts += [(*found.span(1), name) for found in pattern.finditer(header)]
    if len(texts) > 2 or (len(texts) == 2 and texts[0][2] == texts[1][2]):
        return None
    for name, pattern, value in (
        (b'"e"', _QUEUE_ID, request.ext.queue_id),
        (b'"g"', _BORN_TIME, request.ext.born_time_ms),
        (b'"opaque"', _OPAQUE, request.opaque),
    ):
        found = list(pattern.finditer(header))
        if len(found) != 1 or int(found[0][1]) != value:
            return None
        texts.append((*found[0].span(1), name))
    return texts


def _read_properties(header: bytes, span: tuple[int, int], texts: list[Text]) -> tuple[list[bytes], list[bytes]] | None:
    """Return the names of the properties and their stored text around those that vary, which are added to `texts`.

    None if they are not all read, one is there twice, or there is no unique id.
    """
    names, stored = [], [b""]
    at, end = span
    while at < end:
        pair = _PAIR.match(header, at, end)
        if pair is None:
            return None
        name = pair[1]
        names.append(name)
        stored[-1] += name + b"\x01"
        if name in _VARYING_NAMES or name not in _SYSTEM_NAMES:
            texts.append((*pair.span(2), name))
            stored.append(b"\x02")
        else:
            stored[-1] += pair[2] + b"\x02"
        at = pair.end()
    return (names, stored) if b"UNIQ_KEY" in names and len(set(names)) == len(names) else None


def _signed(
    header: bytes, changed: bytes, shape: SendShape, properties: tuple[int, int], texts: list[Text]
) -> SignedValues | None:
    """Return what is signed of headers of this shape; None if they are not signed, or are to be looked at one by one.

    It is tried on the header with every varying text changed. `properties`: where their text begins and ends.
    """
    try:
        head, other = _decode_signed(header), _decode_signed(changed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if ACCESS_KEY not in head.ext or SIGNATURE not in head.ext or UNSIGNED_QUERY_FIELD in head.ext:
        return None
    # The texts that vary lie at every other place.
    places = {name: 2 * i + 1 for i, (_, _, name) in enumerate(sorted(texts))}
    signature = places.get(f'"{SIGNATURE}"'.encode())
    if signature is None:
        # It does not look like one.
        return None
    begin, end = properties
    of_properties = [text for text in sorted(texts) if begin <= text[0] < end]
    pieces, picked = [b""], []
    for field in signed_names(head.ext):
        place = places.get(f'"{field}"'.encode())
        if place is not None:
            picked.append(place)
            pieces += (b"", b"")
        elif field == "i":
            at = begin
            for text_begin, text_end, name in of_properties:
                pieces[-1] += _unescaped(header[at:text_begin])
                picked.append(places[name])
                pieces += (b"", b"")
                at = text_end
            pieces[-1] += _unescaped(header[at:end])
        else:
            pieces[-1] += head.ext[field].encode("utf-8", "replace")
    time = places.get(f'"{SIGNED_TIME}"'.encode(), 0)
    if (time == 0) is (SIGNED_TIME in head.ext):
        return None
    signed = SignedValues(*(pieces, itemgetter(*picked), signature, time), head.ext, head.language, head.version)
    is_right = all(
        signed.content(shape.unpack(each, 0)) == signed_bytes(read.ext, b"", read.version)
        for each, read in ((header, head), (changed, other))
    )
    return signed if is_right else None


def _unescaped(text: bytes) -> bytes:
    return text.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")


def _changed(request: Request[SendHeader], header: bytes, texts: list[Text]) -> bytes | None:
    """Return the header with every varying text changed, if it reads as the first one with these values."""
    changed = bytearray(header)
    numbers: dict[bytes, int] = {}
    properties = request.ext.properties
    for begin, end, name in texts:
        text = header[begin:end]
        if name == b'"Signature"':
            text = text.translate(_OTHER_TEXT)
        elif name[0] == ord('"'):
            text = text.translate(_OTHER_DIGITS)
            numbers[name] = int(text)
        else:
            mark = f"{name.decode()}\x01"
            other = text.translate(_OTHER_TEXT)
            before = f"\x02{properties}\x02"
            after = before.replace(f"\x02{mark}{text.decode()}\x02", f"\x02{mark}{other.decode()}\x02")
            if after == before:
                return None
            properties, text = after[1:-1], other
        changed[begin:end] = text
    wanted = msgspec.structs.replace(
        request.ext, queue_id=numbers[b'"e"'], born_time_ms=numbers[b'"g"'], properties=properties
    )
    try:
        found = _decode(bytes(changed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    holds = found == msgspec.structs.replace(request, ext=wanted, opaque=numbers[b'"opaque"'])
    return bytes(changed) if holds else None
