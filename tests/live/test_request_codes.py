"""Every request code of RocketMQ 5.5.0: our broker and NameServer serve it, or the table here says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.support import broker, connected, name_server, run
from tests.unit.protocol.golden import table

from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("every request code of 5.5.0 is served, or in a table with its reason")

# Whole tiers of the table that are not served.
TIERS = {
    "pop": "POP",
    "controller": "the controller, which chooses a master among replicas",
    "cold-data": "cold data: reads of the log are not throttled",
    "static-topic": "static topics",
}
NOT_THERE = "5.5.0's broker does not serve it either"
# What is asked of brokers and not served.
LEFT_OUT = {
    RequestCode.QUERY_BROKER_OFFSET: NOT_THERE,
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER: NOT_THERE,
    RequestCode.WHO_CONSUME_THE_MESSAGE: NOT_THERE,
    RequestCode.REGISTER_FILTER_SERVER: NOT_THERE,
    RequestCode.GET_BROKER_MEMBER_GROUP: NOT_THERE,
    RequestCode.ACK_LITE_MESSAGE: NOT_THERE,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: "a broker's word to clients",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "consume queues in RocksDB",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "settings in RocksDB",
    RequestCode.ADD_BROKER: "the broker container",
    RequestCode.REMOVE_BROKER: "the broker container",
}


def wanted(receiver: str) -> set[int]:
    """The codes that a server is to serve: all of the table but what is left out."""
    rows = [row for row in table("receivers") if receiver in row["receiver"].split(" and ")]
    codes = {int(row["code"]) for row in rows if row["tier"] not in TIERS}
    return codes - LEFT_OUT.keys() if receiver == "broker" else codes


async def refused(peer: Peer, codes: set[int]) -> set[str]:
    """Those that are "not supported"; asked with nothing in them, so what else is answered does not matter."""
    found = set()
    for code in codes:
        reply = await peer.request(code)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            found.add(RequestCode(code).name)
    return found


def test_the_broker_serves_what_a_broker_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await refused(peer, wanted("broker")) == set()
            left_out = {int(code) for code in LEFT_OUT}
            assert await refused(peer, left_out) == {RequestCode(code).name for code in left_out}

    run(main())


def test_the_name_server_serves_what_a_name_server_is_asked() -> None:
    async def main() -> None:
        async with name_server() as server, connected(server.address) as peer:
            assert await refused(peer, wanted("namesrv")) == set()

    run(main())


def test_no_code_of_clients_and_operators_is_left_out() -> None:
    tier = {int(row["code"]): row["tier"] for row in table("receivers")}
    assert {tier[code] for code in LEFT_OUT} == {"ha", "other", "pop"}
    assert len(wanted("broker")) > 60
    assert len(wanted("namesrv")) > 20
