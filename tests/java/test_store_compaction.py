"""A topic with compaction on one store, handed from our server to the official broker and back."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.java.apache import ApacheNamesrv, ask
from tests.java.mqadmin import MqAdmin
from tests.java.one_store import starting
from tests.java.test_store_exchange import SMALL_FILES, end

from rocketspark import Producer
from rocketspark.admin import Admin
from rocketspark.protocol.message import record

pytestmark = pytest.mark.shows("directory layout both ways with the Java broker: compaction/ of topics with compaction")

TOPIC = "prices"
SIZES = {
    "compactionMappedFileSize": 20480,
    "compactionCqMappedFileSize": 4096,
    "compactionScheduleInternal": 500,
    "flushIntervalConsumeQueue": 100,
}
Found = dict[int, bytes]


def read(broker: str) -> Found:
    """Body by offset of all that a reader finds from the first message on."""
    found: Found = {}
    at = 0
    while True:
        ext = {"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "queueOffset": str(at), "sysFlag": "4"}
        ext |= {
            "maxMsgNums": "32",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        answer = ask(broker, 11, ext_fields=ext)
        if answer.code == 0:
            found |= {each.queue_offset: bytes(each.body) for each in record.decode_all(answer.body)}
        following = int(answer.ext_fields["nextBeginOffset"])
        if following <= at:
            return found
        at = following


def settled(broker: str, last: int, most: int) -> Found:
    """What a reader finds once the last message is there, and no more than so many are left."""
    limit = time.monotonic() + 60
    while len(found := read(broker)) > most or last not in found:
        assert time.monotonic() < limit, (len(found), max(found, default=None))
        time.sleep(0.1)
    return found


def sent(namesrv: str, begin: int, count: int) -> None:
    with Producer(namesrv) as producer:
        for n in range(begin, begin + count):
            producer.send(TOPIC, b"%d" % n, keys=f"k{n % 7}" if n % 100 else f"rare{n}")


@pytest.mark.shows("mqadmin dumpCompactionLog")
def test_mqadmin_prints_our_compaction_logs(namesrv: ApacheNamesrv, tmp_path: Path) -> None:
    with starting(namesrv, tmp_path, SMALL_FILES | SIZES) as start:
        server = start("ours")
        with Admin(server.namesrv) as admin:
            admin.create_topic(TOPIC, queue_count=1, attributes="+cleanup.policy=COMPACTION")
        sent(server.namesrv, 0, 30)
        server.stop()
    (file,) = (tmp_path / "store/compaction/compactionLog" / TOPIC / "0").iterdir()
    mqadmin = MqAdmin(tmp_path / "tool", "127.0.0.1:1", "127.0.0.1:1")
    lines = mqadmin.raw("dumpCompactionLog", "-f", str(file))
    mqadmin.close()
    offsets = [int(found[1]) for line in lines if (found := re.search(r"queueOffset=(\d+)", line))]
    assert offsets == list(range(30))


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.soak), "kill"])
def test_compacted_messages_go_to_the_java_broker_and_back(how: str, namesrv: ApacheNamesrv, tmp_path: Path) -> None:
    with starting(namesrv, tmp_path, SMALL_FILES | SIZES) as start:
        server = start("ours")
        with Admin(server.namesrv) as admin:
            admin.create_topic(TOPIC, queue_count=1, attributes="+cleanup.policy=COMPACTION")
        sent(server.namesrv, 0, 400)
        ours = settled(server.broker, 399, 200)
        assert {0, 100, 200, 300, *range(393, 400)} <= set(ours)
        end(server, how)

        server = start("theirs")
        theirs = settled(server.broker, 399, len(ours))
        assert {n: body for n, body in ours.items() if n in theirs} == theirs
        assert {0, 100, 200, 300, *range(393, 400)} <= set(theirs)
        sent(server.namesrv, 400, 400)
        after = settled(server.broker, 799, 250)
        assert {*range(0, 800, 100), *range(793, 800)} <= set(after)
        end(server, how)

        server = start("ours")
        back = settled(server.broker, 799, len(after))
        assert {n: b"%d" % n for n in back} == back
        assert {*range(0, 800, 100), *range(793, 800)} <= set(back)
        sent(server.namesrv, 800, 400)
        assert {*range(0, 1200, 100), *range(1193, 1200)} <= set(settled(server.broker, 1199, 250))
        server.stop()
