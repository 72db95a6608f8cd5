"""Timer messages of the official client 5.5.0, on ours, and on a store handed between ours and the official broker.

JAVA_TESTS_ON=apache puts the official broker in our place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.java.apache import ApacheNamesrv, ask
from tests.java.driver import JavaDriver, JavaError, message
from tests.java.one_store import Server, Start, starting, stored_records
from tests.support.patience import LIMIT_S, PATIENT

from rocketspark.store.timers.timer_files import TimerCheckpoint, read_checkpoint

pytestmark = pytest.mark.shows("timer messages, rolling, recall, in RocketMQ's files")

CONFIG: dict[str, Any] = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 128 * 1024,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "mappedFileSizeTimerLog": 2000 * 52,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "recallMessageEnable": "true",
} | PATIENT
# What the official broker has delivered is told by its checkpoint alone, so this test has it written each second.
THEIRS = CONFIG | {"timerFlushIntervalMs": 1000}
TOPIC = "timed"
QUEUE = {"topic": TOPIC, "broker": "broker-a", "queue_id": 1}
HOUR_MS = 3_600_000


@pytest.fixture
def start(namesrv: ApacheNamesrv, tmp_path: Path) -> Iterator[Start]:
    with starting(namesrv, tmp_path, CONFIG, THEIRS) as start:
        yield start


def delivered(server: Server) -> list[tuple[str, int]]:
    """(body, store time in ms) of all messages in the queue."""
    return [(r.body.decode(), r.store_time_ms) for r in stored_records(server.broker, TOPIC, 1, "CID_look")]


def wait_for(server: Server, count: int, limit_s: float = LIMIT_S) -> list[str]:
    """The bodies once there are `count`."""
    end = time.monotonic() + limit_s
    while len(found := delivered(server)) < count:
        assert time.monotonic() < end, f"only {found} within {limit_s} s"
        time.sleep(0.1)
    return [body for body, _ in found]


def checkpoint_of(store: Path) -> TimerCheckpoint:
    return read_checkpoint(str(store / "config" / "timercheck"))


def wait_until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.05)


def prepare(java: JavaDriver, server: Server) -> None:
    with java.started("admin", namesrv=server.namesrv) as admin:
        java.call("create_topic", name=admin, topic=TOPIC, queues=2, broker_address=server.broker)
        wanted = {"groupName": "CID_look", "consumeEnable": True}
        ask(server.broker, 200, json.dumps(wanted).encode())


def send(java: JavaDriver, producer: str, body: str, **times: int) -> str:
    """Send one; returns its recall handle."""
    texts = {name: str(value) for name, value in times.items()}
    (handle,) = java.call("send_timed", name=producer, queue=QUEUE, messages=[message(TOPIC, body) | {"times": texts}])
    return str(handle)


def now_ms() -> int:
    return int(time.time() * 1000)


def test_the_official_client_delays_and_recalls(java_client_55: JavaDriver, start: Start) -> None:
    java, server = java_client_55, start("ours")
    prepare(java, server)
    late_ms: list[int] = []
    with java.started("producer", namesrv=server.namesrv, group="PG") as producer:
        # A machine that halts for seconds delivers late: once in time is enough.
        while not late_ms or late_ms[-1] >= 2500:
            assert len(late_ms) < 5, late_ms
            handle = send(java, producer, "never", TIMER_DELAY_MS=8000)
            java.call("recall", name=producer, topic=TOPIC, handle=handle)
            began = now_ms()
            due_ms = {"sec": began + 3000, "ms": began + 1200, "deliver": began + 2000, "last": began + 9000}
            send(java, producer, "sec", TIMER_DELAY_SEC=3)
            send(java, producer, "ms", TIMER_DELAY_MS=1200)
            send(java, producer, "deliver", TIMER_DELIVER_MS=due_ms["deliver"])
            send(java, producer, "last", TIMER_DELAY_SEC=9)
            before = 4 * len(late_ms)
            wait_for(server, before + 4)
            found = dict(delivered(server)[before:])
            assert sorted(found) == ["deliver", "last", "ms", "sec"]
            assert min(found[body] - due_ms[body] for body in found) >= 0
            late_ms.append(max(found[body] - due_ms[body] for body in found))


def leave_waiting(java: JavaDriver, server: Server, store: Path, delay_ms: int) -> list[str] | None:
    """Send what comes at once, what waits for `delay_ms` and what waits longer; some of it is recalled.

    Returns the bodies that are delivered in the end, None if the machine was too slow for `delay_ms`.
    """
    prepare(java, server)
    with java.started("producer", namesrv=server.namesrv, group="PG") as producer:
        send(java, producer, "at once", TIMER_DELIVER_MS=1)
        early_ms = now_ms() + 100
        send(java, producer, "early", TIMER_DELIVER_MS=early_ms)
        due_ms = now_ms() + delay_ms
        for n in range(20):
            handle = send(java, producer, f"waits {n}", TIMER_DELIVER_MS=due_ms)
            if n % 4 == 0:
                try:
                    java.call("recall", name=producer, topic=TOPIC, handle=handle)
                except JavaError:
                    assert now_ms() > due_ms - 1000
                    return None
        send(java, producer, "much later", TIMER_DELAY_MS=HOUR_MS)
        assert sorted(wait_for(server, 2))[:2] == ["at once", "early"]
        wait_until(lambda: checkpoint_of(store).read_time_ms > early_ms // 1000 * 1000)
    if now_ms() > due_ms - 1000:
        return None
    return ["at once", "early", *(f"waits {n}" for n in range(20) if n % 4)]


# The second one, of either kind, is always stopped cleanly.
@pytest.mark.shows("directory layout both ways with the Java broker: clean stop and kill")
@pytest.mark.parametrize("ending", [pytest.param("stop", marks=pytest.mark.soak), "kill"])
@pytest.mark.parametrize(("first", "second"), [("ours", "theirs"), ("theirs", "ours")])
def test_what_waits_is_delivered_by_the_other_broker(
    java_client_55: JavaDriver, start: Start, tmp_path: Path, first: str, second: str, ending: str
) -> None:
    for delay_ms in (9_000, 60_000, 240_000):
        store = tmp_path / f"store_{delay_ms}"
        server = start(first, store)
        expected = leave_waiting(java_client_55, server, store, delay_ms)
        getattr(server, ending)()
        if expected is not None:
            break
    else:
        pytest.fail("some 20 sends took four minutes")
    server = start(second, store)
    assert sorted(wait_for(server, len(expected))) == sorted(expected)
    server.stop()
    # And back: what was delivered is not delivered again, what waits still waits.
    server = start(first, store)
    time.sleep(2)
    assert sorted(body for body, _ in delivered(server)) == sorted(expected)
