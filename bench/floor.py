"""A server that does nothing but answer: how far the load tools go by themselves.

Each request, told by the first bytes of its header, is answered at once by the same reply. Run as a process:
python -m bench.floor REPLY_FILE prints its address.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load import ANY
from bench.peers import Servers


@contextmanager
def floor(reply: bytes) -> Iterator[Servers]:
    """Such a server; it has no NameServer."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        path = Path(folder) / "reply"
        path.write_bytes(reply)
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.floor", str(path)],
            cwd=Path(__file__).resolve().parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"ready (\S+)", line)
            if not found:
                raise SystemExit(f"bench.floor did not start: {line!r}")
            yield Servers("", found[1], process.pid, 0.0, Path(folder))
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def serve(reply: bytes) -> None:
    """Answer one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print("ready {}:{}".format(*listener.getsockname()), flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                tail = b""
                while data := connection.recv(1 << 18):
                    data = tail + data
                    connection.sendall(reply * data.count(ANY))
                    tail = data[-(len(ANY) - 1) :]


if __name__ == "__main__":
    serve(Path(sys.argv[1]).read_bytes())
