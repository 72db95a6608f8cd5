"""What records mean: whatever writers do at the same time, each batch is committed once and in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.spark.exactly_once import commit_records
from rocketspark.spark.exactly_once.commit_records import (
    JOB,
    AttemptPart,
    BatchVerdict,
    CommitRecord,
    HalfOutcome,
    HandleHead,
    HandleManifest,
    LastCommit,
    TransactionalIdState,
)
from rocketspark.spark.exactly_once.commit_topic import batch_of


def commit(at: int, batch: int, name: str = "c", query: str = "Q", *attempts: str) -> CommitRecord:
    return CommitRecord(
        kind=commit_records.COMMIT,
        at=at,
        id=name,
        query=query,
        batch=batch,
        parts=tuple(AttemptPart(a, 1, 0, 0) for a in attempts),
    )


def test_a_record_comes_back_from_its_bytes() -> None:
    record = CommitRecord(
        kind=commit_records.COMMIT,
        at=7,
        id="x",
        query="Q",
        batch=3,
        rows=2,
        time_ms=5,
        parts=(AttemptPart("a", 2, 4, 5),),
        swept_from=1,
        swept_to=6,
        bounds=(("t", "broker-a", 0, 9),),
        attempts=("b",),
    )
    assert commit_records.decode(commit_records.encode(record)) == record


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_an_error(body: bytes) -> None:
    with pytest.raises(RocketSparkError, match="no record of ours"):
        commit_records.decode(body)


def test_a_commit_counts_only_where_it_says_it_stands() -> None:
    first, copy, late = commit(0, 0), commit(0, 0), commit(1, 1, "late")
    state = commit_records.state_of([(0, first), (1, copy), (2, late)])
    assert (state.last, state.end) == (first, 3)
    second = commit(3, 1, "second")
    state.add(3, second)
    assert state.last is second
    assert not state.ended
    state.add(4, CommitRecord(kind=commit_records.CLAIM, at=3, id="me"))
    state.add(5, CommitRecord(kind=commit_records.ENDED, at=0, id="c"))
    assert (state.claim, state.ended) == ("me", False)
    state.add(6, CommitRecord(kind=commit_records.ENDED, at=3, id="second"))
    assert state.ended


def test_what_a_batch_is_to_the_record() -> None:
    state = TransactionalIdState()
    assert state.judge("x", "Q", 5) is BatchVerdict.NEW
    state.add(0, commit(0, 5))
    assert state.judge("x", "Q", 5) is BatchVerdict.REPEAT
    assert state.judge("x", "", 5) is BatchVerdict.REPEAT
    assert state.judge("x", "Q", 6) is BatchVerdict.NEW
    with pytest.raises(ConfigError, match="has committed batch 5 of this query, and this is batch 4"):
        state.judge("x", "Q", 4)
    with pytest.raises(ConfigError, match="belongs to query Q, this is R"):
        state.judge("x", "R", 6)
    with pytest.raises(ConfigError, match="belongs to query Q, this is a batch job"):
        state.judge("x", JOB, 0)
    job = commit_records.state_of([(0, commit(0, 0, "c", JOB))])
    assert job.judge("x", JOB, 0) is BatchVerdict.REPEAT
    with pytest.raises(ConfigError, match="belongs to a batch job, this is Q"):
        job.judge("x", "Q", 0)


def test_numbers_that_were_kept_stand_in_for_records_that_expired() -> None:
    state = TransactionalIdState(end=9, kept=LastCommit(9, 5, commit_records.query_hash("Q")))
    assert state.judge("x", "Q", 5) is BatchVerdict.REPEAT
    assert state.judge("x", "Q", 6) is BatchVerdict.NEW
    with pytest.raises(ConfigError, match="another query"):
        state.judge("x", "R", 6)
    assert commit_records.outcome_of(state, 5) is HalfOutcome.ROLLBACK
    assert commit_records.outcome_of(state, 6) is HalfOutcome.UNKNOWN


def test_half_messages_are_rolled_back_once_their_batch_is_decided() -> None:
    state = TransactionalIdState()
    assert commit_records.outcome_of(state, 0) is HalfOutcome.UNKNOWN
    state.add(0, commit(0, 3))
    assert [commit_records.outcome_of(state, b) for b in (2, 3, 4)] == [
        HalfOutcome.ROLLBACK,
        HalfOutcome.UNKNOWN,
        HalfOutcome.UNKNOWN,
    ]
    state.add(1, CommitRecord(kind=commit_records.ENDED, at=0, id="c"))
    assert [commit_records.outcome_of(state, b) for b in (2, 3, 4)] == [
        HalfOutcome.ROLLBACK,
        HalfOutcome.ROLLBACK,
        HalfOutcome.UNKNOWN,
    ]


@pytest.mark.parametrize(
    ("key", "batch"),
    [("id/7/1/20", 7), ("a/b/7/1/20", 7), ("", None), ("id/7/1", None), ("id/x/1/20", None), ("id/-1/1/20", None)],
)
def test_the_batch_of_a_dedupe_key(key: str, batch: int | None) -> None:
    assert batch_of(key) == batch


class Writer:
    """A driver that commits batch after batch: it reads the records, and appends one some time later."""

    def __init__(self, name: str, log: list[CommitRecord]) -> None:
        self.name, self.log, self.batch = name, log, 0
        self.state = TransactionalIdState()
        self.won: list[int] = []

    def read(self) -> None:
        self.state = commit_records.state_of(enumerate(self.log))

    def append(self, *, twice: bool) -> None:
        """Try to commit its batch, as `writing` does; a send whose reply was lost comes twice."""
        if self.state.judge("x", "Q", self.batch) is BatchVerdict.REPEAT:
            self.batch += 1
            return
        record = commit(self.state.end, self.batch, f"{self.name}{self.batch}")
        self.log.extend([record] * (2 if twice else 1))
        landed = len(self.log) - 1
        if landed == record.at:
            self.won.append(self.batch)
            self.batch += 1
        else:
            self.read()
            if self.state.last is not None and self.state.last.id == record.id:
                self.won.append(self.batch)
                self.batch += 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["read", "append", "twice", "restart"])), max_size=60))
def test_whoever_writes_at_the_same_time_each_batch_is_committed_once_and_in_order(
    steps: list[tuple[int, str]],
) -> None:
    log: list[CommitRecord] = []
    writers = [Writer("abc"[i], log) for i in range(3)]
    for who, step in steps:
        writer = writers[who]
        if step == "read":
            writer.read()
        elif step == "restart":
            writer.read()
            writer.batch = writer.state.last.batch if writer.state.last is not None else 0
        else:
            try:
                writer.append(twice=step == "twice")
            except ConfigError:
                writer.read()
                assert writer.state.last is not None
                writer.batch = writer.state.last.batch
    valid = [r.batch for offset, r in enumerate(log) if r.at == offset]
    assert valid == sorted(set(valid))
    won = sorted(batch for writer in writers for batch in writer.won)
    assert won == valid


QUEUES = (("t", "broker-a", 0), ("t", "broker-b", 3))
NUMBERS = st.integers(0, (1 << 63) - 1)


def manifest(rows: list[tuple[int, int, int]]) -> HandleManifest:
    head = HandleHead("attempt", 2, len(rows), "Q", 7, True, QUEUES)
    columns = np.array(rows, np.int64).reshape(len(rows), 3)
    return HandleManifest(head, columns[:, 0].astype(np.int32), columns[:, 1].copy(), columns[:, 2].copy())


@given(st.lists(st.tuples(st.integers(0, 1), NUMBERS, NUMBERS), max_size=50))
def test_a_manifest_comes_back_from_its_bytes(rows: list[tuple[int, int, int]]) -> None:
    wanted = manifest(rows)
    found = commit_records.decode_manifest(commit_records.encode_manifest(wanted))
    assert found.head == wanted.head
    for name in ("targets", "half_offsets", "positions"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()


def test_the_queue_of_a_row() -> None:
    found = manifest([(1, 5, 6)])
    assert found.queue(int(found.targets[0])) == MessageQueue("t", "broker-b", 3)


def test_a_row_takes_few_bytes() -> None:
    rows = [(n % 2, 1000 + n, 10_000_000 + 420 * n) for n in range(10_000)]
    assert len(commit_records.encode_manifest(manifest(rows))) < 10_000


@given(st.binary(max_size=100))
def test_any_bytes_are_a_manifest_or_an_error(body: bytes) -> None:
    with pytest.raises(RocketSparkError, match="no manifest of ours"):
        commit_records.decode_manifest(body)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_manifest_is_a_manifest_or_an_error(at: int, value: int) -> None:
    body = bytearray(commit_records.encode_manifest(manifest([(0, 1, 2), (1, 3, 4)])))
    body[at % len(body)] = value
    try:
        found = commit_records.decode_manifest(bytes(body))
    except RocketSparkError:
        return
    assert len(found.positions) == found.head.rows
