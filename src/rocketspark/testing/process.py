"""`rocketspark server` as a process of its own, for tests that kill it. Rule: it outlives neither its `with` block
nor the process of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rocketspark.errors import RocketSparkError

READY = re.compile(r"ready namesrv=(\S+) broker=(\S+)\n")
# Machines are busy: only what hangs takes minutes.
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
LOG_END_CHARS = 4000


class ServerProcess:
    """A process that runs `rocketspark server`. `namesrv`, `broker`: "host:port" of its two servers, which stay the
    same after `restart`.

    `store`: the folder of its messages; `log_path`: the file of what it writes on stderr.
    """

    def __init__(
        self,
        store: str | Path,
        *,
        namesrv_port: int = 0,
        broker_port: int = 0,
        config: Mapping[str, object] | None = None,
        log_path: str | Path | None = None,
    ) -> None:
        self.store = Path(store)
        self.log_path = Path(log_path) if log_path else self.store.with_name(self.store.name + ".log")
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self.broker = f"127.0.0.1:{broker_port}"
        self._config: Path | None = None
        if config:
            self._config = self.store.with_name(self.store.name + ".conf")
            self._config.parent.mkdir(parents=True, exist_ok=True)
            self._config.write_text("".join(f"{key}={value}\n" for key, value in config.items()), "utf-8")
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until the process has ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until it serves. Raises RocketSparkError with the end of its log if not."""
        assert not self.is_running, "already started"
        namesrv_port, broker_port = self.namesrv.rpartition(":")[2], self.broker.rpartition(":")[2]
        command = [sys.executable, "-m", "rocketspark.cli.main", "server", "--no-grpc", "--store", str(self.store)]
        command += ["--namesrv-port", namesrv_port, "--broker-port", broker_port]
        if self._config:
            command += ["--config", str(self._config)]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            # Its input ends with this process, however that ends, and the server with it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"ROCKETSPARK_END_WITH_STDIN": "1"},
            )
        assert self._process.stdout is not None
        # A server that never gets ready would hold readline for ever.
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        except BaseException:
            self.kill()
            raise
        finally:
            watchdog.cancel()
        ready = READY.fullmatch(line)
        if ready is None:
            self.kill()
            raise RocketSparkError(f"the server did not get ready; the end of its log:\n{self.log_end()}")
        self.namesrv, self.broker = ready.groups()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the process (SIGTERM) and wait; returns its exit code.

        One that does not stop in time is killed. Raises RocketSparkError then.
        """
        assert self._process is not None, "not started"
        self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RocketSparkError(f"the server did not stop within {timeout_s} s:\n{self.log_end()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL), so that nothing is flushed. Does nothing if it has ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def restart(self) -> None:
        """Start the process on the same ports and store, after `kill` or `stop`. If it runs, it is stopped first."""
        if self.is_running:
            self.stop()
        self.start()

    def log_end(self) -> str:
        """Return the last lines of the server's log."""
        return self.log_path.read_text("utf-8", errors="replace")[-LOG_END_CHARS:] if self.log_path.exists() else ""


@contextmanager
def run_server_process(
    store: str | Path,
    *,
    namesrv_port: int = 0,
    broker_port: int = 0,
    config: Mapping[str, object] | None = None,
    log_path: str | Path | None = None,
) -> Iterator[ServerProcess]:
    """Run `rocketspark server` while the `with` block lasts.

    Args:
        store: folder for the messages.
        namesrv_port, broker_port: 0 takes free ones.
        config: keys of broker.conf.
        log_path: file for its log [default: beside the store].
    """
    server = ServerProcess(store, namesrv_port=namesrv_port, broker_port=broker_port, config=config, log_path=log_path)
    server.start()
    try:
        yield server
    finally:
        if server.is_running:
            server.stop()
