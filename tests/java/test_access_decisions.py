"""The table of access decisions holds on RocketMQ's own broker, row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.java.apache import ApacheBroker
from tests.support.access_rows import CONFIG, Row, play, rows
from tests.support.ports import free_ports

pytestmark = pytest.mark.shows(
    "users, policies, order of decision, white lists, first users, strategies, 3001-3010",
)


class ClosedBroker(ApacheBroker):
    """It need not be registered: it is asked directly, as soon as it answers."""

    def _is_ready(self) -> bool:
        (first,) = asyncio.run(play(self.broker, [Row("", "", 1, "json", 513, 28, {}, "")]))
        return first.remark == "username cannot be null."


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("closed")
    # It asks a NameServer for nothing here.
    broker = ClosedBroker(folder / "broker", f"127.0.0.1:{free_ports()}", folder / "store", config=CONFIG)
    try:
        yield broker.broker
    finally:
        broker.kill()


def test_rocketmq_answers_each_row_so(closed: str) -> None:
    table = list(rows())
    found = asyncio.run(play(closed, table))
    assert [(theirs, row) for theirs, row in zip(found, table, strict=True) if theirs != row] == []
