"""The official `mqadmin` 5.5.0 in one JVM, the servers it is tested on in a known state, and its output as expected.

Output is compared whole and word by word; only what differs from run to run stands as <placeholder> in an expectation.
"""

from __future__ import annotations

import difflib
import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.java.apache import SERVER_JARS, ask
from tests.java.driver import JavaDriver, compiled, java_tool, message, quick_start
from tests.support.official import started
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.admin.broker_states import ReplicaSet

LOOP = Path(__file__).parent / "tools" / "MqAdminLoop.java"
# One command takes some 20 ms; this ends a JVM that hangs.
COMMAND_TIMEOUT_S = LIMIT_S
# Java's stack, and where its errors are explained.
_NOISE = ("\tat ", "\t...", "For more information", "See https://")
_PLACEHOLDERS = {
    "time": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3})?",
    "ms": r"\d{13}",
    "id": r"[0-9A-F]{32,}",
    "address": r"127\.0\.0\.1:\d+",
    "number": r"\d+",
    "decimal": r"\d+\.\d+",
    "client": r"\S+@\S+",
    "any": r".*",
}


class MqAdmin:
    """mqadmin commands on one NameServer. `home`: folder for what they write."""

    def __init__(self, home: Path, namesrv: str, broker: str, flags: tuple[str, ...] = ()) -> None:
        started("mqadmin")
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._namesrv = namesrv
        self._names = ((broker, "BROKER"), (namesrv, "NAMESRV"), (str(home), "HOME"))
        classes = compiled("mqadmin", [LOOP], SERVER_JARS)
        call = [java_tool("java"), *quick_start(SERVER_JARS), "-Xmx256m", "-Dfile.encoding=UTF-8", *flags]
        call += [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"]
        call += ["-cp", f"{SERVER_JARS / '*'}{os.pathsep}{classes}", "MqAdminLoop"]
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        pipe = subprocess.PIPE
        self._jvm = subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=home)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="mqadmin", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._jvm.stdout is not None
        for line in self._jvm.stdout:
            self._lines.put(line)
        self._lines.put("")

    def __call__(self, command: str, *arguments: str, stop_after: int = 0) -> list[str]:
        """The lines that a command printed: blanks squeezed, stack traces left out, addresses by name.

        `stop_after`: interrupt it after so many lines; for those that print for ever.
        """
        return self.raw(command, "-n", self._namesrv, *arguments, stop_after=stop_after)

    def raw(self, *arguments: str, stop_after: int = 0) -> list[str]:
        """The same with exactly these arguments."""
        assert self._jvm.stdin is not None
        print("\x1f".join((str(stop_after), *arguments)), file=self._jvm.stdin, flush=True)
        lines: list[str] = []
        while (line := self._lines.get(timeout=COMMAND_TIMEOUT_S)) != "\x04\n":
            assert line, "mqadmin ended"
            # Its log library reports on stdout too.
            if line.startswith(_NOISE) or "|-" in line[:20] or not line.strip():
                continue
            for value, name in self._names:
                line = re.sub(re.escape(value) + r"(?!\d)", name, line)
            lines.append(" ".join(line.split()))
        return lines

    def refusal(self, command: str, *arguments: str) -> str:
        """Code and text of the refusal that a command ends with, e.g. "17 No topic route info ..."."""
        lines = self(command, *arguments)
        found = [m for line in lines if (m := re.search(r"CODE: (\d+) DESC: (.*?)(?: BROKER: BROKER)?$", line))]
        assert len(found) == 1, lines
        return f"{found[0][1]} {found[0][2]}"

    def close(self) -> None:
        """End the JVM."""
        assert self._jvm.stdin is not None
        self._jvm.stdin.close()
        try:
            self._jvm.wait(20)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()
        self._reader.join(5)
        assert self._jvm.stdout is not None
        self._jvm.stdout.close()


def same(lines: list[str], expected: str, *, any_order: bool = False) -> None:
    """Asserts that output is as expected. `any_order`: lines come in the order of a hash table."""
    wanted = [" ".join(line.split()) for line in expected.strip("\n").splitlines() if line.strip()]
    if any_order:
        lines, wanted = sorted(lines), sorted(wanted)
    shown, text = "\n".join(lines), "\n".join(wanted)
    # Placeholders are made of what re.escape lets stand.
    pattern = re.sub(rf"<({'|'.join(_PLACEHOLDERS)})>", lambda m: f"(?:{_PLACEHOLDERS[m[1]]})", re.escape(text))
    if re.fullmatch(pattern, shown) is None:
        changes = difflib.unified_diff(wanted, lines, "expected", "shown", lineterm="")
        raise AssertionError("\n".join(changes))


def table(lines: list[str]) -> dict[str, str]:
    """Lines `name : value` or `name = value`, by name."""
    pairs = (re.split(r"\s*[:=]\s+", line, maxsplit=1) for line in lines)
    return {p[0].rstrip(" :="): p[1] if len(p) > 1 else "" for p in pairs}


def as_sync_state_set(found: ReplicaSet) -> list[str]:
    """What our operations tell of a set of replicas under a controller, as getSyncStateSet prints it."""
    replica = "ReplicaIdentity{{brokerName='{}', brokerId={}, brokerAddress='{}', alive={}}}"
    rows = [
        f"{'' if r.in_sync else 'Not'}InSyncReplica: "
        + replica.format(found.broker_name, r.replica_id, r.address, str(r.alive).lower())
        for r in sorted(found.replicas, key=lambda r: not r.in_sync)
    ]
    (master,) = (r.replica_id for r in found.replicas if r.address == found.master_address)
    return [
        f"#brokerName {found.broker_name}",
        f"#MasterBrokerId {master}",
        f"#MasterAddr {found.master_address}",
        f"#MasterEpoch {found.master_epoch}",
        f"#SyncStateSetEpoch {found.in_sync_epoch}",
        f"#SyncStateSetNums {sum(r.in_sync for r in found.replicas)}",
        *rows,
    ]


def until(found: Callable[[], Any], timeout_s: float = LIMIT_S) -> Any:
    """Calls until the answer is true, and returns it."""
    deadline = time.monotonic() + timeout_s
    while not (answer := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return answer


class Stage:
    """Servers with live Java clients, a backlog, dead letters, delayed and timer messages; mqadmin for them.

    Topics (queues): Orders (4) with 5, 3, 2 and 0 messages, all consumed by `buyers`, which is live; Bills (2) with
    6 and 4, of which `laggards`, offline now, consumed the first 2 of each; Broken (1), whose 2 became dead letters of
    `failing`; Later (1): 2 by delay level 18, 3 by timers. Tags of message n: B, A, B, ...; its keys: <topic>-k<n>.
    `sent`: the send results by topic; `printed`: what commands printed that go on by themselves.
    `shop` is a live producer group. Tests that change things make their own.
    """

    def __init__(self, java: JavaDriver, server: Any, home: Path) -> None:
        self.java = java
        self.namesrv: str = server.namesrv
        self.broker: str = server.broker
        self.mqadmin = MqAdmin(home, self.namesrv, self.broker)
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.printed: dict[str, list[str]] = {}
        self._clients = ExitStack()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        for topic, queues in (("Orders", 4), ("Bills", 2), ("Broken", 1), ("Later", 1)):
            self.create(topic, queues)
        started = self.java.started("producer", namesrv=self.namesrv, group="shop")
        self._producer = self._clients.enter_context(started)
        for queue_id, count in enumerate((5, 3, 2)):
            self.send("Orders", queue_id, count)
        self.send("Bills", 0, 2)
        self.send("Bills", 1, 2)
        self.send("Broken", 0, 2)
        self.send("Later", 0, 2, delay_level=18)
        for _ in range(3):
            timed = message("Later", "timed", times={"TIMER_DELAY_SEC": "3600"})
            self.java.call("send_timed", name=self._producer, messages=[timed], queue=self.queue("Later", 0))
        with ThreadPoolExecutor(3) as pool:
            for done in (
                pool.submit(self.consume, "buyers", "Orders", 10),
                pool.submit(self.consume, "laggards", "Bills", 4),
                pool.submit(self.consume, "failing", "Broken", 2, max_reconsume_times=0, fail_first=1),
            ):
                done.result()
        self.send("Bills", 0, 4)
        self.send("Bills", 1, 2)
        self.buyers = self._clients.enter_context(self.pusher("buyers", "Orders"))
        # A heartbeat makes it known; its queues are its own once it pulls all four.
        until(lambda: len(self.java.call("push_queues", name=self.buyers)) == 5)
        self.printed["startMonitoring"] = self.mqadmin("startMonitoring")

    def queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"topic": topic, "broker": "broker-a", "queue_id": queue_id}

    def create(self, topic: str, queues: int) -> None:
        lines = self.mqadmin("updateTopic", "-b", self.broker, "-t", topic, "-r", str(queues), "-w", str(queues))
        assert lines[0] == "create topic to BROKER success."

    def send(self, topic: str, queue_id: int, count: int, **fields: Any) -> None:
        """Sends messages topic-queue-0, topic-queue-1, ..."""
        messages = [
            message(topic, f"{topic}-{queue_id}-{n}", keys=f"{topic}-k{n}", tag="A" if n % 2 else "B", **fields)
            for n in range(count)
        ]
        where = self.queue(topic, queue_id)
        results = self.java.call("send", name=self._producer, messages=messages, queue=where)
        assert [r["status"] for r in results] == ["SEND_OK"] * count
        self.sent.setdefault(topic, []).extend(results)

    def pusher(self, group: str, topic: str, **options: Any) -> Any:
        """A live push consumer for the length of a `with` block."""
        wanted = [{"topic": topic, "tags": "*"}]
        return self.java.started("push", namesrv=self.namesrv, group=group, subscriptions=wanted, **options)

    def consume(self, group: str, topic: str, count: int, **options: Any) -> None:
        """Consumes so many messages and leaves: its offsets are stored then."""
        with self.pusher(group, topic, **options) as consumer:
            received = self.java.call("push_await", name=consumer, count=count, timeout_ms=LIMIT_MS)
        assert len(received) == count

    def counted(self, name: str, key: str) -> int:
        """What a counter of the broker's says of the last minute; 0 if it never counted."""
        answer = ask(self.broker, 315, ext_fields={"statsName": name, "statsKey": key})
        found = re.search(rb'"statsMinute":\{[^}]*"sum":(\d+)', answer.body)
        return int(found[1]) if answer.code == 0 and found else 0

    def client_id(self, group: str) -> str:
        """The id of a group's only live consumer."""
        return self.mqadmin("consumerConnection", "-g", group)[1].split()[0]

    def close(self) -> None:
        self._clients.close()
        self.mqadmin.close()


@contextmanager
def staged(java: JavaDriver, server: Any, home: Path) -> Iterator[Stage]:
    """A stage, closed at the end."""
    stage = Stage(java, server, home)
    try:
        yield stage
    finally:
        stage.close()
