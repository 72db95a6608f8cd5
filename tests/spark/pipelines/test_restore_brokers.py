"""`pipeline restore` beside what fails: brokers that go and come back, and what Spark says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.spark.pipelines.scene import stored

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.errors import NoReply, NotSent, RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.spark.pipelines import archive, restore
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.options import RestoreOptions
from rocketspark.spark.pipelines.parts import restore_tasks
from rocketspark.spark.pipelines.parts.restore_plan import ArchivedSpan
from rocketspark.testing import Cluster, run_cluster

COUNT = 10


def away(cluster: Cluster, topic: str) -> None:
    """Kill a broker, and wait until no route names it."""
    cluster.kill_master("broker-b")
    with Admin(cluster.namesrv) as admin:
        while "broker-b" in {q.queue.broker_name for q in admin.show_topic(topic).queues}:
            time.sleep(0.01)


@pytest.mark.shows("mended: `restore` and `replay` send rows twice if a broker dies and comes back")
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


@pytest.mark.shows("mended: archive.run and restore.replay raise what fails in Spark with its whole trace")
@pytest.mark.parametrize(
    "run",
    [
        lambda namesrv, folder: archive.run(None, namesrv, ["some"], folder),  # type: ignore[arg-type]
        lambda namesrv, folder: restore.replay(
            None,  # type: ignore[arg-type]
            namesrv,
            "some",
            "others",
            options=RestoreOptions(state=folder),
        ),
    ],
)
def test_what_fails_in_spark_is_one_line(
    run: Callable[[str, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise PySparkException("It failed.\nTraceback:\n  File x\nOSError: [Errno 28] No space left\n\tat y")

    for module in (archive, restore):
        monkeypatch.setattr(module, "run_tasks", fail)
    with run_cluster() as cluster:
        with Producer(cluster.namesrv) as producer:
            producer.create_topic("others", queue_count=1)
            producer.send("some", b"x")
        with pytest.raises(RocketSparkError, match=r"^OSError: \[Errno 28\] No space left$"):
            run(cluster.namesrv, tmp_path)
