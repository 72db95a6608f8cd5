"""What docs/run/sizing.md is made of: disk, memory and processor time of one broker, by messages, queues, connections.

`python -m bench.sizing` prints one line a figure; a server of its own for each part, and no other load on the machine.
"""

from __future__ import annotations

import argparse
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import cpu_seconds, rss_anon_mib
from rocketspark import Message, Producer, PullConsumer
from rocketspark.admin import Admin
from rocketspark.testing.process import ServerProcess

BODIES = (100, 1_000, 10_000)


@contextmanager
def server(**config: object) -> Iterator[ServerProcess]:
    """Run a server with a store of its own, removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        process = ServerProcess(Path(folder) / "store", config=config)
        process.start()
        try:
            yield process
        finally:
            process.stop()


def say(what: str, value: float, unit: str) -> None:
    """Print one figure."""
    print(f"{what:60} {value:>12,.1f} {unit}", flush=True)


def log_bytes(namesrv: str) -> int:
    """How long the broker's log is."""
    with Admin(namesrv) as admin:
        return int(admin.broker_states()[0].log_end or 0)


def disk(count: int) -> None:
    """Bytes of a message in the log by size of its body, with and without a key."""
    with server() as running, Producer(running.namesrv, "sizing") as producer:
        for key in ("", "order-1234567"):
            for size in BODIES:
                before = log_bytes(running.namesrv)
                for _ in range(count):
                    producer.send(f"t{size}", random.Random(1).randbytes(size), tag="paid", keys=[key] if key else [])
                each = (log_bytes(running.namesrv) - before) / count
                say(f"log, body {size:,} bytes, a tag{', a key' if key else ''}", each, "bytes a message")


def memory(topics: int, connections: int) -> None:
    """Private memory by queues with messages and by connections; what the kernel counts of mapped files; the stop."""
    with server() as running:
        empty = rss_anon_mib(running.pid)
        say("memory, nothing stored (NameServer and broker)", empty, "MiB")
        with Admin(running.namesrv) as admin, Producer(running.namesrv, "sizing") as producer:
            maps, files = map_count(running.pid), descriptors(running.pid)
            for number in range(topics):
                admin.create_topic(f"t{number}", queue_count=8)
                for _ in range(8):
                    producer.send(f"t{number}", b"x")
            full = rss_anon_mib(running.pid)
        say(
            f"memory, {topics:,} topics of 8 queues with a message each",
            (full - empty) * 1024 / topics / 8,
            "KiB a queue",
        )
        say("mapped files (vm.max_map_count)", (map_count(running.pid) - maps) / topics / 8, "a queue")
        say(
            "blocks on the disk, consume queues",
            blocks(running.store / "consumequeue") / topics / 8 / 1024,
            "KiB a queue",
        )
        for part in ("commitlog", "index"):
            say(f"blocks on the disk, {part}, a few messages in it", blocks(running.store / part) / (1 << 20), "MiB")
        say("descriptors (nofile)", (descriptors(running.pid) - files) / topics / 8, "a queue")
        host, _, port = running.broker.rpartition(":")
        held = [socket.create_connection((host, int(port))) for _ in range(connections)]
        time.sleep(2)
        say(f"memory, {connections:,} connections", (rss_anon_mib(running.pid) - full) * 1024 / connections, "KiB each")
        for connection in held:
            connection.close()
        began = time.monotonic()
        running.stop()
        say(f"stop by SIGTERM, {topics * 8:,} queues", (time.monotonic() - began) * 1000, "ms")
        began = time.monotonic()
        running.start()
        say("start on that store", (time.monotonic() - began) * 1000, "ms")


def processor(count: int) -> None:
    """The broker's processor time for a message: sent one by one, in batches, pulled."""
    with server() as running, Producer(running.namesrv, "sizing", retries=0) as producer:
        for size in BODIES:
            many = count if size < 10_000 else count // 4
            topic, body = f"t{size}", random.Random(1).randbytes(size)
            producer.send(topic, body)
            for name in ("one by one, 64 at a time", "in batches (linger_ms=5)"):
                with Producer(running.namesrv, "of-it", linger_ms=5 if "linger" in name else None) as sender:
                    began, used = time.monotonic(), cpu_seconds(running.pid)
                    waiting = []
                    for _ in range(many):
                        waiting.append(sender.send_future(Message(topic, body)))
                        if "64" in name and len(waiting) == 64:
                            waiting.pop(0).result()
                    for each in waiting:
                        each.result()
                    used, taken = cpu_seconds(running.pid) - used, time.monotonic() - began
                say(f"processor, body {size:,}, sent {name}", used / many * 1e6, f"us a message, {many / taken:,.0f}/s")
            with PullConsumer(running.namesrv, f"g{size}", consume_from="first") as consumer:
                consumer.subscribe(topic)
                consumer.poll()
                began, used, read = time.monotonic(), cpu_seconds(running.pid), 0
                while read < many:
                    read += len(consumer.poll(timeout_ms=5_000))
                used, taken = cpu_seconds(running.pid) - used, time.monotonic() - began
            say(f"processor, body {size:,}, pulled", used / read * 1e6, f"us a message, {read / taken:,.0f}/s")


def map_count(pid: int) -> int:
    """How many mappings a process has, which vm.max_map_count bounds."""
    return len(Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines())


def blocks(folder: Path) -> int:
    """How many bytes of the disk the files below a folder take, holes left out."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def descriptors(pid: int) -> int:
    """How many descriptors a process has open, which nofile bounds."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main() -> None:
    """Measure all, or less of all with --quick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    disk(100 if quick else 2_000)
    memory(50 if quick else 1_000, 100 if quick else 1_000)
    processor(2_000 if quick else 100_000)


if __name__ == "__main__":
    main()
