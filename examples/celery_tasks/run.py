"""Two Celery workers share 500 tasks; one is killed in the midst, and every task is done all the same.

    python -m examples.celery_tasks.run

It starts a server of its own. With BROKER_URL=rocketmq://host:9876 it uses that cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from rocketspark.testing import run_cluster

TASKS = int(os.environ.get("TASKS", "500"))
WORKER = [sys.executable, "-m", "celery", "-A", "examples.celery_tasks.tasks", "worker", "-c", "2", "-l", "WARNING"]
LIMIT_S = 300.0


def main() -> None:
    """Run it; the exit code is 1 if a task was not done."""
    with ExitStack() as stack:
        if "BROKER_URL" not in os.environ:
            os.environ["BROKER_URL"] = f"rocketmq://{stack.enter_context(run_cluster()).namesrv}"
        from examples.celery_tasks.tasks import resize

        done = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "done"
        done.touch()
        workers = [start(name, stack) for name in ("first", "second")]
        for picture in range(TASKS):
            resize.delay(picture, str(done))
        print(f"sent {TASKS} tasks")
        wait(done, TASKS // 3)
        os.killpg(workers[0].pid, signal.SIGKILL)
        print("killed the first worker")
        wait(done, TASKS)
        workers[1].terminate()
        workers[1].wait()
        times = pictures(done)
        print(f"done {len(times)} of {TASKS} tasks, {sum(times.values()) - len(times)} of them twice")
        sys.exit(len(times) != TASKS)


def start(name: str, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a worker, which is ended at the latest when this program ends."""
    worker = subprocess.Popen([*WORKER, "-n", name], stdout=subprocess.DEVNULL, process_group=0)

    def end() -> None:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    stack.callback(end)
    return worker


def pictures(done: Path) -> Counter[str]:
    """Return how often each picture was done."""
    return Counter(line.split()[0] for line in done.read_text("utf-8").splitlines())


def wait(done: Path, count: int) -> None:
    """Wait until so many pictures are done."""
    end_s = time.monotonic() + LIMIT_S
    while len(pictures(done)) < count:
        if time.monotonic() > end_s:
            sys.exit(f"only {len(pictures(done))} of {count} tasks were done in {LIMIT_S:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
