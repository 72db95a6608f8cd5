"""A TCP relay that keeps what each side wrote, may replace texts by others of the same length, and may stand still."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from tests.support.ports import free_ports


class Piece(NamedTuple):
    """Bytes as they were read. `side`: "master", which was connected to, or "slave", which came."""

    side: str
    ms: int
    data: bytes


class Relayed:
    """One connection through a relay."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.pieces: list[Piece] = []
        self.ended = False

    def add(self, side: str, data: bytes) -> None:
        self.pieces.append(Piece(side, int((time.monotonic() - self._begun) * 1000), data))

    def written(self, side: str) -> bytes:
        return b"".join(piece.data for piece in self.pieces if piece.side == side)

    def count(self, side: str) -> int:
        """How many pieces that side wrote."""
        return sum(piece.side == side for piece in self.pieces)


class Relay:
    """`address`: where it listens, a free port if not given; what comes goes to `target`.

    `replaced`: texts and what stands for them. `refuses`: who comes is turned away.
    """

    def __init__(self, target: str, replaced: Mapping[str, str] | None = None, address: str = "") -> None:
        self._target = target
        self._replaced = {old.encode(): new.encode() for old, new in (replaced or {}).items()}
        assert all(len(old) == len(new) for old, new in self._replaced.items())
        self.address = address or f"127.0.0.1:{free_ports()}"
        host, _, port = self.address.rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self.refuses = False
        self.connections: list[Relayed] = []
        self._flows = threading.Event()
        self._flows.set()
        # How many more bytes of the master's pass before all stands still; None: no end.
        self._left: int | None = None
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        host, port = self._target.rsplit(":", 1)
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                near.close()
                continue
            # Who comes while it stands still is not let through either.
            self._flows.wait()
            try:
                far = socket.create_connection((host, int(port)), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            kept = Relayed()
            self.connections.append(kept)
            self._open += [near, far]
            for side, source, target in (("slave", near, far), ("master", far, near)):
                threading.Thread(target=self._copy, args=(kept, side, source, target), daemon=True).start()

    def _copy(self, kept: Relayed, side: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._pass(kept, side, data, target)
        # An end is not passed on either while it stands still.
        self._flows.wait()
        kept.ended = True
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pass(self, kept: Relayed, side: str, data: bytes, target: socket.socket) -> None:
        for old, new in self._replaced.items():
            data = data.replace(old, new)
        if self._left is not None and side == "master":
            passed, data = data[: self._left], data[self._left :]
            self._left -= len(passed)
            if passed:
                kept.add(side, passed)
                target.sendall(passed)
            if not self._left:
                self._flows.clear()
        self._flows.wait()
        if data:
            kept.add(side, data)
            target.sendall(data)

    def freeze(self, after_bytes: int = 0) -> None:
        """Pass nothing more, or only so many bytes of the master's; connections stay open, new ones are taken."""
        if after_bytes:
            self._left = after_bytes
        else:
            self._flows.clear()

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still."""
        return not self._flows.is_set()

    def thaw(self) -> None:
        """Pass all again."""
        self._left = None
        self._flows.set()

    def break_off(self) -> None:
        """End every connection that is open; new ones are taken."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        """End all, and listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.thaw()
        self.break_off()
        self._accepting.join(10)
