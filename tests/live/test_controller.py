"""Our controller over its wire: it answers as Apache's, keeps what it answered, and elects when a master goes."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import run
from tests.support import controller_rows
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.broker.replication.controller_client import ControllerClient, SetState
from rocketspark.controller.journal import StateFile
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ServerError, StoreFull
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.controller import ElectMasterHeader, ElectMasterReply, ReplicaHeartbeatHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.operator_bodies import SyncStateSet
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import Server

QUICK = {"controllerDLegerGroup": "group1", "scanNotActiveBrokerInterval": "100", "scanInactiveMasterInterval": "100"}


async def started(folder: Path, **more: Any) -> ControllerServer:
    server = ControllerServer(ControllerSettings(QUICK | more, listen="127.0.0.1:0", folder=folder))
    await server.start()
    return server


@pytest.mark.shows(
    "the controller: ids, registration, elections, in-sync sets, cleaning, metadata (1001 to 1006, 1008 to 1013, 904)"
)
def test_it_answers_row_by_row_as_apaches_controller(tmp_path: Path) -> None:
    async def main() -> dict[str, Any]:
        server = await started(tmp_path)
        try:
            return controller_rows.comparable(await asyncio.to_thread(controller_rows.play, server.address))
        finally:
            await server.close()

    found, recorded = run(main()), controller_rows.recorded()
    for label, row in recorded.items():
        assert (label, found.get(label)) == (label, row)
    assert found.keys() == recorded.keys()


async def until(true: Callable[[], Awaitable[Any]], limit_s: float = LIMIT_S) -> Any:
    """Ask until the answer is a true one, and return it."""
    end = time.monotonic() + limit_s
    while not (found := await true()):
        assert time.monotonic() < end, f"not so within {limit_s} s"
        await asyncio.sleep(0.01)
    return found


def beat(broker_id: int, timeout_ms: int = 60_000, epoch: int = 1, end: int = 0) -> ReplicaHeartbeatHeader:
    return ReplicaHeartbeatHeader(
        cluster_name="c",
        broker_name="b",
        address=f"127.0.0.1:{broker_id}",
        broker_id=broker_id,
        epoch=epoch,
        max_offset=end,
        timeout_ms=timeout_ms,
    )


class Brokers:
    """Brokers of one name, each with a client of its own and a server that notices come to."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self.clients: dict[int, ControllerClient] = {}
        self._servers: dict[int, Server] = {}
        self.notices: dict[int, list[tuple[ElectMasterReply, SyncStateSet]]] = {}

    async def join(self, broker_id: int, **more: int) -> ControllerClient:
        """Let a broker get its id, tell that it lives, and ask for an election."""
        routes, noted = Routes(), self.notices.setdefault(broker_id, [])

        def noticed(peer: Peer, request: Request[ElectMasterReply], body: bytes) -> None:
            noted.append((request.ext, java_json.decode(body, SyncStateSet)))

        routes.add(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, noticed, ElectMasterReply)
        server = self._servers[broker_id] = Server(routes)
        await server.start("127.0.0.1", 0)
        client = self.clients[broker_id] = ControllerClient([self._controller], timeout_ms=LIMIT_MS)
        assert await client.next_id("c", "b") == broker_id
        await client.apply_id("c", "b", broker_id, f"{server.address};{broker_id}")
        await client.register("c", "b", broker_id, server.address)
        await client.heartbeat(beat(broker_id, **more))
        await client.elect("c", "b", broker_id)
        return client

    async def close(self) -> None:
        for each in (*self.clients.values(), *self._servers.values()):
            await each.close()


@asynccontextmanager
async def joined(
    folder: Path, count: int = 2, config: dict[str, str] | None = None, **more: int
) -> AsyncIterator[tuple[ControllerServer, Brokers]]:
    """A controller and brokers, 1 the master, all in sync."""
    server = await started(folder, **(config or {}))
    brokers = Brokers(server.address)
    try:
        for broker_id in range(1, count + 1):
            await brokers.join(broker_id, **more)
        if count > 1:
            await brokers.clients[1].alter_in_sync("b", 1, 1, range(1, count + 1), 1)
        yield server, brokers
    finally:
        # First the controller: it would depose a master whose connection ends.
        await server.close()
        await brokers.close()


def test_a_master_that_goes_is_replaced_at_once_and_the_others_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with joined(tmp_path, 3) as (_, brokers):
            assert [n[0].master_broker_id for n in brokers.notices[1]] == [1]
            await brokers.clients[3].heartbeat(beat(3, end=70))
            await brokers.clients[1].close()
            info = await until(lambda: master_is(brokers.clients[2], 3))
            assert (info.epoch, info.in_sync, info.set_epoch) == (2, {3}, 3)

            async def told() -> bool:
                return all(brokers.notices[i] for i in (2, 3))

            await until(told)
            for i in (2, 3):
                header, members = brokers.notices[i][-1]
                assert (header.master_broker_id, header.master_epoch, header.sync_state_set_epoch) == (3, 2, 3)
                assert header.master_address == info.master.address
                assert (members.sync_state_set, members.sync_state_set_epoch) == ([3], 3)
            assert len(brokers.notices[1]) == 1

    run(main())


async def master_is(client: ControllerClient, broker_id: int) -> SetState | None:
    info = await client.replica_info("b")
    return info if info.master and info.master.broker_id == broker_id else None


@pytest.mark.parametrize("by", ["scanNotActiveBrokerInterval", "scanInactiveMasterInterval"])
def test_a_silent_master_is_replaced_though_its_connection_is_open(tmp_path: Path, by: str) -> None:
    """Each of the two scans finds it."""
    config = dict.fromkeys(("scanNotActiveBrokerInterval", "scanInactiveMasterInterval"), "86400000") | {by: "100"}

    async def main() -> None:
        async with joined(tmp_path, config=config, timeout_ms=300) as (_, brokers):

            async def replaced() -> bool:
                await brokers.clients[2].heartbeat_all(beat(2))
                return await master_is(brokers.clients[2], 2) is not None

            await until(replaced)
            # It comes back: the new one stays.
            await brokers.clients[1].heartbeat(beat(1))
            assert not (await brokers.clients[1].elect("c", "b", 1)).new
            assert (await brokers.clients[1].register("c", "b", 1, "127.0.0.1:1")).master is not None

    run(main())


def test_a_second_connection_of_a_broker_may_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with joined(tmp_path) as (server, brokers):
            second = ControllerClient([server.address])
            await second.heartbeat(beat(1))
            await second.close()
            first = brokers.clients[1]
            brokers.clients[1] = ControllerClient([server.address])
            await brokers.clients[1].heartbeat(beat(1))
            await first.close()  # RocketMQ would elect another master now.
            await asyncio.sleep(0.3)
            info = await brokers.clients[2].replica_info("b")
            assert (info.master and info.master.broker_id, info.epoch) == (1, 1)

    run(main())


def test_a_controller_that_starts_again_changes_nothing_and_gives_masters_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with joined(tmp_path) as (_, brokers):
            before = await brokers.clients[1].replica_info("b")
        server = await started(tmp_path)
        one, two = ControllerClient([server.address]), ControllerClient([server.address])
        try:
            await two.heartbeat(beat(2))
            await asyncio.sleep(0.5)
            assert await two.replica_info("b") == before
            found = await two.elect("c", "b", 2)
            assert (found.master.broker_id, found.new) == (1, False)
            await one.heartbeat(beat(1))
            await one.close()
            assert (await until(lambda: master_is(two, 2))).epoch == 2
        finally:
            await one.close()
            await two.close()
            await server.close()

    run(main())


@pytest.mark.shows(
    "the controller's state: durable before the answer, cut or torn at any byte, another version, a full disk, kills"
)
def test_what_was_answered_survives_a_kill_at_any_time(tmp_path: Path) -> None:
    """The process is killed after each answer: the next one goes on from it."""
    for epoch in range(4):
        process, address = command(tmp_path, "controller", f"controllerStorePath={tmp_path / 'state'}")
        try:
            run(one_change(address, epoch, process))
        finally:
            end(process)


async def one_change(address: str, epoch: int, process: subprocess.Popen[str]) -> None:
    """Make the first master, later the other one, of a set whose master's epoch is as told; then kill."""
    brokers = Brokers(address)
    client = ControllerClient([address])
    try:
        if epoch == 0:
            await brokers.join(1)
            await brokers.join(2)
            await brokers.clients[1].alter_in_sync("b", 1, 1, [1, 2], 1)
            return
        await client.heartbeat(beat(1))
        await client.heartbeat(beat(2))
        info = await client.replica_info("b")
        assert info.master is not None
        assert (info.epoch, info.in_sync, await client.next_id("c", "b")) == (epoch, {1, 2}, 3)
        chosen = 3 - info.master.broker_id
        found = await client.elect("c", "b", chosen, designate=True)
        assert (found.master.broker_id, found.master.epoch) == (chosen, epoch + 1)
        await client.alter_in_sync("b", chosen, epoch + 1, [1, 2], found.master.set_epoch)
    finally:
        # First of all: the ends of connections would depose the master.
        process.kill()
        process.wait()
        await brokers.close()
        await client.close()


@pytest.mark.shows(
    "the controller's state: durable before the answer, cut or torn at any byte, another version, a full disk, kills"
)
def test_a_disk_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with joined(tmp_path) as (_, brokers):
            before = await brokers.clients[1].replica_info("b")

            def full(self: StateFile, sets: Any) -> None:
                raise StoreFull("no room on the disk")

            with monkeypatch.context() as patched:
                patched.setattr(StateFile, "write", full)
                for asked in (
                    brokers.clients[1].elect("c", "b", 2, designate=True),
                    brokers.clients[1].alter_in_sync("b", 1, 1, [1], 2),
                    brokers.clients[2].apply_id("c", "b", 3, "127.0.0.1:3;3"),
                ):
                    with pytest.raises(ServerError, match="no room on the disk") as caught:
                        await asked
                    assert caught.value.code == 1
                assert await brokers.clients[2].replica_info("b") == before
                assert await brokers.clients[2].next_id("c", "b") == 3
            assert (await brokers.clients[1].elect("c", "b", 2, designate=True)).master.epoch == 2

    run(main())


@pytest.mark.parametrize(
    "data", [b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n" * 9, b"\xff" * 4096, b"\0\0\0\x08\0\0\0\x04{}{}"]
)
def test_garbage_ends_its_own_connection_only(tmp_path: Path, data: bytes) -> None:
    async def main() -> None:
        async with joined(tmp_path) as (server, brokers):
            reader, writer = await asyncio.open_connection(server.settings.host, int(server.address.rsplit(":")[-1]))
            writer.write(data)
            await asyncio.wait_for(reader.read(), LIMIT_S)
            writer.close()
            assert (await brokers.clients[1].replica_info("b")).in_sync == {1, 2}

    run(main())


def test_broken_requests_get_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with joined(tmp_path) as (server, brokers):
            peer = await dial(server.address)
            for code, ext, body in (
                (1001, {"brokerName": "b", "masterBrokerId": "1", "masterEpoch": "1"}, b"{"),
                (1001, {"brokerName": "b", "masterBrokerId": "1", "masterEpoch": "1"}, b'{"syncStateSet":["x"]}'),
                (1001, {"brokerName": "b"}, b"{}"),
                (1002, {"brokerName": "b", "brokerId": "99999999999999999999"}, b""),
                (1006, {}, b"[1]"),
                (1006, {}, b"[" * 5000),
                (1013, {"clusterName": "c", "brokerName": "b", "appliedBrokerId": "x"}, b""),
                (904, {"clusterName": "c"}, b""),
            ):
                answer = await peer.request(code, ext, body)
                assert (answer.code, bool(answer.remark)) == (1, True)
            peer.close()
            assert (await brokers.clients[1].replica_info("b")).in_sync == {1, 2}

    run(main())


@pytest.mark.shows("`rocketspark controller`, `enableControllerInNamesrv`")
def test_the_command_says_where_it_is_and_that_it_is_alone(tmp_path: Path) -> None:
    process, address = command(tmp_path, "controller", f"controllerStorePath={tmp_path / 'state'}\nfoo=1")
    try:
        row = controller_rows.Link(address).ask(controller_rows.METADATA)
        assert row.ext["controllerLeaderAddress"] == "CONTROLLER"
        other = [*CALL, "controller", "--listen", address, "--store", str(tmp_path / "other")]
        refused = subprocess.run(other, capture_output=True, text=True, timeout=LIMIT_S)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
        assert f"port {address.rpartition(':')[2]} on 127.0.0.1 is in use" in refused.stderr
        other[-3:] = ["127.0.0.1:0", "--store", str(tmp_path / "state")]
        refused = subprocess.run(other, capture_output=True, text=True, timeout=LIMIT_S)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "is in use by another server" in refused.stderr
    finally:
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        end(process)
    log = (tmp_path / "log").read_text("utf-8")
    assert "unknown key 'foo' is ignored" in log
    assert "is a single node: while it is down no master is elected" in log


@pytest.mark.shows("`rocketspark controller`, `enableControllerInNamesrv`")
def test_a_controller_inside_a_nameserver(tmp_path: Path) -> None:
    keys = f"enableControllerInNamesrv=true\nlistenPort=0\ncontrollerStorePath={tmp_path / 'state'}"
    process, address = command(tmp_path, "namesrv", keys)
    try:
        assert controller_rows.Link(address).ask(controller_rows.METADATA).ext["isLeader"] == "true"
        assert (tmp_path / "state" / "controllerState").exists()
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        end(process)


CALL = [sys.executable, "-m", "rocketspark.cli.main"]


def command(folder: Path, name: str, keys: str) -> tuple[subprocess.Popen[str], str]:
    """Start a command with a file of keys; returns it and the controller's address from its ready line."""
    conf = folder / f"{name}.conf"
    conf.write_text(f"controllerDLegerPeers=n0-127.0.0.1:0\n{keys}\n", "utf-8")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([*CALL, name, "-c", str(conf)], stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    line = process.stdout.readline()
    watchdog.cancel()
    found = re.search(r"^ready (?:namesrv=\S+ )?controller=(\S+)$", line)
    assert found is not None, (folder / "log").read_text("utf-8")
    return process, found[1]


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_controller_that_stood_still_replaces_nobody(tmp_path: Path) -> None:
    """Stopped for longer than brokers may be silent: their heartbeats wait in its sockets meanwhile."""
    process, address = command(tmp_path, "controller", f"controllerStorePath={tmp_path / 'state'}\n{SCANS}")
    try:

        async def main() -> None:
            brokers = Brokers(address)
            for broker_id in (1, 2):
                await brokers.join(broker_id, timeout_ms=2000)
            one, two = brokers.clients[1], brokers.clients[2]
            await one.alter_in_sync("b", 1, 1, [1, 2], 1)
            process.send_signal(signal.SIGSTOP)
            for _ in range(27):
                await one.heartbeat_all(beat(1, timeout_ms=2000))
                await two.heartbeat_all(beat(2, timeout_ms=2000))
                await asyncio.sleep(0.1)
            process.send_signal(signal.SIGCONT)
            for _ in range(10):
                info = await two.replica_info("b")
                assert (info.master and info.master.broker_id, info.epoch) == (1, 1)
                await one.heartbeat(beat(1, timeout_ms=2000))
                await asyncio.sleep(0.05)
            process.kill()
            await brokers.close()

        run(main())
    finally:
        end(process)


SCANS = "scanNotActiveBrokerInterval=100\nscanInactiveMasterInterval=100"


def test_brokers_are_told_though_who_asked_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with joined(tmp_path, 3) as (server, brokers):
            peer = await dial(server.address)
            header = ElectMasterHeader(cluster_name="c", broker_name="b", broker_id=3, designate_elect=True)
            peer.oneway(RequestCode.CONTROLLER_ELECT_MASTER, header)
            peer.close()

            async def told() -> bool:
                return all(
                    brokers.notices[i][-1:] and brokers.notices[i][-1][0].master_broker_id == 3 for i in (1, 2, 3)
                )

            await until(told)

    run(main())
