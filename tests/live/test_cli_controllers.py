"""Three controllers by the command line: `server --controllers 3`, `controller --peers --id`, `controllers list`."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.test_cli_servers import FREE_PORTS, TIMEOUT_S, Processes, assert_one_line_error, ready_line, run
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark import Producer, PullConsumer
from rocketspark.broker.access import secure_folder

pytestmark = pytest.mark.shows(
    "`rocketspark server --replicas 2 --controllers 3`, `controller --peers --id --secure`, `controllers list`, `add`"
    " and `remove`"
)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.close()


def listed(folder: Path, controllers: str, *options: str) -> dict[str, str]:
    """The state of each member, by name."""
    done = run(folder, "controllers", "list", "--controller", controllers, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return {each["name"]: each["state"] for each in found}


def until_led(folder: Path, controllers: str, *options: str, but: str = "") -> str:
    """Wait until a controller leads; returns its name."""
    end = time.monotonic() + LIMIT_S
    while True:
        leading = [name for name, state in listed(folder, controllers, *options).items() if state == "leader"]
        if leading and leading[0] != but:
            return leading[0]
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_server_of_three_controllers_loses_one_and_its_master(processes: Processes, tmp_path: Path) -> None:
    process = processes.start(
        *("server", *FREE_PORTS, "--controller-port", "0", "--store", "store"),
        *("--replicas", "2", "--controllers", "3", "--log-level", "warning"),
    )
    address = r"127\.0\.0\.1:\d+"
    found = re.fullmatch(
        rf"ready namesrv=({address}) controller=({address},{address},{address}) broker={address},{address}\n",
        ready_line(process),
    )
    assert found is not None
    namesrv, controllers = found.groups()
    leader = until_led(tmp_path, controllers)

    def child(*words: str) -> int:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for number in children:
            given = Path(f"/proc/{number}/cmdline").read_text("utf-8", "replace").split("\0")
            if all(any(word in each for each in given) for word in words):
                return int(number)
        raise AssertionError(f"no process of {words}")

    with Producer(namesrv, "g", retries=50, send_timeout_ms=60_000) as producer:
        for number in range(10):
            producer.send("t", b"%d" % number)
        os.kill(child("controller", f"controllers/{leader}"), signal.SIGKILL)
        os.kill(child("broker", "replica-1"), signal.SIGKILL)
        for number in range(10, 20):
            end = time.monotonic() + LIMIT_S
            while True:
                try:
                    producer.send("t", b"%d" % number)
                    break
                except Exception:
                    assert time.monotonic() < end
                    time.sleep(0.1)
        with PullConsumer(namesrv, "c", consume_from="first") as consumer:
            consumer.subscribe("t")
            bodies = {int(message.body) for message in itertools.islice(consumer, 20)}
    assert bodies == set(range(20))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "Traceback" not in log


def test_three_commands_with_keys_are_a_group(processes: Processes, tmp_path: Path) -> None:
    secure_folder.prepare(tmp_path / "secure")
    addresses = [f"127.0.0.1:{free_ports()}" for _ in range(3)]
    peers = ",".join(addresses)
    for number in range(3):
        processes.start(
            *("controller", "--peers", peers, "--id", str(number), "--store", f"c{number}"),
            *("--secure", "secure", "--log-level", "warning"),
        )
    for process in processes._running:
        assert re.fullmatch(r"ready controller=127\.0\.0\.1:\d+\n", ready_line(process))
    keys = ["--tls-ca", str(secure_folder.load(tmp_path / "secure").ca), "--access-key", "admin"]
    keys += ["--secret-key-file", str(tmp_path / "secure" / secure_folder.ADMIN_SECRET)]
    leader = until_led(tmp_path, addresses[0], *keys)
    stranger = run(tmp_path, "controllers", "remove", "n1", "--controller", addresses[0], *keys[:2])
    assert_one_line_error(stranger, "username cannot be null")
    done = run(tmp_path, "controllers", "remove", leader, "--controller", peers, *keys)
    assert done.returncode == 0, done.stderr
    # Who is asked first may be a follower that has not been told yet.
    end = time.monotonic() + LIMIT_S
    while leader in (names := listed(tmp_path, peers, *keys)):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert len(names) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("controller", "--peers", "a:1,b:1"), "--peers needs --id: which of n0, n1 is this one?"),
        (("controller", "--peers", "a:1", "--id", "n0"), "two at least"),
        (("controller", "--peers", "a:1,b:1", "--id", "n7"), "no controller is named 'n7'"),
        (("controller", "--id", "n0"), "--id needs --peers"),
        (("server", "--controllers", "3"), "--controllers needs --replicas"),
        (("controllers", "list", "--controller", "127.0.0.1:1"), "no controller answers"),
        (("controllers", "add", "n3", "--controller", "127.0.0.1:1"), "id-host:port is needed"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    assert_one_line_error(run(tmp_path, *arguments), says)
