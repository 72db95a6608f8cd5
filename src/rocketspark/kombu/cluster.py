"""What all channels of a process on one cluster share: a producer, the operations, and readers of what is broadcast.

Rule: it opens with the first channel, closes with the last, and is made anew in a forked process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from rocketspark.admin.operations import Admin
from rocketspark.client.connection.loop_thread import LoopThread
from rocketspark.client.sync import LoopNotice, Producer
from rocketspark.errors import NotSent, RocketSparkError, RouteNotFound, SendFailed
from rocketspark.kombu.names import PUBLISHERS, group_of, is_reply_queue
from rocketspark.kombu.options import Settings
from rocketspark.kombu.reader import Reader
from rocketspark.model import MessageQueue, namespace
from rocketspark.protocol.codes import ResponseCode

T = TypeVar("T")
LEFT_MAX = 1000


class Cluster:
    """The shared clients of one cluster. `acquire` and `release` count its users."""

    _open: ClassVar[dict[bytes, Cluster]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()
    # Where queues of replies go on: kombu closes all and opens it anew after a send that failed, and results that came
    # before are asked for later.
    _left: ClassVar[dict[tuple[str, str], dict[MessageQueue, int]]] = {}

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.readers: dict[str, Reader] = {}
        self._pid = os.getpid()
        self._users = 0
        self._topics: set[str] = set()
        self._thread = LoopThread.acquire()
        self.producer = Producer(
            settings.namesrv,
            PUBLISHERS,
            namespace=settings.namespace,
            send_timeout_ms=settings.send_timeout * 1000,
            **settings.access,
        )
        self.admin = Admin(settings.namesrv, **settings.access)

    @classmethod
    def acquire(cls, settings: Settings) -> Self:
        """Return the open cluster of these settings, or open it. Raises NotSent if no NameServer answers."""
        key = msgspec.json.encode(settings, order="sorted")
        with cls._guard:
            made = cls._open.get(key)
            if made is None:
                made = cls(settings)
                try:
                    made.admin.start()
                    made.producer.start()
                except BaseException:
                    made._close()
                    raise
                cls._open[key] = made
            made._users += 1
            return made  # type: ignore[return-value]

    def release(self) -> None:
        """Give up one use; the last one closes. In a forked process it does nothing."""
        if self._pid != os.getpid():
            return
        with self._guard:
            self._users -= 1
            if self._users:
                return
            for key in [key for key, cluster in self._open.items() if cluster is self]:
                del self._open[key]
        self._close()

    def _close(self) -> None:
        for queue in list(self.readers):
            left = self.end_reader(queue)
            if left and is_reply_queue(queue):
                self._left[self.settings.namesrv, queue] = left
        while len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]
        for close in (self.producer.close, self.admin.close):
            with contextlib.suppress(RocketSparkError):
                close()
        self._thread.release()

    @property
    def is_ours(self) -> bool:
        """False in a process that forked since this was opened."""
        return self._pid == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the clients' loop, and return its result."""
        return self._thread.call(coroutine)

    def soon(self, act: Callable[[], object]) -> None:
        """Have a function called on the clients' loop, without waiting."""
        self._thread.put(LoopNotice(act))

    def check(self) -> None:
        """Raise NotSent unless a NameServer answers and knows a broker, ServerError if the keys are wrong."""
        if not self.admin.cluster_info():
            text = "knows no broker: start one, or mend the address in its settings"
            raise NotSent(f"NameServer {self.settings.namesrv} {text}", address=self.settings.namesrv)
        if self.settings.access:
            self.admin.check_keys()

    # -- topics --------------------------------------------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Tell whether a topic exists."""
        full = self._full(topic)
        # Brokers are asked only for what the NameServer does not know: one that is silent makes others wait.
        if topic not in self._topics and (full in self.admin.list_topics() or self.admin.topic_configs(full)):
            self._topics.add(topic)
        return topic in self._topics

    def ensure_topic(self, topic: str, queue_count: int) -> None:
        """Create a topic unless it exists; one that does is left as it is."""
        if not self.has_topic(topic):
            self.admin.create_topic(self._full(topic), queue_count=queue_count)
            self._topics.add(topic)

    def send(self, topic: str, body: bytes, queue_count: int, **fields: Any) -> None:
        """Send a message to a topic, which is created if it does not exist, or was deleted by others."""
        self.ensure_topic(topic, queue_count)
        try:
            self.producer.send(topic, body, **fields)
        except (SendFailed, RouteNotFound) as e:
            if e.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            self._topics.discard(topic)
            self.ensure_topic(topic, queue_count)
            self.producer.send(topic, body, **fields)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, if it exists."""
        self._topics.discard(topic)
        with contextlib.suppress(RouteNotFound):
            self.admin.delete_topic(self._full(topic))

    def ready_count(self, topic: str) -> int:
        """Return how many messages of a queue's topic nobody has received, those that come again included."""
        group = self._full(group_of(topic))
        count = 0
        for each in (self._full(topic), f"%RETRY%{group}_{self._full(topic)}"):
            with contextlib.suppress(RouteNotFound):
                count += sum(queue.lag for queue in self.admin.show_progress(group, each))
        return count

    def _full(self, name: str) -> str:
        return namespace.wrap(self.settings.namespace, name)

    # -- what is broadcast ---------------------------------------------------------------------------------------

    def reader(self, queue: str) -> Reader:
        """Return the reader of a queue that gets what is broadcast, begun if there is none."""
        if queue not in self.readers:
            left = self._left.pop((self.settings.namesrv, queue), {})
            self.readers[queue] = Reader(self.settings, queue, self.soon, left)
        return self.readers[queue]

    def end_reader(self, queue: str) -> dict[MessageQueue, int]:
        """End a queue that gets what is broadcast, with all that it has not delivered. Returns where that begins."""
        reader = self.readers.pop(queue, None)
        if reader is not None:
            with contextlib.suppress(RocketSparkError):
                return self.run(reader.close())
        return {}


def _forked() -> None:
    Cluster._open, Cluster._guard = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
