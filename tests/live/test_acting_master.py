"""A slave that acts for its master (RIP-32), all ours: what it serves and delivers, and the master's return."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    TOPIC,
    connected,
    create,
    create_group,
    pulled,
    run,
    send,
    sent,
    settings,
    until,
)
from tests.live.test_broker_transactions import QUICK, half
from tests.live.test_unconfirmed import deaf

from rocketspark.broker.messages.put_message import Door
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.model.route import PERM_READ, PERM_WRITE
from rocketspark.namesrv.server import NameServer
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import MinBrokerIdHeader, UpdateConsumerOffsetHeader
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import RouteBody
from rocketspark.protocol.message import record
from rocketspark.protocol.message.record import Record
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "slave acting master: route, reads, locks, offsets; delay levels, timers, half messages leave to another "
    "broker name once; the master takes back and delivers the rest once"
)

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
GROUP = "G"
SHORT: dict[str, Any] = {
    "broker_name": "a",
    "slave_acting_master": True,
    "remote_escape": True,
    "replicas_total": 2,
    "slave_read": True,
    "auto_in_sync_replicas": True,
    "in_sync_replicas": 2,
    "log_file_bytes": 1 << 20,
    "ha_heartbeat_interval_ms": 200,
    "heartbeat_interval_ms": 200,
    "member_group_interval_ms": 200,
    "not_active_timeout_ms": 3000,
    "timer_precision_ms": 100,
    "delay_levels": "1s 2s 6s",
} | QUICK


class Replicas:
    """A NameServer, brokers of the name a by id, and one of the name b that is their way out."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.changes = SHORT | changes
        self.namesrv = self._namesrv(0)
        self.running: dict[int, BrokerServer] = {}

    def _namesrv(self, port: int) -> NameServer:
        names = Settings(port=port, scan_s=0.2)
        names.acting_master = names.notify_min_id = True
        return NameServer(settings=names)

    async def restart_namesrv(self) -> None:
        """One that knows nobody, at the same address."""
        port = int(self.namesrv.address.rpartition(":")[2])
        await self.namesrv.close()
        self.namesrv = self._namesrv(port)
        await self.namesrv.start()

    async def start(self, broker_id: int, **changes: Any) -> BrokerServer:
        made = BrokerServer(
            settings(
                self.folder / f"a{broker_id}",
                broker_id=broker_id,
                broker_role="SLAVE" if broker_id else "SYNC_MASTER",
                **{"namesrv_addresses": self.namesrv.address} | self.changes | changes,
            )
        )
        self.running[broker_id] = made
        await made.start()
        return made

    async def other(self, **changes: Any) -> BrokerServer:
        quick = {"broker_name": "b", "namesrv_addresses": self.namesrv.address, "timer_precision_ms": 100} | QUICK
        self.running[-1] = made = BrokerServer(settings(self.folder / "b", **quick | changes))
        await made.start()
        return made

    async def stop(self, broker_id: int) -> None:
        await self.running.pop(broker_id).close()

    async def route(self, topic: str = TOPIC) -> tuple[dict[int, str], int]:
        """Addresses and permission of a's queues, as clients see them."""
        async with connected(self.namesrv.address) as peer:
            reply = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=topic))
        route = java_json.decode(reply.raise_for_code("route").body, RouteBody)
        addresses = next((b.broker_addrs for b in route.broker_datas if b.broker_name == "a"), {})
        return addresses, next((q.perm for q in route.queue_datas if q.broker_name == "a"), 0)

    async def copied(self) -> None:
        """Wait until the slave has the master's log and tables."""
        master, slave = self.running[0], self.running[1]
        await until(lambda: slave.store.written_position == master.store.written_position > 0)
        assert slave.replication.synchronize is not None
        slave.replication.synchronize.look()
        await slave.replication.synchronize.passed()


@asynccontextmanager
async def replicas(folder: Path, **changes: Any) -> AsyncIterator[Replicas]:
    found = Replicas(folder, **changes)
    await found.namesrv.start()
    try:
        yield found
    finally:
        for broker_id in list(found.running):
            await found.stop(broker_id)
        await found.namesrv.close()


def bodies_of(store: Store, topic: str = TOPIC) -> Counter[bytes]:
    """How often each body lies in a topic's queues."""
    found: Counter[bytes] = Counter()
    for queue_id in store.queues().get(topic, ()):
        low, high = store.queue_range(topic, queue_id)
        for position, _, _ in store.queue_units(topic, queue_id, low, high - low) if high > low else ():
            stored = store.record_at(position)
            assert stored is not None
            found[record.decode(stored).body] += 1
    return found


async def commit(address: str, offset: int) -> None:
    async with connected(address) as peer:
        header = UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, commit_offset=offset)
        (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).raise_for_code("commit")


async def locks(address: str, client: str) -> int:
    """Ask for a queue's lock; how many were given."""
    queue = bodies.QueueBody(topic=TOPIC, broker_name="a", queue_id=0)
    wanted = bodies.LockRequest(client_id=client, consumer_group=GROUP, mq_set=[queue])
    async with connected(address) as peer:
        reply = await peer.request(RequestCode.LOCK_BATCH_MQ, None, bodies.encode(wanted))
    return len(java_json.decode(reply.raise_for_code("lock").body, bodies.LockReply).lock_ok_mq_set)


async def create_on(*brokers: BrokerServer) -> None:
    """Make the topic and the group on each."""
    for broker in brokers:
        async with connected(broker.address) as peer:
            await create(peer, queues=2)
            await create_group(peer)


def test_a_slave_acts_and_its_master_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as r:
            other, master, slave = await r.other(), await r.start(0), await r.start(1)
            await create_on(other, master)
            async with connected(master.address) as peer:
                await sent(peer, b"plain")
                await sent(peer, b"level 2 s", pairs={"DELAY": "2"})
                await sent(peer, b"level 6 s", pairs={"DELAY": "3"})
                await sent(peer, b"timer 2 s", pairs={"TIMER_DELAY_MS": "2000"})
                await sent(peer, b"timer 6 s", pairs={"TIMER_DELAY_MS": "6000"})
                await half(peer, 1)
            await commit(master.address, 1)
            await r.copied()
            assert await r.route() == ({0: master.address, 1: slave.address}, PERM_READ | PERM_WRITE)
            await r.stop(0)

            await until(lambda: slave.role.kind is Role.ACTING)
            assert await r.route() == ({0: slave.address}, PERM_READ)
            async with connected(slave.address) as peer:
                assert [m.body for m in await pulled(peer)] == [b"plain"]
                assert (await send(peer)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert (await locks(slave.address, "one"), await locks(slave.address, "two")) == (1, 0)
            await commit(slave.address, 5)
            await until(lambda: bodies_of(other.store) == {b"level 2 s": 1, b"timer 2 s": 1})
            # What a producer left open is checked by the other broker, and ends there.
            await until(lambda: other.store.queue_range(HALF, 0)[1] >= 1)
            assert bodies_of(other.store, HALF).keys() == {b"tx 1"}
            end_of_log = slave.store.written_position

            master = await r.start(0)
            await until(lambda: slave.role.kind is Role.SLAVE and slave.role.has_live_master)
            assert await r.route() == ({0: master.address, 1: slave.address}, PERM_READ | PERM_WRITE)
            assert master._offsets.get(GROUP, TOPIC, 0) == 5
            assert master._delays.progress()[2][0] == 1
            assert master.store.written_position >= end_of_log
            everywhere = {b"plain": 1, b"level 2 s": 1, b"timer 2 s": 1, b"level 6 s": 1, b"timer 6 s": 1}
            await until(lambda: bodies_of(master.store) + bodies_of(other.store) >= Counter(everywhere))
            # Timers due before are past for the master too.
            async with connected(master.address) as peer:
                await sent(peer, b"last", pairs={"TIMER_DELAY_MS": "200"})
            await until(lambda: bodies_of(master.store)[b"last"])
            assert bodies_of(master.store) + bodies_of(other.store) == Counter(everywhere | {b"last": 1})
            assert master._transactions.open_count == 0
            await until(lambda: slave.store.written_position == master.store.written_position)

    run(main())


class Hung:
    """A broker, the master, on a loop of its own, which may stand still as that of a process under SIGSTOP."""

    def __init__(self, r: Replicas, broker_id: int = 0) -> None:
        self._id = broker_id
        self._go_on = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(r),))
        self._thread.start()

    async def _serve(self, r: Replicas) -> None:
        self.broker = await r.start(self._id)
        del r.running[self._id]
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()
        await self.broker.close()

    async def ready(self) -> BrokerServer:
        await asyncio.to_thread(self._ready.wait)
        return self.broker

    def freeze(self) -> None:
        self._loop.call_soon_threadsafe(self._go_on.wait)

    def go_on(self) -> None:
        self._go_on.set()

    async def close(self) -> None:
        self.go_on()
        self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.to_thread(self._thread.join)


@pytest.mark.shows("a master that hung and goes on without a start")
def test_a_master_that_hung_takes_back_what_its_slave_did_and_delivers_nothing_again(tmp_path: Path) -> None:
    async def main() -> None:
        quick = {"not_active_timeout_ms": 2000, "ha_housekeeping_interval_ms": 1500, "delay_levels": "4s 8s"}
        async with replicas(tmp_path, **quick) as r:
            other, hung = await r.other(), Hung(r)
            master, slave = await hung.ready(), await r.start(1)
            try:
                await create_on(other, master)
                async with connected(master.address) as peer:
                    await sent(peer, b"level 4 s", pairs={"DELAY": "1"})
                    await sent(peer, b"level 8 s", pairs={"DELAY": "2"})
                    await sent(peer, b"timer 4 s", pairs={"TIMER_DELAY_MS": "4000"})
                    await sent(peer, b"timer 8 s", pairs={"TIMER_DELAY_MS": "8000"})
                    await half(peer, 1)
                await commit(master.address, 1)
                r.running[0] = master
                await r.copied()
                del r.running[0]
                hung.freeze()
                await until(lambda: slave.role.kind is Role.ACTING)
                await commit(slave.address, 5)
                await until(lambda: bodies_of(other.store) == {b"level 4 s": 1, b"timer 4 s": 1})
                await until(lambda: other.store.queue_range(HALF, 0)[1] >= 1)
                hung.go_on()
                await until(lambda: slave.role.kind is Role.SLAVE and slave.role.has_live_master)
                assert master._offsets.get(GROUP, TOPIC, 0) == 5
                everywhere = dict.fromkeys((b"level 4 s", b"timer 4 s", b"level 8 s", b"timer 8 s"), 1)
                await until(lambda: bodies_of(master.store) + bodies_of(other.store) >= Counter(everywhere))
                async with connected(master.address) as peer:
                    await sent(peer, b"last", pairs={"TIMER_DELAY_MS": "200"})
                await until(lambda: bodies_of(master.store)[b"last"])
                assert bodies_of(master.store) + bodies_of(other.store) == Counter(everywhere | {b"last": 1})
                assert master._transactions.open_count == 0
                assert await r.route() == ({0: master.address, 1: slave.address}, PERM_READ | PERM_WRITE)
            finally:
                await hung.close()

    run(main())


@pytest.mark.shows("a NameServer and a slave that start together beside a master that lives")
def test_a_slave_and_a_name_server_that_start_together_wait_for_the_master_that_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as r:
            master, _ = await r.start(0), await r.start(1)
            async with connected(master.address) as peer:
                await create(peer)
                await sent(peer, b"one")
            await r.copied()
            await r.stop(1)
            # The master registers when it is its time, a Java one within half a minute.
            due, register = asyncio.Event(), master._registration._register

            async def later(*registration: Any) -> list[str]:
                await due.wait()
                return await register(*registration)

            master._registration._register = later  # type: ignore[method-assign]
            await r.restart_namesrv()
            slave = await r.start(1)
            asked, looks = slave.replication.members._routed, list[int]()

            async def counted(peer: Peer) -> dict[int, str]:
                looks.append(1)
                return await asked(peer)

            slave.replication.members._routed = counted  # type: ignore[method-assign]
            await until(lambda: len(looks) > 3)
            assert slave.role.kind is Role.SLAVE
            due.set()
            await until(lambda: slave.role.has_live_master)
            assert not [line for line in caplog.messages if "acts for its master" in line]

    run(main())


class Watched:
    """A door that notes which topics' messages came to it."""

    def __init__(self, door: Door, came: set[str]) -> None:
        self._door = door
        self._came = came

    def leave(self, kept: Record, topic: str, queue_id: int, stored: bytes, **how: Any) -> None:
        self._came.add(kept.topic.decode())
        self._door.leave(kept, topic, queue_id, stored, **how)


def test_due_messages_wait_for_the_master_where_none_may_leave(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, remote_escape=False, delay_levels="1s") as r:
            master, slave = await r.start(0), await r.start(1)
            async with connected(master.address) as peer:
                await create(peer, queues=1)
                await sent(peer, b"level", pairs={"DELAY": "1"})
                await sent(peer, b"timer", pairs={"TIMER_DELAY_MS": "1000"})
            await r.copied()
            await r.stop(0)
            await until(lambda: slave.role.kind is Role.ACTING)
            assert slave.replication._acting is not None
            bridge, came = slave.replication._acting.bridge, set[str]()
            slave._wheel._delivery._put_message.door = Watched(bridge, came)
            # Both came to the door, and stayed where they were.
            await until(lambda: came == {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"})
            assert bodies_of(slave.store) == {}
            assert (slave._delays.progress()[1], slave._quarantine.entries()) == ((0, 1), [])
            master = await r.start(0)
            await until(lambda: bodies_of(master.store) == {b"level": 1, b"timer": 1})
            await until(lambda: bodies_of(slave.store) == {b"level": 1, b"timer": 1})

    run(main())


@pytest.mark.shows("NameServer that just started, acting master")
def test_beside_a_name_server_that_just_started_a_slave_in_sync_is_waited_for(tmp_path: Path) -> None:
    """It knows nobody yet: what a master acknowledged alone would be lost with it."""

    async def nobody(peer: Peer) -> dict[int, str]:
        return {}

    async def main() -> None:
        # Longer than the test: the slave speaks when something comes.
        async with replicas(tmp_path, slave_timeout_ms=300, ha_heartbeat_interval_ms=60_000) as r:
            master, slave = await r.start(0), await r.start(1)
            async with connected(master.address) as peer:
                await create(peer)
                await sent(peer, b"one")
                await r.copied()
                master.replication.members._routed = nobody  # type: ignore[method-assign]
                await until(lambda: master.replication.standing.alive_members() == 1)
                with deaf(slave):
                    assert (await send(peer)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT

    run(main())


@pytest.mark.shows("an acting pair's slave mends and compares before it copies")
def test_a_slave_mends_its_log_with_a_master_s_before_it_is_back(tmp_path: Path) -> None:
    """It copies before it knows the master by a NameServer."""

    async def main() -> None:
        async with replicas(tmp_path) as r:
            master = await r.start(0)
            await r.start(1)
            async with connected(master.address) as peer:
                await create(peer)
                for body in (b"before", b"needle", b"after"):
                    await sent(peer, body)
            await r.copied()
            await r.stop(1)
            file = tmp_path / "a1/commitlog/00000000000000000000"
            content = bytearray(file.read_bytes())
            content[content.index(b"needle")] ^= 1
            file.write_bytes(content)
            slave = await r.start(1)
            await until(lambda: slave.role.has_live_master)
            end = master.store.written_position
            assert bytes(slave.store.log_bytes(0, end)) == bytes(master.store.log_bytes(0, end))
            assert not slave.store.log.damaged

    run(main())


def test_a_slave_copies_no_other_log_before_it_is_back(tmp_path: Path) -> None:
    """The master's log begins a record where the slave's ends, as all are of one size."""

    async def main() -> None:
        async with replicas(tmp_path) as r:
            for round_of in ((b"one", b"two"), (b"uno", b"dos", b"tre")):
                master = await r.start(0)
                async with connected(master.address) as peer:
                    await create(peer)
                    for body in round_of:
                        await sent(peer, body)
                slave = await r.start(1)
                if len(round_of) == 2:
                    await r.copied()
                    end = slave.store.written_position
                    copied = bytes(slave.store.log_bytes(0, end))
                    await r.stop(1)
                    await r.stop(0)
                    shutil.rmtree(tmp_path / "a0")
            await until(lambda: slave.replication.troubles.counts["diverged"])
            assert bytes(slave.store.log_bytes(0, 1 << 20)) == copied

    run(main())


@pytest.mark.shows("locks with `lockInStrictMode`")
def test_strict_locks_need_both(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, strict_locks=True) as r:
            master, slave = await r.start(0), await r.start(1)
            await until(lambda: len(master.replication.members.addresses) == 2)
            assert await locks(master.address, "one") == 1
            assert await locks(slave.address, "two") == 0
            await r.stop(1)
            await until(lambda: len(master.replication.members.addresses) == 1)
            assert await locks(master.address, "one") == 0

    run(main())


def test_a_notice_of_another_name_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        # The slave looks for its name once and is told all else.
        async with replicas(tmp_path, member_group_interval_ms=3_600_000) as r:
            await r.start(0)
            slave = await r.start(1)
            async with connected(slave.address) as peer:
                notice = MinBrokerIdHeader(broker_id=1, broker_name="b", address=slave.address)
                assert (await peer.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)).code == 0
                assert (await peer.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {})).code == 0
            assert slave.role.kind is Role.SLAVE
            await r.stop(0)
            await until(lambda: slave.role.kind is Role.ACTING)

    run(main())
