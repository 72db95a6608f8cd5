"""Topics that the official broker compacts, read as tables before and after compactions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.java.apache import ApacheCluster, ask, await_queues
from tests.support.patience import LIMIT_S

from rocketspark import Producer, read_table

TOPIC = "last-values"
# Files of a few records: all but the last are compacted, some seconds after they are full.
SMALL = {"compactionMappedFileSize": 4096, "compactionCqMappedFileSize": 46 * 40, "compactionScheduleInternal": 1000}


def create(address: str, topic: str, attributes: str) -> int:
    wanted = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "false"}
    more = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "attributes": attributes}
    return ask(address, 17, ext_fields=wanted | more).code


@pytest.fixture(scope="module")
def compacting(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    cluster = ApacheCluster(tmp_path_factory.mktemp("compacting"), config=SMALL)
    yield cluster
    cluster.close()


@pytest.mark.shows("topics that Java's 5.5.0 compacts are read whole, and by option compacted")
def test_a_compacted_topic_is_read_as_the_table_of_last_values(compacting: ApacheCluster) -> None:
    assert create(compacting.broker, TOPIC, "+cleanup.policy=COMPACTION") == 0
    model: dict[Any, tuple[int, bytes]] = {}
    noted = Path(compacting.store) / "compaction" / "position-checkpoint"
    with Producer(compacting.namesrv) as producer:
        for i in range(200):
            key = ("a", "b") if i % 50 == 49 else (f"k{i % 7}" if i % 40 else f"once{i}",)
            sent = producer.send(TOPIC, b"%d" % i + b"." * 40, keys=list(key))
            model[key] = sent.queue_offset, b"%d" % i + b"." * 40
    await_queues(compacting.broker, TOPIC, 200)
    deadline = time.monotonic() + LIMIT_S
    while True:
        rows = read_table(compacting.namesrv, TOPIC, compacted=True).to_pylist()
        assert {tuple(row["keys"]): (row["queueOffset"], row["body"]) for row in rows} == model
        assert len(rows) == len(model)
        whole = read_table(compacting.namesrv, TOPIC, columns=["queueOffset"]).column(0).to_pylist()
        assert whole == sorted(whole)
        assert {offset for offset, _ in model.values()} <= set(whole)
        if (
            noted.exists()
            and json.loads(noted.read_bytes())["queueOffsetMap"].get(f"{TOPIC}_0", 0)
            and len(whole) < 200
        ):
            break
        assert time.monotonic() < deadline, len(whole)
        time.sleep(0.2)
