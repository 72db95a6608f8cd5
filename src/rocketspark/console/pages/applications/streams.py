"""Spark streams that publish their progress: state, rows a second, the last micro-batch, lag by queue.

Rule: what a stream has read its process says; where its queues end the brokers say, asked with the keys of whoever
looks: who may not look at a topic sees no stream that reads it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from rocketspark.admin.broker_states import TopicStats
from rocketspark.console.call import Call, Failed, together
from rocketspark.console.cluster.streams import Source, find
from rocketspark.console.pages.applications.allowed import may_look
from rocketspark.console.routes import page
from rocketspark.errors import RocketSparkError, ServerError, UsageError
from rocketspark.model.stream_progress import StreamProgress

# Spark tells of a stream that waits every 10 s.
SILENT_S = 60.0
TOPICS_MAX = 20
ROWS = 100


class QueueRow(NamedTuple):
    """A queue of a stream. `read_to`: None if the stream has not come to it; `end`, `lag`: None if no broker tells."""

    topic: str
    broker_name: str
    queue_id: int
    read_to: int | None
    end: int | None
    lag: int | None


class StreamRow(NamedTuple):
    """A stream as pages show it. `state`: running, silent, stopped or failed; `lag`: None if it is not known; `why`:
    of a lag that is not known, or a stream that is silent.
    """

    of: StreamProgress
    address: str
    topics: list[str]
    state: str
    heard_s: float
    batch_age_s: float | None
    lag: int | None
    queues: list[QueueRow]
    why: tuple[str, ...]


async def streams(call: Call) -> Response:
    """The streams, or the part of the page that is asked for again and again."""
    await may_look(call)
    sources = await call.console.streams.look()
    rows: list[StreamRow] = []
    for source in sources:
        for each in source.said.streams if source.said else ():
            if (row := await _row(call, source, each)) is not None:
                rows.append(row)
    here, number, pages = call.paged(rows, ROWS)
    values: dict[str, Any] = {
        "rows": here,
        "silent": [source for source in sources if source.error],
        "configured": bool(call.console.streams),
        "number": number,
        "pages": pages,
    }
    if call.wants_part():
        return call.part("streams_part.html", **values)
    return call.page("streams.html", **values)


async def stream(call: Call) -> Response:
    """One stream, queue by queue."""
    await may_look(call)
    found = find(await call.console.streams.look(), call.query("at"), call.query("run"))
    row = None if found is None else await _row(call, *found)
    if found is None or row is None:
        raise UsageError("no process publishes this stream now: it may run anew under another id, see Spark streams")
    queues, number, pages = call.paged(row.queues, ROWS)
    return call.page("stream.html", row=row, source=found[0], queues=queues, number=number, pages=pages)


async def _row(call: Call, source: Source, said: StreamProgress) -> StreamRow | None:
    """Return a stream's row, None if its topics are not for whoever looks."""
    topics = sorted(said.offsets)[:TOPICS_MAX]
    told = await together(*(_stats(call, topic) for topic in topics))
    if any(each is None for each in told):
        return None
    queues: list[QueueRow] = []
    why = []
    for topic, stats in zip(topics, told, strict=True):
        if isinstance(stats, Failed):
            why.append(f"{topic}: {stats.text}")
        queues.extend(queue_rows(topic, said.offsets[topic], None if isinstance(stats, Failed) else stats))
    if len(said.offsets) > TOPICS_MAX:
        why.append(f"of its {len(said.offsets)} topics the first {TOPICS_MAX} are shown")
    heard_s = source.since_s(said.seen_s)
    state: str = said.state
    if source.error:
        why.append(f"its process at {source.address} does not answer: {source.error}")
    if state == "running" and (source.error or heard_s > SILENT_S):
        state = "silent"
    lags = [queue.lag for queue in queues]
    return StreamRow(
        said,
        source.address,
        topics,
        state,
        heard_s,
        None if said.batch_at_s is None else source.since_s(said.batch_at_s),
        sum(lag or 0 for lag in lags) if queues and None not in lags else None,
        queues,
        tuple(why),
    )


async def _stats(call: Call, topic: str) -> TopicStats | Failed | None:
    try:
        return await call.read(("topic_stats", topic), lambda admin: admin.topic_stats(topic), 5.0)
    except ServerError as e:
        if e.no_permission and call.session is not None:
            return None
        call.must_log_in(e)
        return Failed(str(e))
    except RocketSparkError as e:
        return Failed(str(e))


def queue_rows(topic: str, read_to: dict[str, dict[str, int]], stats: TopicStats | None) -> list[QueueRow]:
    """Return the queues of a topic that a stream reads, those that it has not come to too. `stats`: None if nobody
    tells where the queues end.
    """
    ends = {(q.queue.broker_name, q.queue.queue_id): q for q in stats.queues} if stats is not None else {}
    at = {(broker, int(queue)): offset for broker, queues in read_to.items() for queue, offset in queues.items()}
    found = []
    for key in sorted(ends.keys() | at.keys()):
        offset, end = at.get(key), ends.get(key)
        # What expired is not before the stream any more.
        begin = None if end is None else max(end.min_offset if offset is None else offset, end.min_offset)
        lag = None if end is None or begin is None else max(0, end.max_offset - begin)
        found.append(QueueRow(topic, *key, offset, None if end is None else end.max_offset, lag))
    return found


ROUTES = [page("/streams", streams), page("/stream", stream)]
