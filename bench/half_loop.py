"""A bare loop of half messages and their ends, as any client may tell them to any broker: no Spark, no manifests.

Each of two processes sends its messages, many at a time, and then ends them. Run:
    python -m bench.half_loop 127.0.0.1:10911 --topic bench-half --rows 20000
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from typing import Any

from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import EndTransactionHeader, SendHeader, SendReply
from rocketspark.protocol.message import sysflags
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer

PROCESSES = 2
HALVES_IN_FLIGHT, ENDS_IN_FLIGHT = 512, 256
GROUP = "bench-half"
TIMEOUT_MS = 60_000
BODY = b"b" * 128


async def _send(peer: Peer, topic: str, queues: int, numbers: range) -> list[tuple[int, int]]:
    """Send half messages; return the place of each. Those that the broker was too busy for are sent again."""
    places: list[tuple[int, int]] = []
    left = list(numbers)
    while left:
        asked = []
        for number in left:
            header = SendHeader(
                producer_group=GROUP,
                topic=topic,
                queue_id=number % queues,
                sys_flag=sysflags.TRANSACTION_PREPARED,
                born_time_ms=int(time.time() * 1000),
                flag=0,
                properties=f"UNIQ_KEY\x01{time.time_ns():032X}\x02WAIT\x01true\x02TRAN_MSG\x01true\x02"
                f"PGROUP\x01{GROUP}\x02",
            )
            asked.append(peer.ask(RequestCode.SEND_MESSAGE_V2, header, BODY, timeout_ms=TIMEOUT_MS))
        told = await asyncio.gather(*asked)
        for reply in told:
            if reply.code != ResponseCode.SYSTEM_BUSY:
                stored = reply.raise_for_code("half message").header(SendReply)
                places.append((stored.queue_offset, int(stored.message_id[-16:], 16)))
        left = [number for number, reply in zip(left, told, strict=True) if reply.code == ResponseCode.SYSTEM_BUSY]
    return places


async def _end(peer: Peer, topic: str, places: list[tuple[int, int]]) -> None:
    """Commit half messages; those that the broker was too busy for are told again."""
    while places:
        asked: list[Any] = [
            peer.ask(
                RequestCode.END_TRANSACTION,
                EndTransactionHeader(
                    topic=topic,
                    producer_group=GROUP,
                    half_offset=half_offset,
                    physical_offset=position,
                    outcome=sysflags.TRANSACTION_COMMIT,
                ),
                timeout_ms=TIMEOUT_MS,
            )
            for half_offset, position in places
        ]
        told = await asyncio.gather(*asked)
        for reply in told:
            if reply.code != ResponseCode.SYSTEM_BUSY:
                reply.raise_for_code("end")
        places = [place for place, reply in zip(places, told, strict=True) if reply.code == ResponseCode.SYSTEM_BUSY]


async def _run(address: str, topic: str, queues: int, rows: range) -> None:
    peer = await dial(address)
    try:
        places: list[tuple[int, int]] = []
        for at in range(rows.start, rows.stop, HALVES_IN_FLIGHT):
            places += await _send(peer, topic, queues, range(at, min(at + HALVES_IN_FLIGHT, rows.stop)))
        for at in range(0, len(places), ENDS_IN_FLIGHT):
            await _end(peer, topic, places[at : at + ENDS_IN_FLIGHT])
    finally:
        peer.close()


def _process(address: str, topic: str, queues: int, rows: range, ready: Any, go: Any) -> None:
    ready.release()
    go.wait()
    asyncio.run(_run(address, topic, queues, rows))


def half_loop(address: str, topic: str, rows: int, queues: int) -> float:
    """Send and end so many messages by two processes; return the seconds that took."""
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    share = rows // PROCESSES
    workers = [
        context.Process(
            target=_process, args=(address, topic, queues, range(i * share, (i + 1) * share), ready, go), daemon=True
        )
        for i in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    began = time.perf_counter()
    go.set()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit("the bare loop of half messages and ends failed")
    return time.perf_counter() - began


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.half_loop", description="Half messages and ends, bare.")
    parser.add_argument("address")
    parser.add_argument("--topic", default="bench-half")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--queues", type=int, default=4)
    a = parser.parse_args()
    took_s = half_loop(a.address, a.topic, a.rows, a.queues)
    print(f"{a.rows / took_s:,.0f} half messages sent and ended a second")


if __name__ == "__main__":
    main()
