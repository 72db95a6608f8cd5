"""Two taskiq workers share 500 tasks; one is killed in the midst, and every task is done all the same.

    python -m examples.taskiq_tasks.run

It starts a server of its own. With NAMESRV=host:9876 it uses that cluster.
"""

from __future__ import annotations

import asyncio
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
WORKER = [sys.executable, "-m", "taskiq", "worker", "examples.taskiq_tasks.tasks:broker", "--workers", "1"]
LIMIT_S = 300.0


def main() -> None:
    """Run it; the exit code is 1 if a task was not done."""
    with ExitStack() as stack:
        if "NAMESRV" not in os.environ:
            os.environ["NAMESRV"] = stack.enter_context(run_cluster()).namesrv
        done = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "done"
        done.touch()
        workers = [start(stack) for _ in range(2)]
        asyncio.run(send(str(done)))
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


async def send(done: str) -> None:
    """Send the tasks."""
    from examples.taskiq_tasks.tasks import broker, resize

    await broker.startup()
    for picture in range(TASKS):
        await resize.kiq(picture, done)
    await broker.shutdown()


def start(stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a worker, which is ended at the latest when this program ends."""
    worker = subprocess.Popen(WORKER, stderr=subprocess.DEVNULL, process_group=0)

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
