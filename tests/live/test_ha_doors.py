"""The port of replication where access control is on: brokers of the cluster come in, and strangers bar nobody."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.ha_support import log_of, put
from tests.live.support import connected, run, until
from tests.live.test_replication import Pair, pair

from rocketspark.broker.access import secure_folder
from rocketspark.broker.access.settings import CLASSES, AccessSettings
from rocketspark.broker.replication.link import greeting
from rocketspark.broker.replication.link.doors import WAITING_MAX, SlaveDoor, _enter
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ReplicationError, StoreFull
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol import ha
from rocketspark.store.store import Store
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.tls.settings import from_values

pytestmark = pytest.mark.shows(
    "every port with --secure, as a stranger finds it",
    "a slave beside a master that hangs, refuses, or takes office",
)


def access(secret: str = "secret-of-inner") -> AccessSettings:
    return AccessSettings(
        authentication_metadata_provider=CLASSES["authenticationMetadataProvider"][0],
        inner_client_authentication_credentials=json.dumps({"accessKey": "inner", "secretKey": secret}),
    )


@asynccontextmanager
async def locked(folder: Path, **changes: Any) -> AsyncIterator[Pair]:
    options = {"authentication": True, "access": access(), "namesrv_addresses": ""}
    found = Pair(folder, **options | changes)
    await found.namesrv.start()
    try:
        await found.start(0)
        yield found
    finally:
        for broker_id in list(found.brokers):
            await found.stop(broker_id)
        await found.namesrv.close()


def fill(store: Store) -> None:
    for n in range(20):
        put(store, b"%d" % n * 100)


def link_of(p: Pair) -> dict[str, Any]:
    listener = p.master.replication.listener
    return {"ha_master_address": f"127.0.0.1:{listener.port}"}


async def said(port: int, words: bytes, limit_s: float = 0.3) -> bytes:
    """What the port answers to these words, until it ends the connection or for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    came = b""
    try:
        writer.write(words)
        async with asyncio.timeout(limit_s):
            while piece := await reader.read(1 << 16):
                came += piece
    except (TimeoutError, OSError):
        pass
    finally:
        writer.close()
    return came


@pytest.mark.parametrize("tls", [False, True])
def test_a_slave_that_knows_the_secret_copies_and_a_stranger_gets_nothing(tmp_path: Path, tls: bool) -> None:
    more: dict[str, Any] = {}
    if tls:
        more["tls"] = from_values(secure_folder.prepare(tmp_path / "secure").tls_values())

    async def main() -> None:
        async with locked(tmp_path, **more) as p:
            fill(p.master.store)
            port = p.master.replication.listener.port
            for words in (bytes(8), struct.pack(">ihhq", 1, 0, 0, 1), b"GET / HTTP/1.1\r\n\r\n"):
                assert await said(port, words) == b""
            assert p.master.replication.listener.connections == []
            slave = await p.start(1, **link_of(p))
            await until(lambda: slave.store.written_position == p.master.store.written_position)
            assert log_of(slave.store) == log_of(p.master.store)
            (connection,) = p.master.replication.listener.connections
            assert connection._transport is not None
            assert bool(connection._transport.get_extra_info("ssl_object")) is tls

    run(main())


def test_a_slave_with_another_secret_stays_outside_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with locked(tmp_path) as p:
            fill(p.master.store)
            slave = await p.start(1, **link_of(p), access=access("another"))
            counted = slave.replication.troubles
            await until(lambda: counted.counts.get("stranger"))
            assert slave.store.written_position == 0

    run(main())


@pytest.mark.shows("replication's greeting and who stands between two brokers")
def test_who_stands_between_them_in_tls_can_hand_no_greeting_on(tmp_path: Path) -> None:
    """The certificates are not checked, so the slave talks TLS with whoever answers."""
    files = secure_folder.prepare(tmp_path / "secure").tls_values()
    tls = from_values(files | {"tls.client.authServer": "false"})
    between = secure_folder.prepare(tmp_path / "between")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(between.tls_values()["tls.server.certPath"], between.tls_values()["tls.server.keyPath"])
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        async with locked(tmp_path, tls=tls, use_tls=True) as p:
            fill(p.master.store)
            port = p.master.replication.listener.port
            passed = 0

            async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal passed
                try:
                    while data := await reader.read(1 << 16):
                        passed += len(data)
                        writer.write(data)
                except OSError:
                    pass
                finally:
                    writer.close()

            async def relay(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
                far, on = await asyncio.open_connection("127.0.0.1", port, ssl=blind)
                await asyncio.gather(hand_on(near, on), hand_on(far, back))

            server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=served)
            through = {"ha_master_address": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"}
            slave = await p.start(1, **through)
            await until(lambda: slave.replication.troubles.counts.get("stranger"))
            assert passed > 0
            assert (slave.store.written_position, p.master.replication.listener.connections) == (0, [])
            server.close()

    run(main())


def test_strangers_that_wait_make_room_and_keep_no_replica_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with locked(tmp_path) as p:
            fill(p.master.store)
            port = p.master.replication.listener.port
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * WAITING_MAX)]
            # Those of one host bar none of another, which came before them.
            writer.write(greeting.frame(greeting.HELLO, b"r" * greeting.RANDOM_BYTES))
            assert await reader.readexactly(7) == greeting.frame(greeting.CHALLENGE, bytes(16))[:7]
            writer.close()
            slave = await p.start(1, **link_of(p))
            await until(lambda: slave.store.written_position == p.master.store.written_position)
            for _, writer in held:
                writer.close()

    run(main())


def test_who_waits_at_the_port_is_sent_away_when_the_broker_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with locked(tmp_path) as p:
            hall = p.master.replication.listener._hall
            assert hall is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", p.master.replication.listener.port)
            await until(lambda: hall.waiting)
            await p.stop(0)
            assert hall.waiting == {}
            assert await reader.read() == b""
            writer.close()

    run(main())


def test_rocketmqs_brokers_are_known_by_their_hosts(tmp_path: Path) -> None:
    async def main() -> None:
        async with locked(tmp_path, ha_trusted="127.0.0.0/8") as p:
            fill(p.master.store)
            port = p.master.replication.listener.port
            (first, *_) = ha.ClassicFrames().feed(await said(port, bytes(8)))
            assert first.position == 0
            assert len(first.body) == p.master.store.written_position
            # A slave of ours that trusts that host asks plainly too.
            slave = await p.start(1, **link_of(p))
            await until(lambda: slave.store.written_position == p.master.store.written_position)

    run(main())


def test_without_access_control_nobody_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as p:
            fill(p.master.store)
            assert len(await said(p.master.replication.listener.port, bytes(8))) > 0
            await p.equal()

    run(main())


def test_a_broker_that_is_told_not_to_listen_has_no_port_and_names_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with locked(tmp_path, ha_listen=False) as p:
            assert p.master.replication.listener.port == 0
            info = p.master.replication.own_ha_info()
            assert info is not None
            assert info.ha_address == ""

    run(main())


def test_a_cluster_of_signed_brokers_has_a_nameserver_and_a_controller_that_ask_too() -> None:
    async def answers(cluster: Cluster) -> list[int]:
        found = []
        for address, code in ((cluster.namesrv, 103), (cluster.controller, 1005), (cluster.controller, 1002)):
            async with connected(address) as stranger:
                found.append((await stranger.request(code, {})).code)
        return found

    with run_cluster(replicas=2, authentication=True, access=access()) as cluster:
        assert asyncio.run(answers(cluster)) == [16, 16, 16]


def test_the_controller_inside_a_nameserver_has_its_gate() -> None:
    settings = Settings(port=0)
    inner = '{"accessKey":"inner","secretKey":"of-inner"}'
    settings.take({"signedWritesEnable": "true", "innerClientAuthenticationCredentials": inner})
    assert settings.gate is not None
    assert ControllerSettings(settings.controller).gate is not None


@pytest.mark.parametrize("tls", [False, True])
def test_a_slave_that_gives_up_on_a_master_that_hangs_leaves_no_connection(tmp_path: Path, tls: bool) -> None:
    async def main() -> None:
        ended = 0

        async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal ended
            try:
                await reader.read()
            except ConnectionResetError:
                pass
            ended += 1
            writer.close()

        master = await asyncio.start_server(hangs, "127.0.0.1", 0)
        port = master.sockets[0].getsockname()[1]
        settings = from_values(secure_folder.prepare(tmp_path / "secure").tls_values())
        for _ in range(3):
            door = SlaveDoor(("inner", "secret-of-inner"), asyncio.Protocol, f"127.0.0.1:{port}")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await _enter(door, "127.0.0.1", port, settings.client(True) if tls else None)
        await until(lambda: ended == 3)
        master.close()

    run(main())


@pytest.mark.parametrize("tls", [False, True])
def test_a_slave_tries_soon_again_where_a_master_is_about_to_take_office(tmp_path: Path, tls: bool) -> None:
    more: dict[str, Any] = {}
    if tls:
        more["tls"] = from_values(secure_folder.prepare(tmp_path / "secure").tls_values())

    async def main() -> None:
        async with locked(tmp_path, **more) as p:
            fill(p.master.store)
            p.master.replication.listener.accepting = False
            slave = await p.start(1, **link_of(p))
            counts = slave.replication.troubles.counts
            await until(lambda: counts.total())
            assert set(counts) == {"closed"}
            p.master.replication.listener.accepting = True
            await until(lambda: slave.store.written_position == p.master.store.written_position)

    run(main())


@pytest.mark.parametrize("passing", [ReplicationError("it is no master", reason="closed"), StoreFull("no room")])
def test_a_slave_tries_soon_again_however_often_it_was_in_vain(passing: Exception) -> None:
    client = HaClient(lambda now_s: pytest.fail("no link is made"), Troubles(), on_appended=lambda: None)
    assert {client._pause_after(passing) for _ in range(2000)} == {2.0, 4.0, 8.0, 10.0}


def test_a_slave_tries_on_whatever_went_wrong() -> None:
    async def main() -> None:
        asked: list[str] = []

        async def check(address: str) -> None:
            asked.append(address)
            raise OSError(28, "No space left on device")

        client = HaClient(
            lambda now_s: pytest.fail("no link is made"),
            Troubles(),
            on_appended=lambda: None,
            check=check,
            retry_s=0.001,
        )
        client.set_address("127.0.0.1:9")
        client.start()
        await until(lambda: len(asked) > 2)
        await client.close()

    run(main())
