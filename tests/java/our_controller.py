"""Our controller and NameServer as processes of their own, for official brokers under them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

EVERY = "scanNotActiveBrokerInterval=1000\n"


class OurServer:
    """One `rocketspark` command that prints a ready line. `start` again after `kill`: at the same address."""

    def __init__(self, folder: Path, command: str, config: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / f"{command}.conf"
        self.config.write_text(config, "utf-8")
        self.log_path = folder / f"{command}.log"
        self._command = command
        self.start()

    def start(self) -> None:
        """Start and wait for the ready line."""
        call = [sys.executable, "-m", "rocketspark.cli.main", self._command, "-c", str(self.config)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        watchdog = threading.Timer(LIMIT_S, self._process.kill)
        watchdog.start()
        try:
            self.ready = self._process.stdout.readline()
            assert self.ready.startswith("ready "), self.log_path.read_text("utf-8")
        finally:
            watchdog.cancel()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        return self._process.wait(LIMIT_S)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def our_namesrv(folder: Path) -> tuple[OurServer, str]:
    """A NameServer and its address."""
    address = f"127.0.0.1:{free_ports()}"
    return OurServer(folder, "namesrv", f"{EVERY}listenPort={address.rpartition(':')[2]}\n"), address


def our_controller(folder: Path) -> tuple[OurServer, str]:
    """A controller and its address."""
    address = f"127.0.0.1:{free_ports()}"
    config = f"{EVERY}scanInactiveMasterInterval=1000\ncontrollerDLegerPeers=n0-{address}\ncontrollerDLegerGroup=g\n"
    return OurServer(folder, "controller", config + f"controllerStorePath={folder / 'state'}\n"), address
