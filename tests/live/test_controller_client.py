"""A broker's calls on controllers: typed results, errors by code, a leader that is looked for anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.live.support import run
from tests.support.patience import LIMIT_MS
from tests.support.ports import free_ports

from rocketspark.broker.replication import controller_client
from rocketspark.broker.replication.controller_client import (
    AcceptedSet,
    ControllerClient,
    Elected,
    Master,
    SetState,
)
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import NoReply, NotSent, ServerError, TransportError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.headers.controller import ControllerMetadataReply, ReplicaHeartbeatHeader
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import Reply, reply
from rocketspark.transport.server import Server

pytestmark = pytest.mark.shows("a broker's calls on controllers")


def beat(broker_id: int) -> ReplicaHeartbeatHeader:
    return ReplicaHeartbeatHeader(
        cluster_name="c", broker_name="b", address="127.0.0.1:1", broker_id=broker_id, timeout_ms=60_000
    )


@asynccontextmanager
async def controller(folder: Path, port: int = 0) -> AsyncIterator[ControllerServer]:
    server = ControllerServer(ControllerSettings(listen=f"127.0.0.1:{port}", folder=folder))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def code_of(asked: object) -> int:
    with pytest.raises(ServerError) as caught:
        await asked  # type: ignore[misc]
    return caught.value.code


async def every_call(client: ControllerClient, other: ControllerClient) -> None:
    """The life of two brokers; the same on any controller that knows none of name "b" yet."""
    assert await code_of(client.replica_info("b")) == 2008
    assert await code_of(client.elect("c", "b", 1)) == 2010
    assert await code_of(client.apply_id("c", "b", 2, "127.0.0.1:2;2")) == 2014
    assert await client.next_id("c", "b") == 1
    await client.apply_id("c", "b", 1, "127.0.0.1:1;1")
    await client.apply_id("c", "b", 1, "127.0.0.1:1;1")
    assert await code_of(client.register("c", "b", 2, "127.0.0.1:2")) == 2010
    assert await client.register("c", "b", 1, "127.0.0.1:1") == SetState(None, None, frozenset(), 0)
    assert await client.replica_info("b") == SetState(None, 0, frozenset(), 0)
    await client.heartbeat(beat(1))
    one = Master(1, "127.0.0.1:1", 1, 1)
    assert await client.elect("c", "b", 1) == Elected(one, frozenset({1}), True)
    assert await client.elect("c", "b", 1) == Elected(one, frozenset({1}), False)
    assert await other.next_id("c", "b") == 2
    await other.apply_id("c", "b", 2, "127.0.0.1:2;2")
    assert await other.register("c", "b", 2, "127.0.0.1:2") == SetState(one, 1, frozenset({1}), 1)
    assert await code_of(client.alter_in_sync("b", 1, 1, {1, 2}, 1)) == 2006
    assert await other.heartbeat_all(beat(2)) == len(other.addresses)
    await other.heartbeat(beat(2))
    assert await client.alter_in_sync("b", 1, 1, {1, 2}, 1) == AcceptedSet(frozenset({1, 2}), 2)
    assert await code_of(client.alter_in_sync("b", 1, 1, {1, 2}, 2)) == 2013
    assert await code_of(client.alter_in_sync("b", 1, 1, {1}, 1)) == 2001
    assert await code_of(client.alter_in_sync("b", 1, 2, {1}, 2)) == 2000
    assert await code_of(client.alter_in_sync("b", 2, 1, {2}, 2)) == 2002
    assert await code_of(client.alter_in_sync("b", 1, 1, {1, 3}, 2)) == 2003
    assert await code_of(client.elect("c", "b", 3, designate=True)) == 2012
    elected = await client.elect("c", "b", 2, designate=True)
    # A controller of ours waits for the word of a broker of ours.
    two = Master(2, "127.0.0.1:2", 2, 3, elected.master.awaits_word)
    assert elected == Elected(two, frozenset({2}), True)
    assert await client.replica_info("b") == SetState(two, 2, frozenset({2}), 3)


def test_every_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with controller(tmp_path) as server:
            client, other = ControllerClient([server.address]), ControllerClient([server.address])
            try:
                await every_call(client, other)
                found = await client.metadata(server.address)
                assert (found.controller_leader_address, found.is_leader) == (server.address, True)
            finally:
                await client.close()
                await other.close()

    run(main())


def test_one_connection_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with controller(tmp_path) as server:
            client = ControllerClient([server.address])
            for _ in range(3):
                await client.heartbeat(beat(1))
                await client.heartbeat_all(beat(1))
                assert await client.next_id("c", "b") == 1
            assert len(server._server.peers) == 1
            await client.close()

    run(main())


def test_a_leader_is_found_among_those_that_answer(tmp_path: Path) -> None:
    async def main() -> None:
        dead = f"127.0.0.1:{free_ports()}"
        async with controller(tmp_path) as server:
            client = ControllerClient([dead, server.address])
            assert await client.next_id("c", "b") == 1
            assert client.leader == server.address
            assert await client.heartbeat_all(beat(1)) == 1
            await client.close()
            none = ControllerClient([dead])
            with pytest.raises(NotSent, match=f"no controller leads: cannot connect to {dead}"):
                await none.next_id("c", "b")
            with pytest.raises(NotSent, match="no address is set"):
                await ControllerClient([]).find_leader()
            await none.close()

    run(main())


async def silent() -> tuple[asyncio.Server, str]:
    """A server whose machine is gone without a word: it is connected to, and answers nothing."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_one_that_is_silent_holds_up_neither_the_search_for_a_leader_nor_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_client, "NEXT_S", 0.05)

    async def main() -> None:
        gone, address = await silent()
        async with controller(tmp_path) as server, gone:
            # Who waited for the silent one would do so for as long as the test may take.
            client = ControllerClient([address, server.address], timeout_ms=10 * LIMIT_MS)
            assert await client.next_id("c", "b") == 1
            client.leader = address
            with pytest.raises(TransportError, match=f"{address} does not answer, and {server.address} leads"):
                await client.next_id("c", "b")
            assert client.leader == server.address
            assert await client.next_id("c", "b") == 1
            await client.close()

    run(main())


def test_a_controller_that_comes_back_is_used_again(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_ports()
        async with controller(tmp_path, port) as server:
            client = ControllerClient([server.address])
            await client.apply_id("c", "b", 1, "127.0.0.1:1;1")
        with pytest.raises(TransportError):
            await client.next_id("c", "b")
        async with controller(tmp_path, port):
            assert await client.next_id("c", "b") == 2
        await client.close()

    run(main())


class Told:
    """A controller of a group of several, which answers as told. `leader`: whom it names."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.leads = False
        self.asked: list[int] = []
        routes = Routes()
        routes.add(RequestCode.CONTROLLER_GET_METADATA_INFO, self.metadata)
        routes.add(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self.next_id)
        routes.add(RequestCode.CONTROLLER_GET_REPLICA_INFO, lambda peer, request, body: None)
        self.server = Server(routes)

    def metadata(self, peer: object, request: object, body: bytes) -> bytes:
        self.asked.append(1005)
        header = ControllerMetadataReply(group="g", controller_leader_address=self.leader, is_leader=self.leads)
        return reply(request.opaque, header=header)  # type: ignore[attr-defined]

    def next_id(self, peer: object, request: object, body: bytes) -> bytes:
        self.asked.append(1012)
        opaque = request.opaque  # type: ignore[attr-defined]
        return reply(opaque, header={"nextBrokerId": "7"}) if self.leads else reply(opaque, 2007, remark="no")


def test_who_leads_no_more_is_left_for_the_one_that_does() -> None:
    async def main() -> None:
        one, two = Told(), Told()
        for each in (one, two):
            await each.server.start("127.0.0.1", 0)
        client = ControllerClient([one.server.address, two.server.address], timeout_ms=300)
        one.leads, one.leader = True, one.server.address
        assert await client.next_id("c", "b") == 7
        one.leads, one.leader = False, None
        two.leads, two.leader = True, two.server.address
        one.asked.clear()
        assert await client.next_id("c", "b") == 7
        assert (one.asked, two.asked) == ([1012, 1005], [1005, 1012])
        # No answer: it may have been carried out, so it is not asked twice; the leader is looked for the next time.
        with pytest.raises(NoReply):
            await client.replica_info("b")
        assert client.leader is None
        two.leads = False
        with pytest.raises(ServerError) as caught:
            await client.next_id("c", "b")
        assert caught.value.code == 2007
        await client.close()
        for each in (one, two):
            await each.server.close()

    run(main())


@pytest.mark.shows("a request about the in-sync set that arrives late, over a connection that is gone")
def test_a_request_that_arrives_after_its_master_looked_anew_is_not_taken(tmp_path: Path) -> None:
    """It was made over a connection that is gone at the master, which goes by what it was told since."""

    async def main() -> None:
        async with controller(tmp_path) as server:
            master, slave = (ControllerClient([server.address]) for _ in range(2))
            for client, number in ((master, 1), (slave, 2)):
                await client.apply_id("c", "b", number, f"127.0.0.1:{number};1")
                await client.register("c", "b", number, f"127.0.0.1:{number}")
                await client.heartbeat(beat(number))
            await master.elect("c", "b", 1)
            held: list[tuple[int, Header, bytes]] = []
            ask = master._ask_leader

            async def hold(code: int, header: Header, body: bytes = b"") -> Reply:
                held.append((code, header, body))
                raise NoReply("cut", address=server.address)

            master._ask_leader = hold  # type: ignore[method-assign]
            with pytest.raises(NoReply):
                await master.alter_in_sync("b", 1, 1, {1, 2}, 1)
            master._ask_leader = ask  # type: ignore[method-assign]
            # An operator's look ends nothing; the master's own does.
            assert (await slave.replica_info("b")).in_sync == {1}
            looked = await master.replica_info("b", 1)
            assert (looked.in_sync, looked.ends_earlier) == ({1}, True)
            # Now it acknowledges alone, and the request arrives.
            assert (await slave._ask_leader(*held[0])).code == 2001
            assert (await slave.replica_info("b")).in_sync == {1}
            # So does one of the process before.
            other = ControllerClient([server.address])
            assert await code_of(other.alter_in_sync("b", 1, 1, {1, 2}, 1)) == 2001
            assert await master.alter_in_sync("b", 1, 1, {1, 2}, 1) == AcceptedSet(frozenset({1, 2}), 2)
            await other.replica_info("b", 1)
            assert await other.alter_in_sync("b", 1, 1, {1}, 2) == AcceptedSet(frozenset({1}), 3)
            for client in (master, slave, other):
                await client.close()

    run(main())
