"""Where sinks write: what is refused before anything is written."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines import sql
from rocketspark.spark.pipelines.parts.sql_file import SqlSink
from rocketspark.spark.pipelines.sql import SinkPlace, check_places, sink_frame

pytestmark = pytest.mark.shows("`pipeline sql` beside what is in a sink's folder")

NONE: Any = None


def sink(
    path: str = "out", mode: str | None = None, *, stream: bool = False, name: str = "s", kind: str = "parquet"
) -> Any:
    return SinkPlace(name, kind, path, mode, stream, f"ck/{name}")


# Sinks, what is there by folder, and what is refused (None: nothing).
TABLE: list[tuple[list[SinkPlace], dict[str, list[str]], str | None]] = [
    # Batches.
    ([sink()], {}, None),
    ([sink()], {"out": ["a file of others"]}, "out is not empty: give .* mode append, or overwrite, which deletes"),
    ([sink()], {"out": ["_spark_metadata"], "out/_spark_metadata": ["0"]}, "out is not empty"),
    ([sink(mode="append")], {"out": ["part-0"]}, None),
    ([sink(mode="append")], {"out": [""], "out/_spark_metadata": ["0"]}, "a stream writes to out, and readers"),
    ([sink(mode="overwrite")], {"out": ["part-0"], "out/_spark_metadata": ["0"]}, None),
    ([sink()], {"out": ["_temporary"]}, "that was killed, or is not over, left out/_temporary, and Spark"),
    ([sink(mode="append")], {"out": ["part-0", "_temporary"]}, "left out/_temporary"),
    ([sink(mode="overwrite")], {"out": ["_temporary"]}, None),
    ([sink("", kind="jdbc")], {}, "a mode is needed: append, or overwrite, which deletes"),
    ([sink("", "append", kind="jdbc")], {}, None),
    *(([sink(p, "overwrite")], {}, "deletes all .* this run needs ck") for p in (".", "ck", "ck/s", "./out/../ck/")),
    ([sink("shops/out", "overwrite")], {}, "and this run needs shops"),
    ([sink("/data", "overwrite")], {}, "and this run needs /data/shops"),
    ([sink("s3a://b/", "overwrite")], {}, "and this run needs s3a://b/in"),
    ([sink("shopsy", "overwrite")], {}, None),
    ([sink("out", "overwrite"), sink("out/b", "append", name="t")], {}, "and this run needs out/b"),
    ([sink("out", "append"), sink("out/", "append", name="t")], {}, None),
    # Streams.
    ([sink(stream=True)], {}, None),
    ([sink(stream=True)], {"out": ["_spark_metadata"]}, None),
    ([sink(stream=True)], {"out": ["part-0"]}, "out is not empty, and readers would not see"),
    ([sink(stream=True)], {"out": [""], "out/_spark_metadata": ["0"]}, "batches up to 0 of another query .* ck/s"),
    ([sink(stream=True)], {"out": [""], "out/_spark_metadata": ["0"], "ck/s/offsets": ["0"]}, None),
    ([sink(stream=True)], {"out": [""], "out/_spark_metadata": ["9.compact", "10"], "ck/s/offsets": ["9"]}, "up to 10"),
    ([sink(stream=True)], {"out": [""], "out/_spark_metadata": ["9.compact"], "ck/s/offsets": ["8", "9", "10"]}, None),
    ([sink(stream=True)], {"out": [""], "ck/s/offsets": ["4"]}, None),
    ([sink(stream=True, kind="delta")], {"out": ["part-0", "_delta_log"]}, None),
    ([sink(stream=True), sink(f"{os.getcwd()}/out", "append", name="t")], {}, "sinks t and s both write to out"),
]  # fmt: skip


@pytest.mark.parametrize(("sinks", "there", "refused"), TABLE)
def test_what_would_delete_hide_or_be_left_out_is_refused(
    sinks: list[SinkPlace], there: dict[str, list[str]], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "entries", lambda spark, place: there.get(place, []))
    kept = ("ck", "shops", "/data/shops", "s3a://b/in")
    if refused is None:
        check_places(NONE, sinks, kept)
        return
    with pytest.raises(ConfigError, match=refused) as caught:
        check_places(NONE, sinks, kept)
    assert "\n" not in str(caught.value)


@pytest.mark.shows("mended: `SELECT BODY, TAG` into a topic made them fields of a JSON body")
def test_a_message_s_column_in_other_capitals_is_refused() -> None:
    rows: Any = SimpleNamespace(columns=["id", "BODY"])
    with pytest.raises(ConfigError, match="sink s: column BODY is body but for its capitals: name it AS body"):
        sink_frame(SqlSink(name="s", view="v", topic="t"), rows)
    assert sink_frame(SqlSink(name="s", view="v", format="parquet"), rows) is rows
