"""Every reply about pops as the 5.5.0 broker gives it, field by field."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.live.support import broker, run
from tests.support import pop_requests

pytestmark = pytest.mark.shows(
    "POP_MESSAGE, ACK, BATCH_ACK, CHANGE_INVISIBLETIME, PEEK, NOTIFICATION, POLLING_INFO: every field, code "
    "and remark as 5.5.0"
)


def test_the_replies_are_those_of_rocketmq(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, pop_retry_percent=0) as server:
            asked = pop_requests.replies, server.address, "broker-a", server.settings.host
            found = await asyncio.to_thread(*asked)
            assert sum(map(len, found.values())) > 100
            assert found == pop_requests.golden()

    run(main())
