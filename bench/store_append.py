"""What the store costs without a server: us per append and per message read, one thread.

python -m bench.store_append [--count N] [--body BYTES] [--keys] [--tags] [--queues N] [--no-index] [--populate]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time

from rocketspark.model.text import string_hash
from rocketspark.store import GetStatus, Store, StoreSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400_000)
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--keys", action="store_true", help="each message has a key of its own")
    parser.add_argument("--tags", action="store_true", help="each message has a tag")
    parser.add_argument("--no-index", action="store_true")
    parser.add_argument("--populate", action="store_true", help="a thread prepares pages ahead")
    parser.add_argument("--root", help="directory for the store (default: a temporary one)")
    options = parser.parse_args()
    root = tempfile.mkdtemp(prefix="rocketspark-bench-", dir=options.root)
    try:
        measure(options, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure(options: argparse.Namespace, root: str) -> None:
    store = Store(StoreSettings(root=root, index_enabled=not options.no_index))
    begun = time.perf_counter()
    store.open()
    print(f"open              {(time.perf_counter() - begun) * 1e3:8.2f} ms")
    count, queues = options.count, options.queues
    body = b"x" * options.body
    topic, born = b"bench", bytes.fromhex("7f0000010000c001")
    ids = [b"%032X" % i for i in range(count)]
    keys = [b"order-%d" % i for i in range(count)] if options.keys else None
    tag = b"TagA" if options.tags else None
    code = string_hash("TagA") if options.tags else 0
    extra = (b"\x02TAGS\x01TagA" if options.tags else b"") + b"\x02WAIT\x01true\x02"
    properties = [b"UNIQ_KEY\x01" + i + (b"\x02KEYS\x01" + keys[n] if keys else b"") + extra for n, i in enumerate(ids)]
    done = threading.Event()
    if options.populate:
        threading.Thread(target=populate, args=(store, done), daemon=True).start()
    now_ms = int(time.time() * 1000)
    append = store.append
    slowest = 0.0
    cpu_begun = time.thread_time()
    begun = before = time.perf_counter()
    for n in range(count):
        append(
            topic,
            n % queues,
            body,
            properties[n],
            code,
            ids[n],
            keys[n] if keys else None,
            tag,
            now_ms,
            0,
            0,
            now_ms,
            born,
        )
        if n % 64 == 63:
            now = time.perf_counter()
            slowest = max(slowest, now - before)
            before = now
    spent = time.perf_counter() - begun
    cpu = time.thread_time() - cpu_begun
    done.set()
    print(
        f"append            {spent / count * 1e6:8.2f} us each, {count / spent:10,.0f}/s,"
        f" {cpu / count * 1e6:5.2f} us of CPU"
    )
    print(f"slowest 64        {slowest * 1e3:8.2f} ms")
    for size in (32, 800):
        read_all(store, queues, count, size)
    begun = time.perf_counter()
    store.flush_log()
    store.flush_queues()
    store.flush_indexes()
    store.write_checkpoint()
    print(f"flush             {(time.perf_counter() - begun) * 1e3:8.2f} ms")
    if not options.no_index:
        begun = time.perf_counter()
        for i in ids[:: max(count // 1000, 1)][:1000]:
            assert len(store.query("bench", i.decode(), 32, 0, 1 << 60, "U")) == 1
        print(f"query             {(time.perf_counter() - begun) * 1e3:8.2f} us each")
    store.close()
    begun = time.perf_counter()
    store = Store(store.settings)
    store.open()
    print(f"open again        {(time.perf_counter() - begun) * 1e3:8.2f} ms, {store.recovered.replayed} replayed")
    store.close()


def read_all(store: Store, queues: int, count: int, size: int) -> None:
    begun, cpu_begun = time.perf_counter(), time.thread_time()
    seen = 0
    for queue_id in range(queues):
        offset = 0
        while (found := store.read("bench", queue_id, offset, size, 1 << 20)).status is GetStatus.FOUND:
            offset = found.next_offset
            seen += found.count
    spent, cpu = time.perf_counter() - begun, time.thread_time() - cpu_begun
    assert seen == count
    print(
        f"read, {size:3} a time  {spent / count * 1e6:8.2f} us each, {count / spent:10,.0f}/s,"
        f" {cpu / count * 1e6:5.2f} us of CPU"
    )


def populate(store: Store, done: threading.Event) -> None:
    while not done.wait(0.002):
        store.populate_ahead()


if __name__ == "__main__":
    main()
