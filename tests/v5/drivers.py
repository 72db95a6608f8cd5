"""The official clients of RocketMQ 5, one process each, commanded by JSON lines: the same commands in every language.

Each starts once and plays all its scenarios side by side.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.java.driver import JARS, compiled, java_tool, quick_start
from tests.support.commanded import Commanded

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SETUP = ROOT / ".setup"
PYTHON = SETUP / "python_v5" / "bin" / "python"
GO = SETUP / "go_v5_driver"
NODE_MODULES = SETUP / "node_v5" / "node_modules"
CLIENT_JARS = JARS / "grpc-client-5.2.0"
PROXY_JARS = JARS / "proxy-5.5.0"
LANGUAGES = ("python", "java", "go", "node")


def missing(language: str) -> str | None:
    """What keeps the client of a language from running, in words; None when all is there."""
    there = {
        "python": PYTHON.exists(),
        "java": any(CLIENT_JARS.glob("*.jar")),
        "go": GO.exists(),
        "node": (NODE_MODULES / "rocketmq-client-nodejs").exists(),
        "proxy": any(PROXY_JARS.glob("*.jar")),
    }[language]
    return None if there else f"RocketMQ 5's {language} is not there: run `make setup`"


def _plain_environment(folder: Path) -> dict[str, str]:
    # The machine's own proxies are none of the clients' business, and their logs go to the test's folder.
    kept = {key: value for key, value in os.environ.items() if "proxy" not in key.lower() and key != "NAMESRV_ADDR"}
    return kept | {"HOME": str(folder)}


def start(language: str, folder: Path) -> Commanded:
    """The process with the client of that language; `folder` gets its logs."""
    return {"python": _python, "java": _java, "go": _go, "node": _node}[language](folder)


def _python(folder: Path) -> Commanded:
    (folder / "logs" / "rocketmq_python").mkdir(parents=True, exist_ok=True)
    environment = _plain_environment(folder)
    environment.pop("PYTHONPATH", None)
    return Commanded("python", [str(PYTHON), str(HERE / "python" / "program.py")], folder, environment)


def _java(folder: Path) -> Commanded:
    classes = compiled("v5", sorted((HERE / "java").glob("*.java")), CLIENT_JARS)
    argv = [java_tool("java"), "-Xms64m", "-Xmx512m", *quick_start(CLIENT_JARS)]
    argv += [f"-Duser.home={folder}", "-Drocketmq.log.level=WARN", "-Dfile.encoding=UTF-8"]
    argv += ["-cp", f"{CLIENT_JARS / '*'}{os.pathsep}{classes}", "Program"]
    return Commanded("java", argv, folder, _plain_environment(folder))


def _go(folder: Path) -> Commanded:
    return Commanded("go", [str(GO)], folder, _plain_environment(folder) | {"rocketmq.client.enableSsl": "false"})


def _node(folder: Path) -> Commanded:
    chosen = SETUP / "node"
    node = chosen.read_text().strip() if chosen.exists() else "node"
    environment = _plain_environment(folder) | {"NODE_PATH": str(NODE_MODULES)}
    return Commanded("node", [node, str(HERE / "node" / "program.js")], folder, environment)
