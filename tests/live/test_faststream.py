"""FastStream services that are ended, started without servers, or whose broker dies; keys and TLS; FastAPI."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from faststream.exceptions import SetupError, StopConsume
from tests.support.patience import LIMIT_S

from fastapi import FastAPI
from rocketspark import Producer, PullConsumer
from rocketspark.errors import NotSent
from rocketspark.faststream import AckPolicy, RocketBroker, RocketRouter, RocketSecurity
from rocketspark.faststream.fastapi import RocketRouter as FastAPIRouter
from rocketspark.faststream.subscriber import RocketSubscriber
from rocketspark.testing import run_cluster

SERVICE = """
import asyncio, os
from faststream import FastStream
from rocketspark.faststream import RocketBroker

broker = RocketBroker(os.environ["NAMESRV"])
app = FastStream(broker)

@broker.subscriber("jobs", group="workers", consume_from="first", max_workers=4)
async def work(job: int):
    print(f"begun {job}", flush=True)
    await asyncio.sleep(0.3)
    with open("done", "a") as done:
        done.write(f"{job}\\n")
"""
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "use" / "faststream.md").read_text("utf-8")


@contextmanager
def service(folder: Path, namesrv: str, code: str = SERVICE) -> Iterator[subprocess.Popen[str]]:
    """`faststream run` in a process of its own."""
    (folder / "service.py").write_text(code, "utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "faststream", "run", "service:app"],
        cwd=folder,
        env=os.environ | {"NAMESRV": namesrv, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.shows("FastStream: SIGTERM lets handlers end, what was not begun is delivered to the next process")
def test_sigterm_in_the_midst_loses_nothing(tmp_path: Path) -> None:
    with run_cluster() as cluster:
        with Producer(cluster.namesrv) as producer:
            producer.create_topic("jobs")
            for job in range(40):
                producer.send("jobs", b"%d" % job)
        with service(tmp_path, cluster.namesrv) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("begun"):
                    break
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=LIMIT_S) == 0
            # What was read ahead of the first line too, which `communicate` leaves out.
            rest = process.stdout.read()
        assert "shut down gracefully" in rest
        begun = 1 + len(re.findall(r"^begun", rest, re.MULTILINE))
        done = (tmp_path / "done").read_text().split()
        # All that began have ended, and none began after that.
        assert len(done) == len(set(done)) == begun < 40
        with service(tmp_path, cluster.namesrv) as process:
            end = time.monotonic() + LIMIT_S
            while len(done) < 40:
                assert time.monotonic() < end
                time.sleep(0.05)
                done = (tmp_path / "done").read_text().split()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT_S)
    assert sorted(map(int, done)) == list(range(40))


def test_the_page_s_programs_do_what_it_says(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    ((shown, output),) = re.findall(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE[PAGE.index("## Tests") :], re.DOTALL
    )
    (tmp_path / "shown.py").write_text(shown, "utf-8")
    command = [sys.executable, "shown.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
    with run_cluster() as cluster, PullConsumer(cluster.namesrv, "look", consume_from="first") as bills:
        bills.create_topic("bills")
        bills.assign(bills.queues("bills"))
        with service(tmp_path, cluster.namesrv, code[0].replace("127.0.0.1:9876", cluster.namesrv)):
            (bill,) = bills.poll(LIMIT_S * 1000, count_max=1)
    assert (bill.body, bill.tag, bill.properties["content-type"]) == (b'{"order":1}', "new", "application/json")


@pytest.mark.shows("FastStream: a broker away at start is one line that says what to do")
def test_without_servers_the_service_says_so_in_a_line(tmp_path: Path) -> None:
    with service(tmp_path, "127.0.0.1:1") as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    lines = [line for line in output.splitlines() if "ERROR" in line]
    assert len(lines) == 1
    assert "no NameServer answers (127.0.0.1:1)" in lines[0]
    assert "check the address" in lines[0]


def test_a_broker_that_cannot_start_leaves_nothing_begun() -> None:
    async def run() -> None:
        broker = RocketBroker("127.0.0.1:1")

        @broker.subscriber("jobs", group="workers")
        async def work(job: int) -> None: ...

        with pytest.raises(NotSent, match="check the address"):
            await broker.start()
        assert not await broker.ping(0.2)
        await broker.stop()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


@pytest.mark.shows("FastStream: a master that dies in the midst costs no message")
def test_messages_survive_a_master(tmp_path: Path) -> None:
    async def run(cluster: Any) -> None:
        broker = RocketBroker(cluster.namesrv, route_interval_ms=300, producer={"send_timeout_ms": LIMIT_S * 1000})
        seen: set[int] = set()
        all_seen = asyncio.Event()

        @broker.subscriber("jobs", group="workers", consume_from="first", max_workers=4)
        async def work(job: int) -> None:
            seen.add(job)
            if len(seen) == 60:
                all_seen.set()

        async with broker:
            await broker.start()
            for job in range(60):
                if job == 30:
                    await asyncio.to_thread(cluster.kill_master)
                while True:
                    try:
                        await broker.publish(job, "jobs")
                        break
                    except Exception:
                        await asyncio.sleep(0.1)
            await asyncio.wait_for(all_seen.wait(), LIMIT_S)

    with run_cluster(replicas=2) as cluster:
        asyncio.run(run(cluster))


@pytest.mark.shows("FastStream: a handler that outlasts `graceful_timeout` is cancelled, and its message comes again")
@pytest.mark.parametrize("ordered", [False, True])
def test_handlers_that_take_too_long_at_the_end(ordered: bool) -> None:
    async def run(namesrv: str) -> None:
        router, ends = RocketRouter("shop-"), False
        begun: asyncio.Queue[int] = asyncio.Queue()

        @router.subscriber("jobs", group="workers", consume_from="first", ordered=ordered, ack_policy=AckPolicy.ACK)
        async def work(job: int) -> None:
            begun.put_nowait(job)
            if not ends:
                await asyncio.Event().wait()

        broker = RocketBroker(namesrv, graceful_timeout=0.2, logger=None, routers=[router])
        async with broker:
            await broker.start()
            await broker.publish(1, "shop-jobs")
            assert await asyncio.wait_for(begun.get(), LIMIT_S) == 1
        assert len(asyncio.all_tasks()) == 1
        ends = True
        async with broker:
            await broker.start()
            assert await asyncio.wait_for(begun.get(), LIMIT_S) == 1

    with run_cluster() as cluster:
        asyncio.run(run(cluster.namesrv))


@pytest.mark.shows("FastStream: a handler that stops its subscriber, as its service starts, loses no message")
def test_a_subscriber_that_stops_itself_leaves_the_rest_to_others() -> None:
    async def run(namesrv: str) -> None:
        seen: list[int] = []

        def service(*, stops: bool) -> tuple[RocketBroker, Any]:
            broker = RocketBroker(namesrv, logger=None)

            @broker.subscriber("jobs", group="workers", consume_from="first", max_workers=1 if stops else 8)
            async def work(job: int) -> None:
                if stops and len(seen) == 20:
                    stopped.set()
                    raise StopConsume
                seen.append(job)
                if len(set(seen)) == 200:
                    all_seen.set()

            return broker, work

        stopped, all_seen = asyncio.Event(), asyncio.Event()
        (first, _), (second, _) = kept = service(stops=True), service(stops=False)
        async with first:
            await first.publish_batch(*range(200), topic="jobs")
            await first.start()
            await asyncio.wait_for(stopped.wait(), LIMIT_S)
        assert seen == list(range(20))
        async with second:
            await second.start()
            await asyncio.wait_for(all_seen.wait(), LIMIT_S)
        assert len(seen) == 200
        assert len(kept) == 2

    # What was given back comes in a moment.
    with run_cluster(delay_levels="1s 1s 1s") as cluster:
        asyncio.run(run(cluster.namesrv))


@pytest.mark.shows("FastStream: handlers may stop their broker, also several at once")
def test_handlers_that_stop_their_broker_are_done() -> None:
    async def run(namesrv: str) -> None:
        broker, both, seen = RocketBroker(namesrv, logger=None), asyncio.Barrier(2), []
        stopped = asyncio.Semaphore(0)

        @broker.subscriber("jobs", group="workers", consume_from="first")
        @broker.subscriber("others", group="others", consume_from="first")
        async def work(job: str) -> None:
            seen.append(job)
            await both.wait()
            await broker.stop()
            stopped.release()

        await broker.start()
        await broker.publish("last", "jobs")
        await broker.publish("last", "others")
        # Far below graceful_timeout, after which the handlers would be given up.
        for _ in range(2):
            await asyncio.wait_for(stopped.acquire(), 5)
        # The close that goes on meanwhile commits it: whoever comes next gets what follows alone.
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, RocketSubscriber)
            assert subscriber._closing
            await asyncio.wait_for(subscriber._closing, LIMIT_S)
        with Producer(namesrv) as producer:
            producer.send("jobs", b"next")
        with PullConsumer(namesrv, "workers") as reader:
            reader.subscribe("jobs")
            assert ([message.body for message in reader.poll(LIMIT_S * 1000)], seen) == ([b"next"], ["last"] * 2)

    with run_cluster() as cluster:
        asyncio.run(run(cluster.namesrv))


@pytest.mark.shows("FastStream: signed requests and TLS by `security=`")
def test_keys_and_tls() -> None:
    async def run(namesrv: str, options: dict[str, Any]) -> None:
        broker = RocketBroker(namesrv, security=RocketSecurity(**options))
        noted: asyncio.Queue[str] = asyncio.Queue()

        @broker.subscriber("jobs", group="workers", consume_from="first")
        async def work(job: str) -> None:
            noted.put_nowait(job)

        async with broker:
            await broker.start()
            await broker.publish("secret", "jobs")
            assert await asyncio.wait_for(noted.get(), LIMIT_S) == "secret"

    with run_cluster(secure=True) as cluster:
        asyncio.run(run(cluster.namesrv, cluster.client_options))


def test_members_of_a_group_that_differ_are_refused() -> None:
    async def run() -> None:
        broker = RocketBroker("127.0.0.1:1")
        broker.subscriber("a", group="g")(print)
        broker.subscriber("b", group="g")(print)
        with pytest.raises(SetupError, match="different topics or filters"):
            await broker.start()
        other = RocketBroker("127.0.0.1:1")
        other.subscriber("a")(print)
        other.subscriber("a")(repr)
        with pytest.raises(SetupError, match="name a group= of each"):
            await other.start()

    asyncio.run(run())


@pytest.mark.shows("FastStream: RocketRouter for FastAPI")
def test_a_router_of_fastapi() -> None:
    with run_cluster() as cluster:
        router = FastAPIRouter(cluster.namesrv)
        seen: list[int] = []

        @router.subscriber("jobs", group="workers", consume_from="first")
        async def work(job: int) -> None:
            seen.append(job)

        @router.post("/jobs/{job}")
        async def put(job: int) -> str:
            return (await router.broker.publish(job, "jobs")).status

        app = FastAPI()
        app.include_router(router)
        with TestClient(app) as client:
            assert client.post("/jobs/7").json() == "SEND_OK"
            end = time.monotonic() + LIMIT_S
            while seen != [7]:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert client.get("/asyncapi.json").json()["channels"]["jobs:Work"]["address"] == "jobs"
