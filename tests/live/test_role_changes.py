"""Changes of role that fail half-way, are slow, or come too early: in the end the broker is what was elected."""

from __future__ import annotations

import asyncio
import errno
import mmap
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import connected, create, pulled, run, send, sent, settings, until
from tests.live.test_controller_mode import group
from tests.live.test_unconfirmed import SLOW, deaf, pair

from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.role import Role
from rocketspark.broker.replication.special_services import SpecialServices
from rocketspark.broker.server import BrokerServer
from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.controller import ElectMasterHeader
from rocketspark.store.files.system_calls import OsFiles


async def elect(controller: str, broker_id: int) -> None:
    header = ElectMasterHeader(
        cluster_name="DefaultCluster", broker_name="broker-a", broker_id=broker_id, designate_elect=True
    )
    async with connected(controller) as peer:
        (await peer.request(RequestCode.CONTROLLER_ELECT_MASTER, header)).raise_for_code("elect")


def test_deliveries_that_cannot_begin_at_first_do_not_leave_half_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with group(tmp_path, **SLOW) as g:
            _, second = await pair(g)
            timers = second.replication._services._timers
            begin, failures = timers.start, [ConfigError("a file of timers cannot be read")]

            def start() -> None:
                if failures:
                    raise failures.pop()
                begin()

            monkeypatch.setattr(timers, "start", start)
            await elect(g.controller.address, 2)
            await until(lambda: second.role.kind is Role.MASTER and second.replication._services.running, 10)
            assert not failures
            assert timers.is_running
            async with connected(second.address) as peer:
                await create(peer)
                assert await sent(peer, b"taken") == 0

    run(main())


def test_deliveries_that_end_slowly_or_fail_leave_a_slave_that_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with group(tmp_path, **SLOW) as g:
            first, second = await pair(g)
            end, failures = SpecialServices.stop, [StoreUnwritable("a flush fails")]
            copying: list[bool] = []

            async def stop(services: SpecialServices) -> None:
                if services is first.replication._services and failures:
                    # Meanwhile it is told of the new master by all who know of it.
                    for _ in range(5):
                        await asyncio.sleep(0.2)
                        copying.append(first.replication.client.address is not None)
                    raise failures.pop()
                await end(services)

            monkeypatch.setattr(SpecialServices, "stop", stop)
            await elect(g.controller.address, 2)
            await until(lambda: second.role.kind is Role.MASTER)
            await until(lambda: first.store.log.is_replica, 10)
            # Its log takes no bytes before it is a copy.
            assert copying == [False] * 5
            await g.in_sync(2)
            async with connected(second.address) as peer:
                await create(peer)
                assert await sent(peer, b"taken") == 0
            await until(lambda: first.store.written_position == second.store.written_position)

    run(main())


@pytest.mark.parametrize(
    ("role", "refused"),
    [
        (
            {"controller_mode": True, "controller_addresses": "127.0.0.1:9", "broker_id": -1},
            ResponseCode.SERVICE_NOT_AVAILABLE,
        ),
        ({"broker_id": 1}, ResponseCode.SYSTEM_BUSY),
    ],
)
def test_nothing_is_taken_before_the_role_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: dict[str, Any], refused: int
) -> None:
    """A client that knows it as the master from before sends as soon as its port is open."""

    async def main() -> None:
        begins, goes_on = asyncio.Event(), asyncio.Event()
        begin = HaListener.start

        async def start(listener: HaListener, host: str, port: int) -> None:
            begins.set()
            await goes_on.wait()
            await begin(listener, host, port)

        monkeypatch.setattr(HaListener, "start", start)
        server = BrokerServer(settings(tmp_path, broker_role="SLAVE", **role))
        starting = asyncio.ensure_future(server.start())
        try:
            await begins.wait()
            async with connected(server.address) as peer:
                assert (await send(peer, b"lost")).code == refused
        finally:
            goes_on.set()
            await starting
            end = server.store.written_position
            await server.close()
        assert end == 0

    run(main())


class FullDisk(OsFiles):
    """A disk on which no file can be written."""

    def write_file(self, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.shows("a replica on a full disk is elected: one that has room takes its place as soon as it is back")
def test_who_is_elected_on_a_full_disk_gives_way_to_one_that_has_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path, **SLOW) as g:
            _, second = await pair(g)
            room = second.replication.epochs._files
            second.replication.epochs._files = FullDisk()
            await g.brokers.pop(1).kill()
            await until(lambda: g.controller._journal.sets["broker-a"].master == 2)
            # Nobody else is there: it is no master, and waits.
            assert second.role.kind is not Role.MASTER
            first = await g.start(1)
            await until(lambda: first.role.kind is Role.MASTER)
            await until(lambda: second.role.kind is Role.SLAVE and second.role.epoch == first.role.epoch)
            async with connected(first.address) as peer:
                await create(peer)
                assert await sent(peer, b"taken") == 0
            second.replication.epochs._files = room
            await g.in_sync(2)

    run(main())


class BrokenDisk(OsFiles):
    """A disk that fails in a flush."""

    def sync_map(self, mapped: mmap.mmap, at: int, end: int) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.shows("a master whose disk fails in a flush gives way to a slave in sync")
@pytest.mark.parametrize("all_ack", [True, False], ids=["all", "one"])
def test_a_master_whose_flush_failed_gives_way_to_one_that_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_ack: bool
) -> None:
    """With `allAckInSyncStateSet=false` a slave in sync may lack what was acknowledged; it copies that first."""

    async def main() -> None:
        async with group(tmp_path, all_ack_in_sync_set=all_ack, **SLOW) as g:
            first, second = await pair(g)
            async with connected(first.address) as peer:
                await create(peer)
                assert await sent(peer, b"before") == 0
            await g.in_sync(2)
            await until(lambda: second.store.written_position == first.store.written_position)
            controlled, looks = first.replication.controlled, list[None]()
            check = controlled.check
            monkeypatch.setattr(controlled, "check", lambda: looks.append(check()))
            with deaf(second):
                async with connected(first.address) as peer:
                    kept = [] if all_ack else [b"lacked"]
                    assert [await sent(peer, body) for body in kept] == [1][: len(kept)]
                first.store.log.files = BrokenDisk()
                with pytest.raises(StoreUnwritable):
                    first.store.log.flush()
                looks.clear()
                if kept:
                    await until(lambda: len(looks) > 3)
                    assert second.role.kind is Role.SLAVE
            await until(lambda: second.role.kind is Role.MASTER)
            async with connected(second.address) as peer:
                assert await sent(peer, b"after") == 1 + len(kept)
                assert [m.body for m in await pulled(peer)] == [b"before", *kept, b"after"]
            await until(lambda: first.role.kind is Role.SLAVE)
            await g.brokers.pop(1).kill()

    run(main())
