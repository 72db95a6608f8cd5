"""A channel: kombu's queues and exchanges on RocketMQ's topics.

Rule: a queue is a topic whose messages are popped; fanout exchanges, and those of Celery's remote control and events,
are topics that every queue bound to them reads from the moment on when it was bound.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from queue import Empty
from typing import Any
from uuid import uuid4

from kombu.compression import decompress
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual import exchange as exchanges
from kombu.utils.json import dumps, loads

from rocketspark.client.callbacks import trouble_log
from rocketspark.errors import RocketSparkError, StateError, TransportError
from rocketspark.kombu.cluster import Cluster
from rocketspark.kombu.names import REPLIES, exchange_topic, is_reply_queue, queue_topic, quote, step_of
from rocketspark.kombu.options import Settings
from rocketspark.kombu.reader import Read, Reader
from rocketspark.kombu.source import Popped, Source
from rocketspark.model import ReceivedMessage
from rocketspark.model.text import whole_number

# Brokers take timer messages for up to 3 days; a worker waits for what is left.
TIMER_MS_MAX = 70 * 3600 * 1000
KEY_CHARACTERS_MAX = 255


class QoS(virtual.QoS):
    """What was delivered and is neither acknowledged nor rejected."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.let_go(delivery_tag, "ack")
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or make it a dead letter."""
        self.channel.let_go(delivery_tag, "give_back" if requeue else "dead")
        super().ack(delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back all that is not acknowledged, as the channel or the process ends."""
        self.channel.end_sources(lambda: super(QoS, self).restore_unacked_once(stderr))


class _Broadcasting:
    """A direct or topic exchange: what it does with messages of exchanges that are broadcast."""

    channel: Any

    def deliver(self, message: Any, exchange: str, routing_key: str, **more: Any) -> None:
        if self.channel.settings.is_broadcast(exchange):
            self.channel._put_fanout(exchange, message, routing_key)
        else:
            super().deliver(message, exchange, routing_key, **more)  # type: ignore[misc]


class DirectExchange(_Broadcasting, exchanges.DirectExchange):
    """An exchange whose queues are bound by the routing key itself."""


class TopicExchange(_Broadcasting, exchanges.TopicExchange):
    """An exchange whose queues are bound by patterns."""


class Channel(virtual.Channel):
    """A kombu channel."""

    QoS = QoS
    supports_fanout = True
    exchange_types = {"direct": DirectExchange, "topic": TopicExchange, "fanout": exchanges.FanoutExchange}

    def __init__(self, connection: Any, **more: Any) -> None:
        super().__init__(connection, **more)
        self.settings: Settings = connection.settings
        self.cluster = Cluster.acquire(self.settings)
        # By delivery tag, what was received and is not settled; what is not delivered yet among it.
        self.held: dict[str, Popped | Read] = {}
        self._sources: dict[str, Source] = {}
        self._turn = asyncio.Lock()
        self._ttl_ms: dict[str, int] = {}
        self._auto_delete: set[str] = set()
        self._no_ack: set[str] = set()

    # -- queues --------------------------------------------------------------------------------------------------

    def _topics(self, queue: str) -> list[str]:
        """Return a queue's topics, of the highest priority first."""
        return [queue_topic(queue, step_of(step, self.settings.priority_steps)) for step in self._steps()]

    def _steps(self) -> Iterable[int]:
        return reversed(self.settings.priority_steps)

    def _reader(self, queue: str) -> Reader | None:
        """Return the reader of a queue that gets what is broadcast, None if it is another queue."""
        if is_reply_queue(queue) and queue not in self.cluster.readers:
            self._bind_reader(queue, REPLIES, queue)
        return self.cluster.readers.get(queue)

    def _bind_reader(self, queue: str, topic: str, key: str | None = None, pattern: str | None = None) -> None:
        self.cluster.ensure_topic(topic, 1)
        is_new = queue not in self.cluster.readers
        try:
            self.cluster.run(self.cluster.reader(queue).bind(topic, key, pattern))
        except BaseException:
            if is_new:  # It reads nothing: the next to ask for it binds it.
                self.cluster.end_reader(queue)
            raise

    def _source(self, queue: str) -> Source:
        """Return what receives a queue, whose topics are created if they are not there."""
        if queue not in self._sources:
            topics = self._topics(queue)
            for topic in topics:
                self.cluster.ensure_topic(topic, self.settings.queue_count)

            async def make() -> Source:
                made = Source(
                    self.settings,
                    topics,
                    room=self._room,
                    shares=lambda: len(self._sources),
                    turn=self._turn,
                    arrive=lambda popped: self._arrive(queue, popped),
                    soon=self.cluster.soon,
                )
                await made.open()
                return made

            self._sources[queue] = self.cluster.run(make())
        return self._sources[queue]

    def _new_queue(self, queue: str, auto_delete: bool = False, arguments: Any = None, **more: Any) -> None:
        self._ttl_ms.pop(queue, None)
        if ttl_ms := (arguments or {}).get("x-message-ttl"):
            self._ttl_ms[queue] = int(ttl_ms)
        if auto_delete:
            # Its topic is made by the first message or consumer: those of remote control need none.
            self._auto_delete.add(queue)
        if self._reader(queue) is None and not auto_delete:
            for topic in self._topics(queue):
                self.cluster.ensure_topic(topic, self.settings.queue_count)

    def _has_queue(self, queue: str, **more: Any) -> bool:
        return self._reader(queue) is not None or self.cluster.has_topic(queue_topic(queue))

    def _size(self, queue: str) -> int:
        try:
            return self._count(queue)
        except TransportError as e:
            # Every consumer asks for it as it declares its queue, and few want to know.
            trouble_log.warning("how many messages queue %s has is not known: %s", queue, e)
            return 0

    def _count(self, queue: str) -> int:
        if (reader := self._reader(queue)) is not None:
            return len(reader.waiting)
        topics = (topic for topic in self._topics(queue) if self.cluster.has_topic(topic))
        return sum(map(self.cluster.ready_count, topics))

    def _purge(self, queue: str) -> int:
        if (reader := self._reader(queue)) is not None:
            count = len(reader.waiting)
            reader.waiting.clear()
            return count
        count = self.cluster.run(self._source(queue).purge())
        # What was fetched for a consumer here, and is not delivered to it, is still in the queue.
        fetched = self.connection.inbox.withdraw(self, queue)
        for item in fetched:
            self.let_go(item.tag, "ack")
        return count + len(fetched)

    def _delete(self, queue: str, *arguments: Any, **more: Any) -> None:
        self._auto_delete.discard(queue)
        if self._reader(queue) is not None:
            self.cluster.end_reader(queue)
            return
        if (source := self._sources.pop(queue, None)) is not None:
            self.cluster.run(source.close())
        for topic in self._topics(queue):
            self.cluster.delete_topic(topic)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **more: Any) -> None:
        """Delete a queue, also one that is bound to no exchange here."""
        if not if_empty or not self._count(queue):
            super().queue_delete(queue, if_unused, if_empty, **more)
            self._delete(queue)

    def prepare_queue_arguments(self, arguments: Any, **more: Any) -> Any:
        """Return what a queue is declared with, by the names that AMQP has for it."""
        return to_rabbitmq_queue_arguments(arguments, **more)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **more: Any
    ) -> None:
        """Bind a queue to an exchange; a bind that fails is none, so that it can be tried again."""
        bound = queue, exchange or "amq.direct", routing_key, arguments
        try:
            super().queue_bind(*bound, **more)
        except BaseException:
            self.queue_unbind(*bound)
            raise

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        if kind == "fanout":
            self._bind_reader(queue, exchange_topic(exchange))
        elif self.settings.is_broadcast(exchange):
            by_key = kind == "direct"
            self._bind_reader(
                queue, exchange_topic(exchange), routing_key if by_key else None, None if by_key else pattern
            )

    # -- publish -------------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: Any, **more: Any) -> None:
        if is_reply_queue(queue):
            self.cluster.send(REPLIES, dumps(message).encode(), 1, tag=queue)
            return
        properties = message["properties"]
        if (ttl_ms := self._ttl_ms.get(queue)) is not None:
            given = properties.get("expiration")
            properties["expiration"] = str(ttl_ms if given is None else min(ttl_ms, int(given)))
        topic = queue_topic(queue, step_of(self._get_message_priority(message), self.settings.priority_steps))
        key = str(properties.get("correlation_id") or "")
        fields: dict[str, Any] = {"keys": [key]} if _may_be_key(key) else {}
        if self.settings.eta_by_timer and (due_ms := _due_ms(message)):
            fields["deliver_at_ms"] = due_ms
        self.cluster.send(topic, dumps(message).encode(), self.settings.queue_count, **fields)

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **more: Any) -> None:
        topic = exchange_topic(exchange)
        self.cluster.send(topic, dumps(message).encode(), 1, tag=quote(routing_key or "") or None)

    # -- consume -------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Return how many messages more may be held. Called on the clients' loop too."""
        qos = self._qos
        return int((qos.prefetch_count if qos is not None else 0) or self.settings.prefetch_max) - len(self.held)

    def _arrive(self, queue: str, item: Popped | Read) -> None:
        """Take a message that arrived; called on the clients' loop."""
        item.tag = str(uuid4())
        self.held[item.tag] = item
        self.connection.inbox.put(self, queue, item)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be held here that are not acknowledged; 0: the option prefetch_max."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.cluster.soon(self._wake)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **more: Any
    ) -> None:
        """Begin to receive a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **more)
        if no_ack:
            self._no_ack.add(queue)
        if (reader := self._reader(queue)) is not None:
            reader.attach(self._arrive, self._room)
        else:
            self.cluster.soon(self._source(queue).run)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive a queue no more. What was delivered may still be acknowledged, the rest is given back."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues or not self.cluster.is_ours:
            return
        self._no_ack.discard(queue)
        if (source := self._sources.get(queue)) is not None:
            self.cluster.soon(source.stop)
        elif (reader := self.cluster.readers.get(queue)) is not None:
            others = reader.detach(self._arrive)
            if not others and queue in self._auto_delete:
                self.cluster.end_reader(queue)
        for item in self.connection.inbox.withdraw(self, queue):
            self.let_go(item.tag, "give_back")

    def deliver(self, queue: str, item: Popped | Read) -> bool:
        """Deliver a message that arrived. Returns False if nobody gets it, as its time is over or nobody consumes."""
        payload = self._payload(item)
        callback = self.connection._callbacks.get(queue)
        if _is_expired(item.message, payload):
            self.let_go(item.tag, "ack")
            return False
        if callback is None:
            self.let_go(item.tag, "give_back")
            return False
        most = self.settings.max_deliveries
        if most and item.message.reconsume_times >= most:
            self.let_go(item.tag, "dead")
            return False
        if queue in self._no_ack:
            self.let_go(item.tag, "ack")
        callback(payload)
        return True

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        reader = self._reader(queue)
        while True:
            item = reader.take() if reader is not None else self.cluster.run(self._source(queue).get())
            if item is None:
                raise Empty
            item.tag = str(uuid4())
            self.held[item.tag] = item
            payload = self._payload(item)
            if not _is_expired(item.message, payload):
                return payload
            self.let_go(item.tag, "ack")

    def basic_get(self, queue: str, no_ack: bool = False, **more: Any) -> Any:
        """Return the next message of a queue, None if there is none now."""
        message = super().basic_get(queue, no_ack, **more)
        if message is not None and no_ack:
            self.let_go(message.delivery_tag, "ack")
        return message

    def _payload(self, item: Popped | Read) -> dict[str, Any]:
        """Return a message as kombu's virtual transports have it. One that kombu did not write is its bytes alone."""
        payload = _decoded(item.message.body) or {
            "body": item.message.body,
            "content-type": "application/data",
            "content-encoding": "binary",
            "headers": {},
            "properties": {"delivery_info": {"exchange": "", "routing_key": item.message.topic}},
        }
        payload["properties"]["delivery_tag"] = item.tag
        payload["properties"]["delivery_info"]["redelivered"] = item.message.reconsume_times > 0
        return payload

    # -- settle --------------------------------------------------------------------------------------------------

    def let_go(self, tag: str, how: str) -> None:
        """Do with a message that is held what `how` says: ack, give_back or dead."""
        if (item := self.held.pop(tag, None)) is not None and self.cluster.is_ours:
            getattr(item, how)()
            # The room that it leaves is that of all queues.
            self.cluster.soon(self._wake)

    def _wake(self) -> None:
        """Have all that share this channel's room look at it again; on the clients' loop."""
        for source in list(self._sources.values()):
            source.wake()
        for reader in list(self.cluster.readers.values()):
            reader.wake()

    def _restore(self, message: Any) -> None:
        self.let_go(message.delivery_tag, "give_back")

    def end_sources(self, let_go: Callable[[], object]) -> None:
        """Receive no more, call `let_go`, and wait until brokers have what was acknowledged and given back."""
        sources = list(self._sources.values()) if self.cluster.is_ours else []
        self._sources.clear()
        try:
            for source in sources:
                # First: what is given back would come to who still receives.
                self.cluster.soon(source.stop)
            let_go()
            for source in sources:
                self.cluster.run(source.close())
        except StateError:  # The clients are closed, as the process ends.
            pass

    def close(self) -> None:
        """Close: consumers end, what is not acknowledged is given back."""
        if self.closed:
            return
        try:
            super().close()
            self.end_sources(lambda: None)
        except RocketSparkError as e:
            raise ChannelError(f"the channel did not close well: {e}") from e
        finally:
            self.cluster.release()


def _decoded(body: bytes) -> dict[str, Any] | None:
    """Return a message that kombu wrote, with its body as bytes; None for any other."""
    try:
        payload = loads(body)
        properties = payload["properties"]
        encoding, text = properties.get("body_encoding"), payload["body"]
        if not isinstance(properties["delivery_info"], dict) or not isinstance(payload["headers"] or {}, dict):
            return None
        if encoding == "base64":
            payload["body"] = base64.b64decode(text)
        elif encoding not in (None, "utf-8"):
            return None
        properties["body_encoding"] = None
        with contextlib.suppress(KeyError):  # As kombu, which leaves what it does not know as it is.
            decompress(payload["body"], (payload["headers"] or {})["compression"])
    except Exception:  # Whatever bytes others sent.
        return None
    return payload if isinstance(payload, dict) else None


def _may_be_key(name: str) -> bool:
    """Tell whether a task's id can be a message's key: others have no key."""
    return 0 < len(name) <= KEY_CHARACTERS_MAX and name.isprintable() and " " not in name


def _is_expired(message: ReceivedMessage, payload: dict[str, Any]) -> bool:
    """Tell whether a message's time to live is over."""
    life_ms = whole_number(str(payload["properties"].get("expiration")))
    return life_ms is not None and time.time() * 1000 > message.born_time_ms + life_ms


def _due_ms(message: Any) -> int | None:
    """Return when a task is due, if that is later than now and the message says so."""
    eta = (message.get("headers") or {}).get("eta")
    try:
        due_ms = int(datetime.fromisoformat(str(eta)).timestamp() * 1000) if eta else 0
    except ValueError:
        return None
    now_ms = int(time.time() * 1000)
    return min(due_ms, now_ms + TIMER_MS_MAX) if due_ms > now_ms else None
