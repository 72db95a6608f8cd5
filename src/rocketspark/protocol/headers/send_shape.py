"""Shapes of SEND_MESSAGE_V2 headers: a producer's headers differ in a few values, the rest need not be decoded again.

Rule: a header that fits a shape reads exactly as the decoder would read it; in doubt there is no shape.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import msgspec

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.codec import Request, request_decoder
from rocketspark.protocol.headers.messages import SendHeader
from rocketspark.protocol.message.properties import SYSTEM_NAMES

# Text that stands for itself within JSON: what may vary in a shape is made of it.
PLAIN_TEXT = bytes(c for c in range(0x20, 0x7F) if c not in b'"\\')
VARYING_MAX = 24

_decode = request_decoder(SendHeader).decode
_QUEUE_ID = re.compile(rb'"e":"(0|[1-9]\d{0,3})"')
_BORN_TIME = re.compile(rb'"g":"(0|[1-9]\d{0,17})"')
_OPAQUE = re.compile(rb'"opaque":(0|[1-9]\d{0,9})(?!\d)')
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

Text = tuple[int, int, bytes]


class SendShape:
    """One shape.

    `unpack(data, at)` cuts a header into texts, fixed and varying ones in turn; it is of this shape if every other
    text from the first on is as in `fixed`, and those at `queue_id`, `born_time` and `opaque` are numbers without a
    leading zero, those of properties plain text. `header`: of the first header. `names`: its properties' names.
    `stored`: the stored form of the properties around the values that vary, which are the texts at `values`; its last
    pair has an end.
    `keys` and `tags` are 0 where there are none.
    """

    __slots__ = (
        *("born_time", "fixed", "header", "keys", "names", "opaque", "others", "queue_id", "stored", "tags"),
        *("unique_id", "unpack", "values"),
    )

    def __init__(
        self, header: bytes, decoded: SendHeader, texts: list[Text], names: frozenset[bytes], stored: list[bytes]
    ) -> None:
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
    texts: list[Text] = []
    for name, pattern, value in (
        (b'"e"', _QUEUE_ID, h.queue_id),
        (b'"g"', _BORN_TIME, h.born_time_ms),
        (b'"opaque"', _OPAQUE, request.opaque),
    ):
        found = list(pattern.finditer(header))
        if len(found) != 1 or int(found[0][1]) != value:
            return None
        texts.append((*found[0].span(1), name))
    listed = list(_PROPERTIES.finditer(header))
    if len(listed) != 1:
        return None
    names, stored = [], [b""]
    at, end = listed[0].span(1)
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
    if b"UNIQ_KEY" not in names or len(set(names)) != len(names) or len(texts) > VARYING_MAX:
        return None
    return SendShape(header, h, texts, frozenset(names), stored) if _holds(request, header, texts) else None


def _holds(request: Request[SendHeader], header: bytes, texts: list[Text]) -> bool:
    """Try whether a header with every varying text changed reads as the first one with these values."""
    changed = bytearray(header)
    numbers: dict[bytes, int] = {}
    properties = request.ext.properties
    for begin, end, name in texts:
        text = header[begin:end]
        if name[0] == ord('"'):
            text = text.translate(_OTHER_DIGITS)
            numbers[name] = int(text)
        else:
            mark = f"{name.decode()}\x01"
            other = text.translate(_OTHER_TEXT)
            before = f"\x02{properties}\x02"
            after = before.replace(f"\x02{mark}{text.decode()}\x02", f"\x02{mark}{other.decode()}\x02")
            if after == before:
                return False
            properties, text = after[1:-1], other
        changed[begin:end] = text
    wanted = msgspec.structs.replace(
        request.ext, queue_id=numbers[b'"e"'], born_time_ms=numbers[b'"g"'], properties=properties
    )
    try:
        found = _decode(bytes(changed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return found == msgspec.structs.replace(request, ext=wanted, opaque=numbers[b'"opaque"'])
