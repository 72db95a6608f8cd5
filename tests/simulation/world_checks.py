"""Scenarios that hold the world itself to what it says; run by test_world.py."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from tests.simulation.world import Node, NodeDied, World

from rocketspark.store.files.system_calls import OsFiles

PORT = 5000


class Ear(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.lost: list[Exception | None] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


async def listen(node: Node, ears: list[Ear]) -> None:
    def heard() -> Ear:
        ears.append(Ear())
        return ears[-1]

    await asyncio.get_running_loop().create_server(heard, node.ip, PORT)
    await asyncio.sleep(1000)


async def disks(world: World) -> None:
    """What was synced is there after a power cut; of the rest each sector, and each name, may be."""
    seen: set[str] = set()
    for number in range(40):
        node = world.node(f"n{number}")

        async def write(node: Node) -> None:
            files, root = OsFiles(), str(node.disk.root)
            files.create(f"{root}/a", 8192)
            mapped = files.map(f"{root}/a")
            mapped[:4096] = b"s" * 4096
            files.sync_map(mapped, 0, 4096)
            files.sync_directory(root)
            mapped[1024:3072] = b"u" * 2048
            mapped[4096:8192] = b"v" * 4096
            files.write_file(f"{root}/b", b"unnamed")

        await node.run(write)
        node.power_loss()
        a = (node.disk.root / "a").read_bytes()
        assert a[:1024] == b"s" * 1024
        assert a[3072:4096] == b"s" * 1024
        for at in range(1024, 3072, 512):
            assert a[at : at + 512] in (b"s" * 512, b"u" * 512)
        for at in range(4096, len(a), 512):
            assert a[at : at + 512] in (bytes(512), b"v" * 512)
        b = node.disk.root / "b"
        assert not b.exists() or b.read_bytes() == b"unnamed"
        seen |= {f"b {b.exists()}", f"size {len(a)}", f"u {a.count(b'u') // 512}"}
    assert {"b True", "b False", "u 0", "u 4"} <= seen, seen
    assert len(seen) > 6, seen


async def network(world: World) -> None:
    """Bytes keep their order through cuts; who dies is noticed, unless its machine did."""
    a, b, ears = world.node("a"), world.node("b"), list[Ear]()
    server = b.start(lambda node: listen(node, ears))
    said, own = b"".join(b"%d " % n for n in range(500)), Ear()

    async def say(node: Node) -> None:
        await asyncio.get_running_loop().create_connection(lambda: own, b.ip, PORT)
        for at in range(0, len(said), 7):
            own.transport.write(said[at : at + 7])
            await asyncio.sleep(0.01)
        await asyncio.sleep(1000)

    a.start(say)
    await asyncio.sleep(1)
    before = len(ears[0].heard)
    assert before > 0
    world.network.cut(a, b)
    await asyncio.sleep(1)
    assert len(ears[0].heard) - before < 20
    world.network.heal()
    await asyncio.sleep(5)
    assert ears[0].heard == said
    server.end(silent=False)
    await asyncio.sleep(1)
    assert isinstance(own.lost[0], ConnectionResetError)
    # A machine that is gone without a word: half of the connection stays, until it is back and knows nothing of it.
    b.start(lambda node: listen(node, ears))
    own.lost.clear()

    async def wait(node: Node) -> None:
        await asyncio.get_running_loop().create_connection(lambda: own, b.ip, PORT)
        own.transport.write(b"x")
        await asyncio.sleep(10)
        own.transport.write(b"y")
        await asyncio.sleep(10)
        assert own.lost == []
        b.boot()
        own.transport.write(b"z")
        await asyncio.sleep(1)
        assert isinstance(own.lost[0], ConnectionResetError)
        try:
            await asyncio.get_running_loop().create_connection(Ear, b.ip, PORT)
        except ConnectionRefusedError:
            return
        raise AssertionError("nobody listens there")

    world.at(world.now_s + 5, b.power_loss)
    await a.run(wait)


async def processes(world: World) -> None:
    """A halted process finds its packets when it goes on; one dies at the call it is told to; clocks are its own."""
    a, ears = world.node("a"), list[Ear]()
    a.start(lambda node: listen(node, ears))
    await asyncio.sleep(0.1)
    own = Ear()
    await asyncio.get_running_loop().create_connection(lambda: own, a.ip, PORT)
    await asyncio.sleep(0.1)
    a.halt()
    own.transport.write(b"late")
    await asyncio.sleep(5)
    assert ears[0].heard == b""
    a.go_on()
    await asyncio.sleep(0.1)
    assert ears[0].heard == b"late"

    done: list[int] = []

    async def call(node: Node) -> None:
        for number in range(10):
            OsFiles().write_file(str(node.disk.root / f"{number}"), b"x")
            done.append(number)

    c = world.node("c")
    c.kill_at_call(4)
    try:
        await c.run(call)
        raise AssertionError("it lives")
    except NodeDied:
        assert done == [0, 1, 2]
    assert sorted(os.listdir(c.disk.root)) == ["0", "1", "2"]

    async def times(node: Node) -> tuple[float, float]:
        wall, steady = time.time(), time.monotonic()
        await asyncio.sleep(10)
        return time.time() - wall, time.monotonic() - steady

    d = world.node("d")
    d.clock.drift = 2.0
    world.at(world.now_s + 1, lambda: d.clock.jump(-100))
    began = world.now_s
    wall, steady = await d.run(times)
    for is_set, wanted in (False, 0), (True, 10):
        e = world.node(f"e {is_set}")
        e.clock.stand()
        stood, passed = await e.run(times)
        assert (stood, abs(passed - 10) < 0.1) == (0.0, True), (stood, passed)
        right = e.clock.steady() - e.clock.wall()
        e.clock.go_on(is_set=is_set)
        gone, _ = await e.run(times)
        assert abs(gone - 10) < 0.1, gone
        behind = right - (e.clock.steady() - e.clock.wall())
        assert abs(behind - wanted) < 0.1, (is_set, behind)
    assert abs(world.now_s - began - 45) < 0.1, world.now_s - began
    assert abs(steady - 10) < 0.1, steady
    assert abs(wall + 90) < 0.1, wall
