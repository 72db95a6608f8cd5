"""A store with consume queue extensions, record CRCs and batch queues, handed between ours and the official broker.

Both begin one; one end is clean, the other SIGKILL. JAVA_TESTS_ON=apache puts the official broker in our place too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.java.apache import ApacheNamesrv, ask
from tests.java.driver import JavaDriver, body_of, message
from tests.java.one_store import APACHE_ALONE, Server, Start, starting
from tests.java.test_store_exchange import (
    GROUP,
    OTHERS,
    QUEUES,
    SMALL_FILES,
    end,
    fill,
    make_topics,
    queue,
    read_all,
)
from tests.java.test_store_from_java import until
from tests.support.patience import LIMIT_MS

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import record, record_crc
from rocketspark.store import Store, StoreSettings
from rocketspark.store.consumequeue.consume_queue_ext import is_address

pytestmark = pytest.mark.shows(
    "inner batches, topics with queue.type=BatchCQ",
    "store: consume queue ext",
    "a CRC of the whole record (`__CRC32#`)",
)

KINDS = SMALL_FILES | {
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": 4096,
    "mapperFileSizeBatchConsumeQueue": 10 * 46,
    "enabledAppendPropCRC": "true",
    "forceVerifyPropCRC": "true",
    "enablePropertyFilter": "true",
    # The official broker notes then which SQL filters a message passes.
    "enableCalcFilterBitMap": "true",
}
BATCHED = [queue("batched", queue_id) for queue_id in range(2)]
EVERYTHING = [*QUEUES, *BATCHED]


@pytest.fixture
def start(namesrv: ApacheNamesrv, tmp_path: Path) -> Iterator[Start]:
    with starting(namesrv, tmp_path, KINDS) as start:
        yield start


def create_batched(server: Server) -> None:
    """The topic with batch queues. Asked for by hand: the older client's admin knows no attributes."""
    wanted = {
        "topic": "batched",
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }
    assert ask(server.broker, 17, ext_fields=wanted).code == 0
    wanted["attributes"] = "+queue.type=SimpleCQ"
    assert ask(server.broker, 17, ext_fields=wanted).code != 0


def send_batched(java: JavaDriver, server: Server, mark: str, first: list[int]) -> list[int]:
    """Batches of 1 to 7 and single messages, in turn; `first`: the next offset of each queue. Returns those after."""
    next_offsets = list(first)
    with java.started("producer", namesrv=server.namesrv, group="exchange-writers") as producer:
        for n in range(24):
            place = BATCHED[n % 2]
            wanted = [
                message("batched", f"{mark} {n}.{i}", tag=f"t{i}", keys=f"{mark}-{n}-{i}", properties={"n": str(n)})
                for i in range(n % 7 + 1)
            ]
            if n % 8 == 7:
                wanted = wanted[:1]
                [result] = java.call("send", name=producer, messages=wanted, queue=place)
            else:
                result = java.call("send_batch", name=producer, messages=wanted, queue=place)
                assert "," not in result["message_id"]  # Its own id, not those of its messages.
            assert result["status"] == "SEND_OK"
            assert result["queue_offset"] == next_offsets[n % 2]
            next_offsets[n % 2] += len(wanted)
    return next_offsets


def tagged(java: JavaDriver, server: Server, tags: str) -> list[str]:
    """The bodies in a queue whose tags a subscription takes."""
    found: list[str] = []
    offset = 0
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        while True:
            place = queue("flights", 1)
            read = java.call("pull", name=puller, queue=place, tags=tags, offset=offset, count_max=32)
            found += [body_of(m).decode() for m in read["messages"]]
            if read["status"] not in ("FOUND", "NO_MATCHED_MSG"):
                return found
            offset = read["next"]


def bounds(java: JavaDriver, server: Server) -> list[tuple[int, int]]:
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        found = [java.call("offsets", name=puller, queue=place) for place in BATCHED]
    return [(one["min"], one["max"]) for one in found]


def unit_sizes(content: bytes) -> list[int]:
    """The sizes of the units of one extension file."""
    sizes = []
    at = 0
    while (size := int.from_bytes(content[at : at + 2], "big", signed=True)) > 0:
        sizes.append(size)
        at += size
    return sizes


def look_into(store: Path, copy: Path) -> None:
    """Every record has its CRC, every queue unit its unit in the extension."""
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("timerwheel", "rocksdb*", "lock"))
    opened = Store(
        StoreSettings(
            root=str(copy),
            log_file_bytes=128 * 1024,
            queue_file_units=100,
            index_slots=100,
            index_entries=400,
            queue_ext_file_bytes=4096,
            batch_queue_file_units=10,
        )
    )
    opened.open()
    for found in opened.iterate(0):
        view = opened.record_at(found.position)
        assert view is not None
        assert found.properties[-record_crc.BYTES :].startswith(b"__CRC32#\x01")
        assert record_crc.is_right(view)
    units = 0
    for place in QUEUES:
        found_queue = opened.consume_queues.find(place["topic"], place["queue_id"])
        assert found_queue is not None
        assert found_queue.ext is not None
        for position, _, code in found_queue.units(0, found_queue.next):
            if position >= opened.recovered.end or not is_address(code):
                continue  # What was replayed just now, without the setting.
            unit = found_queue.ext.get(code)
            assert unit is not None
            assert unit.stored_ms == opened.log.store_time_at(position)
            tags = record.to_message(record.decode(opened.record_at(position) or b"")).tag
            assert unit.code == (string_hash(tags) if tags else 0)
            units += 1
    assert units > 400
    opened.close()


@pytest.mark.parametrize(("first", "second", "how"), [("ours", "theirs", "stop"), ("theirs", "ours", "kill")])
def test_every_kind_of_file_goes_there_and_back(
    java_client_55: JavaDriver, start: Start, tmp_path: Path, first: str, second: str, how: str
) -> None:
    java = java_client_55
    server = start(first)
    make_topics(java, server)
    create_batched(server)
    sql = {"namesrv": server.namesrv, "group": "by-price", "subscriptions": [{"topic": "flights", "sql": "step > 100"}]}
    with java.started("push", **sql) as consumer:
        # The consumer's group is known to the broker, and so is its filter.
        until(lambda: ask(server.broker, 38, ext_fields={"consumerGroup": "by-price"}).code == 0, "the heartbeat")
        fill(java, server, "first", rounds=120)
        passed = java.call("push_await", name=consumer, count=4 * 19, timeout_ms=LIMIT_MS)
        assert len(passed) == 4 * 19
    in_batches = send_batched(java, server, "first", [0, 0])
    count = 4 * 120 + OTHERS + sum(in_batches)
    before = read_all(java, server, count, EVERYTHING)
    assert sum(map(len, before.values())) == count
    assert bounds(java, server) == [(0, high) for high in in_batches]
    for place in BATCHED:
        found = before["batched", place["queue_id"]]
        assert [m["queue_offset"] for m in found] == list(range(in_batches[place["queue_id"]]))
    by_tag = tagged(java, server, "AA || B6")
    assert by_tag == [body_of(m).decode() for m in before["flights", 1] if m["tag"] in ("AA", "B6")]
    end(server, how)
    [path] = (tmp_path / "store/consumequeue_ext/flights/0").iterdir()
    sizes = unit_sizes(path.read_bytes())
    assert len(sizes) == 120
    assert (max(sizes) > 20) == (first == "theirs" or APACHE_ALONE)
    assert len(list((tmp_path / "store/batchconsumequeue/batched/0").iterdir())) == 2

    server = start(second)
    assert read_all(java, server, count, EVERYTHING) == before
    assert bounds(java, server) == [(0, high) for high in in_batches]
    assert tagged(java, server, "AA || B6") == by_tag
    with java.started("pull", namesrv=server.namesrv, group=GROUP) as puller:
        read = java.call("pull", name=puller, queue=BATCHED[0], offset=in_batches[0] - 1, count_max=32)
        assert body_of(read["messages"][-1]) == body_of(before["batched", 0][-1])
        assert read["next"] == in_batches[0]
    fill(java, server, "second", rounds=120)
    after_batches = send_batched(java, server, "second", in_batches)
    count += 4 * 120 + OTHERS + sum(after_batches) - sum(in_batches)
    after = read_all(java, server, count, EVERYTHING)
    assert sum(map(len, after.values())) == count
    for place, messages in before.items():
        assert after[place][: len(messages)] == messages
        assert [found["queue_offset"] for found in after[place]] == list(range(len(after[place])))
    end(server, "kill" if how == "stop" else "stop")
    assert len(list((tmp_path / "store/consumequeue_ext/flights/0").iterdir())) > 1

    server = start(first)
    assert read_all(java, server, count, EVERYTHING) == after
    assert bounds(java, server) == [(0, high) for high in after_batches]
    assert len(tagged(java, server, "AA || B6")) == 2 * len(by_tag)
    last = send_batched(java, server, "third", after_batches)
    until(lambda: bounds(java, server) == [(0, high) for high in last], "the last batches")
    server.stop()
    look_into(tmp_path / "store", tmp_path / "copy")
