"""Offsets that an operator sets under a running consumer: it follows them, whatever is lost or restarts meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live.pop_support import ack, popped
from tests.live.support import (
    GROUP,
    TOPIC,
    broker,
    commit,
    connected,
    create,
    create_group,
    cut_power,
    moved_to,
    pull,
    run,
    sent,
    settings,
)

from rocketspark.broker.server import BrokerServer
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import (
    CloneOffsetsHeader,
    OffsetReply,
    QueryConsumerOffsetHeader,
    ResetOffsetHeader,
)
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "offsets set by hand outlive a restart and a kill until the running consumer pulls there; a lost answer is told "
    "again; what is set later counts"
)


async def reset(peer: Peer, offset: int, queue_id: int = 0) -> None:
    header = ResetOffsetHeader(topic=TOPIC, group=GROUP, queue_id=queue_id, offset=offset, time_ms=-1, force=True)
    (await peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).raise_for_code("reset")


async def committed(peer: Peer) -> int:
    header = QueryConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0)
    reply = await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return reply.raise_for_code("query").header(OffsetReply).offset


async def filled(peer: Peer) -> None:
    await create(peer, queues=1)
    await create_group(peer)
    for number in range(20):
        await sent(peer, b"m%d" % number)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_it_waits_for_the_consumer_over_a_restart(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        server = BrokerServer(settings(tmp_path))
        await server.start()
        async with connected(server.address) as peer:
            await filled(peer)
            await commit(peer, 12)
            await reset(peer, 3)
            await commit(peer, 14)  # Of a consumer with messages in hand, which does not pull.
        await (server.close() if how == "closed" else server.kill())
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await commit(peer, 16)
            assert await committed(peer) == 3
            assert await moved_to(peer, 18) == 3
            assert (await pull(peer, TOPIC, 0, 3, sys_flag=6)).code == 0
            await commit(peer, 5)
            assert await committed(peer) == 5
        # It was followed.
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await moved_to(peer, 18) is None
            await commit(peer, 18)
            assert await committed(peer) == 18

    run(main())


def test_it_is_told_until_it_is_followed(tmp_path: Path) -> None:
    """The answer to a pull may be lost with its connection."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            await reset(peer, 3)
            assert [await moved_to(peer, 18) for _ in range(2)] == [3, 3]
            await commit(peer, 18)
            assert await committed(peer) == 3
            assert (await pull(peer, TOPIC, 0, 3, sys_flag=6)).code == 0
            assert await moved_to(peer, 18) is None
            # Who names each offset by itself is told once.
            await reset(peer, 4)
            assert [await moved_to(peer, 18, sys_flag=4) for _ in range(2)] == [4, None]

    run(main())


def test_who_reads_ranges_from_there_commits_its_own(tmp_path: Path) -> None:
    """As Spark does, which begins at the committed offset and is sent nowhere."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            await reset(peer, 3)
            assert (await pull(peer, TOPIC, 0, 18, bulk=True)).code == 0
            await commit(peer, 18)
            assert await committed(peer) == 3
            assert (await pull(peer, TOPIC, 0, 3, bulk=True)).code == 0
            await commit(peer, 20)
            assert await committed(peer) == 20

    run(main())


def test_what_is_set_later_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            await create_group(peer, "other")
            await commit(peer, 15, "other")
            clone = CloneOffsetsHeader(source="other", target=GROUP, topic=TOPIC)
            for offset in (0, 1):
                await reset(peer, offset)
                (await peer.request(RequestCode.CLONE_GROUP_OFFSET, clone)).raise_for_code("clone")
                assert await committed(peer) == 15
                if not offset:
                    assert await moved_to(peer, 18) is None
            assert [m.offset for m in await popped(peer)] == [15, 16, 17, 18, 19]
            await reset(peer, 0)
            await reset(peer, 7)
            assert await moved_to(peer, 18) == 7

    run(main())


def test_it_outlives_a_kill_for_ordered_pops_too(tmp_path: Path) -> None:
    async def main() -> None:
        server = BrokerServer(settings(tmp_path))
        await server.start()
        async with connected(server.address) as peer:
            await filled(peer)
            held = await popped(peer, order=True, count_max=8)
            server._pop_state.save()
            server._offsets.save()
            await reset(peer, 0)
            await server.kill()
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for message in held:
                await ack(peer, message)
            assert [m.offset for m in await popped(peer, order=True)] == list(range(20))

    run(main())


def test_it_lies_not_beyond_what_a_power_cut_left(tmp_path: Path) -> None:
    """Else what comes to stand before it would be passed over."""

    async def main() -> None:
        server = BrokerServer(settings(tmp_path, flush_interval_ms=3_600_000))
        await server.start()
        async with connected(server.address) as peer:
            await filled(peer)
            flushed = server.store.flush_log()
            for number in range(5):
                await sent(peer, b"gone %d" % number)
            server._offsets.set_by_hand = None
            await reset(peer, 25)
            await server.kill()
        cut_power(tmp_path, flushed)
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for number in range(10):
                await sent(peer, b"new %d" % number)
            assert await moved_to(peer, 18) == 20
            assert await committed(peer) == 20

    run(main())


def test_where_another_broker_served_meanwhile_it_is_over(tmp_path: Path) -> None:
    """A Java broker knows nothing of what waits, and commits what its consumer is through with."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            await reset(peer, 3)
        path = tmp_path / "config" / "consumerOffset.json"
        table = path.read_text()
        assert '{"T@G":{0:3}}' in table
        path.write_text(table.replace('{"T@G":{0:3}}', '{"T@G":{0:17}}'))
        assert json.loads((tmp_path / "config" / "readersAnew.json").read_text())["resets"] == {"T@G": {"0": 3}}
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await moved_to(peer, 18) is None
            await commit(peer, 18)
            assert await committed(peer) == 18

    run(main())


def test_a_queue_that_no_topic_has_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await filled(peer)
            with pytest.raises(ServerError, match="no queue 99999"):
                await reset(peer, 0, 99_999)
            assert server._offsets.of(GROUP, TOPIC) == {}

    run(main())
