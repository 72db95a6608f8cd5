"""What a shell completes: names of the cluster that the line means, in time or not at all, nothing unsafe."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import call
from tests.support.patience import LIMIT_S

from rocketspark.admin import Admin
from rocketspark.cli import completion
from rocketspark.cli.tree import leaves, tree
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("shells complete topics, groups, brokers and contexts, within 0.3 s or not at all")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        with Admin(running.namesrv) as admin:
            for topic in ("orders", "orders-old", "bills", "odd|name"):
                admin.create_topic(topic)
            admin.put_group("billing")
            admin.put_group("shipping", brokers=["broker-b"])
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the time is up before the answer is there."""
    monkeypatch.setattr(completion, "ANSWER_S", LIMIT_S)


def completed(words: str, incomplete: str, *given: str) -> list[str]:
    """What the last argument or option of a command, named by `words`, is completed to."""
    *names, name = words.split()
    command: Any = tree()
    for each in names:
        command = command.commands[each]
    context = command.make_context(names[-1], list(given), resilient_parsing=True)
    (parameter,) = (each for each in command.params if each.name == name)
    return [item.value for item in parameter.shell_complete(context, incomplete)]


@pytest.mark.usefixtures("patient")
def test_names_of_the_cluster(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    there = ("--namesrv", cluster.namesrv)
    assert completed("topic show topic", "or", *there) == ["orders", "orders-old"]
    found = completed("topic delete topic", "", *there)
    # RocketMQ's own are for who begins to write one; a pipe is no part of a word.
    assert {"bills", "orders", "orders-old"} <= set(found)
    assert [name for name in found if name.startswith(("%", "TBW102", "RMQ_SYS", "odd"))] == []
    assert completed("consume topic", "TBW", *there) == ["TBW102"]
    assert completed("group show group", "", *there) == ["billing", "shipping"]
    assert completed("broker stats broker", "b", *there) == ["broker-a", "broker-b"]
    assert completed("topic create broker", "broker-b", *there) == ["broker-b"]
    assert completed("broker stats broker", "x", *there) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("patient")
def test_of_a_locked_cluster_and_of_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCKETSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    with run_cluster(secure=True) as cluster:
        options = cluster.client_options
        (tmp_path / "key").write_text(options["secret_key"])
        keys = ("--access-key", options["access_key"], "--secret-key-file", str(tmp_path / "key"))
        reach = ("-n", cluster.namesrv, "--tls-ca", str(options["tls_ca"]))
        call("context", "add", "locked", *reach, *keys, "--use")
        mark = tmp_path / "asked"
        call("context", "add", "ringed", *reach, "--access-key", "a", "--secret-key-command", f"touch {mark}")
        with Admin(cluster.namesrv, **options) as admin:
            admin.create_topic("orders")
        capfd.readouterr()
        assert completed("topic show topic", "o") == ["orders"]
        assert completed("broker show broker", "") == ["broker-a"]
        assert completed("topic show topic", "o", "--no-tls") == []
        # A keyring might open a window for a password.
        assert completed("topic show topic", "o", "--context", "ringed") == []
        assert not mark.exists()
        assert completed("topic show context", "") == ["locked", "ringed"]
        assert completed("context use name", "r") == ["ringed"]
    (tmp_path / "contexts.toml").write_text("wrong")
    assert completed("context use name", "") == completed("topic show topic", "") == []
    assert capfd.readouterr() == ("", "")


def test_who_does_not_answer_gives_no_names(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        completed("topic show topic", "", "--namesrv", "no-port")
        begun_s = time.monotonic()
        assert completed("topic show topic", "", "--namesrv", address) == []
        assert time.monotonic() - begun_s < LIMIT_S
    for wrong in (address, "no-port", "127.0.0.1:1", "", "a:1;\x1b"):
        assert completed("topic show topic", "", "--namesrv", wrong) == []
    assert capfd.readouterr() == ("", "")


def test_an_answer_that_is_none_gives_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion._Cluster, "ask", lambda *arguments: ["no body"])
    assert completed("topic show topic", "") == []
    hostile = ["-x", "a b", "a;b", "$(a)", "a\nb", "\x1b[31m", "`a`", "ü", "a" * 300, "good"]
    monkeypatch.setattr(completion, "_topics", lambda cluster: hostile)
    assert completed("topic show topic", "") == ["good"]


def test_every_command_completes_them() -> None:
    for command in leaves(tree()):
        for parameter in command.params:
            if parameter.name in completion.COMPLETED and any(p.name == "namesrv" for p in command.params):
                assert parameter._custom_shell_complete is not None, (command.name, parameter.name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_answered(cluster: Cluster, shell: str) -> None:
    line = f"rocketspark topic show --namesrv {cluster.namesrv} ord"
    asked = {"_ROCKETSPARK_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": "5"}
    asked |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    call_ = [
        sys.executable,
        "-c",
        "from rocketspark.cli import completion, main; completion.ANSWER_S = 60; main.main()",
    ]
    done = subprocess.run(call_, capture_output=True, text=True, env=os.environ | asked, timeout=LIMIT_S)
    expected = ["_arguments", "'*:", ':(("orders"', '"orders-old"))\''] if shell == "zsh" else ["orders", "orders-old"]
    assert (done.stdout.split(), done.stderr) == (expected, "")
