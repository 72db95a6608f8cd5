"""Exactly once, whoever is killed at whichever moment, on both kinds of brokers (docs/develop/exactly_once.md).

Spark's part is played here: its tasks, retried as it does, and its driver's commit; the writers themselves and all
brokers are real. Kills fall at named moments, so nothing depends on timing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.clients.conftest import CONFIG
from tests.clients.outages import Servers
from tests.java.driver import missing_tools
from tests.support.patience import LIMIT_MS

from rocketspark.admin.operations import Admin
from rocketspark.client import AsyncProducer
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import ConfigError, ConnectionLost, RocketSparkError, SendFailed
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import properties, record
from rocketspark.spark import exactly_once
from rocketspark.spark.exactly_once import (
    SentAttempt,
    TaskAttempt,
    broker_abilities,
    commit_records,
    end_transactions,
    failpoints,
)
from rocketspark.spark.exactly_once import half_messages as halves
from rocketspark.spark.exactly_once.batch_commit import TakenOver
from rocketspark.spark.exactly_once.commit_topic import CommitTopic
from rocketspark.spark.write import row_sender
from rocketspark.spark.write import rows as rows_module
from rocketspark.tables.options import parse_write

pytestmark = pytest.mark.shows(
    "exactly once: each row of the table of kills on our broker and on Apache's",
    "mended: code 3 to batches or ranges at once or in the midst, by who still says that it takes them; the "
    "connection ended at each",
    "the table of kills with batches and ranges, failovers too",
)

# The commit topic lies on the first broker by name.
COMMIT_BROKER, TARGET_BROKER = "broker-a", "broker-b"
PARTITIONS, ROWS = 2, 60
QUERY = "4381cd59-feb5-410d-9c5f-fd0298db02ba"
IN_TASKS = ("halves under way", "halves sent", "task done")
IN_COMMIT = tuple(moment for moment in failpoints.MOMENTS if moment not in IN_TASKS)
APACHE = [pytest.mark.java, pytest.mark.xdist_group("jvm")]
names = (f"exact{number}" for number in itertools.count())


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(
    scope="module",
    # On the official broker each row takes seconds: those but a few of the kills below are for `make soak`.
    params=["ours", pytest.param("apache", marks=[*APACHE, pytest.mark.soak])],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if request.param == "apache" and (missing := missing_tools()):
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing)
        pytest.skip(missing)
    made = Servers(
        request.param, tmp_path_factory.mktemp(f"exact-{request.param}"), dict(CONFIG) | {"transactionCheckMax": "3"}
    )
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is under way when kills fall where they do here, but for one row, which sets its own."""
    monkeypatch.setattr(end_transactions, "DRAIN_S", 0.2)
    monkeypatch.setattr(end_transactions, "GUARD_S", 0.0)


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task sends several batches of half messages, and their ends are several requests."""
    monkeypatch.setattr(halves, "BATCH_ROWS_MAX", 30)
    monkeypatch.setattr(end_transactions, "RANGE_ROWS_MAX", 20)
    monkeypatch.setattr(end_transactions, "RANGES_IN_FLIGHT_MAX", 1)


@pytest.fixture
def soon_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers ask for half messages that are a second old."""
    monkeypatch.setattr(halves, "IMMUNITY_S", 1)


class Query:
    """A query with a topic of its own, which is on one broker only; the commit topic is on the other."""

    def __init__(self, servers: Servers, **options: str) -> None:
        self.servers = servers
        self.name = next(names)
        given = {"namesrv": servers.namesrv, "topic": self.name, "delivery": "exactly-once", "sendTimeoutMs": "60000"}
        self.options = parse_write(given | {"transactionalId": self.name} | options)
        asyncio.run(self._make_topic())

    async def _make_topic(self) -> None:
        async with AsyncProducer(self.servers.namesrv, "maker") as producer:
            instance = producer._instance
            info = await instance.routes.ask(admin_api.cluster_info)
            peer = await instance.broker(info.broker_addr_table[TARGET_BROKER].broker_addrs[0])
            await admin_api.create_topic(
                peer, TopicConfig(topic_name=self.name, read_queue_nums=2, write_queue_nums=2), timeout_ms=LIMIT_MS
            )
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

    def attempt(self, batch: int, partition: int, rows: Sequence[bytes] | None = None) -> SentAttempt:
        """A task attempt."""
        rows = rows if rows is not None else bodies(batch, partition)
        frame = pa.record_batch({"body": pa.array(list(rows), pa.binary())})
        return exactly_once.send_attempt(iter([frame]), self.options, TaskAttempt(QUERY, batch, partition))

    def task(self, batch: int, partition: int, *, rerun_killed: bool = False) -> SentAttempt:
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

    def tasks(self, batch: int, **how: Any) -> list[SentAttempt]:
        self.plan()
        return [self.task(batch, partition, **how) for partition in range(PARTITIONS)]

    def run(self, batch: int) -> None:
        """A batch in which nothing happens."""
        exactly_once.commit(self.tasks(batch), self.options, batch)

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """A task's client lives, and is asked by brokers."""
        with LoopThread() as loop:
            log = CommitTopic(self.options)
            loop.run(greeted(log))
            try:
                yield
            finally:
                loop.run(log.close())

    def wait_until_all_ended(self) -> None:
        """No half message of this query is open on the target broker any more."""
        with self.connected():
            until(lambda: not asyncio.run(self._open()), 120)

    async def _open(self) -> set[int]:
        """Half queue offsets. An official broker puts back one that is open; it has looked at all below `done`."""
        async with AsyncProducer(self.servers.namesrv, "reader") as producer:
            await producer.queues(self.name)
            queue = MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", TARGET_BROKER, 0)
            peer = await producer._instance.master_of(queue)
            done = await client_api.query_consumer_offset(peer, queue, "CID_RMQ_SYS_TRANS") or 0
            marks = await all_of(producer, MessageQueue("RMQ_SYS_TRANS_OP_HALF_TOPIC", TARGET_BROKER, 0))
            halves = await all_of(producer, queue)
        ended = {int(n) for mark in marks for n in mark.body.decode().split(",") if n}
        group = f"PGROUP\x01SPARK_TX_{self.name}\x02".encode()
        return {half.queue_offset for half in halves if half.queue_offset >= done and group in half.properties} - ended

    def given_up(self) -> int:
        """How many half messages the target broker has given up."""

        async def ask() -> int:
            async with AsyncProducer(self.servers.namesrv, "reader") as producer:
                queue = MessageQueue("TRANS_CHECK_MAX_TIME_TOPIC", TARGET_BROKER, 0)
                await producer.queues(self.name)
                return await client_api.max_offset(await producer._instance.master_of(queue), queue)

        return asyncio.run(ask())

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
    while not found or found[-1].body != b"the end":
        found = await all_of(producer, queue)
    return [stored for stored in found if stored.body != b"the end"]


async def all_of(producer: AsyncProducer, queue: MessageQueue) -> list[record.Record]:
    """What a queue shows now."""
    found: list[record.Record] = []
    peer = await producer._instance.master_of(queue)
    at, end = await client_api.min_offset(peer, queue), await client_api.max_offset(peer, queue)
    while at < end:
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
        pulled = await client_api.pull(peer, header)
        if pulled.code == ResponseCode.SUCCESS:
            found += record.decode_all(pulled.records)
        at = max(at, pulled.header.next_offset)
    return found


async def greeted(log: CommitTopic) -> None:
    await log.start()
    await log.find()
    await log.instance.greet_all()


@pytest.fixture
def expire(monkeypatch: pytest.MonkeyPatch) -> Callable[[Query], None]:
    """What the commit topic of a query holds now has been deleted."""
    real = CommitTopic.bounds
    gone: dict[MessageQueue, int] = {}

    async def bounds(self: CommitTopic, queue: MessageQueue) -> tuple[int, int]:
        oldest, end = await real(self, queue)
        return max(oldest, gone.get(queue, 0)), end

    async def ends_now(query: Query) -> None:
        async with exactly_once.batch_commit._opened(query.options) as log:
            await log.find()
            for queue in (log._queue(0), log._queue(1)):
                gone[queue] = (await real(log, queue))[1]

    monkeypatch.setattr(CommitTopic, "bounds", bounds)
    return lambda query: asyncio.run(ends_now(query))


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __enter__(self) -> LoopThread:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def until(so: Callable[[], bool], patience_s: float) -> None:
    """Wait until it is so."""
    end_s = time.monotonic() + patience_s
    while not so():
        assert time.monotonic() < end_s
        time.sleep(0.1)


class Once:
    """Acts at a moment, the first time it is passed."""

    def __init__(self, moment: str, act: Callable[[], None]) -> None:
        self.moment, self.act, self.passed = moment, act, False

    def __call__(self, moment: str) -> None:
        if moment == self.moment and not self.passed:
            self.passed = True
            self.act()

    def __enter__(self) -> Once:
        failpoints.listener = self
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        failpoints.listener = None
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


@pytest.mark.parametrize("moment", failpoints.MOMENTS)
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
    brokers = (TARGET_BROKER, COMMIT_BROKER)
    for whose, broker, moment in itertools.product(("ours", "apache"), brokers, failpoints.MOMENTS):
        marks = APACHE if whose == "apache" else []
        if whose == "apache" and (broker, moment) != (TARGET_BROKER, "ends sent"):
            marks = [*marks, pytest.mark.soak]
        yield pytest.param(whose, broker, moment, marks=marks, id=f"{whose}-{broker}-{moment}")


def run_through(query: Query, moment: str, act: Callable[[], object]) -> None:
    """Batches 0 to 2; in 1 something happens. Spark would run a batch again if its query ended; so does this."""
    query.run(0)
    with Once(moment, act):
        for left in range(3, -1, -1):
            try:
                query.run(1)
                break
            except RocketSparkError:
                if not left:
                    raise
    query.run(2)
    query.expect(0, 1, 2)


@pytest.mark.parametrize(("servers", "broker", "moment"), list(kill_rows()), indirect=["servers"])
def test_a_broker_is_killed(servers: Servers, broker: str, moment: str) -> None:
    """It comes back at another address; Spark runs a batch again that could not be committed meanwhile."""

    def kill() -> None:
        servers.kill(broker)
        servers.start_broker(broker)

    run_through(Query(servers), moment, kill)


# -- two drivers --------------------------------------------------------------------------------------------------


def in_thread(work: Callable[[], None]) -> None:
    """Run what has an event loop of its own within a listener, which is called on another one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@pytest.mark.parametrize("moment", ["before record", "recorded", "some ends", "before ended"])
@pytest.mark.usefixtures("soon_asked")
def test_two_drivers_commit_the_same_batch(servers: Servers, moment: str) -> None:
    """While one is at this moment, the other one commits: of both, one is written."""
    query = Query(servers)
    query.run(0)
    one, other = query.tasks(1), query.tasks(1)
    meanwhile = Once(moment, lambda: in_thread(lambda: exactly_once.commit(other, query.options, 1)))
    # An official broker's ends are told by one of them alone: the first stops as soon as it sees the other.
    with meanwhile, contextlib.suppress(TakenOver):
        exactly_once.commit(one, query.options, 1)
    query.run(2)
    query.wait_until_all_ended()
    query.expect(0, 1, 2)


def test_a_driver_that_comes_late_is_refused(servers: Servers) -> None:
    query = Query(servers)
    query.run(0)
    late = query.tasks(1)
    query.run(1)
    exactly_once.commit(late, query.options, 1)
    query.run(2)
    with pytest.raises(ConfigError, match="has committed batch 2 of this query, and this is batch 1"):
        exactly_once.commit(late, query.options, 1)
    query.expect(0, 1, 2)


OTHERS = {"more": [b"new"] * (2 * ROWS + 1), "fewer": [b"new"] * ROWS, "others": [b"new"] * (2 * ROWS), "none": []}


@pytest.mark.shows(
    "a checkpoint one batch behind is refused, also when its batch has fewer or other rows, and when the "
    "record has expired"
)
@pytest.mark.parametrize("expired", [False, True], ids=["record", "kept numbers"])
@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS)
def test_an_older_checkpoint_whose_batch_has_other_rows_is_refused(
    servers: Servers, expire: Callable[[Query], None], rows: list[bytes], expired: bool
) -> None:
    """Its source has more by now, or gives them by other shares: no row is dropped without a word, none comes twice."""
    query = Query(servers)
    query.run(0)
    if expired:
        expire(query)
    attempt = query.attempt(0, 0, rows)
    with pytest.raises(ConfigError, match=f"this query's batch 0 .* this one has {len(rows)}.*older.*differingRepeat"):
        exactly_once.commit([attempt], query.options, 0)
    query.run(0)
    given = query.options._replace(first_rows_stay=True)
    exactly_once.commit([attempt], given, 0)
    query.run(1)
    query.expect(0, 1)


# -- what is left behind ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("soon_asked")
def test_an_aborted_batch_leaves_nothing(servers: Servers) -> None:
    query = Query(servers)
    sent = query.tasks(0)
    exactly_once.abort(sent, query.options)
    query.expect()
    query.wait_until_all_ended()
    # A commit that was under way comes too late.
    with pytest.raises(RocketSparkError, match="was aborted"):
        exactly_once.commit(sent, query.options, 0)
    query.run(0)
    query.expect(0)


@pytest.mark.parametrize("moment", IN_TASKS)
@pytest.mark.usefixtures("soon_asked")
def test_half_messages_of_dead_attempts_are_rolled_back(servers: Servers, moment: str) -> None:
    """By the commit where a manifest tells of them, else when the broker asks."""
    query = Query(servers)
    with Once(moment, die):
        sent = query.tasks(0, rerun_killed=True)
    exactly_once.commit(sent, query.options, 0)
    query.wait_until_all_ended()
    query.expect(0)


@pytest.mark.usefixtures("soon_asked")
def test_what_brokers_gave_up_is_committed_all_the_same(servers: Servers) -> None:
    """A batch that takes longer than all of a broker's questions."""
    query = Query(servers)
    before = query.given_up()
    sent = query.tasks(0)
    with query.connected():
        until(lambda: query.given_up() - before >= PARTITIONS * ROWS, 120)
    exactly_once.commit(sent, query.options, 0)
    query.expect(0)


# -- brokers that stay away ---------------------------------------------------------------------------------------


def test_a_broker_that_is_away_for_too_long(servers: Servers) -> None:
    query = Query(servers, commitTimeoutMs="1000")
    query.run(0)
    sent = query.tasks(1)
    with Once("recorded", lambda: servers.kill(TARGET_BROKER)), pytest.raises(RocketSparkError):
        exactly_once.commit(sent, query.options, 1)
    exactly_once.abort(sent, query.options)
    servers.start_broker(TARGET_BROKER)
    query.run(1)
    query.expect(0, 1)


def test_records_are_not_begun_anew_while_their_broker_is_away(servers: Servers) -> None:
    query = Query(servers, commitTimeoutMs="1000")
    query.run(0)
    servers.kill(COMMIT_BROKER)
    with pytest.raises(RocketSparkError, match=f"its commit topic SPARK_TX_{query.name} is down"):
        query.plan()
    servers.start_broker(COMMIT_BROKER)
    query.run(0)
    query.expect(0)


def test_a_commit_topic_made_by_hand_on_all_brokers_is_used_on_one(servers: Servers) -> None:
    query = Query(servers)
    with Admin(servers.namesrv) as operations:
        operations.create_topic(f"SPARK_TX_{query.name}", queue_count=2)
    query.run(0)
    query.run(1)
    query.expect(0, 1)
    with Admin(servers.namesrv) as operations:
        route = operations.show_topic(f"SPARK_TX_{query.name}").route
    assert {q.broker_name: q.perm for q in route.queues} == {COMMIT_BROKER: 6, TARGET_BROKER: 4}


# -- records that are gone ----------------------------------------------------------------------------------------


def test_the_last_batch_is_known_when_its_record_has_expired(servers: Servers, expire: Callable[[Query], None]) -> None:
    query = Query(servers)
    query.run(0)
    query.run(1)
    expire(query)
    with pytest.raises(ConfigError, match="this is batch 0"):
        query.run(0)
    query.run(1)
    query.run(2)
    # An aborted batch stands behind the last one that ended.
    expire(query)
    exactly_once.abort(query.tasks(3), query.options)
    expire(query)
    query.run(3)
    query.expect(0, 1, 2, 3)


def test_a_commit_topic_that_was_removed_meanwhile(servers: Servers) -> None:
    query = Query(servers)
    query.run(0)
    sent = query.tasks(1)
    with Admin(servers.namesrv) as operations:
        operations.delete_topic(f"SPARK_TX_{query.name}")
    query.plan()
    with pytest.raises(RocketSparkError, match="was removed, or an older copy of it restored"):
        exactly_once.commit(sent, query.options, 1)
    query.expect(0)


# -- more ---------------------------------------------------------------------------------------------------------


def test_batches_without_rows(servers: Servers) -> None:
    query = Query(servers)
    query.plan()
    exactly_once.commit([], query.options, 0)
    empty = [query.attempt(1, partition, []) for partition in range(PARTITIONS)]
    exactly_once.commit(empty, query.options, 1)
    exactly_once.abort(empty, query.options)
    query.run(2)
    query.plan()
    exactly_once.commit([], query.options, 3)
    query.expect(2)


def test_many_rows_and_several_manifests(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_records, "MANIFEST_ROWS_MAX", 300)
    monkeypatch.setattr(rows_module, "PART_ROWS_MAX", 250)
    query = Query(servers)
    query.plan()
    wanted = [b"%d" % n for n in range(1000)]
    sent = [query.attempt(0, 0, wanted)]
    assert sent[0].part is not None
    assert sent[0].part.last - sent[0].part.first == 3
    exactly_once.commit(sent, query.options, 0)
    assert query.visible() == Counter(wanted)


def test_rows_too_large_for_a_batch_go_alone(servers: Servers) -> None:
    query = Query(servers, maxBatchBytes="2000")
    query.plan()
    wanted = [b"%d " % n + b"x" * (5000 if n % 50 < 2 else n % 40) for n in range(200)]
    exactly_once.commit([query.attempt(0, 0, wanted)], query.options, 0)
    assert query.visible() == Counter(wanted)


def test_a_broker_that_takes_smaller_batches_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit of messages is below the size of batches: smaller ones are sent, and each row is stored once."""
    monkeypatch.setattr(halves, "BATCH_ROWS_MAX", 1000)
    monkeypatch.setattr(halves, "SMALL_BATCH_BYTES", 4000)
    sent: list[int] = []
    send = row_sender.RowSender.send

    async def counted(self: Any, out: Any, *args: Any) -> Any:
        sent.append(len(out.body))
        return await send(self, out, *args)

    monkeypatch.setattr(row_sender.RowSender, "send", counted)
    servers = Servers("ours", tmp_path, dict(CONFIG) | {"maxMessageSize": "9000"})
    with contextlib.closing(servers):
        query = Query(servers, maxBatchBytes="30000")
        query.plan()
        wanted = [b"%d " % n + b"x" * (5000 if n == 40 else 100) for n in range(100)]
        exactly_once.commit([query.attempt(0, 0, wanted)], query.options, 0)
        assert query.visible() == Counter(wanted)
    # One was refused at least; the rest are such as it takes, the large row alone.
    assert max(sent) > 9000
    assert sum(size > 4000 for size in sent if size <= 9000) == 1


@pytest.mark.parametrize(
    ("lost", "says"), [("before the halves", "no"), ("before the ends", "no"), ("before the ends", "yes")]
)
def test_a_broker_that_takes_no_batches_any_more(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, lost: str, says: str
) -> None:
    """It said that it takes them, and answers as an official one that took over; or as a proxy between."""
    code = {"before the halves": "SEND_HALF_BATCH", "before the ends": "END_HALF_RANGES"}[lost]
    unknown = SimpleNamespace(**dict(RequestCode.__members__) | {code: 7_399_999})
    query = Query(servers, commitTimeoutMs="10000")
    query.plan()
    monkeypatch.setattr({"SEND_HALF_BATCH": row_sender}.get(code, end_transactions), "RequestCode", unknown)
    told = broker_abilities.BrokerAbilities.runtime
    asked: list[str] = []

    async def runtime(self: Any, queue: MessageQueue) -> dict[str, str]:
        """From the second question on it says what it is."""
        asked.append(queue.broker_name)
        is_other = says == "no" and len(asked) > 3
        return {**await told(self, queue)} | ({"halfBatches": "false"} if is_other else {})

    monkeypatch.setattr(broker_abilities.BrokerAbilities, "runtime", runtime)
    sent = [query.task(0, partition) for partition in range(PARTITIONS)]
    exactly_once.commit(sent, query.options, 0)
    query.expect(0)
    assert len(asked) > 2


@pytest.mark.shows(
    "mended: a batch that was stored without an answer, its rows sent one by one then: after a check or a "
    "start a repeated end delivered the older copy too"
)
@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.usefixtures("soon_asked")
def test_what_stands_between_ends_the_connection_at_what_it_does_not_know(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    """Rows go, and end, one by one then; each is there once, and no half message stays open."""
    cuts: list[str] = []
    send, ask = row_sender.RowSender.send, end_transactions.ask_for_ranges

    async def cut(request: Coroutine[Any, Any, Any], what: str) -> None:
        cuts.append(what)
        if carried_out:
            await request
        request.close()
        raise ConnectionLost("cut off")

    async def sent(self: Any, out: Any, *args: Any) -> Any:
        request = send(self, out, *args)
        if out.code != RequestCode.SEND_HALF_BATCH:
            return await request
        try:
            await cut(request, "halves")
        except ConnectionLost as e:
            raise SendFailed(out.topic, e, attempts=1, brokers=(), cost_ms=0) from e

    monkeypatch.setattr(row_sender.RowSender, "send", sent)
    monkeypatch.setattr(end_transactions, "ask_for_ranges", lambda *args, **options: cut(ask(*args, **options), "ends"))
    query = Query(servers, commitTimeoutMs="10000")
    query.run(0)
    query.expect(0)
    query.wait_until_all_ended()
    query.expect(0)
    if cuts:
        assert "halves" in cuts
        assert cuts.count("ends") >= end_transactions.CUTS_MAX
    query.run(1)
    query.expect(0, 1)


def test_properties_of_what_is_written(servers: Servers) -> None:
    query = Query(servers)
    query.run(0)
    found = asyncio.run(stored_in(servers.namesrv, query.name))
    pairs = [properties.decode(stored.properties.decode()) for stored in found]
    assert {p["PGROUP"] for p in pairs} == {f"SPARK_TX_{query.name}"}
    assert Counter(p["DEDUPE_KEY"] for p in pairs) == Counter(
        f"{query.name}/0/{partition}/{row}" for partition in range(PARTITIONS) for row in range(ROWS)
    )
    assert len({p["UNIQ_KEY"] for p in pairs}) == PARTITIONS * ROWS
