"""stdin, stdout and stderr of a command. Rule: a stream that is closed, full, left by its reader or in another encoding
never causes a traceback; a failed write on stdout ends the command; what an
interrupt finds written is not written again.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from rocketspark.errors import UsageError

ESCAPE = "rocketspark-escape"


# Whether Ctrl-C came with a write on stdout that was done.
_interrupted = False


class ReaderLeft(Exception):
    """Raised when the reader of stdout, such as `head`, has closed it. No failure: the command ends quietly."""


def guard() -> None:
    """Replace the three streams of this process by guarded ones; to be called before anything is opened."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # Its number must not become a socket's. Opened the wrong way round, so that its use is an error still.
            os.open(os.devnull, os.O_WRONLY if descriptor == 0 else os.O_RDONLY)
            setattr(sys, name, None)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = _text(_Stdout(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Stderr(2, "w", closefd=False), sys.stderr, line_buffering=True)


def _text(raw: io.FileIO, like: TextIO | None, *, line_buffering: bool = False) -> io.TextIOWrapper:
    if like is not None:
        like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(like, "encoding", None) or "utf-8",
        errors=ESCAPE,
        line_buffering=line_buffering or raw.isatty(),
    )


class _Stdout(io.FileIO):
    """stdout that reports its first failed write; later writes, also Python's own at the end, are dropped."""

    muted = False

    def write(self, data: object) -> int:
        global _interrupted
        raise_interrupt()
        if not self.muted:
            written: list[int | None] = []
            try:
                # By one call, so that Ctrl-C comes before the bytes are written, or with their number at hand.
                written.extend(map(super().write, (data,)))  # type: ignore[arg-type]
                return written[0] or 0
            except KeyboardInterrupt:
                if not written:
                    raise
                # Who keeps what is still to be written must hear of it first.
                _interrupted = True
                return written[0] or 0
            except BrokenPipeError:
                self.muted = True
                raise ReaderLeft from None
            except OSError as e:
                self.muted = True
                raise UsageError(
                    f"stdout cannot be written: {e.strerror or e}; give the command a place to write to"
                ) from None
        return len(memoryview(data))  # type: ignore[arg-type]


class _Stderr(io.FileIO):
    """stderr that drops what it cannot write, as there is no other place to report that."""

    def write(self, data: object) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except OSError:
            return len(memoryview(data))  # type: ignore[arg-type]


def write(text: str) -> None:
    """Write on stdout at once. Raises ReaderLeft, or UsageError if there is no room or no stdout."""
    sys.stdout.write(text)
    sys.stdout.flush()
    raise_interrupt()


def raise_interrupt() -> None:
    """Raise the KeyboardInterrupt that came while something was written on stdout, if there was one."""
    global _interrupted
    if _interrupted:
        _interrupted = False
        raise KeyboardInterrupt


def lines(source: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """Yield the lines of a stream or a file, without reading more than `bytes_max` bytes of one.

    Raises UsageError if the source is closed or cannot be read, or for a longer line.
    """
    number = 0
    try:
        while line := source.readline(bytes_max + 3):
            number += 1
            if len(line) > bytes_max + 2:
                raise UsageError(f"line {number} is longer than {bytes_max} bytes, the most that a message may have")
            yield line
    except OSError as e:
        raise UsageError(f"stdin cannot be read: {e.strerror or e}; pipe lines to it, or give --file") from None


def _escaped(error: UnicodeError) -> tuple[str, int]:
    # As JSON escapes it, so that what is JSON stays JSON in every encoding.
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(part[at : at + 2], "big") for at in range(0, len(part), 2))
    return "".join(f"\\u{unit:04x}" for unit in units), error.end


codecs.register_error(ESCAPE, _escaped)
