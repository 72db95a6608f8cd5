"""A log in memory, for replication alone."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from rocketspark.errors import ReplicationError
from rocketspark.protocol.message.record_layout import MAGIC_BLANK, MAGIC_V1

FILE_BYTES = 4096


class MemoryLog:
    """Bytes from `min_position` on, in files of `file_bytes`; it keeps the rules of ReplicatedLog."""

    def __init__(self, file_bytes: int = FILE_BYTES, start: int = 0) -> None:
        self.file_bytes = file_bytes
        self.min_position = start
        self.content = bytearray()
        self.cuts: list[int] = []

    @property
    def end_position(self) -> int:
        return self.min_position + len(self.content) if self.content else 0

    def log_bytes(self, position: int, count_max: int) -> memoryview:
        assert position >= self.min_position
        count = max(0, min(count_max, self.end_position - position, self.file_bytes - position % self.file_bytes))
        at = position - self.min_position
        return memoryview(bytes(self.content[at : at + count]))

    def append_raw(self, position: int, data: bytes | memoryview) -> None:
        if not self.content:
            if position % self.file_bytes:
                raise ReplicationError(f"{position} is no file start")
            self.min_position = position
        elif position != self.end_position:
            raise ReplicationError(f"{position} is not the end {self.end_position}")
        if position % self.file_bytes + len(data) > self.file_bytes:
            raise ReplicationError("over a file's end", reason="file-size")
        self.content += data
        self.check()

    def check(self) -> None:
        """Refuse what is no record, as the store does."""
        at, content = self.whole_position() - self.min_position, self.content
        while at + 8 <= len(content):
            size, magic = struct.unpack_from(">ii", content, at)
            left = self.file_bytes - (self.min_position + at) % self.file_bytes
            if (magic == MAGIC_BLANK and size != left) or (magic == MAGIC_V1 and size > left - 8):
                del content[at:]
                raise ReplicationError("a file of another size", reason="file-size")
            if magic not in (MAGIC_V1, MAGIC_BLANK) or size <= 0:
                del content[at:]
                raise ReplicationError("no record begins there")
            if at + size > len(content):
                break
            at += size

    def record_begins(self, position: int) -> bool:
        return position in {*self.starts(), self.end_position}

    def truncate(self, position: int) -> None:
        assert self.record_begins(position)
        self.cuts.append(position)
        del self.content[position - self.min_position :]

    # -- for tests

    def starts(self) -> list[int]:
        """Where whole records and blanks begin."""
        found, at = [], 0
        while at + 8 <= len(self.content):
            (size,) = struct.unpack_from(">i", self.content, at)
            if at + size > len(self.content):
                break
            found.append(self.min_position + at)
            at += size
        return found

    def whole_position(self) -> int:
        if not (starts := self.starts()):
            return self.min_position
        return int(starts[-1] + struct.unpack_from(">i", self.content, starts[-1] - self.min_position)[0])

    def cut_partial_record(self) -> int:
        del self.content[self.whole_position() - self.min_position :]
        return self.end_position

    def put(self, body: bytes) -> int:
        """Append a record as a master does, with a blank before it where the file is full; return the log's end."""
        size = 91 + len(body)
        end = self.min_position + len(self.content)
        left = self.file_bytes - end % self.file_bytes
        if size + 8 > left:
            self.content += struct.pack(">ii", left, MAGIC_BLANK) + b"\x5a" * (left - 8)
        self.content += struct.pack(">ii", size, MAGIC_V1) + b"\0" * (size - 8 - len(body)) + body
        return self.end_position

    def put_all(self, bodies: Iterable[bytes]) -> int:
        for body in bodies:
            self.put(body)
        return self.end_position
