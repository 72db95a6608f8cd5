"""A broker that starts again under other names: what was popped under the names before comes again in time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import ack, pop, popped
from tests.live.support import TOPIC, broker, connected, create, run, sent, until

from rocketspark.broker import topic_names
from rocketspark.broker.server import BrokerServer
from rocketspark.protocol.message import record
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("pops go on after a change of the broker's or the cluster's name")

NAMES: list[dict[str, Any]] = [
    {"cluster_name": "Other"},
    {"broker_name": "broker-z"},
    {"cluster_name": "Other", "broker_name": "broker-z"},
]


def offset_of(server: BrokerServer) -> int:
    return server._offsets.get("G", TOPIC, 0) or 0


async def given_out(server: BrokerServer, peer: Peer, invisible_time_ms: int) -> None:
    """Six messages are popped, the first two acknowledged, and the group's offset is behind them."""
    await create(peer, TOPIC, 1)
    for n in range(6):
        await sent(peer, b"%d" % n)
    got = await popped(peer, invisible_time_ms=invisible_time_ms)
    assert len(got) == 6
    for message in got[:2]:
        (await ack(peer, message)).raise_for_code("ack")
    await until(lambda: offset_of(server) == 6)
    server._offsets.finish()


async def bodies(peer: Peer) -> list[bytes]:
    """What a pop gives, whatever the broker's name is in its handles."""
    reply = (await pop(peer)).raise_for_code("pop", 210)
    return [kept.body for kept in record.decode_all(reply.body)]


async def come_again(peer: Peer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += await bodies(peer)
        await asyncio.sleep(0.02)
    return sorted(found)


@pytest.mark.parametrize("names", NAMES, ids=" and ".join)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_was_popped_under_other_names_comes_again(end: str, names: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await given_out(server, peer, 1500)
            if end == "killed":
                await server.kill()
        async with broker(tmp_path, **names) as server, connected(server.address) as peer:
            assert await come_again(peer, 4) == [b"2", b"3", b"4", b"5"]
            assert await bodies(peer) == []
            assert server._pop_state.in_flight.count(TOPIC, "G", 0) == 0

    run(main())


def test_what_lies_in_the_revive_topic_of_the_name_before_comes_again_once(tmp_path: Path) -> None:
    """Also under the first name again: what was taken over is the other name's by then."""

    async def main() -> None:
        async with broker(tmp_path, revive_interval_ms=3_600_000) as server, connected(server.address) as peer:
            await given_out(server, peer, 1500)
            topic = topic_names.REVIVE_TOPIC_PREFIX + server.settings.cluster_name
            await until(
                lambda: sum(server.store.stored_range(topic, q)[1] for q in server.store.queues().get(topic, ()))
            )
        async with broker(tmp_path, cluster_name="Other") as server, connected(server.address) as peer:
            assert await come_again(peer, 4) == [b"2", b"3", b"4", b"5"]
        for names in ({}, {"cluster_name": "Third"}):
            async with broker(tmp_path, **names) as server, connected(server.address) as peer:
                assert await bodies(peer) == []
                assert server._pops.count("%RETRY%G_T", "G", 0) == 4

    run(main())
