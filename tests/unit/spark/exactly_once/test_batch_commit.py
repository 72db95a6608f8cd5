"""The ends of a recorded batch, by the manifests that stand in the commit topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from rocketspark.spark.exactly_once import batch_commit, commit_records
from rocketspark.spark.exactly_once.commit_records import AttemptPart, CommitRecord, HandleHead, HandleManifest
from rocketspark.tables.options import parse_write


def manifest(attempt: str, sequence: int) -> HandleManifest:
    head = HandleHead(attempt, sequence, 2, "q", 1, False, (("t", "b", 0),))
    return HandleManifest(head, np.zeros(2, np.int32), np.arange(2), np.arange(2))


def test_a_manifest_that_stands_twice_counts_once_and_dead_attempts_are_rolled_back() -> None:
    """The reply to one was lost, and it was sent again: the batch has no more rows by that."""
    stand = [("a", 0), ("a", 0), ("dead", 0), ("a", 1)]
    ended: list[tuple[str, str, int]] = []

    async def manifests(first: int, end: int) -> AsyncIterator[Any]:
        for attempt, sequence in stand[first:end]:
            yield SimpleNamespace(body=commit_records.encode_manifest(manifest(attempt, sequence)))

    def noting(outcome: str) -> Any:
        async def note(one: HandleManifest) -> None:
            ended.append((outcome, one.head.attempt, one.head.sequence))

        return note

    log: Any = SimpleNamespace(manifests=manifests)
    ends: Any = SimpleNamespace(commit=noting("commit"), roll_back=noting("roll back"))
    batch = batch_commit._Commit(log, parse_write({"namesrv": "127.0.0.1:1", "topic": "t"}), [], 1)
    record = CommitRecord(kind=commit_records.COMMIT, at=0, id="x", parts=(AttemptPart("a", 4, 0, 3),), swept_to=4)
    assert asyncio.run(batch._end_parts(ends, record)) == {"a": 4}
    assert ended == [("commit", "a", 0), ("commit", "a", 1), ("roll back", "dead", 0)]
