"""Files of a store that another process may own: opened for reading only. Rule: never mapped, locked or written.

Bytes are copied out: where a broker cuts or removes a file meanwhile they are fewer, never a SIGBUS, and the bytes
checked are the bytes decoded.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from rocketspark.errors import StoreError
from rocketspark.store.tiered.layout import base_of

_OPEN_MAX = 8


def unreadable(error: OSError, path: str) -> StoreError:
    """Return the error for a file that is there but cannot be read."""
    return StoreError(f"cannot read {path}: {error.strerror or error}; check its permissions and the disk")


class ReadOnlyFiles:
    """Files named by the offset of their first byte, in one or several directories: a store's, or those of a second
    tier, whose names begin with a hash. Close it when done.

    A directory that is not there holds none; files may be shorter than the space up to the next.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self.directories = tuple(directories)
        found: dict[int, str] = {}
        for directory in directories:
            for name in listed(directory):
                start = int(name) if len(name) == 20 and name.isascii() and name.isdigit() else base_of(name)
                if start is not None:
                    found[start] = f"{directory}/{name}"
        self.starts = sorted(found)
        self.paths = [found[start] for start in self.starts]
        self._open: OrderedDict[int, int] = OrderedDict()

    def length(self, index: int) -> int:
        """Return the number of bytes of the file at an index of `starts`; 0 if it is gone."""
        try:
            return os.stat(self.paths[index]).st_size
        except FileNotFoundError:
            return 0
        except OSError as e:
            raise unreadable(e, self.paths[index]) from None

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
        try:
            descriptor = self._descriptor(index)
            return os.preadv(descriptor, [target], at) if target else 0
        except FileNotFoundError:
            return 0
        except OSError as e:
            raise unreadable(e, self.paths[index]) from None

    def _descriptor(self, index: int) -> int:
        found = self._open.get(index)
        if found is not None:
            self._open.move_to_end(index)
            return found
        opened = self._open[index] = os.open(self.paths[index], os.O_RDONLY | os.O_CLOEXEC)
        if len(self._open) > _OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        return opened

    def close(self) -> None:
        """Give the descriptors back."""
        while self._open:
            os.close(self._open.popitem()[1])


def listed(directory: str) -> list[str]:
    """Return the names in a directory; none if it is not there. Raises StoreError if it cannot be read."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise unreadable(e, directory) from None
