"""Raw pulls of PULL_MESSAGE over one connection, several in flight, 32 messages each, as the Java client asks.

Frames are encoded before the clock starts; replies are only counted, by their lengths. Run (after bench.fill):
    python -m bench.raw_pull 127.0.0.1:10911 --topic bench-filled --window 16 --seconds 3
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from typing import NamedTuple

from bench.fill import fill, queue_counts
from bench.peers import Servers, apache, ours
from bench.report import Row, show
from rocketspark.protocol import record, sysflags
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.transport.dial import parse_address
from rocketspark.transport.peer import request

TOPIC = "bench-pull"
COUNT = 200_000
QUEUES = 8
PULL_COUNT = 32
WINDOWS = (1, 8, 64)
WARM_UP_S = 3.0


class Rate(NamedTuple):
    """Messages and pulls answered, seconds taken."""

    messages: int
    pulls: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


def frames(topic: str, counts: list[int], pull_count: int = PULL_COUNT) -> list[bytes]:
    """One pull for every `pull_count` messages of each queue, the queues in turn."""
    made: list[bytes] = []
    for offset in range(0, max(counts) - pull_count + 1, pull_count):
        for queue_id, count in enumerate(counts):
            if offset + pull_count > count:
                continue
            header = PullHeader(
                group="bench-pull",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                count_max=pull_count,
                sys_flag=sysflags.PULL_SUBSCRIPTION,
                commit_offset=0,
                suspend_ms=0,
                subscription="*",
                subscription_version=0,
                expression_type="TAG",
                broker_name="broker-a",
            )
            made.append(request(RequestCode.PULL_MESSAGE, header, opaque=len(made), language="JAVA"))
    return made


def run_one(address: str, made: list[bytes], *, window: int, seconds: float) -> Rate:
    """Pull for about `seconds`, again from the start at the end. Raises ConnectionError if a pull finds nothing."""
    with socket.create_connection(parse_address(address), 10) as s:
        s.settimeout(30)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        record_bytes = 0
        buffer = bytearray(4 << 20)
        view = memoryview(buffer)
        filled = 0
        at = body_bytes = pulls = in_flight = 0
        stopping = False
        started = time.perf_counter()
        deadline = started + seconds
        while True:
            if not stopping and in_flight < window:
                count = window - in_flight
                s.sendall(b"".join(made[(at + i) % len(made)] for i in range(count)))
                at = (at + count) % len(made)
                in_flight += count
            got = s.recv_into(view[filled:])
            if not got:
                raise ConnectionError(f"{address} closed the connection after {pulls} replies")
            filled += got
            position = 0
            while filled - position >= 8:
                size = int.from_bytes(view[position : position + 4], "big")
                if filled - position < 4 + size:
                    break
                header_bytes = int.from_bytes(view[position + 4 : position + 8], "big") & 0xFFFFFF
                body_at = position + 8 + header_bytes
                if buffer[position + 8 : position + 18] != b'{"code":0,':
                    raise ConnectionError(f"{address} refused: {bytes(view[position + 8 : body_at])!r}")
                if not record_bytes:
                    # All records are of one size: only lengths need be looked at.
                    first = record.decode_messages(view[body_at : position + 4 + size])
                    record_bytes = first[0].stored_bytes
                    assert all(m.stored_bytes == record_bytes for m in first)
                body_bytes += size - 4 - header_bytes
                position += 4 + size
                pulls += 1
                in_flight -= 1
            if position:
                # What is left is less than one reply.
                buffer[: filled - position] = buffer[position:filled]
                filled -= position
            if not stopping and time.perf_counter() >= deadline:
                stopping = True
            if stopping and not in_flight:
                messages, rest = divmod(body_bytes, record_bytes)
                if rest:
                    raise ConnectionError(f"{address} sent {body_bytes} bytes, no multiple of {record_bytes}")
                return Rate(messages, pulls, time.perf_counter() - started)


def run(runs: int = 3, seconds: float = 2.0) -> list[Row]:
    """One row per window: messages per second, ours first."""
    rows = []
    made = frames(TOPIC, queue_counts(COUNT, QUEUES))
    with ours() as mine, apache() as java:
        for servers in (java, mine):
            fill(servers.broker, TOPIC, COUNT, queues=QUEUES)
            run_one(servers.broker, made, window=8, seconds=WARM_UP_S)

        def rate(servers: Servers, window: int) -> float:
            return run_one(servers.broker, made, window=window, seconds=seconds).per_second

        for window in WINDOWS:
            pairs = [(rate(mine, window), rate(java, window)) for _ in range(runs)]
            rows.append(
                Row(
                    f"pull, {window} in flight, {PULL_COUNT} of 128 B each",
                    statistics.median(p[0] for p in pairs),
                    statistics.median(p[1] for p in pairs),
                    "msg/s",
                    statistics.median(p[0] / p[1] for p in pairs),
                )
            )
            show([rows[-1]], heading=len(rows) == 1)
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--topic", default="bench-filled", help="a topic that bench.fill filled")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many messages it has")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--pull-count", type=int, default=PULL_COUNT)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3)
    a = parser.parse_args()
    made = frames(a.topic, queue_counts(a.count, a.queues), a.pull_count)
    rate = run_one(a.address, made, window=a.window, seconds=a.seconds)
    print(
        f"{rate.per_second:,.0f} msg/s, {rate.pulls / rate.seconds:,.0f} pulls/s"
        f" ({rate.messages} messages in {rate.seconds:.2f} s, {a.window} in flight)"
    )


if __name__ == "__main__":
    main()
