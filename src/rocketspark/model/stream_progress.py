"""What a process with Spark streams says of them at /progress. Rule: whoever reads it needs no Spark."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PATH = "/progress"
# Who reads it adds them up and draws them: what lies beyond is nonsense.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
QueueId = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,10}$")]


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
    started_s: Seconds
    seen_s: Seconds
    error: str = ""
    batch_id: Count | None = None
    batch_rows: Count = 0
    batch_s: Seconds | None = None
    batch_at_s: Seconds | None = None
    rows: Count = 0
    bad_rows: Count = 0
    rows_per_s: float = 0.0
    offsets: dict[str, dict[str, dict[QueueId, Count]]] = {}


class StreamsProgress(msgspec.Struct, kw_only=True):
    """All streams of a process; `said_s`: when it says so."""

    said_s: Seconds
    streams: list[StreamProgress]
