"""`user` and `acl`: where passwords come from and where they are never seen, and what the tables show."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketspark.admin.access import RuleState, UserState
from rocketspark.cli import main
from rocketspark.cli.passwords import VARIABLE, random_password

SECRET = "marker-7f3a"


class Asked:
    """The operations that commands asked for, instead of a cluster's answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answer: Any = ["broker-a"]

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **more: Any) -> Any:
            self.calls.append((name, arguments, more))
            return self.answer

        return call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    import asyncio

    found = Asked()

    def run(at: Any, act: Any) -> Any:
        async def call() -> Any:
            return await act(found)

        return asyncio.run(call())

    monkeypatch.setattr("rocketspark.cli.commands.admin.user.run_operation", run)
    monkeypatch.setattr("rocketspark.cli.commands.admin.acl.run_operation", run)
    monkeypatch.delenv(VARIABLE, raising=False)
    return found


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_password_comes_from_a_file_stdin_or_the_environment_in_silence(
    asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\nnot this\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
    for options in (["--password-file", str(tmp_path / "secret")], ["--password-file", "-"], []):
        if not options:
            monkeypatch.setenv(VARIABLE, SECRET)
        code, out, err = said(capsys, "user", "create", "shop", *options)
        assert (code, out, err) == (0, "created shop on broker-a\n", "")
    assert [arguments for _, arguments, _ in asked.calls] == [("shop", SECRET)] * 3


def test_a_password_in_the_command_line_is_warned_of_and_not_repeated(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "user", "create", "shop", "--password", SECRET)
    assert code == 0
    assert err.startswith("warning: process lists")
    assert SECRET not in out + err
    assert asked.calls[0][1] == ("shop", SECRET)


def test_a_generated_password_is_printed_once_and_nobody_guesses_it(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "user", "update", "shop", "--generate")
    password = asked.calls[0][2]["password"]
    assert (code, out) == (0, f"updated shop on broker-a\npassword: {password}\n")
    assert password not in err
    assert len({random_password() for _ in range(100)}) == 100
    assert all(len(random_password()) == 24 and not random_password().startswith("-") for _ in range(100))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "shop"], "no password: give --password-file or --generate"),
        (["create", "shop", "--generate", "--password", "x"], "exclude each other"),
        (["create", "shop", "--password-file", "nowhere"], "nowhere cannot be read: No such file or directory"),
        (["create", "shop", "--password-file", "empty"], "empty is empty"),
        (["update", "shop"], "nothing to change"),
        (["delete", "shop"], "confirm with --yes"),
    ],
)
def test_mistakes_are_one_line_and_ask_nothing(
    asked: Asked,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    (tmp_path / "empty").write_text("\n")
    code, out, err = said(capsys, "user", *arguments)
    assert (code != 0, out, asked.calls) == (True, "", [])
    assert err.count("\n") == 1
    assert says in err


def test_tables_join_brokers_that_agree_and_escape_names(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = [
        UserState("broker-a", "shop", "Normal", "enable"),
        UserState("broker-b", "shop", "Normal", "disable"),
        UserState("broker-a", "[red]x\x1b[31m", "Super", "enable"),
        UserState("broker-b", "[red]x\x1b[31m", "Super", "enable"),
    ]
    code, out, _ = said(capsys, "user", "list")
    rows = [line.split() for line in out.splitlines() if "enable" in line or "disable" in line]
    assert code == 0
    assert rows == [
        ["broker-a", "shop", "Normal", "enable"],
        ["broker-b", "shop", "Normal", "disable"],
        ["broker-a,", "broker-b", "[red]x\\x1b[31m", "Super", "enable"],
    ]


def test_rules_are_asked_for_and_shown(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    code, *_ = said(
        capsys, *"acl create shop -r Topic:a,Group:g -r Topic:b* -a pub,Sub -i 10.0.0.0/8 -d deny -b broker-a".split()
    )
    name, arguments, more = asked.calls[0]
    assert (code, name, arguments) == (0, "create_acl", ("shop", ["Topic:a", "Group:g", "Topic:b*"], ["pub", "Sub"]))
    assert more == {
        "decision": "Deny",
        "source_ips": ["10.0.0.0/8"],
        "policy_type": "Custom",
        "cluster": None,
        "brokers": ["broker-a"],
    }
    asked.answer = [RuleState("broker-a", "User:shop", "Custom", "Topic:a", ("Pub", "Sub"), (), "Deny")]
    _, out, _ = said(capsys, "acl", "list")
    assert out.splitlines()[-2].split() == ["broker-a", "User:shop", "Custom", "Topic:a", "Pub,", "Sub", "any", "Deny"]
    _, out, _ = said(capsys, "acl", "list", "--json")
    assert out == (
        '[{"broker_name":"broker-a","subject":"User:shop","policy_type":"Custom","resource":"Topic:a",'
        '"actions":["Pub","Sub"],"source_ips":[],"decision":"Deny"}]\n'
    )
