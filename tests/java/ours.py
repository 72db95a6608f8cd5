"""Our server as a user starts it: the `rocketspark server` command as a process, on a store folder of the caller's."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

READY = re.compile(r"^ready namesrv=(\S+) broker=(\S+)$")
READY_TIMEOUT_S = 30.0


class OurServer:
    """NameServer and broker of ours in one process.

    Args:
        folder: for its config and log.
        store: the store directory.
        config: keys of broker.conf.
    """

    def __init__(self, folder: Path, store: Path, config: dict[str, Any] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store
        self.log_path = folder / "server.log"
        config_path = folder / "broker.conf"
        config_path.write_text("".join(f"{key}={value}\n" for key, value in (config or {}).items()))
        command = [str(Path(sys.executable).parent / "rocketspark"), "server", "--namesrv-port", "0"]
        command += ["--broker-port", "0", "--store", str(store), "-c", str(config_path)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        # A server that hangs before it is ready would hold readline for ever.
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        try:
            ready = READY.match(self._process.stdout.readline().strip())
        finally:
            watchdog.cancel()
        if ready is None:
            self.kill()
            raise AssertionError(f"rocketspark server did not get ready:\n{self.log_end()}")
        self.namesrv, self.broker_address = ready.groups()

    def log_end(self) -> str:
        return self.log_path.read_text(errors="replace")[-3000:]

    def stop(self, timeout_s: float = 20) -> int:
        """A clean stop (SIGTERM). Returns the exit code."""
        self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rocketspark server did not stop in {timeout_s} s:\n{self.log_end()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; nothing is flushed or tidied."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
