"""How many fields an encoded message holds, told before it is decoded. Pure.

Rule: an empty message within another has two bytes on the wire and some 80 in memory, so that a request is bounded by
its fields as well as by its bytes. A small message within, one without a map, counts as one field and those in it that
may be many: the others are few, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

SMALL_BYTES = 256
# Counted in some 5 ms, or so many times a few small messages.
IN_TURN = 8192
_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)
_VARINT_BYTES_MAX = 10
# Set in each byte of a number but the last one.
_MORE = 0x80


class Kind:
    """A type of messages: of the tag of each field that holds messages, their kind. `many`: with which bytes fields
    begin of which it, or what is within it, may hold any number that take memory each.
    """

    def __init__(self, descriptor: Any) -> None:
        self.name: str = descriptor.name
        inner = [field for field in descriptor.fields if field.message_type is not None]
        self.has_map = any(_is_map(field) for field in inner)
        self.of_tag = {field.number << 3 | _LENGTH: Kind(field.message_type) for field in inner if not _is_map(field)}
        descriptor.CopyToProto(own := DescriptorProto())
        tags = {field.number << 3 | _LENGTH for field in own.field if _is_many(field)}
        # A number of several bytes, which a small one may be written as too.
        firsts = {tag & 0x7F | _MORE for tag in tags} | {tag for tag in tags if tag < _MORE}
        self.many: frozenset[int] = frozenset(firsts).union(*(kind.many for kind in self.of_tag.values()))


def _is_many(field: FieldDescriptorProto) -> bool:
    types = (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE)
    return field.label == field.LABEL_REPEATED and field.type in types


def _is_map(field: Any) -> bool:
    return bool(field.message_type.GetOptions().map_entry)


def count_fields(data: bytes, kind: Kind) -> Iterator[int]:
    """Yield how many fields of an encoded message of a kind are counted so far, after some `IN_TURN` and at the end. Of
    what is no message those before its fault are counted, as a decoder does not go beyond it.

    Of a small message within the bytes are counted that fields begin with which may be many: it has no more of those.
    """
    count, at, end = 0, 0, len(data)
    turn = IN_TURN
    outer: list[tuple[int, dict[int, Kind]]] = []
    of_tag = kind.of_tag
    try:
        while at < end or outer:
            if at >= end:
                end, of_tag = outer.pop()
                continue
            count += 1
            if count >= turn:
                yield count
                turn = count + IN_TURN
            # Most numbers have one byte: read here, they take a third of what they take by a call.
            tag = data[at]
            at += 1
            if tag >= _MORE:
                tag, at = _varint(data, at - 1)
            wire = tag & 7
            if wire == _LENGTH:
                length = data[at]
                at += 1
                if length >= _MORE:
                    length, at = _varint(data, at - 1)
                if length and tag in of_tag and (length >= SMALL_BYTES or of_tag[tag].has_map):
                    outer.append((end, of_tag))
                    end, of_tag = min(at + length, end), of_tag[tag].of_tag
                else:
                    if length and tag in of_tag:
                        for first in of_tag[tag].many:
                            count += data.count(first, at, at + length)
                    at += length
            elif wire == _VARINT:
                _, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            elif wire not in (_GROUP, _GROUP_END):
                break
    except (IndexError, ValueError):
        pass
    yield count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a Protobuf varint. Returns it and the position after it. Raises IndexError, ValueError."""
    number = 0
    for count in range(_VARINT_BYTES_MAX):
        byte = data[at + count]
        number |= (byte & 0x7F) << 7 * count
        if byte < _MORE:
            return number, at + count + 1
    raise ValueError("no number has so many bytes")
