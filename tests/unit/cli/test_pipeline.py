"""The frame of `rocketspark pipeline`: quick to start, and clear about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocketspark.cli.commands.pipelines import shared
from rocketspark.errors import ConfigError


def test_help_does_not_import_spark() -> None:
    code = "import sys; from rocketspark.cli import main; main.run(['pipeline', '-h']); print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pyspark is missing: pip install rocketspark\[spark\]"):
        shared.connect("a:1")
