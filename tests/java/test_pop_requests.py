"""Pops on the official broker: it replies as the vectors say, and takes over a group's order from our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.java.apache import ApacheBroker, ApacheNamesrv
from tests.live.pop_support import Popped, ack, popped
from tests.live.support import TOPIC, broker, connected, create, create_group, run, sent
from tests.support import pop_requests

pytestmark = pytest.mark.shows(
    "POP_MESSAGE, ACK, BATCH_ACK, CHANGE_INVISIBLETIME, PEEK, NOTIFICATION, POLLING_INFO: every field, code "
    "and remark as 5.5.0",
    "ordered pops, `attemptId`, acks out of order, `consumerOrderInfo.json` to and from the Java broker",
)

FILES = {"log_file_bytes": 16 << 20, "queue_file_bytes": 200_000, "index_slots": 10_000, "index_entries": 40_000}
IN_ORDER = {"order": True, "count_max": 3, "invisible_time_ms": 3_600_000}


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNamesrv]:
    server = ApacheNamesrv(tmp_path_factory.mktemp("namesrv"))
    yield server
    server.kill()


def test_the_official_broker_replies_so_and_goes_on_with_our_order(tmp_path: Path, namesrv: ApacheNamesrv) -> None:
    store = tmp_path / "store"

    async def on_ours() -> list[Popped]:
        async with broker(store, **FILES) as server, connected(server.address) as peer:
            await create(peer)
            await create_group(peer)
            for n in range(6):
                await sent(peer, b"%d" % n)
            given = await popped(peer, TOPIC, 0, **IN_ORDER)
            (await ack(peer, given[1])).raise_for_code("ack")
            return given

    async def on_theirs(address: str, given: list[Popped]) -> None:
        async with connected(address) as peer:
            assert await popped(peer, TOPIC, 0, **IN_ORDER) == []
            (await ack(peer, given[0])).raise_for_code("ack")
            assert await popped(peer, TOPIC, 0, **IN_ORDER) == []

    async def on_ours_again(given: list[Popped]) -> None:
        async with broker(store, **FILES) as server, connected(server.address) as peer:
            assert await popped(peer, TOPIC, 0, **IN_ORDER) == []
            (await ack(peer, given[2])).raise_for_code("ack")
            assert [m.body for m in await popped(peer, TOPIC, 0, **IN_ORDER)] == [b"3", b"4", b"5"]

    given = run(on_ours())
    theirs = ApacheBroker(tmp_path / "theirs", namesrv.namesrv, store, config=pop_requests.SETTINGS)
    try:
        run(on_theirs(theirs.broker, given))
        assert pop_requests.replies(theirs.broker, theirs.name, "127.0.0.1") == pop_requests.golden()
        theirs.stop()
    finally:
        theirs.kill()
    run(on_ours_again(given))
