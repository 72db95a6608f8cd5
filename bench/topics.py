"""Many topics of 8 queues on one broker: creation, registration, a send to each tenth, memory, files, stop and start.

Run: python -m bench.topics --count 10000 [--java] [--rocksdb]

Servers run one after the other, each with a NameServer of its own. While a step runs, another process asks broker and
NameServer something small every few ms: the longest wait tells how long their loops were held, or their threads busy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.java.apache import ApacheBroker, ApacheNamesrv

from bench import raw_send
from bench.load import Stream, pump
from bench.peers import JAVA_DEFAULTS, JIT, cpu_seconds, memory_kib, our_namesrv, started
from bench.report import progress
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.connections import parse_address
from rocketspark.transport.request_frames import request

COUNT, QUEUES = 10_000, 8
IN_REQUEST = 1000
EACH = 10
WINDOW = 64
LIMIT_S = 600.0
# Until a NameServer has heard of all.
HEARD_S_MAX = 60.0
# Java's broker registers all in one request otherwise, and no frame holds some 85,000.
SPLIT_FROM = 40_000
PROBE_EVERY_S = 0.002
STOP_S_MAX = 300.0
SPAWN = multiprocessing.get_context("spawn")
KINDS = ("ours", "java", "java with RocksDB")


class Running(NamedTuple):
    """A broker that runs: its address, process, and seconds until it was ready; `end` ends it by a signal."""

    broker: str
    pid: int
    ready_s: float
    end: Callable[[int], float]


class Step(NamedTuple):
    """What a step took: seconds, the broker's processor seconds, the longest waits of the probe at both, in ms, and
    what was found besides.
    """

    name: str
    seconds: float
    cpu_s: float = 0.0
    broker_ms: float = 0.0
    namesrv_ms: float = 0.0
    notes: str = ""


def topic(number: int) -> str:
    """Name of a topic."""
    return f"bench-many-{number:06}"


def exchange(link: socket.socket, code: int, body: bytes = b"", **ext: str) -> tuple[int, bytes]:
    """One request and its answer: (code, body)."""
    link.sendall(request(code, ext, body, opaque=1))
    size = int.from_bytes(_exactly(link, 4))
    frame = _exactly(link, size)
    header_bytes = int.from_bytes(frame[1:4])
    header = msgspec.json.decode(frame[4 : 4 + header_bytes])
    return header["code"], frame[4 + header_bytes :]


def _exactly(link: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = link.recv(min(count - len(found), 1 << 20))
        if not data:
            raise ConnectionError("the server closed the connection")
        found += data
    return bytes(found)


def connected(address: str) -> socket.socket:
    """A connection whose answers are waited for as long as a step may last."""
    link = socket.create_connection(parse_address(address), 10)
    link.settimeout(LIMIT_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def probe(addresses: Sequence[str], pipe: Connection) -> None:
    """Ask each address for the route or the settings of a topic that is not there, until `pipe` says that it ends."""
    worst = [0.0] * len(addresses)
    codes = (RequestCode.GET_MAX_OFFSET, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    links = [connected(address) for address in addresses]
    pipe.send(None)
    while not pipe.poll(PROBE_EVERY_S):
        for number, (link, code) in enumerate(zip(links, codes, strict=False)):
            began = time.perf_counter()
            exchange(link, code, topic="bench-not-there", queueId="0")
            worst[number] = max(worst[number], time.perf_counter() - began)
    pipe.send(worst)


@contextmanager
def probed(*addresses: str) -> Iterator[Callable[[], list[float]]]:
    """Probe addresses meanwhile; the callable ends it and gives the longest wait at each, in seconds."""
    near, far = SPAWN.Pipe()
    process: SpawnProcess = SPAWN.Process(target=probe, args=(addresses, far), daemon=True)
    process.start()
    try:
        near.recv()

        def end() -> list[float]:
            near.send(None)
            found: list[float] = near.recv() if near.poll(LIMIT_S) else []
            return found

        yield end
    finally:
        if process.is_alive():
            process.join(1)
            process.kill()
            process.join()


class Run:
    """The steps on one kind of server. `steps` grows, and each is shown as it comes."""

    def __init__(self, kind: str, count: int, queues: int) -> None:
        self.kind, self.count, self.queues = kind, count, queues
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Note a step and show it."""
        self.steps.append(step)
        waits = f"{step.broker_ms:8.1f} {step.namesrv_ms:8.1f}" if step.broker_ms else f"{'':17}"
        print(f"  {step.name:36} {step.seconds:8.2f} {step.cpu_s:8.2f} {waits}  {step.notes}".rstrip(), flush=True)

    def step(self, name: str, at: Running, namesrv: str, act: Callable[[], str]) -> None:
        """Do something with both probed."""
        progress(f"{self.kind}: {name}")
        with probed(at.broker, namesrv) as end:
            cpu_s, began = cpu_seconds(at.pid), time.perf_counter()
            notes = act()
            took = time.perf_counter() - began
            worst = end()
        self.add(Step(name, took, cpu_seconds(at.pid) - cpu_s, worst[0] * 1000, worst[1] * 1000, notes))

    def whole(self, folder: Path) -> None:
        """All steps in a folder, which is left with the store."""
        print(f"\n{self.kind}: {self.count:,} topics of {self.queues} queues")
        print(f"  {'step':36} {'s':>8} {'CPU s':>8} {'broker':>8} {'namesrv':>8}  (longest wait, ms)")
        store = folder / "store"
        with namesrv_of(self.kind, folder) as (namesrv, namesrv_pid):
            with self._running(folder, namesrv, "start, empty") as at:
                before = memory_kib(at.pid)["RssAnon"]
                self.step("idle", at, namesrv, lambda: time.sleep(2) or "")  # type: ignore[func-returns-value]
                self.step("create", at, namesrv, lambda: self._create(at.broker))
                self.step("until the NameServer has all", at, namesrv, lambda: self._known(namesrv))
                self.step("all registered anew", at, namesrv, lambda: self._anew(at.broker, namesrv))
                self.step("the table of topics asked for", at, namesrv, lambda: self._table(at.broker))
                grown = (memory_kib(at.pid)["RssAnon"] - before) / 1024
                self._figures(at, namesrv_pid, store, f"RssAnon gained {grown:.0f} MiB")
                self.step("a send to each tenth topic", at, namesrv, lambda: self._send(at.broker))
                self.step("the flush after it (5 s)", at, namesrv, lambda: time.sleep(5) or "")  # type: ignore[func-returns-value]
                self.step("the same again", at, namesrv, lambda: self._send(at.broker))
                grown = (memory_kib(at.pid)["RssAnon"] - before) / 1024
                self._figures(at, namesrv_pid, store, f"RssAnon gained {grown:.0f} MiB")
                self.add(Step("clean stop", at.end(signal.SIGTERM)))
            with self._running(folder, namesrv, "start after a clean stop") as at:
                self.step("until the NameServer has all", at, namesrv, lambda: self._known(namesrv))
                self._send(at.broker)
                self.add(Step("SIGKILL", at.end(signal.SIGKILL)))
            with self._running(folder, namesrv, "start after SIGKILL") as at:
                self.step("until the NameServer has all", at, namesrv, lambda: self._known(namesrv))
                self.step("a send to each tenth topic", at, namesrv, lambda: self._send(at.broker))
                self._figures(at, namesrv_pid, store, "")
                at.end(signal.SIGKILL)

    @contextmanager
    def _running(self, folder: Path, namesrv: str, name: str) -> Iterator[Running]:
        progress(f"{self.kind}: {name}")
        with broker_of(self.kind, folder, namesrv, split=self.count > SPLIT_FROM) as at:
            self.add(Step(name, at.ready_s, cpu_seconds(at.pid)))
            yield at

    def _figures(self, at: Running, namesrv_pid: int, store: Path, more: str) -> None:
        """Memory of both, and files of the store and their blocks."""
        memory = memory_kib(at.pid)
        queues, whole, size = 0, 0, 0
        for folder, _, names in os.walk(store):
            whole += len(names)
            queues += len(names) * ("consumequeue" in folder)
            size += sum(os.stat(Path(folder) / name).st_blocks * 512 for name in names)
        namesrv = memory_kib(namesrv_pid)["RssAnon"] / 1024
        print(
            f"    broker RssAnon {memory['RssAnon'] / 1024:,.0f} MiB, VmRSS {memory['VmRSS'] / 1024:,.0f} MiB, {more}\n"
            f"    NameServer RssAnon {namesrv:,.0f} MiB; {whole:,} files ({queues:,} of queues), {size >> 20:,} MiB",
            flush=True,
        )

    def _create(self, broker: str) -> str:
        """Create all, a list of 1,000 in each request."""
        longest = 0.0
        with connected(broker) as link:
            for first in range(0, self.count, IN_REQUEST):
                progress(f"{self.kind}: topic {first:,} of {self.count:,}")
                numbers = range(first, min(first + IN_REQUEST, self.count))
                table = {"readQueueNums": self.queues, "writeQueueNums": self.queues, "perm": 6}
                configs = [{"topicName": topic(n), "topicFilterType": "SINGLE_TAG"} | table for n in numbers]
                began = time.perf_counter()
                body = msgspec.json.encode({"topicConfigList": configs})
                code, text = exchange(link, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
                longest = max(longest, time.perf_counter() - began)
                if code:
                    raise SystemExit(f"{self.kind}: topics were not created: {code} {shown(text.decode()[:200])}")
        return f"{IN_REQUEST:,} in a request; the longest {longest:.2f} s"

    def _known(self, namesrv: str) -> str:
        """Wait until the NameServer has the last topic, and all others."""
        deadline = time.monotonic() + HEARD_S_MAX
        with connected(namesrv) as link:
            while exchange(link, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic(self.count - 1))[0]:
                if time.monotonic() > deadline:
                    return "NOT within the limit"
                time.sleep(0.01)
            count = msgspec.json.decode(exchange(link, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)[1])
        found = sum(name.startswith("bench-many-") for name in count["topicList"])
        return "" if found == self.count else f"{found:,} of them"

    def _anew(self, broker: str, namesrv: str) -> str:
        """Have the broker tell of all its topics, by a permission that changes, and wait until it was heard."""
        with connected(broker) as link, connected(namesrv) as asked:
            for perm in (4, 6):
                exchange(link, RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=%d" % perm)
                deadline = time.monotonic() + HEARD_S_MAX
                for number in (0, self.count - 1):
                    while self._perm(asked, number) != perm:
                        if time.monotonic() > deadline:
                            return "NOT within the limit"
                        time.sleep(0.01)
        return "twice, as permission 4 and 6"

    def _perm(self, link: socket.socket, number: int) -> int:
        code, body = exchange(
            link, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic(number), acceptStandardJsonOnly="true"
        )
        perm: int = msgspec.json.decode(body)["queueDatas"][0]["perm"] if code == 0 else -1
        return perm

    def _table(self, broker: str) -> str:
        with connected(broker) as link:
            _, body = exchange(link, RequestCode.GET_ALL_TOPIC_CONFIG)
        return f"{len(body) / 1e6:.1f} MB of JSON"

    def _send(self, broker: str) -> str:
        numbers = range(0, self.count, EACH)
        body = b"x" * 128
        frames = (
            raw_send.frame(topic(n), n // EACH % self.queues, body, f"{i:032X}", 100_000 + i)
            for i, n in enumerate(numbers)
        )
        load = pump(broker, Stream(frames), window=WINDOW, count_max=len(numbers))
        return f"{load.per_second:,.0f} msg/s" + (f", {load.busy} busy" if load.busy else "")


@contextmanager
def namesrv_of(kind: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A NameServer of the kind: address and process."""
    if kind == "ours":
        with our_namesrv() as servers:
            yield servers.namesrv, servers.pid
        return
    ApacheNamesrv.jvm_flags, ApacheNamesrv._flags = JIT, ("-Xms512m", "-Xmx2g")
    server = ApacheNamesrv(folder / "namesrv")
    try:
        yield server.namesrv, server._process.pid
    finally:
        server.kill()


@contextmanager
def broker_of(kind: str, folder: Path, namesrv: str, *, split: bool) -> Iterator[Running]:
    """A broker of the kind, on the store in the folder. `split`: Java's registers in parts, as ours does by itself."""
    store = folder / "store"
    if kind == "ours":
        command = ["broker", "-p", "0", "--store", str(store), "-n", namesrv]
        with started(command, r"ready broker=(\S+)", folder) as (pid, found, ready_s):
            yield Running(found[1], pid, ready_s, lambda number: _ended(pid, number))
        return
    ApacheBroker.jvm_flags = JIT
    ApacheBroker._flags = ("-Xms1g", "-Xmx4g", "-XX:MaxDirectMemorySize=2g")
    config: dict[str, Any] = JAVA_DEFAULTS | {"enableSplitRegistration": str(split).lower()}
    if kind != "java":
        config["storeType"] = "defaultRocksDB"
    began = time.perf_counter()
    server = ApacheBroker(folder / "broker", namesrv, store, config=config)
    try:
        process = server._process

        def end(number: int) -> float:
            began = time.perf_counter()
            process.send_signal(number)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                server.kill()
            return time.perf_counter() - began

        yield Running(server.broker, process.pid, time.perf_counter() - began, end)
    finally:
        server.kill()


def _ended(pid: int, number: int) -> float:
    """End a child by a signal; seconds until it had ended. Its own object reaps it."""
    began = time.perf_counter()
    os.kill(pid, number)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return time.perf_counter() - began


def main() -> None:
    """Run all steps on ours, and on Java's brokers if they are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.topics", description="Many topics of 8 queues on one broker, all steps of its life."
    )
    parser.add_argument("--count", type=int, default=COUNT, help="topics [default: 10,000]")
    parser.add_argument("--queues", type=int, default=QUEUES, help="queues of each [default: 8]")
    parser.add_argument("--java", action="store_true", help="RocketMQ's broker with plain files, too")
    parser.add_argument("--rocksdb", action="store_true", help="RocketMQ's broker with RocksDB, too")
    parser.add_argument("--no-ours", action="store_true", help="not on ours")
    given = parser.parse_args()
    if not 10 <= given.count <= 200_000 or not 1 <= given.queues <= 256:
        parser.error("--count is from 10 to 200,000, --queues from 1 to 256")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = (not given.no_ours, given.java, given.rocksdb)
    for kind in (kind for kind, asked in zip(KINDS, wanted, strict=True) if asked):
        with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
            Run(kind, given.count, given.queues).whole(Path(folder))


if __name__ == "__main__":
    main()
