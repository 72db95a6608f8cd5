"""Outbox and idempotent consumers on our server, over real sockets: brokers and relays killed in between."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.recipes.conftest import Tables
from tests.support.ports import server_ports

from rocketspark import AsyncProducer, AsyncPushConsumer, Message, Producer, PullConsumer, PushConsumer, SendResult
from rocketspark.cli import main
from rocketspark.errors import MessageIllegal
from rocketspark.recipes import AsyncOutbox, Kept, Outbox, OutboxStore, SeenStore, State, deduplicate
from rocketspark.testing import Cluster, run_cluster, run_server_process

pytestmark = pytest.mark.shows("`Outbox` and its command")

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        yield running


@pytest.fixture
def store(database: Tables) -> Iterator[OutboxStore]:
    store = OutboxStore(database.url)
    store.create_tables()
    yield store
    store.close()


class Reader:
    """Reads a topic from its beginning, in a thread: `got` in order; `reached` waits for so many different bodies."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.got: list[Any] = []
        self._topic = topic
        self._news = threading.Condition()
        self._closing = False
        self._consumer = PullConsumer(namesrv, f"reader-{topic}", consume_from="first", auto_commit=False)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Reader:
        self._consumer.start()
        self._consumer.assign(self._consumer.queues(self._topic))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join(LIMIT_S)
        self._consumer.close()

    def _read(self) -> None:
        while not self._closing:
            messages = self._consumer.poll(100)
            with self._news:
                self.got += messages
                self._news.notify_all()

    def reached(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len({m.body for m in self.got}) >= count, LIMIT_S)


def relay(url: str, namesrv: str) -> subprocess.Popen[str]:
    """A relay that has begun, and takes signals."""
    command = [sys.executable, "-m", "rocketspark.cli.main", "outbox", "relay", "--lease", "1"]
    process = subprocess.Popen([*command, "--database", url, "--namesrv", namesrv], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    if not line.startswith("relaying "):
        process.kill()
        pytest.fail(line + process.communicate()[1])
    return process


def test_relays_that_are_killed_lose_nothing_and_keep_each_key_in_order(
    database: Tables, store: OutboxStore, cluster: Cluster
) -> None:
    topic, count = f"kills-{database.mark == '?':d}", 800
    with Producer(cluster.namesrv) as producer:
        cluster_topic(producer, topic)
        outbox = Outbox(producer, store)
        with store.database.transaction() as connection:
            for i in range(count):
                outbox.add(connection, topic, b"%d" % i, key=f"k{i}", sharding_key=f"s{i % 7}")
    relays: list[subprocess.Popen[str]] = []
    try:
        with Reader(cluster.namesrv, topic) as reader:
            for goal in (1, 150, 400):
                relays.append(relay(database.url, cluster.namesrv))
                reader.reached(goal)
                relays[-1].kill()
                relays[-1].wait()
            relays += [relay(database.url, cluster.namesrv) for _ in range(2)]
            reader.reached(count)
            deadline_s = time.monotonic() + LIMIT_S
            while store.count()[State.WAITING]:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            for process in relays[-2:]:
                process.terminate()
            assert [process.wait(LIMIT_S) for process in relays[-2:]] == [0, 0]
            got = reader.got
    finally:
        for process in relays:
            process.kill()
            process.communicate()
    firsts: dict[int, str] = {}
    for message in got:
        # Sent again under the id of its first send, and with its key.
        assert firsts.setdefault(int(message.body), message.message_id) == message.message_id
        assert message.properties["outbox_key"] == f"k{int(message.body)}"
    assert sorted(firsts) == list(range(count))
    by_key: defaultdict[int, list[int]] = defaultdict(list)
    for i in firsts:
        by_key[i % 7].append(i)
    assert all(order == sorted(order) for order in by_key.values())
    assert store.count() == {State.WAITING: 0, State.PARKED: 0, State.SENT: count}


def cluster_topic(producer: Producer, topic: str) -> None:
    """Have the topic there: a first send would make it as well, but a reader asks for its queues before."""
    producer.create_topic(topic)


def test_what_is_sent_while_the_broker_is_down_arrives_when_it_is_up(tmp_path: Path) -> None:
    store = OutboxStore(f"sqlite:///{tmp_path / 'box.db'}")
    store.create_tables()
    with run_server_process(tmp_path / "store", **server_ports()) as server, Producer(server.namesrv) as producer:
        cluster_topic(producer, "down")
        with Outbox(producer, store, backoff_ms=50, backoff_max_ms=200, poll_ms=50) as outbox:
            assert isinstance(outbox.send_or_keep("down", b"0", sharding_key="s"), SendResult)
            server.kill()
            kept = [outbox.send_or_keep("down", b"%d" % i, sharding_key="s", timeout_ms=300) for i in range(1, 6)]
            assert [isinstance(k, Kept) and k.is_new for k in kept] == [True] * 5
            assert isinstance(kept[0], Kept)
            assert kept[0].error is not None
            server.restart()
            with Reader(server.namesrv, "down") as reader:
                reader.reached(6)
                bodies = list(dict.fromkeys(int(m.body) for m in reader.got))
    assert bodies == list(range(6))


def test_a_transfer_is_booked_once_though_it_is_delivered_again(database: Tables, cluster: Cluster) -> None:
    topic = f"transfer-{database.mark == '?':d}"
    seen = SeenStore(database.url)
    seen.create_tables()
    database.run("CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
    database.run("INSERT INTO account VALUES ('a', 0)")
    booked = threading.Semaphore(0)
    failures = iter([True, False] * 1000)

    @deduplicate(store=seen, by="key", scope="bank")
    def book(message: Any, connection: Any) -> None:
        connection.execute(
            f"UPDATE account SET balance = balance + {database.mark} WHERE name = 'a'", (int(message.body),)
        )
        if next(failures):
            raise RuntimeError("fails at every other call")

    def listener(message: Any) -> None:
        book(message)
        booked.release()

    with Producer(cluster.namesrv) as producer:
        cluster_topic(producer, topic)
        for _ in range(3):
            for i in range(1, 11):
                producer.send(topic, b"%d" % i, keys=[f"transfer-{i}"])
    # Ordered: a failure is repeated here, at once.
    consumer = PushConsumer(cluster.namesrv, topic, consume_from="first", ordered=True, suspend_ms=10)
    consumer.subscribe(topic)
    consumer.listen(listener)
    with consumer:
        for _ in range(30):
            assert booked.acquire(timeout=LIMIT_S)
    assert database.run("SELECT balance FROM account") == [(55,)]


def test_coroutines_consume_once_what_an_outbox_sent_twice(
    database: Tables, store: OutboxStore, cluster: Cluster
) -> None:
    topic = f"twice-{database.mark == '?':d}"
    seen = SeenStore(store.database)
    seen.create_tables()
    database.run("CREATE TABLE done (id TEXT NOT NULL)")

    async def main() -> None:
        came: asyncio.Queue[int] = asyncio.Queue()

        @deduplicate(store=seen)
        async def work(messages: list[Any], connection: Any) -> None:
            for message in messages:
                executed = connection.execute(f"INSERT INTO done VALUES ({database.mark})", (message.message_id,))
                if database.mark == "%s":
                    await executed

        async def listener(messages: list[Any]) -> None:
            await work(messages)
            came.put_nowait(len(messages))

        async with AsyncProducer(cluster.namesrv) as producer:
            await producer.create_topic(topic)
            async with AsyncOutbox(producer, store, relay=False) as outbox:
                async with store.database.transaction_async() as connection:
                    for i in range(20):
                        await outbox.add(connection, topic, b"%d" % i)
                assert (await outbox.relay_once()).sent == 20
                # As after a kill between the send and writing it down.
                database.run("UPDATE rocketspark_outbox SET state = 'waiting', body = ?", b"again")
                assert (await outbox.relay_once()).sent == 20
        consumer = AsyncPushConsumer(cluster.namesrv, topic, consume_from="first", batch_max=8)
        consumer.subscribe(topic)
        consumer.listen(listener)
        async with asyncio.timeout(LIMIT_S), consumer:
            got = 0
            while got < 40:
                got += await came.get()

    asyncio.run(main())
    sent = [entry.message_id for entry in store.entries(State.SENT)]
    assert len(sent) == 20
    assert sorted(row[0] for row in database.run("SELECT id FROM done")) == sorted(sent)


def test_the_command_shows_resends_drops_and_relays(
    database: Tables, store: OutboxStore, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"command-{database.mark == '?':d}"

    def command(*arguments: str) -> tuple[int, Any]:
        code = main.run(["outbox", *arguments, "--database", database.url])
        out = capsys.readouterr()
        return code, [json.loads(line) for line in out.out.splitlines()] if "--json" in arguments else out.out + out.err

    with Producer(cluster.namesrv) as producer:
        cluster_topic(producer, topic)
        outbox = Outbox(producer, store)
        with store.database.transaction() as connection:
            outbox.add(connection, Message(topic=topic, body=b"42 apples", tag="fruit"), key="order-1")
            outbox.add(connection, topic, b"\xff\x00", key="order-2", sharding_key="s")
            outbox.add(connection, topic, b"3", key="order-3")
    # As if a newer version had written what this one takes for illegal.
    database.run("UPDATE rocketspark_outbox SET topic = 'no topic' WHERE outbox_key = 'order-3'")
    code, (first, second, third) = command("list", "--json")
    assert (code, first["key"], first["topic"], first["state"], first["body_bytes"]) == (
        0,
        "order-1",
        topic,
        "waiting",
        9,
    )
    assert (second["sharding_key"], third["topic"]) == ("s", "no topic")
    assert command("show", "order-1", "--json")[1][0] | first == command("show", "order-1", "--json")[1][0]
    assert command("show", "order-1", "--json")[1][0]["body"] == "42 apples"
    assert command("show", "order-2", "--json")[1][0]["body_base64"] == "/wA="
    assert "tag: fruit" in command("show", "order-1")[1]

    relay = ("relay", "--once", "--namesrv", cluster.namesrv)
    code, text = command(*relay)
    assert (code, "sent 2, failed attempts 0, parked 1" in text) == (1, True)
    assert "error: not everything could be sent: see `rocketspark outbox list`" in text
    assert command("list", "--state", "sent", "--json")[1][1]["key"] == "order-2"
    (parked,) = command("list", "--json")[1]
    assert (parked["key"], parked["state"], parked["attempts"]) == ("order-3", "parked", 1)
    assert parked["error"].startswith(MessageIllegal.__name__)
    assert "order-3" in command("list")[1]
    assert command("resend", "--parked", "--json") == (0, [{"resent": 1}])
    assert command(*relay, "--json")[1][0]["parked"] == 1
    assert command("drop", "order-3")[0] == 2
    assert command("drop", "order-3", "--yes", "--json") == (0, [{"dropped": 1}])
    code, text = command("drop", "order-3", "--yes")
    assert (code, text.count("\n"), "'order-3' is not in rocketspark_outbox" in text) == (1, 1, True)
    code, text = command("show", "nobody")
    assert (code, text.count("\n")) == (1, 1)
    code, text = command("list", "--table", "none")
    assert (code, text.count("\n"), "create_tables()" in text) == (1, 1, True)
