"""NameServers and brokers, ours or the official ones, each a process of its own that a test may kill or halt."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.java.apache import ApacheBroker, ApacheNamesrv
from tests.support.ports import free_ports

READY_S = 180


class _Ours:
    """One of our servers. `address`: where it listens."""

    def __init__(self, log: Path, *arguments: str) -> None:
        call = [sys.executable, "-m", "rocketspark.cli.main", *arguments]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert self._process.stdout is not None
        watchdog = threading.Timer(READY_S, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        found = re.fullmatch(r"ready \w+=(\S+)\n", line)
        if found is None:
            self.kill()
            raise AssertionError(log.read_text()[-3000:])
        self.address = found[1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Servers:
    """Two NameServers, and brokers by name; `close` ends all. `whose`: "ours" or "apache"."""

    def __init__(self, whose: str, folder: Path, config: dict[str, Any]) -> None:
        self._whose = whose
        self._folder = folder
        self._config = config
        self._count = 0
        self._running: dict[str, Any] = {}
        try:
            self.namesrv = ";".join(self._start_namesrv(name) for name in ("names-1", "names-2"))
            for name in ("broker-a", "broker-b"):
                self.start_broker(name)
        except BaseException:
            self.close()
            raise

    def _start_namesrv(self, name: str) -> str:
        if self._whose == "apache":
            made = ApacheNamesrv(self._folder / name)
            self._running[name] = made
            return made.namesrv
        ours = _Ours(self._folder / f"{name}.log", "namesrv", "--port", "0", "--host", "127.0.0.1")
        self._running[name] = ours
        return ours.address

    def start_broker(self, name: str) -> None:
        """Start a broker on its store, which may be one of before; at another address."""
        self._count += 1
        store, folder = self._folder / f"{name}-store", self._folder / f"{name}-{self._count}"
        if self._whose == "apache":
            self._running[name] = ApacheBroker(folder, self.namesrv, store, name, config=self._config)
            return
        config = self._folder / f"{name}.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._config.items()))
        arguments = ("--name", name, "--namesrv", self.namesrv, "--store", str(store), "--config", str(config))
        # Ports that the official server needs are free beside it; ours needs one.
        port = str(free_ports())
        self._running[name] = _Ours(
            self._folder / f"{name}.log", "broker", *arguments, "--port", port, "--host", "127.0.0.1"
        )

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._running.pop(name).kill()

    def halt(self, name: str) -> None:
        """It holds its connections, and answers nothing, until `go_on`."""
        pid = self._running[name]._process.pid
        os.kill(pid, signal.SIGSTOP)
        # The signal reaches one thread after another.
        while any(state not in "Tt" for state in states_of(pid)):
            time.sleep(0.01)

    def go_on(self, name: str) -> None:
        os.kill(self._running[name]._process.pid, signal.SIGCONT)

    def close(self) -> None:
        for server in reversed(list(self._running.values())):
            server.kill()
        self._running.clear()


def states_of(pid: int) -> list[str]:
    """The state of each thread of a process, as /proc tells it."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
            found.append(task.read_text().rpartition(")")[2].split()[0])
    return found
