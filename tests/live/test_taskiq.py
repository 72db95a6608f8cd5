"""taskiq where brokers are away or die, a worker that is killed or ended, the example and the page."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partialmethod
from pathlib import Path

import pytest
from taskiq import TaskiqMessage, TaskiqMiddleware
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.exceptions import SendTaskError
from tests.clients.taskiq_worker import worker
from tests.java.mqadmin import until
from tests.support.patience import LIMIT_S

from rocketspark import AsyncProducer, AsyncSimpleConsumer, MessageQueue
from rocketspark.admin import Admin
from rocketspark.errors import NotSent, RocketSparkError, ServerError, UsageError
from rocketspark.taskiq import RocketBroker
from rocketspark.testing import run_cluster
from rocketspark.testing.process import run_server_process

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


def test_wrong_arguments_and_a_cluster_that_is_away_are_named(caplog: pytest.LogCaptureFixture) -> None:
    for options, text in (
        ({"visibility_timeout": 0}, "visibility_timeout 0 is not from 1 to 43200 seconds"),
        ({"prefetch": 33}, "prefetch 33 is not from 1 to 32"),
        ({"topic": "a b"}, "group 'taskiq-a b': only letters"),
        ({"visibility": 3}, "visibility"),
    ):
        with pytest.raises((RocketSparkError, TypeError), match=text):
            RocketBroker("127.0.0.1:1", **options)  # type: ignore[arg-type]

    async def run() -> None:
        broker = RocketBroker("127.0.0.1:1", producer={"send_timeout_ms": 100})

        @broker.task(task_name="one")
        async def one() -> None: ...

        await broker.startup()
        for labels, cause in (({}, NotSent), ({"delay": "soon"}, UsageError), ({"delay": -1}, UsageError)):
            with pytest.raises(SendTaskError) as caught:
                await one.kicker().with_labels(**labels).kiq()
            assert isinstance(caught.value.__cause__, cause)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with worker(broker):
                while "no tasks are received, tried again: no NameServer answers" not in caplog.text:
                    await asyncio.sleep(0.02)
        assert "Traceback" not in caplog.text
        await broker.shutdown()

    asyncio.run(run())


def test_a_nameserver_that_refuses_while_it_starts_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rocketspark.taskiq.TROUBLE_S", 0.01)
    asked, queues = [], AsyncProducer.queues

    async def refuses_first(self: AsyncProducer, topic: str) -> list[MessageQueue]:
        asked.append(topic)
        if len(asked) == 1:
            raise ServerError(1, "name server not ready")
        return await queues(self, topic)

    async def run(namesrv: str) -> None:
        broker = RocketBroker(namesrv).with_result_backend(InmemoryResultBackend())

        @broker.task(task_name="one")
        async def one() -> int:
            return 1

        await broker.startup()
        monkeypatch.setattr(AsyncProducer, "queues", refuses_first)
        async with worker(broker):
            while len(asked) < 2:
                await asyncio.sleep(0.01)
            task = await one.kiq()
            assert (await task.wait_result(timeout=LIMIT_S)).return_value == 1
        await broker.shutdown()

    with run_cluster() as cluster:
        asyncio.run(asyncio.wait_for(run(cluster.namesrv), LIMIT_S))
    assert "tried again: code 1: name server not ready" in caplog.text
    # taskiq's API begins anew after an error of the listener, `taskiq worker` ends.
    assert "Exception found while listening" not in caplog.text


@pytest.mark.shows("taskiq: acknowledgements and tasks survive a broker that is killed and restarts")
def test_a_broker_that_restarts_costs_no_task(tmp_path: Path) -> None:
    with run_server_process(tmp_path / "store") as server:
        broker = RocketBroker(server.namesrv)
        broker.result_backend = InmemoryResultBackend(max_stored_results=-1)
        done: list[int] = []

        @broker.task(task_name="work")
        async def work(number: int) -> None:
            done.append(number)
            await asyncio.sleep(0.05)

        async def run() -> None:
            await broker.startup()
            tasks = [await work.kiq(number) for number in range(100)]
            async with worker(broker, max_async_tasks=4):
                while len(done) < 30:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                for task in tasks:
                    await task.wait_result(timeout=LIMIT_S)
            await broker.shutdown()

        asyncio.run(run())
        assert set(done) == set(range(100))
        # Those in hand as the broker died.
        assert len(done) <= 100 + 4 + 8


class Refuses(TaskiqMiddleware):
    """Raises before a task begins: taskiq then tells its broker nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        self.count += 1
        raise ValueError("not this one")


@pytest.mark.shows(
    "taskiq: a task that nothing acknowledges is delivered again, then a dead letter; so is one of no use"
)
def test_what_nothing_can_acknowledge_any_more_is_delivered_again(caplog: pytest.LogCaptureFixture) -> None:
    refuses = Refuses()

    async def run(namesrv: str) -> None:
        broker = RocketBroker(namesrv, visibility_timeout=1, max_deliveries=2).with_middlewares(refuses)

        @broker.task(task_name="work")
        async def work() -> None: ...

        await broker.startup()
        await work.kiq()
        # taskiq itself would drop it.
        message = TaskiqMessage(
            task_id="unreadable", task_name="work", labels={"n": "x"}, labels_types={"n": 2}, args=[], kwargs={}
        )
        await broker.kick(broker.formatter.dumps(message))
        with Admin(namesrv) as admin:
            async with worker(broker):
                await asyncio.to_thread(until, lambda: "%DLQ%taskiq-taskiq" in admin.list_topics())
                await asyncio.to_thread(until, lambda: admin.show_topic("%DLQ%taskiq-taskiq").message_count == 2)
                await broker.shutdown()

    with run_cluster() as cluster:
        asyncio.run(asyncio.wait_for(run(cluster.namesrv), LIMIT_S))
    assert refuses.count == 2
    assert "task unreadable becomes a dead letter: its body is no task (ValueError)" in caplog.text
    # A listener whose broker is shut down ends.
    assert "no tasks are received" not in caplog.text
    assert caplog.text.count("has ended without an acknowledgement, and is delivered again") == 2


@pytest.mark.shows("taskiq: a worker makes its topic where brokers make none, also if others delete it")
def test_a_topic_that_is_not_there_or_deleted_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # A receive is over sooner.
    monkeypatch.setattr(AsyncSimpleConsumer, "receive", partialmethod(AsyncSimpleConsumer.receive, timeout_ms=200))

    async def run(namesrv: str) -> None:
        broker = RocketBroker(namesrv)
        broker.result_backend = InmemoryResultBackend()

        @broker.task(task_name="work")
        async def work(number: int) -> int:
            return number

        async def done(number: int) -> bool:
            with suppress(SendTaskError):
                return (await (await work.kiq(number)).wait_result(timeout=LIMIT_S)).return_value == number
            await asyncio.sleep(0.05)
            return False

        await broker.startup()
        with Admin(namesrv) as admin:
            async with worker(broker):
                while not await done(1):
                    pass
                admin.delete_topic("taskiq")
                while not await done(2):
                    pass
        await broker.shutdown()

    with run_cluster(auto_create_topic=False) as cluster:
        asyncio.run(asyncio.wait_for(run(cluster.namesrv), LIMIT_S))


@pytest.mark.shows("taskiq: two workers, one of which is killed, do every task")
def test_the_example_says_that_every_task_was_done() -> None:
    command = [sys.executable, "-m", "examples.taskiq_tasks.run"]
    environment = ENVIRONMENT | {"TASKS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S * 3)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = r"sent 200 tasks\nkilled the first worker\ndone 200 of 200 tasks, \d+ of them twice\n"
    assert re.fullmatch(shown, done.stdout), done.stdout


def test_the_page_s_programs_and_sigterm(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "use" / "taskiq.md").read_text("utf-8")
    tasks, send = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with run_cluster() as cluster:
        (tmp_path / "tasks.py").write_text(tasks.replace("127.0.0.1:9876", cluster.namesrv), "utf-8")
        (tmp_path / "send.py").write_text(send.replace("delay=5", "delay=1"), "utf-8")
        command = [sys.executable, "-m", "taskiq", "worker", "tasks:broker", "--workers", "1"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            subprocess.run([sys.executable, "send.py"], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=LIMIT_S)
            assert process.stdout is not None
            # A worker that takes long to start gets both at once.
            assert {process.stdout.readline() for _ in range(2)} == {"sum 3\n", "sum 7\n"}
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, log
        assert "Traceback" not in log
