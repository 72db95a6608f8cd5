"""What lies where a sink of `pipeline sql` writes. Rule: nothing is deleted unless its mode says so, and nothing is
written that no reader would see: Spark's file sinks leave out batches that their folder has, whoever wrote them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse import object_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OVERWRITE = "overwrite"
# What is written by Spark's file sinks, which keep the numbers of their batches in the folder.
_FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_LOG = "_spark_metadata"
_GLOB = re.compile(r"[][{}*?\\]")
_ENTRIES_MAX = 10_000


class SinkPlace(NamedTuple):
    """Where a sink writes. `mode`: as it was given; `checkpoint`: where a stream keeps its place."""

    name: str
    format: str
    path: str
    mode: str | None
    streaming: bool
    checkpoint: str

    @property
    def is_file_stream(self) -> bool:
        """Tell whether it is a stream into files."""
        return self.streaming and self.format.lower() in _FILES


def check_places(spark: SparkSession, sinks: Sequence[SinkPlace], kept: Iterable[str]) -> None:
    """Check where sinks write, before any does. `kept`: other places that nothing may delete.

    Raises ConfigError for what would delete or hide what somebody else wrote, or would be left out itself.
    """
    kept = [path for path in kept if path]
    for sink in sinks:
        others = [other for other in sinks if other.name != sink.name and other.path]
        if sink.mode == OVERWRITE and sink.path:
            for path in (*kept, *(other.path for other in others)):
                if _overlap(sink.path, path):
                    raise ConfigError(
                        f"sink {sink.name}: mode overwrite deletes all in {sink.path}, and this run needs {path}: name"
                        " another folder"
                    )
        for other in others:
            if _whole(other.path) == _whole(sink.path) and (sink.is_file_stream or other.is_file_stream):
                raise ConfigError(f"sinks {other.name} and {sink.name} both write to {sink.path}: give each its own")
        if sink.is_file_stream:
            _check_stream(spark, sink)
        elif not sink.streaming:
            _check_batch(spark, sink)


def _check_stream(spark: SparkSession, sink: SinkPlace) -> None:
    planned = _newest(entries(spark, f"{sink.checkpoint}/offsets"))
    written = _newest(entries(spark, f"{sink.path}/{_LOG}"))
    if written > planned:
        raise ConfigError(
            f"sink {sink.name}: {sink.path} has batches up to {written} of another query or a newer checkpoint, and"
            f" Spark would leave out this one's up to there: name another folder, or with --checkpoint the one of the"
            f" query that wrote it (this is {sink.checkpoint})"
        )
    if planned < 0 and entries(spark, sink.path):
        raise ConfigError(
            f"sink {sink.name}: {sink.path} is not empty, and readers would not see what is there beside a stream's"
            " files: name another folder"
        )


def _check_batch(spark: SparkSession, sink: SinkPlace) -> None:
    if not sink.path:
        if sink.mode is None:
            raise ConfigError(f"sink {sink.name}: a mode is needed: append, or overwrite, which deletes what is there")
    elif sink.mode is None and entries(spark, sink.path):
        raise ConfigError(
            f"sink {sink.name}: {sink.path} is not empty: give the sink mode append, or overwrite, which deletes"
            " all that is there, or name another folder"
        )
    elif sink.mode != OVERWRITE and entries(spark, f"{sink.path}/{_LOG}"):
        raise ConfigError(
            f"sink {sink.name}: a stream writes to {sink.path}, and readers would not see other files there: name"
            " another folder"
        )


def entries(spark: SparkSession, place: str) -> list[str]:
    """Return the names in a folder; none if it is not there. Over Spark Connect those that Spark's readers see."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return _seen_from_afar(spark, place)
    path = jvm.org.apache.hadoop.fs.Path(_uri(place))
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if not system.exists(path):
        return []
    names: list[str] = []
    found = system.listStatusIterator(path)
    while len(names) < _ENTRIES_MAX and found.hasNext():
        names.append(found.next().getPath().getName())
    return names


def _seen_from_afar(spark: SparkSession, place: str) -> list[str]:
    from pyspark.errors import AnalysisException

    try:
        files = spark.read.format("binaryFile").load(_GLOB.sub(r"\\\g<0>", place)).inputFiles()
    except AnalysisException as e:
        if "PATH_NOT_FOUND" in str(e):
            return []
        raise
    return [file.rpartition("/")[2] for file in files]


def _newest(names: Iterable[str]) -> int:
    """Return the highest number of a batch among the names of files: 7, 9.compact; -1 if there is none."""
    numbers = (name.partition(".")[0] for name in names)
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _uri(place: str) -> str:
    return object_store.uri(place) if object_store.scheme_of(place) else place


def _whole(place: str) -> str:
    """Return a place by which two can be compared."""
    scheme = object_store.scheme_of(place)
    if scheme == "file":
        place = "/" + place.partition(":")[2].lstrip("/")
    return _uri(place).rstrip("/") if scheme not in ("", "file") else os.path.realpath(place)


def _overlap(one: str, other: str) -> bool:
    """Tell whether two paths are the same, or one is in the other."""
    one, other = (_whole(path).rstrip("/") + "/" for path in (one, other))
    return one.startswith(other) or other.startswith(one)
