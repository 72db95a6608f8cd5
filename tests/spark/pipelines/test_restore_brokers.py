"""`pipeline restore` beside brokers that go and come back: what was stored before is seen, or waited for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.spark.pipelines.scene import stored

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.errors import NoReply, NotSent
from rocketspark.model import MessageQueue
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.parts import restore_tasks
from rocketspark.spark.pipelines.parts.restore_plan import ArchivedSpan
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("mended: `restore` and `replay` send rows twice if a broker dies and comes back")

COUNT = 10


def away(cluster: Cluster, topic: str) -> None:
    """Kill a broker, and wait until no route names it."""
    cluster.kill_master("broker-b")
    with Admin(cluster.namesrv) as admin:
        while "broker-b" in {q.queue.broker_name for q in admin.show_topic(topic).queues}:
            time.sleep(0.01)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_broker_that_dies_with_an_answer(monkeypatch: pytest.MonkeyPatch, comes_back: bool) -> None:
    monkeypatch.setattr(restore_tasks, "DOUBT_S", 0.0)
    monkeypatch.setattr(restore_tasks, "LOOK_S", 60.0 if comes_back else 0.0)
    with run_cluster(brokers=2) as cluster:
        with Producer(cluster.namesrv) as producer:
            for topic in ("from", "to"):
                producer.create_topic(topic, queue_count=1)
            for number in range(COUNT):
                producer.send("from", b"%d" % number, queue=MessageQueue("from", "broker-a", 0))
        where = Connection(cluster.namesrv)
        source = restore_tasks.TopicSource(where, "from", {})
        (rows,) = source.read(ArchivedSpan(("broker-a", 0), 0, COUNT, COUNT))

        async def send() -> None:
            sender = restore_tasks.QueueSender(where, "to", ("broker-b", 0), 0, "restore-1")
            await sender.start()
            send_packed, look, died, looks = sender._producer.send_packed, sender._look, False, 0

            async def without_answer(*args: Any) -> Any:
                nonlocal died
                result = await send_packed(*args)
                if not died:
                    died = True
                    await asyncio.to_thread(away, cluster, "to")
                    raise NoReply("lost with the broker")
                return result

            def looking() -> None:
                nonlocal looks
                looks += 1
                try:
                    look()
                finally:
                    if looks == 1 and comes_back:
                        cluster.start_again("broker-b")

            monkeypatch.setattr(sender._producer, "send_packed", without_answer)
            monkeypatch.setattr(sender, "_look", looking)
            try:
                await sender.send(restore_tasks.with_origin(rows, "from", "restore-1"))
            finally:
                await sender.close()

        if comes_back:
            asyncio.run(send())
            assert len(stored(cluster, "to", COUNT)) == COUNT
        else:
            with pytest.raises(NotSent, match="broker 'broker-b' has no topic 'to' now"):
                asyncio.run(send())
