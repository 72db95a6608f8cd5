"""Marks by folder, and which tests share a worker, so that what is dear to start is started once.

Rule: tests that share an official server or client, or a Spark session, go to one worker; other files are shared out
whole.
"""

from __future__ import annotations

import gc
import os
import signal
import weakref
from typing import Any

import pytest
from tests.support import spark_classes
from tests.support.examples import TIMES
from tests.support.official import SMOKE, drives_official_software, watch
from tests.support.processor_time import Costs
from tests.support.temporary_folder import TemporaryFolder

from rocketspark.model.limited_log import LimitedLog

MARKED_FOLDERS = ("java", "spark")
UNITS_OF_SPARK = "tests/unit/spark/"

_logs: weakref.WeakSet[LimitedLog] = weakref.WeakSet()
_make_log = LimitedLog.__init__


def _noted_log(log: LimitedLog, *arguments: Any, **more: Any) -> None:
    _make_log(log, *arguments, **more)
    _logs.add(log)


LimitedLog.__init__ = _noted_log  # type: ignore[method-assign]


def pytest_configure(config: pytest.Config) -> None:
    # What is imported and collected stays: nobody need look through it for what may go.
    gc.disable()
    config.pluginmanager.register(Costs())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TemporaryFolder())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Begun in the background of a shell: what tests start would never hear a Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # What the person who runs the tests has there is no part of them.
    os.environ["ROCKETSPARK_CONTEXTS"] = "/nonexistent/contexts.toml"
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(name, spark_classes.jvm_options())


def pytest_report_header(config: pytest.Config) -> str | None:
    if not TIMES:
        return None
    seed = config.getoption("--hypothesis-seed")
    return (
        f"{TIMES} times as many examples, drawn from {seed}; one test again: "
        f"make soak-examples SEED={seed} TIMES={TIMES} TESTS=tests/FILE.py::TEST"
    )


@pytest.fixture(autouse=True)
def own_log_lines() -> None:
    """Each test writes its own lines, as if none had been written before."""
    for log in _logs:
        log._kinds.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.nodeid.split("/", 2)[1]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if item.nodeid.startswith(UNITS_OF_SPARK):
            item.add_marker("every_spark")
        if drives_official_software(item, folder) and item.nodeid not in SMOKE:
            item.add_marker("official")
    items.sort(key=lambda item: rank_of(group_of(item.nodeid)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    watch(item)


# What takes longest is begun first, so that no worker is left with it in the end.
FIRST: tuple[str, ...] = (
    "spark",
    "clients",
    "tests/spark/test_standalone.py",
    "tests/spark/test_kills.py",
    "java",
    "mqadmin",
    "stores",
)
FIRST += tuple(
    f"tests/spark/lakehouse/test_{name}.py"
    for name in ("table_archives", "iceberg_writers", "commands_on_s3a", "s3a", "tables_over_connect")
)
FIRST += tuple(f"tests/java/test_{name}.py" for name in ("failover", "acting_master", "replication_mixed"))
FIRST += ("tests/v5/test_clients.py", "tests/java/test_java_slave_of_ours.py")
FIRST += ("jvm", "pipelines", "tests/spark/test_demo.py", "tests/spark/test_exactly_once.py", "cpp", "go")

# Those without the session of the others, by themselves.
OWN_PROCESSES = {name for name in FIRST if name.startswith("tests/spark/")}


def rank_of(group: str) -> int:
    """When a group is begun."""
    return FIRST.index(group) if group in FIRST else len(FIRST)


def group_of(node_id: str) -> str:
    """What a test shares its worker with; node ids are `tests/folder/file.py::name[parameters]`."""
    file, _, name = node_id.partition("::")
    parts = file.split("/")
    if parts[:2] == ["tests", "spark"] and file not in OWN_PROCESSES:
        # Two sessions: one worker alone would be busy with them long after the other has done all else.
        return "pipelines" if parts[2] == "pipelines" else "spark"
    if node_id in SMOKE and parts[1] == "java":
        return "jvm"
    if parts[:2] == ["tests", "java"]:
        if file in OWN_PAIRS:
            return file
        return "mqadmin" if "mqadmin" in file else "stores" if "store" in file else "java"
    if parts[1] in ("go", "cpp"):
        return parts[1]
    return "clients" if "apache" in name or file in ONLY_OFFICIAL else file


# Files of tests/java whose brokers no other file shares.
OWN_PAIRS = {
    f"tests/java/{name}.py"
    for name in (
        "test_acting_master",
        "test_client_failover",
        "test_controller",
        "test_failover",
        "test_ha_link",
        "test_java_slave_of_ours",
        "test_namesrv_replicas",
        "test_pair_on_our_namesrv",
        "test_replication_mixed",
        "test_slave_synchronize",
        "test_static_topics",
    )
}

# Files of tests/clients that always need the official servers or clients.
ONLY_OFFICIAL = {
    f"tests/clients/{name}.py"
    for name in ("test_asked", "test_signed", "test_slaves", "test_with_java", "test_with_java_records")
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
