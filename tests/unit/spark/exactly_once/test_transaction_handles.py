"""Manifests: what comes out is what went in, whatever bytes come are a manifest or an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.spark.exactly_once import transaction_handles
from rocketspark.spark.exactly_once.transaction_handles import HandleHead, HandleManifest

QUEUES = (("t", "broker-a", 0), ("t", "broker-b", 3))
NUMBERS = st.integers(0, (1 << 63) - 1)


def manifest(rows: list[tuple[int, int, int]]) -> HandleManifest:
    head = HandleHead("attempt", 2, len(rows), "Q", 7, True, QUEUES)
    columns = np.array(rows, np.int64).reshape(len(rows), 3)
    return HandleManifest(head, columns[:, 0].astype(np.int32), columns[:, 1].copy(), columns[:, 2].copy())


@given(st.lists(st.tuples(st.integers(0, 1), NUMBERS, NUMBERS), max_size=50))
def test_a_manifest_comes_back_from_its_bytes(rows: list[tuple[int, int, int]]) -> None:
    wanted = manifest(rows)
    found = transaction_handles.decode(transaction_handles.encode(wanted))
    assert found.head == wanted.head
    for name in ("targets", "half_offsets", "positions"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()


def test_the_queue_of_a_row() -> None:
    found = manifest([(1, 5, 6)])
    assert found.queue(int(found.targets[0])) == MessageQueue("t", "broker-b", 3)


def test_a_row_takes_few_bytes() -> None:
    rows = [(n % 2, 1000 + n, 10_000_000 + 420 * n) for n in range(10_000)]
    assert len(transaction_handles.encode(manifest(rows))) < 10_000


@given(st.binary(max_size=100))
def test_any_bytes_are_a_manifest_or_an_error(body: bytes) -> None:
    with pytest.raises(RocketSparkError, match="no manifest of ours"):
        transaction_handles.decode(body)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_manifest_is_a_manifest_or_an_error(at: int, value: int) -> None:
    body = bytearray(transaction_handles.encode(manifest([(0, 1, 2), (1, 3, 4)])))
    body[at % len(body)] = value
    try:
        found = transaction_handles.decode(bytes(body))
    except RocketSparkError:
        return
    assert len(found.positions) == found.head.rows
