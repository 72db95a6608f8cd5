"""The frame of `rocketspark pipeline`: quick to start, and clear about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocketspark.cli import main
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


@pytest.mark.parametrize("command", ["restore", "replay"])
def test_a_restore_is_named_by_fixed_times(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", command, "x", "--to", "y", "--since", "24h"]) == 2
    assert "'24h': a time is needed, not how long ago" in capsys.readouterr().err


def test_an_archive_needs_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", "archive", "--to", "x"]) == 2
    assert "name topics, or give -o topicPattern=REGEX" in capsys.readouterr().err


def test_an_hour_is_a_time() -> None:
    for text in ("2026-11-21T05", "2026-11-21T06:00+01:00"):
        assert shared.time_ms(text, "--since") == 1_795_237_200_000
