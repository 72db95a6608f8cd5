"""Files of a store that another process may own, in the order of what they hold. Rule: opened for reading only; never
mapped, locked or written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from rocketspark.store.readonly.file_places import LOCAL_DISK, Place
from rocketspark.store.tiered.layout import base_of


class ReadOnlyFiles:
    """Files named by the offset of their first byte, in one or several directories: a store's, or those of a second
    tier, whose names begin with a hash. Close it when done.

    `place`: where the directories are. One that is not there holds no files; these may be shorter than the space up to
    the next.
    """

    def __init__(self, directories: Sequence[str], place: Place = LOCAL_DISK) -> None:
        self.directories, self.place = tuple(directories), place
        self._files = place.files()
        found: dict[int, str] = {}
        for directory in directories:
            for name in self._files.names(directory):
                start = int(name) if len(name) == 20 and name.isascii() and name.isdigit() else base_of(name)
                if start is not None:
                    found[start] = f"{directory}/{name}"
        self.starts = sorted(found)
        self.paths = [found[start] for start in self.starts]

    def length(self, index: int) -> int:
        """Return the number of bytes of the file at an index of `starts`; 0 if it is gone."""
        return self._files.length(self.paths[index])

    def end(self) -> int:
        """Return the offset after the last file; 0 without files."""
        return self.starts[-1] + self.length(-1) if self.starts else 0

    def index_of(self, offset: int) -> int:
        """Return the index of the file that would hold an offset; -1 if it is before all."""
        return bisect_right(self.starts, offset) - 1

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` with the bytes from `offset` on, over file ends; returns their number. Raises StoreError."""
        done = 0
        while done < len(target):
            index = self.index_of(offset + done)
            if index < 0:
                break
            count = self._read_file(index, offset + done - self.starts[index], target[done:])
            if count == 0:
                break
            done += count
        return done

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset` on. Raises StoreError."""
        found = bytearray(count)
        return bytes(found[: self.read_into(offset, memoryview(found))])

    def _read_file(self, index: int, at: int, target: memoryview) -> int:
        if index + 1 < len(self.starts):
            target = target[: max(self.starts[index + 1] - self.starts[index] - at, 0)]
        return self._files.read_into(self.paths[index], at, target) if target else 0

    def close(self) -> None:
        """Give back what is open."""
        self._files.close()
