"""Brokers under a controller, all ours: who becomes master, what a lost one leaves, what it comes back to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import connected, create, create_group, pull, pulled, run, send_header, settings, until
from tests.live.test_replication import producer

from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.master_api import MasterApi
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.client import SendStatus
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import SendFailed
from rocketspark.model import Message, MessageQueue
from rocketspark.namesrv.server import NameServer
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    MaxOffsetHeader,
    OffsetReply,
    PullReply,
    RouteHeader,
    UpdateConsumerOffsetHeader,
)
from rocketspark.store import Store

pytestmark = pytest.mark.shows(
    "one role object; delay levels, timers, transactions start, stop and reload while the broker runs",
    "readers see what the in-sync set holds; `minInSyncReplicas`; unclean elections; topics known by their "
    "messages alone; a controller that is away",
)

QUICK = {
    "heartbeat_interval_ms": 100,
    "metadata_interval_ms": 200,
    "sync_set_check_interval_ms": 200,
    "controller_timeout_ms": 1500,
    "member_group_interval_ms": 100,
    "ha_heartbeat_interval_ms": 200,
    "slave_not_caught_up_ms": 1500,
}


class Group:
    """A controller, a NameServer and brokers of one name, by the number of their store folder."""

    def __init__(self, folder: Path, *, unclean: bool = False, **changes: Any) -> None:
        self.folder = folder
        self.unclean = unclean
        self.changes = {"log_file_bytes": 1 << 16, "all_ack_in_sync_set": True, "slave_read": True} | QUICK | changes
        self.namesrv = NameServer(port=0)
        self.controller = self._controller(0)
        self.brokers: dict[int, BrokerServer] = {}

    def _controller(self, port: int) -> ControllerServer:
        quick = {"scanNotActiveBrokerInterval": "200", "scanInactiveMasterInterval": "200"}
        quick |= {"enableElectUncleanMaster": str(self.unclean).lower()}
        made = ControllerSettings(quick, listen=f"127.0.0.1:{port}", folder=str(self.folder / "controller"))
        return ControllerServer(made)

    async def start(self, number: int, **changes: Any) -> BrokerServer:
        made = settings(
            self.folder / f"store{number}",
            controller_mode=True,
            controller_addresses=self.controller.address,
            broker_role="SLAVE",
            broker_id=-1,
            namesrv_addresses=self.namesrv.address,
            **self.changes | changes,
        )
        self.brokers[number] = broker = BrokerServer(made)
        await broker.start()
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).close()

    def master(self) -> BrokerServer | None:
        return next((b for b in self.brokers.values() if b.role.kind is Role.MASTER), None)

    async def in_sync(self, count: int) -> BrokerServer:
        def found() -> BrokerServer | None:
            master = self.master()
            if master is None:
                return None
            in_sync = master.replication.controlled.in_sync
            return master if in_sync is not None and len(in_sync.set.members) == count else None

        return await until(found)


@asynccontextmanager
async def group(folder: Path, **changes: Any) -> AsyncIterator[Group]:
    found = Group(folder, **changes)
    await found.namesrv.start()
    await found.controller.start()
    try:
        yield found
    finally:
        for number in list(found.brokers):
            await found.stop(number)
        await found.controller.close()
        await found.namesrv.close()


def shown(store: Store) -> int:
    """How many messages of T readers are shown."""
    ranges = [store.queue_range("T", queue_id) for queue_id in range(8)]
    return sum(high - low for low, high in ranges)


def test_the_first_is_master_and_the_next_joins_the_set(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            assert second.role.kind is Role.SLAVE
            async with producer(g.namesrv.address) as out:
                for i in range(50):
                    await out.send(Message(topic="T", body=b"%d" % i))
            await until(lambda: second.store.written_position == first.store.written_position)
            assert (tmp_path / "store1/brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
            assert (tmp_path / "store2/brokerIdentity").read_text() == "DefaultCluster#broker-a#2"

    run(main())


def test_the_other_takes_over_and_the_old_one_comes_back_as_slave(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address, retries=20, send_timeout_ms=20_000) as out:
            await g.start(1)
            await until(lambda: g.master())
            await g.start(2)
            await g.in_sync(2)
            for i in range(30):
                await out.send(Message(topic="T", body=b"%d" % i))
            await g.stop(1)
            assert (await until(lambda: g.master())) is g.brokers[2]
            for i in range(30, 60):
                await out.send(Message(topic="T", body=b"%d" % i))
            await g.start(1)
            await g.in_sync(2)
            assert g.brokers[1].role.kind is Role.SLAVE
            one, two = g.brokers[1].store, g.brokers[2].store
            await until(lambda: one.written_position == two.written_position)
            bodies = sorted(int(r.body) for r in one.iterate(0) if r.topic == b"T")
            assert bodies == list(range(60))

    run(main())


def test_who_looked_at_the_set_as_master_in_an_earlier_life_is_elected_again(tmp_path: Path) -> None:
    """What the process before asked for late must not be taken; what this one asks for must be."""

    async def main() -> None:
        async with group(tmp_path) as g:
            await g.start(1)
            await until(lambda: g.master())
            second = await g.start(2)
            await g.in_sync(2)
            # As the process before, which was master, and missed the answer to a request for another set.
            earlier = ControllerClient([g.controller.address])
            try:
                await earlier.replica_info("broker-a", 2)
            finally:
                await earlier.close()
            await g.brokers.pop(1).kill()
            await until(lambda: g.master() is second)

    run(main())


def test_a_topic_made_just_before_the_kill_is_readable_at_the_new_master(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            await g.start(1)
            await until(lambda: g.master())
            second = await g.start(2)
            await g.in_sync(2)
            assert second.replication.synchronize is not None
            # It hears of no topic any more.
            await second.replication.synchronize.stop()
            sent = [await out.send(Message(topic="New", body=b"%d" % i)) for i in range(8)]
            await g.stop(1)
            await until(lambda: g.master() is second)
            async with connected(second.address) as peer:
                for one in sent:
                    (found,) = await pulled(peer, "New", one.queue.queue_id, one.queue_offset, count_max=1)
                    assert found.body == b"%d" % sent.index(one)

    run(main())


async def _two(g: Group) -> tuple[BrokerServer, BrokerServer]:
    """A master and its slave, in sync."""
    first = await g.start(1)
    await until(lambda: first.role.kind is Role.MASTER)
    second = await g.start(2)
    await g.in_sync(2)
    return first, second


def test_readers_see_nothing_that_the_set_does_not_hold(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, slave_timeout_ms=300, slave_not_caught_up_ms=60_000) as g:
            first, second = await _two(g)
            async with producer(g.namesrv.address, retries=0) as out, connected(first.address) as reading:
                await create(reading, "T", 1)
                async with connected(g.namesrv.address) as names:
                    while (await names.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic="T"))).code:
                        await asyncio.sleep(0.02)
                sent = await out.send(Message(topic="T", body=b"held"), queue=MessageQueue("T", "broker-a", 0))
                assert sent.status is SendStatus.SEND_OK
                # The slave reads on and reports nothing: it holds no more than before.
                (connection,) = first.replication.listener.connections
                connection.link.received = lambda data, now_s: False  # type: ignore[method-assign]
                late = await out.send(Message(topic="T", body=b"late"), queue=MessageQueue("T", "broker-a", 0))
                assert late.status is SendStatus.FLUSH_SLAVE_TIMEOUT
                assert first.store.written_position > first.store.confirmed_position
                bound = await reading.request(RequestCode.GET_MAX_OFFSET, MaxOffsetHeader(topic="T", queue_id=0))
                assert bound.header(OffsetReply).offset == 1
                assert (await pull(reading, "T", 0, 1, suspend_ms=0)).code == 19
                # A reader that was there before is not moved back.
                behind = await pull(reading, "T", 0, 2, suspend_ms=0)
                assert (behind.code, behind.header(PullReply).next_offset) == (19, 2)
                held = asyncio.create_task(pull(reading, "T", 0, 1, suspend_ms=20_000, sys_flag=6))
                await asyncio.sleep(0.05)
                assert not held.done()
                assert second.store.queue_range("T", 0) == (0, 1)
                # The link anew: it tells what it holds.
                connection.end()
                assert (await held).code == 0
                await until(lambda: second.store.queue_range("T", 0) == (0, 2))

    run(main())


def test_too_few_in_sync_refuse_in_the_words_of_rocketmq(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, in_sync_replicas_min=2) as g:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            async with producer(g.namesrv.address, retries=0) as out:
                with pytest.raises(SendFailed, match=r"code 1 .*in-sync replicas not enough"):
                    await out.send(Message(topic="T", body=b"1"))
                assert first.store.queue_range("T", 0) == (0, 0)
                await g.start(2)
                await g.in_sync(2)
                assert (await out.send(Message(topic="T", body=b"2"))).status is SendStatus.SEND_OK

    run(main())


@pytest.mark.shows("the controller killed and started under load; a master that is back before it was missed")
def test_a_master_that_is_back_before_it_was_missed_goes_on_in_its_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address, retries=20, send_timeout_ms=20_000) as out:
            first, second = await _two(g)
            for i in range(10):
                await out.send(Message(topic="T", body=b"%d" % i))
            # The controller is away meanwhile, so nobody hears that it left.
            port = int(g.controller.address.rpartition(":")[2])
            await g.controller.close()
            await g.stop(1)
            g.controller = g._controller(port)
            await g.controller.start()
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            assert (first.role.epoch, second.role.kind) == (1, Role.SLAVE)
            await out.send(Message(topic="T", body=b"10"))
            await g.in_sync(2)
            await until(lambda: second.store.written_position == first.store.written_position)
            assert [r.body for r in second.store.iterate(0) if r.topic == b"T"] == [b"%d" % i for i in range(11)]

    run(main())


@pytest.mark.shows("a master that heard of nothing and registers late")
def test_a_master_that_heard_of_nothing_stays_out_of_the_route(tmp_path: Path) -> None:
    """It is cut off from the controller, still believes itself, and registers again: the higher epoch counts."""

    async def main() -> None:
        async with group(tmp_path, slave_timeout_ms=300) as g, producer(g.namesrv.address, retries=0) as out:
            first, second = await _two(g)
            assert first.replication.manager is not None
            await out.send(Message(topic="T", body=b"1"))
            first.replication.manager.notified = None  # type: ignore[assignment]
            await first.replication.manager.stop()
            await until(lambda: second.role.kind is Role.MASTER)
            assert first.role.kind is Role.MASTER
            members = MemberGroup(first.settings, first.replication._connections)
            await until(lambda: second.role.epoch == 2)
            for _ in range(3):
                first.replication._registration.again()
                second.replication._registration.again()
                await asyncio.sleep(0.1)
            assert (await members.ask())[0] == second.address
            # Clients that know its address yet get no word that all is safe.
            async with connected(first.address) as peer:
                reply = await peer.request(RequestCode.SEND_MESSAGE_V2, send_header("T", 0), b"2")
                assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            await g.stop(1)
            back = await g.start(1)
            await g.in_sync(2)
            await until(lambda: back.store.written_position == second.store.written_position)
            assert [r.body for r in back.store.iterate(0) if r.topic == b"T"] == [b"1"]

    run(main())


@pytest.mark.shows(
    "`mqadmin` getBrokerEpoch, haStatus, electMaster, getSyncStateSet on brokers of ours under a controller",
)
def test_epochs_and_ha_status_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address, retries=20, send_timeout_ms=20_000) as out:
            first, second = await _two(g)
            await out.send(Message(topic="T", body=b"1"))
            begun = first.store.written_position
            await g.stop(1)
            await until(lambda: second.role.kind is Role.MASTER)
            await out.send(Message(topic="T", body=b"2"))
            first = await g.start(1)
            await g.in_sync(2)
            await until(lambda: first.store.written_position == second.store.written_position)
            end = second.store.written_position
            epochs = [
                {"epoch": 1, "startOffset": 0, "endOffset": begun},
                {"epoch": 2, "startOffset": begun, "endOffset": (1 << 63) - 1},
            ]
            for broker, number in ((first, 1), (second, 0)):
                async with connected(broker.address) as peer:
                    found = json.loads((await peer.request(RequestCode.GET_BROKER_EPOCH_CACHE)).body)
                    assert found == {
                        "clusterName": "DefaultCluster",
                        "brokerName": "broker-a",
                        "brokerId": number,
                        "epochList": epochs,
                        "maxOffset": end,
                    }
                    status = json.loads((await peer.request(RequestCode.GET_BROKER_HA_STATUS)).body)
                    assert status["master"] == (broker is second)
                    if broker is second:
                        (slave,) = status["haConnectionInfo"]
                        assert (status["inSyncSlaveNums"], slave["inSync"], slave["slaveAckOffset"]) == (1, True, end)

    run(main())


def test_after_an_unclean_election_the_old_master_gives_up_what_it_had_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, unclean=True) as g, producer(g.namesrv.address, retries=20) as out:
            first, second = await _two(g)
            await out.send(Message(topic="T", body=b"both"))
            await until(lambda: second.store.written_position == first.store.written_position)
            await g.stop(2)
            await g.in_sync(1)
            for i in range(20):
                await out.send(Message(topic="T", body=b"alone %d" % i))
            await g.stop(1)
            second = await g.start(2)
            await until(lambda: second.role.kind is Role.MASTER)
            await out.send(Message(topic="T", body=b"after"))
            first = await g.start(1)
            await g.in_sync(2)
            await until(lambda: first.store.written_position == second.store.written_position)
            for broker in (first, second):
                assert [r.body for r in broker.store.iterate(0) if r.topic == b"T"] == [b"both", b"after"]
                # A slave shows what its master told to be confirmed, with the next frame.
                await until(lambda store=broker.store: shown(store) == 2)
            assert first.replication.epochs.starts == second.replication.epochs.starts

    run(main())


def test_what_cannot_be_done_is_told_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with group(tmp_path) as g:
            port = int(g.controller.address.rpartition(":")[2])
            await g.controller.close()
            broker = await g.start(1)
            assert broker.replication.manager is not None
            for _ in range(3):
                await broker.replication.manager._tried(
                    "register at the controller", broker.replication.manager._register
                )
            async with connected(broker.address) as peer:
                reply = await peer.request(RequestCode.SEND_MESSAGE_V2, send_header("T", 0), b"1")
                assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            g.controller = g._controller(port)
            await g.controller.start()
            await until(lambda: broker.role.kind is Role.MASTER)

    run(main())
    assert len([r for r in caplog.records if "could not register at the controller" in r.message]) == 1


@pytest.mark.shows("electMaster ten times in turn under load")
def test_what_the_old_master_answers_for_before_it_hears_of_the_election_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, slave_timeout_ms=300, slave_not_caught_up_ms=60_000) as g:
            first, second = await _two(g)
            manager, controller = first.replication.manager, ControllerClient([g.controller.address])
            assert manager is not None
            try:
                async with connected(first.address) as peer:
                    await create(peer, "T", 1)
                    # It hears of nothing.
                    await manager._changing.acquire()
                    await controller.elect("DefaultCluster", "broker-a", 2, designate=True)
                    codes = []
                    while second.role.kind is not Role.MASTER:
                        codes.append((await peer.request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"x")).code)
                    kept = codes.count(0)
                    # None of those that were answered with success is missing there, and no more of them come.
                    assert (await peer.request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"x")).code == 12
                    assert 0 < kept <= second.store.queue_range("T", 0)[1] <= len(codes)
                    assert all(c.is_open for c in first.replication.listener.connections)
                    manager._changing.release()
                    await until(lambda: first.role.kind is Role.SLAVE)
                    await until(lambda: first.store.written_position == second.store.written_position)
            finally:
                await controller.close()

    run(main())


@pytest.mark.shows("no election without offsets")
def test_a_slave_joins_the_set_only_once_it_has_its_master_s_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is elected without a single offset, and the old master takes that table."""

    async def main() -> None:
        async with group(tmp_path) as g:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            async with producer(g.namesrv.address) as out:
                await out.send(Message(topic="T", body=b"1"))
            commit = UpdateConsumerOffsetHeader(group="G", topic="T", queue_id=0, commit_offset=7)
            async with connected(first.address) as peer:
                await create_group(peer, "G")
                (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).raise_for_code("commit")
            told, offsets = asyncio.Event(), MasterApi.offsets

            async def late(api: MasterApi, state: str = "") -> Any:
                await told.wait()
                return await offsets(api, state)

            monkeypatch.setattr(MasterApi, "offsets", late)
            second = await g.start(2)
            slaves = first.replication.listener.connections
            await until(lambda: any(c.link.acked == first.store.written_position for c in slaves))
            held = first.replication.controlled.in_sync
            assert held is not None
            assert held.set.all_members == {1}
            told.set()
            await g.in_sync(2)
            assert second._offsets.get("G", "T", 0) == 7

    run(main())


@pytest.mark.shows("tables of the last 3 s at an orderly change")
@pytest.mark.parametrize("how", ["elected by hand", "the master ends"])
def test_who_is_elected_takes_the_tables_of_a_master_that_lives(tmp_path: Path, how: str) -> None:
    """What the last look before did not see."""

    async def main() -> None:
        async with group(tmp_path) as g:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            synchronize = second.replication.synchronize
            assert synchronize is not None
            await synchronize.passed()
            async with connected(first.address) as peer:
                await create(peer, "New", 3)
            if how == "the master ends":
                await g.stop(1)
            else:
                client = ControllerClient([g.controller.address])
                await client.elect("DefaultCluster", "broker-a", 2, designate=True)
                await client.close()
            await until(lambda: second.role.kind is Role.MASTER)
            assert second._topics.table["New"].write_queue_nums == 3
            if how == "the master ends":
                await g.start(1)
            await g.in_sync(2)
            assert g.brokers[1]._topics.table["New"].write_queue_nums == 3

    run(main())


@pytest.mark.shows("damage of a slave's log")
@pytest.mark.parametrize("at", [-60, 0], ids=["head", "body"])
def test_what_is_damaged_in_a_slave_s_log_is_mended_with_its_master_s(tmp_path: Path, at: int) -> None:
    """Else it is in sync with the hole, and the message is gone once it is elected."""

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            for body in (b"before", b"needle", b"after"):
                await out.send(Message(topic="T", body=body))
            await until(lambda: second.store.written_position == first.store.written_position)
            await g.stop(2)
            file = tmp_path / "store2/commitlog/00000000000000000000"
            content = bytearray(file.read_bytes())
            content[content.index(b"needle") + at] ^= 1
            file.write_bytes(content)
            second = await g.start(2)
            assert second.store.log.damaged
            # The controller may not have missed it: its set is that of before.
            await until(lambda: not second.store.log.damaged)
            await g.in_sync(2)
            end = first.store.written_position
            assert bytes(second.store.log_bytes(0, end)) == bytes(first.store.log_bytes(0, end))
            await until(lambda: shown(second.store) == 3)

    run(main())


@pytest.mark.shows(
    "mended: what readers find to be another message is taken from the master, or once another one is it"
)
@pytest.mark.parametrize("number", [2, 1], ids=["slave", "master that gives way"])
def test_what_readers_find_damaged_is_taken_from_the_master(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            places = [await out.send(Message(topic="T", body=body)) for body in (b"before", b"needle", b"after")]
            await until(lambda: second.store.written_position == first.store.written_position)
            with (tmp_path / f"store{number}/commitlog/00000000000000000000").open("r+b") as file:
                at = file.read().index(b"needle") + len(b"needle") + 1
                file.seek(at)
                file.write(b"U")
            store, queue_id, offset = g.brokers[number].store, places[1].queue.queue_id, places[1].queue_offset
            await until(lambda: bytes(store.log_bytes(at, 1)) == b"U")
            store.read("T", queue_id, offset, 1, 1 << 20)
            if number == 1:
                client = ControllerClient([g.controller.address])
                await client.elect("DefaultCluster", "broker-a", 2, designate=True)
                await client.close()
            await until(lambda: bytes(store.log_bytes(at, 1)) == b"T")
            assert store.read("T", queue_id, offset, 1, 1 << 20).count == 1

    run(main())


def test_a_lost_mark_of_a_file_s_unused_end_is_mended_with_the_master_s(tmp_path: Path) -> None:
    """A power cut takes it as it takes a record, and leaves what follows in the next file: the logs would differ."""

    async def main() -> None:
        async with group(tmp_path) as g, producer(g.namesrv.address) as out:
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            second = await g.start(2)
            await g.in_sync(2)
            count = 0
            while first.store.written_position <= 1 << 16:
                await out.send(Message(topic="T", body=b"%d" % count + b" " * 1000))
                count += 1
            await until(lambda: second.store.written_position == first.store.written_position)
            await g.stop(2)
            mark = (-875286124).to_bytes(4, "big", signed=True)
            file = tmp_path / "store2/commitlog/00000000000000000000"
            content = bytearray(file.read_bytes())
            at = content.index(mark) - 4
            content[at : at + 8] = bytes(8)
            file.write_bytes(content)
            second = await g.start(2)
            assert second.store.log.damaged == ((at, 1 << 16),)
            # The controller may not have missed it: its set is that of before.
            await until(lambda: not second.store.log.damaged)
            await g.in_sync(2)
            end = first.store.written_position
            for begin, stop in ((0, 1 << 16), (1 << 16, end)):
                assert bytes(second.store.log_bytes(begin, stop)) == bytes(first.store.log_bytes(begin, stop))
            await until(lambda: shown(second.store) == count)

    run(main())
