"""Lite topics on the official broker: it answers as the vectors say, which our broker is held to in tests/live; and a
store with lite topics goes from one broker to the other and back.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.java import lite_topics
from tests.java.apache import ApacheCluster, ApacheNamesrv, await_queues
from tests.java.lite_topics import GROUP, TOPIC, Link, made
from tests.java.one_store import starting
from tests.java.test_store_exchange import SMALL_FILES, end
from tests.support.patience import LIMIT_S

# What was popped and not acknowledged comes again about when the next broker has started.
INVISIBLE_MS = 5000

pytestmark = pytest.mark.shows("lite topics: every request's answer is that of RocketMQ 5.5.0")


def test_the_official_broker_answers_so(tmp_path: Path) -> None:
    cluster = ApacheCluster(tmp_path, config=lite_topics.SETTINGS)
    try:
        assert lite_topics.everything(cluster.broker) == lite_topics.golden()
    finally:
        cluster.close()


def _sent(link: Link, *bodies: str) -> None:
    """Send to the lite topic that is a body's first letter, and wait until each can be read."""
    for body in bodies:
        assert link.send(body.encode(), body[0])["code"] == 0
        await_queues(lite_topics.link_address(link), f"%LMQ%${TOPIC}${body[0]}", int(body[1:]) + 1)


def _popped(link: Link, expected: list[str]) -> None:
    """Subscribe and pop until these have come, in the order of each lite topic; acknowledge the first of each."""
    assert link.change("PARTIAL_ADD", ["a", "b", "c"])[0] == 0
    found: list[str] = []
    while len(set(found)) < len(expected):
        (popped,) = link.until(1, invisibleTime=str(INVISIBLE_MS))
        for number, (body, lite, offset) in enumerate(popped.rows):
            assert body == f"{lite}{offset}"
            if body not in found and lite not in {each[0] for each in found}:
                assert link.ack(popped, number)[0] == 0
            found.append(body)
    assert sorted(set(found)) == sorted(expected)
    firsts = list(dict.fromkeys(found))
    assert [each for each in firsts if each[0] == "a"] == sorted(each for each in expected if each[0] == "a")


def _await_saved(store: Path, offsets: dict[str, int]) -> None:
    """Wait until a broker has written down how far the group is in each lite topic."""
    file, limit = store / "config/lmqConsumerOffset.json", time.monotonic() + LIMIT_S
    saved: dict[str, int] = {}
    while saved != offsets:
        assert time.monotonic() < limit, (saved, offsets)
        time.sleep(0.05)
        text = file.read_text() if file.exists() else ""
        found = re.findall(rf'"%LMQ%\${TOPIC}\$(\w)@{GROUP}":\s*\{{\s*"?0"?:(\d+)', text)
        saved = {lite: int(offset) for lite, offset in found}


@pytest.mark.shows("directory layout both ways with the Java broker: lite topics, and how far a group was in them")
@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.soak), "kill"])
def test_lite_topics_go_to_the_java_broker_and_back(how: str, namesrv: ApacheNamesrv, tmp_path: Path) -> None:
    often = {"flushConsumerOffsetInterval": "100", "flushIntervalConsumeQueue": "100"}
    with starting(namesrv, tmp_path, SMALL_FILES | lite_topics.SETTINGS | often) as start:
        for whose, sends, expected, offsets in (
            ("ours", ["a0", "a1", "a2", "b0", "b1"], ["a0", "a1", "a2", "b0", "b1"], {"a": 1, "b": 1}),
            ("theirs", ["a3", "c0", "c1"], ["a1", "a2", "a3", "b1", "c0", "c1"], {"a": 2, "b": 2, "c": 1}),
            ("ours", ["b2", "c2"], ["a2", "a3", "b2", "c1", "c2"], {"a": 3, "b": 3, "c": 2}),
        ):
            server = start(whose)
            link = made(server.broker)
            _sent(link, *sends)
            _popped(link, expected)
            link.close()
            _await_saved(tmp_path / "store", offsets)
            end(server, how)
