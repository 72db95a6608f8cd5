"""Chooses the queue of each row, and finds the queues of the topics that rows go to, which are asked for once.

Rule: a row's queueId decides first, then its shardingKey, then its broker alone; rows without any take turns among all
queues.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound
from rocketspark.model import MessageQueue, namespace
from rocketspark.protocol.message import properties
from rocketspark.spark.write.rows import CheckedRows
from rocketspark.store.index.key_hashes import hashes
from rocketspark.transport.retries import RetryRule, again


class FindQueues(Protocol):
    """A function that finds the queues of a topic; with `made_by_sends` also of a topic that brokers make at the first
    send to it.
    """

    def __call__(self, topic: str, *, made_by_sends: bool = False) -> Awaitable[Sequence[MessageQueue]]:
        """Return the queues."""


class QueueTarget(NamedTuple):
    """Where rows go: to one queue; or to the queues of a topic, or of one broker of it, each of which gets a batch in
    turn.
    """

    topic: str
    broker: str | None = None
    queue: MessageQueue | None = None

    @property
    def is_free(self) -> bool:
        """True if the rows may go to any queue of the topic."""
        return self.queue is None and self.broker is None


# A target and the numbers of its rows in order; None instead of them if it has all rows.
RowGroup = tuple[QueueTarget, NDArray[np.int64] | None]


class _Column:
    """The distinct values of a column, and for each row the number of its value; 0 is null."""

    def __init__(self, column: pa.Array | None, count: int) -> None:
        if column is None:
            self.values: list[object] = [None]
            self.numbers = np.zeros(count, np.int64)
            return
        encoded = column.dictionary_encode()
        self.values = [None, *encoded.dictionary.to_pylist()]
        self.numbers = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy() + 1


class _Rows(NamedTuple):
    """What rows say of their queues: topic, queue id, broker, and the queue that a sharding key chooses."""

    rows: CheckedRows
    topics: _Column
    ids: _Column
    brokers: _Column
    sharded: NDArray[np.int64]


async def targets(rows: CheckedRows, find_queues: FindQueues) -> list[RowGroup]:
    """Return the targets that rows go to, each with the numbers of its rows.

    Raises ConfigError for a queue that is not there, and what `find_queues` raises.
    """
    keys = rows.texts.get(properties.SHARDING_KEY)
    if rows.topic is not None and rows.queue_ids is None and rows.brokers is None and keys is None:
        return [(QueueTarget(rows.topic), None)]
    said = _Rows(
        rows,
        topics=_Column(rows.topics, rows.count),
        ids=_Column(rows.queue_ids, rows.count),
        brokers=_Column(rows.brokers, rows.count),
        sharded=np.full(rows.count, -1, np.int64),
    )
    if keys is not None:
        said = said._replace(sharded=await _sharded(said, keys, find_queues))
        said.brokers.numbers = np.where(said.sharded >= 0, 0, said.brokers.numbers)
    code = said.topics.numbers
    for column in (said.brokers, said.ids):
        code = code * len(column.values) + column.numbers
    code = code * (int(said.sharded.max(initial=-1)) + 2) + said.sharded + 1
    if (code == code[:1]).all():
        return [(await _target(said, 0, find_queues), None)] if rows.count else []
    # Few targets are the rule: small numbers are sorted quicker by far.
    order = np.argsort(code.astype(np.uint16) if code.max() < 1 << 16 else code, kind="stable")
    code = code[order]
    starts = np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))
    found: dict[QueueTarget, list[NDArray[np.int64]]] = {}
    for group in np.split(order, starts[1:]):
        target = await _target(said, int(group[0]), find_queues)
        found.setdefault(target, []).append(group)
    # A queue may be named in several ways: its rows keep their order all the same.
    return [
        (target, groups[0] if len(groups) == 1 else np.sort(np.concatenate(groups))) for target, groups in found.items()
    ]


async def _sharded(said: _Rows, keys: pa.Array, find_queues: FindQueues) -> NDArray[np.int64]:
    """Return the place of each row's queue among the queues of its topic, by its sharding key; -1 where that does not
    choose.

    Rule: SelectMessageQueueByHash, 5.x.
    """
    chosen = np.full(said.rows.count, -1, np.int64)
    by_key = pc.is_valid(keys).to_numpy(zero_copy_only=False) & (said.ids.numbers == 0)
    if not by_key.any():
        return chosen
    encoded = keys.dictionary_encode()
    words = encoded.dictionary.cast(pa.binary()).to_pylist()
    of_word = np.abs(hashes(np.zeros(len(words), np.uint32), words).view(np.int32).astype(np.int64))
    hashed = of_word[encoded.indices.fill_null(0).to_numpy()]
    for number in np.unique(said.topics.numbers[by_key]).tolist():
        of_topic = by_key & (said.topics.numbers == number)
        queues = await find_queues(_topic(said, number), made_by_sends=True)
        chosen[of_topic] = hashed[of_topic] % len(queues)
    return chosen


async def _target(said: _Rows, row: int, find_queues: FindQueues) -> QueueTarget:
    topic = _topic(said, int(said.topics.numbers[row]))
    ids, brokers, sharded = said.ids, said.brokers, said.sharded
    queue_id, broker = ids.values[ids.numbers[row]], brokers.values[brokers.numbers[row]]
    assert broker is None or isinstance(broker, str)
    if queue_id is not None:
        assert isinstance(queue_id, int)
        return QueueTarget(topic, None, _chosen(topic, await find_queues(topic), broker, queue_id))
    if sharded[row] >= 0:
        return QueueTarget(topic, None, (await find_queues(topic, made_by_sends=True))[sharded[row]])
    if broker is not None:
        queues = await find_queues(topic)
        if all(queue.broker_name != broker for queue in queues):
            have = ", ".join(dict.fromkeys(queue.broker_name for queue in queues))
            raise ConfigError(
                f"a row names broker {broker!r}, which has no queue of topic {topic!r}; there are: {have}"
            )
    return QueueTarget(topic, broker)


def _topic(said: _Rows, number: int) -> str:
    if said.rows.topic is not None:
        return said.rows.topic
    topic = said.topics.values[number]
    assert isinstance(topic, str)
    return topic


def _chosen(topic: str, queues: Sequence[MessageQueue], broker: str | None, queue_id: int) -> MessageQueue:
    """Return the queue that a row names; without a broker, that of the first broker by name."""
    for queue in queues:
        if queue.queue_id == queue_id and broker in (None, queue.broker_name):
            return queue
    have = ", ".join(f"{q.broker_name}/{q.queue_id}" for q in queues)
    where = f" on broker {broker!r}" if broker else ""
    raise ConfigError(f"a row names queue {queue_id}{where} of topic {topic!r}, which is not there; there are: {have}")


class TargetQueues:
    """Finds the queues of topics, and chooses the next queue of each target.

    `timeout_ms`: how long an election of a master is waited for, while no broker takes messages for a topic.
    """

    def __init__(self, producer: AsyncProducer, timeout_ms: float) -> None:
        self._producer = producer
        self._timeout_s = timeout_ms / 1000
        self._queues: dict[str, list[MessageQueue]] = {}
        self._assumed: dict[str, list[MessageQueue]] = {}
        self._turns: dict[QueueTarget, int] = {}

    async def next(self, target: QueueTarget) -> MessageQueue | None:
        """Return the target's queue, or the next of its queues; None if the topic does not exist yet."""
        if target.queue is not None:
            return target.queue
        queues = self._queues.get(target.topic) or await self._known(target.topic)
        if queues is None:
            return None
        if target.broker is not None:
            queues = [queue for queue in queues if queue.broker_name == target.broker]
        # Not all tasks begin at the same queue.
        turn = self._turns.get(target, time.monotonic_ns() >> 10) + 1
        self._turns[target] = turn
        return queues[turn % len(queues)]

    async def find(self, topic: str, *, made_by_sends: bool = False) -> list[MessageQueue]:
        """Return the queues of a topic. `made_by_sends`: if it does not exist, the queues that brokers will make.

        Raises RouteNotFound if it does not exist, or no broker takes messages for it.
        """
        queues = self._assumed.get(topic) if made_by_sends else None
        if queues is None:
            queues = await self._known(topic)
        if queues is None and made_by_sends:
            # They stay these for the task: its rows of one key go to one queue, in their order.
            queues = self._assumed[topic] = await self._to_be_made(topic)
        if queues is None:
            text = f"topic {topic!r} does not exist: a row with queueId or broker needs its queues; create it first"
            raise RouteNotFound(topic, remark=text)
        return queues

    async def _to_be_made(self, topic: str) -> list[MessageQueue]:
        """Return the queues that brokers will make when they are sent to, as a producer's sends take them."""
        producer = self._producer
        found = await producer._routes.find_write_queues(namespace.wrap(producer._namespace, topic))
        return [producer._bare_queue(queue) for queue in found]

    async def _known(self, topic: str) -> list[MessageQueue] | None:
        """Return the topic's queues; None if it does not exist."""
        queues = self._queues.get(topic)
        if queues is None:
            try:
                queues = await self._producer.queues(topic)
            except RouteNotFound:
                return None
            queues = self._queues[topic] = queues or await self._after_election(topic)
        return queues

    async def _after_election(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that no broker takes messages for, once a master is elected, as a send waits for
        it. Raises RouteNotFound if none is in time, or its brokers have masters.
        """
        producer, full = self._producer, namespace.wrap(self._producer._namespace, topic)

        async def look() -> list[MessageQueue]:
            found = (await producer._routes.refresh(full)).producer_queues()
            if not found:
                text = f"no broker takes messages for topic {topic!r}: none is up, or all refuse"
                raise RouteNotFound(topic, remark=text)
            return [producer._bare_queue(queue) for queue in found]

        def may_pass(error: Exception) -> bool:
            return isinstance(error, RocketSparkError) and producer._routes.is_without_master(full)

        return await again(look, RetryRule(budget_s=self._timeout_s, may_pass=may_pass))
