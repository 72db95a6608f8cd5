"""The Java 5.5.0 push consumer where brokers assign queues to it, to pull or to pop, as `mqadmin setConsumeMode` says.

JAVA_TESTS_ON=apache runs the same on the official servers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.java.driver import JavaDriver, message
from tests.java.mqadmin import Stage, until
from tests.support.names import own_name
from tests.support.patience import LIMIT_MS

pytestmark = pytest.mark.shows(
    "the Java 5.5.0 push consumer, queues assigned by the broker, `mqadmin setConsumeMode`: shares, modes to "
    "and fro under load, a failure"
)

QUEUES = 4
MEMBERS = 3


@pytest.fixture(scope="module")
def java(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    """A client that looks for its queues four times a second: Java's broker tells nobody of a new mode."""
    flags = ("-Drocketmq.client.rebalance.waitInterval=250", "-Drocketmq.client.rebalance.minInterval=100")
    driver = JavaDriver("5.5.0", tmp_path_factory.mktemp("java-pop"), flags=flags)
    yield driver
    driver.close()


class Scene:
    """A topic and a group, with members in one JVM."""

    def __init__(self, stage: Stage, java: JavaDriver, stack: ExitStack, name: str) -> None:
        self.stage, self.java = stage, java
        self.topic = own_name(name)
        self.group = f"g-{self.topic}"
        options = f"-r {QUEUES} -w {QUEUES}".split()
        assert "success" in stage.mqadmin("updateTopic", "-b", stage.broker, "-t", self.topic, *options)[0]
        assert "success" in stage.mqadmin("updateSubGroup", "-b", stage.broker, "-g", self.group)[0]
        self.producer = stack.enter_context(java.started("producer", namesrv=stage.namesrv, group="p"))

    def member(self, **options: Any) -> Any:
        wanted = [{"topic": self.topic, "tags": "*"}]
        return self.java.started(
            "push", namesrv=self.stage.namesrv, group=self.group, subscriptions=wanted, pop=True, **options
        )

    def set_mode(self, mode: str, share: int = 0) -> None:
        said = self.stage.mqadmin(
            "setConsumeMode", "-b", self.stage.broker, "-t", self.topic, "-g", self.group, "-m", mode, "-q", str(share)
        )
        assert "success" in said[0], said

    def send(self, texts: list[str]) -> None:
        results = self.java.call("send", name=self.producer, messages=[message(self.topic, t, keys=t) for t in texts])
        assert [r["status"] for r in results] == ["SEND_OK"] * len(texts)

    def taken(self, members: list[str]) -> list[dict[str, Any]]:
        return [m for name in members for m in self.java.call("push_await", name=name, count=0, timeout_ms=0)]


def test_all_shares_of_queues(stage: Stage, java: JavaDriver) -> None:
    with ExitStack() as stack:
        scene = Scene(stage, java, stack, "pop-shares")
        scene.set_mode("POP", -1)
        members = [stack.enter_context(scene.member()) for _ in range(MEMBERS)]

        def popped() -> list[int]:
            held = [java.call("push_popped_queues", name=name) for name in members]
            return sorted(q["queue_id"] for queues in held for q in queues if q["topic"] == scene.topic)

        texts: list[str] = []
        for share in (-1, 1, 2):
            scene.set_mode("POP", share)
            # Member and share: their own queues and those of the ones after them; at the most everybody has all.
            expected = sorted([*range(QUEUES)] * 2) if share == 1 else [-1] * MEMBERS
            until(lambda wanted=expected: popped() == wanted)  # type: ignore[misc]
            more = [f"share {share} {n}" for n in range(12)]
            scene.send(more)
            texts += more
            until(lambda wanted=set(texts): {m["keys"] for m in scene.taken(members)} == wanted)  # type: ignore[misc]
        counts = Counter(m["keys"] for m in scene.taken(members))
        assert counts == dict.fromkeys(texts, 1)


def test_modes_to_and_fro_under_load_and_a_failure(stage: Stage, java: JavaDriver) -> None:
    with ExitStack() as stack:
        failing = Scene(stage, java, stack, "pop-fails")
        failing.set_mode("POP")
        once = stack.enter_context(failing.member(fail_first=1))
        failing.send(["fails"])
        scene = Scene(stage, java, stack, "pop-modes")
        members = [stack.enter_context(scene.member()) for _ in range(2)]
        texts: list[str] = []
        for turn, mode in enumerate(("POP", "PULL", "POP", "PULL", "POP", "PULL")):
            scene.set_mode(mode, turn % 3 - 1)
            for n in range(5):
                more = [f"{mode} {turn} {n} {i}" for i in range(10)]
                scene.send(more)
                texts += more
                time.sleep(0.05)
        until(lambda: {m["keys"] for m in scene.taken(members)} == set(texts))
        # The first of RocketMQ's delays of pops: 10 s.
        first, second = java.call("push_await", name=once, count=2, timeout_ms=LIMIT_MS)
        assert (first["keys"], first["reconsume_times"]) == ("fails", 0)
        assert (second["keys"], second["reconsume_times"], second["topic"]) == ("fails", 1, failing.topic)
        assert 10_000 <= second["taken_time_ms"] - first["taken_time_ms"] < 60_000
