"""Stores under a controller that are not what their broker's number says: older ones, copied ones, others."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.live.support import TOPIC, connected, create, run, send, sent, settings, until
from tests.live.test_acting_master import bodies_of
from tests.live.test_controller_mode import Group, group
from tests.live.test_unconfirmed import SLOW, pair

from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.link.ha_client import _Connection
from rocketspark.broker.replication.link.links import LinkState
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.controller import CleanBrokerDataHeader
from rocketspark.store import backup

COUNT = 5
# Longer than a test waits.
SLOWER = SLOW | {"slave_not_caught_up_ms": 600_000, "ha_housekeeping_interval_ms": 600_000}


async def send_some(address: str, mark: str, count: int = COUNT) -> None:
    """Each record of the same size, so that those of two logs begin at the same places."""
    async with connected(address) as peer:
        for number in range(count):
            await sent(peer, b"%b %02d" % (mark.encode(), number))


@contextmanager
def reading_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slaves that greet their master, and read nothing of its log."""
    receive = _Connection.data_received

    def received(connection: _Connection, data: bytes) -> None:
        if connection.link.state is not LinkState.TRANSFER:
            receive(connection, data)

    with monkeypatch.context() as m:
        m.setattr(_Connection, "data_received", received)
        yield


@pytest.mark.shows("a slave that is back with less than it held, while its old link still seems open, is not elected")
def test_a_slave_that_is_back_with_less_is_in_sync_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with group(tmp_path, **SLOWER) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
            await send_some(first.address, "a")
            store = tmp_path / "store2"
            shutil.copytree(store, tmp_path / "older")
            end = second.store.written_position
            await send_some(first.address, "b")
            in_sync = first.replication.controlled.in_sync
            await until(lambda: in_sync.confirmed == first.store.written_position > end)
            link = second.replication.client._connection
            assert link is not None
            assert link._transport is not None
            # As after a loss of power: nobody closes the connection.
            held = os.dup(link._transport.get_extra_info("socket").fileno())
            try:
                await g.brokers.pop(2).kill()
                shutil.rmtree(store)
                (tmp_path / "older").rename(store)
                assert in_sync.set.members == {1, 2}
                with reading_nothing(monkeypatch):
                    second = await g.start(2)
                    await until(lambda: in_sync.set.members == {1})
                    await g.brokers.pop(1).kill()
                    await asyncio.sleep(1)
                    assert second.role.kind is not Role.MASTER
            finally:
                os.close(held)
            # With the first all comes back.
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            await g.in_sync(2)
            assert len(bodies_of(second.store)) == 2 * COUNT

    run(main())


async def _all_lose_power(g: Group, folder: Path, after: int) -> None:
    """The controller and two brokers: the first is back with less than the second, and takes `after` messages."""
    first, second = await pair(g)
    async with connected(first.address) as peer:
        await create(peer)
    await send_some(first.address, "a")
    await until(lambda: second.store.written_position == first.store.written_position)
    shutil.copytree(folder / "store1", folder / "older")
    await send_some(first.address, "b")
    await until(lambda: second.store.written_position == first.store.written_position)
    port = int(g.controller.address.rpartition(":")[2])
    await g.controller.close()
    await asyncio.gather(g.brokers.pop(1).kill(), g.brokers.pop(2).kill())
    shutil.rmtree(folder / "store1")
    (folder / "older").rename(folder / "store1")
    g.controller = g._controller(port)
    await g.controller.start()
    first = await g.start(1)
    await until(lambda: first.role.kind is Role.MASTER)
    assert first.role.epoch == 1
    await send_some(first.address, "c", after)


@pytest.mark.shows("a master that lost its end and went on in its epoch: another log is not taken for a copy, nor cut")
@pytest.mark.parametrize(("after", "reason"), [(2 * COUNT, "diverged"), (2, "ahead")])
def test_a_log_that_holds_what_its_master_lost_is_no_copy(tmp_path: Path, after: int, reason: str) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            await _all_lose_power(g, tmp_path, after)
            first, second = g.brokers[1], await g.start(2)
            end = second.store.written_position
            await until(lambda: second.replication.troubles.counts[reason])
            in_sync = first.replication.controlled.in_sync
            await until(lambda: in_sync.set.members == {1})
            # What it alone has is not cut off, and what it lacks does not count as held by two.
            assert second.store.written_position == end
            newest = second.store.newest_record()
            assert newest is not None
            assert b"b 04" in newest[1]
            await send_some(first.address, "d", 1)
            assert second.store.written_position == end

    run(main())


@pytest.mark.shows("two brokers on copies of one store, so of one number: the one that comes second takes no office")
@pytest.mark.parametrize("number", [1, 2])
def test_a_copy_of_a_store_does_not_come_beside_its_original(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            first, _ = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
            await send_some(first.address, "a")
            shutil.copytree(tmp_path / f"store{number}", tmp_path / "store3")
            copy = await g.start(3)
            await until(lambda: f"is number {number} of broker-a too" in caplog.text)
            assert copy.role.kind is Role.FENCED
            async with connected(copy.address) as peer:
                assert (await send(peer, b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            # The original's end makes room for it.
            original = g.brokers.pop(number)
            await original.close()
            await until(lambda: copy.role.kind is not Role.FENCED)
            await until(lambda: (master := g.master()) is not None and bool(bodies_of(master.store, TOPIC)))

    run(main())


async def alone(folder: Path, mark: str, count: int) -> None:
    """A broker that no controller leads takes messages into a store of its own, and ends."""
    broker = BrokerServer(settings(folder, log_file_bytes=1 << 16))
    await broker.start()
    try:
        async with connected(broker.address) as peer:
            await create(peer)
        await send_some(broker.address, mark, count)
    finally:
        await broker.close()


@pytest.mark.shows("a store of a broker without a controller goes under one: who is empty copies all of it")
def test_what_was_written_without_a_controller_is_copied_under_one(tmp_path: Path) -> None:
    """It was of no epoch, so that nobody who was empty could begin to copy."""

    async def main() -> None:
        async with group(tmp_path) as g:
            await alone(tmp_path / "store1", "before", COUNT)
            first, second = await pair(g)
            await send_some(first.address, "after")
            await until(lambda: second.store.written_position == first.store.written_position)
            assert second.store.log_bytes(0, 1 << 16) == first.store.log_bytes(0, 1 << 16)
            await until(lambda: len(bodies_of(second.store)) == 2 * COUNT)
            assert bodies_of(second.store) == bodies_of(first.store)
            assert second.replication.epochs.starts == first.replication.epochs.starts == ((1, 0),)

    run(main())


@pytest.mark.shows("a log without epochs that is no copy of the master's is in sync with nobody")
def test_another_log_without_epochs_copies_nothing(tmp_path: Path) -> None:
    """It was in sync with a master's log of which it had the end alone, and could be elected."""

    async def main() -> None:
        async with group(tmp_path) as g:
            await alone(tmp_path / "store1", "one", COUNT)
            await alone(tmp_path / "store2", "two", COUNT + 2)
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            await send_some(first.address, "one")
            second = await g.start(2)
            await until(lambda: second.replication.troubles.counts["diverged"])
            assert first.replication.controlled.in_sync.set.all_members == {1}
            assert {found.body[:3] for found in second.store.iterate(0)} == {b"two"}

    run(main())


@pytest.mark.shows("mqadmin cleanBrokerMetadata: a broker that is back although it was cleaned says what to do")
def test_who_was_cleaned_and_is_back_says_what_to_do_and_joins_by_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed fenced, and said that it tries again."""

    async def main() -> None:
        async with group(tmp_path) as g:
            first, _ = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
            await send_some(first.address, "a")
            await g.stop(2)
            await g.in_sync(1)
            async with connected(g.controller.address) as peer:
                cleaned = CleanBrokerDataHeader(
                    cluster_name="DefaultCluster", broker_name="broker-a", broker_controller_ids_to_clean="2"
                )
                (await peer.request(RequestCode.CLEAN_BROKER_DATA, cleaned)).raise_for_code("cleaning")
            await g.start(2)
            await until(lambda: "remove its brokerIdentity" in caplog.text)
            await g.stop(2)
            (tmp_path / "store2/brokerIdentity").unlink()
            await g.start(2)
            await g.in_sync(2)

    run(main())


@pytest.mark.shows(
    "whose machine lost its power may be elected once it has all again, also where nothing was sent since"
)
def test_a_restored_replica_has_all_also_of_a_master_that_took_nothing_yet(tmp_path: Path) -> None:
    """An epoch in which nothing was written is noted at its master alone: it was said to lack something for good."""

    async def main() -> None:
        async with group(tmp_path, **SLOWER) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
            await send_some(first.address, "a")
            controller = ControllerClient([g.controller.address])
            try:
                for number, elected in ((2, second), (1, first)):
                    await controller.elect("DefaultCluster", "broker-a", number, designate=True)
                    await until(lambda elected=elected: elected.role.kind is Role.MASTER)  # type: ignore[misc]
                    await g.in_sync(2)
                backup.backup(tmp_path / "store2", tmp_path / "backup")
                await g.brokers.pop(2).kill()
                await g.in_sync(1)
                shutil.rmtree(tmp_path / "store2")
                backup.restore(tmp_path / "backup", tmp_path / "store2")
                # Whatever time it takes to look at the controller's data: elected meanwhile, it would give way.
                second = await g.start(2, metadata_interval_ms=3_600_000)
                assert second.store.may_lack
                await g.in_sync(2)
                await until(lambda: not second.store.may_lack)
            finally:
                await controller.close()

    run(main())


# The last byte of a record's queue and store time; of its topic or body, by a word of it.
QUEUE, STORE_TIME = 12 + 3, 56 + 7


@pytest.mark.shows("a flipped bit in a slave's newest record: that is mended, and is not taken for another log")
@pytest.mark.parametrize("runs", [False, True], ids=["while it is down", "while it runs"])
@pytest.mark.parametrize("place", [QUEUE, STORE_TIME, b"newest", b"%c%b" % (len(TOPIC), TOPIC.encode())], ids=str)
def test_a_flipped_bit_in_the_newest_record_makes_no_other_log(tmp_path: Path, place: int | bytes, runs: bool) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
                for body in (b"before", b"between", b"newest"):
                    await sent(peer, body)
            await until(lambda: second.store.written_position == first.store.written_position)
            at, record = second.store.newest_record() or (0, b"")
            where = place if isinstance(place, int) else record.rindex(place) + len(place) - 1
            if not runs:
                await g.stop(2)
            with (tmp_path / "store2/commitlog/00000000000000000000").open("r+b") as file:
                file.seek(at + where)
                file.write(bytes([record[where] ^ 1]))
            if runs:
                second.replication.client.again()
            else:
                second = await g.start(2)
            await g.in_sync(2)
            await until(lambda: bytes(second.store.log_bytes(at, len(record))) == record)
            assert not second.replication.troubles.counts

    run(main())
