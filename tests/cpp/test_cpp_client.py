"""The official C++ client, as the PyPI package `rocketmq` ships it, on our server.

Each scenario has a process of its own, most at once: the library's threads and logs die with it.
JAVA_TESTS_ON=apache runs the same tests on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.interop.server import interop_server
from tests.java.apache import ask
from tests.support.names import own_name

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.uname().machine != "x86_64",
        reason="the C++ client's package is for Linux on x86-64",
    ),
    pytest.mark.shows("C++ client (PyPI `rocketmq` 0.4.4) on our servers"),
]

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 400
ON_APACHE = os.environ.get("JAVA_TESTS_ON") == "apache"
CREATE_TOPIC, GROUP_SETTINGS, TOPIC_LIST = 17, 200, 206


def scene_names() -> list[str]:
    """The methods of client.py's Scenes; the library itself is not loaded here."""
    tree = ast.parse((ROOT / "tests" / "cpp" / "client.py").read_text())
    [scenes] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Scenes"]
    names = [node.name for node in scenes.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name not in ("__init__", "producer", "consumer")]


def make_topic(server: Any, topic: str, queues: int) -> None:
    wanted = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    wanted |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "topicSysFlag": "0", "order": "false"}
    assert ask(server.broker, CREATE_TOPIC, ext_fields=wanted).code == 0
    deadline = time.monotonic() + 120
    while f'"{topic}"'.encode() not in ask(server.namesrv, TOPIC_LIST).body:
        assert time.monotonic() < deadline, f"no route of {topic}"
        time.sleep(0.02)


def played(name: str, topic: str, server: Any, home: Path) -> Any:
    """What the client's process printed last, as JSON; how it ended if it printed nothing."""
    command = [sys.executable, "-m", "tests.cpp.client", name, topic, server.namesrv, server.broker]
    environment = os.environ | {"HOME": str(home / topic)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, env=environment)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else f"{done.returncode}: {done.stderr}"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """The server, and a folder for what clients write."""
    folder = tmp_path_factory.mktemp("cpp")
    with interop_server(folder) as server:
        yield server, folder


def play(stage: tuple[Any, Path], names: list[str]) -> dict[str, Any]:
    """Plays scenarios side by side; what each printed."""
    found = play_in(stage, {name: own_name(f"cpp-{name}") for name in names})
    # The library now and then reads nothing after its start, whatever the server, or is ended by a signal: its process
    # is begun once more.
    spoiled = [name for name, what in found.items() if is_deaf(what) or str(what).startswith("-")]
    return found | (play_in(stage, {name: own_name(f"cpp-{name}") for name in spoiled}) if spoiled else {})


def is_deaf(what: Any) -> bool:
    """Whether a scenario received nothing at all."""
    return isinstance(what, dict) and what.get("received") == []


def play_in(stage: tuple[Any, Path], topics: dict[str, str]) -> dict[str, Any]:
    server, folder = stage
    for name, topic in topics.items():
        make_topic(server, topic, 2)
        settings = {"groupName": f"{topic}-group", "consumeEnable": True, "retryQueueNums": 1}
        settings["retryMaxTimes"] = 1 if name == "dead_letters" else 16
        assert ask(server.broker, GROUP_SETTINGS, json.dumps(settings).encode()).code == 0
        # The client looks for routes at its start, and then every 30 s.
        make_topic(server, f"%RETRY%{topic}-group", 1)
    with ThreadPoolExecutor(len(topics)) as runners:
        results = runners.map(lambda item: played(*item, server, folder), topics.items())
        return dict(zip(topics, results, strict=True))


@pytest.fixture(scope="module")
def sends(stage: tuple[Any, Path]) -> Any:
    """What the client's process printed of its sends."""
    return play(stage, ["sends"])["sends"]


@pytest.fixture(scope="module")
def found(stage: tuple[Any, Path]) -> Any:
    """What the client's process printed: by scenario, all but the sends."""
    return play(stage, [name for name in scene_names() if name != "sends"])


def test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again(sends: Any) -> None:
    assert sends["sync"] == [0, 0]
    assert sends["orderly"] == [0, 0, 0]
    # Three of one orderly argument went to one queue, in call order.
    assert sends["orderly_offsets"] == [0, 1, 2]
    accepted = {m[0]: m[:5] for m in sends["received"]}
    bodies = ["fails once", "one-way", "ordered-0", "ordered-1", "ordered-2", "plain"]
    assert sorted(accepted) == bodies
    assert accepted["plain"] == ["plain", "TagA", "k1", "v1", 0]


def test_a_failed_message_comes_again(sends: Any) -> None:
    again = [m[:5] for m in sends["received"] if m[0] == "fails once"]
    assert again == [["fails once", "TagB", "k1", "v1", times] for times in (0, 1)]


# It does not mark the request as a batch: the official broker stores all of it as one message.
@pytest.mark.skipif(ON_APACHE, reason="the official broker fails on what this client sends")
def test_a_batch_becomes_one_message_each(found: Any) -> None:
    assert found["batches"] == {"status": 0, "received": ["batch-0", "batch-1"]}


def test_async_sends_are_answered(found: Any) -> None:
    assert found["sends_async"] == [0] * 20


def test_delay_levels_and_timer_messages(found: Any) -> None:
    least_ms = {"at once": 0, "level 1": 1000, "timer ms": 1200, "level 2": 2000, "timer sec": 2000}
    took_ms = {m[0]: m[6] - m[5] for m in found["delays"]}
    assert sorted(took_ms) == sorted(least_ms)
    for body, ms in least_ms.items():
        assert took_ms[body] >= ms - 10, took_ms


# It names no topic of origin when it sends back what failed again: the official broker 5.5.0 answers with an error.
@pytest.mark.skipif(ON_APACHE, reason="the official broker fails on what this client sends")
def test_what_always_fails_ends_among_the_dead(found: Any) -> None:
    assert [(m[0], m[4]) for m in found["dead_letters"]["received"]] == [("hopeless", 0), ("hopeless", 1)]
    assert found["dead_letters"]["dead"] == "1"


def test_an_orderly_consumer_gets_a_failed_message_again_before_the_next(found: Any) -> None:
    assert found["orderly"] == ["ordered-0", "ordered-1", "ordered-2", "ordered-2", "ordered-3", "ordered-4"]


def test_broadcast_reaches_every_consumer(found: Any) -> None:
    assert found["broadcast"] == [["0", "1", "2"]] * 2


def test_pulls_bring_everything_once(found: Any) -> None:
    assert found["pulls"] == {"all": ["0", "1", "2", "3", "4", "5"], "again": []}


def test_a_body_over_the_limit_is_refused(found: Any) -> None:
    # The broker's code 13 goes to the client's log alone.
    assert found["refused"] == ["ProducerSendSyncFailed", 0]


def test_a_consumer_is_seen_and_asked(found: Any) -> None:
    seen = found["seen"]["connections"]
    assert [c["language"] for c in seen["connectionSet"]] == ["CPP"]
    [topic] = [topic for topic in seen["subscriptionTable"] if topic.startswith("cpp-seen")]
    assert seen["subscriptionTable"][topic]["subString"] == "*"
    code, info = found["seen"]["running"]
    assert code == 0
    assert topic in info
