"""stdin, stdout and stderr of a command. Rule: a stream that is closed, full, left by its reader or in another encoding
never causes a traceback; a failed write on stdout ends the command; what an
interrupt finds written is not written again.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from rocketspark.errors import UsageError

ESCAPE = "rocketspark-escape"
_CHUNK_BYTES = 1 << 16


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


def write_bytes(data: bytes) -> None:
    """Write bytes on stdout at once, as they are. Raises as `write`."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    raise_interrupt()


def raise_interrupt() -> None:
    """Raise the KeyboardInterrupt that came while something was written on stdout, if there was one."""
    global _interrupted
    if _interrupted:
        _interrupted = False
        raise KeyboardInterrupt


def lines(source: BinaryIO, bytes_max: int) -> Iterator[bytes | None]:
    """Yield the lines of a stream or a file without their ends; None for one of more than `bytes_max` bytes, which is
    read no further until the next line is asked for.

    Raises UsageError if the source is closed or cannot be read.
    """
    with _readable():
        while line := source.readline(bytes_max + 3):
            if len(line) <= bytes_max + 2:
                yield line.rstrip(b"\r\n")
                continue
            yield None
            while line and not line.endswith(b"\n"):
                line = source.readline(_CHUNK_BYTES)


def parts(source: BinaryIO, delimiter: bytes, bytes_max: int) -> Iterator[bytes | None]:
    """Yield what stands between delimiters in a stream or a file, unaltered; None as `lines` does. Raises as `lines`.

    A source without read1 is read by whole chunks.
    """
    read = getattr(source, "read1", source.read)
    held, looked_at, too_long = bytearray(), 0, False
    with _readable():
        while True:
            at = held.find(delimiter, looked_at)
            if at < 0:
                # The delimiter may have begun.
                looked_at = max(0, len(held) - len(delimiter) + 1)
                if looked_at > bytes_max:
                    if not too_long:
                        yield None
                    too_long = True
                    del held[:looked_at]
                    looked_at = 0
                if not (chunk := read(_CHUNK_BYTES)):
                    break
                held += chunk
                continue
            if not too_long:
                yield bytes(held[:at]) if at <= bytes_max else None
            del held[: at + len(delimiter)]
            looked_at, too_long = 0, False
    if held and not too_long:
        yield bytes(held) if len(held) <= bytes_max else None


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UsageError(f"stdin cannot be read: {e.strerror or e}; pipe lines to it, or give --file") from None


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.?))", re.DOTALL)


def unescaped(text: str) -> bytes:
    r"""Return the bytes that an option's text names, in which \n, \r, \t, \0, \\ and \xHH are escapes.

    Raises ValueError for another one.
    """
    found, at = bytearray(), 0
    for match in _ESCAPED.finditer(text):
        found += os.fsencode(text[at : match.start()])
        if match[1] is None and match[2] not in _ESCAPES:
            raise ValueError(rf"there is no escape {match[0]}: \n, \r, \t, \0, \\ and \xHH are known")
        found += bytes.fromhex(match[1]) if match[1] else _ESCAPES[match[2]]
        at = match.end()
    return bytes(found + os.fsencode(text[at:]))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    # As JSON escapes it, so that what is JSON stays JSON in every encoding.
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(part[at : at + 2], "big") for at in range(0, len(part), 2))
    return "".join(f"\\u{unit:04x}" for unit in units), error.end


codecs.register_error(ESCAPE, _escaped)
