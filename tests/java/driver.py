"""The official Java client, driven from Python: one JVM per client version, commanded by JSON lines.

The Java side is src/*.java; its `register` methods list the commands and their arguments.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".setup" / "java"
SOURCES = Path(__file__).resolve().parent / "src"
CLIENT_VERSIONS = ("5.5.0", "4.9.7")


class JavaError(Exception):
    """What the Java client threw: its exception's simple name, text and, where it has one, response code."""

    def __init__(self, command: str, kind: str, text: str, code: int) -> None:
        super().__init__(f"{command}: {kind}: {text}")
        self.kind = kind
        self.text = text
        self.code = code


def java_home() -> Path | None:
    """The Java that set-up chose, else JAVA_HOME; None when there is neither."""
    chosen = ROOT / ".setup" / "java_home"
    if chosen.exists():
        return Path(chosen.read_text().strip())
    return Path(os.environ["JAVA_HOME"]) if "JAVA_HOME" in os.environ else None


def missing_tools() -> str | None:
    """What keeps the Java tests from running, in words; None when all is there."""
    home = java_home()
    if home is None or not (home / "bin" / "javac").exists():
        return "no JDK: run `make setup`"
    wanted = [f"client-{version}" for version in CLIENT_VERSIONS] + ["server-5.5.0"]
    absent = [name for name in wanted if not any((JARS / name).glob("*.jar"))]
    return f"RocketMQ jars missing ({', '.join(absent)}): run `make setup`" if absent else None


def java_tool(name: str) -> str:
    home = java_home()
    assert home is not None, "no JDK: run `make setup`"
    return str(home / "bin" / name)


def compiled_classes(version: str) -> Path:
    """Compiles src/*.java against the client of `version`, once per state of the sources; returns the folder."""
    sources = sorted(SOURCES.glob("*.java"))
    state = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = JARS / f"classes-{version}-{state}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=JARS, prefix="compiling-") as folder:
        command = [java_tool("javac"), "-encoding", "UTF-8", "-Xlint:-deprecation", "-nowarn", "-d", folder]
        command += ["-cp", str(JARS / f"client-{version}" / "*"), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"javac for client {version}:\n{done.stderr}"
        shutil.copy(SOURCES / "logback.xml", folder)
        try:
            Path(folder).rename(target)  # One step: another worker sees all of it or nothing.
            Path(folder).mkdir()
        except OSError:
            assert target.exists()
    return target


class JavaDriver:
    """One JVM with the official client of one version.

    Args:
        version: "5.5.0" or "4.9.7".
        folder: for its logs and home; stderr goes to driver.log there.
        serialization: header form the client writes, "JSON" or "ROCKETMQ".
    """

    def __init__(self, version: str, folder: Path, serialization: str = "JSON") -> None:
        self.version = version
        self.folder = folder
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        classes = compiled_classes(version)
        command = [java_tool("java"), "-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}", "-Drocketmq.client.logLevel=WARN"]
        command += [f"-Drocketmq.serialize.type={serialization}", "-Dfile.encoding=UTF-8"]
        command += ["-cp", f"{classes}{os.pathsep}{JARS / f'client-{version}' / '*'}", "Driver"]
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._reader = threading.Thread(target=self._read_answers, name=f"java-{version}", daemon=True)
        self._reader.start()
        self.call("ping")

    def submit(self, command: str, **args: Any) -> Future[Any]:
        """Sends a command and returns at once; the future holds its result or JavaError."""
        answer: Future[Any] = Future()
        line = {"command": command, **args}
        with self._lock:
            line["id"] = next(self._ids)
            self._pending[line["id"]] = (command, answer)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        return answer

    def call(self, command: str, *, call_timeout_s: float = 60, **args: Any) -> Any:
        """Runs a command of the Java side and returns its result.

        Raises:
            JavaError: the Java client threw.
            TimeoutError: no answer within `call_timeout_s`.
        """
        return self.submit(command, **args).result(call_timeout_s)

    @contextmanager
    def started(self, kind: str, **args: Any) -> Iterator[str]:
        """Starts a client in the JVM for the length of a `with` block; yields the name that commands take.

        Args:
            kind: "producer", "push", "pull", "lite" or "admin".
            args: of its `start` command.
        """
        with self._lock:
            name = f"{kind}{next(self._ids)}"
        self.call(f"{kind}_start", name=name, **args)
        try:
            yield name
        finally:
            stopped = self.submit(f"{kind}_stop", name=name)
            # A consumer's stop stores its offsets and leaves its group. Others need not be waited for:
            # the 5.5.0 client's shutdown hangs 3 s now and then, joining a thread that polls.
            if kind in ("push", "lite"):
                stopped.result(60)

    def close(self) -> None:
        """Ends the JVM: by end of input, else by force."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                command, waiting = self._pending.pop(answer["id"])
            if "error" in answer:
                error = answer["error"]
                waiting.set_exception(JavaError(command, error["type"], error["message"], error["code"]))
            else:
                waiting.set_result(answer["result"])
        with self._lock:
            left = list(self._pending.values())
            self._pending.clear()
        for command, waiting in left:
            text = f"the JVM ended; see {self.folder / 'driver.log'}"
            waiting.set_exception(JavaError(command, "JvmEnded", text, -1))


def message(topic: str, body: bytes | str, **fields: Any) -> dict[str, Any]:
    """A message for the send commands; fields: tag, keys, flag, delay_level, properties, shard."""
    raw = body.encode() if isinstance(body, str) else body
    return {"topic": topic, "body": base64.b64encode(raw).decode(), **fields}


def body_of(received: dict[str, Any]) -> bytes:
    """The body of a message as the driver returned it."""
    return base64.b64decode(received["body"])
