"""Pops, acknowledgements and new invisible times of one group.

Rule: a message that was popped and has no taker is given back: it comes again soon, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rocketspark import machine
from rocketspark.client.callbacks import Tasks
from rocketspark.client.connection import admin_api, pop_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.connection.lite_api import LitePopResult
from rocketspark.client.connection.topic_routes import NO_MASTER_CODES
from rocketspark.client.message_batch import without_namespace
from rocketspark.errors import BrokerNotFound, ProtocolError, ReceiptExpired, RocketSparkError, ServerError, UsageError
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription, namespace
from rocketspark.model.allocation import ALL_QUEUES
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers.pop import INIT_MAX, INIT_MIN, PopHeader
from rocketspark.protocol.message import record
from rocketspark.protocol.pop_answers import Popped, ReceiptHandle, give_handles
from rocketspark.transport.peer import Peer
from rocketspark.transport.shared_task import outcome_of

log = logging.getLogger("rocketspark.client")

# A broker holds a pop for `poll_ms`; no reply for this much longer means that none will come.
REPLY_SPARE_MS = 10_000
# After which a message that was given back is visible (rule: ReceiveMessageResponseStreamWriter, 5.x).
GIVEN_BACK_MS = 1000
# A broker takes no more.
COUNT_MAX = 32
INVISIBLE_MS_MAX = 12 * 3600 * 1000
# So long replies that came before that to a leave take to be read.
HELD_S = 0.05
# How many messages are given back at a time.
GIVE_BACK_AT_ONCE = 64
INFLATED_BYTES = 64 << 20
# Attempts until a message is a dead letter, where a broker does not tell the group's number, which is kept so long.
ATTEMPTS_MAX = 16
ATTEMPTS_MAX_AGE_S = 20.0


class Wanted(NamedTuple):
    """What a pop asks for: messages of one queue, or with queue id -1 of all queues of its broker.

    `from_first`: a group that never read the queue begins at its first message, not its last. `attempt_id`: an ordered
    pop that is repeated with the same id gets the same messages again.
    """

    queue: MessageQueue
    subscription: Subscription
    invisible_ms: int
    count_max: int = COUNT_MAX
    from_first: bool = False
    ordered: bool = False
    attempt_id: str | None = None


class PopCalls:
    """The calls of one group. `bare`: the namespace that is taken off topics."""

    def __init__(self, instance: Instance, group: str, bare: str) -> None:
        self.instance = instance
        self.group = group
        self._namespace = bare
        # By broker, how far its clock is ahead of our monotonic one, in ms.
        self._clock_ms: dict[str, float] = {}
        # By broker, after how many attempts the group's messages are dead letters, and since when that is known.
        self._attempts_max: dict[str, tuple[float, asyncio.Task[int]]] = {}
        self._giving_back = Tasks()
        self._abandoned: set[asyncio.Task[list[ReceivedMessage]]] = set()

    # -- pops ----------------------------------------------------------------------------------------------------

    async def pop(self, wanted: Wanted, poll_ms: int) -> list[ReceivedMessage]:
        """Return messages with their receipt handles; wait at the broker up to `poll_ms` for the first.

        Those that the tags do not want (brokers compare hashes) are acknowledged. Raises ServerError, TransportError.
        """
        queue, subscription = wanted.queue, wanted.subscription
        peer = await self._peer(queue.topic, queue.broker_name)
        header = PopHeader(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            count_max=wanted.count_max,
            invisible_time_ms=wanted.invisible_ms,
            poll_time_ms=poll_ms,
            # RocketMQ's broker counts the waiting from here on its own clock: 0 takes that of the arrival.
            born_time_ms=0,
            init_mode=INIT_MIN if wanted.from_first else INIT_MAX,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            order=wanted.ordered,
            attempt_id=wanted.attempt_id,
            broker_name=queue.broker_name,
        )
        found = await pop_api.pop(peer, header, timeout_ms=poll_ms + REPLY_SPARE_MS)
        messages = self._messages_of(found, queue.broker_name, peer.address)
        if not messages:
            return []
        reply = found.header
        popped = Popped(
            broker_name=queue.broker_name,
            group=self.group,
            pop_time_ms=reply.pop_time_ms,
            invisible_time_ms=reply.invisible_time_ms,
            revive_queue_id=reply.revive_queue_id,
            start_offsets=reply.start_offsets,
            message_offsets=reply.message_offsets,
            order_counts=reply.order_counts,
        )
        give_handles(messages, popped)
        return self._chosen(messages, subscription)

    def _messages_of(
        self, found: pop_api.PopResult | LitePopResult, broker_name: str, address: str
    ) -> list[ReceivedMessage]:
        """Return the messages of a reply, and note the broker's clock. Raises ServerError if too many pops wait."""
        if found.code == ResponseCode.POLLING_FULL:
            raise ServerError(found.code, "too many pops wait at the broker", address=address, retriable=True)
        if found.code != ResponseCode.SUCCESS:
            return []
        self._clock_ms[broker_name] = found.header.pop_time_ms - machine.monotonic() * 1000
        inflation = record.Inflation(INFLATED_BYTES, check_crc=False, to_end=True)
        return record.decode_messages(found.records, broker_name, inflation)

    def _chosen(self, messages: list[ReceivedMessage], subscription: Subscription) -> list[ReceivedMessage]:
        tags = subscription.tags
        others = [m for m in messages if m.tag not in tags] if tags else []
        without_namespace(messages, self._namespace)
        if not others:
            return messages
        chosen = [m for m in messages if m.tag in tags]
        # Messages of a batch have one handle: it is acknowledged with those of them that are wanted.
        kept = {m.receipt_handle for m in chosen}
        self._giving_back.begin(self._pass_over([m for m in others if m.receipt_handle not in kept]))
        return chosen

    async def _pass_over(self, messages: Sequence[ReceivedMessage]) -> None:
        try:
            await self.ack(messages)
        except RocketSparkError as e:
            log.info("group %s: messages of other tags come again: %s", self.group, e)

    async def _peer(self, topic: str, broker_name: str) -> Peer:
        # Only a master answers pops; `readable` is the master, or the broker that acts for it.
        routes = self.instance.routes
        address = routes.readable(broker_name)
        if address is None:
            await routes.refresh(topic)
            address = routes.readable(broker_name)
        if address is None:
            raise BrokerNotFound(topic, remark=f"no broker {broker_name!r} is known for topic {topic!r}: start it")
        return self.instance.open_broker(address) or await self.instance.broker(address)

    async def look_again(self, topic: str, error: BaseException) -> None:
        """Fetch the topic's route anew if `error` says that the topic's master may have changed."""
        if isinstance(error, ServerError) and error.code not in NO_MASTER_CODES:
            return
        try:
            await self.instance.routes.refresh(topic)
        except RocketSparkError as e:
            log.info("no new route of topic %s: %s", topic, e)

    # -- afterwards ----------------------------------------------------------------------------------------------

    def handle_of(self, message: ReceivedMessage) -> ReceiptHandle:
        """Return a message's receipt handle. Raises UsageError without one, ReceiptExpired for an old one."""
        text = message.receipt_handle
        if text is None:
            raise UsageError(f"message {message.message_id} has no receipt handle: it was not received by popping")
        try:
            handle = ReceiptHandle.decode(text)
        except ProtocolError as e:
            raise UsageError(f"message {message.message_id}: {e}") from e
        late_ms = self.late_ms(handle)
        if late_ms is not None and late_ms >= 0:
            raise ReceiptExpired(message.message_id, handle.invisible_time_ms, late_ms)
        return handle

    def late_ms(self, handle: ReceiptHandle) -> float | None:
        """Return how many ms ago a message's invisible time ended, below 0 if it has not; None if the broker's clock is
        not known.
        """
        clock_ms = self._clock_ms.get(handle.broker_name)
        return None if clock_ms is None else clock_ms + machine.monotonic() * 1000 - handle.next_visible_ms

    def _full_topic(self, message: ReceivedMessage) -> str:
        return namespace.wrap(self._namespace, message.topic)

    async def ack(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages: they do not come again. Those of one broker go in one request.

        Raises UsageError, ReceiptExpired (others are acknowledged all the same), ServerError, TransportError.
        """
        by_broker: dict[str, list[tuple[str, ReceiptHandle]]] = {}
        failed: RocketSparkError | None = None
        for message in messages:
            try:
                handle = self.handle_of(message)
            except RocketSparkError as e:
                failed = failed or e
                continue
            by_broker.setdefault(handle.broker_name, []).append((self._full_topic(message), handle))
        for result in await asyncio.gather(*map(self._ack, by_broker.items()), return_exceptions=True):
            if isinstance(result, RocketSparkError):
                failed = failed or result
            elif isinstance(result, BaseException):
                raise result
        if failed is not None:
            raise failed

    async def _ack(self, of_broker: tuple[str, list[tuple[str, ReceiptHandle]]]) -> None:
        broker_name, handles = of_broker
        peer = await self._peer(handles[0][0], broker_name)
        timeout_ms = self.instance.timeout_ms
        if len(handles) == 1:
            ((topic, handle),) = handles
            await pop_api.ack(peer, self.group, topic, handle, timeout_ms=timeout_ms)
        else:
            await pop_api.ack_all(peer, self.group, broker_name, handles, timeout_ms=timeout_ms)

    async def change_invisible_time(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Let a message be invisible for so long from now on; its receipt handle is another one then.

        Raises UsageError, ReceiptExpired, ServerError, TransportError.
        """
        handle, topic = self.handle_of(message), self._full_topic(message)
        peer = await self._peer(topic, handle.broker_name)
        new = await pop_api.change_invisible_time(
            peer, self.group, topic, handle, invisible_ms, timeout_ms=self.instance.timeout_ms
        )
        message.receipt_handle = new.encode()

    async def attempts_max(self, message: ReceivedMessage) -> int:
        """Return after how many attempts a message is a dead letter, as its broker has it for the group."""
        broker_name, now_s = message.broker_name, machine.monotonic()
        since_s, asking = self._attempts_max.get(broker_name, (-ATTEMPTS_MAX_AGE_S, None))
        if asking is None or now_s - since_s >= ATTEMPTS_MAX_AGE_S:
            asking = asyncio.create_task(self._ask_attempts_max(self._full_topic(message), broker_name))
            self._attempts_max[broker_name] = now_s, asking
        return await outcome_of(asking)

    async def _ask_attempts_max(self, topic: str, broker_name: str) -> int:
        try:
            peer = await self._peer(topic, broker_name)
            group = await admin_api.group_config(peer, self.group, timeout_ms=self.instance.timeout_ms)
        except RocketSparkError as e:
            log.info("group %s: its retryMaxTimes is not told, %d is taken: %s", self.group, ATTEMPTS_MAX, e)
            return ATTEMPTS_MAX
        return ATTEMPTS_MAX if group is None else group.retry_max_times

    # -- given back ----------------------------------------------------------------------------------------------

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let messages come again soon, in the background."""
        if messages:
            self._giving_back.begin(self._give_back(messages))

    async def _give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        for at in range(0, len(messages), GIVE_BACK_AT_ONCE):
            some = messages[at : at + GIVE_BACK_AT_ONCE]
            calls = (self.change_invisible_time(m, GIVEN_BACK_MS) for m in some)
            for message, result in zip(some, await asyncio.gather(*calls, return_exceptions=True), strict=True):
                if isinstance(result, RocketSparkError):
                    text = "group %s: message %s comes again when its invisible time is over: %s"
                    log.info(text, self.group, message.message_id, result)

    def abandon(self, asking: asyncio.Task[list[ReceivedMessage]]) -> None:
        """Give back the messages of a pop whose caller no longer waits, once the broker has answered it."""
        self._abandoned.add(asking)
        asking.add_done_callback(self._answered_late)

    def _answered_late(self, asking: asyncio.Task[list[ReceivedMessage]]) -> None:
        self._abandoned.discard(asking)
        self.give_back(_result(asking))

    async def settle(self, timeout_s: float) -> None:
        """Wait until all messages that are to be given back have been, or the time is over."""
        if self._giving_back:
            await asyncio.wait(list(self._giving_back), timeout=timeout_s)

    async def end_held(self, timeout_s: float, asking: Iterable[asyncio.Task[list[ReceivedMessage]]] = ()) -> None:
        """Wait for brokers' last answers to pops after this member left, and give their messages back. `asking`: pops
        to wait for besides the abandoned ones.

        Our broker answers the pops that it holds as soon as a member leaves. RocketMQ's holds them until there are
        messages, and is not waited for.
        """
        if held := {*self._abandoned, *asking}:
            await asyncio.wait(held, timeout=HELD_S)
        await self.settle(timeout_s)


def _result(done: asyncio.Task[list[ReceivedMessage]]) -> list[ReceivedMessage]:
    return [] if done.cancelled() or done.exception() is not None else done.result()


def every_broker(topic: str, names: Iterable[str]) -> list[MessageQueue]:
    """Return one MessageQueue for each broker name, with the queue id -1, which stands for all its queues of the
    topic.
    """
    return [MessageQueue(topic, name, ALL_QUEUES) for name in names]
