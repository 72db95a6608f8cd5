"""Memory as on a server that has run for days: no page is free, each new one of a file is taken from an older one.

A virtual machine may get its memory only when it is touched first, which costs some 2 us a KiB and counts as the
processor time of whoever writes. After days there is none left to touch.
"""

from __future__ import annotations

from pathlib import Path

# Left free, for processes that grow.
FREE_BYTES = 2 << 30
_PIECE_BYTES = 8 << 20


def free_bytes() -> int:
    """Return how much memory holds nothing, not even pages of files."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) << 10
    raise SystemExit("/proc/meminfo does not say how much memory is free: --full-memory works on Linux")


def fill_page_cache(folder: Path, size: int | None = None) -> int:
    """Read an empty file of `folder` so that its pages fill the free memory, or `size` bytes; returns how many."""
    size = max(free_bytes() - FREE_BYTES, 0) if size is None else size
    path = folder / "empty-pages"
    with path.open("ab") as file:
        file.truncate(0)
        file.truncate(size)
    with path.open("rb", buffering=0) as file:
        piece, read = bytearray(_PIECE_BYTES), 0
        while count := file.readinto(piece):
            read += count
    return read
