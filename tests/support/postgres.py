"""A PostgreSQL server of the tests' own: data in a temporary folder, a port only if asked for, never run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
USER = "postgres"
# Kills of the server are not tested here: what it would do for a power cut only takes time.
OPTIONS = ["fsync=off", "full_page_writes=off", "max_connections=60", "shared_buffers=16MB"]


def programs() -> Path:
    """The folder of `initdb` and `postgres`; skips the test without one, but never where CI is set."""
    stamp = ROOT / ".setup" / "postgres_bin"
    found = [Path(stamp.read_text().strip())] if stamp.exists() else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).resolve().parent)
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            # A link's place has not what lies beside the programs.
            return (folder / "initdb").resolve().parent
    if os.environ.get("CI"):
        pytest.fail("no PostgreSQL server: run make setup")
    pytest.skip("no PostgreSQL server: run make setup")


class Server:
    """A server in a folder of its own, as another user where we are root. `port`: of TCP, 0 for none. `start` and
    `stop` may follow each other.
    """

    def __init__(self, home: Path, port: int = 0) -> None:
        self.home, self.port = home, port
        self._programs = programs()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; Debian's package brings a user for it.
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            other = names.get("postgres") or names["nobody"]
            self._as = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
            os.chown(home, other.pw_uid, other.pw_gid)
        self._as |= {"cwd": home, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"]}}
        made = subprocess.run(
            [self._programs / "initdb", "-D", home / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            **self._as,
        )
        assert made.returncode == 0, made.stderr
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The URL of the superuser's database, over the socket."""
        return f"postgresql://{USER}@/postgres?host={self.home}" + (f"&port={self.port}" if self.port else "")

    def start(self) -> None:
        """Start it; returns once it accepts connections."""
        command = [self._programs / "postgres", "-D", self.home / "data", "-k", self.home]
        listens = [f"listen_addresses={'127.0.0.1' if self.port else ''}"]
        for option in OPTIONS + listens + ([f"port={self.port}"] if self.port else []):
            command += ["-c", option]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **self._as
        )
        _await_ready(self._process)

    def stop(self) -> None:
        """Stop it; connections end at once."""
        if self._process is not None:
            _stop(self._process)
            self._process = None


@contextmanager
def running(port: int = 0) -> Iterator[Server]:
    """A running server."""
    # Not below pytest's own: other users cannot enter that, and the path of a socket is a short one.
    home = Path(tempfile.mkdtemp(prefix="rspg-", dir="/tmp"))
    try:
        made = Server(home, port)
        try:
            made.start()
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def server() -> Iterator[str]:
    """A running server; gives the URL of a database of its superuser."""
    with running() as made:
        yield made.url


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "ready to accept connections" in line:
                break
        else:
            pytest.fail("PostgreSQL did not get ready:\n" + "".join(lines))
    finally:
        watchdog.cancel()
    # Read on, or a full pipe would hold the server up.
    threading.Thread(target=_read_on, args=(process.stderr,), daemon=True).start()


def _read_on(pipe: IO[str]) -> None:
    with pipe:
        pipe.read()


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)  # Ends connections at once.
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
