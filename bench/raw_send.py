"""Raw sends of SEND_MESSAGE_V2 over one connection, a window in flight; frames are encoded before the clock starts.

Replies are only counted, by their length fields, so that the tool is never the bottleneck. Run:
    python -m bench.raw_send 127.0.0.1:10911 --window 64 --body-bytes 128 --seconds 3
"""

from __future__ import annotations

import argparse
import secrets
import socket
import time
from typing import NamedTuple

from rocketspark.protocol.headers import SendHeader
from rocketspark.transport.peer import request

FRAME_COUNT = 8192
QUEUE_COUNT = 4


class Rate(NamedTuple):
    """Messages acknowledged, seconds taken."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.count / self.seconds


def frames(topic: str, body_bytes: int) -> list[bytes]:
    """Frames as the Java client writes them, one unique id each, all of one length."""
    prefix = secrets.token_hex(12).upper()
    body = secrets.token_bytes(body_bytes)
    return [
        request(
            310,
            SendHeader(
                producer_group="bench",
                topic=topic,
                queue_id=i % QUEUE_COUNT,
                sys_flag=0,
                born_time_ms=1_700_000_000_000,
                flag=0,
                properties=f"UNIQ_KEY\x01{prefix}{i:08X}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
                broker_name="broker-a",
            ),
            body,
            opaque=100_000 + i,
            language="JAVA",
        )
        for i in range(FRAME_COUNT)
    ]


def run(address: str, topic: str, *, window: int, body_bytes: int, seconds: float) -> Rate:
    """Send for about `seconds` with `window` in flight. Raises ConnectionError if a reply is no success."""
    made = frames(topic, body_bytes)
    length = len(made[0])
    assert all(len(f) == length for f in made)
    stream = b"".join(made)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = 0
        rest = b""
        sent = done = busy = 0
        free = window
        started = time.perf_counter()
        deadline = started + seconds
        stopping = False
        while True:
            while free and not stopping:
                count = min(free, FRAME_COUNT - at)
                s.sendall(stream[at * length : (at + count) * length])
                at = (at + count) % FRAME_COUNT
                free -= count
                sent += count
            data = s.recv(1 << 18)
            if not data:
                raise ConnectionError(f"{address} closed the connection after {done} replies")
            if rest:
                data = rest + data
            position, size = 0, len(data)
            while size - position >= 16:
                end = position + 4 + int.from_bytes(data[position : position + 4], "big")
                if end > size:
                    break
                head = data[position + 8 : position + 18]
                if head == b'{"code":0,':
                    done += 1
                elif head == b'{"code":2,':
                    # Busy: an overloaded Java broker gives some up unstored; they do not count.
                    busy += 1
                else:
                    raise ConnectionError(f"{address} refused: {data[position + 8 : end].decode(errors='replace')}")
                position = end
                free += 1
            rest = data[position:]
            if not stopping and time.perf_counter() >= deadline:
                stopping = True
            if stopping and done + busy == sent:
                return Rate(done, time.perf_counter() - started)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--topic", default="BenchmarkTest")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3)
    a = parser.parse_args()
    rate = run(a.address, a.topic, window=a.window, body_bytes=a.body_bytes, seconds=a.seconds)
    print(f"{rate.per_second:,.0f} msg/s ({rate.count} in {rate.seconds:.2f} s)")


if __name__ == "__main__":
    main()
