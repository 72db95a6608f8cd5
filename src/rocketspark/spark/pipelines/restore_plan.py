"""What a restore sends where, in which order. Rule: pure; a queue's offsets only ever ascend, chunk by chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rocketspark.spark.pipelines.archive_files import File

# Broker and queue id: a queue of the source or of the target topic.
Queue = tuple[str, int]


class Span(NamedTuple):
    """Offsets [first, end) of a source queue, which hold so many rows."""

    queue: Queue
    first: int
    end: int
    rows: int


def map_queues(sources: Iterable[Queue], targets: Sequence[Queue]) -> dict[Queue, Queue]:
    """Which queue each source queue goes to: its own namesake if all have one, else the n-th to the n-th, in turn."""
    ordered, there = sorted(set(sources)), sorted(set(targets))
    if not there:
        raise ValueError("no target queues")
    if set(ordered) <= set(there):
        return {queue: queue for queue in ordered}
    return {queue: there[number % len(there)] for number, queue in enumerate(ordered)}


def archived_spans(files: Iterable[File]) -> list[list[Span]]:
    """What an archive's files of one topic hold, hour by hour.

    Should a broker's clock have gone back, rows of a later hour may stand before those of an earlier one: they are
    sent with it, for the order of the queue goes before that of the hours.
    """
    hours: dict[str, dict[Queue, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for segment in file.segments:
            hours[file.hour][segment.broker, segment.queue_id].append((segment.first, segment.end, segment.rows))
    reached: dict[Queue, int] = {}
    found = []
    for _, queues in sorted(hours.items()):
        spans = []
        for queue, parts in sorted(queues.items()):
            first, end = min(p[0] for p in parts), max(p[1] for p in parts)
            first = max(min(first, reached.get(queue, first)), reached.get(queue, 0))
            if end > first:
                spans.append(Span(queue, first, end, sum(p[2] for p in parts)))
                reached[queue] = end
        if spans:
            found.append(spans)
    return found


def chunks(groups: Iterable[Sequence[Span]], rows_max: int, sent: Mapping[Queue, int]) -> list[list[Span]]:
    """The groups, one after another, in chunks of some `rows_max` rows; what is below `sent` is left out."""
    found = []
    for group in groups:
        parts = max(1, -(-sum(span.rows for span in group) // rows_max))
        for part in range(parts):
            chunk = []
            for queue, first, end, rows in group:
                low, high = (first + (end - first) * (part + i) // parts for i in (0, 1))
                low = max(low, sent.get(queue, 0))
                if high > low:
                    share = rows * (part + 1) // parts - rows * part // parts
                    chunk.append(Span(queue, low, high, share))
            if chunk:
                found.append(chunk)
    return found


def ends(chunk: Iterable[Span], sent: Mapping[Queue, int]) -> dict[Queue, int]:
    """How far each queue is sent after a chunk."""
    return {**sent, **{span.queue: span.end for span in chunk}}
