"""The official Java client, driven from Python: one JVM per client version, commanded by JSON lines.

The Java side is src/*.java; its `register` methods list the commands and their arguments.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.commanded import Commanded, body_of, message
from tests.support.commanded import CommandError as JavaError
from tests.support.official import SHORT_LIVED

__all__ = ["CLIENT_VERSIONS", "JARS", "SOURCES", "JavaDriver", "JavaError", "body_of", "message"]

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".setup" / "java"
SOURCES = Path(__file__).resolve().parent / "src"
CLIENT_VERSIONS = ("5.5.0", "4.9.7")


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


def class_archive(jars: Path) -> Path:
    """Where the classes of a folder of jars are to be in one file: tests/support/java_classes.py."""
    return ROOT / ".setup" / "java_classes" / f"{jars.name}.jsa"


def mapped_classes(jars: Path) -> tuple[str, ...]:
    """Options of a JVM whose class path begins with all jars of that folder: their classes are mapped."""
    archive = class_archive(jars)
    # Without its log a file that does not fit is passed over in silence.
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()


def quick_start(jars: Path) -> tuple[str, ...]:
    """Options of such a JVM that lives for seconds."""
    return (*SHORT_LIVED.split(), *mapped_classes(jars))


def compiled_classes(version: str) -> Path:
    """Compiles src/*.java against the client of `version`, once per state of the sources; returns the folder."""
    return compiled(version, sorted(SOURCES.glob("*.java")), JARS / f"client-{version}")


def compiled(name: str, sources: list[Path], jars: Path) -> Path:
    """Compiles sources against the jars of a folder, once per state of the sources; returns the folder with classes."""
    state = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = JARS / f"classes-{name}-{state}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=JARS, prefix="compiling-") as folder:
        command = [java_tool("javac"), "-encoding", "UTF-8", "-Xlint:-deprecation", "-nowarn", "-d", folder]
        command += ["-cp", str(jars / "*"), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"javac for {name}:\n{done.stderr}"
        shutil.copy(SOURCES / "logback.xml", folder)
        try:
            Path(folder).rename(target)  # One step: another worker sees all of it or nothing.
            Path(folder).mkdir()
        except OSError:
            assert target.exists()
    return target


class JavaDriver(Commanded):
    """One JVM with the official client of one version.

    Args:
        version: "5.5.0" or "4.9.7".
        folder: for its logs and home; stderr goes to driver.log there.
        serialization: header form the client writes, "JSON" or "ROCKETMQ".
        flags: more options of the JVM.
    """

    def __init__(self, version: str, folder: Path, serialization: str = "JSON", flags: tuple[str, ...] = ()) -> None:
        classes, jars = compiled_classes(version), JARS / f"client-{version}"
        argv = [java_tool("java"), "-Xms64m", "-Xmx512m", *quick_start(jars)]
        argv += [f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}", "-Drocketmq.client.logLevel=WARN"]
        argv += [f"-Drocketmq.serialize.type={serialization}", "-Dfile.encoding=UTF-8", *flags]
        argv += ["-cp", f"{jars / '*'}{os.pathsep}{classes}", "Driver"]
        super().__init__(version, argv, folder)
