"""A slave broker of ours beside its master: its tables, its deleted topics, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.live.support import connected, create, create_group, pull, run, send, sent, until
from tests.live.test_replication import Pair, pair

from rocketspark.broker.replication.role import REJECTED
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.timers import RecallHeader

pytestmark = pytest.mark.shows(
    "a slave's tables equal its master's, of ours and Java's, at once and every 3 s; a garbled answer changes nothing",
    "topics deleted at the master, the quarantine and offsets set by hand reach slaves of ours",
)


def tables_of(server: Any) -> Any:
    return (
        server._topics.table,
        server._topics.version,
        server._groups.table,
        server._groups.version,
        server._groups.forbidden,
        server._offsets.table,
        server._offsets.version,
        server._delays.table(),
        server._modes.table,
        server._quarantine.entries(),
    )


async def tables_equal(p: Pair) -> None:
    await until(lambda: p.slave.replication.synchronize.master == p.master.address)
    p.slave.replication.synchronize.look()
    await until(lambda: tables_of(p.slave) == tables_of(p.master))


async def commit(peer: Any, queue_id: int, offset: int) -> None:
    header = headers.UpdateConsumerOffsetHeader(group="G", topic="T", queue_id=queue_id, commit_offset=offset)
    (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).raise_for_code("commit")


def test_all_tables_of_a_slave_are_its_master_s(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=1) as p:
            async with connected(p.master.address) as peer, connected(p.slave.address) as other:
                await create(peer)
                await create_group(peer)
                for number in range(6):
                    await sent(peer, b"%d" % number, "T", number % 2)
                await sent(peer, b"later", "T", 0, pairs={"DELAY": "1"})
                await commit(peer, 0, 3)
                await until(lambda: p.master._delays.table().offset_table == {1: 1})
                await tables_equal(p)
                await p.equal()
                assert p.slave._delays.table().offset_table == {1: 1}
                # Committed at the slave, made at the slave, and set back at the master: the master is right.
                await commit(other, 0, 4)
                await create(other, "mine")
                await commit(peer, 0, 1)
                await tables_equal(p)
                assert p.slave._offsets.get("G", "T", 0) == 1
                assert p.slave._topics.get("mine") is None
                # Deleted and made again: the slave's queue begins anew as well.
                topic = headers.TopicHeader(topic="T")
                (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, topic)).raise_for_code("delete")
                await create(peer)
                await sent(peer, b"new", "T", 0)
                await tables_equal(p)
                await until(lambda: p.slave.store.deleted_topics() == p.master.store.deleted_topics())
                await p.equal()
                assert p.slave.store.queue_range("T", 0) == (0, 1)
                assert "T" in p.slave.store.deleted_topics()
            # A slave that was away finds all of it again.
            await p.stop(1)
            async with connected(p.master.address) as peer:
                await create(peer, "meanwhile")
                await sent(peer, b"x", "meanwhile", 0)
            await p.start(1)
            await tables_equal(p)
            await p.equal()

    run(main())


@pytest.mark.shows("tables of the last 3 s at an orderly change")
def test_a_master_that_leaves_waits_until_its_slaves_have_its_tables(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, in_sync_replicas=1) as p:
            master, slave = p.master, p.slave
            async with connected(master.address) as peer:
                await create(peer)
                await create_group(peer)
                await tables_equal(p)
                # What the next look, in 3 s, would find is there when the master is gone.
                await create(peer, "late")
                await create_group(peer, "late")
                await commit(peer, 0, 1)
            await p.stop(0)
            assert tables_of(slave) == tables_of(master)
            assert "late" in slave._topics.table

    run(main())


@pytest.mark.shows("what a slave refuses, with which code")
def test_what_a_slave_refuses_and_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            pair(tmp_path, in_sync_replicas=1, slave_read=False, recall_enabled=True) as p,
            connected(p.master.address) as peer,
            connected(p.slave.address) as other,
        ):
            await create(peer)
            await create_group(peer)
            await sent(peer, b"x", "T", 0)
            await tables_equal(p)
            await p.equal()

            async def refused(code: int, remark: str | None, asked: Any) -> None:
                found = await asked
                assert (found.code, found.remark) == (code, remark)

            for number in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                await refused(2, REJECTED, send(other, b"x", code=number))
            end = p.slave.store.written_position
            await refused(2, REJECTED, pull(other))
            end_header = headers.EndTransactionHeader(producer_group="P", half_offset=0, physical_offset=0, outcome=8)
            await refused(11, None, other.request(RequestCode.END_TRANSACTION, end_header))
            recall = RecallHeader(topic="T", handle="x")
            failed = "recall failed, broker service not available"
            await refused(11, failed, other.request(RequestCode.RECALL_MESSAGE, recall))
            reset = headers.ResetOffsetHeader(group="G", topic="T", time_ms=-1)
            asked = other.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
            await refused(1, "Can not reset offset in slave broker", asked)
            assert p.slave.store.written_position == end
            # The rest as a master.
            queue = headers.MaxOffsetHeader(topic="T", queue_id=0)
            found = await other.request(RequestCode.GET_MAX_OFFSET, queue)
            assert found.header(headers.OffsetReply).offset == 1
            # A master refuses none of it.
            assert (await pull(peer)).code == 0
            assert (await send(peer, b"x")).code == 0

    run(main())
