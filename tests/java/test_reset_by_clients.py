"""useServerSideResetOffset=false: the official consumers go back themselves when they are told to.

JAVA_TESTS_ON=apache runs the same test on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.java.apache import ask
from tests.java.conftest import DriverFactory
from tests.java.driver import body_of
from tests.java.test_java_client_on_ours import CLIENTS, Scene
from tests.live.support import run, until
from tests.support.patience import LIMIT_MS

pytestmark = pytest.mark.shows("reset by the clients themselves (220, useServerSideResetOffset=false)")


@pytest.fixture
def reset_by_clients(ours: Any) -> Iterator[None]:
    def change(value: str) -> None:
        assert ask(ours.broker, 25, f"useServerSideResetOffset={value}".encode()).code == 0

    change("false")
    yield
    change("true")


@pytest.mark.usefixtures("reset_by_clients")
def test_consumers_go_back_when_they_are_told_to(java_driver: DriverFactory, ours: Any) -> None:
    scenes = [Scene(java_driver(*client), ours, f"reset-by-{client[0].replace('.', '')}") for client in CLIENTS]
    with ExitStack() as stack:
        consumers = []
        for scene in scenes:
            scene.create(queues=1)
            group = json.dumps({"groupName": scene.group}).encode()
            assert ask(scene.broker, 200, group).code == 0
            scene.fill(["one", "two"])
            consumers.append(stack.enter_context(scene.pusher()))
        for scene, consumer in zip(scenes, consumers, strict=True):
            received = scene.java.call("push_await", name=consumer, count=2, timeout_ms=LIMIT_MS)
            assert sorted(map(body_of, received)) == [b"one", b"two"]

        async def committed() -> None:
            # The broker goes by what the group committed.
            await until(lambda: all(s.committed(0) == 2 for s in scenes))

        run(committed())
        for scene in scenes:
            with scene.java.started("admin", namesrv=scene.namesrv) as admin:
                place = {"topic": scene.topic, "group": scene.group, "time_ms": 0}
                assert scene.java.call("reset_offset", name=admin, **place) == {"0": 0}
        # Clients wait 10 s and for their next rebalance, up to 20 s, before they go on from where they were told to.
        for scene, consumer in zip(scenes, consumers, strict=True):
            received = scene.java.call("push_await", name=consumer, count=4, timeout_ms=LIMIT_MS)
            assert sorted(map(body_of, received)) == [b"one", b"one", b"two", b"two"]
