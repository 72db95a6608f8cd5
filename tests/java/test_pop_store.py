"""Messages in flight on one store handed between ours and the official broker, by a stop and by SIGKILL.

JAVA_TESTS_ON=apache puts the official broker in our place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.java import pop_by_hand
from tests.java.apache import ApacheNamesrv
from tests.java.one_store import APACHE_ALONE, Start, starting
from tests.java.pop_by_hand import GROUP, TOPIC, TooSlowError, are_back, fly, pop, prepare, retries
from tests.support.patience import LIMIT_S, PATIENT, in_time

from rocketspark.protocol.json.bodies import OffsetTable
from rocketspark.protocol.json.java_json import decode
from rocketspark.protocol.message import properties

pytestmark = pytest.mark.shows("a store with messages in flight to and from a Java broker, by stop and by SIGKILL")

CONFIG: dict[str, Any] = (
    {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 128 * 1024,
        "mappedFileSizeConsumeQueue": 100 * 20,
        "mappedFileSizeTimerLog": 2000 * 52,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
        "flushConsumerOffsetInterval": 200,
    }
    | PATIENT
    | pop_by_hand.CONFIG
)
# What the official broker has delivered is told by its checkpoint alone.
THEIRS = CONFIG | {"timerFlushIntervalMs": 200}


def wait_until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"not within {limit_s} s: {holds}"
        time.sleep(0.1)


def offsets_of(store: Path) -> dict[int, int]:
    path = store / "config" / "consumerOffset.json"
    table = decode(path.read_bytes(), OffsetTable) if path.exists() else OffsetTable()
    return dict(table.offset_table.get(f"{TOPIC}@{GROUP}", {}))


LEGS = [("theirs", "stop"), ("ours", "stop"), ("theirs", "kill"), ("ours", "kill")]


def test_messages_in_flight_go_to_and_fro(namesrv: ApacheNamesrv, tmp_path: Path) -> None:
    in_time(lambda folder: go_to_and_fro(namesrv, folder), tmp_path, spoiled=TooSlowError)


def go_to_and_fro(namesrv: ApacheNamesrv, folder: Path) -> None:
    with starting(namesrv, folder, CONFIG, THEIRS) as start:
        _go_to_and_fro(start, folder)


def _go_to_and_fro(start: Start, tmp_path: Path) -> None:
    expected: list[str] = []
    server = start("ours")
    prepare(server)
    for number, (whose, ends) in enumerate(LEGS):
        due = fly(server, f"{number}-")
        expected += due
        if ends == "stop":
            assert server.stop() in (0, 143)
        else:
            # The official broker begins after a kill where the group's offset was written last.
            wait_until(partial(is_written, tmp_path / "store", 10 * (number + 1)))
            server.kill()
        server = start(whose)
        wait_until(partial(are_back, server, expected))
        found = retries(server)
        bodies = [r.body.decode() for r in found]
        # The official broker delivers again what it delivered before a kill.
        assert sorted(set(bodies) if APACHE_ALONE else bodies) == sorted(expected)
        assert {r.reconsume_times for r in found} == {1}
        for r in found:
            pairs = properties.pairs_of(r.properties)
            assert pairs[b"ORIGIN_GROUP"] == GROUP.encode()
            assert abs(int(pairs[b"1ST_POP_TIME"]) - r.born_time_ms) < 100_000
        assert pop(server, 32) == []


def is_written(store: Path, offset: int) -> bool:
    return offsets_of(store).get(0) == offset
