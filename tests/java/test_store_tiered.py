"""A store with a second tier handed from our broker to the official one and back: it serves what only the tier has."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheNamesrv, ask, await_queues, max_offset
from tests.java.one_store import Server, send_by_hand, starting, stored_records
from tests.support.patience import LIMIT_S, PATIENT

from rocketspark.protocol.message import record

pytestmark = pytest.mark.shows("second tier: a store with its tier goes from our broker to the Java broker and back")

COUNT = 90


def send(server: Server, number: int) -> None:
    pairs = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"key{number}", "TAGS": "AB"[number % 2]}
    send_by_hand(server.broker, "base", b"%4d" % number * 500, pairs)


def fill(server: Server, first: int) -> None:
    for number in range(first, first + COUNT):
        send(server, number)
    await_queues(server.broker, "base", first + COUNT)


def check(server: Server, count: int) -> None:
    found = stored_records(server.broker, "base", 0, "readers")
    assert [int(each.body[:4]) for each in found] == list(range(count))
    ext = {"topic": "base", "key": "key7", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 50)}
    answer = ask(server.broker, 12, ext_fields=ext)
    assert [int(m.body[:4]) for m in record.decode_all(answer.body)] == [7]


def clean(server: Server, store: Path) -> None:
    """Have the closed log files removed, and wait until some are."""
    before = len(list((store / "commitlog").iterdir()))
    deadline = time.monotonic() + LIMIT_S
    while len(list((store / "commitlog").iterdir())) >= before:
        assert ask(server.broker, 329).code == 0  # Delete expired files now.
        assert time.monotonic() < deadline
        time.sleep(0.2)


def in_tier(folder: Path) -> dict[str, Any]:
    return {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 64 * 1024,
        "mappedFileSizeConsumeQueue": 100 * 20,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
        "tieredStoreFilePath": folder / "tier",
        "tieredStoreCommitLogMaxSize": 48 * 1024,
        "tieredStoreConsumeQueueMaxSize": 20 * 32,
        "tieredStoreIndexFileMaxHashSlotNum": 50,
        "tieredStoreIndexFileMaxIndexNum": 100,
        "tieredStoreGroupCommitTimeout": 0,
    } | PATIENT


def test_a_store_with_a_tier_goes_to_the_java_broker_and_back(namesrv: ApacheNamesrv, tmp_path: Path) -> None:
    settings = in_tier(tmp_path)
    ours = settings | {"fileReservedTime": "0", "cleanResourceInterval": "100"}
    store = tmp_path / "store"
    with starting(namesrv, tmp_path, ours, settings | {"tieredStoreGroupCommit": "false"}) as start:
        server = start("ours", store)
        ask(server.broker, 200, b'{"groupName":"readers"}')
        fill(server, 0)
        clean(server, store)
        check(server, COUNT)
        server.stop()
        server = start("theirs", store)
        check(server, COUNT)
        fill(server, COUNT)
        check(server, 2 * COUNT)
        server.stop()
        server = start("ours", store)
        check(server, 2 * COUNT)
        clean(server, store)
        check(server, 2 * COUNT)
        assert max_offset(server.broker, "base", 0) == 2 * COUNT
        server.stop()


def send_batch(server: Server, first: int, count: int) -> None:
    body = b""
    for number in range(first, first + count):
        text = b"%4d" % number * 300
        body += struct.pack(">5i", 22 + len(text), 0, 0, 0, len(text)) + text + struct.pack(">h", 0)
    ext = {"a": "P", "b": "batched", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
    answer = ask(server.broker, 320, body, ext | {"i": f"UNIQ_KEY\x01{first:032X}\x02", "k": "false", "m": "true"})
    assert answer.code == 0


@pytest.mark.shows("second tier: batches in it are read by either broker, each message as often as RocketMQ's own tier")
def test_batches_in_a_tier_of_ours_are_read_by_the_java_broker(namesrv: ApacheNamesrv, tmp_path: Path) -> None:
    settings = in_tier(tmp_path) | {"mapperFileSizeBatchConsumeQueue": 10 * 46}
    ours = settings | {"fileReservedTime": "0", "cleanResourceInterval": "100"}
    theirs = settings | {"tieredStoreGroupCommit": "false", "tieredStorageLevel": "FORCE"}
    store = tmp_path / "store"
    with starting(namesrv, tmp_path, ours, theirs) as start:
        server = start("ours", store)
        ask(server.broker, 200, b'{"groupName":"readers"}')
        topic = {"topic": "batched", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert ask(server.broker, 17, ext_fields=topic | more | {"attributes": "+queue.type=BatchCQ"}).code == 0
        for first in range(0, 120, 3):
            send_batch(server, first, 3)
        clean(server, store)
        assert read(server) == list(range(0, 120, 3))
        server.stop()
        server = start("theirs", store)
        assert read(server)[:120] == [number - number % 3 for number in range(120)]
        server.stop()
        server = start("ours", store)
        assert read(server) == list(range(0, 120, 3))
        server.stop()


def read(server: Server) -> list[int]:
    """The first queue offsets of the records that a consumer of the batches is given."""
    found: list[int] = []
    offset = 0
    while offset < 120:
        ext = {"consumerGroup": "readers", "topic": "batched", "queueId": "0", "queueOffset": str(offset)}
        ext |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        answer = ask(server.broker, 11, ext_fields=ext | {"subscription": "*", "subVersion": "0"})
        assert answer.code == 0
        found += [each.queue_offset for each in record.decode_all(answer.body)]
        offset = int(answer.ext_fields["nextBeginOffset"])
    return found
