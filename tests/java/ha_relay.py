"""A TCP relay that keeps what each side wrote, and may replace texts by others of the same length."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from tests.ports import free_ports


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
    """`address`: where it listens; what comes goes to `target`. `replaced`: texts and what stands for them."""

    def __init__(self, target: str, replaced: Mapping[str, str] | None = None) -> None:
        self._target = target
        self._replaced = {old.encode(): new.encode() for old, new in (replaced or {}).items()}
        assert all(len(old) == len(new) for old, new in self._replaced.items())
        self._listener = socket.create_server(("127.0.0.1", free_ports()))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[Relayed] = []
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
                for old, new in self._replaced.items():
                    data = data.replace(old, new)
                kept.add(side, data)
                target.sendall(data)
        kept.ended = True
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

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
        self.break_off()
        self._accepting.join(10)
