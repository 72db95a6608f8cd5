"""The table of access decisions on our broker, answer by answer as RocketMQ's; and what is checked beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run
from tests.support.access_rows import CONFIG, Row, play, rows

from rocketspark.broker.broker_conf import settings_from
from rocketspark.broker.server import BrokerServer

pytestmark = pytest.mark.shows(
    "users, policies, order of decision, white lists, first users, strategies, 3001-3010",
)


def guarded(root: Path, **more: str) -> BrokerServer:
    """A broker with access control."""
    small: dict[str, Any] = {"listenPort": "0", "storePathRootDir": str(root), "mappedFileSizeCommitLog": "4194304"}
    settings, unknown = settings_from(small | CONFIG | more)
    assert unknown == []
    return BrokerServer(settings)


def answers(root: Path, table: list[Row], **more: str) -> list[Row]:
    """Return the rows with what our broker answers."""

    async def main() -> list[Row]:
        server = guarded(root, **more)
        await server.start()
        try:
            return await play(server.address, table)
        finally:
            await server.close()

    return run(main())


def test_each_row_is_answered_as_rocketmq_answers_it(tmp_path: Path) -> None:
    table = list(rows())
    assert len(table) >= 60
    found = answers(tmp_path, table, authorizationCompleteEnable="false")
    assert [(mine, theirs) for mine, theirs in zip(found, table, strict=True) if mine != theirs] == []
