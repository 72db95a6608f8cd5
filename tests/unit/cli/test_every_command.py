"""Every command there is, every option of it, with what nobody should give it: one line, code 1 or 2, no traceback.

Commands are found by walking the tree, so that a new one is here too. No server and no Spark is started.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketspark.cli import main
from rocketspark.cli import tree as commands
from rocketspark.errors import UsageError

pytestmark = pytest.mark.shows("`rocketspark user`, `rocketspark acl`, and the same from Python")

NUMBERS = ("", "²", "9" * 5000, "1" + "0" * 25, "-1" + "0" * 25, "nan", "inf", "1e400", "--json")
TEXTS = ("\udcff", "", "x" * 250, "a\nb\x1b[31m", "9" * 5000, "²")
# Declared once for all commands that ask a cluster: tried with some of them.
OF_ALL = (
    "--access-key",
    "--secret-key",
    "--security-token",
    "--tls-ca",
    "--tls-verify",
    "--tls-server",
    "--tls-key-pass",
)
IN_FULL = (("topic", "list"), ("produce",), ("pipeline", "archive"))


def paths(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield names, command
        return
    if names and command.invoke_without_command:
        yield names, command
    for name, each in below.items():
        yield from paths(each, (*names, name))


ROOT = commands.tree()
COMMANDS = dict(paths(ROOT))


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*arguments: Any, **more: Any) -> Any:
        raise UsageError("stopped: the command would begin now")

    monkeypatch.setattr("rocketspark.cli.serving.serve.serve", stopped)
    monkeypatch.setattr("rocketspark.cli.commands.pipelines.shared.SharedOptions.start", stopped)
    if importlib.util.find_spec("pyspark"):
        monkeypatch.setattr("rocketspark.spark.environment.pack", stopped)
    monkeypatch.setenv("ROCKETSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    for variable in ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR", "ROCKETSPARK_OUTBOX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)


def options(command: Any) -> Iterator[tuple[str, bool]]:
    """(option, whether it takes a number) of each that takes a value."""
    for each in command.params:
        if each.opts[0].startswith("-") and not getattr(each, "is_flag", False) and "help" not in each.opts[-1]:
            text = str(getattr(each, "type_descriptor", None) or each.type)
            yield max(each.opts, key=len), "int" in text.split("parameter_info")[0] or "float" in text.lower()


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main.run(arguments)
    said = capsys.readouterr()
    # A secret in the command line is warned of, whatever else is wrong.
    return code, "".join(line for line in said.err.splitlines(True) if not line.startswith("warning: process lists"))


def needed(command: Any) -> list[str]:
    """What the command wants beside: an address that nobody can take for one, a database that is not there."""
    long = {max(each.opts, key=len) for each in command.params}
    given = [f"{name}=no-port" for name in ("--namesrv", "--controller") if name in long]
    return given + (["--database=sqlite:///nowhere.db"] if "--database" in long else [])


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_odd_values_are_one_line(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[names]
    arguments = ["x" for each in command.params if not each.opts[0].startswith("-") and each.required]
    for option, is_number in options(command):
        if option.startswith(OF_ALL) and names not in IN_FULL:
            continue
        for value in NUMBERS if is_number else TEXTS:
            given = [each for each in needed(command) if not each.startswith(f"{option}=")]
            call = [*names, *arguments, *given, f"{option}={value}"]
            code, said = run(call, capsys)
            assert code in (1, 2), (call, said)
            assert said.count("\n") == 1, (call, said)
            assert said.startswith("error: "), (call, said)
            assert said[:-1].isprintable(), (call, said)
            assert len(said) < 2100, (call, len(said))
            assert "defect of rocketspark" not in said, (call, said)
            if value == "\udcff" and "stopped" not in said:
                assert code == 2 or "--database" in option or _is_path(command, option), (call, said)


def _is_path(command: Any, option: str) -> bool:
    (found,) = [each for each in command.params if option in each.opts]
    return "Path" in str(getattr(found, "type_descriptor", None) or found.type)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_odd_arguments_are_one_line(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[names]
    count = sum(1 for each in command.params if not each.opts[0].startswith("-"))
    for value in TEXTS if count else ("x",):
        code, said = run([*names, *[value] * max(count, 1), *needed(command)], capsys)
        assert code in (1, 2), (value, said)
        assert said.count("\n") == 1, (value, said)
        assert said[:-1].isprintable(), (value, said)
        assert "defect of rocketspark" not in said, (value, said)


def test_what_no_command_can_use_is_refused() -> None:
    for value in (math.nan, math.inf, -math.inf, 1e300, 10**30, -(10**30), "\udcff", "a\ud800b"):
        assert commands.mistake(value)
    for value in (None, True, 0, 1.5, -1, "", "ü", Path("\udcff"), 10**12):
        assert commands.mistake(value) is None


def test_what_nobody_foresaw_is_one_line_and_can_be_seen_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any, **more: Any) -> None:
        raise KeyError("x\n\x1b[31m")

    monkeypatch.setattr("rocketspark.cli.serving.serve.serve", fails)
    code, said = run(["namesrv"], capsys)
    assert (code, said.count("\n")) == (1, 1)
    assert "ROCKETSPARK_TRACEBACK=1" in said
    assert said[:-1].isprintable()
    monkeypatch.setenv("ROCKETSPARK_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main.run(["namesrv"])
