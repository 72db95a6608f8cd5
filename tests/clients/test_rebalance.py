"""Members that join, leave and are killed under load, on both servers: nothing is missed, little comes twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clients.scene import Cluster, Scene
from tests.java.apache import committed_offset
from tests.java.mqadmin import until

from rocketspark.client import Producer
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows(
    "rebalance: strategies; members that join, leave and are killed under load; locks for order",
)

QUEUES = 6
BACKLOG = 32
LIMIT_S = 120
Place = tuple[int, int]


class Delivered:
    """What all members wrote: (member, queue id, offset) in the order it was read."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []
        self._changed = threading.Condition()

    def add(self, member: str, line: str) -> None:
        queue_id, offset = line.split()
        with self._changed:
            self.rows.append((member, int(queue_id), int(offset)))
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT_S), "the members did not go on"

    def since(self, start: int) -> list[tuple[str, int, int]]:
        return self.rows[start:]


class Member:
    """A consumer's process."""

    def __init__(self, name: str, scene: Scene, delivered: Delivered, *, ordered: bool) -> None:
        self.name = name
        self._delivered = delivered
        call = [sys.executable, str(Path(__file__).with_name("member.py"))]
        call += [scene.namesrv, scene.group, scene.topic, str(BACKLOG), str(int(ordered))]
        self.process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._delivered.add(self.name, line)

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._ended()

    def _ended(self) -> None:
        self.process.wait(LIMIT_S)
        # Everything that it wrote is known now.
        self._reader.join(LIMIT_S)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def load(scene: Scene) -> Iterator[list[Place]]:
    """Messages for all queues in turn, until the block ends; those that were stored."""
    stored: list[Place] = []
    ends = threading.Event()

    def send() -> None:
        with Producer(scene.namesrv, "pg", send_timeout_ms=60_000) as producer:
            n = 0
            while not ends.is_set():
                result = producer.send(scene.topic, b"%d" % n, queue=MessageQueue(scene.topic, "broker-a", n % QUEUES))
                stored.append((result.queue.queue_id, result.queue_offset))
                n += 1
                ends.wait(0.003)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield stored
    finally:
        ends.set()
        thread.join()


@pytest.fixture
def members(cluster: Cluster) -> Iterator[list[Member]]:
    made: list[Member] = []
    yield made
    for member in made:
        if member.process.poll() is None:
            member.kill()


@pytest.fixture
def broad(request: pytest.FixtureRequest, cluster: Cluster) -> Scene:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.removeprefix("test_"))
    return Scene(cluster, name, queues=QUEUES)


def test_members_join_leave_and_are_killed_under_load(broad: Scene, members: list[Member]) -> None:
    delivered, broker = Delivered(), broad.cluster.broker

    def join(name: str) -> Member:
        member = Member(name, broad, delivered, ordered=False)
        members.append(member)
        delivered.until(lambda: sum(row[0] == name for row in delivered.rows) >= 20)
        return member

    def all_queues_go_on() -> None:
        start = len(delivered.rows)
        delivered.until(lambda: {row[1] for row in delivered.since(start)} == set(range(QUEUES)))

    def again(gone: str, start: int) -> Counter[int]:
        """By queue: how much of what a member that is gone had consumed was delivered to others since."""
        had = {(queue, offset) for name, queue, offset in delivered.rows[:start] if name == gone}
        return Counter(queue for _, queue, offset in delivered.since(start) if (queue, offset) in had)

    everything: set[Place] = set()

    def caught_up(stored: list[Place]) -> None:
        """What other members had been given before is settled: all is delivered and committed."""
        everything.update(stored)
        delivered.until(lambda: everything <= {row[1:] for row in delivered.rows})
        ends = Counter(queue for queue, _ in everything)
        until(lambda: all(committed_offset(broker, broad.group, broad.topic, q) == ends[q] for q in range(QUEUES)))

    with load(broad) as stored:
        first = join("first")
        second, third = join("second"), join("third")
    caught_up(stored)
    for gone, end in ((second, second.kill), (third, third.leave), (first, first.kill)):
        with load(broad) as stored:
            if gone is third:
                join("fourth")
        caught_up(stored)
        with load(broad) as stored:
            all_queues_go_on()
            end()
            start = len(delivered.rows)
            all_queues_go_on()
        caught_up(stored)
        twice = again(gone.name, start)
        if gone is third:
            # Who leaves finishes and commits first.
            assert twice == Counter()
        # Uncommitted is at most what was fetched, and what was done since the pull before.
        assert max(twice.values(), default=0) <= 2 * BACKLOG, twice
    assert {row[1:] for row in delivered.rows} == everything


def test_ordered_members_join_and_leave_under_load(broad: Scene, members: list[Member]) -> None:
    delivered = Delivered()

    def join(name: str) -> Member:
        member = Member(name, broad, delivered, ordered=True)
        members.append(member)
        delivered.until(lambda: sum(row[0] == name for row in delivered.rows) >= 20)
        return member

    with load(broad) as stored:
        first = join("first")
        second = join("second")
        first.leave()
        join("third")
        second.leave()
        start = len(delivered.rows)
        delivered.until(lambda: {row[1] for row in delivered.since(start)} == set(range(QUEUES)))
    everything = set(stored)
    delivered.until(lambda: len(delivered.rows) >= len(everything))
    # Once each: one member after the other read a queue.
    assert Counter(row[1:] for row in delivered.rows) == Counter(everything)
