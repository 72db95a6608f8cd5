"""The fixtures of pytest as a project uses them: the one that docs/use/testing.md shows, and what goes wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows(
    "pytest's fixtures: a project of ten tests under xdist, faults, a cluster that runs already"
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "use" / "testing.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
PLUGIN = "rocketspark.testing.pytest_plugin"


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Pytest in a project's folder, with this plugin alone; its exit code and all that it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ROCKETMQ_"))}
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments]
    environment = kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def project(folder: Path, tests: str, settings: str = "") -> None:
    (folder / "test_it.py").write_text(tests, "utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\n{settings}\n", "utf-8")


def test_pytest_finds_the_plugin() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["entry-points"]["pytest11"] == {"rocketspark": PLUGIN}


def test_the_project_of_the_page_under_xdist(tmp_path: Path) -> None:
    for kind, name in (("python", "test_orders.py"), ("ini", "pytest.ini")):
        (block,) = re.findall(rf"^```{kind}\n# {name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(block, "utf-8")
    (shown,) = re.findall(r"^```python\n(def test_.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_readme.py").write_text(shown, "utf-8")
    code, said = run(tmp_path, "-p", "xdist", "-n", "2", "-q")
    assert code == 0, said
    assert re.search(r"^11 passed", said, re.MULTILINE), said


def test_a_cluster_that_runs_already(tmp_path: Path) -> None:
    tests = """
def test_sent(rocketmq_topic, rocketmq_producer, wait_for_messages):
    rocketmq_producer.send(rocketmq_topic, b"x")
    assert [message.body for message in wait_for_messages(rocketmq_topic, 1)] == [b"x"]


def test_killed(rocketmq):
    rocketmq.kill_master()
"""
    project(tmp_path, tests)
    with run_cluster() as cluster:
        code, said = run(tmp_path, "--rocketmq-namesrv", cluster.namesrv)
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "kill_master() is for a cluster of the tests' own: run them without --rocketmq-namesrv" in said


def test_a_broker_without_replicas_that_a_test_has_killed_runs_again_for_the_next(tmp_path: Path) -> None:
    tests = """
import pytest


def test_killed(rocketmq, rocketmq_topic):
    rocketmq.kill_master()
    with pytest.raises(Exception):
        rocketmq.messages(rocketmq_topic)


def test_sent(rocketmq_topic, rocketmq_producer, wait_for_messages):
    rocketmq_producer.send(rocketmq_topic, b"x")
    assert [message.body for message in wait_for_messages(rocketmq_topic, 1)] == [b"x"]
"""
    project(tmp_path, tests)
    code, said = run(tmp_path)
    assert code == 0, said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("rocketmq_brokers = many", "rocketmq_brokers = 'many' is no number"),
        ("rocketmq_settings =\n  noSuchKey = 1", "rocketmq_settings: broker.conf has no noSuchKey"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: str, says: str, tmp_path: Path) -> None:
    project(tmp_path, "def test_it(rocketmq): pass", settings)
    code, said = run(tmp_path)
    assert code == 1
    assert f"the fixture rocketmq cannot start its cluster: {says}" in said
    assert "Traceback" not in said
    assert "pytest_plugin.py" not in said


def test_a_run_that_uses_none_of_it_loads_nothing(tmp_path: Path) -> None:
    tests = """
import sys


def test_nothing():
    loaded = {name for name in sys.modules if name.split(".")[0] == "rocketspark"}
    assert loaded == {"rocketspark", "rocketspark.lazy", "rocketspark.testing", "rocketspark.testing.pytest_plugin"}
"""
    project(tmp_path, tests)
    code, said = run(tmp_path)
    assert code == 0, said
