"""Requests to brokers about one message that a client was given, which its receipt handle names: acknowledge it, change
when it is visible again, make it a dead letter, give it back.

Rule: requests leave at once, without a task each, if their broker's connection is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple

from rocketspark import machine
from rocketspark.client.callbacks import Tasks
from rocketspark.client.connection.pop_api import ack_header, change_header
from rocketspark.errors import ProtocolError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import (
    ChangeInvisibleTimeReply,
    Header,
    SendBackHeader,
)
from rocketspark.protocol.pop_answers import GIVEN_BACK_MS, ReceiptHandle, real_topic, with_new_time
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.clients import GRACE_S
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.request_frames import Reply

log = LimitedLog("rocketspark.proxy")

# Of requests about handles; others that are begun in the background wait for the ones before.
TIMEOUT_MS = 2000.0
AT_ONCE_MAX = 256
EXPIRED = "receipt handle is expired"


class Held(NamedTuple):
    """A message that a client was given: the group and the topic that it was received for, its receipt handle, and the
    lite topic of one that was received by it.
    """

    group: str
    topic: str
    handle: ReceiptHandle
    lite_topic: str = ""


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return int(machine.time() * 1000)


def read_handle(text: str) -> ReceiptHandle:
    """Return the receipt handle that a client sent as text. Raises Refused 40013 if it is none."""
    try:
        return ReceiptHandle.decode(text)
    except ProtocolError as e:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, str(e)) from None


def check_valid(handle: ReceiptHandle, at_ms: int) -> None:
    """Raise Refused 40013 if a handle has expired by `at_ms`: its message is visible again, and may be another
    client's.
    """
    if handle.next_visible_ms <= at_ms:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, EXPIRED)


class HandleCalls:
    """Sends brokers requests about messages that clients hold.

    `given_back_ms`: how long a message stays invisible that is given back, unless its client is gone.
    """

    def __init__(self, brokers: Brokers, given_back_ms: int) -> None:
        self._brokers = brokers
        self._given_back_ms = given_back_ms
        # Those of clients that are gone: they count from when the client was lost.
        self._freed_ms = max(given_back_ms - int(GRACE_S * 1000), GIVEN_BACK_MS)
        self._tasks = Tasks()

    def ack(self, held: Held) -> Awaitable[Reply]:
        """Acknowledge a message, and return the broker's reply, whatever its code. Raises Refused for a handle that
        expired.
        """
        handle = held.handle
        check_valid(handle, now_ms())
        header = ack_header(held.group, held.topic, handle, lite_topic=held.lite_topic or None)
        return self._ask(handle.broker_name, RequestCode.ACK_MESSAGE, header)

    def change(self, held: Held, invisible_ms: int, *, suspend: bool = False) -> Awaitable[Reply]:
        """Change a message's time: it is visible again in `invisible_ms` from now. `changed` reads the reply. Raises
        Refused as `ack`.

        `suspend`: the delivery does not count as an attempt.
        """
        handle = held.handle
        check_valid(handle, now_ms())
        lite_topic = held.lite_topic or None
        header = change_header(held.group, held.topic, handle, invisible_ms, suspend=suspend, lite_topic=lite_topic)
        return self._ask(handle.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)

    def _ask(self, broker_name: str, code: int, header: Header) -> Awaitable[Reply]:
        peer = self._brokers.open_peer(broker_name)
        if peer is None or not peer.is_writable:
            return self._task(self._ask_later(broker_name, code, header))
        return peer.ask(code, header, timeout_ms=TIMEOUT_MS)

    async def _ask_later(self, broker_name: str, code: int, header: Header) -> Reply:
        async with asyncio.timeout(2 * TIMEOUT_MS / 1000):
            return await self._brokers.ask(broker_name, code, header, timeout_ms=TIMEOUT_MS)

    async def forward(self, held: Held, message_id: str) -> Reply:
        """Make a dead letter of a message, then acknowledge it. Raises Refused, RocketSparkError."""
        handle = held.handle
        if handle.physical_offset < 0:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty: the handle is of no proxy")
        header = SendBackHeader(
            physical_offset=handle.physical_offset,
            group=held.group,
            delay_level=-1,
            origin_message_id=message_id,
            origin_topic=real_topic(held.topic, held.group, handle.retry_flag),
            unit_mode=False,
            max_reconsume_times=0,
            broker_name=handle.broker_name,
        )
        reply = await self._ask(handle.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        if reply.code == 0:
            try:
                await self.ack(held)
            except (RocketSparkError, TimeoutError) as e:
                log.info("a dead letter is not acknowledged, it comes again: %s", e)
        return reply

    # -- in the background ---------------------------------------------------------------------------------------

    def give_back(self, messages: Iterable[Held], *, had: bool, at_once: bool = False) -> None:
        """Make messages visible again soon that no client works on. Done in the background.

        `had`: a client had them, so the delivery counts as an attempt. `at_once`: sooner, as their client had gone
        before they arrived. Otherwise they stay invisible a little longer, so that a client that fails to take them
        does not ask for them again and again.
        """
        listed = list(messages)
        if listed:
            self._task(self._give_back(listed, had, self._freed_ms if had or at_once else self._given_back_ms))

    async def _give_back(self, messages: list[Held], had: bool, after_ms: int) -> None:
        for at in range(0, len(messages), AT_ONCE_MAX):
            begun = []
            for held in messages[at : at + AT_ONCE_MAX]:
                try:
                    begun.append(self.change(held, after_ms, suspend=not had))
                except RocketSparkError:
                    # It is visible already, or its broker is gone, and then it comes by itself.
                    continue
            await asyncio.gather(*begun, return_exceptions=True)

    def put_aside(self, wrong: list[Held], dead: list[tuple[Held, str]]) -> None:
        """Get rid of messages that are not to be delivered, in the background: acknowledge the `wrong` ones, which no
        client asked for, and send the `dead` ones, each with its message id, to the dead letter queue.
        """
        if wrong or dead:
            self._task(self._put_aside(wrong, dead))

    async def _put_aside(self, wrong: list[Held], dead: list[tuple[Held, str]]) -> None:
        begun: list[Awaitable[Reply]] = [self.forward(held, message_id) for held, message_id in dead]
        for held in wrong:
            try:
                begun.append(self.ack(held))
            except RocketSparkError:
                continue
        for outcome in await asyncio.gather(*begun, return_exceptions=True):
            if isinstance(outcome, Reply) and outcome.code == 0:
                continue
            why = outcome.remark if isinstance(outcome, Reply) else outcome
            log.warning("a message that is not to be delivered comes again: %s", why)

    def _task(self, coroutine: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._tasks.begin(coroutine)
        # Looked at, in case that nobody waits for it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def settle(self, timeout_s: float) -> None:
        """Wait for the requests that were begun in the background; those that are not done in time are given up."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)
        for task in list(self._tasks):
            task.cancel()


def changed(handle: ReceiptHandle, reply: Reply) -> ReceiptHandle:
    """Return a message's new handle by the reply to `HandleCalls.change`; `handle`: the old one. Raises FrameError."""
    new = reply.header(ChangeInvisibleTimeReply)
    return with_new_time(handle, new.pop_time_ms, new.invisible_time_ms, new.revive_queue_id)
