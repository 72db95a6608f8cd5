"""The options of `broker` beside its broker.conf, and the command as a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rocketspark
from rocketspark.broker.access.settings import AccessSettings
from rocketspark.broker.settings import BrokerSettings
from rocketspark.cli.serving import proxy_process
from rocketspark.cli.serving.broker_options import BrokerOptions, GrpcBeside
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


@pytest.mark.shows("mended: whoever reached the proxy beside a broker with white lists came in by the proxy's address")
@pytest.mark.parametrize("switch", ["acl", "authentication", "authorization"])
def test_no_proxy_that_asks_nobody_runs_beside_a_broker_that_asks(
    switch: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_process, "is_installed", lambda: True)
    monkeypatch.setattr(proxy_process, "DEFAULT_PORT", 0)
    guarded = BrokerSettings(**{switch: True})
    assert GrpcBeside().port(guarded, secure=False) is None
    assert "gRPC is not served: the broker has access control" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--grpc-port 0: the broker has access control and no innerClient"):
        GrpcBeside(grpc_port=0).port(guarded, secure=False)
    own = AccessSettings(inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"secret"}')
    assert GrpcBeside(grpc_port=0).port(BrokerSettings(**{switch: True}, access=own), secure=False) == 0
    assert GrpcBeside().port(guarded, secure=True) == 0
    assert GrpcBeside().port(BrokerSettings(), secure=False) == 0
    assert GrpcBeside(no_grpc=True).port(guarded, secure=False) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("switches", "keys_alone"),
    [
        (("authentication",), True),
        (("authentication", "authorization"), False),
        (("authorization",), False),
        # It is the rules of 2.0 that keep clients of the proxy from what those of 1.0 say.
        (("authentication", "acl"), False),
        (("acl",), False),
    ],
)
def test_a_proxy_asks_for_rules_unless_its_broker_does_not(switches: tuple[str, ...], *, keys_alone: bool) -> None:
    own = AccessSettings(inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"secret"}')
    options, _ = proxy_process.access_beside(BrokerSettings(**dict.fromkeys(switches, True), access=own))
    assert (proxy_process.KEYS_ALONE in options) is keys_alone
