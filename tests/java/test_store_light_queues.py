"""A store with light queues (LMQ) handed from the official broker to ours and back: units, offsets and groups go on.

The requests are written out by hand: no client is needed for them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import Answer, ApacheNamesrv, ask, await_queues, committed_offset, max_offset
from tests.java.one_store import Server, send_by_hand, starting, stored_records
from tests.support.patience import PATIENT

from rocketspark.protocol.light_queues import offset_of

pytestmark = pytest.mark.shows("light queues (LMQ): a store with them goes from the Java broker to ours and back")

SETTINGS: dict[str, Any] = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 128 * 1024,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "enableLmq": "true",
    "enableMultiDispatch": "true",
} | PATIENT
ODD = "%LMQ%odd é (1)"
NAMES = ("%LMQ%a", "%LMQ%b", ODD)


def send(server: Server, number: int, names: tuple[str, ...]) -> Answer:
    pairs = {"UNIQ_KEY": f"U{number}", "INNER_MULTI_DISPATCH": ",".join(names)}
    return send_by_hand(server.broker, "base", b"%d" % number, pairs)


def fill(server: Server, first: int, sent: dict[str, list[int]]) -> None:
    """Sixty messages, each in one to three light queues; notes what each queue has."""
    for number in range(first, first + 60):
        names = NAMES[: number % 3 + 1]
        send(server, number, names)
        for name in names:
            sent[name].append(number)
    for name in NAMES:
        await_queues(server.broker, name, len(sent[name]))


def check(server: Server, sent: dict[str, list[int]]) -> None:
    for name in NAMES:
        found = stored_records(server.broker, name, 0, "readers")
        assert [int(each.body) for each in found] == sent[name]
        assert [offset_of(name.encode(), each.properties) for each in found] == list(range(len(found)))
        assert {each.topic for each in found} <= {b"base"}


def commit(server: Server, group: str, offset: int) -> None:
    wanted = {"consumerGroup": group, "topic": "%LMQ%a", "queueId": "0", "commitOffset": str(offset)}
    assert ask(server.broker, 15, ext_fields=wanted).code == 0


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.soak), "kill"])
def test_light_queues_go_to_our_broker_and_back(namesrv: ApacheNamesrv, tmp_path: Path, how: str) -> None:
    with starting(namesrv, tmp_path, SETTINGS) as start:
        sent: dict[str, list[int]] = {name: [] for name in NAMES}
        whose = ("theirs", "ours", "theirs")
        for turn, server in enumerate(map(partial(_started, start), whose)):
            if turn == 0:
                for group in ("readers", "%LMQ%group"):
                    ask(server.broker, 200, b'{"groupName":"%b"}' % group.encode())
            check(server, sent)
            for group in ("readers", "%LMQ%group"):
                before = committed_offset(server.broker, group, "%LMQ%a", 0)
                assert before == (20 * turn if turn and how == "stop" else before)
                commit(server, group, 20 * (turn + 1))
            fill(server, 60 * turn, sent)
            check(server, sent)
            assert max_offset(server.broker, "%LMQ%none", 0) == 0
            end = server.stop if how == "stop" else server.kill
            end()


def _started(start: Any, whose: str) -> Server:
    server: Server = start(whose)
    return server
