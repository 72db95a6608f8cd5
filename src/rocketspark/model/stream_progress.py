"""What a process with Spark streams says of them at /progress. Rule: whoever reads it needs no Spark."""

from __future__ import annotations

from typing import Literal

import msgspec

PATH = "/progress"


class StreamProgress(msgspec.Struct, kw_only=True):
    """One streaming query. Times are seconds since 1970 by the clock of the process that says so.

    `query_id`: stays over restarts from a checkpoint, `run_id` does not; `error`: why it failed, its first line;
    `seen_s`: when Spark last said anything of it; `batch_s`, `batch_rows`, `batch_at_s`: how long the last micro-batch
    with rows took, its rows, when it was reported; `rows`, `bad_rows`: of this run; `rows_per_s`: of the last
    micro-batch, as they came in; `offsets`: by topic, broker and queue id, up to where it has read.
    """

    name: str
    query_id: str
    run_id: str
    state: Literal["running", "stopped", "failed"]
    started_s: float
    seen_s: float
    error: str = ""
    batch_id: int | None = None
    batch_rows: int = 0
    batch_s: float | None = None
    batch_at_s: float | None = None
    rows: int = 0
    bad_rows: int = 0
    rows_per_s: float = 0.0
    offsets: dict[str, dict[str, dict[str, int]]] = {}


class StreamsProgress(msgspec.Struct, kw_only=True):
    """All streams of a process; `said_s`: when it says so."""

    said_s: float
    streams: list[StreamProgress]
