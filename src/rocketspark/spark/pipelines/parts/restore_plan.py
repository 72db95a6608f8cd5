"""The plan of a restore: which rows it sends to which queue and in which order, and how far it has come. Rule: the
offsets of a queue only ever ascend, chunk by chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.spark.pipelines.parts.archive_manifest import ArchivedRange, ArchiveFile

# Broker and queue id: a queue of the source or of the target topic.
Queue = tuple[str, int]


class ArchivedSpan(NamedTuple):
    """The offsets [first, end) of a source queue, and how many rows they hold."""

    queue: Queue
    first: int
    end: int
    rows: int


class RestoreState(msgspec.Struct):
    """How far a restore has come, as its progress file holds it.

    `sent`: an offset for each source queue; all rows before it are in the target topic. `reach`: the end of what may
    have been sent, where a run was killed while it sent rows: rows between `sent` and `reach` may be in the target or
    not. `tail`: where the target's queues ended before those rows were sent; so they are looked for from there on.

    `mapping`: the target queue of each source queue. `since`, `until`: the offsets of each source queue between which
    a replay sends. `rows`: how many were sent so far. `refused`: the first rows that may not be written as messages,
    each by its place with the reason. `made`: the numbers of the topic's making that a replay sends; None in a file of
    an earlier version. `target_made`: those of the target when rows were first sent to it, as `made`. `archive`: the id
    of the archive whose rows are sent, "" if it told none.
    """

    id: str
    rows: int = 0
    sent: list[tuple[Queue, int]] = []
    reach: list[tuple[Queue, int]] = []
    tail: list[tuple[Queue, int]] = []
    mapping: list[tuple[Queue, Queue]] = []
    since: list[tuple[Queue, int]] | None = None
    until: list[tuple[Queue, int]] | None = None
    refused: list[tuple[str, str]] = []
    made: list[tuple[tuple[str, str], int]] | None = None
    target_made: list[tuple[tuple[str, str], int]] | None = None
    archive: str = ""

    @property
    def doubtful(self) -> bool:
        """Tell whether a chunk was begun and not ended."""
        sent = dict(self.sent)
        return any(sent.get(queue, 0) < end for queue, end in self.reach)


def read_state(path: Path) -> RestoreState:
    """Return what a progress file holds. Raises ConfigError if it cannot be read."""
    try:
        return typed_json.decode(path.read_bytes(), RestoreState)
    except msgspec.DecodeError as e:
        raise ConfigError(f"{path} cannot be read ({e}); --again begins anew") from None


def map_queues(sources: Iterable[Queue], targets: Sequence[Queue]) -> dict[Queue, Queue]:
    """Return the target queue of each source queue: the queue of the same broker and id if there is one for all; else
    the n-th source goes to the n-th target, in turn.
    """
    ordered, there = sorted(set(sources)), sorted(set(targets))
    if not there:
        raise ValueError("no target queues")
    if set(ordered) <= set(there):
        return {queue: queue for queue in ordered}
    return {queue: there[number % len(there)] for number, queue in enumerate(ordered)}


def archived_spans(files: Iterable[ArchiveFile]) -> list[list[ArchivedSpan]]:
    """Return the spans of the files that an archive has of one topic, a list for each hour.

    Should a broker's clock have gone back, a queue may have rows of a later hour before those of an earlier one: they
    are in the earlier hour's span, as a queue's order matters more than that of the hours.
    """
    parts: dict[Queue, list[ArchivedRange]] = defaultdict(list)
    last: dict[str, dict[Queue, int]] = defaultdict(dict)
    for file in files:
        for segment in file.segments:
            queue = (segment.broker, segment.queue_id)
            parts[queue].append(segment)
            last[file.hour][queue] = max(segment.end, last[file.hour].get(queue, 0))
    counts = {queue: _Counts(segments) for queue, segments in parts.items()}
    reached = {queue: min(segment.first for segment in segments) for queue, segments in parts.items()}
    found = []
    for _, queues in sorted(last.items()):
        spans = []
        for queue, end in sorted(queues.items()):
            first = reached[queue]
            if end > first:
                spans.append(ArchivedSpan(queue, first, end, counts[queue].below(end) - counts[queue].below(first)))
                reached[queue] = end
        if spans:
            found.append(spans)
    return found


class _Counts:
    """The number of a queue's rows below an offset; within a segment by its share."""

    def __init__(self, segments: Iterable[ArchivedRange]) -> None:
        self._segments = sorted(segments)
        self._firsts = [segment.first for segment in self._segments]
        self._before = [0, *accumulate(segment.rows for segment in self._segments)]

    def below(self, offset: int) -> int:
        number = bisect_left(self._firsts, offset) - 1
        if number < 0:
            return 0
        one = self._segments[number]
        return self._before[number] + one.rows * (min(offset, one.end) - one.first) // (one.end - one.first)


def chunks(
    groups: Iterable[Sequence[ArchivedSpan]], rows_max: int, sent: Mapping[Queue, int]
) -> list[list[ArchivedSpan]]:
    """Divide the spans of each group into chunks of some `rows_max` rows, one after another. `sent`: the offset of each
    queue before which its rows were sent; they are left out.
    """
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
                    chunk.append(ArchivedSpan(queue, low, high, share))
            if chunk:
                found.append(chunk)
    return found


def ends(chunk: Iterable[ArchivedSpan], sent: Mapping[Queue, int]) -> dict[Queue, int]:
    """Return the offset before which all rows of each queue are sent after a chunk; `sent`: those before the chunk."""
    return {**sent, **{span.queue: span.end for span in chunk}}
