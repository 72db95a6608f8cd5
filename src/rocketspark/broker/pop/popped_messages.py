"""Reads the messages of check points for their second delivery, from this store or from the broker that has them.

Rule (PopReviveService, EscapeBridge, 5.5.0): a check point that left a broker whose master was away is handled by the
broker that it went to; its messages are pulled from the broker that it names, from the master or whoever serves in its
place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from rocketspark.broker import topic_names
from rocketspark.broker.messages.parked_messages import bytes_at, decode_mended
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.tiering import Tiering
from rocketspark.broker.topics import READ_WRITE, Topics
from rocketspark.errors import RecordError, RocketSparkError, ServerError, StoreUnwritable
from rocketspark.model.route import PERM_INHERIT
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header, plain_pull
from rocketspark.protocol.json.pop_records import CheckPointKey
from rocketspark.protocol.message import record
from rocketspark.protocol.message.record import Record
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.store import Store
from rocketspark.transport.loose_threads import in_thread
from rocketspark.transport.request_frames import Reply

# Check points of other brokers that are asked for at a time, of at most 32 messages each.
ASKED_MAX = 64
_GONE = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.TOPIC_NOT_EXIST)


# Permissions of the topic that a broker has of its own name; no other has them but those that all brokers have.
_OF_A_BROKER = (0, READ_WRITE | PERM_INHERIT)


class Asks(Protocol):
    """What can send a request to another broker of the cluster."""

    async def ask(self, broker_name: str, code: int, header: Header) -> Reply:
        """Send a request to a broker, and return its reply, whatever its code. Raises ServerError if there is none."""


class FormerNames:
    """The names that one broker and its cluster have and had: what was popped under a former name is still its own.

    Rule: the broker's topics tell its former names, as it has a topic for each of its names, and a revive topic for
    each name of the cluster. (RocketMQ never delivers again what was popped before a change of either name.)
    `revive_topic`: the present one.
    """

    def __init__(self, settings: BrokerSettings, topics: Topics) -> None:
        self._broker_name = settings.broker_name
        self._topics = topics
        self.revive_topic = topic_names.REVIVE_TOPIC_PREFIX + settings.cluster_name

    def is_own(self, broker_name: str) -> bool:
        """Tell whether a broker's name is this one's, or was."""
        if broker_name == self._broker_name:
            return True
        config = self._topics.table.get(broker_name)
        return config is not None and config.perm in _OF_A_BROKER

    def topic_now(self, topic: str) -> str:
        """Return the present revive topic for a former one; any other topic is returned as it is."""
        return self.revive_topic if topic.startswith(topic_names.REVIVE_TOPIC_PREFIX) else topic

    def revive_topics(self) -> list[str]:
        """Return the revive topics of the cluster's former names."""
        prefix, own = topic_names.REVIVE_TOPIC_PREFIX, self.revive_topic
        return [name for name in self._topics.table if name.startswith(prefix) and name != own]


class PoppedMessages:
    """Reads the messages of check points. `others`: asks other brokers; None where nobody can be asked. `tiering`: the
    second tier, if there is one.
    """

    def __init__(self, settings: BrokerSettings, store: Store, names: FormerNames) -> None:
        self._settings = settings
        self._store = store
        self._names = names
        self.others: Asks | None = None
        self.tiering: Tiering | None = None
        self._asked: dict[CheckPointKey, dict[int, asyncio.Task[Record | None]]] = {}

    def record(self, position: int) -> Record:
        """Return the record at a physical offset. Raises RecordError."""
        return decode_mended(bytes_at(self._store, position))

    def is_foreign(self, key: CheckPointKey) -> bool:
        """Tell whether a check point came from another broker, in place of whose master this one acted.

        Its offsets are those of the other broker's queues.
        """
        return not self._names.is_own(key.broker_name)

    def are_here(self, key: CheckPointKey, offsets: Iterable[int]) -> bool:
        """Tell whether `get` can answer at once; if not, the other broker, or the second tier, is asked for these
        messages.
        """
        others = self.others
        if not self.is_foreign(key):
            offsets = self._cold(key, offsets)
            if not offsets:
                return True
        elif others is None:
            return True
        asked = self._asked.get(key)
        if asked is None:
            if len(self._asked) >= ASKED_MAX:
                return False
            asked = self._asked[key] = {
                offset: asyncio.get_running_loop().create_task(self._fetch(others, key, offset)) for offset in offsets
            }
        return all(task.done() for task in asked.values())

    def get(self, key: CheckPointKey, offset: int) -> Record | None:
        """Return a message of a check point, None if it was removed from the log.

        Raises RecordError, and ServerError 2 if the broker that has it cannot be asked now.
        """
        task = self._asked.get(key, {}).get(offset)
        if not self.is_foreign(key) and task is None and not self._cold(key, (offset,)):
            return self._here(key, offset)
        why: object = "it cannot be asked"
        if task is not None and task.done() and not task.cancelled():
            error = task.exception()
            if error is None:
                return task.result()
            if not isinstance(error, RocketSparkError):
                raise error
            why = error
        raise ServerError(ResponseCode.SYSTEM_BUSY, f"the message is on broker {shown(key.broker_name)}: {why}")

    def forget(self, key: CheckPointKey) -> None:
        """Stop asking other brokers for a check point's messages."""
        for task in self._asked.pop(key, {}).values():
            task.cancel()

    def forget_all(self) -> None:
        """Stop asking other brokers for messages, of every check point."""
        for key in list(self._asked):
            self.forget(key)

    def _here(self, key: CheckPointKey, offset: int) -> Record | None:
        low, high = self._store.stored_range(key.topic, key.queue_id)
        if not low <= offset < high:
            return None
        ((position, size, _),) = self._store.queue_units(key.topic, key.queue_id, offset, 1)
        if size == GAP_SIZE or position < self._store.min_position:
            return None
        found = self.record(position)
        if found.topic != key.topic.encode() or found.queue_id != key.queue_id:
            raise RecordError(f"the record at physical offset {position} is another: of topic {found.topic[:200]!r}")
        return found

    def lowest(self, topic: str, queue_id: int) -> int | None:
        """Return the oldest offset of a queue, None as long as it is not known what the second tier has of it."""
        if self.tiering is not None and self.tiering.is_missed(topic, queue_id):
            return None
        return self._store.queue_range(topic, queue_id)[0]

    def _cold(self, key: CheckPointKey, offsets: Iterable[int]) -> list[int]:
        """Return those of a check point's messages that only the second tier has, or may have."""
        tiering = self.tiering
        if tiering is None:
            return []
        low, _ = self._store.stored_range(key.topic, key.queue_id)
        return [offset for offset in offsets if offset < low and tiering.has(key.topic, key.queue_id, offset)]

    async def _fetch(self, others: Asks | None, key: CheckPointKey, offset: int) -> Record | None:
        if others is None or not self.is_foreign(key):
            tiered = self._store.cold.find(key.topic, key.queue_id) if self._store.cold is not None else None
            if tiered is None:
                raise StoreUnwritable("the second tier is not open, or cannot be read there", retriable=True)
            read = partial(tiered.stretch, offset, 1, 1)
            # A tier that hangs must not keep the broker from ending.
            stored = (await in_thread(read, "rocketspark-popped")).record(offset)
            return None if stored is None else decode_mended(stored)
        group = f"InnerConsumerGroup_{self._settings.broker_name}_{self._settings.broker_id}"
        header = plain_pull(group, key.topic, key.queue_id, offset, 1)
        reply = await others.ask(key.broker_name, RequestCode.PULL_MESSAGE, header)
        if reply.code in _GONE:
            return None
        found = next(record.decode_all(reply.raise_for_code("pull of a popped message").body), None)
        return found if found is not None and found.queue_offset == offset else None
