"""Celery on our broker while workers and the broker end in the midst of tasks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.clients.celery_workers import Stage
from tests.support.patience import LIMIT_S

from rocketspark.testing.process import ServerProcess, run_server_process

pytestmark = pytest.mark.shows(
    "Celery on `rocketmq://`: a worker that is killed, a warm and a cold shutdown, a broker that is killed and restarts"
)
LATE = {"task_acks_late": True, "worker_prefetch_multiplier": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server_process(tmp_path_factory.mktemp("celery") / "store") as server:
        yield server


def test_tasks_of_a_killed_worker_and_of_a_killed_broker_are_all_done(server: ServerProcess, tmp_path: Path) -> None:
    """One worker dies, the broker dies and comes back, the other worker does all that is left."""
    with closing(Stage(server.namesrv, tmp_path, "killed", **LATE)) as stage, ExitStack() as stack:
        for number in range(300):
            stage.send("done", str(stage.lines), number, 0.03)
        left, killed = (stack.enter_context(stage.worker(name, waits=False)) for name in ("left", "killed"))
        left.await_ready()
        killed.await_ready()
        stage.await_lines(lambda: len(stage.wrote("done")) >= 60)
        killed.kill()
        server.kill()
        left.await_log("tried again")
        server.start()
        done = stage.await_done(300)
        assert sorted(done) == list(range(300))
        # What was in hand at both, and what the broker had not on the disk.
        assert sum(done.values()) - 300 <= 40
        assert left.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT], ids=["warm", "cold"])
def test_a_worker_that_ends_gives_back_at_once_what_it_has_not_done(
    server: ServerProcess, tmp_path: Path, how: signal.Signals
) -> None:
    options = {"visibility_timeout": 3600}
    with closing(Stage(server.namesrv, tmp_path, how.name, broker_transport_options=options, **LATE)) as stage:
        gate = tmp_path / "gate"
        with stage.worker("ends", concurrency=1) as worker:
            for number in range(8):
                stage.send("done", str(stage.lines), number, 0, str(gate) if number else "")
                if not number:
                    stage.await_done(1)
            # What its process has begun, it may not know of yet: a cold shutdown would wait for that task.
            inspect = stage.app.control.inspect(timeout=LIMIT_S, limit=1)
            stage.await_lines(lambda: any((inspect.active() or {}).values()))
            if how == signal.SIGTERM:
                # The task at work is still done, and no other begins.
                worker.process.send_signal(how)
                worker.await_log("Warm shutdown")
                gate.touch()
                worker.process.wait(LIMIT_S)
            else:
                worker.stop(how)
        gate.touch()
        finished = stage.wrote("done")
        assert len(finished) == (2 if how == signal.SIGTERM else 1)
        with stage.worker("next", concurrency=4):
            assert sorted(stage.await_done(8)) == list(range(8))
            assert all(stage.wrote("done")[number] == 1 for number in finished)
