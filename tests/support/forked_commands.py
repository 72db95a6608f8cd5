"""Commands of `rocketspark` as processes of their own, forked off one that has imported what they need.

Rule: a command has its own process, streams, environment and end, as from a shell; only the half second of processor in
which Python starts and imports is spent once.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 1 << 20


class Ended(NamedTuple):
    """A command that ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


class ForkedCommands:
    """Runs commands one after another; `close` ends the process that they are forked off."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked_commands", str(other.fileno())],
                cwd=ROOT,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )

    def run(self, *arguments: str, stdin: bytes = b"", timeout_s: float = 120.0) -> Ended:
        """Run a command with that to read, in this process's environment and folder. Raises TimeoutError."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            asked = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
            assert len(asked) <= REQUEST_BYTES_MAX
            self._socket.settimeout(timeout_s)
            socket.send_fds(self._socket, [asked], [file.fileno() for file in (given, out, err)])
            told = self._socket.recv(100)
            assert told, "the process that commands are forked off has ended"
            out.seek(0)
            err.seek(0)
            return Ended(int(told), out.read(), err.read())

    def close(self) -> None:
        """End it, and a command that hangs."""
        self._socket.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@functools.cache
def forked() -> ForkedCommands:
    """Return those that all tests of this process share: what they are forked off ends once this process does."""
    return ForkedCommands()


def serve(asked: socket.socket) -> list[str]:
    """Fork for each command; returns its arguments in the process that is to run it."""
    while True:
        data, fds, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not data:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            asked.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            arguments, environment, folder = json.loads(data)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            return list(arguments)
        for fd in fds:
            os.close(fd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        asked.send(str(code).encode())


if __name__ == "__main__":
    import uvloop  # noqa: F401

    from rocketspark import Producer, PullConsumer, PushConsumer, SimpleConsumer  # noqa: F401
    from rocketspark.cli.main import main
    from rocketspark.cli.tree import tree

    tree()
    # What is alive now is not looked through, nor copied, in each command.
    gc.collect()
    gc.freeze()
    main(serve(socket.socket(fileno=int(sys.argv[1]))))
