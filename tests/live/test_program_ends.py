"""Programs that end without `close`: what futures have still to send is sent, or one line says how many were not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.support.ports import free_ports

from rocketspark import Producer, PullConsumer
from rocketspark.client.producer import program_end
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("a program that ends without close")

PROGRAM = """
import sys
from rocketspark import Producer
producer = Producer(sys.argv[1], {options})
producer.start()
for number in range({count}):
    future = producer.send_future("{topic}", b"%d" % number)
    future.add_done_callback(lambda done: print("called", flush=True))
{end}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        with Producer(running.namesrv) as producer:
            for topic in ("plain", "gathered", "fails", "chained"):
                producer.create_topic(topic)
        yield running


def run(namesrv: str, topic: str, *, count: int, options: str = "", end: str = "") -> subprocess.CompletedProcess[str]:
    text = PROGRAM.format(topic=topic, count=count, options=options, end=end)
    return subprocess.run([sys.executable, "-c", text, namesrv], capture_output=True, text=True, timeout=120)


def stored(cluster: Cluster, topic: str) -> int:
    with PullConsumer(cluster.namesrv, "g") as consumer:
        return sum(consumer.end_offset(queue) for queue in consumer.queues(topic))


@pytest.mark.parametrize(
    ("topic", "options", "end", "code"),
    [("plain", "", "", 0), ("gathered", "linger_ms=60_000", "", 0), ("fails", "linger_ms=60_000", "1 / 0", 1)],
)
def test_what_futures_have_to_send_is_sent(cluster: Cluster, topic: str, options: str, end: str, code: int) -> None:
    done = run(cluster.namesrv, topic, count=100, options=options, end=end)
    assert (done.returncode, done.stdout.count("called")) == (code, 100)
    assert done.stderr.splitlines()[-1:] == (["ZeroDivisionError: division by zero"] if code else [])
    assert stored(cluster, topic) == 100


CHAIN = """
left = [20]
def again(done):
    left[0] -= 1
    if left[0]:
        producer.send_future("chained", b"x").add_done_callback(again)
again(None)
"""


def test_what_callbacks_send_is_sent(cluster: Cluster) -> None:
    done = run(cluster.namesrv, "chained", count=1, options="linger_ms=60_000", end=CHAIN)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(cluster, "chained") == 20


ASYNC = """
import asyncio, sys
from rocketspark import AsyncProducer
async def main():
    producer = AsyncProducer(sys.argv[1], linger_ms=60_000)
    await producer.start()
    tasks = [asyncio.ensure_future(producer.send("chained", b"x")) for _ in range(9)]
    await asyncio.sleep(0)
asyncio.run(main())
"""


def test_cancelled_sends_of_coroutines_are_said(cluster: Cluster) -> None:
    done = subprocess.run([sys.executable, "-c", ASYNC, cluster.namesrv], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines() == [
        "the program ended: 9 send(s) of coroutines were cancelled, and may not be sent; await them, or use the"
        " producer in an async with block"
    ]


CLOSED = """
import asyncio, sys
from rocketspark import AsyncProducer
async def main():
    async with AsyncProducer(sys.argv[1], linger_ms=60_000) as producer:
        try:
            await asyncio.wait_for(producer.send("chained", b"x"), 0.001)
        except TimeoutError:
            print("too slow")
asyncio.run(main())
"""


def test_sends_that_a_program_gave_up_before_it_closed_are_its_own_doing(cluster: Cluster) -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED, cluster.namesrv], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("too slow\n", "")


def test_one_line_says_how_many_were_not() -> None:
    nowhere = f"127.0.0.1:{free_ports(0)}"
    done = run(nowhere, "t", count=7, options="send_timeout_ms=60_000, retries=1000")
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "7 message(s)" in line] == done.stderr.splitlines()[-1:]


def test_ctrl_c_ends_the_wait_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    class Interrupted:
        def _finish_by(self, end_s: float) -> int:
            ends.append(end_s - time.monotonic())
            if len(ends) == 1:
                raise KeyboardInterrupt
            return 0

    producer = Interrupted()
    monkeypatch.setattr(program_end, "open_producers", {producer})
    program_end._finish()
    waited, again = ends
    assert waited > again
    assert again <= 0
