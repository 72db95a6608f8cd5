"""The synchronous consumers: the asynchronous ones, run on a background loop. Rule: same methods, same signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rocketspark.client.membership import ConsumeFrom
from rocketspark.client.pull_consumer import AsyncPullConsumer
from rocketspark.client.push_consumer import AsyncPushConsumer
from rocketspark.client.sync import Facade
from rocketspark.model import MessageQueue, ReceivedMessage

F = TypeVar("F", bound=Callable[[Any], Any])


class PushConsumer(Facade[AsyncPushConsumer]):
    """Hands messages to a listener, in background threads. Arguments and rules: those of AsyncPushConsumer.

    >>> consumer = PushConsumer("127.0.0.1:9876", "billing")
    >>> consumer.subscribe("orders", "fruit || bread")
    >>> consumer.listen(lambda message: print(message.body))
    >>> with consumer:
    ...     input("Enter ends it")
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        *,
        consume_from: ConsumeFrom = "last",
        threads: int = 20,
        batch_max: int = 1,
        max_reconsume_times: int = 16,
        pull_count_max: int = 256,
        pull_bytes_max: int = 256 << 10,
        backlog_count_max: int = 1000,
        backlog_bytes_max: int = 100 << 20,
        rebalance_interval_ms: float = 20_000,
        commit_interval_ms: float = 5000,
        close_timeout_ms: float = 30_000,
        instance_name: str | None = None,
        client_ip: str | None = None,
        route_interval_ms: float = 30_000,
        heartbeat_interval_ms: float = 30_000,
    ) -> None:
        core = AsyncPushConsumer(
            namesrv,
            group,
            consume_from=consume_from,
            threads=threads,
            batch_max=batch_max,
            max_reconsume_times=max_reconsume_times,
            pull_count_max=pull_count_max,
            pull_bytes_max=pull_bytes_max,
            backlog_count_max=backlog_count_max,
            backlog_bytes_max=backlog_bytes_max,
            rebalance_interval_ms=rebalance_interval_ms,
            commit_interval_ms=commit_interval_ms,
            close_timeout_ms=close_timeout_ms,
            instance_name=instance_name,
            client_ip=client_ip,
            route_interval_ms=route_interval_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
        )
        super().__init__(core)
        self.group = core.group

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Want a topic's messages: all, or those of "TagA || TagB". Also while running."""
        if self._thread is None:
            self._core.subscribe(topic, expression)
        else:
            self._thread.call(_later(self._core.subscribe, topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic. Also while running."""
        if self._thread is None:
            self._core.unsubscribe(topic)
        else:
            self._thread.call(_later(self._core.unsubscribe, topic))

    def listen(self, listener: F) -> F:
        """Set the function that gets each message. As AsyncPushConsumer.listen."""
        return self._core.listen(listener)

    def queues(self) -> list[MessageQueue]:
        """The queues this member reads now. As AsyncPushConsumer.queues."""
        return self._loop.call(self._core.queues())


class PullConsumer(Facade[AsyncPullConsumer]):
    """Reads messages on demand. Arguments and rules: those of AsyncPullConsumer.

    >>> with PullConsumer("127.0.0.1:9876", "audit", consume_from="first") as consumer:
    ...     consumer.subscribe("orders")
    ...     for message in consumer:
    ...         print(message.body)
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        *,
        consume_from: ConsumeFrom = "last",
        auto_commit: bool = True,
        pull_count_max: int = 256,
        pull_bytes_max: int = 256 << 10,
        backlog_count_max: int = 1000,
        backlog_bytes_max: int = 100 << 20,
        rebalance_interval_ms: float = 20_000,
        commit_interval_ms: float = 5000,
        instance_name: str | None = None,
        client_ip: str | None = None,
        route_interval_ms: float = 30_000,
        heartbeat_interval_ms: float = 30_000,
    ) -> None:
        core = AsyncPullConsumer(
            namesrv,
            group,
            consume_from=consume_from,
            auto_commit=auto_commit,
            pull_count_max=pull_count_max,
            pull_bytes_max=pull_bytes_max,
            backlog_count_max=backlog_count_max,
            backlog_bytes_max=backlog_bytes_max,
            rebalance_interval_ms=rebalance_interval_ms,
            commit_interval_ms=commit_interval_ms,
            instance_name=instance_name,
            client_ip=client_ip,
            route_interval_ms=route_interval_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
        )
        super().__init__(core)
        self.group = core.group

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Want a topic's messages; its queues are shared within the group. As AsyncPullConsumer.subscribe."""
        if self._thread is None:
            self._core.subscribe(topic, expression)
        else:
            self._thread.call(_later(self._core.subscribe, topic, expression))

    def assign(self, queues: Sequence[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues. As AsyncPullConsumer.assign."""
        self._loop.call(self._core.assign(queues, expression))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._core.assignment()

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read. As AsyncPullConsumer.queues."""
        return self._loop.call(self._core.queues(topic))

    def poll(self, timeout_ms: float = 1000, *, count_max: int = 1000) -> list[ReceivedMessage]:
        """Up to `count_max` messages; waits up to `timeout_ms` for the first. As AsyncPullConsumer.poll."""
        return self._loop.call(self._core.poll(timeout_ms, count_max=count_max))

    def unread(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take back messages that `poll` returned. As AsyncPullConsumer.unread."""
        self._loop.call(self._core.unread(messages))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages one by one, for as long as the consumer is open; those not given out are not committed."""
        while self._thread is not None:
            messages = self.poll()
            given = 0
            try:
                for message in messages:
                    given += 1
                    yield message
            finally:
                if given < len(messages) and self._thread is not None:
                    self.unread(messages[given:])

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message of a queue that `poll` would return."""
        return self._loop.call(self._core.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue on from `offset`."""
        self._loop.call(self._core.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read a queue from its oldest message on."""
        self._loop.call(self._core.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        self._loop.call(self._core.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, time_ms: int) -> None:
        """Read a queue from the first message stored at or after `time_ms` on."""
        self._loop.call(self._core.seek_to_time(queue, time_ms))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what `poll` returned so far; or the offsets given. As AsyncPullConsumer.commit."""
        self._loop.call(self._core.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue, None if there is none."""
        return self._loop.call(self._core.committed(queue))

    def begin_offset(self, queue: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        return self._loop.call(self._core.begin_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return self._loop.call(self._core.end_offset(queue))

    def offsets_for_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at or after `time_ms`; the end if there is none."""
        return self._loop.call(self._core.offsets_for_time(queue, time_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more of these queues until `resume`; what was fetched already is still returned."""
        self._loop.call(self._core.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch from these queues again."""
        self._loop.call(self._core.resume(queues))


async def _later(act: Callable[..., None], *arguments: Any) -> None:
    act(*arguments)
