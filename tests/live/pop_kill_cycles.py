"""A server under pops, killed and started again: what was acknowledged stays away, what was sent comes.

Rule: an acknowledgement counts if it was answered before the message was visible again; a message that was answered to
its sender is acknowledged in the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.support import create, send_header
from tests.support.patience import LIMIT_S
from tests.support.ports import server_ports

from rocketspark.client.connection import pop_api
from rocketspark.errors import RocketSparkError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.pop import PopHeader
from rocketspark.protocol.message.record import decode_messages
from rocketspark.protocol.pop_answers import Popped, ReceiptHandle, give_handles
from rocketspark.testing import ServerProcess
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer

TOPIC, GROUP, BROKER = "flights", "crews", "broker-a"
QUEUES = 4
POPPERS = 4
INVISIBLE_MS = 1500
ANSWER_MS = 120_000
CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 20_000,
    "mappedFileSizeTimerLog": 52 * 2000,
    "flushIntervalCommitLog": 50,
    "flushConsumerOffsetInterval": 200,
    "reviveInterval": 200,
    "popFromRetryProbability": 50,
}


class PopCycles:
    """The run. `sent`: bodies that are stored; `done`: those whose acknowledgement counts."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.sent: set[bytes] = set()
        self.done: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.wrong: list[str] = []
        self.popped = 0
        self.again = 0
        self.number = 0
        self.draining = False

    async def cycle(self) -> None:
        """Load until the kill."""
        tasks = [asyncio.create_task(self._send())] + [asyncio.create_task(self._pop()) for _ in range(POPPERS)]
        done_before, end = len(self.done), time.monotonic() + LIMIT_S
        await asyncio.sleep(self.random.uniform(0.3, 1.2))
        while len(self.done) < done_before + 50:
            assert time.monotonic() < end, f"only {len(self.done)} of {len(self.sent)} were acknowledged"
            await asyncio.sleep(0.02)
        self.server.kill()
        await asyncio.gather(*tasks)

    async def drain(self) -> None:
        """Acknowledge all that is left."""
        self.draining = True
        tasks = [asyncio.create_task(self._pop()) for _ in range(POPPERS)]
        end = time.monotonic() + LIMIT_S
        while self.sent - self.done - self.tried:
            assert time.monotonic() < end, (
                f"{len(self.sent - self.done)} never came: {sorted(self.sent - self.done)[:9]}"
            )
            await asyncio.sleep(0.05)
        # What comes although it should not has time to.
        await asyncio.sleep(2 * INVISIBLE_MS / 1000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        try:
            peer = await dial(self.server.broker)
            while True:
                await asyncio.gather(*[self._send_one(peer) for _ in range(8)])
                await asyncio.sleep(0.02)
        except RocketSparkError:
            return

    async def _send_one(self, peer: Peer) -> None:
        self.number += 1
        body = b"m%d" % self.number
        header = send_header(TOPIC, self.number % QUEUES, pairs={"UNIQ_KEY": body.decode()})
        reply = await peer.request(RequestCode.SEND_MESSAGE_V2, header, body, timeout_ms=ANSWER_MS)
        if reply.code == 0:
            self.sent.add(body)

    async def _pop(self) -> None:
        try:
            peer = await dial(self.server.broker)
            while True:
                found = await self._receive(peer)
                await asyncio.gather(*[self._handle(peer, message) for message in found])
        except RocketSparkError:
            return

    async def _receive(self, peer: Peer) -> list[ReceivedMessage]:
        header = PopHeader(
            group=GROUP,
            topic=TOPIC,
            queue_id=-1,
            count_max=self.random.choice((1, 8, 32)),
            invisible_time_ms=INVISIBLE_MS,
            poll_time_ms=300,
            born_time_ms=int(time.time() * 1000),
            init_mode=0,
        )
        known = set(self.done)
        result = await pop_api.pop(peer, header, timeout_ms=ANSWER_MS)
        if result.code:
            await asyncio.sleep(0.01)
            return []
        messages = decode_messages(result.records, BROKER)
        told = result.header
        give_handles(
            messages,
            Popped(
                BROKER,
                GROUP,
                told.pop_time_ms or 0,
                told.invisible_time_ms or 0,
                told.revive_queue_id or 0,
                told.start_offsets,
                told.message_offsets,
            ),
        )
        self.popped += len(messages)
        self.again += sum(1 for message in messages if message.reconsume_times)
        self.wrong += [f"{m.body!r} came again ({m.receipt_handle})" for m in messages if m.body in known]
        return messages

    async def _handle(self, peer: Peer, message: ReceivedMessage) -> None:
        handle = ReceiptHandle.decode(message.receipt_handle or "")
        choice = 0.0 if self.draining else self.random.random()
        if choice > 0.85:
            return
        if choice > 0.7:
            handle = await pop_api.change_invisible_time(peer, GROUP, TOPIC, handle, INVISIBLE_MS, timeout_ms=ANSWER_MS)
        await asyncio.sleep(self.random.uniform(0, 0.02))
        self.tried.add(message.body)
        await pop_api.ack(peer, GROUP, TOPIC, handle, timeout_ms=ANSWER_MS)
        if time.time() * 1000 < handle.next_visible_ms:
            self.done.add(message.body)
        else:
            self.tried.discard(message.body)


def run_pop_cycles(
    root: Path, count: int, seed: int, say: Callable[[str], None] = lambda line: None, flush: str = "ASYNC_FLUSH"
) -> PopCycles:
    """Kill a server `count` times; returns the run after all its checks."""
    server = ServerProcess(root / "store", **server_ports(), config=CONFIG | {"flushDiskType": flush})
    run = PopCycles(server, seed)

    async def main() -> None:
        server.start()
        peer = await dial(server.broker)
        await create(peer, TOPIC, QUEUES)
        peer.close()
        for number in range(count):
            await run.cycle()
            began = time.monotonic()
            server.start()
            say(
                f"cycle {number}: {len(run.sent)} sent, {run.popped} popped, {run.again} again, {len(run.done)} done;"
                f" started in {time.monotonic() - began:.2f} s"
            )
            assert not run.wrong, run.wrong[:5]
        await run.drain()
        assert not run.wrong, run.wrong[:5]

    try:
        asyncio.run(main())
    finally:
        server.kill()
    return run
