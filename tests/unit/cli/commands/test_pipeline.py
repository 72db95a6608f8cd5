"""The frame of `rocketspark pipeline`: quick to start, and clear about what is missing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from rocketspark.cli import main
from rocketspark.cli.commands.pipelines.shared import SharedOptions, moment
from rocketspark.errors import ConfigError

pytestmark = pytest.mark.shows(
    "frame: progress, `--json`, stop and start, one-line errors",
    "one frame for pipelines and writers",
    "decoded columns in archives that are tables: JSON (given, inferred, the table's), Avro of two versions "
    "by a registry; fields added at any depth, odd names, capitals, a type that changed, bad bodies kept, "
    "`decodeErrorTopic`, a run that ended between new columns and the next rows, columns that another adds "
    "meanwhile; merging, restore and audit beside them",
)

DELTA = ("--format", "delta", "--to", "{}/table")


def test_help_does_not_import_spark() -> None:
    """Nor the store with numpy, which a command that needs neither would wait for as long as for all else."""
    code = "import sys; from rocketspark.cli import main; main.run(['pipeline', '-h']); print({*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = ast.literal_eval(done.stdout.splitlines()[-1])
    assert "rocketspark.cli.commands.backup" in loaded
    assert loaded & {"pyspark", "numpy", "rocketspark.store.backup"} == set()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pyspark is missing: pip install 'rocketspark\[spark\]'"):
        SharedOptions("a:1").connection()


@pytest.mark.spark
@pytest.mark.parametrize("command", ["restore", "replay"])
def test_a_restore_is_named_by_fixed_times(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", command, "x", "--to", "y", "--since", "24h"]) == 2
    assert "'24h': a time is needed, not how long ago" in capsys.readouterr().err


@pytest.mark.spark
def test_an_archive_needs_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", "archive", "--to", "x"]) == 2
    assert "name topics, or give -o topicPattern=REGEX" in capsys.readouterr().err


@pytest.mark.spark
def test_an_hour_is_a_time() -> None:
    for text in ("2026-11-21T05", "2026-11-21T06:00+01:00"):
        assert moment("--since", text) == 1_795_237_200_000


@pytest.mark.shows(
    "mended: tracebacks (YAML 2026-02-30, 0b_, deep nesting, deep JSON, 5,000 digits; 120-character names; "
    "NaN in JSON; exit code)",
    "mended: an empty `--to` of `restore` or `dlq --resend` sent into the original topics, an empty "
    "`--to-namesrv` of `replay` into the cluster it read, an empty `--against-namesrv` compared a topic with "
    "itself",
)
@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["dedupe", "a", "b", "--within", "soon"], "--within is 'soon'"),
        (["dedupe", "a", "b", "--by", "colour"], "--by is 'colour'"),
        (["dedupe", "a", "b", "--by", "json:id"], "--by is 'json:id'"),
        (["dedupe", "a", "b", "--delivery", "often"], "--delivery is 'often'"),
        (["dedupe", "a", "b", "--name", "a,b"], "--name is 'a,b'"),
        (["dedupe", "a,b", "b"], "the target 'b' is read too"),
        (["dedupe", "a", "b", "-o", "tags"], "--option is 'tags': name=value"),
        (["dedupe", "a", "b", "--conf", "x"], "--conf is 'x'"),
        (["dedupe", "a", "b", "--remote", "host"], "--remote is 'host'"),
        (["dedupe", "a", "b", "--remote", "sc://x", "--master", "local"], "exclude each other"),
        (["outbox", "-d", "sqlite:///x", "--table", "t"], "a topic is needed"),
        (["outbox", "-d", "sqlite:///x", "--table", "t", "-t", "x", "--name", "public.orders"], "--name is 'public"),
        (["sql", "x.yaml", "--var", "day"], "--var is 'day'"),
        *(
            ([*command.split(), ""], f"Invalid value for {command.split()[-1]}: '': give it a value, or leave it out")
            for command in (
                "audit a --against",
                "audit a --against-archive",
                "audit a --against b --against-namesrv",
                "restore archive a --to",
                "replay a --to",
                "replay a --to a --to-namesrv",
                "dlq --group g --resend --to",
            )
        ),
        (["replay", "a", "--to", "b", "--since", "20261121"], "write 2026-11-21 for the date"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2(
    arguments: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it notes of a cluster it notes in the working folder.
    monkeypatch.chdir(tmp_path)
    assert main.run(["pipeline", *arguments]) == 2
    assert error in " ".join(capsys.readouterr().err.split())


@pytest.mark.shows(
    "mended: an empty `--to`, ARCHIVE, `--against` or `--against-archive` meant the working folder, or "
    "nothing; a first run that failed forbade another `--format`; `restore` of no archive was told after "
    "Spark had started"
)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["restore", "{}/none"], "{}/none is no archive: {}/none/_archive/manifest.json is not there"),
        (["restore", ""], "the archive's place is '': a folder or s3a://… is needed"),
        (["audit", "a", "--against-archive", "{}/none"], "{}/none is no archive"),
        (["archive", "a", "--to", ""], "the archive's place is ''"),
        (["archive", ""], "option topic is missing"),
        (["archive", "a", "--start", "{{"], "option startingOffsets"),
        (["archive", "a", "-o", "startingoffset=latest"], "did you mean 'startingOffsets'"),
        (["archive", "a", "-o", "endingOffsets=latest"], "option endingOffsets"),
        (
            ["archive", "a", "-o", "decode=json"],
            "option decode: this pipeline keeps bodies as they are",
        ),
        (["archive", "a", *DELTA, "-o", "decode=xml"], "option decode is 'xml'"),
        (
            ["archive", "a", *DELTA, "-o", "decodeSchema=id INT"],
            "option decodeSchema goes with option decode",
        ),
        (["archive", "a", *DELTA, "-o", "decode=json", "-o", "decodeMode=dropmalformed"], "leaves no message out"),
        (["archive", "a", *DELTA, "-o", "decode=json", "-o", "decodeInto=HOUR"], "column of every archive"),
        (["archive", "a", *DELTA, "-o", "decode=json", "-o", "decodeErrorTopic=a"], "'a', which is read too"),
        (["archive", "a", "--to", "--once"], "the archive's place is '--once'"),
    ],
)
def test_a_place_that_is_none_is_told_before_spark_starts(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rocketspark.spark.pipelines.parts import session

    monkeypatch.setattr(session, "open_session", lambda *_: pytest.fail("Spark is started"))
    monkeypatch.chdir(tmp_path)
    assert main.run(["pipeline", *(one.replace("{}", str(tmp_path)) for one in arguments)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert error.replace("{}", str(tmp_path)) in told
    assert list(tmp_path.iterdir()) == []


def test_who_waits_at_a_terminal_is_told_that_spark_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rocketspark.spark.pipelines.parts import session

    def refuse(*_: object) -> None:
        raise ConfigError("no Spark here")

    monkeypatch.setattr(session, "open_session", refuse)
    for terminal, told in ((True, "trace: starting Spark, which takes some seconds\n"), (False, "")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=terminal: shown)
        assert main.run(["pipeline", "trace"]) == 1
        assert capsys.readouterr().err == f"{told}error: no Spark here\n"
