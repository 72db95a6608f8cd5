"""A file of lines, turned over at a size. Rule: nobody waits for the disk, and it never takes more than its bound.

A thread writes what the loop hands it. What finds no room, in the queue or on the disk, is counted; the count follows
as soon as a line can be written again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rocketspark.errors import StoreUnwritable
from rocketspark.model.limited_log import LimitedLog

log = LimitedLog("rocketspark.access")

LINES_WAITING_MAX = 10_000
CLOSE_TIMEOUT_S = 5.0
FILE_MODE = 0o600


class AuditFile:
    """Lines in `path`, the file before it in `path`.1 and so on: `files_max` files of at most `bytes_max`.

    Each line also goes to the logger. `lost_line` makes the line that tells of lines which could not be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        files_max: int,
        logger: logging.Logger,
        lost_line: Callable[[int], bytes],
    ) -> None:
        self.written = self.lost = 0
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._logger = logger
        self._lost_line = lost_line
        self._untold = 0
        self._queue: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._descriptor = -1
        self._size = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def check(self) -> None:
        """Open the file. Raises StoreUnwritable if that cannot be: then nothing would be on record."""
        try:
            self._open()
        except OSError as e:
            raise StoreUnwritable(f"the audit log {self._path} cannot be written: {e.strerror or e}") from None

    def put(self, line: bytes) -> None:
        """Have a line, which ends in a line break, written soon."""
        if self._closed:
            return
        if self._thread is None:
            # A disk that hangs keeps no process from ending.
            self._thread = threading.Thread(target=self._run, name="rocketspark-audit", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.lost += 1
            self._untold += 1

    def close(self) -> None:
        """Wait until all is written, some seconds at most."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                return
        self._shut()

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            self._tell(line)
            if self._untold and self._write(self._lost_line(self._untold)):
                self._untold = 0
            if self._write(line):
                self.written += 1
            else:
                self.lost += 1
                self._untold += 1
            if self._closed and self._queue.empty():
                return

    def _tell(self, line: bytes) -> None:
        # A handler that an application set may raise; the file does not depend on it.
        with contextlib.suppress(Exception):
            self._logger.info("%s", line.decode().rstrip("\n"))

    def _write(self, line: bytes) -> bool:
        try:
            self._follow()
            if self._size and self._size + len(line) > self._bytes_max:
                self._turn()
            count = os.write(self._descriptor, line)
            if count < len(line):
                # A torn line would spoil the next one.
                os.ftruncate(self._descriptor, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as e:
            log.error("the audit log %s cannot be written: %s; %d lines are lost so far", self._path, e, self.lost + 1)
            return False
        self._size += count
        return True

    def _follow(self) -> None:
        """Open the file anew if it is not there any more: somebody moved or removed it."""
        if self._descriptor >= 0:
            try:
                there = os.stat(self._path)
                own = os.fstat(self._descriptor)
            except FileNotFoundError:
                self._shut()
            else:
                if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                    return
                self._shut()
        self._open()

    def _open(self) -> None:
        if self._descriptor >= 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags, FILE_MODE)
        self._size = os.fstat(self._descriptor).st_size

    def _turn(self) -> None:
        """Begin a new file; the oldest goes."""
        self._shut()
        numbered = [self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files_max)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(numbered[-1] if numbered else self._path)
        for newer, older in reversed(list(pairwise([self._path, *numbered]))):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        self._open()

    def _shut(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
