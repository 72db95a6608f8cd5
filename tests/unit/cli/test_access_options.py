"""The options of keys and TLS: one declaration for all commands, secrets from files and the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import typer

from rocketspark.cli import tree
from rocketspark.cli.options import ClusterAccess, without_secrets
from rocketspark.errors import ConfigError

pytestmark = pytest.mark.shows(
    "keys and TLS of every command: options, environment, files; a secret in the command line is warned of",
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "run" / "security.md"
SECRET = "hide-me"
NOT_ASKING = ("broker", "context add")
VARIABLES = ("SECRET_KEY", "SECRET_KEY_FILE", "TLS_KEY_PASSWORD", "TLS_KEY_PASSWORD_FILE")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"ROCKETMQ_{name}", raising=False)


def of_commands() -> dict[str, dict[str, Any]]:
    """By command, its options with what they are."""
    found = {}

    def walk(command: Any, names: tuple[str, ...]) -> None:
        for name, below in getattr(command, "commands", {}).items():
            walk(below, (*names, name))
        if not hasattr(command, "commands"):
            found[" ".join(names)] = {option: p for p in command.params for option in (*p.opts, *p.secondary_opts)}

    walk(tree.tree(), ())
    return found


def test_every_command_that_asks_a_cluster_has_them_all() -> None:
    commands = of_commands()
    # Servers have a --namesrv too.
    asking = {name: options for name, options in commands.items() if "--namesrv" in options and name not in NOT_ASKING}
    assert len(asking) >= 30
    whole = {
        option
        for option in asking["topic list"]
        if option not in ("--all", "--details", "--watch", "--json", "--help", "-h")
    }
    assert {"--access-key", "--secret-key-file", "--secret-key", "--tls", "--no-tls", "--tls-ca"} <= whole
    for name, options in asking.items():
        # One that runs for long names its cluster itself.
        assert whole - {"--context" if name == "proxy" else ""} <= options.keys(), name


def test_the_page_names_each_with_its_variable() -> None:
    options = of_commands()["topic list"]
    page = DOCS.read_text("utf-8")
    for option, parameter in options.items():
        if option.startswith(("--tls", "--no-tls", "--access", "--sec")):
            assert f"`{option}`" in page, option
            assert f"`{parameter.envvar}`" in page, option


def test_what_was_not_given_is_left_to_the_clients() -> None:
    assert ClusterAccess().client_options() == {}
    given = ClusterAccess(access_key="a", secret_key="b", security_token="c")
    assert SECRET not in repr(given._replace(secret_key=SECRET, security_token=SECRET))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"tls": True}, {"use_tls": True}),
        ({"tls_ca": "ca.pem"}, {"use_tls": True, "tls_ca": "ca.pem"}),
        ({"tls": False, "tls_ca": "ca.pem"}, {}),
        ({"tls": True, "tls_verify": "ca"}, {"use_tls": True, "tls_verify": "ca"}),
    ],
)
def test_each_option_of_tls_means_tls(given: dict[str, Any], options: dict[str, Any]) -> None:
    assert ClusterAccess(**given).client_options() == options


def test_a_secret_in_the_command_line_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ClusterAccess(access_key="a", secret_key=SECRET)
    assert given.client_options()["secret_key"] == SECRET
    said = capsys.readouterr().err
    assert said.startswith("warning: process lists and the shell's history show --secret-key")
    assert SECRET not in said
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", SECRET)
    assert given.client_options()["secret_key"] == SECRET
    assert capsys.readouterr().err == ""


def test_a_secret_in_the_command_line_is_not_in_that_of_processes_that_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`proxy --processes` starts them with its own command line."""
    words = ["proxy", "--access-key", "a", "--secret-key", SECRET, "--security-token=" + SECRET, "-p", "0"]
    left, environment = without_secrets(words)
    assert left == ["proxy", "--access-key", "a", "-p", "0"]
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY_FILE", "/of/the/shell")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert {os.environ[name] for name in ("ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN")} == {SECRET}
    assert os.environ["ROCKETMQ_SECRET_KEY_FILE"] == ""
    assert without_secrets(["proxy", "--secret-key-file", "f"]) == (["proxy", "--secret-key-file", "f"], {})


def test_a_secret_in_a_file_is_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\nmore\n")
    given = ClusterAccess(access_key="a", secret_key_file=file, tls_key_password_file=file, tls_cert="c.pem")
    found = given.client_options()
    assert (found["secret_key"], found["tls_key_password"]) == (SECRET, SECRET)
    with pytest.raises(typer.BadParameter, match="exclude each other"):
        given._replace(secret_key="other").client_options()
    # Of the command line goes before the environment; twice in the environment is a mistake.
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "other")
    assert given._replace(secret_key="other").client_options()["secret_key"] == SECRET
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY_FILE", str(file))
    with pytest.raises(ConfigError, match="are both set: unset one"):
        given._replace(secret_key="other").client_options()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe\n"])
def test_a_file_without_a_secret_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="key"):
        ClusterAccess(access_key="a", secret_key_file=file).client_options()
