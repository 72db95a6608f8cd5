"""An S3 server for tests, and a small proxy before it that fails by plan.

Rule: what the proxy does to a request follows from its plan and the request alone; nothing here leaves 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.request import Request, urlopen

# What Spark is given; tests look for them in all that is printed.
ACCESS_KEY, SECRET_KEY = "AKIAROCKETTESTKEY001", "rocketSecret/Not+For+Logs/0123456789abcdef"
REGION = "eu-central-1"
HEAD_BYTES_MAX = 64 << 10


class Fault(NamedTuple):
    """What happens to a request: `kind` pass, status, refuse (closed unread), stall (no answer), or cut (the connection
    ends in the middle of the answer's body, or for an upload of the request's).
    """

    kind: str = "pass"
    status: int = 503


class Seen(NamedTuple):
    """A request as a plan sees it: how many came before, its method and its path with query."""

    number: int
    method: str
    path: str


Plan = Callable[[Seen], Fault]
PASS = Fault()
REFUSE, STALL, CUT = Fault("refuse"), Fault("stall"), Fault("cut")


def status(code: int) -> Fault:
    """An answer with that status."""
    return Fault("status", code)


_one_at_a_time = threading.Lock()
_CODES = {403: "AccessDenied", 404: "NoSuchBucket", 500: "InternalError", 503: "SlowDown"}


class FaultyProxy:
    """A proxy on a port of its own before a server on 127.0.0.1; each connection carries one request. `plan` may be
    replaced at any time; `faults` counts what it did by kind.
    """

    def __init__(self, target_port: int, plan: Plan = lambda seen: PASS) -> None:
        self._target = target_port
        self.plan = plan
        self.faults: dict[str, int] = {}
        self.requests: list[Seen] = []
        self._lock = threading.Lock()
        self._stalled = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="faulty-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections, and end those that are stalled."""
        self._stalled.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(120)
            head, rest = _read_head(connection)
            if not head:
                return
            method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
            with self._lock:
                seen = Seen(len(self.requests), method, path)
                self.requests.append(seen)
                fault = self.plan(seen)
                name = str(fault.status) if fault.kind == "status" else fault.kind
                self.faults[name] = self.faults.get(name, 0) + 1
            if fault.kind == "refuse":
                return
            if fault.kind == "stall":
                self._stalled.wait(120)
                return
            if fault.kind == "status":
                self._answer(connection, method, head, rest, fault.status)
                return
            self._pass(connection, head, rest, cut=fault.kind == "cut")

    def _answer(self, connection: socket.socket, method: str, head: bytes, rest: bytes, code: int) -> None:
        for _ in _body(connection, head, rest):
            pass
        text = f"<?xml version='1.0'?><Error><Code>{_CODES.get(code, 'Error')}</Code><Message>by plan</Message></Error>"
        body = b"" if method == "HEAD" else text.encode()
        connection.sendall(
            f"HTTP/1.1 {code} Planned\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )

    def _pass(self, connection: socket.socket, head: bytes, rest: bytes, *, cut: bool) -> None:
        upload = head.startswith((b"PUT", b"POST")) and _length(head) > 1
        with socket.create_connection(("127.0.0.1", self._target), timeout=120) as server:
            server.sendall(_closing(head))
            left = _length(head) // 2
            for part in _body(connection, head, rest):
                if cut and upload:
                    server.sendall(part[:left])
                    left -= len(part)
                    if left <= 0:
                        return
                else:
                    server.sendall(part)
            answer, begun = _read_head(server)
            size = _length(answer)
            connection.sendall(_closing(answer) + begun[: size // 2 if cut and size else None])
            sent = len(begun)
            while part := server.recv(64 << 10):
                if cut and size and sent + len(part) > size // 2:
                    connection.sendall(part[: max(0, size // 2 - sent)])
                    return
                connection.sendall(part)
                sent += len(part)


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head of a request or answer with its empty line, and what came behind it."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = connection.recv(64 << 10)
        if not part or len(got) > HEAD_BYTES_MAX:
            return b"", b""
        got += part
    head, _, rest = got.partition(b"\r\n\r\n")
    if b"expect: 100-continue" in head.lower():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _body(connection: socket.socket, head: bytes, rest: bytes) -> Iterator[bytes]:
    left = _length(head) - len(rest)
    if rest:
        yield rest
    while left > 0:
        part = connection.recv(min(left, 64 << 10))
        if not part:
            raise ConnectionError("the client went")
        left -= len(part)
        yield part


def _closing(head: bytes) -> bytes:
    """The head with Connection: close, and without Expect, which was answered here."""
    lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"expect:"))]
    return b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n"


class Store(NamedTuple):
    """A running S3 server and the proxy before it."""

    port: int
    proxy: FaultyProxy

    @property
    def endpoint(self) -> str:
        """The proxy's address."""
        return f"http://127.0.0.1:{self.proxy.port}"

    def make_bucket(self, name: str) -> None:
        """Make a bucket, past the proxy."""
        body = (
            f"<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint></CreateBucketConfiguration>"
        )
        request = Request(f"http://127.0.0.1:{self.port}/{name}", data=body.encode(), method="PUT")
        with urlopen(request, timeout=30) as answer:
            assert answer.status == 200


@contextlib.contextmanager
def s3_store(*buckets: str) -> Iterator[Store]:
    """An S3 server with these buckets alone, in threads of this process, which has one at a time: moto's servers of a
    process share what they hold.
    """
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    assert _one_at_a_time.acquire(blocking=False)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with urlopen(Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST"), timeout=30) as answer:
        assert answer.status == 200
    proxy = FaultyProxy(port)
    try:
        store = Store(port, proxy)
        for bucket in buckets:
            store.make_bucket(bucket)
        yield store
    finally:
        proxy.close()
        server.stop()
        _one_at_a_time.release()
