"""Our controller and NameServer as processes of their own, for official brokers under them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
EVERY = "scanNotActiveBrokerInterval=1000\n"


class OurServer:
    """One `rocketspark` command that prints a ready line. `start` again after `kill`: at the same address.

    `clock`: a file that says how many seconds its clock is ahead (`tests.support.set_clock`).
    """

    def __init__(self, folder: Path, command: str, config: str, *, clock: Path | None = None) -> None:
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / f"{command}.conf"
        self.config.write_text(config, "utf-8")
        self.log_path = folder / f"{command}.log"
        self._command = command
        self.start()

    def start(self) -> None:
        """Start and wait for the ready line."""
        module = "rocketspark.cli.main" if self._clock is None else "tests.support.set_clock"
        call = [sys.executable, "-m", module, self._command, "-c", str(self.config)]
        environment = dict(os.environ)
        if self._clock is not None:
            paths = [str(ROOT), environment.get("PYTHONPATH", "")]
            environment |= {"CLOCK_FILE": str(self._clock), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                call,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
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

    @property
    def pid(self) -> int:
        return self._process.pid

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
