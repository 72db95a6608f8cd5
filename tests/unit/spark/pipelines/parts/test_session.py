"""Errors of Spark as one line, and what is missing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.pipelines.connection import Connection, connection, pairs
from rocketspark.spark.pipelines.parts.session import (
    SessionOptions,
    check_installed,
    one_line,
    one_line_errors,
    quiet_errors,
)
from rocketspark.transport.tls.client_tls import ClientTls

pytestmark = pytest.mark.shows(
    "frame: progress, `--json`, stop and start, one-line errors",
    "mended: without effect and without a word: `pushDownPredicate` on a stream, options of decoding in "
    "pipelines that keep bodies, `json` beside `decode` in `pipeline sql`",
)

IN_PYTHON = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x.py", line 4, in bad
    raise ValueError("no: such")
ValueError: no: such
"""
IN_SOURCE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING] Failed when it
perform initialOffset: rocketspark.errors.NoNameServer: no NameServer answers (127.0.0.1:1); check the address
\tat org.apache.spark.Any(Any.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (IN_SOURCE, "no NameServer answers (127.0.0.1:1); check the address"),
        ("x\nrocketspark.spark.fetch.DataLost: offsets 1 to 3 are gone\n", "offsets 1 to 3 are gone"),
        (IN_PYTHON, "ValueError: no: such"),
        ("[PATH_NOT_FOUND] No path: file:/x. SQLSTATE: 4", "[PATH_NOT_FOUND] No path: file:/x. SQLSTATE: 4"),
        ("\tat a.b(C.java)\nfirst\nsecond", "first"),
        ("", "Spark failed and did not say why"),
    ],
)  # fmt: skip
def test_one_line_of_an_error(text: str, line: str) -> None:
    assert one_line(text) == line


@pytest.mark.shows("mended: pipelines do not say that it is the disk that is full")
def test_a_full_disk_is_told_whatever_spark_says_of_it() -> None:
    said = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030"
    failed = AnalysisException(said)
    for trace, line in (
        ("Caused by: java.io.IOException: No space left on device\n\tat x.Y", f"{said} (No space left on device)"),
        ("Caused by: java.io.IOException: Broken pipe", said),
    ):
        failed._stackTrace = trace  # type: ignore[attr-defined]
        with pytest.raises(RocketSparkError) as raised, one_line_errors():
            raise failed
        assert str(raised.value) == line


def test_no_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match=r"Java 17 or later.*rocketspark\[spark\]"):
        check_installed(SessionOptions())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (SessionOptions(master="local", remote="sc://x"), "--master and --remote exclude each other"),
        (SessionOptions(remote="spark://x"), "sc://host:port is needed"),
    ],
)
def test_wrong_session(options: SessionOptions, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_installed(options)


def test_connection_leaves_unset_options_out() -> None:
    assert connection("a:1").spark_options() == {"namesrv": "a:1"}
    made = Connection("a:1", "ns", "key", "secret", options=pairs(["checkCrc=true", "x=a=b"], "--option"))
    assert made.spark_options() == {
        "namesrv": "a:1",
        "namespace": "ns",
        "accessKey": "key",
        "secretKey": "secret",
        "checkCrc": "true",
        "x": "a=b",
    }
    assert connection(made) is made


def test_keys_among_the_options_are_the_connection_s_own(tmp_path: Path) -> None:
    """What topics are made with is what they are read with."""
    file = tmp_path / "key"
    file.write_text("hide-1\n")
    options = {"AccessKey": "two", "secretKeyFile": str(file), "useTls": "true", "tlsVerify": "none", "tags": "A"}
    made = connection(Connection("a:1", "ns", "one", "hide-2", options=options))
    assert made == Connection("a:1", "ns", "two", "hide-1", options={"tags": "A"}, tls=ClientTls(verify="none"))
    assert made.access.credentials()["secret_key"] == "hide-1"
    assert "hide" not in f"{made!r} {made}"
    assert made.spark_options() == {
        "namesrv": "a:1",
        "namespace": "ns",
        "accessKey": "two",
        "secretKey": "hide-1",
        "useTls": "true",
        "tlsVerify": "none",
        "tags": "A",
    }
    with pytest.raises(ConfigError, match="belong together"):
        connection(made._replace(options={"accessKey": "three"}))


@pytest.mark.parametrize("text", ["x", "=1", " =1"])
def test_pairs_need_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--conf is .*name=value"):
        pairs([text], "--conf")


def test_errors_of_queries_are_not_logged_as_well() -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign, assignment]
    error = AnalysisException("no such column")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = PySparkLogger.getLogger(name)
        before = logger.level
        logger.addHandler(handler)
        try:
            quiet_errors()
            logger.exception(str(error), errorClass="X")
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
    assert told == []


def test_a_pipeline_that_keeps_bodies_takes_no_option_of_decoding() -> None:
    made = Connection("a:1", options={"DecodeMode": "dropmalformed", "decode": "json"})
    with pytest.raises(ConfigError, match=r"option DecodeMode: this pipeline keeps bodies .* --format delta"):
        connection(made)
    assert connection(made, decodes=True) is made
