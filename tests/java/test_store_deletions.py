"""Topics that the official broker deletes, or makes anew, on a store of ours: they stay so when it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheNamesrv, ask
from tests.java.one_store import Server, starting, stored_records
from tests.java.test_store_exchange import SMALL_FILES
from tests.support.patience import LIMIT_S

from rocketspark import Producer

OLD, NEW = 150, 3  # Of two files of each queue, and of one.


def create(server: Server, topic: str) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    ext |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
    assert ask(server.broker, 17, ext_fields=ext).code == 0


def fill(server: Server, topic: str, mark: str, count: int) -> None:
    with Producer(server.namesrv, send_timeout_ms=int(LIMIT_S * 1000)) as producer:
        for number in range(count):
            producer.send(topic, f"{mark} {number}".encode())


def bodies(server: Server, topic: str) -> list[bytes]:
    return [bytes(found.body) for found in stored_records(server.broker, topic, 0, "readers")]


@pytest.mark.shows("a topic that a Java broker deleted, or made anew, on a store of ours stays so")
@pytest.mark.parametrize("old", [OLD, pytest.param(20, marks=pytest.mark.soak)])
def test_they_stay_so(namesrv: ApacheNamesrv, tmp_path: Path, old: int) -> None:
    config: dict[str, Any] = SMALL_FILES
    with starting(namesrv, tmp_path, config) as start:
        ours = start("ours")
        for topic in ("gone", "anew", "keep"):
            create(ours, topic)
            fill(ours, topic, "old", old)
        ours.stop()
        theirs = start("theirs")
        for topic in ("gone", "anew"):
            assert ask(theirs.broker, 215, ext_fields={"topic": topic}).code == 0
        create(theirs, "anew")
        fill(theirs, "anew", "new", NEW)
        theirs.stop()
        for _ in range(2):
            again = start("ours")
            create(again, "gone")
            assert bodies(again, "gone") == []
            assert bodies(again, "anew")[:NEW] == [b"new %d" % number for number in range(NEW)]
            assert len(bodies(again, "keep")) == old
            again.stop()
        again = start("ours")
        fill(again, "anew", "last", 1)
        assert bodies(again, "anew") == [*(b"new %d" % number for number in range(NEW)), b"last 0"]
