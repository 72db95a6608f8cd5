"""Blocks kept in reserve, so that a store on a full disk can be stopped, started again and cleaned.

Rule: given up only to stop or to start; made again, as large as may be, once there is room.
"""

from __future__ import annotations

import os

from rocketspark.store.files.system_calls import OsFiles

SPARE_BYTES = 1 << 20
_LEAST_BYTES = 64 << 10


def free_bytes(path: str) -> int:
    """Return the bytes free for ordinary users on the disk of a folder; 1 << 62 if that cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize


class ReservedBlocks:
    """The file `spare` of a store: zeros that hold the reserved blocks."""

    def __init__(self, root: str, files: OsFiles) -> None:
        self._root = root
        self._path = f"{root}/spare"
        self._files = files
        self._held = False

    def release(self) -> None:
        """Give the blocks up if the disk is full without them."""
        if free_bytes(self._root) < SPARE_BYTES:
            self._remove()

    def keep(self) -> None:
        """Reserve the blocks if they are not held: at most half of what is free. Never fails."""
        if self._held:
            return
        size = min(SPARE_BYTES, free_bytes(self._root) // 2)
        if size < _LEAST_BYTES:
            return
        try:
            if not os.path.exists(self._path) or os.path.getsize(self._path) < size:
                self._files.keep_blocks(self._path, size)
            self._held = True
        except OSError:
            self._remove()

    def _remove(self) -> None:
        self._held = False
        try:
            os.unlink(self._path)
        except OSError:
            pass
