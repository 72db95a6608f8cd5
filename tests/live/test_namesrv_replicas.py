"""A NameServer on its socket: settings, silent brokers, notices; registrations of any kind are taken or refused."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.live.support import run, until

from rocketspark.namesrv.registration_limits import REPLICAS_MAX
from rocketspark.namesrv.server import NameServer
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol.headers import MinBrokerIdHeader
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import Server

pytestmark = pytest.mark.shows(
    "registrations of any kind: garbled, ids below 0 or over 63 bits, state versions over 63 bits, thousands "
    "under one name"
)

LONG_MAX = (1 << 63) - 1
NUMBERS = ["-1", str(-LONG_MAX - 1), str(LONG_MAX), str(LONG_MAX + 1), "1" * 400, "x", "", "1.5", "0x1", "²", "7"]
SWITCHES = ["true", "false", "TRUE", "perhaps", "", "1"]
NAMES = ["", "a", "b", "x" * 256, "evil\x1b[31m", "a\nb", "{}", "rmq_sys_SYNC_BROKER_MEMBER_a"]
ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:0", "nonsense", ":", "[::1]:9", "127.0.0.1:99999999999", *NAMES]
FIELDS = {
    "brokerName": NAMES,
    "brokerAddr": ADDRESSES,
    "clusterName": NAMES,
    "haServerAddr": ADDRESSES,
    "brokerId": NUMBERS,
    "heartbeatTimeoutMillis": NUMBERS,
    "bodyCrc32": ["0", "1", *NUMBERS],
    "enableActingMaster": SWITCHES,
    "compressed": SWITCHES,
}
GOOD = {"brokerName": "a", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "1"}
VALUES: list[Any] = [None, True, -1, 1 << 31, LONG_MAX, LONG_MAX + 1, 10**40, 1.5, "7", "x", "", [], {}, {"T": None}]


def body(rng: random.Random) -> bytes:
    topic = {"topicName": rng.choice(["T", "U", *NAMES]), "perm": rng.choice([6, 4, *VALUES])}
    topic |= {"readQueueNums": rng.choice([4, *VALUES]), "writeQueueNums": 4, "topicSysFlag": rng.choice([0, *VALUES])}
    version = {key: rng.choice([1, 2, *VALUES]) for key in ("counter", "stateVersion", "timestamp")}
    table: Any = {"T": topic, "U": topic, "V": {"topicName": "V"}}
    if rng.random() < 0.3:
        table = rng.choice(VALUES)
    wrapper: Any = {"topicConfigTable": table, "dataVersion": version if rng.random() < 0.8 else rng.choice(VALUES)}
    if rng.random() < 0.2:
        wrapper = rng.choice(VALUES)
    text = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": rng.choice([[], *VALUES])}).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        mixed = text[:at] + rng.randbytes(3) + text[at:]
        text = rng.choice([b"", text[:at], mixed, b'{"a":' * 3000, b"\x78\x9c" + text])
    return text


async def ask(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], code: int, ext: Any, data: bytes) -> Any:
    """One request by hand; its reply's header."""
    reader, writer = stream
    fields = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": ext}
    header = json.dumps(fields).encode()
    writer.write(struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data)
    frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[NameServer, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    settings = Settings(port=0, scan_s=0.1)
    settings.take({"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"})
    server = NameServer(settings=settings)
    await server.start()
    try:
        async with stage_link(server) as stream:
            yield server, stream
    finally:
        await server.close()


@asynccontextmanager
async def stage_link(server: NameServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*server.address.split(":"))
    try:
        yield reader, writer
    finally:
        writer.close()


def test_only_the_connection_of_a_silent_broker_is_closed() -> None:
    async def main() -> None:
        async with stage() as (server, shared), stage_link(server) as alone:
            for stream, name in ((alone, "a"), (shared, "b"), (shared, "c")):
                ext = GOOD | {"brokerName": name, "brokerAddr": f"127.0.0.1:{ord(name)}"}
                ext |= {"heartbeatTimeoutMillis": "1" if name != "c" else "600000"}
                assert (await ask(stream, 103, ext, b""))["code"] == 0
            assert await alone[0].read() == b""
            await until(lambda: server.registry.clusters().cluster_addr_table == {"c": ["c"]})
            assert (await ask(shared, 105, {"topic": "T"}, b""))["code"] == 17

    run(main())


def test_a_connection_may_be_idle_as_long_as_the_settings_say_now() -> None:
    async def main() -> None:
        async with stage() as (server, stream), stage_link(server) as idle:
            assert (await ask(stream, 318, {}, b"serverChannelMaxIdleTimeSeconds=1"))["code"] == 0
            assert await idle[0].read() == b""
            await until(lambda: not server._server.peers)

    run(main())


def test_no_routes_are_given_until_brokers_had_time_to_come() -> None:
    async def main() -> None:
        async with stage() as (_, stream):
            assert (await ask(stream, 318, {}, b"needWaitForService=true"))["code"] == 0
            reply = await ask(stream, 105, {"topic": "T"}, b"")
            assert (reply["code"], reply["remark"]) == (1, "name server not ready")
            assert (await ask(stream, 318, {}, b"waitSecondsForService=0"))["code"] == 0
            assert (await ask(stream, 105, {"topic": "T"}, b""))["code"] == 17

    run(main())


def test_a_slave_hears_that_its_master_left_and_stands_in() -> None:
    async def main() -> None:
        heard: list[Any] = []
        routes = Routes()
        routes.add(905, lambda peer, request, body: heard.append(request.ext), MinBrokerIdHeader)
        slave = Server(routes)
        await slave.start("127.0.0.1", 0)
        data = json.dumps(
            {"topicConfigSerializeWrapper": {"topicConfigTable": {t: {"topicName": t} for t in ("T", "U")}}}
        ).encode()
        async with stage() as (server, stream), stage_link(server) as master:
            acting = GOOD | {"enableActingMaster": "true"}
            for link, broker_id, address in ((master, "0", "127.0.0.1:1"), (stream, "1", slave.address)):
                ext = acting | {"brokerId": broker_id, "brokerAddr": address}
                assert (await ask(link, 103, ext, data))["code"] == 0
            master[1].close()
            await until(lambda: heard)
            assert heard == [MinBrokerIdHeader(broker_id=1, address=slave.address, offline_address="127.0.0.1:1")]
            found = server.registry.route("T")
            assert found is not None
            assert (found[0][0].broker_addrs, found[1][0].perm) == ({0: slave.address}, 4)
        await slave.close()

    run(main())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_registers_is_taken_or_refused(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rng = random.Random(seed)
    codes: dict[int, int] = {}

    async def main() -> None:
        async with stage() as (server, stream):
            for _ in range(700):
                ext: dict[str, Any] = GOOD | {"enableActingMaster": "true"}
                for field in rng.sample(sorted(FIELDS), rng.randrange(4)):
                    ext[field] = rng.choice(FIELDS[field])
                reply = await ask(stream, rng.choice([103, 103, 103, 104, 322, 904, 901]), ext, body(rng))
                codes[reply["code"]] = codes.get(reply["code"], 0) + 1
                assert len(reply.get("remark") or "") < 600
                assert (reply.get("remark") or "").isprintable()
                route = await ask(stream, 105, {"topic": "T"}, b"")
                assert route["code"] in (0, 17)
            good = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {}}}).encode()
            ext = GOOD | {"brokerName": "good", "brokerAddr": "127.0.0.1:3", "brokerId": "0"}
            assert (await ask(stream, 103, ext, good))["code"] == 0
            found = server.registry.members("good")
            assert found is not None
            assert found.broker_addrs == {0: "127.0.0.1:3"}

    run(main())
    assert codes.keys() <= {0, 1, 29}
    assert min(codes.values()) >= 10
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR or "\n" in r.getMessage()] == []


def test_a_name_takes_so_many_brokers_and_its_changes_stay_bounded() -> None:
    async def main() -> None:
        async with stage() as (server, stream):
            for number in range(REPLICAS_MAX + 1):
                ext = GOOD | {"brokerAddr": f"127.0.0.1:{70_000 + number}", "brokerId": str(REPLICAS_MAX + 1 - number)}
                reply = await ask(stream, 103, ext, b"")
                assert reply["code"] == (0 if number < REPLICAS_MAX else 29)
            assert "500 brokers are registered under this name" in reply["remark"]
            assert len(server._notices._told) <= REPLICAS_MAX
            stream[1].close()
            await until(lambda: server.registry.members("a") is None)

    run(main())
