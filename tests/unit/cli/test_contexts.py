"""Contexts: which cluster a command asks, whose keys go there, and the file that says so."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.answers import check_answer
from tests.support.cli_calls import Called, call

from rocketspark.cli import contexts, main
from rocketspark.cli.commands.admin import quarantine
from rocketspark.cli.contexts import Context, Contexts
from rocketspark.cli.options import NAMESRV_DEFAULT, ClusterAccess
from rocketspark.errors import ConfigError

pytestmark = pytest.mark.shows(
    "`rocketspark context`, `--context`: clusters by name; a context's keys go to its own address alone"
)

SECRET = "hide-me"
OF_ENVIRONMENT = {
    "ROCKETMQ_ACCESS_KEY": "env-user",
    "ROCKETMQ_SECRET_KEY": "env-secret",
    "ROCKETMQ_SECURITY_TOKEN": "env-token",
    "ROCKETMQ_TLS_CA": "/env/ca.pem",
}


@pytest.fixture(autouse=True)
def own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith(("ROCKETMQ_", "NAMESRV", "ROCKETSPARK_CONTEXT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "rocketspark" / "contexts.toml"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ClusterAccess]:
    """With what access commands would have asked a cluster."""
    found: list[ClusterAccess] = []

    def note(at: ClusterAccess, act: Any) -> list[Any]:
        found.append(at)
        return []

    monkeypatch.setattr(quarantine, "run_operation", note)
    return found


def run(*arguments: str, code: int = 0) -> Called:
    done = call(*arguments)
    assert done.exit_code == code, done.told
    return done


def add(name: str, namesrv: str, *more: str) -> None:
    run("context", "add", name, "-n", namesrv, *more)


def used(asked: list[ClusterAccess], *arguments: str) -> tuple[str, dict[str, Any]]:
    run("quarantine", "list", *arguments)
    at = asked.pop()
    return at.namesrv, at.client_options()


def test_which_cluster_is_asked(asked: list[ClusterAccess], monkeypatch: pytest.MonkeyPatch) -> None:
    assert used(asked)[0] == NAMESRV_DEFAULT
    add("test", "test:1")
    add("prod", "prod:1")
    assert used(asked)[0] == NAMESRV_DEFAULT
    run("context", "use", "test")
    assert used(asked)[0] == "test:1"
    monkeypatch.setenv("ROCKETSPARK_CONTEXT", "prod")
    assert used(asked)[0] == "prod:1"
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert used(asked)[0] == "env:1"
    assert used(asked, "--context", "test")[0] == "test:1"
    assert used(asked, "-n", "typed:1")[0] == "typed:1"
    monkeypatch.delenv("NAMESRV_ADDR")
    # No context, also not the current one.
    assert used(asked, "--context", "")[0] == NAMESRV_DEFAULT
    assert "exclude each other" in run("quarantine", "list", "-n", "a:1", "--context", "test", code=2).told
    assert "no context 'tset': did you mean 'test'?" in run("quarantine", "list", "--context", "tset", code=1).told


def test_whose_keys_go_there(asked: list[ClusterAccess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    add(
        "prod",
        "prod:1",
        "--access-key",
        "ann",
        "--secret-key-file",
        str(tmp_path / "key"),
        "--tls-ca",
        "/prod/ca",
        "--use",
    )
    add("bare", "bare:1")
    for name, value in OF_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    of_environment = {
        "access_key": "env-user",
        "secret_key": "env-secret",
        "security_token": "env-token",
        "use_tls": True,
        "tls_ca": "/env/ca.pem",
    }
    own = {"access_key": "ann", "secret_key": SECRET, "use_tls": True, "tls_ca": "/prod/ca"}
    assert used(asked) == ("prod:1", own)
    assert used(asked, "-n", "typed:1") == ("typed:1", of_environment)
    assert used(asked, "--context", "bare") == ("bare:1", {})
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert used(asked) == ("env:1", of_environment)
    assert used(asked, "--context", "prod") == ("prod:1", own)
    monkeypatch.delenv("NAMESRV_ADDR")
    # Keys that were typed replace the context's whole; TLS each for itself.
    typed = {"access_key": "bob", "secret_key": "of-bob", "use_tls": True, "tls_ca": "/prod/ca"}
    assert used(asked, "--access-key", "bob", "--secret-key", "of-bob") == ("prod:1", typed)
    assert used(asked, "--access-key", "bob") == (
        "prod:1",
        {"access_key": "bob", "use_tls": True, "tls_ca": "/prod/ca"},
    )
    assert used(asked, "--no-tls") == ("prod:1", {"access_key": "ann", "secret_key": SECRET})
    said = run("quarantine", "list", "--context", "bare").stderr
    assert "warning: context bare has no keys; those of the environment are not for it" in said
    assert "warning" not in run("quarantine", "list").stderr


def test_an_option_that_names_another_cluster_is_refused(tmp_path: Path) -> None:
    add("prod", "prod:1", "--use")
    export = ("export", "orders", "--to", str(tmp_path / "o.jsonl"), "-o", "NameSrv=other:1")
    assert "context prod has its own address" in run(*export, code=2).told


def test_no_context_for_what_names_its_servers_itself() -> None:
    for command in (("controllers", "list"), ("proxy",), ("broker",), ("server",)):
        assert "No such option: --context" in run(*command, "--context", "x", code=2).told


def test_they_are_added_listed_shown_and_deleted(own_file: Path) -> None:
    assert "there are no contexts" in run("context", "list").stderr
    add("prod", "b:1;a:1", "--access-key", "ann", "--secret-key-command", "secret-tool lookup 'mq prod'", "--tls")
    add("test", "127.0.0.1:1", "--use")
    listed = json.loads(run("context", "list", "--json").stdout)
    check_answer("context list", listed)
    assert [(c["name"], c["current"], c["namesrv"], c["tls"]) for c in listed] == [
        ("prod", False, "b:1;a:1", True),
        ("test", True, "127.0.0.1:1", False),
    ]
    assert [line.split() for line in run("context", "list").stdout.splitlines()[3:5]] == [
        ["prod", "b:1;a:1", "ann", "yes"],
        ["*", "test", "127.0.0.1:1", "no"],
    ]
    shown = json.loads(run("context", "show", "prod", "--json").stdout)
    check_answer("context show", shown)
    assert shown["secret"] == "command: secret-tool lookup 'mq prod'"
    assert "namesrv = 127.0.0.1:1\n" in run("context", "show").stdout
    assert "--replace writes over it" in run("context", "add", "test", "-n", "c:1", code=1).told
    add("test", "c:1", "--replace")
    assert json.loads(run("context", "show", "--json").stdout)["namesrv"] == "c:1"
    told = json.loads(run("context", "use", "prod", "--json").stdout)
    check_answer("context use", told)
    assert run("context", "use", "test").stdout == "commands use context test now\n"
    assert "confirm with --yes" in run("context", "delete", "test", code=2).told
    assert run("context", "delete", "test", "--yes").stdout == "deleted context test\n"
    assert "no context is current" in run("context", "show", code=2).told
    assert "no context 'test': there are prod" in run("context", "use", "test", code=1).told
    assert stat.S_IMODE(own_file.stat().st_mode) == 0o600
    assert [path.name for path in own_file.parent.iterdir()] == ["contexts.toml"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("-n", "no-port"), "no-port"),
        (("-n", "a:1", "--access-key", "ann"), "access_key and a secret key belong together"),
        (("-n", "a:1", "--secret-key-file", "k"), "access_key and a secret key belong together"),
        (
            ("-n", "a:1", "--access-key", "a", "--secret-key-file", "k", "--secret-key-command", "c"),
            "one is needed",
        ),
        (("-n", "a:1", "--secret-key-command", "'"), "No closing quotation"),
        (("-n", "a:1", "--tls-server-name", "a\nb"), "control characters"),
        (("-n", "a:1", "--tls-verify", "some"), "none of full, ca, none"),
        (("-n", "a:1", "--store-secret", "--access-key", "a"), "set ROCKETMQ_SECRET_KEY"),
    ],
)
def test_what_nobody_could_connect_with_is_not_added(more: tuple[str, ...], says: str, own_file: Path) -> None:
    done = call("context", "add", "x", *more)
    assert done.exit_code in (1, 2)
    assert says in done.told
    assert not own_file.exists()
    assert "a name of up to 64 letters" in call("context", "add", "a/b", "-n", "a:1").told


def test_a_secret_is_kept_in_the_file_where_that_was_asked_for(
    own_file: Path, asked: list[ClusterAccess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", SECRET)
    said = run("context", "add", "prod", "-n", "a:1", "--access-key", "ann", "--store-secret", "--use")
    assert said.stderr == f"the secret key is in {own_file}, which only you may read\n"
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
    assert used(asked) == ("a:1", {"access_key": "ann", "secret_key": SECRET})
    for told in (run("context", "show"), run("context", "show", "--json"), run("context", "list")):
        assert SECRET not in told.told
    assert SECRET not in repr(contexts.read_contexts())
    for mode, says in ((0o640, "holds a secret key and others may read it"), (0o622, "others may change")):
        own_file.chmod(mode)
        assert f"{says}" in run("quarantine", "list", code=1).told
        # What names its cluster itself has no need of the file.
        run("quarantine", "list", "-n", "b:1")


def test_a_secret_of_a_command(asked: list[ClusterAccess], tmp_path: Path) -> None:
    tool = tmp_path / "keys"
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\nprint('more')\n")
    tool.chmod(0o700)
    add("prod", "a:1", "--access-key", "ann", "--secret-key-command", f"{tool} 'a b' $HOME;x", "--use")
    # No shell reads it.
    assert used(asked)[1]["secret_key"] == "['a b', '$HOME;x']"
    for text, says in (
        ("import sys; sys.exit(3)", "keys gave no secret key: it ended with code 3"),
        ("", "keys gave no secret key: it printed nothing"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "no UTF-8 text"),
    ):
        tool.write_text(f"#!{sys.executable}\n{text}\n")
        with pytest.raises(ConfigError, match=says):
            used(asked)
        asked.clear()
    tool.unlink()
    with pytest.raises(ConfigError, match="context prod: keys, which gives the secret key, cannot be run: No such"):
        used(asked)


def test_the_file_comes_back_as_it_was_written() -> None:
    odd = Context(namesrv="a:1", tls_ca='/a "b" \\ ü ☃ #', secret_key_command=("a", "b'c"), access_key="x", tls=False)
    whole = Contexts("p.1", {"p.1": odd, "q-_": Context(namesrv="b:1")})
    contexts.write_contexts(whole)
    assert contexts.read_contexts() == whole
    assert msgspec.to_builtins(contexts.read_contexts())["contexts"]["p.1"]["tls"] is False


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "contexts.toml: "),
        ("\xff", "contexts.toml: "),
        ("[contexts.a]\nnamesrv = 1", "Expected `str`, got `int`"),
        ('[contexts.a]\nnamesrv = "a:1"\nsecret = "hide-me"', "unknown field `secret`"),
        ('[contexts.a]\nnamesrv = "no-port"', "no-port"),
        ('current = "b"', "there is no such context"),
        ("#" * (2 << 20), "is longer than"),
    ],
)
def test_a_file_that_is_wrong_is_named(
    text: str, says: str, own_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_file.parent.mkdir()
    own_file.write_bytes(text.encode("latin-1"))
    assert main.run(["quarantine", "list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert says in said
    assert SECRET not in said


def test_what_is_there_stays_if_it_cannot_be_written_anew(own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add("test", "a:1", "--use")
    before = own_file.read_text()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written: No space left" in run("context", "delete", "test", "--yes", code=1).told
    assert own_file.read_text() == before
    assert [path.name for path in own_file.parent.iterdir()] == ["contexts.toml"]


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        assert contexts.contexts_path() == tmp_path / ".config" / "rocketspark" / "contexts.toml"
    monkeypatch.setenv("ROCKETSPARK_CONTEXTS", "/x/y.toml")
    assert contexts.contexts_path() == Path("/x/y.toml")
