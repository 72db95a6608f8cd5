"""The table of promises in docs/run/replication.md, row by row: a process killed, a machine lost, a slave away."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.live.support import TOPIC, connected, create, pull, records, run, send, until
from tests.live.test_acting_master import Replicas
from tests.live.test_controller_mode import Group, group
from tests.live.test_replication import Pair
from tests.live.test_unconfirmed import deaf

from rocketspark.broker.server import BrokerServer
from rocketspark.protocol.codes import ResponseCode

pytestmark = pytest.mark.shows("the page replication.md")

PAGE = Path(__file__).parents[2] / "docs/run/replication.md"
OK, LATE = ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT


class Classic(NamedTuple):
    """`away`: the code of a send while the slave is away; `behind`: of one that the connected slave does not read."""

    changes: dict[str, Any]
    away: int
    behind: int
    acting: bool = False
    master_role: str = ""


class Controlled(NamedTuple):
    """`away`: the code of a send once the slave has left the in-sync set."""

    changes: dict[str, Any]
    away: int


SYNC2 = "SYNC_MASTER, `inSyncReplicas=2`"
ALL_ACK = "controller, `allAckInSyncStateSet=true`"
UNCLEAN = f"{ALL_ACK}, and `enableElectUncleanMaster=true` at the controller"
CLASSIC = {
    "ASYNC_MASTER": Classic({"in_sync_replicas": 1}, OK, OK, master_role="ASYNC_MASTER"),
    "SYNC_MASTER, `inSyncReplicas=1` (the default)": Classic({"in_sync_replicas": 1}, OK, OK),
    SYNC2: Classic({"in_sync_replicas": 2}, LATE, LATE),
    "the same and `enableAutoInSyncReplicas=true`, `minInSyncReplicas=1` (acting master)": Classic(
        {"in_sync_replicas": 2, "auto_in_sync_replicas": True, "in_sync_replicas_min": 1}, OK, LATE, acting=True
    ),
}
CONTROLLED = {
    ALL_ACK: Controlled({}, OK),
    "the same and `minInSyncReplicas=2`": Controlled({"in_sync_replicas_min": 2}, ResponseCode.SYSTEM_ERROR),
    UNCLEAN: Controlled({"unclean": True}, OK),
}


def test_every_row_of_the_page_is_tried() -> None:
    table = PAGE.read_text().split("| settings | a broker process is killed |")[1].split("\n\n")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert rows == [*CLASSIC, *CONTROLLED]


class Sends:
    """Messages by their answers."""

    def __init__(self) -> None:
        self.acked: list[bytes] = []
        self._count = 0

    async def some(self, broker: BrokerServer, code: int = OK, count: int = 3) -> list[bytes]:
        """Send some, each answered with that code."""
        bodies = []
        async with connected(broker.address) as peer:
            for _ in range(count):
                body = b"%d" % self._count
                self._count += 1
                assert (answer := await send(peer, body)).code == code, answer.remark
                bodies.append(body)
        if code == OK:
            self.acked += bodies
        return bodies


async def seen(broker: BrokerServer) -> list[bytes]:
    """All messages as a consumer reads them."""
    async with connected(broker.address) as peer:
        answer = await pull(peer, TOPIC, 0, 0, count_max=32, suspend_ms=0)
        return [message.body for message in records(answer)] if answer.code == OK else []


async def shows(broker: BrokerServer, bodies: list[bytes]) -> None:
    async with asyncio.timeout(30):
        while await seen(broker) != bodies:
            await asyncio.sleep(0.01)


def hang_up(slave: BrokerServer) -> None:
    """Forget what the master sent that is not read yet."""
    if slave.replication.client._connection is not None:
        slave.replication.client._connection.end(None)


class Classics:
    """A master by hand, 0, and its slave, 1."""

    def __init__(self, folder: Path, row: Classic) -> None:
        more = {"slave_timeout_ms": 300} | row.changes
        self.folder = folder
        self._pair = Replicas(folder, **more) if row.acting else Pair(folder, **more)
        self.namesrv = self._pair.namesrv
        self._master_role = row.master_role
        self.brokers = self._pair.running if isinstance(self._pair, Replicas) else self._pair.brokers

    async def start(self, broker_id: int, **changes: Any) -> BrokerServer:
        more = {"broker_role": self._master_role} if self._master_role and not broker_id else {}
        return await self._pair.start(broker_id, **more | changes)

    def store(self, broker_id: int) -> Path:
        return self.folder / f"{'a' if isinstance(self._pair, Replicas) else 'store'}{broker_id}"

    async def stop(self, broker_id: int, *, killed: bool = False) -> None:
        broker = self.brokers.pop(broker_id)
        await (broker.kill() if killed else broker.close())

    async def copied(self) -> None:
        """Wait until the slave has all, and its master knows."""
        master = self.brokers[0]
        end = master.store.written_position
        await until(lambda: [c for c in master.replication.listener.connections if c.link.acked >= end])
        await until(lambda: self.brokers[1].store.written_position == end)


@pytest.mark.parametrize("name", CLASSIC)
def test_pairs_by_hand(tmp_path: Path, name: str) -> None:
    row = CLASSIC[name]

    async def main() -> None:
        p, sends = Classics(tmp_path, row), Sends()
        await p.namesrv.start()
        try:
            master = await p.start(0)
            await p.start(1)
            async with connected(master.address) as peer:
                await create(peer, queues=1)
            await p.copied()
            await sends.some(master)
            stored = sends.acked + await away(p, sends)
            await p.start(1)
            await p.copied()
            # A process killed: the master, its slave.
            await p.stop(0, killed=True)
            master = await p.start(0)
            await shows(master, stored)
            await p.copied()
            await p.stop(1, killed=True)
            slave = await p.start(1)
            await p.copied()
            await shows(slave, stored)
            # The master's machine is lost, while the slave lags behind.
            stored += await sends.some(master)
            await p.copied()
            if row.acting:
                # As long as the NameServer has not told of it, the slave counts for no send.
                await until(lambda: master.replication.standing.alive_members() == 2)
            with deaf(slave):
                lost = await sends.some(master, row.behind, 2)
                await p.stop(0, killed=True)
                hang_up(slave)
            await p.stop(1)
            shutil.rmtree(p.store(0))
            heir = await p.start(0, store_root=str(p.store(1)), in_sync_replicas=1)
            await shows(heir, stored)
            assert set(sends.acked) - set(stored) == (set(lost) if row.behind == OK else set())
        finally:
            for broker_id in list(p.brokers):
                await p.stop(broker_id)
            await p.namesrv.close()

    async def away(p: Classics, sends: Sends) -> list[bytes]:
        """Send while the slave is away; returns what was not acknowledged, and is stored anyway."""
        await p.stop(1)
        master = p.brokers[0]
        await until(lambda: not master.replication.listener.connections)
        if row.acting:
            await until(lambda: master.replication.standing.alive_members() == 1)
        found = await sends.some(master, row.away, 1)
        return [] if row.away == OK else found

    run(main())


def in_group(folder: Path, row: Controlled) -> Any:
    return group(folder, slave_timeout_ms=300, **row.changes)


async def two(g: Group) -> tuple[BrokerServer, BrokerServer]:
    """A master, 1, and its slave, 2, in sync; the topic is there."""
    first = await g.start(1)
    await until(lambda: g.master() is first)
    second = await g.start(2)
    await g.in_sync(2)
    async with connected(first.address) as peer:
        await create(peer, queues=1)
    return first, second


@pytest.mark.parametrize("name", CONTROLLED)
def test_pairs_under_a_controller(tmp_path: Path, name: str) -> None:
    row = CONTROLLED[name]

    async def main() -> None:
        async with in_group(tmp_path, row) as g:
            sends = Sends()
            first, second = await two(g)
            await sends.some(first)
            # The slave is away: it leaves the set.
            await g.stop(2)
            await g.in_sync(1)
            before = first.store.queue_range(TOPIC, 0)
            await sends.some(first, row.away, 2)
            assert first.store.queue_range(TOPIC, 0)[1] == before[1] + (2 if row.away == OK else 0)
            second = await g.start(2)
            await g.in_sync(2)
            # The master's process is killed: the other goes on, and it comes back.
            await g.brokers.pop(1).kill()
            await until(lambda: g.master() is second)
            await shows(second, sends.acked)
            first = await g.start(1)
            await g.in_sync(2)
            await sends.some(second)
            await shows(first, sends.acked)
            # Its slave's: nothing happens but that the set shrinks for a while.
            await g.brokers.pop(1).kill()
            await g.in_sync(1)
            first = await g.start(1)
            await g.in_sync(2)
            # The master's machine is lost, while its slave lags behind: nothing is acknowledged that it lacks.
            with deaf(first):
                await sends.some(second, LATE, 2)
                await g.brokers.pop(2).kill()
                hang_up(first)
                shutil.rmtree(tmp_path / "store2")
            await until(lambda: g.master() is first)
            await shows(first, sends.acked)

    run(main())


@pytest.mark.parametrize("name", [ALL_ACK, UNCLEAN])
def test_a_broker_that_was_not_in_sync(tmp_path: Path, name: str) -> None:
    """The last of the set is lost: nobody goes on, or, if so set, one that lacks what was acknowledged meanwhile."""

    async def main() -> None:
        async with in_group(tmp_path, CONTROLLED[name]) as g:
            sends = Sends()
            first, _ = await two(g)
            both = await sends.some(first)
            await g.stop(2)
            await g.in_sync(1)
            await sends.some(first)
            await g.brokers.pop(1).kill()
            second = await g.start(2)
            if name == ALL_ACK:
                # It learns who was master, and waits for it.
                await until(lambda: second.replication.manager is not None and second.replication.controlled.own_id > 0)
                await asyncio.sleep(1)
                assert g.master() is None
                first = await g.start(1)
                await g.in_sync(2)
                assert g.master() is first
                await shows(second, sends.acked)
            else:
                await until(lambda: g.master() is second)
                await shows(second, both)
                first = await g.start(1)
                await g.in_sync(2)
                await shows(first, both)

    run(main())
