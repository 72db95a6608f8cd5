"""Celery with two workers, on our broker and on Apache's: what differs is a mistake."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery import chain, chord, group
from tests.clients.celery_workers import ROOT, Stage
from tests.clients.scene import Cluster
from tests.support.patience import LIMIT_S

from rocketspark import Producer
from rocketspark.admin import Admin
from rocketspark.kombu.names import group_of

pytestmark = pytest.mark.shows("Celery on `rocketmq://`: two workers, results, retries, ETA, groups, chords, control")


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A queue with two workers, whose pools are of processes and of threads."""
    stage = Stage(cluster.namesrv, tmp_path_factory.mktemp("celery"), f"celery-{cluster.name}")
    with ExitStack() as stack:
        # The pool of processes forks others while it is connected.
        kinds = {"prefork": ("--max-tasks-per-child", "50"), "threads": ()}
        workers = [stack.enter_context(stage.worker(p, *more, pool=p, waits=False)) for p, more in kinds.items()]
        for worker in workers:
            worker.await_ready()
        yield stage
        stage.close()


def test_two_workers_do_each_of_500_tasks_once(stage: Stage, tmp_path: Path) -> None:
    stage.lines.write_text("")
    for number in range(500):
        stage.send("done", str(stage.lines), number)
    done = stage.await_done(500)
    assert done == dict.fromkeys(range(500), 1)
    assert len({line.split()[2] for line in stage.lines.read_text().splitlines()}) > 3


def test_results_retries_and_eta(stage: Stage) -> None:
    attempts = stage.folder / "attempts"
    assert stage.send("fails_twice", str(attempts)).get(LIMIT_S) == 2
    assert attempts.read_text().split("\n")[:3] == ["attempt 0", "attempt 1", "attempt 2"]
    began = time.time()
    assert stage.send("add", 1, 2, countdown=1.5).get(LIMIT_S) == 3
    assert time.time() - began >= 1.5


def test_groups_chains_and_chords(stage: Stage) -> None:
    add, total = stage.task("add"), stage.task("total")
    assert group(add.clone((i, i)) for i in range(10)).apply_async().get(LIMIT_S) == [2 * i for i in range(10)]
    assert chain(add.clone((1, 2)), add.clone((3,)), add.clone((4,))).apply_async().get(LIMIT_S) == 10
    assert chord((add.clone((i, 1)) for i in range(5)), total).apply_async().get(LIMIT_S) == 15


def test_workers_answer_remote_control_and_tell_what_they_do(stage: Stage) -> None:
    control = stage.app.control
    names = {"prefork@test", "threads@test"}
    assert {name for reply in control.ping(timeout=LIMIT_S, limit=2) for name in reply} == names
    assert set(control.inspect(timeout=LIMIT_S, limit=2).active_queues() or {}) == names
    seen: list[str] = []
    with stage.app.connection_for_read() as connection:
        receiver = stage.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        capturing = receiver.itercapture(limit=None, timeout=LIMIT_S, wakeup=False)
        next(capturing)  # A heartbeat: it reads from now on.
        result = stage.send("add", 1, 1)
        while "task-succeeded" not in seen:
            next(capturing)
    assert result.get(LIMIT_S) == 2


def test_a_task_that_is_revoked_is_not_done(stage: Stage) -> None:
    stage.lines.write_text("")
    revoked = stage.send("done", str(stage.lines), 1, countdown=3)
    stage.app.control.revoke(revoked.id, reply=True, timeout=LIMIT_S, limit=2)
    stage.send("done", str(stage.lines), 2, countdown=3.5).get(LIMIT_S)
    assert stage.await_done(1) == {2: 1}


def test_what_is_no_task_and_unknown_tasks_become_dead_letters(stage: Stage) -> None:
    with Producer(stage.namesrv) as producer, Admin(stage.namesrv) as admin:
        for body in (b"\xff no task", b'{"order": 42}'):
            producer.send(stage.queue, body)
        stage.send("not_there")
        letters = f"%DLQ%{group_of(stage.queue)}"
        end = time.monotonic() + LIMIT_S
        while letters not in admin.list_topics() or admin.show_topic(letters).message_count < 3:
            assert time.monotonic() < end, stage.log_end()
            time.sleep(0.1)
    assert stage.send("add", 1, 1).get(LIMIT_S) == 2


@pytest.mark.shows("the first program of docs/use/celery.md, with results by `rpc://`")
def test_the_program_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "use" / "celery.md").read_text("utf-8")
    program, asks = page.split("```python\n")[1].split("```")[0], page.split('python -c "')[1].split('"\n    3\n')[0]
    (tmp_path / "tasks.py").write_text(program.replace("127.0.0.1:9876", cluster.namesrv))
    environment = os.environ | {"C_FORCE_ROOT": "1", "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "1"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        # Whether the worker is there already or not.
        answer = subprocess.run(
            [sys.executable, "-c", asks.replace("timeout=10", f"timeout={LIMIT_S}")],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        assert answer.stdout == "3\n"
    finally:
        worker.terminate()
        assert worker.wait(LIMIT_S) == 0
