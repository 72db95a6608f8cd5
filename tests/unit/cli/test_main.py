"""The command line without a server: help, wrong usage, and errors as one line."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from typing import Any

import pytest

from rocketspark.admin.cluster_client import BrokerState
from rocketspark.cli import main, streams
from rocketspark.cli.commands.admin.topic import users_topics
from rocketspark.cli.commands.consume import FIRST, LAST, Where, where

COMMANDS = [
    ["server"],
    ["namesrv"],
    ["broker"],
    ["topic", "list"],
    ["topic", "show"],
    ["topic", "create"],
    ["topic", "delete"],
    ["quarantine", "list"],
    ["quarantine", "retry"],
    ["quarantine", "drop"],
    ["produce"],
    ["consume"],
    ["outbox", "list"],
    ["outbox", "show"],
    ["outbox", "resend"],
    ["outbox", "drop"],
    ["outbox", "relay"],
    ["pipeline", "archive"],
    ["pipeline", "restore"],
    ["pipeline", "replay"],
    ["run"],
]
NOBODY = "127.0.0.1:1"


@pytest.mark.shows("`--help` with examples")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_with_an_example_that_begins_with_it(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main.run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    example = re.search(r"Example: (.+)", text)
    assert example is not None
    assert f"rocketspark {' '.join(command)} " in example[1] + " "


WITH_JSON = [c for c in COMMANDS if c[0] in ("topic", "quarantine", "produce", "outbox", "pipeline")]


@pytest.mark.parametrize("command", WITH_JSON, ids=" ".join)
def test_what_a_script_reads_can_be_json(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main.run([*command, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["topic", "show"], "Missing argument"),
        (["server", "--broker-port", "x"], "--broker-port"),
        (["server", "--namesrv-port", "65536"], "--namesrv-port"),
        (["consume", "t", "--from", "yesterday"], "'yesterday': first, last, an offset, -N or a time"),
        (["consume", "t", "--from", "20260131"], "a date or an offset? Write 2026-01-31, or 020260131 for the offset"),
        (["consume", "t", "--until", "--exit"], "'--exit': first, last"),
        (["consume", "t", "--until", "first", "--exit"], "one of --exit and --until"),
        (["consume", "t", "--group", "g", "--from", "-5"], "with --group it is first, last or a time"),
        (["consume", "t", "--group", "g", "--until", "5"], "with --group there is --exit alone"),
        (["consume", "t", "--group", "g", "--queue", "5"], "leave out --group"),
        (["consume", "t", "-f", "%t %x"], "'%x' is unknown: there are %% %t"),
        (["consume", "t", "-f", "100%"], "'%' is unknown"),
        (["consume", "t", "-f", "\\q"], "no escape \\q: \\n, \\r"),
        (["consume", "t", "-f", "%s", "--json"], "one of --format, --json and delimiters"),
        (["produce", "t", "file", "--jsonl"], "a file is one message"),
        (["produce", "t", "--jsonl", "-K", ":"], "names its own keys"),
        (["produce", "t", "-D", ""], "it is empty"),
        (["produce", "t", "-D", "\\"], "no escape"),
        (["produce", "t", "--rate", "0"], "--rate"),
        (["produce", "t", "--properties", "/dev/null"], "/dev/null: Input data was truncated; a JSON object"),
        (["consume", "t", "--count", "0"], "--count"),
        (["produce", "t", "--property", "novalue"], "'novalue' is no name=value"),
        (["topic", "create", "t", "--queues", "0"], "--queues"),
        (["topic", "delete", "t"], "--yes"),
        (["outbox", "list"], "--database"),
        (["outbox", "list", "-d", "sqlite:///no", "--state", "lost"], "waiting, parked or sent"),
        (["outbox", "resend", "-d", "sqlite:///no"], "--parked"),
        (["outbox", "drop", "k", "--parked", "-d", "sqlite:///no"], "--parked"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    assert says in captured.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topic", "list", "-n", NOBODY], "127.0.0.1:1"),
        (["topic", "list", "-n", "no-port"], "'no-port' is no address"),
        (["topic", "create", "bad topic", "-n", NOBODY], ""),
        (["produce", "bad topic", "-n", NOBODY], "only letters, digits"),
        (["consume", "t", "-n", NOBODY], "127.0.0.1:1"),
        (["produce", "t", "--file", "/nowhere/at/all", "-n", NOBODY], "/nowhere/at/all: No such file or directory"),
        (["outbox", "list", "-d", "sqlite:////nowhere/shop.db"], "sqlite:////nowhere/shop.db: there is no such file"),
        (["outbox", "list", "-d", "shop.db"], "'shop.db' is no database"),
        (["outbox", "list", "-d", "postgresql://u:secret@127.0.0.1:1/x"], "postgresql://u@127.0.0.1:1/x: "),
        (["server", "-c", "/nowhere/broker.conf"], "/nowhere/broker.conf cannot be read"),
    ],
)
def test_a_user_error_is_one_line_and_code_1(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    assert "server" in "".join(capsys.readouterr())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_a_place_to_consume_from_is_taken_as_given() -> None:
    assert (where("first"), where("beginning")) == (FIRST, FIRST) == (Where(offset=0), where("0"))
    assert (where("last"), where("end")) == (LAST, LAST)
    assert (where("17"), where("-5")) == (Where(offset=17), Where(offset=-5))
    assert where("2026-01-31T12:00:00+00:00") == where("@1769860800000") == Where(time_ms=1769860800000)
    assert where("2026-01-31T13:00:00.250+01:00") == Where(time_ms=1769860800250)
    day_ago_ms = (time.time() - 86_400) * 1000
    assert 0 <= (where("24h").time_ms or 0) - int(day_ago_ms) < 60_000
    assert where("020260131") == Where(offset=20260131)


def test_topics_that_rocketmq_made_for_itself_are_left_out() -> None:
    brokers = [BrokerState("DefaultCluster", "broker-a", 0, "127.0.0.1:10911")]
    own = ["TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "%RETRY%g", "%DLQ%g"]
    own += ["RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]
    assert users_topics([*own, "orders", "broker-b"], brokers) == ["orders", "broker-b"]


@pytest.mark.shows(
    "mended: the command did not start with typer 0.12 to 0.15, which the package allowed, and 0.16 to 0.27 "
    "gave a traceback for a wrong option"
)
def test_without_a_command_the_help_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ([], ["topic"]):
        assert main.run(group) == 2
        said = capsys.readouterr()
        assert (said.out + said.err).count("Usage:") == 1


def test_what_an_interrupt_finds_written_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(streams._Stdout(writing, "w"))))

    def interrupt(frame: object, event: str, called: Any) -> None:
        if event == "c_return" and called.__name__ == "extend":
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            streams.write("one\n")
    finally:
        sys.setprofile(None)
    streams.write("two\n")
    sys.stdout.close()
    with os.fdopen(reading, "rb") as read:
        assert read.read() == b"one\ntwo\n"
