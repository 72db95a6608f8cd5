"""What a master does itself with messages not all in-sync replicas hold yet: it sees them, readers do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live.support import TOPIC, connected, create, pull, pulled, run, send, sent, until
from tests.live.test_broker_batch_queues import BATCHED, send_batch
from tests.live.test_broker_transactions import end, half
from tests.live.test_controller_mode import Group, group

from rocketspark.broker.messages.schedule_messages import LOOK_S
from rocketspark.broker.server import BrokerServer
from rocketspark.protocol import headers
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record, sysflags


@contextmanager
def deaf(slave: BrokerServer) -> Iterator[None]:
    """A slave that stays connected, and reads nothing of what its master sends."""
    connection = slave.replication.client._connection
    assert connection is not None
    assert connection._transport is not None
    connection._transport.pause_reading()
    try:
        yield
    finally:
        connection._transport.resume_reading()


async def pair(g: Group) -> tuple[BrokerServer, BrokerServer]:
    first = await g.start(1)
    await until(lambda: g.master())
    second = await g.start(2)
    await g.in_sync(2)
    return first, second


SLOW = {"slave_not_caught_up_ms": 60_000, "controller_timeout_ms": 60_000, "ha_housekeeping_interval_ms": 60_000}


def test_a_delayed_message_that_was_confirmed_late_is_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, slave_timeout_ms=20_000, **SLOW) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
                assert await sent(peer, b"before") == 0
                with deaf(second):
                    waiting = asyncio.create_task(send(peer, b"delayed", pairs={"DELAY": "1"}))
                    await asyncio.sleep(2.5 * LOOK_S)
                    assert not waiting.done()
                (await waiting).raise_for_code("send")
                await until(lambda: first.store.queue_range(TOPIC, 0)[1] == 2, 10)
                assert [m.body for m in await pulled(peer)] == [b"before", b"delayed"]

    run(main())


def test_batches_sent_while_others_wait_have_their_own_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, slave_timeout_ms=20_000, **SLOW) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer, attributes=BATCHED)
                with deaf(second):
                    waiting = [asyncio.create_task(send_batch(peer, 3)) for _ in range(4)]
                    await until(lambda: first.replication._waits.waiting_count == 4)
                replies = [(await reply).raise_for_code("batch").header(headers.SendReply) for reply in waiting]
                assert sorted(reply.queue_offset for reply in replies) == [0, 3, 6, 9]
                found = await pull(peer)
                assert [m.queue_offset for m in record.decode_messages(found.body)] == list(range(12))

    run(main())


def test_what_was_delivered_just_before_a_kill_is_not_delivered_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, **SLOW) as g:
            first, _ = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
                (await send(peer, b"delayed", pairs={"DELAY": "1"})).raise_for_code("send")
                (await send(peer, b"timer", pairs={"TIMER_DELAY_MS": "1000"})).raise_for_code("send")
                await until(lambda: first.store.queue_range(TOPIC, 0)[1] == 2, 10)
            port = int(g.controller.address.rpartition(":")[2])
            await g.controller.close()
            await g.brokers.pop(1).kill()
            await g.brokers.pop(2).kill()
            g.controller = g._controller(port)
            await g.controller.start()
            # It is master still, of a set of two, and cannot tell what of its log the other one holds.
            first = await g.start(1)
            await until(lambda: g.master())
            await asyncio.sleep(2.5 * LOOK_S)
            stored = [m.body for m in first.store.iterate(0) if m.topic == TOPIC.encode()]
            assert sorted(stored) == [b"delayed", b"timer"]

    run(main())


def test_a_commit_that_too_few_could_hold_leaves_its_half_message_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, in_sync_replicas_min=2) as g:
            first, _ = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
                message = await half(peer, 1)
                await g.stop(2)
                await g.in_sync(1)
                refused = await end(peer, message, sysflags.TRANSACTION_COMMIT)
                assert refused[0] == ResponseCode.SYSTEM_ERROR
                assert refused[1] is not None
                assert refused[1].startswith("in-sync replicas not enough")
                assert first.store.stored_range(TOPIC, 1) == (0, 0)
                await g.start(2)
                await g.in_sync(2)
                assert await end(peer, message, sysflags.TRANSACTION_COMMIT) == (ResponseCode.SUCCESS, None)
                assert [m.body for m in await pulled(peer, TOPIC, 1)] == [b"tx 1"]

    run(main())
