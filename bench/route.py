"""Route queries to our NameServer and to the Java one, over one connection, with few and with 1,000 topics.

The bench itself registers as the broker: its connection stays open, for a NameServer drops a broker that hangs up.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.load import Load, Replies, Stream, connect, pump
from bench.measure import compare
from bench.peers import Servers, apache_namesrv, both, end_rows, our_namesrv
from bench.plan import Plan
from bench.report import Row, progress, show
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import RegisterBrokerHeader, RouteHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketspark.transport.request_frames import request

WINDOWS = (1, 16, 64)
FEW = 8
EXPIRY_MS = 600_000


def names(count: int) -> list[str]:
    """Names of the topics."""
    return [f"bench-route-{i:04}" for i in range(count)]


@contextmanager
def registered(address: str, topics: list[str]) -> Iterator[socket.socket]:
    """A broker with these topics, known to the NameServer for the length of a `with` block."""
    table = {t: TopicConfig(topic_name=t, read_queue_nums=8, write_queue_nums=8) for t in topics}
    version = bodies.DataVersion(timestamp=1_700_000_000_000, counter=1)
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(topic_config_table=table, data_version=version)
    )
    header = RegisterBrokerHeader(
        broker_name="broker-bench",
        address="127.0.0.1:9",
        cluster="DefaultCluster",
        ha_address="127.0.0.1:9",
        broker_id=0,
        expiry_ms=EXPIRY_MS,
    )
    with connect(address) as s:
        s.sendall(request(RequestCode.REGISTER_BROKER, header, bodies.encode(body), opaque=1, language="JAVA"))
        replies = Replies()
        while not replies.feed(s.recv(1 << 16)):
            pass
        yield s


def queries(topics: list[str]) -> Stream:
    """A query for each topic, several times over."""
    wanted = topics * max(1024 // len(topics), 1)
    made = (RouteHeader(topic=t, standard_json=True) for t in wanted)
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    return Stream(request(code, header, opaque=i, language="JAVA") for i, header in enumerate(made))


def run(plan: Plan) -> list[Row]:
    """One row per number of topics and window: answers per second, ours first."""
    seconds = plan.of(1.0, 0.5, 0.05)
    rows: list[Row] = []
    with ExitStack() as stack:
        mine, java = stack.enter_context(both(plan.alone, our_namesrv(), apache_namesrv()))
        for count in (FEW, plan.of(1000, 1000, 50)):
            topics = names(count)
            stream = queries(topics)

            def ask(servers: Servers, window: int, stream: Stream = stream) -> Load:
                return pump(servers.namesrv, stream, window=window, seconds=seconds)

            for servers in (java, mine):
                if servers:
                    progress(f"{count:,} topics")
                    stack.enter_context(registered(servers.namesrv, topics))
                    pump(servers.namesrv, stream, window=16, seconds=plan.of(3.0, 1.0, 0.05))
            for window in plan.of(WINDOWS, WINDOWS, (16,)):
                name = f"route queries, {count:,} topics, {window} in flight"
                row = compare(name, "1/s", plan.rounds(), mine, java, lambda s, w=window: ask(s, w))  # type: ignore[misc]
                rows.append(row)
                show(rows[-1:], heading=len(rows) == 1)
        ends = end_rows(mine, java, "NameServer")
        show(ends, heading=False)
    return rows + ends
