"""Exactly once, whoever is killed at whichever moment, on both kinds of brokers: the rows of docs/exactly_once.md.

Spark's part is played here: its tasks, retried as it does, and its driver's commit; the writers themselves and all
brokers are real. Kills fall at named moments, so nothing depends on timing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.clients.conftest import CONFIG
from tests.clients.outages import Servers
from tests.java.driver import missing_tools

from rocketspark.client import AsyncProducer, requests
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol import record
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.spark import exactly_once
from rocketspark.spark.exactly_once import Attempt, Sent, ends, moments
from rocketspark.spark.options import parse_write

# The commit topic lies on the first broker by name.
COMMIT_BROKER, TARGET_BROKER = "broker-a", "broker-b"
PARTITIONS, ROWS = 2, 20
QUERY = "4381cd59-feb5-410d-9c5f-fd0298db02ba"
IN_TASKS = ("halves under way", "halves sent", "task done")
IN_COMMIT = tuple(moment for moment in moments.MOMENTS if moment not in IN_TASKS)
APACHE = [pytest.mark.java, pytest.mark.xdist_group("jvm")]
names = (f"exact{number}" for number in itertools.count())


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(
    scope="module",
    params=["ours", pytest.param("apache", marks=APACHE)],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if request.param == "apache" and (missing := missing_tools()):
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing)
        pytest.skip(missing)
    made = Servers(request.param, tmp_path_factory.mktemp(f"exact-{request.param}"), dict(CONFIG))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is under way when kills fall where they do here, but for one row, which sets its own."""
    monkeypatch.setattr(ends, "DRAIN_S", 0.2)


class Query:
    """A query with a topic of its own, which is on one broker only; the commit topic is on the other."""

    def __init__(self, servers: Servers, **options: str) -> None:
        self.servers = servers
        self.name = next(names)
        given = {"namesrv": servers.namesrv, "topic": self.name, "delivery": "exactly-once"}
        self.options = parse_write(given | {"transactionalId": self.name} | options)
        self.written: Counter[bytes] = Counter()
        asyncio.run(self._make_topic())

    async def _make_topic(self) -> None:
        async with AsyncProducer(self.servers.namesrv, "maker") as producer:
            instance = producer._instance
            info = await instance.routes.ask(requests.cluster_info)
            peer = await instance.broker(info.broker_addr_table[TARGET_BROKER].broker_addrs[0])
            await requests.create_topic(peer, self.name, read_queue_count=2, write_queue_count=2)
            while True:
                try:
                    await instance.routes.refresh(self.name)
                    return
                except RocketSparkError:
                    await asyncio.sleep(0.02)

    # -- what Spark does -----------------------------------------------------------------------------------------

    def plan(self) -> None:
        """The driver plans a batch."""
        exactly_once.open_log(self.options)

    def attempt(self, batch: int, partition: int, rows: Sequence[bytes] | None = None) -> Sent:
        """A task attempt."""
        rows = rows if rows is not None else bodies(batch, partition)
        frame = pa.record_batch({"body": pa.array(list(rows), pa.binary())})
        return exactly_once.send_attempt(iter([frame]), self.options, Attempt(QUERY, batch, partition))

    def task(self, batch: int, partition: int, *, rerun_killed: bool = False) -> Sent:
        """A task: Spark makes four attempts."""
        for left in range(3, -1, -1):
            try:
                return self.attempt(batch, partition)
            except RocketSparkError:
                if not left:
                    raise
            except Killed:
                if not rerun_killed:
                    raise
        raise AssertionError

    def tasks(self, batch: int, **how: Any) -> list[Sent]:
        self.plan()
        return [self.task(batch, partition, **how) for partition in range(PARTITIONS)]

    def run(self, batch: int) -> None:
        """A batch in which nothing happens."""
        exactly_once.commit(self.tasks(batch), self.options, batch)

    def expect(self, *batches: int) -> None:
        """What is visible is these batches, each row once."""
        wanted = Counter(body for b in batches for p in range(PARTITIONS) for body in bodies(b, p))
        assert self.visible() == wanted

    def visible(self) -> Counter[bytes]:
        """All messages that consumers see."""
        return Counter(stored.body for stored in asyncio.run(stored_in(self.servers.namesrv, self.name)))


def bodies(batch: int, partition: int) -> list[bytes]:
    return [b"%d/%d/%d" % (batch, partition, row) for row in range(ROWS)]


async def stored_in(namesrv: str, topic: str) -> list[record.Record]:
    """All records of a topic, up to a message sent last: what was stored before it is seen before it."""
    found: list[record.Record] = []
    async with AsyncProducer(namesrv, "reader", retries=20) as producer:
        for queue in await producer.queues(topic):
            await producer.send(Message(topic=topic, body=b"the end"), queue=queue)
            found += await up_to_the_end(producer, queue)
    return found


async def up_to_the_end(producer: AsyncProducer, queue: MessageQueue) -> list[record.Record]:
    found: list[record.Record] = []
    peer = await producer._instance.master_of(queue)
    at, last = 0, None
    end = await requests.max_offset(peer, queue)
    while last is None or at < end or last.body != b"the end":
        header = PullHeader(
            group="reader",
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=at,
            count_max=32,
            sys_flag=4,
            commit_offset=0,
            suspend_ms=0,
            subscription="*",
            subscription_version=0,
            expression_type="TAG",
        )
        pulled = await requests.pull(peer, header)
        if pulled.code == ResponseCode.SUCCESS:
            for stored in record.decode_all(pulled.records):
                last = stored
                if stored.body != b"the end":
                    found.append(stored)
        at = max(at, pulled.header.next_offset)
        end = await requests.max_offset(peer, queue)
    return found


class Once:
    """Acts at a moment, the first time it is passed."""

    def __init__(self, moment: str, act: Callable[[], None]) -> None:
        self.moment, self.act, self.passed = moment, act, False

    def __call__(self, moment: str) -> None:
        if moment == self.moment and not self.passed:
            self.passed = True
            self.act()

    def __enter__(self) -> Once:
        moments.listener = self
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        moments.listener = None
        if kind is None:
            assert self.passed, self.moment


def die() -> None:
    raise Killed


# -- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", IN_TASKS)
def test_a_task_is_killed(servers: Servers, moment: str) -> None:
    query = Query(servers)
    query.run(0)
    with Once(moment, die):
        sent = query.tasks(1, rerun_killed=True)
    exactly_once.commit(sent, query.options, 1)
    query.run(2)
    query.expect(0, 1, 2)


@pytest.mark.parametrize("moment", moments.MOMENTS)
def test_the_driver_is_killed(servers: Servers, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies with all its executors; it comes back and runs the batch again."""
    if moment == "ends sent":
        # Ends that the dead driver told may still be under way.
        monkeypatch.undo()
    query = Query(servers)
    query.run(0)
    with Once(moment, die), pytest.raises(Killed):
        query.run(1)
    query.run(1)
    query.run(2)
    query.expect(0, 1, 2)


@pytest.mark.parametrize("moment", IN_COMMIT)
def test_the_process_that_commits_is_killed(servers: Servers, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python process of the commit dies, the driver's JVM does not: it aborts the batch, and the query ends."""
    if moment == "ends sent":
        monkeypatch.undo()
    query = Query(servers)
    query.run(0)
    sent = query.tasks(1)
    with Once(moment, die), pytest.raises(Killed):
        exactly_once.commit(sent, query.options, 1)
    exactly_once.abort(sent, query.options)
    query.run(1)
    query.run(2)
    query.expect(0, 1, 2)


def kill_rows() -> Iterator[Any]:
    """(servers, broker, moment). What takes an official broker long without telling more is left to `make soak`."""
    telling = {
        TARGET_BROKER: ("halves under way", "recorded", "ends sent", "some ends"),
        COMMIT_BROKER: ("halves sent", "before record", "record sent", "before ended"),
    }
    for whose, broker, moment in itertools.product(("ours", "apache"), telling, moments.MOMENTS):
        marks = APACHE if whose == "apache" else []
        if whose == "apache" and moment not in telling[broker]:
            marks = [*marks, pytest.mark.soak]
        yield pytest.param(whose, broker, moment, marks=marks, id=f"{whose}-{broker}-{moment}")


@pytest.mark.parametrize(("servers", "broker", "moment"), list(kill_rows()), indirect=["servers"])
def test_a_broker_is_killed(servers: Servers, broker: str, moment: str) -> None:
    """It comes back at another address; Spark runs a batch again that could not be committed meanwhile."""
    query = Query(servers)
    query.run(0)

    def kill() -> None:
        servers.kill(broker)
        servers.start_broker(broker)

    with Once(moment, kill):
        for left in range(3, -1, -1):
            try:
                query.run(1)
                break
            except RocketSparkError:
                if not left:
                    raise
    query.run(2)
    query.expect(0, 1, 2)
