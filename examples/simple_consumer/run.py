"""Work is given out to workers that come and go: each receives a few jobs, does them and acknowledges each.

    rocketspark server --store ./store &
    python -m examples.simple_consumer.run

A topic of two queues serves five workers; one of them dies with its jobs, and others get these when their time is over.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter

from rocketspark import Producer, ReceivedMessage, SimpleConsumer
from rocketspark.admin.operations import Admin

TOPIC, GROUP = "jobs", "workers"
# How long a worker has for what it received.
INVISIBLE_MS = 3000


def work(namesrv: str, done: Counter[bytes], wanted: int, *, dies: bool) -> None:
    """Receive jobs until all are done."""
    with SimpleConsumer(namesrv, GROUP, consume_from="first", invisible_ms=INVISIBLE_MS) as consumer:
        consumer.subscribe(TOPIC)
        while len(done) < wanted:
            jobs = consumer.receive(4, timeout_ms=1000)
            if jobs and dies:
                return  # Not acknowledged, not given back: as if the machine had burnt down.
            for job in jobs:
                do(consumer, job)
                done[job.body] += 1
            if jobs:
                consumer.ack(jobs)


def do(consumer: SimpleConsumer, job: ReceivedMessage) -> None:
    """Do one job; a long one asks for more time before it begins."""
    if job.body.endswith(b"0"):
        consumer.change_invisible_time(job, 10 * INVISIBLE_MS)


def run(namesrv: str, jobs: int = 100, workers: int = 5) -> Counter[bytes]:
    """Send jobs and have them done; returns how often each was."""
    with Admin(namesrv) as operations:
        operations.create_topic(TOPIC, queue_count=2)
    done: Counter[bytes] = Counter()
    with Producer(namesrv, "boss") as producer:
        for number in range(jobs):
            producer.send(TOPIC, b"job %d" % number)
    threads = [
        threading.Thread(target=work, args=(namesrv, done, jobs), kwargs={"dies": number == 0})
        for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


if __name__ == "__main__":
    counts = run(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
    print(f"{len(counts)} jobs done, {sum(counts.values()) - len(counts)} of them again")
