"""A replica on an empty disk: what it has before it may be elected, of what its master's log has no more."""

from __future__ import annotations

import asyncio
import shutil
import time

import pytest
from tests.live.support import connected

from rocketspark import MessageQueue, Producer, PullConsumer
from rocketspark.admin import Admin
from rocketspark.protocol.codes import RequestCode
from rocketspark.testing import Cluster, run_cluster

SMALL = {
    "log_file_bytes": 65536,
    "queue_file_bytes": 20 * 50,
    "flush_interval_ms": 20,
    "reserved_hours": 0,
    "delete_when": "",
    "clean_interval_ms": 50,
    "clean_pause_ms": 0,
    "compaction_units_bytes": 4096,
    "compaction_log_bytes": 20480,
    "compaction_interval_ms": 100,
}
COMPACTED = ("values", "quiet-values")


def first_offset(cluster: Cluster, topic: str) -> int:
    with Admin(cluster.namesrv) as admin:
        return admin.topic_stats(topic).queues[0].min_offset


def remove_old_files(cluster: Cluster) -> None:
    """Have the master remove all files of its log but the one that is written to."""

    async def ask() -> None:
        async with connected(cluster.master()) as peer:
            await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)

    end = time.monotonic() + 30
    while first_offset(cluster, "busy") < 200:
        assert time.monotonic() < end
        asyncio.run(ask())
        time.sleep(0.05)


def keys_of(cluster: Cluster, queue: MessageQueue, last: int) -> set[str]:
    """Return the keys that a queue has up to its last offset."""
    keys: set[str] = set()
    at, end = -1, time.monotonic() + 30
    with PullConsumer(cluster.namesrv, "reads") as consumer:
        consumer.assign([queue])
        consumer.seek(queue, 0)
        while at < last:
            assert time.monotonic() < end
            for message in consumer.poll(timeout_ms=500):
                keys.add(message.keys[0])
                at = message.queue_offset
    return keys


@pytest.mark.shows(
    "mended: a replica on an empty disk is elected without what its master's compaction logs alone hold",
    "mended: a queue whose messages are all removed begins at 0 again on a replica that began empty",
)
def test_a_copy_on_an_empty_disk_is_elected_with_what_the_log_has_no_more() -> None:
    with run_cluster(replicas=2, **SMALL) as cluster:
        with Admin(cluster.namesrv) as admin:
            for topic in ("quiet", "busy"):
                admin.create_topic(topic, queue_count=1)
            for topic in COMPACTED:
                admin.create_topic(topic, queue_count=1, attributes="+cleanup.policy=COMPACTION")
        with Producer(cluster.namesrv) as producer:
            for n in range(120):
                quiet = producer.send("quiet", b"%d" % n).queue
                for topic in COMPACTED:
                    producer.send(topic, b"x", keys=f"k{n}")
            for n in range(250):
                producer.send("busy", b"%4d" % n + bytes(1024))
            last = producer.send("values", b"x", keys="new").queue_offset
            remove_old_files(cluster)
            assert first_offset(cluster, "quiet") == 120
            killed = cluster.kill_master()
            cluster.wait_in_sync(1)
            remove_old_files(cluster)
            shutil.rmtree(cluster.store / "broker-a" / f"replica-{cluster.brokers.index(killed) + 1}")
            cluster.start_again()
            cluster.wait_in_sync(2)
            cluster.kill_master()
            assert cluster.wait_in_sync(1) == killed
            assert producer.send("quiet", b"x").queue_offset == 120
            for topic, end in zip(COMPACTED, (last, 119), strict=True):
                queue = MessageQueue(topic, quiet.broker_name, 0)
                assert keys_of(cluster, queue, end) >= {f"k{n}" for n in range(120)}
            assert producer.send("quiet-values", b"x", keys="new").queue_offset == 120
