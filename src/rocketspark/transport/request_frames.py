"""Frames of requests and replies, and a reply as it came. Rule: headers in JSON, as all of today's clients read it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, final

import msgspec

from rocketspark.errors import FrameError, ServerError, is_no_permission
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import is_retriable
from rocketspark.protocol.headers import H, Header


class Reply(NamedTuple):
    """A reply to a request of ours; `ext` is its ext fields' JSON, for `headers.decode_ext`."""

    code: int
    remark: str | None
    ext: bytes | msgspec.Raw
    body: bytes
    address: str

    def header(self, kind: type[H]) -> H:
        """Return the ext fields, typed. Raises FrameError if one is missing or wrong."""
        return headers.decode_ext(kind, self.ext)

    @property
    def no_permission(self) -> bool:
        """True if the sender may not do what it asked for, which access control 1.0 says with the general code."""
        return is_no_permission(self.code, self.remark)

    def raise_for_code(self, doing: str, *accepted: int) -> Reply:
        """Return this reply if its code is 0 or accepted, else raise ServerError."""
        if self.code != 0 and self.code not in accepted:
            retriable = is_retriable(self.code, self.remark)
            raise ServerError(self.code, self.remark, address=self.address, doing=doing, retriable=retriable)
        return self


SHARED_BYTES_MIN = 128 << 10
_LENGTHS = struct.Struct(">II")
_SUCCESS = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":' + (
    b"%d}" % frames.VERSION
)
_MARK = 7_431_892_650_173_928_640


@final
class Parts:
    """A reply's frame whose body is written from where it lies: a large one is not copied behind its header.

    `size`: bytes of all. The bytes of the body's views must stay as they are until they are written.
    """

    __slots__ = ("body", "head", "size")

    def __init__(self, head: bytes, body: Sequence[memoryview]) -> None:
        self.head, self.body = head, body
        self.size = len(head) + sum(map(len, body))

    def __len__(self) -> int:
        return self.size


def buffers(replies: Iterable[bytes | Parts]) -> Iterator[bytes | memoryview]:
    """Yield the buffers to be written for these frames; nothing is copied."""
    for each in replies:
        if type(each) is Parts:
            yield each.head
            yield from each.body
        else:
            yield each


def request(
    code: int,
    header: Header | dict[str, str] | None,
    body: bytes = b"",
    *,
    opaque: int,
    flag: int = 0,
    language: str = "PYTHON",
    remark: str | None = None,
) -> bytes:
    """Return the frame of a request. Raises FrameError if its header, or all of it, is more than anybody takes."""
    ext = headers.to_ext(header) if isinstance(header, Header) else header
    head = (
        b'{"code":%d,"extFields":%b,"flag":%d,"language":"%b","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (
            code,
            msgspec.json.encode(ext or {}),
            flag,
            language.encode(),
            opaque,
            b'"remark":%b,' % msgspec.json.encode(remark) if remark is not None else b"",
            frames.VERSION,
        )
    )
    if len(head) > frames.HEADER_BYTES_MAX:
        # The other side would end the connection, and with it what others wait for.
        raise FrameError(f"a header of {len(head)} bytes is over the limit of {frames.HEADER_BYTES_MAX}: not sent")
    return frames.join(head, body)


class RequestForm:
    """A template for frames of requests without a body that differ only in some numbers: a frame takes 0.6 us instead
    of 4.

    `ext`: returns the ext fields for `count` numbers, each number as the text of one field.
    """

    def __init__(self, code: int, ext: Callable[..., dict[str, str]], count: int) -> None:
        # Numbers that stand in no header by chance mark the places.
        marks = [_MARK + i for i in range(count + 1)]
        made = request(code, ext(*marks[1:]), opaque=marks[0])[len(frames.join(b"")) :]
        places = sorted((made.index(b"%d" % mark), i) for i, mark in enumerate(marks))
        self._order = [i for _, i in places]
        made = made.replace(b"%", b"%%")
        for mark in marks:
            made = made.replace(b"%d" % mark, b"%d")
        self._form = made

    def filled(self, opaque: int, values: Sequence[int]) -> bytes:
        """Return the frame of one request. `opaque`: its number on the connection; `values`: what `ext` was promised,
        in its order.
        """
        given = (opaque, *values)
        return frames.join(self._form % tuple([given[i] for i in self._order]))


def reply(
    opaque: int,
    code: int = 0,
    header: Header | dict[str, str] | None = None,
    body: bytes = b"",
    *,
    remark: str | None = None,
    language: str = "JAVA",
) -> bytes:
    """Return the frame of a reply."""
    if not code and header is None and not body and remark is None and language == "JAVA":
        # Of most requests: 0.4 us instead of 1.5.
        head = _SUCCESS % opaque
        return _LENGTHS.pack(4 + len(head), len(head)) + head
    ext = headers.to_ext(header) if isinstance(header, Header) else header
    head = b'{"code":%d,%b"flag":1,"language":"%b","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        code,
        b'"extFields":%b,' % msgspec.json.encode(ext) if ext is not None else b"",
        language.encode(),
        opaque,
        b'"remark":%b,' % msgspec.json.encode(remark) if remark is not None else b"",
        frames.VERSION,
    )
    return frames.join(head, body)


def reply_with(body: bytes, opaque: int, header: Header | dict[str, str] | None = None) -> bytes | Parts:
    """Return the frame of a reply whose body many replies share; a large body is not copied."""
    if len(body) < SHARED_BYTES_MIN:
        return reply(opaque, header=header, body=body)
    head = reply(opaque, header=header)
    total = int.from_bytes(head[:4], "big") + len(body)
    frames.check_length(total)
    return Parts(total.to_bytes(4, "big") + head[4:], (memoryview(body),))
