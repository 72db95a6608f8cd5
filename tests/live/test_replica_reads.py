"""Reads where slaves serve: who a consumer is sent to, how little of what is far behind comes, when a slave holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.live.support import TOPIC, connected, create, create_group, pull, pull_header, run, send, sent, until
from tests.live.test_controller_mode import group
from tests.live.test_replication import pair

from rocketspark.broker.replication.role import Role
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PullReply
from rocketspark.protocol.message import record

pytestmark = pytest.mark.shows(
    "pull: suggested broker",
    "suggested broker, what lies far behind (8 messages, 64 KiB), a slave passes consumers back, holds pulls "
    "only while its master is gone, moves no consumer",
)


def reply_of(reply: object) -> tuple[int, int, int]:
    """(code, suggested broker, next offset) of a pull's reply."""
    header = reply.header(PullReply)  # type: ignore[attr-defined]
    return reply.code, header.suggested_broker_id, header.next_offset  # type: ignore[attr-defined]


def test_a_consumer_that_is_far_behind_is_sent_to_the_slave_and_gets_little(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as p, connected(p.master.address) as master, connected(p.slave.address) as slave:
            await create(master, queues=1)
            await create_group(master)
            for i in range(30):
                await sent(master, b"%02d" % i * 500)
            await p.equal()
            near = await pull(master)
            assert reply_of(near) == (0, 0, 30)
            # No memory at all: whatever is not the newest message is far behind.
            p.master.settings.memory_percent = 0
            far = await pull(master)
            assert reply_of(far) == (0, 1, p.master.settings.disk_pull_count_max)
            p.master.settings.disk_pull_bytes_max = 3000
            few = await pull(master)
            assert len(list(record.decode_all(few.body))) == reply_of(few)[2] == 2
            await until(lambda: p.slave.replication.synchronize is not None and p.slave.replication.synchronize.passes)
            p.slave.settings.memory_percent = 0
            found = await pull(slave)
            assert reply_of(found)[:2] == (0, 1)
            # Nearly at the end the master serves again.
            p.slave.settings.memory_percent = 40
            assert reply_of(await pull(slave, TOPIC, 0, 10)) == (0, 0, 30)

    run(main())


def test_a_slave_holds_a_pull_only_while_its_master_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as p, connected(p.slave.address) as slave:
            async with connected(p.master.address) as master:
                await create(master, queues=1)
                await create_group(master)
                await sent(master, b"x")
            await p.equal()
            await until(lambda: TOPIC in p.slave._topics.table)
            asked = pull_header(TOPIC, 0, 1, sys_flag=6, suspend_ms=60_000)
            at_once = await slave.request(RequestCode.PULL_MESSAGE, asked)
            assert reply_of(at_once) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 0, 1)
            # A slave may lack what a consumer has read: it moves nobody.
            beyond = await slave.request(RequestCode.PULL_MESSAGE, pull_header(TOPIC, 0, 77))
            assert reply_of(beyond) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 0, 77)
            await p.stop(0)
            await until(lambda: not p.slave.role.is_copying())
            held = asyncio.ensure_future(slave.request(RequestCode.PULL_MESSAGE, asked))
            await until(lambda: p.slave.replication._long_polling.waiting == 1)
            # The master is back with one more message, which the slave gets and gives.
            back = await p.start(0)
            async with connected(back.address) as master:
                await sent(master, b"y")
            assert reply_of(await held) == (0, 0, 2)

    run(main())


def test_a_slave_without_slave_read_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, slave_read=False) as p, connected(p.slave.address) as slave:
            reply = await pull(slave)
            assert reply.code == ResponseCode.SYSTEM_BUSY

    run(main())


@pytest.mark.shows("mended: under a controller slaves showed what their SYNC_FLUSH master had not flushed yet")
@pytest.mark.parametrize("all_ack", [True, False])
def test_a_slave_shows_no_more_than_what_its_master_has_flushed(tmp_path: Path, all_ack: bool) -> None:
    """The master's machine may lose its power, and while the slave is away others take the place of what is lost."""

    async def main() -> None:
        async with group(tmp_path, flush_disk_type="SYNC_FLUSH", all_ack_in_sync_set=all_ack) as g:
            master = await g.start(1)
            await until(lambda: master.role.kind is Role.MASTER)
            slave = await g.start(2)
            await g.in_sync(2)

            async def hear() -> None:
                link = slave.replication.client.link
                assert link is not None
                heard_s = link.last_read_s
                await until(lambda: link.last_read_s > heard_s)

            async with connected(master.address) as peer:
                await create(peer, queues=1)
                await sent(peer, b"flushed")
                flush_log, master.store.flush_log = master.store.flush_log, lambda: master.store.flushed_position  # type: ignore[method-assign]
                sending = asyncio.ensure_future(send(peer, b"not yet"))
                await until(lambda: slave.store.stored_range(TOPIC, 0) == (0, 2))
                for _ in range(3):
                    await hear()
                for store in (master.store, slave.store):
                    assert store.readable_range(TOPIC, 0) == (0, 1)
                master.store.flush_log = flush_log  # type: ignore[method-assign]
                assert (await sending).code == ResponseCode.SUCCESS
                await until(lambda: slave.store.readable_range(TOPIC, 0) == (0, 2))

    run(main())
