"""Frames: `length, header length and serialization, header, body`, in both header forms, as values.

Rule: nothing here does I/O; a frame that breaks the rules raises FrameError and names which rule.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from rocketspark.errors import FrameError
from rocketspark.model import typed_json

JSON = 0
BINARY = 1
FRAME_BYTES_MAX = 16 << 20
VERSION = 513  # RocketMQ 5.5.0
LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER"),
    *("HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
RESPONSE_FLAG = 1
_INT = struct.Struct(">I")
_LENGTHS = struct.Struct(">II")
ONEWAY_FLAG = 2
_CHUNK_BYTES_MIN = 4096
# The longest properties, every character of them escaped, take a fifth of it.
HEADER_BYTES_MAX = 1 << 20
# No header of RocketMQ's nests; how deep a decoder goes before it gives up differs between versions of Python.
NESTING_MAX = 100
# RocketMQ's longest header has some 30.
FIELDS_MAX = 1024
# More brackets than that are in no header either: they are looked at one by one.
BRACKETS_MAX = 16 * FIELDS_MAX
_OPENED = frozenset(b"[{")
_NO_BRACKETS = bytes(frozenset(range(256)) - frozenset(b"[]{}"))

# The order in which RocketMQ's JSON encoder writes the header's keys.
_KEY_ORDER = (
    *("code", "extFields", "flag", "language", "opaque", "remark"),
    *("serializeTypeCurrentRPC", "version"),
)


class Frame(msgspec.Struct, kw_only=True):
    """A frame with its ext fields as plain text.

    `language` is a name of LANGUAGES, `version` the ordinal of the sender's RocketMQ version; `key_order` is
    the order of a JSON header's keys; `repeated_ext` holds a binary header's ext pairs if a name stands there twice,
    as client 4.9.7 writes it (the last one counts).
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    serialization: int = JSON
    key_order: tuple[str, ...] = _KEY_ORDER
    repeated_ext: tuple[tuple[str, str], ...] = ()


def encode(frame: Frame) -> bytes:
    """Return the whole frame as bytes, length included. Raises FrameError if it is over 16 MiB."""
    header = encode_header(frame)
    return join(header, frame.body, frame.serialization)


def join(header: bytes, body: bytes | memoryview = b"", serialization: int = JSON) -> bytes:
    """Put length, header and body together. Raises FrameError if the frame is over 16 MiB."""
    total = 4 + len(header) + len(body)
    if total > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {total} bytes is over the limit of {FRAME_BYTES_MAX}; send smaller messages")
    return b"".join((_LENGTHS.pack(total, serialization << 24 | len(header)), header, body))


def encode_header(frame: Frame) -> bytes:
    """Return the header bytes alone, in the frame's serialization."""
    if frame.serialization == BINARY:
        return _encode_binary(frame)
    values: dict[str, Any] = {
        "code": frame.code,
        "extFields": frame.ext,
        "flag": frame.flag,
        "language": frame.language,
        "opaque": frame.opaque,
        "remark": frame.remark,
        "serializeTypeCurrentRPC": "JSON",
        "version": frame.version,
    }
    order = frame.key_order
    return msgspec.json.encode({k: values[k] for k in order if values[k] is not None})


def _encode_binary(frame: Frame) -> bytes:
    if not -32768 <= frame.code <= 32767:
        raise FrameError(f"code {frame.code} does not fit a binary header; use a JSON header")
    remark = (frame.remark or "").encode()
    ext = b"".join(
        part
        for key, value in frame.repeated_ext or (frame.ext or {}).items()
        for k, v in ((key.encode(), value.encode()),)
        for part in (len(k).to_bytes(2, "big"), k, len(v).to_bytes(4, "big"), v)
    )
    language = LANGUAGES.index(frame.language) if frame.language in LANGUAGES else LANGUAGES.index("OTHER")
    head = struct.pack(">hbhiii", frame.code, language, frame.version, frame.opaque, frame.flag, len(remark))
    return b"".join((head, remark, len(ext).to_bytes(4, "big"), ext))


def decode(data: bytes | memoryview) -> Frame:
    """Return the frame that `data` holds, its 4 length bytes included. Raises FrameError."""
    view = memoryview(data)
    if len(view) < 8:
        raise FrameError(f"a frame of {len(view)} bytes is cut off")
    total = int.from_bytes(view[:4], "big")
    check_length(total)
    if total + 4 != len(view):
        raise FrameError(f"a frame states {total} bytes, {len(view) - 4} follow")
    mark = int.from_bytes(view[4:8], "big")
    header_end = 8 + (mark & 0xFFFFFF)
    if header_end > len(view):
        raise FrameError(f"a header of {mark & 0xFFFFFF} bytes reaches beyond its frame of {total}")
    frame = decode_header(bytes(view[8:header_end]), mark >> 24)
    frame.body = bytes(view[header_end:])
    return frame


def check_length(total: int) -> None:
    """Raise FrameError unless a frame's stated length is possible (4 bytes to 16 MiB)."""
    if not 4 <= total <= FRAME_BYTES_MAX:
        raise FrameError(f"a frame states {total} bytes; 4 to {FRAME_BYTES_MAX} are allowed")


def check_header(header: bytes) -> None:
    """Raise FrameError for a JSON header of more than 1 MiB, nested deeper than 100 levels, or of over 1024 fields."""
    if len(header) > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {len(header)} bytes is over the limit of {HEADER_BYTES_MAX}")
    fields, opened = header.count(b":"), header.count(b"[") + header.count(b"{")
    if fields <= FIELDS_MAX and opened <= NESTING_MAX:
        return
    # Without what is escaped, every other piece between quotes is text.
    outside = b"".join(header.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    if (count := outside.count(b":")) > FIELDS_MAX:
        raise FrameError(f"a header of {count} fields is over the limit of {FIELDS_MAX}")
    brackets = outside.translate(None, _NO_BRACKETS)
    depth = 0
    for c in brackets[: BRACKETS_MAX + 1]:
        depth += 1 if c in _OPENED else -1
        if depth > NESTING_MAX:
            raise FrameError(f"the header is no JSON of RocketMQ's: nested deeper than {NESTING_MAX} levels")
    if len(brackets) > BRACKETS_MAX:
        raise FrameError(f"the header is no JSON of RocketMQ's: it has more than {BRACKETS_MAX} brackets")


def decode_header(header: bytes, serialization: int) -> Frame:
    """Return a header in either form. Unknown JSON keys are ignored. Raises FrameError."""
    if serialization == BINARY:
        return _decode_binary(header)
    if serialization != JSON:
        raise FrameError(f"header serialization {serialization} is unknown; 0 (JSON) and 1 (ROCKETMQ) are known")
    check_header(header)
    try:
        values = msgspec.json.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise FrameError(f"the header is no JSON: {e}") from e
    if not isinstance(values, dict) or not isinstance(values.get("code"), int):
        raise FrameError("the header is no JSON object with a code")
    try:
        head = typed_json.convert(values, _Head, strict=False)
    except msgspec.ValidationError as e:
        raise FrameError(f"the header is not a RocketMQ header: {e}") from e
    return Frame(
        code=head.code,
        opaque=head.opaque,
        flag=head.flag,
        language=head.language if isinstance(head.language, str) else language_name(head.language),
        version=head.version,
        remark=head.remark,
        ext=head.extFields,
        key_order=tuple(k for k in values if k in _KEY_ORDER),
    )


def language_name(number: int) -> str:
    """Return the name of a language code; OTHER for one that is unknown."""
    return LANGUAGES[number] if 0 <= number < len(LANGUAGES) else "OTHER"


class _Head(msgspec.Struct):
    code: int
    opaque: int = 0
    flag: int = 0
    language: str | int = "OTHER"
    version: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None


def _decode_binary(header: bytes) -> Frame:
    if len(header) > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {len(header)} bytes is over the limit of {HEADER_BYTES_MAX}")
    try:
        code, language, version, opaque, flag, remark_length = struct.unpack_from(">hbhiii", header, 0)
        at = 17 + remark_length
        if remark_length < 0 or at + 4 > len(header):
            raise FrameError(f"a binary header states a remark of {remark_length} bytes, beyond its end")
        remark = header[17:at].decode() if remark_length else None
        end = at + 4 + int.from_bytes(header[at : at + 4], "big")
        if end > len(header):
            raise FrameError(f"a binary header states ext fields up to byte {end} of {len(header)}")
        at += 4
        # Counted before they are decoded: too many cost half.
        places: list[tuple[int, int, int]] = []
        while at < end:
            key_end = value_end = at + 2 + (header[at] << 8 | header[at + 1]) if at + 2 <= end else end
            if key_end + 4 <= end:
                value_end += 4 + _INT.unpack_from(header, key_end)[0]
            if key_end + 4 > end or value_end > end:
                raise FrameError(f"an ext field reaches beyond the header at byte {at}")
            places.append((at + 2, key_end, value_end))
            at = value_end
            if len(places) > FIELDS_MAX:
                raise FrameError(f"a binary header has more than {FIELDS_MAX} fields")
        pairs = [(header[a:b].decode(), header[b + 4 : c].decode()) for a, b, c in places]
    except (struct.error, UnicodeDecodeError) as e:
        raise FrameError(f"the binary header is broken: {e}") from e
    ext = dict(pairs)
    return Frame(
        code=code,
        opaque=opaque,
        flag=flag,
        language=language_name(language),
        version=version,
        remark=remark,
        ext=ext or None,
        serialization=BINARY,
        repeated_ext=tuple(pairs) if len(pairs) > len(ext) else (),
    )


class Splitter:
    """Cuts a byte stream into whole frames, whatever its pieces are.

    `feed` returns each frame that is whole by now as (header form, header bytes, body bytes). `broken` is true once
    the bytes that follow are no frame: `feed` raises it then, after it gave out the frames before. A reader that takes
    some frames by itself calls `join`, then `cut` from where it stopped.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes | bytearray] = []
        self._held = 0
        self._needed = 8
        self.broken = False
        # The number of frames that came in more than one read; of the one that is held, while one is.
        self.begun = 0

    @property
    def held(self) -> int:
        """The number of bytes kept that do not make a whole frame yet."""
        return self._held

    def feed(self, data: bytes) -> list[tuple[int, bytes, bytes]]:
        """Return the frames completed by `data`. Raises FrameError for an impossible length."""
        data = self.join(data)
        return self.cut(data) if data else []

    def join(self, data: bytes) -> bytes:
        """Return the kept bytes followed by `data`; empty, and all is kept, while that does not make a whole frame."""
        if self._chunks:
            # A large frame arrives in many chunks: gather them, join once. Small ones in one buffer: each object of
            # its own would take twenty times what it holds.
            last = self._chunks[-1]
            if type(last) is bytearray and len(data) < _CHUNK_BYTES_MIN:
                last += data
            else:
                self._chunks.append(data if len(data) >= _CHUNK_BYTES_MIN else bytearray(data))
            self._held += len(data)
            if self._held < self._needed:
                return b""
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._held = 0
        return data

    def cut(self, data: bytes, at: int = 0) -> list[tuple[int, bytes, bytes]]:
        """Return the whole frames in `data` from byte `at` on; the bytes after them are kept. Raises FrameError as
        `feed` does.
        """
        frames, at = self.cut_some(data, at)
        if at < len(data):
            rest = data[at:] if at else data
            self._chunks.append(rest)
            self.begun += 1
            self._needed = 4 + int.from_bytes(rest[:4], "big") if len(rest) >= 8 and not self.broken else 8
        self._held = len(data) - at
        return frames

    def cut_some(self, data: bytes, at: int, count_max: int = 1 << 30) -> tuple[list[tuple[int, bytes, bytes]], int]:
        """Return up to `count_max` whole frames in `data` from byte `at` on, and where they end. Raises FrameError as
        `feed` does.
        """
        frames: list[tuple[int, bytes, bytes]] = []
        size = len(data)
        while size - at >= 8 and len(frames) < count_max:
            total, mark = _LENGTHS.unpack_from(data, at)
            end = at + 4 + total
            header_end = at + 8 + (mark & 0xFFFFFF)
            if header_end > end or total > FRAME_BYTES_MAX:
                self.broken = True
                if frames:
                    break
                check_length(total)
                raise FrameError(f"a header of {mark & 0xFFFFFF} bytes reaches beyond its frame of {total}")
            if end > size:
                break
            frames.append((mark >> 24, data[at + 8 : header_end], data[header_end:end]))
            at = end
        return frames, at
