"""Records with a flipped bit: those that decide nothing stop no query, others are told with their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record
from rocketspark.spark.exactly_once import commit_records
from rocketspark.spark.exactly_once.commit_records import COMMIT, ENDED, CommitRecord
from rocketspark.spark.exactly_once.commit_topic import CommitTopic

pytestmark = pytest.mark.shows(
    "mended: a flipped bit in an old record of the commit topic stopped its query for ever",
)


class Topic(CommitTopic):
    """Records of three batches, each committed and ended; `damaged`: at these offsets a bit is flipped."""

    def __init__(self, damaged: set[int]) -> None:
        self.name, self.topic, self._broker = "id", "SPARK_TX_id", "broker-a"
        kinds = [kind for _ in range(3) for kind in (COMMIT, ENDED)]
        stored = []
        for offset, kind in enumerate(kinds):
            body = commit_records.encode(CommitRecord(kind=kind, at=offset - offset % 2, id="x", batch=offset // 2))
            made = bytearray(
                record.encode(topic=b"t", queue_id=0, queue_offset=offset, position=0, body=body, properties=b"")
            )
            made[100] ^= offset in damaged
            stored.append(bytes(made))
        self._stored = stored

    async def settled(self, queue: MessageQueue, end: int) -> tuple[int, int]:
        return 0, len(self._stored)

    async def again(self, call: Any, *, topic: str | None = None) -> Any:
        return SimpleNamespace(
            code=ResponseCode.SUCCESS,
            records=b"".join(self._stored),
            header=SimpleNamespace(next_offset=len(self._stored)),
        )


@pytest.mark.parametrize(
    ("damaged", "since", "place"),
    [({0, 3}, None, None), ({3}, 4, None), ({3}, 3, 3), ({4}, None, 4), ({1, 5}, None, 5), ({0, 2, 4}, None, 4)],
)
def test_only_what_may_decide_must_be_whole(damaged: set[int], since: int | None, place: int | None) -> None:
    topic = Topic(damaged)
    if place is None:
        state = asyncio.run(topic.state(since))
        assert state.last is not None
        assert (state.last.batch, state.ended, state.end) == (2, True, 6)
        return
    with pytest.raises(RocketSparkError, match=f"'SPARK_TX_id': the message at offset {place} of queue 0 on broker"):
        asyncio.run(topic.state(since))


def test_a_manifest_must_be_whole() -> None:
    async def read(topic: Topic) -> AsyncIterator[Any]:
        async for stored in topic.manifests(0, 6):
            yield stored

    async def main(damaged: set[int]) -> int:
        return len([stored async for stored in read(Topic(damaged))])

    assert asyncio.run(main(set())) == 6
    with pytest.raises(RocketSparkError, match=r"offset 2 of queue 1 .* is damaged: restore"):
        asyncio.run(main({2}))
