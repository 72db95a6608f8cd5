"""Servers of both kinds, one after another on one store: what is handed over between ours and the official broker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.java.apache import Answer, ApacheBroker, ApacheNamesrv, ask
from tests.support.patience import LIMIT_S

from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record
from rocketspark.testing.process import ServerProcess

APACHE_ALONE = os.environ.get("JAVA_TESTS_ON") == "apache"


class Server(Protocol):
    namesrv: str
    broker: str

    def stop(self) -> int: ...
    def kill(self) -> None: ...


class Start(Protocol):
    def __call__(self, whose: str, store: Path | None = None) -> Server: ...


@contextmanager
def starting(
    namesrv: ApacheNamesrv, folder: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any] | None = None
) -> Iterator[Start]:
    """start("ours") and start("theirs"): a server on the folder's `store`, or on the one given; all are ended here.

    `ours`, `theirs`: their broker.conf, the same if one is given. JAVA_TESTS_ON=apache puts theirs in our place.
    """
    started: list[Server] = []

    def start(whose: str, store: Path | None = None) -> Server:
        store = store or folder / "store"
        if whose == "ours" and not APACHE_ALONE:
            server = ServerProcess(store, config=ours)
            started.append(server)
            server.start()
            return server
        config = dict(ours if whose == "ours" or theirs is None else theirs)
        started.append(ApacheBroker(folder / f"server{len(started)}", namesrv.namesrv, store, config=config))
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.kill()


def stored_records(broker: str, topic: str, queue_id: int, group: str) -> list[record.Record]:
    """All records of a queue, asked for by hand: no consumer, no offsets."""
    found: list[record.Record] = []
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < deadline, f"{len(found)} records were given in time"
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(len(found)),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        answer = ask(broker, 11, ext_fields=ext)
        if answer.code == ResponseCode.SYSTEM_BUSY:
            continue  # Its second tier is not open yet.
        if answer.code != 0:
            return found
        found += record.decode_all(answer.body)


def send_by_hand(broker: str, topic: str, body: bytes, pairs: Mapping[str, str]) -> Answer:
    """Send a message with these properties to queue 0 of a topic, by a request that depends on none of our code."""
    ext = {
        "producerGroup": "P",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()),
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    answer = ask(broker, 10, body, ext)
    assert answer.code == 0
    return answer
