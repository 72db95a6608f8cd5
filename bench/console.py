"""The console in the browser: how long its pages take on many topics, and what an open one costs the broker's sends.

Rule: a console that is "closed" is stopped by SIGSTOP, so that rounds with and without it follow each other in one run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import raw_send
from bench.load import Load
from bench.measure import compare
from bench.peers import Servers, both, end_rows, started
from bench.plan import Plan
from bench.report import Row, show, values_row
from rocketspark.admin import AsyncAdmin

PATHS = ("/", "/topics", "/topics?q=bench-00", "/topic?name=bench-00000", "/groups", "/brokers")
QUEUES_OF_TOPIC = 10
# As long as the answers of a moment ago count.
LIFE_S = 6.0
RELOAD_S = 2.0


async def fill(namesrv: str, topics: int, groups: int) -> None:
    """Create topics and groups."""
    async with AsyncAdmin(namesrv) as admin:
        for number in range(topics):
            await admin.create_topic(f"bench-{number:05}", queue_count=QUEUES_OF_TOPIC)
        for number in range(groups):
            await admin.put_group(f"readers-{number:05}")


@contextmanager
def console(servers: Servers) -> Iterator[tuple[str, int]]:
    """A console before the servers: its address, and the process id."""
    words = ["console", "-n", servers.namesrv, "--port", "0", "--log-level", "warning"]
    with started(words, r"ready console=(\S+)", Path(servers.store).parent) as (pid, found, _):
        yield found[1], pid


def page_ms(address: str, path: str) -> float:
    """How long a page takes, in ms."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1000


def page_rows(plan: Plan, address: str, topics: int) -> list[Row]:
    """Each page when its answers are not kept, and when they are."""
    rows: list[Row] = []
    for path in PATHS:
        cold, warm = [], []
        for _ in range(plan.rounds(3)):
            time.sleep(plan.of(LIFE_S, LIFE_S, 0.0))
            cold.append(page_ms(address, path))
            warm.append(page_ms(address, path))
        for name, values in (("asked", cold), ("kept", warm)):
            pairs = [(value, None) for value in values]
            rows.append(values_row(f"{path}, {topics} topics, {name}", "ms", pairs, less_is_better=True))
            show(rows[-1:], heading=len(rows) == 1)
    return rows


class Looker:
    """A browser that looks at the console: it gets the samples as they come, and loads the first page again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._end = threading.Event()
        host, port = address.rsplit(":", 1)
        self._events = socket.create_connection((host, int(port)))
        self._events.sendall(f"GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        self._thread = threading.Thread(target=self._look)
        self.open = True
        self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(RELOAD_S):
            if self.open:
                page_ms(self._address, "/")

    def close(self) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join()
        self._events.close()


def send_rows(plan: Plan, servers: Servers, address: str, pid: int) -> list[Row]:
    """Sends with the console open, beside the same with it stopped."""
    seconds = plan.of(4.0, 2.0, 0.05)
    looker = Looker(address)

    def send(which: Servers) -> Load:
        looker.open = which.name == "open"
        os.kill(pid, signal.SIGCONT if looker.open else signal.SIGSTOP)
        return raw_send.run(servers.broker, raw_send.TOPIC, window=64, body_bytes=128, seconds=seconds)

    try:
        raw_send.run(servers.broker, raw_send.TOPIC, window=64, body_bytes=128, seconds=seconds)
        open_, closed = servers._replace(name="open"), servers._replace(name="closed")
        row = compare("sends, console open : closed", "msg/s", plan.rounds(9), open_, closed, send)
    finally:
        os.kill(pid, signal.SIGCONT)
        looker.close()
    show([row], peer="closed")
    return [row]


def run(plan: Plan) -> list[Row]:
    """Rows of pages, then of sends."""
    topics = plan.of(1000, 200, 5)
    with both(True) as (mine, _), console(mine) as (address, pid):
        asyncio.run(fill(mine.namesrv, topics, topics // 2))
        rows = page_rows(plan, address, topics) + send_rows(plan, mine, address, pid)
        ends = end_rows(mine, None)
        show(ends, heading=False)
        return rows + ends
