"""A Kafka broker as a process, and Kafka's Python clients: fetched from Maven and PyPI when first asked for.

Rule: nothing of it is part of set-up; it lies in .setup/ and is fetched once per version.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.java.driver import JARS, java_home, java_tool
from tests.support.ports import free_ports

from bench.peers import Servers, stop

VERSION = "4.1.0"
PACKAGES = ("aiokafka==0.14.0", "confluent-kafka==2.16.1")
POM = Path(__file__).resolve().parent / "java" / "kafka-pom.xml"
FETCH_S_MAX = 300.0
READY_S_MAX = 60.0

# One node in KRaft mode with its defaults, but for what one node needs, and for groups that begin at once.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={store}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def fetched_jars() -> Path:
    """The folder of the broker's jars, copied by Maven as set-up copies RocketMQ's. Raises SystemExit."""
    if java_home() is None:
        raise SystemExit("no JDK: run `make setup`")
    target = JARS / f"kafka-{VERSION}"
    if not target.exists():
        print(f"  fetching Kafka {VERSION} with Maven", flush=True)
        with tempfile.TemporaryDirectory(dir=JARS, prefix="fetching-") as folder:
            jars = Path(folder) / "jars"
            command = ["mvn", "-B", "-ntp", "-q", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}", f"-Dkafka.version={VERSION}"]
            fetch("Maven could not fetch Kafka's jars", command, {"JAVA_HOME": str(java_home())})
            jars.rename(target)
    return target


def fetched_clients() -> Path:
    """The folder with Kafka's Python clients, for PYTHONPATH: apart from .venv, which is the project's own."""
    target = JARS.parent / ("kafka-python-" + "-".join(p.rpartition("=")[2] for p in PACKAGES))
    if not target.exists():
        print(f"  fetching {', '.join(PACKAGES)} with pip", flush=True)
        with tempfile.TemporaryDirectory(dir=JARS.parent, prefix="fetching-") as folder:
            found = Path(folder) / "packages"
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "--target",
                str(found),
            ]
            fetch("pip could not fetch Kafka's Python clients", [*command, *PACKAGES], {})
            found.rename(target)
    return target


def fetch(failure: str, command: list[str], variables: dict[str, str]) -> None:
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{failure}: there is no {command[0]}; run `make setup`")
    try:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=FETCH_S_MAX)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{failure} within {FETCH_S_MAX:.0f} s") from None
    if done.returncode:
        raise SystemExit(f"{failure}: {(done.stdout + done.stderr)[-2000:]}")


@contextmanager
def kafka() -> Iterator[Servers]:
    """Apache Kafka, one node, as its own start scripts run it: G1 and a heap of 1 GiB."""
    jars = fetched_jars()
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-kafka-") as temporary:
        folder = Path(temporary)
        port = free_ports(0, 1)
        conf = folder / "server.properties"
        conf.write_text(PROPERTIES.format(broker=port, controller=port + 1, store=folder / "logs"))
        java = [java_tool("java"), "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Xms1g", "-Xmx1g"]
        java += ["-cp", str(jars / "*")]
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(conf)]
        done = subprocess.run([*java, *command], capture_output=True, text=True, timeout=READY_S_MAX)
        if done.returncode:
            raise SystemExit(f"Kafka's storage could not be formatted: {(done.stdout + done.stderr)[-2000:]}")
        started = time.perf_counter()
        log_path = folder / "server.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen([*java, "kafka.Kafka", str(conf)], stdout=log, stderr=log)
        try:
            while not _listens(port):
                if process.poll() is not None or time.perf_counter() - started > READY_S_MAX:
                    raise SystemExit(f"Kafka did not start\n{log_path.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
            address = f"127.0.0.1:{port}"
            yield Servers(address, address, process.pid, time.perf_counter() - started, folder, name="kafka")
        finally:
            stop(process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
