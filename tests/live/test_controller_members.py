"""Members of a group of controllers: empty, old and full disks, one more, one less, strangers, one that was alone."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.support import run
from tests.live.test_controllers_of_three import QUICK, Three, again, beat, join, three, until

from rocketspark import machine
from rocketspark.admin.controllers import ControllerGroup
from rocketspark.broker.access import secure_folder
from rocketspark.controller.group.links import Letter
from rocketspark.controller.group.raft_log import NAME, VOTER
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ConfigError, NotSent, ServerError, TransportError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.connections import Connections, dial

pytestmark = pytest.mark.shows(
    "three controllers: a member with an empty, old, full or damaged disk; members added and removed while they run; "
    "a single controller becomes three; two of three away: nobody leads or decides"
)


async def masters(group: Three) -> set[tuple[int | None, int]]:
    found = set()
    for server in group.running.values():
        s = server._journal.sets.get("b")
        found.add((s.master, s.master_epoch) if s else (None, -1))
    return found


async def same(group: Three, master: int) -> None:
    """Wait until all that run have this master."""

    async def so() -> bool:
        return {number for number, _ in await masters(group)} == {master}

    await until(so)


def test_an_empty_disk_and_an_old_one_take_what_they_miss(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as group:
            clients = await join(group, 3)
            follower = next(node for node, server in group.running.items() if not server.leads)
            await group.stop(follower)
            old = tmp_path / "old"
            shutil.copytree(tmp_path / follower, old)
            for designated in (2, 3, 2):
                await again(lambda d=designated: clients[1].elect("c", "b", d, designate=True))
                await again(lambda d=designated: clients[d].replica_info("b"))
                state = await again(lambda: clients[1].replica_info("b"))
                await again(
                    lambda s=state, d=designated: clients[d].alter_in_sync("b", d, s.epoch, [1, 2, 3], s.set_epoch)
                )
            shutil.rmtree(tmp_path / follower)
            await group.start(follower)
            await same(group, 2)
            await group.stop(follower)
            shutil.rmtree(tmp_path / follower)
            shutil.copytree(old, tmp_path / follower)
            await group.start(follower)
            await same(group, 2)
            # It may lead now.
            other = next(n for n, s in group.running.items() if n != follower and not s.leads)
            leader = await group.leader()
            await group.stop(leader)
            assert await group.leader() in (follower, other)
            for client in clients.values():
                await client.close()

    run(main())


def test_with_two_of_three_away_nobody_leads_or_decides(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as group:
            clients = await join(group, 2)
            leader = await group.leader()
            before = group.running[leader]._journal.sets["b"]
            await group.stop(*(node for node in group.addresses if node != leader))
            with pytest.raises(TransportError, match="no controller leads") as caught:
                await clients[1].alter_in_sync("b", 1, 1, [1], before.set_epoch)
            # It may have been written, and be agreed on later: nobody may take it for one that was not sent.
            assert not isinstance(caught.value, NotSent)

            async def alone() -> bool:
                return not group.running[leader].leads

            await until(alone)
            told = await clients[1].metadata(group.addresses[leader])
            assert (told.is_leader, told.controller_leader_address) == (False, None)
            with pytest.raises((TransportError, ServerError)):
                await clients[1].replica_info("b")
            assert group.running[leader]._journal.sets["b"] == before
            await group.start(*(node for node in group.addresses if node != leader))
            await group.leader()
            state = await again(lambda: clients[1].replica_info("b"))
            assert state.master is not None
            for client in clients.values():
                await client.close()

    run(main())


def test_a_member_whose_clock_was_set_back_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others took all that it said after that start for late: with a third one away nobody led."""

    async def main() -> None:
        async with three(tmp_path) as group:
            clients = await join(group, 2)
            leader = await group.leader()
            set_back, gone = (node for node in group.addresses if node != leader)
            await group.stop(set_back)
            now_ns = machine.time_ns()
            with monkeypatch.context() as m:
                m.setattr(machine, "time_ns", lambda: now_ns - 3600 * 1_000_000_000)
                await group.start(set_back)
                await group.leader()
            await group.stop(gone)
            await again(lambda: clients[1].elect("c", "b", 2, designate=True))
            await same(group, 2)
            for client in clients.values():
                await client.close()

    run(main())


def test_a_full_disk_is_one_line_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with three(tmp_path) as group:
            clients = await join(group, 2)
            leader = await group.leader()
            thread = group.running[leader]._journal._thread  # type: ignore[union-attr]
            assert thread is not None

            def full(path: str, at: int, content: bytes) -> None:
                raise OSError(errno.ENOSPC, "No space left on device", path)

            with caplog.at_level(logging.ERROR):
                thread._files.write_at = full  # type: ignore[method-assign]

                async def replaced() -> bool:
                    return any(s.leads for n, s in group.running.items() if n != leader)

                asked = asyncio.create_task(again(lambda: clients[2].elect("c", "b", 2, designate=True)))
                await until(replaced)
                await asked
            del thread._files.write_at
            lines = [r.getMessage() for r in caplog.records if "takes no part until its disk does" in r.getMessage()]
            assert 1 <= len(lines) <= 3
            assert all("controllerLog" in line and "\n" not in line for line in lines)
            await same(group, 2)
            for client in clients.values():
                await client.close()

    run(main())


def test_a_damaged_log_is_told_and_an_emptied_folder_mends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as group:
            clients = await join(group, 2)
            await same(group, 1)
            follower = next(node for node, server in group.running.items() if not server.leads)
            await group.stop(follower)
            path = tmp_path / follower / NAME
            content = bytearray(path.read_bytes())
            content[60] ^= 1
            path.write_bytes(content)
            with pytest.raises(ConfigError, match="is damaged: empty this controller's folder"):
                await group.start(follower)
            shutil.rmtree(tmp_path / follower)
            await group.start(follower)
            await same(group, 1)
            for client in clients.values():
                await client.close()

    run(main())


def test_members_are_added_and_removed_while_they_run(tmp_path: Path) -> None:
    async def main() -> None:
        group = Three(tmp_path, count=4)
        peers = ";".join(f"{n}-{a}" for n, a in list(group.addresses.items())[:3])
        connections = Connections()
        try:
            for node in ("n0", "n1", "n2"):
                server = group.running[node] = ControllerServer(group.settings(node, peers))
                await server.start()
            await group.leader()
            operator = ControllerGroup([group.addresses["n0"]], connections)
            clients = await join(group, 2)
            states = {each.name: each.state for each in await operator.members()}
            assert sorted(states.values()) == ["follower", "follower", "leader"]
            # The one that leads is to go, too: it hands over first.
            gone = await group.leader()
            await ControllerGroup(group.addresses.values(), connections).remove(gone)
            await group.stop(gone)
            left = [each.name for each in await ControllerGroup(group.addresses.values(), connections).members()]
            assert sorted(left) == sorted({"n0", "n1", "n2"} - {gone})
            await group.start("n3")
            address = group.addresses["n3"]
            await ControllerGroup(group.addresses.values(), connections).add(f"n3-{address}")
            with pytest.raises(ServerError, match="cannot be added: n3-"):
                await ControllerGroup(group.addresses.values(), connections).add(f"n3-{address}")
            await same(group, 1)
            # It counts: with one of the two others away it goes on.
            await group.stop(next(n for n in group.running if n != "n3"))
            await group.leader()
            assert (await again(lambda: clients[2].replica_info("b"))).in_sync == {1, 2}
            # Members know of each other without --peers, also after a start.
            await group.stop("n3")
            await group.start("n3")
            await group.leader()
            for client in clients.values():
                await client.close()
        finally:
            await connections.close()
            await group.stop()

    run(main())


@pytest.mark.shows("mended: a controller is not added before it runs: the others would count on it")
def test_one_that_does_not_run_is_not_added(tmp_path: Path) -> None:
    async def main() -> None:
        connections = Connections()
        async with three(tmp_path) as group:
            await group.leader()
            operator = ControllerGroup(group.addresses.values(), connections)
            before = await operator.members()
            with pytest.raises(
                ServerError, match=r"n3-127\.0\.0\.1:1 cannot be added: no controller of the group answers"
            ):
                await operator.add("n3-127.0.0.1:1")
            assert [each.name for each in await operator.members()] == [each.name for each in before]
        await connections.close()

    run(main())


@pytest.mark.shows(
    "mended: a change of controllers whose answer was lost is told as done, once the group has agreed on it"
)
def test_a_change_whose_answer_is_lost_is_told_as_done(tmp_path: Path) -> None:
    async def main() -> None:
        connections = Connections()
        async with three(tmp_path) as group:
            journal: Any = group.running[await group.leader()]._journal
            outcome = journal._outcome

            async def lost(ask: Any) -> Any:
                found = await outcome(ask)
                return None if ask.func == journal._thread.change_members else found

            journal._outcome = lost
            gone = next(node for node, server in group.running.items() if not server.leads)
            operator = ControllerGroup(group.addresses.values(), connections)
            await operator.remove(gone)
            assert gone not in [each.name for each in await operator.members()]
            await operator.add(f"{gone}-{group.addresses[gone]}")
            assert len(await operator.members()) == 3
            with pytest.raises(ServerError, match="is a member"):
                await operator.add(f"{gone}-{group.addresses[gone]}")
        await connections.close()

    run(main())


@pytest.mark.shows("mended: a controller with an empty disk and an old list of members takes what a newer member has")
def test_an_empty_disk_is_filled_by_a_leader_that_its_settings_do_not_name(tmp_path: Path) -> None:
    async def main() -> None:
        group, connections = Three(tmp_path, count=4), Connections()
        old = ";".join(f"{n}-{a}" for n, a in list(group.addresses.items())[:3])
        operator = ControllerGroup(group.addresses.values(), connections)
        try:
            for node in ("n0", "n1", "n2"):
                server = group.running[node] = ControllerServer(group.settings(node, old))
                await server.start()
            await group.leader()
            await operator.remove("n1")
            await group.stop("n1")
            await group.start("n3")
            await operator.add(f"n3-{group.addresses['n3']}")

            async def voting() -> bool:
                found: list[Any] = [server._journal for server in group.running.values()]
                return all(len(j._status.members) == 3 and j._status.standing == VOTER for j in found)

            await until(voting)
            while (leader := await group.leader()) != "n3":
                journal: Any = group.running[leader]._journal
                journal._thread.hand_over()
                await until(lambda journal=journal: _is(not journal.leads))
            await group.stop("n0")
            shutil.rmtree(tmp_path / "n0")
            server = group.running["n0"] = ControllerServer(group.settings("n0", old))
            await server.start()
            await until(voting)
        finally:
            await connections.close()
            await group.stop()

    run(main())


async def _is(true: bool) -> bool:
    return true


def test_a_single_controller_becomes_three(tmp_path: Path) -> None:
    async def main() -> None:
        group = Three(tmp_path)
        alone = ControllerServer(ControllerSettings(QUICK, listen=group.addresses["n1"], folder=tmp_path / "n1"))
        await alone.start()
        single = Three(tmp_path)
        single.addresses, single.running = {"n1": group.addresses["n1"]}, {"n1": alone}
        clients = await join(single, 2)
        before = alone._journal.sets
        await alone.close()
        for client in clients.values():
            await client.close()
        try:
            await group.start()
            await group.leader()

            async def all_have_it() -> bool:
                return all(server._journal.sets == before for server in group.running.values())

            await until(all_have_it)
            assert not (tmp_path / "n1" / "controllerState").exists()
            client = group.client()
            await again(lambda: client.heartbeat(beat(2)))
            assert (await again(lambda: client.replica_info("b"))).in_sync == {1, 2}
            await client.close()
        finally:
            await group.stop()
        with pytest.raises(ConfigError, match="that of a member of several controllers"):
            await ControllerServer(ControllerSettings(QUICK, listen="127.0.0.1:0", folder=tmp_path / "n1")).start()

    run(main())


@pytest.mark.shows("controllers of a group under --secure: a stranger may neither vote, join nor read")
def test_a_stranger_may_neither_join_nor_read(tmp_path: Path) -> None:
    door = secure_folder.prepare(tmp_path / "secure")

    async def main() -> None:
        group = Three(tmp_path)

        def locked(node: str, peers: str = "", plain: Any = group.settings) -> ControllerSettings:
            settings: ControllerSettings = plain(node, peers)
            settings.tls, settings.signer = door.tls(), door.signer()
            settings.let_ask(door.namesrv_writers())
            return settings

        group.settings = locked  # type: ignore[method-assign]
        try:
            await group.start()
            leader = await group.leader()
            terms = {server._journal._status.term for server in group.running.values()}  # type: ignore[union-attr]
            address = group.addresses[leader]
            plain = await dial(address)
            with pytest.raises(TransportError):
                await plain.request(RequestCode.CONTROLLER_GROUP_HELLO, None, b"{}", timeout_ms=2000)
            peer = await dial(address, tls=door.tls().client(True))
            for code in (RequestCode.CONTROLLER_GROUP_HELLO, RequestCode.CONTROLLER_GROUP_CHANGE):
                reply = await peer.request(code, None, b'{"what":"add","member":"n9-127.0.0.1:1"}', timeout_ms=2000)
                assert reply.code == ResponseCode.NO_PERMISSION
            names = [f"{n}-{a}" for n, a in group.addresses.items()]
            own = f"{leader}-{address}"
            forged = next(name for name in names if name != own)
            vote = {"type": "request_vote", "term": 1 << 40, "last_log_index": 1 << 40, "last_log_term": 1 << 40}
            letter = Letter("DefaultControllerGroup", forged, own, 1 << 62, 1, vote)
            peer.oneway(RequestCode.CONTROLLER_GROUP_MESSAGE, None, msgspec.msgpack.encode(letter))
            # In the order of the connection: after this answer the letter has been looked at.
            await peer.request(RequestCode.CONTROLLER_GROUP_HELLO, None, b"{}", timeout_ms=2000)
            client_connections = Connections(hooks=door.signer(), tls=door.tls().client(True))

            async def all_told() -> bool:
                members = await ControllerGroup([address], client_connections).members()
                return {each.state for each in members} == {"leader", "follower"}

            await until(all_told)
            after = {server._journal._status.term for server in group.running.values()}  # type: ignore[union-attr]
            assert max(after) < 1 << 40
            assert max(after) >= max(terms)
            peer.close()
            await client_connections.close()
        finally:
            await group.stop()

    run(main())
