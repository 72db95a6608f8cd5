"""A topic is deleted and made anew on our broker while official consumers run: they get all of the new one.

Not so on the official broker: its consumers go on at their old offset, or at the end.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from tests.java.apache import ask
from tests.java.conftest import DriverFactory
from tests.java.driver import body_of
from tests.java.test_java_client_on_ours import CLIENTS, Scene
from tests.support.patience import LIMIT_MS


@pytest.mark.parametrize("count", [3, pytest.param(9, marks=pytest.mark.soak)], ids=["shorter", "longer"])
def test_consumers_get_all_of_the_new_topic(java_driver: DriverFactory, ours: Any, count: int) -> None:
    scenes = [Scene(java_driver(*client), ours, f"anew{count}-{client[0].replace('.', '')}") for client in CLIENTS]
    new = [f"new {number}" for number in range(count)]
    with ExitStack() as stack:
        consumers = []
        for scene in scenes:
            scene.create(queues=1)
            assert ask(scene.broker, 200, json.dumps({"groupName": scene.group}).encode()).code == 0
            scene.fill([f"old {number}" for number in range(5)])
            consumers.append(stack.enter_context(scene.pusher()))
        for scene, consumer in zip(scenes, consumers, strict=True):
            scene.java.call("push_await", name=consumer, count=5, timeout_ms=LIMIT_MS)
            assert ask(scene.broker, 215, ext_fields={"topic": scene.topic}).code == 0
            scene.create(queues=1)
            scene.fill(new)
        # Clients wait 10 s and for their next rebalance, up to 20 s, before they go on from where they were told to.
        for scene, consumer in zip(scenes, consumers, strict=True):
            received = scene.java.call("push_await", name=consumer, count=5 + count, timeout_ms=LIMIT_MS)
            assert sorted(body_of(found).decode() for found in received)[:count] == new
