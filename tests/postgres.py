"""A PostgreSQL server of the tests' own: data in a temporary folder, a unix socket and no port, never run as root."""

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

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
# Kills of the server are not tested here: what it would do for a power cut only takes time.
OPTIONS = ["listen_addresses=", "fsync=off", "full_page_writes=off", "max_connections=60", "shared_buffers=16MB"]


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


@contextmanager
def server() -> Iterator[str]:
    """A running server; gives the URL of a database of its superuser."""
    folder = programs()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root; Debian's package brings a user for it.
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        other = names.get("postgres") or names["nobody"]
        user = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
    name = "postgres"
    # Not below pytest's own: other users cannot enter that, and the path of a socket is a short one.
    home = Path(tempfile.mkdtemp(prefix="rspg-", dir="/tmp"))
    try:
        if user:
            os.chown(home, user["user"], user["group"])
        common: dict[str, Any] = {"cwd": home, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"]}, **user}
        made = subprocess.run(
            [folder / "initdb", "-D", home / "data", "-U", name, "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            **common,
        )
        assert made.returncode == 0, made.stderr
        command = [folder / "postgres", "-D", home / "data", "-k", home]
        for option in OPTIONS:
            command += ["-c", option]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **common)
        try:
            _await_ready(process)
            yield f"postgresql://{name}@/postgres?host={home}"
        finally:
            _stop(process)
    finally:
        shutil.rmtree(home, ignore_errors=True)


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
