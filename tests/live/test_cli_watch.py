"""`--watch`: answers again and again, drawn anew on a terminal, one line a round for scripts; Ctrl-C ends it with 0."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.answers import check_answer
from tests.support.patience import LIMIT_S

from rocketspark import Producer
from rocketspark.admin import Admin
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "`--watch` of commands: drawn anew on a terminal, JSON lines for scripts, ended by Ctrl-C"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        with Admin(running.namesrv) as admin:
            admin.create_topic("orders", queue_count=1)
        yield running


def command(namesrv: str, *arguments: str) -> list[str]:
    watched = ("topic", "show", "orders", "--watch", "0.1")
    return [sys.executable, "-m", "rocketspark.cli.main", *watched, *arguments, "--namesrv", namesrv]


def test_one_line_a_round_until_ctrl_c(cluster: Cluster) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(command(cluster.namesrv, "--json"), stdout=pipe, stderr=pipe, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = json.loads(watching.stdout.readline())
        check_answer("topic show", first)
        assert first["messages"] == 0
        with Producer(cluster.namesrv, "p") as producer:
            producer.send("orders", b"a")
        while json.loads(watching.stdout.readline())["messages"] == 0:
            pass
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 0
        assert watching.stderr.read() == ""


def test_a_terminal_is_drawn_anew(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(command(cluster.namesrv), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        drawn = b""
        # The cursor goes up over the table before it is drawn again.
        while drawn.count(b"next offset") < 3 or b"\x1b[1A" not in drawn:
            drawn += os.read(ours, 4096)
        watching.send_signal(signal.SIGINT)
        while True:
            try:
                drawn += os.read(ours, 4096)
            except OSError:  # The other side is closed.
                break
        assert watching.wait(LIMIT_S) == 0
        assert b"Traceback" not in drawn
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)


def test_a_round_that_fails_is_told_and_the_next_one_tried() -> None:
    pipe = subprocess.PIPE
    with run_cluster() as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("orders")
        watching = subprocess.Popen(command(cluster.namesrv, "--json"), stdout=pipe, stderr=pipe, text=True)
        assert watching.stdout is not None
        assert watching.stderr is not None
        check_answer("topic show", json.loads(watching.stdout.readline()))
        with Admin(cluster.namesrv) as admin:
            admin.delete_topic("orders")
        assert watching.stderr.readline().startswith("error: route of topic 'orders'")
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("orders", queue_count=3)
        while len(json.loads(watching.stdout.readline())["queues"]) != 3:
            pass
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 0
        watching.stdout.close()
        watching.stderr.close()


def test_the_first_round_that_fails_ends_it(cluster: Cluster) -> None:
    call = [word if word != "orders" else "nowhere" for word in command(cluster.namesrv)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
