"""Raw pulls of PULL_MESSAGE over one connection, several in flight, 32 messages each, as the Java client asks.

Frames are encoded before the clock starts; replies are only counted, by their lengths. Run (after bench.fill):
    python -m bench.raw_pull 127.0.0.1:10911 --topic bench-filled --window 16 --seconds 3
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.fill import fill, queue_counts
from bench.floor import floor
from bench.load import Load, connect
from bench.measure import compare, figure
from bench.peers import Servers, both, cpu_seconds, end_rows, ours
from bench.plan import Plan
from bench.report import Figure, Row, progress, rates_row, show
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import record, sysflags
from rocketspark.transport.request_frames import request

TOPIC = "bench-pull"
QUEUES = 8
PULL_COUNT = 32
WINDOWS = (1, 8, 64)
PULLS_MAX = 2_000_000


def frames(topic: str, counts: Sequence[int], pull_count: int = PULL_COUNT, *, first: int = 0) -> list[bytes]:
    """One pull for every `pull_count` messages of each queue from `first` to its count, the queues in turn."""
    made: list[bytes] = []
    for offset in range(first, max(counts) - pull_count + 1, pull_count):
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


def run_one(address: str, made: list[bytes], *, window: int, seconds: float, pulls_max: int = PULLS_MAX) -> Load:
    """Pull for about `seconds`, again from the start at the end; the load's `count` is of messages.

    Raises ConnectionError if a pull finds nothing.
    """
    with connect(address) as s:
        record_bytes = 0
        buffer = bytearray(4 << 20)
        view = memoryview(buffer)
        filled = 0
        at = body_bytes = pulls = in_flight = 0
        stopping = False
        cpu_started = time.thread_time()
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
            if not stopping and (time.perf_counter() >= deadline or pulls >= pulls_max):
                stopping = True
            if stopping and not in_flight:
                messages, rest = divmod(body_bytes, record_bytes)
                if rest:
                    raise ConnectionError(f"{address} sent {body_bytes} bytes, no multiple of {record_bytes}")
                return Load(messages, 0, time.perf_counter() - started, time.thread_time() - cpu_started)


def pull_all(servers: Servers, topic: str, counts: Sequence[int], *, connections: int, window: int = 32) -> Figure:
    """A bare loop of pulls over each message once: the queues in turn on one connection, or shared among several."""
    shares = [
        frames(topic, [count if i % connections == share else 0 for i, count in enumerate(counts)])
        for share in range(connections)
    ]
    used, started = cpu_seconds(servers.pid), time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        found = list(
            threads.map(
                lambda made: run_one(servers.broker, made, window=window, seconds=600, pulls_max=len(made)), shares
            )
        )
    seconds, tool = time.perf_counter() - started, sum(load.tool_cpu_s for load in found)
    return Figure(sum(load.done for load in found), seconds, cpu_seconds(servers.pid) - used + tool, tool)


def run(plan: Plan) -> list[Row]:
    """One row per window: messages per second, ours first."""
    seconds = plan.of(1.5, 0.5, 0.05)
    count = plan.of(1_000_000, 100_000, 8000)
    windows = plan.of(WINDOWS, WINDOWS, (8,))
    made = frames(TOPIC, queue_counts(count, QUEUES))

    def pull(servers: Servers, window: int) -> Load:
        return run_one(servers.broker, made, window=window, seconds=seconds)

    rows = []
    with both(plan.alone, ours(config=plan.config)) as (mine, java):
        for servers in (java, mine):
            if servers:
                progress(f"filling with {count:,} messages")
                fill(servers.broker, TOPIC, count, queues=QUEUES)
                run_one(servers.broker, made, window=8, seconds=plan.of(3.0, 2.0, 0.05))
        rows += floor_rows(mine, made, windows, seconds)
        show(rows)
        for window in windows:
            name = f"pull, {window} in flight, {PULL_COUNT} of 128 B each"
            rows.append(compare(name, "msg/s", plan.rounds(), mine, java, partial(pull, window=window)))
            show(rows[-1:], heading=False)
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends


def floor_rows(servers: Servers, made: list[bytes], windows: Sequence[int], seconds: float) -> list[Row]:
    """The same load on a server that only answers, with a reply of the broker's."""
    with connect(servers.broker) as s, s.makefile("rb") as replies:
        s.sendall(made[0])
        size = replies.read(4)
        reply = size + replies.read(int.from_bytes(size, "big"))
    rows = []
    with floor(reply) as nothing:
        for window in windows:

            def pull(servers: Servers, window: int = window) -> Load:
                return run_one(servers.broker, made, window=window, seconds=seconds)

            pairs: list[tuple[Figure, Figure | None]] = [(figure(nothing, pull), None)]
            rows.append(rates_row(f"the tool alone, {window} in flight", "msg/s", pairs))
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
    tool = f"tool {rate.tool_cpu_s / rate.seconds:.2f} CPU s/s"
    print(f"{rate.per_second:,.0f} msg/s ({rate.done} messages in {rate.seconds:.2f} s, {a.window} in flight, {tool})")


if __name__ == "__main__":
    main()
