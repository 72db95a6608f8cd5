"""The Java side of the client bench: java/Perf.java, compiled against the official client and run with its full JIT."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.java.driver import JARS, SOURCES, java_tool, missing_tools

VERSION = "5.5.0"
SOURCE = Path(__file__).resolve().parent / "java" / "Perf.java"


def compiled() -> Path:
    """The folder of classes, made once per state of the source."""
    missing = missing_tools()
    if missing:
        raise SystemExit(missing)
    target = JARS / f"classes-perf-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=JARS, prefix="compiling-") as folder:
            classes = Path(folder) / "classes"
            command = [java_tool("javac"), "-encoding", "UTF-8", "-nowarn", "-d", str(classes)]
            command += ["-cp", str(JARS / f"client-{VERSION}" / "*"), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"javac: {done.stderr}")
            (classes / "logback.xml").write_bytes((SOURCES / "logback.xml").read_bytes())
            classes.rename(target)
    return target


def command(folder: Path, *arguments: str) -> list[str]:
    """The command line of Perf with these arguments; its logs go to `folder`."""
    path = f"{compiled()}{os.pathsep}{JARS / f'client-{VERSION}' / '*'}"
    # The flags of Apache RocketMQ's own runclass script, with a heap that leaves room for the others.
    return [
        *(java_tool("java"), "-server", "-XX:+UseG1GC", "-Xms512m", "-Xmx1g"),
        *(f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}", "-Drocketmq.client.logLevel=WARN"),
        *("-cp", path, "Perf", *arguments),
    ]
