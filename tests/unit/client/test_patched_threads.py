"""Clients in programs whose threads gevent or eventlet has replaced: gunicorn's and Celery's workers are such."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.unit.client.fake import Fake
from tests.unit.client.test_sync import fake

from rocketspark.client.connection.real_threads import DaemonThreads

pytestmark = pytest.mark.shows(
    "gevent: sends, futures, push, ordered and pull consumers in greenlets; eventlet: one line",
)

__all__ = ["fake"]

GEVENT = """
from gevent import monkey
import rocketspark.client.sync  # before or after: it makes no difference
monkey.patch_all()
import gevent, sys, threading, time
from rocketspark import Producer, PullConsumer, PushConsumer

namesrv = sys.argv[1]
got, ordered, ticks = [], [], []

def tick():
    while True:
        ticks.append(None)
        gevent.sleep(0.005)

gevent.spawn(tick)
with Producer(namesrv, "pg") as producer:
    def work(number):
        producer.send("t", b"sent")
        return producer.send_future("t", b"future").result().queue.topic

    jobs = [gevent.spawn(work, number) for number in range(20)]
    assert [job.get() for job in jobs] == ["t"] * 20
    pushed = PushConsumer(namesrv, "push", consume_from="first")
    in_order = PushConsumer(namesrv, "ordered", consume_from="first", ordered=True)
    for consumer, into in ((pushed, got), (in_order, ordered)):
        consumer.subscribe("t")
        consumer.listen(lambda message, into=into: (time.sleep(0.001), into.append(message.body)))
    with pushed, in_order, PullConsumer(namesrv, "pull", consume_from="first") as pull:
        pull.subscribe("t")
        found = []
        while len(found) < 40:
            found += pull.poll(1000)
        before = len(ticks)
        assert pull.poll(300) == []
        assert len(ticks) - before > 3, "greenlets stood still"
        while len(got) < 40 or len(ordered) < 40:
            gevent.sleep(0.005)
print(len(found), len(got), len(ordered), sorted(set(got)))
"""

EVENTLET = """
import warnings
warnings.simplefilter("ignore")
import eventlet, sys
eventlet.monkey_patch()
from rocketspark import Producer
from rocketspark.errors import StateError
try:
    Producer(sys.argv[1]).start()
except StateError as e:
    print(e)
"""


def run(code: str, fake: Fake) -> str:
    done = subprocess.run([sys.executable, "-c", code, fake.namesrv], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_all_works_with_gevent(fake: Fake) -> None:
    assert run(GEVENT, fake) == "40 40 40 [b'future', b'sent']\n"


def test_with_eventlet_one_line_says_what_to_do(fake: Fake) -> None:
    (line,) = run(EVENTLET, fake).splitlines()
    assert "eventlet has replaced this process's threads" in line
    assert "monkey_patch(thread=False)" in line


def test_an_executor_s_calls_run_side_by_side_up_to_its_count_and_are_cancelled() -> None:
    import threading

    executor = DaemonThreads(2, "two")
    begun, go_on = threading.Semaphore(0), threading.Event()

    def call(number: int) -> int:
        begun.release()
        assert go_on.wait(120)
        return 1 // number

    first, second, third, fourth = (executor.submit(call, number) for number in (1, 0, 1, 1))
    assert begun.acquire(timeout=120)
    assert begun.acquire(timeout=120)
    assert not begun.acquire(blocking=False)
    assert third.cancel()
    executor.shutdown(cancel_futures=True)
    go_on.set()
    assert first.result(120) == 1
    with pytest.raises(ZeroDivisionError):
        second.result(120)
    assert fourth.cancelled()
