"""The options of `broker` beside its broker.conf, and the command as a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rocketspark
from rocketspark.cli.serving.broker_options import BrokerOptions
from rocketspark.errors import ConfigError


def test_controllers_given_as_an_option_count_as_those_of_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-b\nenableControllerMode=true\n")
    with pytest.raises(ConfigError, match="enableControllerMode=true needs controllerAddr"):
        BrokerOptions(config=conf).settings()
    settings = BrokerOptions(config=conf, controller="127.0.0.1:9877").settings()
    assert (settings.controller_mode, settings.controller_addresses, settings.broker_name) == (
        True,
        "127.0.0.1:9877",
        "broker-b",
    )
    conf.write_text("enableControllerMode=true\ncontrollerAddr=10.0.0.1:9877\n")
    assert BrokerOptions(config=conf, controller="127.0.0.1:9878").settings().controller_addresses == "127.0.0.1:9878"


def test_the_command_runs_as_a_module() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "rocketspark", "--version"], capture_output=True, text=True, timeout=120, check=True
    )
    assert said.stdout == f"{rocketspark.__version__}\n"
