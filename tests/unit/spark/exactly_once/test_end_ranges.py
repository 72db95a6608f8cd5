"""What a broker answers about ranges of half messages: rows, or an error that is tried again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import half_ranges, sysflags
from rocketspark.spark.exactly_once import end_ranges
from rocketspark.spark.exactly_once.transaction_handles import HandleHead, HandleManifest

OFFSETS = np.array([5, 6, 9], np.int64)


def asked(code: int, body: bytes) -> list[int]:
    """The rows that can never be committed, as a broker with this answer tells."""
    head = HandleHead("attempt", 0, 3, "Q", 7, False, (("t", "b", 0),))
    manifest = HandleManifest(head, np.zeros(3, np.int32), OFFSETS, OFFSETS * 100)

    async def request(*_: Any, **options: Any) -> Any:
        return SimpleNamespace(code=code, remark="why", address="127.0.0.1:1", body=body)

    peer: Any = SimpleNamespace(request=request)
    rows = end_ranges.ask(
        *(peer, "G", MessageQueue("t", "b", 0), sysflags.TRANSACTION_COMMIT, manifest, "t", np.arange(3)),
        timeout_ms=1000,
    )
    return [int(row) for row in asyncio.run(rows)]


def test_rows_that_are_gone_are_told_by_their_offsets() -> None:
    assert asked(0, b"") == []
    assert asked(0, half_ranges.encode_offsets([6, 9, 77])) == [1, 2]


@pytest.mark.parametrize("body", [b"1234567", b"123456789"])
def test_an_answer_that_is_cut_off_is_an_error_of_ours(body: bytes) -> None:
    with pytest.raises(RocketSparkError, match=r"the answer of 127\.0\.0\.1:1 about half messages"):
        asked(0, body)


def test_a_refusal_is_an_error_and_an_unknown_request_another() -> None:
    with pytest.raises(RocketSparkError, match=r"code 16 from 127\.0\.0\.1:1: why"):
        asked(ResponseCode.NO_PERMISSION, b"")
    with pytest.raises(end_ranges.NoRanges):
        asked(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b"")
