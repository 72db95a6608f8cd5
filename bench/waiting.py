"""2,000 waiting pulls on 50 connections: what they cost a broker while nothing comes, and from send to answer.

Once each pull waits at a queue of its own (one message answers one), once all wait at one queue (one message answers
all). Both brokers hold theirs at the same time while their processor time is taken.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench import raw_send
from bench.fill import create_topic
from bench.load import connect
from bench.many import Connections
from bench.peers import Servers, both, cpu_seconds, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.report import Row, percentile, progress, show, values_row
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import MaxOffsetHeader, PullHeader
from rocketspark.protocol.message import sysflags
from rocketspark.transport.request_frames import request

CONNECTIONS = 50
PER_CONNECTION = 40
TOPIC_QUEUES = 100
SUSPEND_MS = 600_000
# The Java broker's pulls wait in a pool of threads before they are held.
SETTLE_S = 1.0
MESSAGES = 512


def pull_frame(topic: str, queue_id: int, offset: int, opaque: int) -> bytes:
    """A pull that waits for the message at `offset`."""
    header = PullHeader(
        group="bench-waiting",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        count_max=32,
        sys_flag=sysflags.PULL_SUSPEND | sysflags.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_ms=SUSPEND_MS,
        subscription="*",
        subscription_version=0,
        expression_type="TAG",
        broker_name="broker-a",
    )
    return request(RequestCode.PULL_MESSAGE, header, opaque=opaque, language="JAVA")


class Waiting:
    """Pulls that wait at one broker; `queues`: where each of them waits."""

    def __init__(self, servers: Servers, connections: Connections, queues: list[tuple[str, int]]) -> None:
        self._servers = servers
        self._connections = connections
        self._queues = queues
        self._offsets = dict.fromkeys(queues, 0)
        self._sender = connect(servers.broker)

    def close(self) -> None:
        """End the sender's connection; the others are the caller's."""
        self._sender.close()

    def hold(self) -> None:
        """Send every pull; ends when the broker has had time to hold all."""
        per_connection = len(self._queues) // len(self._connections.sockets)
        for number, s in enumerate(self._connections.sockets):
            own = range(number * per_connection, (number + 1) * per_connection)
            s.sendall(b"".join(self._pull(i) for i in own))
        # One more request behind the pulls, whose answer tells that they were read.
        topic, queue_id = self._queues[0]
        probe = request(RequestCode.GET_MAX_OFFSET, MaxOffsetHeader(topic=topic, queue_id=queue_id), opaque=999_999)
        self._connections.ask([probe] * len(self._connections.sockets))

    def _pull(self, number: int) -> bytes:
        queue = self._queues[number]
        return pull_frame(*queue, self._offsets[queue], number)

    def send(self, queue: tuple[str, int]) -> float:
        """One message to the queue; when it was sent (perf_counter)."""
        frame = raw_send.frame(*queue, b"x" * 128, f"{time.time_ns():032X}", 1)
        sent = time.perf_counter()
        self._sender.sendall(frame)
        self._offsets[queue] += 1
        return sent

    def sent(self) -> None:
        """Take the reply to a send."""
        if b'"code":0,' not in self._sender.recv(1 << 16):
            raise ConnectionError(f"{self._servers.broker} refused a send")

    def one_by_one(self, count: int) -> list[float]:
        """Messages to single queues, each answering the pull that waits there: us from send to answer."""
        per_connection = len(self._queues) // len(self._connections.sockets)
        taken = []
        for number in range(count):
            # A stride without a common divisor visits all queues and connections.
            index = number * 769 % len(self._queues)
            queue = self._queues[index]
            sent = self.send(queue)
            taken.append((self._connections.take(1)[0] - sent) * 1e6)
            self.sent()
            self._connections.sockets[index // per_connection].sendall(self._pull(index))
        return taken

    def all_at_once(self, count: int) -> list[float]:
        """Messages to the one queue, each answering all pulls: us from send to each answer."""
        taken = []
        for _ in range(count):
            sent = self.send(self._queues[0])
            taken += [(came - sent) * 1e6 for came in self._connections.take(len(self._queues))]
            self.sent()
            self.hold()
            time.sleep(SETTLE_S / 4)
        return taken


def idle_ms(peers: list[Servers], seconds: float) -> list[float]:
    """Processor milliseconds per second of each while nothing happens."""
    before = [cpu_seconds(s.pid) for s in peers]
    started = time.perf_counter()
    time.sleep(seconds)
    taken = time.perf_counter() - started
    return [(cpu_seconds(s.pid) - b) / taken * 1000 for s, b in zip(peers, before, strict=True)]


def row(name: str, unit: str, values: list[float]) -> Row:
    """A row of one value for each peer."""
    pair = (values[0], values[1] if len(values) > 1 else None)
    return values_row(name, unit, [pair], less_is_better=True)


def run(plan: Plan) -> list[Row]:
    """Idle processor time, then latencies, for both ways of waiting."""
    connection_count = plan.of(CONNECTIONS, CONNECTIONS, 4)
    count = connection_count * plan.of(PER_CONNECTION, PER_CONNECTION, 5)
    seconds = plan.of(10.0, 5.0, 0.1)
    many = [(f"bench-waiting-{i // TOPIC_QUEUES}", i % TOPIC_QUEUES) for i in range(count)]
    one = [("bench-waiting-one", 0)] * count
    rows: list[Row] = []
    with both(plan.alone, ours(config=plan.config)) as (mine, java):
        peers = [mine, java] if java else [mine]
        for servers in peers:
            progress("topics")
            create_topic(servers.broker, "bench-waiting-one", 1)
            for topic in dict.fromkeys(t for t, _ in many):
                create_topic(servers.broker, topic, TOPIC_QUEUES)
            # Both are warm before they wait.
            raw_send.run(servers.broker, raw_send.TOPIC, window=1, body_bytes=128, seconds=plan.of(4.0, 2.0, 0.05))
        time.sleep(plan.of(5.0, 2.0, 0.0))
        rows.append(row("idle, no pull waits: CPU", "ms/s", idle_ms(peers, seconds)))
        show(rows)
        for text, queues, rounds in (
            (f"{count:,} pulls at {count:,} queues", many, plan.of(1500, 300, 5)),
            (f"{count:,} pulls at one queue", one, plan.of(10, 3, 1)),
        ):
            with ExitStack() as stack:
                found = waiting_rows(stack, peers, text, queues, connection_count, seconds, rounds)
            show(found, heading=False)
            rows += found
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends


def waiting_rows(
    stack: ExitStack,
    peers: list[Servers],
    text: str,
    queues: list[tuple[str, int]],
    connection_count: int,
    seconds: float,
    rounds: int,
) -> list[Row]:
    """One way of waiting, on all peers at once; only the messages come to one after the other."""
    before_kib = [memory_kib(s.pid)["RssAnon"] for s in peers]
    held = []
    for servers in peers:
        connections = stack.enter_context(Connections(servers.broker, connection_count))
        waiting = Waiting(servers, connections, queues)
        stack.callback(waiting.close)
        waiting.hold()
        held.append(waiting)
    time.sleep(min(SETTLE_S, seconds))
    kib = [(memory_kib(s.pid)["RssAnon"] - b) / len(queues) for s, b in zip(peers, before_kib, strict=True)]
    progress(f"{text}: idle")
    idle = idle_ms(peers, seconds)
    taken, cpu_us = [], []
    for servers, waiting in zip(peers, held, strict=True):
        progress(f"{text}: messages")
        alone = len(set(queues)) == 1
        before = cpu_seconds(servers.pid)
        latencies = waiting.all_at_once(rounds) if alone else waiting.one_by_one(rounds)
        cpu_us.append((cpu_seconds(servers.pid) - before) / len(latencies) * 1e6)
        taken.append(latencies)
    return [
        row(f"{text}: idle CPU", "ms/s", idle),
        row("  RssAnon per waiting pull", "KiB", kib),
        row("  send to answer: p50", "us", [percentile(t, 0.5) for t in taken]),
        row("  send to answer: p99", "us", [percentile(t, 0.99) for t in taken]),
        row("  CPU per answer and its next pull", "us", cpu_us),
    ]
