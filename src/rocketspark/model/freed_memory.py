"""Memory that this process frees. Rule: only the C library's own setting, and only in a process that is ours alone."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES, MAPPED_BYTES_MIN = 16 << 20, 8 << 20


def keep() -> None:
    """Let the C library keep some freed memory for later buffers, instead of giving it back to the kernel each time.

    Why: each copy of a batch of 256 KiB is a buffer of its own, and each page of a new buffer costs a page fault.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        # Not glibc: it has rules of its own.
        return
    set_option(_TRIM_THRESHOLD, KEPT_BYTES)
    set_option(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
