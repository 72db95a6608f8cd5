"""Fills a topic with messages of one size, by batches over one connection, and tells how it lies on its queues.

Run: python -m bench.fill 127.0.0.1:10911 --topic T --count 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import time
from collections.abc import Callable

import msgspec

from rocketspark.client.connection import admin_api
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import batch
from rocketspark.transport.connections import dial, parse_address
from rocketspark.transport.request_frames import request

BATCH_COUNT = 500
IN_FLIGHT = 4
BUSY_PAUSE_S = 0.2


def create_topic(broker: str, topic: str, queues: int, attributes: str = "") -> None:
    """Create the topic on the broker, or give it so many queues. `attributes`: "+name=value"."""

    async def create() -> None:
        peer = await dial(broker)
        await admin_api.create_topic(
            peer,
            TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues),
            attributes=attributes,
            timeout_ms=10_000,
        )
        peer.close()

    asyncio.run(create())


def fill(
    broker: str,
    topic: str,
    count: int,
    *,
    queues: int,
    body_bytes: int = 128,
    body_of: Callable[[int], bytes] | None = None,
    properties_of: Callable[[int], str] | None = None,
    attributes: str = "",
) -> float:
    """Create the topic and send `count` messages, the batches to each queue in turn; seconds it took.

    `body_of`: the body of each by its number; else all have the same of `body_bytes`. `properties_of`: properties of
    each beside its unique key, as they are stored. `attributes`: of the topic. Raises ConnectionError if the broker
    refuses one.
    """
    create_topic(broker, topic, queues, attributes)
    prefix = secrets.token_hex(12).upper()
    same = b"x" * body_bytes
    body_of = body_of or (lambda number: same)
    properties_of = properties_of or (lambda number: "")
    started = time.perf_counter()
    with socket.create_connection(parse_address(broker), 10) as s:
        s.settimeout(30)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with s.makefile("rb") as replies:
            sent: dict[int, bytes] = {}

            def take() -> None:
                reply = replies.read(int.from_bytes(replies.read(4), "big"))
                header = msgspec.json.decode(reply[4 : 4 + int.from_bytes(reply[1:4], "big")])
                frame = sent.pop(header["opaque"])
                if header["code"] == ResponseCode.SYSTEM_BUSY:
                    # The Java broker refuses what waited 200 ms for its turn.
                    time.sleep(BUSY_PAUSE_S)
                    sent[header["opaque"]] = frame
                    s.sendall(frame)
                elif header["code"]:
                    raise ConnectionError(f"{broker} refused: code {header['code']}, {header.get('remark')}")

            for number, first in enumerate(range(0, count, BATCH_COUNT)):
                items = [
                    batch.BatchItem(
                        0, body_of(i), f"UNIQ_KEY\x01{prefix}{i:08X}\x02WAIT\x01true\x02{properties_of(i)}".encode()
                    )
                    for i in range(first, min(first + BATCH_COUNT, count))
                ]
                header = SendHeader(
                    producer_group="bench",
                    topic=topic,
                    queue_id=number % queues,
                    sys_flag=0,
                    born_time_ms=int(time.time() * 1000),
                    flag=0,
                    properties=f"UNIQ_KEY\x01{prefix}{number + count:08X}\x02WAIT\x01true\x02",
                    batch=True,
                )
                frame = request(RequestCode.SEND_BATCH_MESSAGE, header, batch.encode(items), opaque=number)
                sent[number] = frame
                s.sendall(frame)
                while len(sent) >= IN_FLIGHT:
                    take()
            while sent:
                take()
    return time.perf_counter() - started


def queue_counts(count: int, queues: int) -> list[int]:
    """How many messages `fill` put on each queue of a topic that was empty."""
    counts = [0] * queues
    for number, first in enumerate(range(0, count, BATCH_COUNT)):
        counts[number % queues] += min(BATCH_COUNT, count - first)
    return counts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--topic", default="bench-filled")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--body-bytes", type=int, default=128)
    a = parser.parse_args()
    seconds = fill(a.address, a.topic, a.count, queues=a.queues, body_bytes=a.body_bytes)
    print(f"{a.count} messages in {seconds:.2f} s, {a.count / seconds:,.0f} msg/s")


if __name__ == "__main__":
    main()
