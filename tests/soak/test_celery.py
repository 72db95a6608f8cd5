"""10,000 tasks of Celery while workers are killed one after the other; SOAK_TASKS for another number."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.clients.celery_workers import Stage, Worker

from rocketspark.testing.process import run_server_process

pytestmark = [pytest.mark.soak, pytest.mark.shows("10,000 tasks of Celery under kills of workers: each is done")]
TASKS = int(os.environ.get("SOAK_TASKS", "10000"))
KILLS = 10


def test_no_task_is_lost_while_workers_are_killed(tmp_path: Path) -> None:
    late = {"task_acks_late": True, "worker_prefetch_multiplier": 4}
    with ExitStack() as stack:
        server = stack.enter_context(run_server_process(tmp_path / "store"))
        stage = stack.enter_context(closing(Stage(server.namesrv, tmp_path, "soak", **late)))

        def start(name: str) -> Worker:
            return stack.enter_context(stage.worker(name, waits=False))

        workers = [start("a0"), start("b0")]
        for number in range(TASKS):
            stage.send("done", str(stage.lines), number, 0.002)
        for kill in range(1, KILLS + 1):
            stage.await_lines(lambda kill=kill: len(stage.wrote("done")) >= kill * TASKS // (KILLS + 2))
            workers[kill % 2].kill()
            workers[kill % 2] = start(f"{'ab'[kill % 2]}{kill}")
        done = stage.await_done(TASKS)
        assert sorted(done) == list(range(TASKS))
        # Each kill leaves at most what two processes worked on, and what was not acknowledged yet.
        assert sum(done.values()) - TASKS <= KILLS * 10
