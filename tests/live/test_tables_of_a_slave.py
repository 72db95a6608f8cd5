"""What an operator changes at a broker that is no master (any more) under a controller: nothing is lost by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live.support import connected, create, run, send, until
from tests.live.test_replication import pair
from tests.support.patience import LIMIT_MS

from rocketspark import Producer
from rocketspark.admin.operations import Admin
from rocketspark.client import PullConsumer
from rocketspark.client.connection import admin_api
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.groups import ForbiddenHeader
from rocketspark.protocol.headers.static_topics import TopicConfigHeader
from rocketspark.testing import run_cluster
from rocketspark.transport.connections import dial

pytestmark = pytest.mark.shows(
    "a slave under a controller changes and deletes no topics and groups by itself",
    "topics, groups and users that an operator changed are known to who is elected in the next moment",
)


def test_a_topic_that_a_slave_was_to_delete_alone_is_whole_once_it_is_elected() -> None:
    async def delete(address: str) -> None:
        peer = await dial(address, timeout_ms=LIMIT_MS)
        try:
            await admin_api.delete_topic(peer, "orders")
        finally:
            peer.close()

    with run_cluster(replicas=2) as cluster, Producer(cluster.namesrv, "p", retries=20) as producer:
        producer.send("orders", b"one")
        slave = next(address for address in cluster.brokers if address != cluster.master())
        with pytest.raises(ServerError, match="slave broker, please execute it from master broker"):
            run(delete(slave))
        cluster.elect(slave)
        cluster.wait_in_sync(2)
        with PullConsumer(cluster.namesrv, "reading", consume_from="first") as consumer:
            consumer.subscribe("orders")
            assert [message.body for message in consumer.poll(60_000)] == [b"one"]
        # By the tool, which asks the slave too.
        with Admin(cluster.namesrv) as operations:
            assert operations.delete_topic("orders") == ["broker-a"]


def test_who_is_elected_at_once_knows_what_an_operator_changed() -> None:
    """A slave asks for its master's tables each 3 s: what was deleted came back, and what was made was gone."""

    async def known(address: str) -> dict[str, bool]:
        peer = await dial(address, timeout_ms=LIMIT_MS)
        try:
            asked = {topic: TopicConfigHeader(topic=topic) for topic in ("made", "gone")}
            return {
                topic: (await peer.request(RequestCode.GET_TOPIC_CONFIG, header)).code == 0
                for topic, header in asked.items()
            }
        finally:
            peer.close()

    async def readable(address: str, said: bool | None = None) -> bool:
        peer = await dial(address, timeout_ms=LIMIT_MS)
        try:
            header = ForbiddenHeader(group="G", topic="made", readable=said)
            reply = await peer.request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
            reply.raise_for_code("whether a group may read")
            return bool(json.loads(reply.body)["readable"])
        finally:
            peer.close()

    with run_cluster(replicas=2) as cluster, Admin(cluster.namesrv) as operations:
        operations.create_topic("gone")
        operations.create_topic("made")
        operations.delete_topic("gone")
        assert run(readable(cluster.master(), False)) is False
        killed = cluster.kill_master()
        assert cluster.wait_in_sync(1) != killed
        assert run(known(cluster.master())) == {"made": True, "gone": False}
        assert run(readable(cluster.master())) is False


def test_messages_of_a_topic_whose_settings_have_not_come_yet_are_kept_by_a_slave_that_is_cleaned(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with pair(tmp_path) as p, connected(p.master.address) as master, connected(p.slave.address) as slave:
            await create(master)
            await send(master, b"one")
            await until(lambda: p.slave.store.written_position == p.master.store.written_position)
            await until(lambda: "T" in p.slave._topics.table)
            del p.slave._topics.table["T"]
            assert (await slave.request(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
            assert p.slave.store.queue_range("T", 0) == (0, 1)

    run(main())
