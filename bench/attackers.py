"""Attacks on a broker at a stated rate, in a process of their own: `python -m bench.attackers host:port rate`.

Rule: each line on the input, "broker SECONDS" or "elsewhere SECONDS", is answered with how many attacks were made, on
the broker or a listener of its own; its end is the end. Loopback only; what an attack leaves open is bounded.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import itertools
import socket
import sys
import threading
import time

from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import sysflags
from rocketspark.transport.connections import parse_address
from rocketspark.transport.request_frames import request

TOPIC = "bench-hostile"
OPEN_MAX = 100
PIPELINED = 50
LARGE_BYTES = 128 << 10
# The head of a frame of 16 MiB.
BEGIN = (16 << 20).to_bytes(4, "big") + (10).to_bytes(4, "big")


def _pulls(suspend_ms: int, offset: int) -> bytes:
    header = PullHeader(
        group="bench-hostile",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        count_max=32,
        sys_flag=sysflags.PULL_SUSPEND | sysflags.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_ms=suspend_ms,
        subscription="*",
        subscription_version=0,
    )
    return b"".join(request(RequestCode.PULL_MESSAGE, header, opaque=n, language="JAVA") for n in range(PIPELINED))


class Attacks:
    """The kinds of attack, in turns; `open`: connections that are left open, the oldest closed for a new one."""

    def __init__(self, address: str) -> None:
        self._address = parse_address(address)
        if not ipaddress.ip_address(self._address[0]).is_loopback:
            raise SystemExit(f"{address} is not on this machine")
        self._open: collections.deque[socket.socket] = collections.deque()
        fields = {f"k{n}": "v" for n in range(2000)}
        many = b"".join(request(20_000 + n, None, b"", opaque=n) for n in range(PIPELINED))
        beat = b'{"clientID":"x","consumerDataSet":' + b"[" * 200 + b"]" * 200 + b"}"
        self._kinds: tuple[tuple[bytes, bool], ...] = (
            # What is sent, and whether the connection stays open.
            (b"\xff" * 64, False),
            (BEGIN, True),
            (BEGIN + bytes(LARGE_BYTES), True),
            (frames.encode(Frame(code=34, ext=fields)), False),
            (frames.encode(Frame(code=34, ext=fields, serialization=frames.BINARY)), False),
            (frames.join(b'{"code":34,"extFields":' + b'{"a":' * 5000 + b"}" * 5000 + b"}"), False),
            (many, False),
            (request(RequestCode.HEART_BEAT, None, beat, opaque=1), False),
            (_pulls(60_000, 1 << 20), True),
            (_pulls(0, 0), True),
            (b"\x16\x03\x01\x02\x00" + bytes(100), False),
        )

    def once(self, number: int) -> None:
        """One attack, on a connection of its own; and one byte more on one that is open."""
        data, stays = self._kinds[number % len(self._kinds)]
        s = socket.create_connection(self._address, 5.0)
        s.setblocking(False)
        # A server that does not read is not waited for; one that hung up is what the attack was for.
        with contextlib.suppress(OSError):
            s.send(data)
        if not stays:
            s.close()
            return
        self._open.append(s)
        if len(self._open) > OPEN_MAX:
            self._open.popleft().close()
        with contextlib.suppress(OSError):
            self._open[number % len(self._open)].send(b"\0")

    def go_on_for(self, seconds: float, rate: float) -> int:
        """Attack, so many times a second; returns how many times."""
        began = time.perf_counter()
        for number in itertools.count():
            due = began + number / rate
            if due - began >= seconds:
                return number
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            elif time.perf_counter() - began >= seconds:
                return number
            self.once(number)
        raise AssertionError


def sink() -> str:
    """Listen in a thread that reads once and closes; returns the address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            s, _ = listening.accept()
            with s, contextlib.suppress(OSError):
                s.settimeout(1.0)
                s.recv(1 << 16)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listening.getsockname()[1]}"


def main() -> None:
    """Attack as the input says."""
    rate = float(sys.argv[2])
    kinds = {"broker": Attacks(sys.argv[1]), "elsewhere": Attacks(sink())}
    for line in sys.stdin:
        whom, seconds = line.split()
        print(kinds[whom].go_on_for(float(seconds), rate), flush=True)


if __name__ == "__main__":
    main()
