"""The official NameServer and broker as processes, on free ports of 127.0.0.1, with a store folder of the caller's.

Each process is stopped by the object that started it; stop() is a clean SIGTERM, kill() is not.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.java.driver import JARS, java_tool, mapped_classes
from tests.support.official import SHORT_LIVED, started
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports
from tests.support.raw_frames import read_frame, write_frame
from tests.support.temporary_folder import jvm_option

SERVER_JARS = JARS / "server-5.5.0"
BOOT_TIMEOUT_S = 200.0


class Answer(NamedTuple):
    """A response, not looked into."""

    code: int
    ext_fields: dict[str, str]
    body: bytes


def ask(
    address: str, code: int, body: bytes = b"", ext_fields: dict[str, str] | None = None, timeout_s: float = 60.0
) -> Answer:
    """One request with a JSON header, written out by hand so that it depends on none of our code."""
    fields = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": ext_fields or {}}
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout_s) as link:
        write_frame(link, fields, body)
        answer, found = read_frame(link)
    return Answer(answer["code"], answer.get("extFields", {}), found)


def committed_offset(broker: str, group: str, topic: str, queue_id: int) -> int | None:
    """What the group committed, None if nothing. Asked for by hand: a Java client would join the group for it."""
    wanted = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
    answer = ask(broker, 14, ext_fields=wanted)
    return int(answer.ext_fields["offset"]) if answer.code == 0 else None


def make_group(broker: str, group: str, topic: str) -> None:
    """Make the group, and its table of offsets of the topic by the commit of a queue that nobody has.

    Of a group's first two commits to a topic that come at once the official broker forgets one.
    """
    assert ask(broker, 200, json.dumps({"groupName": group}).encode()).code == 0
    commit = {"consumerGroup": group, "topic": topic, "queueId": "99", "commitOffset": "0"}
    assert ask(broker, 15, ext_fields=commit).code == 0


def max_offset(broker: str, topic: str, queue_id: int) -> int:
    """How many messages the queue shows so far."""
    answer = ask(broker, 30, ext_fields={"topic": topic, "queueId": str(queue_id)})
    return int(answer.ext_fields["offset"]) if answer.code == 0 else 0


def await_queues(broker: str, topic: str, *counts: int) -> None:
    """Wait until the queues 0, 1, … show so many messages: the official broker answers a send before they do."""
    deadline = time.monotonic() + LIMIT_S
    for queue_id, count in enumerate(counts):
        while (found := max_offset(broker, topic, queue_id)) < count:
            assert time.monotonic() < deadline, f"queue {queue_id} of {topic} shows {found} of {count} messages"
            time.sleep(0.01)


class _JavaServer:
    """One JVM with one main class, started with a config file."""

    _main: str
    _flags: tuple[str, ...] = ()
    _jars: Path = SERVER_JARS
    # A quick start for tests; whoever measures sets the server's own. With TLS each start would make keys and a
    # certificate, half of its time.
    jvm_flags: tuple[str, ...] = (*SHORT_LIVED.split(), "-Dtls.server.mode=disabled")

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        started(self._main)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log_path = folder / "server.log"
        self._config = config
        self.start()

    def start(self, config: dict[str, Any] | None = None) -> None:
        """Start it, after stop() or kill() again: at the same ports, on the same store. `config`: keys that change."""
        self._config = self._config | (config or {})
        options = self._write_config()
        quick = set(SHORT_LIVED.split()) <= set(self.jvm_flags)
        command = [java_tool("java"), *(mapped_classes(self._jars) if quick else ()), *self.jvm_flags, *self._flags]
        command += [f"-Drocketmq.home.dir={self.folder}", f"-Duser.home={self.folder}", jvm_option()]
        command += ["--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"]
        command += ["-cp", str(self._jars / "*"), self._main, *options]
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise

    def _write_config(self) -> list[str]:
        """Writes the settings to files; returns the options that name them."""
        config_path = self.folder / "server.conf"
        config_path.write_text("".join(f"{key}={value}\n" for key, value in self._config.items()))
        return ["-c", str(config_path)]

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            try:
                if self._is_ready():
                    return
            except (OSError, ConnectionError):
                pass
            if self._process.poll() is not None:
                raise AssertionError(f"{self._main} ended with {self._process.returncode}:\n{self._log_end()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{self._main} not ready after {BOOT_TIMEOUT_S} s:\n{self._log_end()}")
            time.sleep(0.2)

    def _log_end(self) -> str:
        return self.log_path.read_text(errors="replace")[-3000:]

    def stop(self, timeout_s: float = 200) -> int:
        """A clean stop (SIGTERM, shutdown hooks run); by force when that takes too long. Returns the exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self._main} did not stop in {timeout_s} s:\n{self._log_end()}") from None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; nothing is flushed or tidied."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class ApacheNamesrv(_JavaServer):
    """The official NameServer 5.5.0."""

    _main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    _flags = ("-Xms128m", "-Xmx256m")

    def __init__(self, folder: Path, config: dict[str, Any] | None = None) -> None:
        port = free_ports()
        self.namesrv = f"127.0.0.1:{port}"
        super().__init__(folder, {"listenPort": port, "bindAddress": "127.0.0.1"} | (config or {}))

    def _is_ready(self) -> bool:
        return ask(self.namesrv, 106).code == 0  # cluster info


class ApacheController(_JavaServer):
    """The official controller 5.5.0, one node. `config`: more keys of controller.conf."""

    _main = "org.apache.rocketmq.controller.ControllerStartup"
    _flags = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")

    def __init__(self, folder: Path, config: dict[str, Any] | None = None, port: int = 0) -> None:
        port = port or free_ports()
        self.controller = f"127.0.0.1:{port}"
        settings: dict[str, Any] = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": folder / "store",
            "mappedFileSize": 1 << 20,
            "scanNotActiveBrokerInterval": 1000,
            "scanInactiveMasterInterval": 1000,
        }
        super().__init__(folder, settings | (config or {}))

    def _is_ready(self) -> bool:
        # It listens before it leads: until then it names no leader.
        return ask(self.controller, 1004, ext_fields={"brokerName": "none"}).code == 2008


# Three threads of the official broker would keep a core busy. TransactionMetricsFlush spins until its first interval is
# over; TransactionalOpBatch, once a transaction has ended, from one interval after that until the next end (so what
# ended is written at once, and the interval never passes); TimerFlush compares 38 MB each time.
QUIET = {
    "transactionMetricFlushInterval": 200,
    "transactionOpMsgMaxSize": 1,
    "transactionOpBatchInterval": 3_600_000,
    "timerFlushIntervalMs": 60_000,
}


class ApacheBroker(_JavaServer):
    """The official broker 5.5.0, ready once the NameServer knows it.

    Args:
        folder: for its config and logs.
        namesrv: "host:port", or several with ";" between.
        store: the store directory; an existing one is recovered.
        name: the broker name.
        config: more keys of broker.conf.
        port: its port, where port - 2 and port + 1 are free as well; chosen if it is left out.
    """

    _main = "org.apache.rocketmq.broker.BrokerStartup"
    _flags = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        store: Path,
        name: str = "broker-a",
        config: dict[str, Any] | None = None,
        port: int | None = None,
    ) -> None:
        port = port or free_ports(-2, 0, 1)  # It also listens on port - 2 (VIP) and port + 1 (replication).
        self.broker = f"127.0.0.1:{port}"
        self.namesrv = namesrv
        self.name = name
        self.store = store
        settings: dict[str, Any] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": 0,
            "listenPort": port,
            "haListenPort": port + 1,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": namesrv,
            "storePathRootDir": store,
            "mappedFileSizeCommitLog": 16 * 1024 * 1024,
            "mappedFileSizeConsumeQueue": 20 * 10_000,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "diskMaxUsedSpaceRatio": 99,
            "cleanFileForciblyEnable": "false",
            "traceTopicEnable": "false",
        }
        super().__init__(folder, settings | QUIET | (config or {}))

    def _is_ready(self) -> bool:
        infos = [ask(address, 106) for address in self.namesrv.split(";")]
        if all(i.code == 0 and f'"{self.name}"'.encode() in i.body and self.broker.encode() in i.body for i in infos):
            return True
        # By itself it registers only 10 s after it is up; setting its permission anew does that at once.
        ask(self.broker, 25, b"brokerPermission=6")
        return False


class ApacheCluster:
    """A NameServer and one broker. `namesrv`, `broker`: their addresses; `store`: the broker's store directory."""

    def __init__(self, folder: Path, config: dict[str, Any] | None = None) -> None:
        self._namesrv = ApacheNamesrv(folder / "namesrv")
        self.namesrv = self._namesrv.namesrv
        try:
            self._broker = ApacheBroker(folder / "broker", self.namesrv, folder / "store", config=config)
        except BaseException:
            self._namesrv.kill()
            raise
        self.broker = self._broker.broker
        self.store = self._broker.store

    def stop(self) -> None:
        """Ends both cleanly."""
        self._broker.stop()
        self._namesrv.stop()

    def restart(self) -> None:
        """Stops the broker cleanly, and starts it again on its store."""
        self._broker.stop()
        self._broker.start()

    def close(self) -> None:
        """Ends both; nothing is kept, so by force."""
        self._broker.kill()
        self._namesrv.kill()
