"""Topics with compaction on a broker: what pull and pop find, sends without a key, retention, restarts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import TOPIC, connected, create, pull, records, run, sent, until
from tests.live.test_broker_retention import Disk, small_broker
from tests.live.test_replication import Pair

from rocketspark import Message, MessageQueue, Producer, PullConsumer, SimpleConsumer, read_batches, read_table
from rocketspark.admin import Admin
from rocketspark.errors import RocketSparkError, SendFailed
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("topics with cleanup.policy=COMPACTION: the newest message of each key is kept")

SMALL: dict[str, Any] = {
    "compaction_units_bytes": 4096,
    "compaction_log_bytes": 20480,
    "compaction_interval_ms": 100,
    "log_file_bytes": 65536,
}
KEYS = [f"k{n % 5}" for n in range(300)]


def fill(cluster: Cluster, topic: str) -> MessageQueue:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(topic, queue_count=1, attributes="+cleanup.policy=COMPACTION")
    with Producer(cluster.namesrv) as producer:
        queue = producer.send(topic, b"first", keys="once").queue
        for n, key in enumerate(KEYS):
            producer.send(topic, b"%d" % n, keys=key)
    return queue


def first_gone(cluster: Cluster, queue: MessageQueue, behind: int = 1) -> None:
    """Wait until a message is read no more that another one of its key followed: that after the first, or all up to
    `behind`.
    """
    end = time.monotonic() + 30
    with PullConsumer(cluster.namesrv, "looks") as consumer:
        consumer.assign([queue])
        while True:
            consumer.seek(queue, 1)
            if consumer.poll(timeout_ms=5000)[0].queue_offset > behind:
                return
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.shows("mended: option compacted has no row of keys whose message a broker compacts while they are read")
def test_a_table_of_the_newest_has_keys_that_are_compacted_meanwhile() -> None:
    with run_cluster(**SMALL) as cluster:
        queue = fill(cluster, "prices")
        with read_batches(cluster.namesrv, "prices", compacted=True, columns=["keys", "body"]) as planned:
            with Producer(cluster.namesrv) as producer:
                for n, key in enumerate(KEYS * 2):
                    producer.send("prices", b"%d" % (1000 + n), keys=key)
            first_gone(cluster, queue, behind=len(KEYS))
            found = {
                row["keys"][0]: int(row["body"]) for row in planned.read_all().to_pylist() if row["body"] != b"first"
            }
    assert found == {f"k{n}": 1595 + n for n in range(5)}


@pytest.mark.shows("mended: a read of Spark's takes messages for lost whose place a compaction has passed")
def test_the_first_messages_of_a_queue_may_be_compacted_under_a_read() -> None:
    with run_cluster(**SMALL) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("places", queue_count=1, attributes="+cleanup.policy=COMPACTION")
        with Producer(cluster.namesrv) as producer:
            queues = {producer.send("places", b"%d" % n, keys=key).queue for n, key in enumerate(KEYS[:40])}
            with read_batches(cluster.namesrv, "places", columns=["queueOffset"]) as planned:
                for n, key in enumerate(KEYS * 2):
                    producer.send("places", b"%d" % n, keys=key)
                first_gone(cluster, *queues, behind=40)
                assert planned.read_all().num_rows == 0
        start = dict.fromkeys(queues, 20)
        found = read_table(cluster.namesrv, "places", start=start, columns=["queueOffset"])["queueOffset"].to_pylist()
        assert found[0] > 40
        assert found[-1] == 639


@pytest.mark.shows("mended: option store leaves out what only the compaction log of a topic holds, without a word")
def test_a_store_read_tells_what_only_the_compaction_log_holds(tmp_path: Path) -> None:
    with run_cluster(store=tmp_path, **SMALL) as cluster:
        fill(cluster, "prices")
    folder = tmp_path / "broker-a"
    assert read_table(store=folder, topic="prices", compacted=True).num_rows == 6
    min((folder / "commitlog").iterdir()).unlink()
    with pytest.raises(DataLost, match=r"messages 0 to \d+ of queue 0 .* option store reads no compaction log"):
        read_table(store=folder, topic="prices", compacted=True)
    assert read_table(store=folder, topic="prices", compacted=True, fail_on_data_loss=False).num_rows == 5


def test_clients_read_the_newest_of_each_key() -> None:
    with run_cluster(**SMALL) as cluster:
        queue = fill(cluster, "prices")
        first_gone(cluster, queue)
        with PullConsumer(cluster.namesrv, "readers", consume_from="first") as consumer:
            consumer.assign([queue])
            found: list[tuple[int, bytes]] = []
            while not found or found[-1][0] < 300:
                found += [(m.queue_offset, m.body) for m in consumer.poll(timeout_ms=5000)]
        assert found[0] == (0, b"first")
        assert found[-5:] == [(offset, b"%d" % (offset - 1)) for offset in range(296, 301)]
        assert len(found) < 250
        with SimpleConsumer(cluster.namesrv, "poppers", consume_from="first") as popper:
            popper.subscribe("prices")
            popped: list[int] = []
            while not popped or max(popped) < 300:
                messages = popper.receive(count_max=32)
                popped += [m.queue_offset for m in messages]
                for message in messages:
                    popper.ack(message)
        assert sorted(popped) == [offset for offset, _ in found]


def test_a_message_without_a_key_is_refused() -> None:
    with run_cluster(**SMALL) as cluster, Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        admin.create_topic("keyed", attributes="+cleanup.policy=COMPACTION")
        admin.create_topic("plain")
        for wrong in ("COMPACTION", "SHREDDING"):
            with pytest.raises(RocketSparkError, match=r"cleanup\.policy"):
                admin.create_topic("plain", attributes=f"+cleanup.policy={wrong}")
        for topic in ("keyed", "keyed"):
            with pytest.raises(SendFailed, match="Required message key is missing"):
                producer.send(topic, b"x")
            with pytest.raises(SendFailed, match="Required message key is missing"):
                producer.send_batch([Message(topic, b"x", keys="a"), Message(topic, b"y")])
            producer.send_batch([Message(topic, b"x", keys="a"), Message(topic, b"y", keys="b")])
        with pytest.raises(RocketSparkError, match="a batch has no key"):
            admin.create_topic("both", attributes="+cleanup.policy=COMPACTION,+queue.type=BatchCQ")


def test_what_is_kept_outlives_the_log_and_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        changes = SMALL | {"delete_when": "", "reserved_hours": 0}
        async with small_broker(tmp_path, Disk(), **changes) as server, connected(server.address) as peer:
            await create(peer, attributes="+cleanup.policy=COMPACTION")
            for n in range(200):
                await sent(peer, b"%4d" % n + bytes(1024), pairs={"KEYS": {2: "k7", 50: "k8"}.get(n, f"k{n % 5}")})
            await until(lambda: server.store.flushed_position == server.store.written_position)
            (await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)).raise_for_code("clean")
            low = await until(lambda: server.store.queue_range(TOPIC, 0)[0])
            assert low > 100
            await until(lambda: server.store.readable_range(TOPIC, 0)[0] == 2)
            kept = await all_of(peer)
            assert kept[:2] == [2, 50]
            assert kept[-5:] == list(range(195, 200))
            assert len(kept) < 100
            answer = await peer.request(RequestCode.GET_MIN_OFFSET, headers.QueueHeader(topic=TOPIC, queue_id=0))
            assert answer.header(headers.OffsetReply).offset == 2
        async with small_broker(tmp_path, Disk(), **changes) as server, connected(server.address) as peer:
            assert (await all_of(peer))[-6:] == kept[-6:]
            await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=TOPIC))
            assert not (tmp_path / "compaction/compactionLog" / TOPIC).exists()

    async def all_of(peer: Peer) -> list[int]:
        offsets, at = [], 0
        while at < 200:
            answer = await pull(peer, TOPIC, 0, at)
            offsets += [r.queue_offset for r in records(answer)]
            at = answer.header(headers.PullReply).next_offset
        return offsets

    run(main())


def test_a_slave_that_joins_later_has_what_the_master_kept(tmp_path: Path) -> None:
    async def main() -> None:
        changes = SMALL | {
            "delete_when": "",
            "reserved_hours": 0,
            "clean_interval_ms": 50,
            "broker_role": "ASYNC_MASTER",
        }
        p = Pair(tmp_path, **changes, flush_interval_ms=20)
        await p.namesrv.start()
        try:
            master = await p.start(0)
            async with connected(master.address) as peer:
                await create(peer, attributes="+cleanup.policy=COMPACTION")
                for n in range(200):
                    await sent(peer, b"%4d" % n + bytes(1024), pairs={"KEYS": "once" if n == 3 else f"k{n % 5}"})
                await until(lambda: master.store.flushed_position == master.store.written_position)
                await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
                await until(lambda: master.store.queue_range(TOPIC, 0)[0] > 100)
                await until(lambda: master.store.readable_range(TOPIC, 0)[0] == 3)
            slave = await p.start(1, broker_role="SLAVE")
            await until(lambda: slave.store.readable_range(TOPIC, 0) == (3, 200))
            low = slave.store.queue_range(TOPIC, 0)[0]
            assert low > 100
            log = slave.store.compaction.logs[TOPIC, 0]
            await until(lambda: log.next == 200)
            assert next(unit.offset for _, unit in log.units(0)) == 3
        finally:
            for broker_id in list(p.brokers):
                await p.stop(broker_id)
            await p.namesrv.close()

    run(main())


@pytest.mark.shows("compaction: after a failover the replica serves what it has compacted, the newest of each key")
def test_the_replica_of_a_lost_master_serves_what_is_left_of_each_key() -> None:
    with run_cluster(replicas=2, **SMALL) as cluster:
        queue = fill(cluster, "prices")
        first_gone(cluster, queue)
        cluster.wait_in_sync(2)
        cluster.kill_master()
        newest: dict[str, bytes] = {}
        with PullConsumer(cluster.namesrv, "reads") as consumer:
            consumer.assign([queue])
            consumer.seek(queue, 0)
            while len(newest) < 6 or newest["k4"] != b"299":
                for message in consumer.poll(timeout_ms=1000):
                    newest[message.keys[0]] = message.body
        assert newest == {"once": b"first"} | {f"k{n}": b"%d" % (295 + n) for n in range(5)}
        # It compacts by itself.
        first_gone(cluster, queue, behind=200)
