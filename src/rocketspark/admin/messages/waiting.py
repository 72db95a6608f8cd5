"""Messages that wait for something: delayed ones for their time, half messages for the end of their transaction.

Rule: what a broker counts is asked for; what it does not is read from its own topics, up to a bound.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from rocketspark import machine
from rocketspark.admin.cluster_client import BrokerState
from rocketspark.admin.messages.dead_letters import DeadLetterOperations
from rocketspark.admin.messages.stored import pull_messages
from rocketspark.client.connection import admin_api, broker_api, client_api
from rocketspark.errors import ServerError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.text import whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import properties
from rocketspark.transport.peer import Peer

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
DELAY_LEVELS_MAX = 128
# RocketMQ's messageDelayLevel, where a broker does not tell its own.
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SCAN_MAX = 10_000
READ_COUNT = 256


class DelayedLevel(msgspec.Struct, frozen=True):
    """Messages of a delay level that wait on a broker. `next_due_ms`: when the first of them is due, -1 if not told."""

    broker_name: str
    level: int
    delay_ms: int
    waiting: int
    next_due_ms: int


class DelayedTopic(msgspec.Struct, frozen=True):
    """Messages that wait to be delivered to a topic, by one way: `kind` is level or timer.

    `waiting` of timers: as the broker counts them; of delay levels, as they were read. `next_due_ms`, `last_due_ms`:
    the times at which the first and the last are due, of those read; -1 if none was.
    """

    broker_name: str
    kind: str
    topic: str
    waiting: int
    next_due_ms: int
    last_due_ms: int


class DelayedMessages(msgspec.Struct, frozen=True):
    """What waits for its time. `due`: messages by the minute, in ms since 1970, in which they are due, of those read;
    `whole`: all were read.
    """

    levels: list[DelayedLevel]
    topics: list[DelayedTopic]
    due: dict[int, int]
    whole: bool


class OpenTransaction(msgspec.Struct, frozen=True):
    """A half message whose transaction did not end yet, or that was given up.

    `since_ms`: when its first copy was sent; `checks`: how often its producer group was asked; `offset_message_id`:
    that of its newest copy, for `check_transaction`.
    """

    broker_name: str
    topic: str
    group: str
    message_id: str
    offset_message_id: str
    since_ms: int
    checks: int
    body_bytes: int
    keys: tuple[str, ...] = ()
    tag: str | None = None


class OpenTransactions(msgspec.Struct, frozen=True):
    """Open transactions, oldest first. `whole`: all half messages and ends that may matter were read."""

    transactions: list[OpenTransaction]
    whole: bool


class WaitingOperations(DeadLetterOperations):
    """The part of AsyncAdmin that is about delayed messages and open transactions."""

    # -- delayed -----------------------------------------------------------------------------------------------------

    async def list_delayed(self, *, broker: str | None = None, scan_max: int = SCAN_MAX) -> DelayedMessages:
        """Return what waits for its time on the masters: by delay level, by topic, and by the minute it is due in.

        `broker`: only this one; `scan_max`: how many messages of each broker are read at most to tell topics and times.
        """
        levels: list[DelayedLevel] = []
        topics: list[DelayedTopic] = []
        due: Counter[int] = Counter()
        whole = True
        for target in await self._masters(None, None if broker is None else [broker]):
            peer = await self._broker(target.address)
            seen = _Due(target.broker_name)
            left = scan_max
            for level, low, high, delay_ms in await self._levels(peer, target):
                queue = MessageQueue(SCHEDULE_TOPIC, target.broker_name, level - 1)
                read = await self._read(peer, queue, low, min(high, low + left))
                left -= len(read)
                whole = whole and len(read) >= high - low
                for m in read:
                    seen.add("level", m.properties.get(properties.REAL_TOPIC, ""), m.store_time_ms + delay_ms)
                first_ms = read[0].store_time_ms + delay_ms if read else -1
                levels.append(DelayedLevel(target.broker_name, level, delay_ms, high - low, first_ms))
            counts = await admin_api.timer_counts(peer, timeout_ms=self._timeout_ms) or {}
            waiting = {topic: count.count for topic, count in counts.items() if count.count > 0}
            if waiting:
                whole = await self._timers(peer, target, seen, sum(waiting.values()), max(0, left)) and whole
            topics += seen.topics(waiting)
            due.update(seen.minutes)
        return DelayedMessages(levels, topics, dict(sorted(due.items())), whole)

    async def _levels(self, peer: Peer, target: BrokerState) -> list[tuple[int, int, int, int]]:
        """Return (level, first waiting offset, end, delay in ms) of the levels that have messages."""
        done = await admin_api.delay_offsets(peer, timeout_ms=self._timeout_ms)
        delays = parse_delays(await self._delay_text(peer)) or parse_delays(DELAY_LEVELS)
        levels = sorted({*range(1, len(delays) + 1), *(n for n in done if 0 < n <= DELAY_LEVELS_MAX)})

        async def waiting(level: int) -> tuple[int, int]:
            queue = MessageQueue(SCHEDULE_TOPIC, target.broker_name, level - 1)
            low, high = await asyncio.gather(
                client_api.min_offset(peer, queue, timeout_ms=self._timeout_ms),
                client_api.max_offset(peer, queue, timeout_ms=self._timeout_ms),
            )
            return max(low, done.get(level, 0)), high

        bounds = await asyncio.gather(*map(waiting, levels))
        return [
            (level, low, high, delays[level - 1] if level <= len(delays) else 1000)
            for level, (low, high) in zip(levels, bounds, strict=True)
            if high > low
        ]

    async def _delay_text(self, peer: Peer) -> str:
        try:
            return (await broker_api.config(peer, timeout_ms=self._timeout_ms)).get("messageDelayLevel", "")
        except ServerError:
            return ""  # Who may not read settings sees the usual ones.

    async def _timers(self, peer: Peer, target: BrokerState, seen: _Due, waiting: int, scan_max: int) -> bool:
        """Read timer messages, newest first, until as many that are not due were found as wait; tell whether they
        were.
        """
        queue = MessageQueue(TIMER_TOPIC, target.broker_name, 0)
        low = await client_api.min_offset(peer, queue, timeout_ms=self._timeout_ms)
        high = await client_api.max_offset(peer, queue, timeout_ms=self._timeout_ms)
        now_ms, found = int(machine.time() * 1000), 0
        bottom = max(low, high - scan_max)
        while high > bottom and found < waiting:
            first = max(bottom, high - READ_COUNT)
            for m in await self._read(peer, queue, first, high):
                out_ms = whole_number(m.properties.get(TIMER_OUT_MS)) or 0
                topic = m.properties.get(properties.REAL_TOPIC, "")
                # A recall is one too, and a rolled one comes again with the same time.
                if out_ms > now_ms and "TIMER_DEL_UNIQKEY" not in m.properties and seen.is_new(m.message_id, out_ms):
                    seen.add("timer", topic, out_ms)
                    found += 1
            high = first
        return found >= waiting

    async def _read(self, peer: Peer, queue: MessageQueue, low: int, high: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while low < high:
            pulled = await pull_messages(peer, queue, low, min(READ_COUNT, high - low))
            found += [m for m in pulled.messages if m.queue_offset < high]
            after = max(pulled.next_offset, pulled.messages[-1].queue_offset + 1 if pulled.messages else low)
            if after <= low:
                break
            low = after
        return found

    # -- transactions ------------------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, broker: str | None = None, given_up: bool = False, scan_max: int = SCAN_MAX
    ) -> OpenTransactions:
        """Return half messages whose transactions are open, oldest first.

        `broker`: only this one's; `given_up`: instead those that were given up, as nobody told their end; `scan_max`:
        how many messages of each broker's half queue are read at most.
        """
        found: list[OpenTransaction] = []
        whole = True
        for target in await self._masters(None, None if broker is None else [broker]):
            peer = await self._broker(target.address)
            if given_up:
                halves, all_read = await self._given_up(peer, target, scan_max)
            else:
                halves, all_read = await self._open(peer, target, scan_max)
            whole = whole and all_read
            found += [_transaction(target.broker_name, m) for m in halves]
        return OpenTransactions(sorted(found, key=lambda t: (t.since_ms, t.message_id)), whole)

    async def _given_up(self, peer: Peer, target: BrokerState, scan_max: int) -> tuple[list[ReceivedMessage], bool]:
        queue = MessageQueue(CHECK_MAX_TOPIC, target.broker_name, 0)
        low, high = await self._bounds(peer, queue)
        return await self._read(peer, queue, max(low, high - scan_max), high), high - low <= scan_max

    async def _open(self, peer: Peer, target: BrokerState, scan_max: int) -> tuple[list[ReceivedMessage], bool]:
        halves = MessageQueue(HALF_TOPIC, target.broker_name, 0)
        ends = MessageQueue(OP_HALF_TOPIC, target.broker_name, 0)
        # The ends last: what ended since was open before.
        low, high = await self._undone(peer, halves)
        read = await self._read(peer, halves, low, min(high, low + scan_max))
        op_low, op_high = await self._undone(peer, ends)
        ended: set[int] = set()
        for op in await self._read(peer, ends, op_low, min(op_high, op_low + scan_max)):
            ended.update(n for piece in op.body.split(b",") if (n := whole_number(piece.strip())) is not None)
        whole = high - low <= scan_max and op_high - op_low <= scan_max
        # A check stores a copy behind the others; brokers of RocketMQ may leave those before it.
        newest = {m.message_id: m for m in read if m.queue_offset not in ended}
        return list(newest.values()), whole

    async def _undone(self, peer: Peer, queue: MessageQueue) -> tuple[int, int]:
        """Return the offsets from where a broker's own queue is not done yet, to its end."""
        low, high = await self._bounds(peer, queue)
        done = await client_api.query_consumer_offset(
            peer, queue, TRANSACTION_GROUP, zero_if_not_found=False, timeout_ms=self._timeout_ms
        )
        return max(low, done or 0), high

    async def _bounds(self, peer: Peer, queue: MessageQueue) -> tuple[int, int]:
        try:
            low = await client_api.min_offset(peer, queue, timeout_ms=self._timeout_ms)
            return max(low, 0), await client_api.max_offset(peer, queue, timeout_ms=self._timeout_ms)
        except ServerError as e:
            if e.code == ResponseCode.TOPIC_NOT_EXIST:
                return 0, 0
            raise

    async def check_transaction(self, offset_message_id: str) -> OpenTransaction:
        """Have a broker ask the producers of a half message again, also of one given up; its checks count anew.

        `offset_message_id`: as `list_transactions` gives it. Raises UsageError if no broker has such a half message, or
        what the broker raises.
        """
        wanted = offset_message_id.upper()
        for given_up in (False, True):
            for found in (await self.list_transactions(given_up=given_up)).transactions:
                if found.offset_message_id == wanted:
                    (target,) = await self._masters(None, [found.broker_name])
                    peer = await self._broker(target.address)
                    await admin_api.resume_check(peer, found.topic, wanted, timeout_ms=self._timeout_ms)
                    return found
        raise UsageError(f"no open or given-up transaction has the half message {offset_message_id}")


class _Due:
    """Counts delayed messages by kind, topic and time."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self.minutes: Counter[int] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._times: dict[tuple[str, str], tuple[int, int]] = {}
        self._known: set[tuple[str, int]] = set()

    def is_new(self, message_id: str, due_ms: int) -> bool:
        """Tell whether a message was not asked about before."""
        known = (message_id, due_ms) in self._known
        self._known.add((message_id, due_ms))
        return not known

    def add(self, kind: str, topic: str, due_ms: int) -> None:
        """Count a message."""
        self.minutes[due_ms // 60_000 * 60_000] += 1
        key = kind, topic
        self._counts[key] += 1
        first, last = self._times.get(key, (due_ms, due_ms))
        self._times[key] = min(first, due_ms), max(last, due_ms)

    def topics(self, timers: dict[str, int]) -> list[DelayedTopic]:
        """Return the counts by kind and topic. `timers`: those of timers, as the broker tells them."""
        levels = {key: count for key, count in self._counts.items() if key[0] == "level"}
        waiting = levels | {("timer", topic): count for topic, count in timers.items()}
        return [
            DelayedTopic(self._broker_name, *key, count, *self._times.get(key, (-1, -1)))
            for key, count in sorted(waiting.items())
        ]


def parse_delays(text: str) -> list[int]:
    """Return the delays in ms of a broker's messageDelayLevel, "1s 5s 10s …"; empty where it is no such text."""
    delays = []
    for word in text.split():
        number = whole_number(word[:-1])
        if number is None or word[-1] not in _UNITS_MS:
            return []
        delays.append(number * _UNITS_MS[word[-1]])
    return delays


def _transaction(broker_name: str, m: ReceivedMessage) -> OpenTransaction:
    pairs = m.properties
    return OpenTransaction(
        broker_name=broker_name,
        topic=pairs.get(properties.REAL_TOPIC, ""),
        group=pairs.get(properties.PRODUCER_GROUP, ""),
        message_id=m.message_id,
        offset_message_id=m.offset_message_id,
        since_ms=m.born_time_ms,
        checks=whole_number(pairs.get(CHECK_TIMES)) or 0,
        body_bytes=len(m.body),
        keys=m.keys,
        tag=m.tag,
    )
