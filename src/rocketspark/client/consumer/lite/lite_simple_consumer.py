"""The simple consumer of lite topics: subscribed to one by one, received and acknowledged as other messages are.

Rule: those of one lite topic come in order, and none that follows until those before it are acknowledged or their
invisible time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from rocketspark.client import validators
from rocketspark.client.consumer.lite.lite_calls import LiteCalls
from rocketspark.client.consumer.lite.lite_subscriptions import LiteSubscriptions, Position, offset_option
from rocketspark.client.consumer.pop.simple_consumer import GIVE_BACK_S, AsyncSimpleConsumer
from rocketspark.client.options import ClientOptions
from rocketspark.errors import UsageError
from rocketspark.model import namespace, subscribe
from rocketspark.protocol.json import bodies


class AsyncLiteSimpleConsumer(AsyncSimpleConsumer):
    """Receives messages of lite topics and acknowledges each, on the running asyncio loop; needs brokers of RocketMQ
    5.5.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group, whose attribute `lite.bind.topic` names the topic.
        topic: the parent topic, of the type LITE.
        invisible_ms: for how long other receives do not get a message that was received, up to 12 h. Until it is
            acknowledged or that time is over nothing that follows in its lite topic comes.
        on_lost: called with the name of each lite topic that a broker took away, as another client of an exclusive
            group subscribed to it; a plain function, called in a thread, or a coroutine function.
        options: see ClientOptions.

    Use it as a context manager, or `start` and `close` it; `subscribe_lite` comes after the start.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        topic: str = "",
        *,
        invisible_ms: float = 60_000,
        on_lost: Callable[[str], object] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(namesrv, group, invisible_ms=invisible_ms, **options)
        full = validators.check_topic(namespace.wrap(self._namespace, topic))
        self._subscriptions[full] = subscribe(full)
        self._lite = LiteSubscriptions(self._instance, self.group, full, on_lost)
        self._pops = LiteCalls(self._instance, self.group, self._namespace, self._lite)

    async def subscribe_lite(
        self,
        lite_topic: str,
        *,
        position: Position = "group",
        offset: int | None = None,
        tail_count: int | None = None,
    ) -> None:
        """Read a lite topic too; nothing happens if it is read already.

        It begins where the group was; or, if one of these is given, at its `position` "first" (the oldest message) or
        "end" (behind the newest), at an `offset`, or `tail_count` messages before where the group was. In an exclusive
        group it is taken from the client that had it. Raises UsageError for a group whose attribute
        `lite.bind.topic` is not this topic, or that reads all lite topics by itself (`lite.sub.wildcard`),
        MessageIllegal for a name that is not allowed, ServerError 2018 for more than the group's quota, what a broker
        raises, TransportError.
        """
        self._check_started()
        await self._lite.add(lite_topic, offset_option(position, offset, tail_count))
        self._arrived.set()

    async def unsubscribe_lite(self, lite_topic: str) -> None:
        """Read a lite topic no more. What was received of it can still be acknowledged. Raises what a broker raises,
        TransportError.
        """
        self._check_started()
        await self._lite.remove(lite_topic)

    def lite_topics(self) -> list[str]:
        """Return the names of the lite topics that are read, sorted."""
        return sorted(self._lite.names)

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Raise UsageError: the topic is told when the consumer is made, and its lite topics with `subscribe_lite`."""
        raise UsageError("a consumer of lite topics reads those of its own topic alone: call subscribe_lite(name)")

    def unsubscribe(self, topic: str) -> None:
        """Raise UsageError, as `subscribe`."""
        raise UsageError("a consumer of lite topics keeps its topic: call unsubscribe_lite(name)")

    async def _open(self) -> None:
        await super()._open()
        self._lite.begin()

    async def _end(self, through: bool) -> None:
        if self._entered:
            await self._lite.end(GIVE_BACK_S)
        await super()._end(through)

    def _heartbeat(self) -> bodies.ConsumerData:
        told = super()._heartbeat()
        told.message_model = "LITE_SELECTIVE"
        return told
