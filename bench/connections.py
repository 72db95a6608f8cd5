"""1,000 connections: opened, a heartbeat on each, then each sends and pulls; every request must be answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bench import raw_send
from bench.fill import create_topic
from bench.load import Load, Stream
from bench.many import Connections
from bench.measure import figure
from bench.peers import Servers, both, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.raw_pull import frames as pull_frames
from bench.report import Figure, Row, progress, rates_row, show, values_row
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.request_frames import request

COUNT = 1000
QUEUES = 8
TOPIC = "bench-connections"
# A group's members are told of each that joins: small groups, as most are.
GROUP_MEMBERS = 10
STREAM_FRAMES = 32
BEATS_AGAIN = 10
PULL_COUNT = 1


def heartbeat(number: int) -> bytes:
    """The heartbeat of one client: a producer, and a consumer in a group of ten."""
    group = f"bench_connections_{number // GROUP_MEMBERS}"
    body = {
        "clientID": f"127.0.0.1@bench-{number}",
        "producerDataSet": [{"groupName": "bench"}],
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}],
                "unitMode": False,
            }
        ],
    }
    return request(RequestCode.HEART_BEAT, None, msgspec.json.encode(body), opaque=number, language="JAVA")


def total(loads: list[Load]) -> Load:
    """Loads one after the other as one."""
    return Load(*(sum(values) for values in zip(*loads, strict=True)))


class Streams(NamedTuple):
    """What each connection sends and pulls."""

    sends: list[Stream]
    pulls: list[Stream]


def streams(count: int) -> Streams:
    """A few messages of its own for each connection, and pulls of what lies at the start of the queues."""
    body = b"x" * 128

    def sends(number: int) -> Stream:
        prefix = f"{number:024X}"
        ids = (f"{prefix}{i:08X}" for i in range(STREAM_FRAMES))
        return Stream(raw_send.frame(TOPIC, number % QUEUES, body, u, i) for i, u in enumerate(ids))

    # By pulls of one message, so that requests are what is measured.
    pulls = Stream(pull_frames(TOPIC, [STREAM_FRAMES // QUEUES] * QUEUES, PULL_COUNT))
    return Streams([sends(i) for i in range(count)], [pulls] * count)


class Round(NamedTuple):
    """One round on one server: what each step took, and memory per connection in KiB."""

    connect: Figure
    heartbeat: Figure
    again: Figure
    send: Figure
    pull: Figure
    kib_each: float


def one_round(servers: Servers, given: Streams, seconds: float) -> Round:
    """Open all connections, use them, close them."""
    count = len(given.sends)
    before_kib = memory_kib(servers.pid)["RssAnon"]
    opened: list[Connections] = []

    def connect(servers: Servers) -> Load:
        connections = Connections(servers.broker, count)
        opened.append(connections)
        return Load(count, 0, connections.connect_s, 0.0)

    def step(act: Callable[[Connections], Load]) -> Figure:
        return figure(servers, lambda _: act(opened[0]))

    try:
        connected = figure(servers, connect)
        beats = [heartbeat(i) for i in range(count)]
        beaten = step(lambda c: c.ask(beats))
        again = step(lambda c: total([c.ask(beats) for _ in range(BEATS_AGAIN)]))
        sent = step(lambda c: c.pump(given.sends, seconds=seconds))
        pulled = step(lambda c: c.pump(given.pulls, seconds=seconds))
        kib_each = (memory_kib(servers.pid)["RssAnon"] - before_kib) / count
    finally:
        for connections in opened:
            connections.close()
    return Round(connected, beaten, again, sent, pulled, kib_each)


def run(plan: Plan) -> list[Row]:
    """A row per step, ours first."""
    count = plan.of(COUNT, COUNT, 20)
    seconds = plan.of(2.0, 0.5, 0.05)
    given = streams(count)
    with both(plan.alone, ours(config=plan.config)) as (mine, java):
        # A server keeps the memory: only the first round tells what connections take.
        first_kib: list[float] = []
        for servers in (mine, java):
            if servers:
                progress("first round, not counted")
                create_topic(servers.broker, TOPIC, QUEUES)
                raw_send_some(servers)
                first_kib.append(one_round(servers, given, seconds).kib_each)
        pairs = []
        for number in range(plan.rounds()):
            progress(f"{count:,} connections: round {number + 1}")
            pairs.append((one_round(mine, given, seconds), one_round(java, given, seconds) if java else None))
        rows = [
            rates_row(f"{count:,} connections: {text}", "1/s", [(_of(o, step), _of(p, step)) for o, p in pairs])
            for step, text in (
                ("connect", "opened one by one"),
                ("heartbeat", "the first heartbeat on each"),
                ("again", "heartbeats after it"),
                ("send", "one send in flight on each"),
                ("pull", "one pull in flight on each"),
            )
        ]
        each = (first_kib[0], first_kib[1] if java else None)
        rows.append(values_row("RssAnon per connection, used", "KiB", [each], less_is_better=True))
        rows += end_rows(mine, java)
    show(rows)
    return rows


def _of(found: Round | None, step: str) -> Figure:
    return getattr(found, step) if found else None  # type: ignore[return-value]


def raw_send_some(servers: Servers) -> None:
    """Messages at the start of every queue, for the pulls."""
    with Connections(servers.broker, 1) as connections:
        body = b"x" * 128
        made = [raw_send.frame(TOPIC, i % QUEUES, body, f"{i:032X}", i) for i in range(STREAM_FRAMES)]
        for frame in made:
            connections.ask([frame])
