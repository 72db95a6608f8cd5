"""RocketMQ's JSON dialect: maps whose keys are bare numbers or whole objects. Rule: readers take every form.

`{0:"a"}` and `{{"queueId":0}:{…}}` become standard JSON with text keys, the object's own JSON being the key.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from rocketspark.errors import ProtocolError, ServerError
from rocketspark.model import typed_json
from rocketspark.protocol.codes import ResponseCode

T = TypeVar("T")


# RocketMQ's object keys hold plain values; every level more costs a hostile body's length again.
KEY_DEPTH_MAX = 4
# Some 10 ms for each level of keys.
ODD_REQUEST_BYTES_MAX = 128 << 10
# Some 10 ms of one call into C, which no thread shortens for the others: 13,000 topics, 10,000 subscriptions.
REQUEST_VALUES_MAX = 1 << 17
_NUMBER_KEY = re.compile(rb"([{,])(-?[0-9]+):")


def standardize(text: bytes, depth: int = 0) -> bytes:
    """Return a document of RocketMQ's dialect as standard JSON; standard JSON comes back unchanged.

    `depth`: within how many object keys the text stands. Raises ProtocolError for object keys nested deeper than 4.
    """
    if depth > KEY_DEPTH_MAX:
        raise ProtocolError(f"the body has object keys within object keys, more than {KEY_DEPTH_MAX} deep")
    out: list[bytes] = []
    at = 0
    last = 0
    size = len(text)
    stack: list[int] = []  # per open bracket: 1 in an object that awaits a key, 2 in one that awaits a value, 0 array
    # A byte at a time: by a regular expression's tokens, bodies of brackets alone took 2 to 7 times as long.
    while at < size:
        c = text[at]
        if c in b" \t\r\n":
            at += 1
        elif c == 0x22:  # "
            # A key or a value: the colon or comma that follows moves the state.
            at = _string_end(text, at)
        elif c == 0x5B:  # [
            stack.append(0)
            at += 1
        elif c in b"}]":
            if stack:
                stack.pop()
            at += 1
        elif c == 0x3A:  # :
            if stack and stack[-1] == 1:
                stack[-1] = 2
            at += 1
        elif c == 0x2C:  # ,
            if stack and stack[-1] == 2:
                stack[-1] = 1
            at += 1
        elif stack and stack[-1] == 1:
            end, key = _bare_key(text, at, depth)
            out += (text[last:at], key)
            at = last = end
        else:
            if c == 0x7B:  # {
                stack.append(1)
            at += 1
    return b"".join((*out, text[last:])) if out else text


def _bare_key(text: bytes, at: int, depth: int) -> tuple[int, bytes]:
    """Return where a key that is no string ends, and the string that stands for it: an object's is its own JSON."""
    end, size = at, len(text)
    if text[at] == 0x7B:  # {
        end = _object_end(text, at)
        return end, msgspec.json.encode(standardize(text[at:end], depth + 1).decode())
    while end < size and text[end] not in b' \t\r\n:,}]{["':
        end += 1
    return end, b'"' + text[at:end] + b'"'


def _string_end(text: bytes, at: int) -> int:
    end = at + 1
    while True:
        end = text.find(b'"', end)
        if end < 0:
            return len(text)
        slashes = 0
        while text[end - 1 - slashes] == 0x5C:
            slashes += 1
        end += 1
        if slashes % 2 == 0:
            return end


def _object_end(text: bytes, at: int) -> int:
    depth = 0
    while at < len(text):
        c = text[at]
        if c == 0x22:
            at = _string_end(text, at)
            continue
        depth += (c in b"{[") - (c in b"}]")
        at += 1
        if depth == 0:
            return at
    return len(text)


def decode_request(text: bytes, kind: type[T]) -> T:
    """Decode a client's body of either dialect into `kind`. As RocketMQ's dialect is slow to read, only short bodies
    may use it.

    Raises ProtocolError, and ServerError 29 for a body of more values than one request may have.
    """
    if (values := text.count(b",")) > REQUEST_VALUES_MAX:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"a body of some {values} values; at most {REQUEST_VALUES_MAX} are taken in one request: send several",
        )
    return decode(text, kind, odd_bytes_max=ODD_REQUEST_BYTES_MAX)


def decode(text: bytes, kind: type[T], *, odd_bytes_max: int | None = None) -> T:
    """Decode a body of either dialect into `kind`; a number may stand there as a text.

    `odd_bytes_max`: a body longer than this has to be standard JSON. Raises ProtocolError.
    """
    try:
        return typed_json.decode(text, kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        if odd_bytes_max is not None and len(text) > odd_bytes_max:
            raise ProtocolError(
                f"the body is no {getattr(kind, '__name__', kind)}: {e} (above {odd_bytes_max} bytes only standard JSON"
                " is read)"
            ) from e
    try:
        # Mostly there are number keys alone: 0.2 us each instead of 6. Within a string this would end the string before
        # a digit, which is no JSON.
        return typed_json.decode(_NUMBER_KEY.sub(rb'\1"\2":', text), kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return typed_json.decode(standardize(text), kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ProtocolError(f"the body is no {getattr(kind, '__name__', kind)}: {e}") from e


def encode_number_keys(table: dict[int, Any]) -> bytes:
    """Return a table as `{0:…,1:…}`, with bare numbers as keys, as RocketMQ writes maps keyed by numbers."""
    return b"{" + b",".join(b"%d:%b" % (k, msgspec.json.encode(v)) for k, v in table.items()) + b"}"


def encode_object_key(key: Any, value: Any) -> bytes:
    """Return `{…}:{…}`, one pair of the map that `encode_object_keys` makes."""
    return msgspec.json.encode(key) + b":" + msgspec.json.encode(value)


def encode_object_keys(table: list[tuple[Any, Any]]) -> bytes:
    """Return pairs of (key object, value) as `{{…}:{…}}`, as RocketMQ writes maps keyed by objects."""
    return b"{" + b",".join(encode_object_key(k, v) for k, v in table) + b"}"
