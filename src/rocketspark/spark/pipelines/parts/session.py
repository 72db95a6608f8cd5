"""The SparkSession of a command, and Spark's errors as one line. Rule: a session that is active is used as it is."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.lakehouse import formats, object_store
from rocketspark.spark.lakehouse.table import damage_in
from rocketspark.spark.python_workers import prefer_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketspark.spark.lakehouse.table import TablePlace

MASTER_DEFAULT = "local[*]"
# A store may fail a task once; local[*] tries none again.
MASTER_WITH_RETRIES = "local[*,4]"
LOCAL_PARTITIONS = 32


class SessionOptions(NamedTuple):
    """The options of a command's Spark session. `remote`: a Spark Connect server (sc://host:port) instead of a master;
    `places`: the places that the command reads and writes, for which the session gets jars and settings of object
    stores; `tables`: its archives that are tables.
    """

    master: str = ""
    remote: str = ""
    conf: Mapping[str, str] = {}
    places: tuple[str | Path, ...] = ()
    tables: tuple[TablePlace, ...] = ()

    @property
    def all_places(self) -> tuple[str | Path, ...]:
        """The places of the options, and those of the tables."""
        return self.places + tuple(table.place for table in self.tables)


@contextmanager
def open_session(name: str, options: SessionOptions | None = None) -> Iterator[SparkSession]:
    """Give the block the active session, or a new one that is stopped at the end. `name`: a new session's.

    Raises ConfigError if Java is missing, RocketSparkError with one line for what fails in Spark.
    """
    options = options or SessionOptions()
    check_installed(options)
    from pyspark.sql import SparkSession

    with one_line_errors():
        active = SparkSession.getActiveSession()
        if active is not None and not options.remote and not options.master:
            yield active
            return
        spark = _make(name, options)
        try:
            yield spark
        finally:
            spark.stop()


def _make(name: str, options: SessionOptions) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    quiet_errors()
    prefer_this_python()
    settings = {"spark.sql.session.timeZone": "UTC"}
    if options.remote:
        builder = SparkSession.builder.remote(options.remote)
    else:
        master = options.master or os.environ.get("SPARK_MASTER") or MASTER_DEFAULT
        if master == MASTER_DEFAULT and any(map(object_store.scheme_of, options.all_places)):
            master = MASTER_WITH_RETRIES
        builder = SparkSession.builder.master(master)
        # Tasks send messages: two attempts at one would send them twice.
        settings["spark.speculation"] = "false"
        settings |= {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
        if master.startswith("local"):
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            # 200 tasks a shuffle are for clusters: here most of the time would go into starting them.
            settings["spark.sql.shuffle.partitions"] = str(LOCAL_PARTITIONS)
    builder = builder.appName(f"rocketspark pipeline {name}")
    jars = _jar_settings(options)
    settings |= jars
    object_store.remember_secrets(options.conf)
    shown, secrets = object_store.without_secrets(options.conf)
    for key, value in (settings | shown | _only_lists(jars)).items():
        builder = builder.config(key, value)
    with nullcontext() if options.remote else _quiet_start("spark.jars.packages" in jars):
        try:
            spark: SparkSession = builder.getOrCreate()
        except PySparkRuntimeError as e:
            if "JAVA_GATEWAY_EXITED" in str(e) and (wanted := jars.get("spark.jars.packages")):
                raise ConfigError(
                    f"Spark did not start; likely its jars could not be had ({wanted}): check the network, or fetch"
                    " them and give them with --conf spark.jars=…"
                ) from None
            raise
    object_store.give_secrets(spark, secrets)
    if not options.remote and "spark.log.level" not in options.conf:
        spark.sparkContext.setLogLevel("OFF")  # What fails is raised here too.
    return spark


# Settings that hold what was given, and more.
_LISTS = frozenset({"spark.sql.extensions"})


def _jar_settings(options: SessionOptions) -> dict[str, str]:
    """Return the settings of stores and table formats. A Spark Connect server has its own."""
    from rocketspark.spark.spark_features import VERSION

    settings: dict[str, str] = {}
    if options.remote:
        return settings
    for place in options.all_places:
        settings |= object_store.settings_for(place, {**options.conf, **_only_lists(settings)})
    for table in options.tables:
        known = {**options.conf, **_only_lists(settings)}
        settings |= formats.settings_for(table.format, table.catalog, known, VERSION)
    return settings


def _only_lists(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name in _LISTS or name.startswith("spark.jars.")}


def quiet_errors() -> None:
    """Keep PySpark from logging each error in a query with its whole trace, since the error is raised, too."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")


# Useless lines that Spark prints while it starts.
_NOISE = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j|Setting (default|Spark) log level|To adjust logging"
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) |WARNING: .*(sun\.misc\.Unsafe|native access|restricted method)"
)


# What Ivy tells of jars that are fetched; what it cannot fetch is an error of ours.
_FETCHES = re.compile(
    rb"\s|::|Ivy |The jars for|downloading |You probably access|.* added as a dependency|.*artifacts copied"
    rb"|Exception in thread \"main\" java\.lang\.RuntimeException: (problem during|\[(unresolved|download))"
)


@contextmanager
def _quiet_start(fetches: bool = False) -> Iterator[None]:
    """Have the JVM that starts in this block, and its workers, write on our stderr all but noise; if it `fetches` jars,
    nothing of that.
    """
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    kept, own = os.dup(2), os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)

    def copy() -> None:
        with open(read_end, "rb") as lines, open(own, "wb", buffering=0) as out:
            for line in lines:
                if not _NOISE.match(line) and not (fetches and _FETCHES.match(line)):
                    out.write(line)

    threading.Thread(target=copy, name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def check_options(options: SessionOptions) -> None:
    """Raise ConfigError for options that exclude each other or that no session can have."""
    if options.master and options.remote:
        raise ConfigError("--master and --remote exclude each other: a Spark Connect server has its own master")
    if options.remote and not options.remote.startswith("sc://"):
        raise ConfigError(f"--remote is {options.remote!r}: a Spark Connect server's sc://host:port is needed")


def check_installed(options: SessionOptions) -> None:
    """Raise ConfigError, which says what to set or install, if a session with these options lacks Java or the packages
    of Spark Connect.
    """
    check_options(options)
    if options.remote:
        if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("grpc_status") is None:
            raise ConfigError("--remote needs Spark Connect's packages: pip install 'pyspark[connect]'")
    elif not _java_is_there():
        raise ConfigError(
            "Spark needs Java 17 or later, and none was found: install one, or set JAVA_HOME (pip install"
            " rocketspark[spark] brings PySpark, not Java)"
        )


def _java_is_there() -> bool:
    home = os.environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error that Spark raises in the block into a RocketSparkError of one line; other errors pass."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as e:
        raise RocketSparkError(_of_table(e) or _with_cause(one_line(str(e)), e)) from e
    except Py4JError as e:
        says = _of_table(e) or f"Spark: {one_line(str(getattr(e, 'java_exception', e)))}"
        raise RocketSparkError(_with_cause(says, e)) from e


def _of_table(error: Exception) -> str:
    """Return the line of an error that says that a table is damaged, else ""."""
    text = _trace(error)
    return "" if _OURS.search(text) else object_store.hidden(damage_in(text))


def _trace(error: Exception) -> str:
    return f"{error}\n{getattr(error, '_stackTrace', None) or ''}"


def _with_cause(line: str, error: Exception) -> str:
    """Return the line of an error; where a full disk is the cause, and the line does not tell of it, with that."""
    cause = os.strerror(errno.ENOSPC)
    return f"{line} ({cause})" if cause in _trace(error) and cause not in line else line


_OURS = re.compile(r"\brocketspark(?:\.\w+)+: (.+)$", re.M)
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Warning|Lost|Failed)): (.+)$", re.M)


def one_line(text: str) -> str:
    """Return the line of an error's text that a user needs, without credentials: this package's own error if there is
    one, else the last Python error, else the first line.
    """
    return object_store.hidden(_needed_line(text))


def _needed_line(text: str) -> str:
    if ours := _OURS.findall(text):
        return str(ours[-1]).strip()
    if errors := _PYTHON_ERROR.findall(text):
        kind, says = errors[-1]
        return f"{kind}: {says}".strip()
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return lines[0] if lines else "Spark failed and did not say why"
