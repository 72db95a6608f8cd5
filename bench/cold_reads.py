"""What a fresh reader waits for a message while a group catches up from the disk, with flow control of cold reads and
without.

Run: python -m bench.cold_reads --count 10000000 (13 GB on the disk of TMPDIR; 1 M messages are 1.3 GB)

The log is written once; before each stretch the broker is started anew and the kernel forgets the log's pages. In each
a message is sent every 5 ms, with the time at which it was to be sent, to a reader whose pull is held; a latency is
from that time until the reader has it. The catch-up pulls from the first message on, 16 pulls in flight.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import struct
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench import raw_send
from bench.fill import create_topic, fill, queue_counts
from bench.load import connect
from bench.peers import Config, cpu_seconds, ours
from bench.raw_pull import frames, run_one
from bench.report import percentile, progress
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import record, sysflags
from rocketspark.transport.request_frames import request

COUNT, BODY_BYTES, QUEUES = 1_000_000, 1024, 8
OLD, FRESH, GROUP = "bench-old", "bench-fresh", "bench-fresh-reader"
WINDOW = 16
SEND_EVERY_S = 0.005
SECONDS = 12.0
SETTLE_S = 1.0
HOLD_MS = 10_000
SPAWN = multiprocessing.get_context("spawn")
# Of memory: what lies farther back than this counts as cold. RocketMQ's 26 % of a large machine would be no cold read.
HOT_PERCENT = 1
UNLIMITED: Config = {"accessMessageInMemoryHotRatio": HOT_PERCENT, "coldDataFlowControlEnable": "false"}
LIMITED: Config = {"accessMessageInMemoryHotRatio": HOT_PERCENT, "coldDataFlowControlEnable": "true"}
ADAPTING: Config = {**LIMITED, "coldCtrStrategyEnable": "true", "usePIDColdCtrStrategy": "false"}


class Stretch(NamedTuple):
    """One stretch: latencies of the fresh reader in ms, messages and MB that the catch-up read, in seconds, and the
    broker's processor seconds.
    """

    name: str
    latencies_ms: list[float]
    read: int
    seconds: float
    cpu_s: float


def fresh(address: str, seconds: float, pipe: Connection) -> None:
    """Send and read beside each other; hand over the latencies in seconds."""
    found: list[float] = []
    ended = threading.Event()

    def read() -> None:
        with connect(address) as link:
            offset = _end(link)
            pipe.send(None)
            while not ended.is_set():
                body, offset = _pull(link, offset)
                now = time.perf_counter()
                for kept in record.decode_all(body):
                    found.append(now - struct.unpack("d", kept.body[:8])[0])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with connect(address) as link:
        began = time.perf_counter() + SETTLE_S
        for number in range(int(seconds / SEND_EVERY_S)):
            due = began + number * SEND_EVERY_S
            time.sleep(max(due - time.perf_counter(), 0))
            link.sendall(raw_send.frame(FRESH, 0, struct.pack("d", due) + bytes(120), f"{number:032X}", number))
            _answer(link)
        time.sleep(SETTLE_S)
        ended.set()
    pipe.send(found)


def _answer(link: socket.socket) -> bytes:
    """The body of the next answer."""
    found = bytearray()
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        data = link.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        found += data
    return bytes(found[8 + int.from_bytes(found[5:8], "big") :])


def _pull(link: socket.socket, offset: int) -> tuple[bytes, int]:
    """Pull from an offset, held until there is something: the records, and the offset after them."""
    header = PullHeader(
        group=GROUP,
        topic=FRESH,
        queue_id=0,
        queue_offset=offset,
        count_max=32,
        sys_flag=sysflags.PULL_SUBSCRIPTION | sysflags.PULL_SUSPEND,
        commit_offset=0,
        suspend_ms=HOLD_MS,
        subscription="*",
        subscription_version=0,
        expression_type="TAG",
        broker_name="broker-a",
    )
    link.sendall(request(RequestCode.PULL_MESSAGE, header, opaque=1, language="JAVA"))
    body = _answer(link)
    return body, offset + sum(1 for _ in record.decode_all(body))


def _end(link: socket.socket) -> int:
    """The offset after the newest fresh message, found by reading."""
    offset = 0
    link.sendall(request(RequestCode.GET_MAX_OFFSET, {"topic": FRESH, "queueId": "0"}, opaque=1, language="JAVA"))
    found = bytearray()
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        found += link.recv(1 << 16)
    text = found.partition(b'"offset":"')[2].partition(b'"')[0]
    return int(text or offset)


def forget(store: Path) -> None:
    """Have the kernel forget the pages of a store's log that is not open."""
    for path in (store / "commitlog").iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def stretch(name: str, store: Path, config: Config, pulls: list[bytes], seconds: float) -> Stretch:
    """One stretch on a broker started for it; `pulls`: of the catch-up, none for a quiet broker."""
    progress(name)
    forget(store)
    with ours(store=store, config=config) as servers:
        create_topic(servers.broker, FRESH, 1)
        near, far = SPAWN.Pipe()
        process = SPAWN.Process(target=fresh, args=(servers.broker, seconds, far), daemon=True)
        process.start()
        try:
            near.recv()
            cpu_s = cpu_seconds(servers.pid)
            time.sleep(SETTLE_S)
            began = time.perf_counter()
            read = run_one(servers.broker, pulls, window=WINDOW, seconds=seconds).done if pulls else 0
            took = time.perf_counter() - began
            cpu_s = cpu_seconds(servers.pid) - cpu_s
            latencies: list[float] = near.recv()
        finally:
            process.join(5)
            process.kill()
            process.join()
    return Stretch(name, [each * 1000 for each in latencies], read, max(took, seconds), cpu_s)


def run(count: int, rounds: int, seconds: float) -> list[Stretch]:
    """Every stretch, `rounds` times in turn; each is shown as it ends."""
    found = []
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        store = Path(folder) / "store"
        progress(f"writing {count:,} messages")
        with ours(store=store) as servers:
            took = fill(servers.broker, OLD, count, queues=QUEUES, body_bytes=BODY_BYTES)
        size = sum(path.stat().st_blocks * 512 for path in (store / "commitlog").iterdir())
        print(f"{count:,} messages of {BODY_BYTES} B in {took:.0f} s, a log of {size / 1e6:,.0f} MB")
        pulls = frames(OLD, queue_counts(count, QUEUES))
        print(f"{'fresh reader beside':44} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'MB/s cold':>10} {'CPU s/s':>8}")
        for _ in range(rounds):
            for name, config, asked in (
                ("nothing", UNLIMITED, []),
                ("a catch-up, no limit", UNLIMITED, pulls),
                ("a catch-up, coldDataFlowControlEnable", LIMITED, pulls),
                ("a catch-up, and coldCtrStrategyEnable", ADAPTING, pulls),
            ):
                one = stretch(name, store, config, asked, seconds)
                found.append(one)
                waits = [percentile(one.latencies_ms, share) for share in (0.5, 0.99, 1.0)]
                rate = one.read * BODY_BYTES / one.seconds / 1e6
                print(
                    f"{name:44} {waits[0]:8.2f} {waits[1]:8.2f} {waits[2]:8.1f} {rate:10.2f}"
                    f" {one.cpu_s / one.seconds:8.2f}",
                    flush=True,
                )
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="old messages [default: 1,000,000]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each stretch")
    a = parser.parse_args()
    if not (1000 <= a.count <= 20_000_000 and 1 <= a.rounds <= 20 and 1 <= a.seconds <= 120):
        parser.error("--count is from 1,000 to 20,000,000, --rounds from 1 to 20, --seconds from 1 to 120")
    run(a.count, a.rounds, a.seconds)


if __name__ == "__main__":
    main()
