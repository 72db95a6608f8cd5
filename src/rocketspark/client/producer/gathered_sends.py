"""Messages of gathered sends: one in a batch, and who waits for it.

Rule: the batch alone is a send with states, attempts and an exit; its messages have their ids, their results and their
callers, who are told in one pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context
from copy import copy
from functools import lru_cache
from itertools import repeat
from typing import Any, Protocol

import msgspec

from rocketspark.client.producer.prepared_message import PackingSettings, properties_text
from rocketspark.client.producer.program_end import cancelled_sends
from rocketspark.client.results import SendResult, offset_ids
from rocketspark.client.validators import RETRY_PREFIX, check_target
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message, MessageQueue
from rocketspark.model.namespace import wrap
from rocketspark.protocol.message import batch
from rocketspark.protocol.message.batch_columns import BEFORE_ID
from rocketspark.protocol.message.message_ids import ID_CHARACTERS

log = logging.getLogger("rocketspark.client")

# While a message's id is not known, this stands for it.
_STAND_IN = "0" * ID_CHARACTERS


class EncodedMessage(msgspec.Struct):
    """A message as its part of a batch's body but for its id, which stands between `head` and `tail`. `topic`, `queue`:
    with their namespace.

    `simple`: the topic, tag and sharding key of a message that has nothing else.
    """

    topic: str
    sharding_key: str | None
    wait_store_ok: bool
    head: bytes
    tail: bytes
    queue: MessageQueue | None = None
    simple: tuple[str, str | None, str | None] | None = None


def encode(message: Message, packing: PackingSettings) -> EncodedMessage | None:
    """Encode a message for a batch. Returns None for a message that may not be in one (delayed, for instance, or large
    enough to be compressed), and for one that cannot be sent at all: `pack`, which the caller asks next, says why.

    Raises MessageIllegal for its topic or its properties.
    """
    topic, body, flag = message.topic, message.body, message.flag
    if (
        not takes_batches(topic)
        or message.delay_level
        or message.delay_ms
        or message.deliver_at_ms
        or message.priority is not None
        or message.lite_topic is not None
        or type(body) is not bytes
        or not 0 < len(body) <= packing.body_bytes_max
        or len(body) >= packing.over_bytes
        or type(flag) is not int
        or not -(1 << 31) <= flag < 1 << 31
    ):
        return None
    tail = properties_text(message, _STAND_IN)[len(BEFORE_ID) + ID_CHARACTERS :].encode()
    lead, around_bytes = lead_of(len(tail))
    head = batch.pack_head(len(body) + around_bytes, 0, 0, flag, len(body)) + body + lead
    simple = None
    if not (message.keys or message.properties or flag or packing.namespace) and message.wait_store_ok:
        simple = (topic, message.tag, message.sharding_key)
    if packing.namespace:
        topic = wrap(packing.namespace, topic)
    return EncodedMessage(topic, message.sharding_key, message.wait_store_ok, head, tail, None, simple)


@lru_cache(maxsize=1024)
def lead_of(tail_bytes: int) -> tuple[bytes, int]:
    """Return what stands between a message's body and its id: the length of its properties, and the id's name; and the
    length of all of the message but its body.

    `tail_bytes`: of what stands behind the id.
    """
    properties_bytes = len(BEFORE_ID) + ID_CHARACTERS + tail_bytes
    return properties_bytes.to_bytes(2, "big") + BEFORE_ID, batch.HEAD_BYTES + 2 + properties_bytes


@lru_cache(maxsize=4096)
def takes_batches(topic: str) -> bool:
    """Tell whether a topic takes batches, as retry topics do not. Raises MessageIllegal if nobody may send to it."""
    return not check_target(topic).startswith(RETRY_PREFIX)


class Gatherable(Protocol):
    """Who waits for one message of a batch."""

    @property
    def given_up(self) -> bool:
        """True if nobody waits for it any more; of a whole send only `cancelled` tells."""

    def cancelled(self) -> bool:
        """Tell whether nobody waits for it any more."""

    def take_part(self, outcome: BatchOutcome, number: int) -> None:
        """Take the batch's outcome, of which the message with this number is one's own."""


class CalledTogether(Protocol):
    """A future with callbacks."""

    def call_all(self, futures: Sequence[Any], /) -> None:
        """Call the callbacks of all of these."""


class Limit(Protocol):
    """What counts messages in flight."""

    def leave(self, count: int = 1, /) -> None:
        """Note that so many are in flight no more."""


class BatchOutcome(msgspec.Struct, eq=False):
    """What became of a batch: the `result` of all, of which each message has a part, or the `error`.

    `ids`: the unique ids of the messages.
    """

    result: SendResult | None
    error: BaseException | None
    ids: Sequence[str] = ()
    # By number, the results of the messages, once one is asked for.
    _parts: Sequence[SendResult] | None = None
    # Of those told: whose task is to be woken, and futures whose callbacks are to be called.
    woken: list[AwaitedPart] = []
    called: list[CalledTogether] = []
    # The limits that count them, one for each.
    left: list[Limit] = []

    def part(self, number: int) -> SendResult | None:
        """Return the result of one message; None if the batch failed."""
        result = self.result
        ids = self.ids
        if result is None or len(ids) == 1:
            return result
        parts = self._parts
        if parts is None:
            # All at once, in C: who asks for one mostly asks for all.
            first, count = result.queue_offset, len(ids)
            places, offsets = offset_ids(result, count), range(first, first + count)
            made = map(SendResult, repeat(result.status), ids, places, repeat(result.queue), offsets, ids)
            parts = self._parts = list(made)
        return parts[number]

    def tell(self, sends: Iterable[Gatherable]) -> None:
        """Give each message's caller its part; called once, on the loop."""
        woken = self.woken
        for number, send in enumerate(sends):
            if type(send) is AwaitedPart:
                # As its `take_part`, without a call.
                send._outcome, send._number = self, number
                if send._wakeup is not None:
                    woken.append(send)
                continue
            try:
                send.take_part(self, number)
            except Exception:
                log.exception("a send of a batch could not be ended; the others are")
        if self.left:
            # All futures of a producer have the same one.
            left, self.left = self.left, []
            left[0].leave(len(left))
        if self.called:
            called, self.called = self.called, []
            called[0].call_all(called)
        if self.woken:
            # Not at once: the callers' own code would run within what ends the batch.
            loop = asyncio.get_running_loop()
            over = loop.create_future()
            over.set_result(None)
            loop.call_soon(self._wake, over)

    def _wake(self, over: asyncio.Future[None]) -> None:
        """Wake the tasks; `over`: a future that has ended, which a task asks for its result in C."""
        woken, self.woken = self.woken, []
        waking = iter(woken)
        for part in waking:
            # As its `wake`, without a call.
            wakeup, part._wakeup = part._wakeup, None
            if wakeup is None:
                continue
            try:
                part._context.run(wakeup, part if part.given_up else over)  # type: ignore[union-attr]
            except BaseException:
                # Ctrl-C in one of them: the others go on in the next turn.
                self.woken = list(waking)
                if self.woken:
                    asyncio.get_running_loop().call_soon(self._wake, over)
                raise


def own_error(error: BaseException | None) -> BaseException | None:
    """Return an error that several share for one of them: each raise adds to an error's traceback."""
    return copy(error) if isinstance(error, RocketSparkError) else error


class AwaitedPart(msgspec.Struct, eq=False):
    """What a coroutine awaits for the result of its message: to its task it is a future.

    One of asyncio's would have the loop call each task by itself; these are called one after another.
    """

    _loop: asyncio.AbstractEventLoop
    _asyncio_future_blocking: bool = False
    _wakeup: Callable[[Any], object] | None = None
    _context: Context | None = None
    given_up: bool = False
    _why: Any = None
    _outcome: BatchOutcome | None = None
    _number: int = 0

    def __await__(self) -> Generator[Any, None, SendResult]:
        if self._outcome is None:
            self._asyncio_future_blocking = True
            try:
                yield self
            except BaseException as e:
                self.given_up = True
                if isinstance(e, asyncio.CancelledError):
                    cancelled_sends.add()
                raise
        outcome, self._outcome = self._outcome, None
        assert outcome is not None
        if outcome.error is not None:
            error = own_error(outcome.error)
            assert error is not None
            try:
                raise error
            finally:
                del error, outcome
        parts = outcome._parts
        return parts[self._number] if parts is not None else outcome.part(self._number)  # type: ignore[return-value]

    def cancelled(self) -> bool:
        """Tell whether its task was cancelled."""
        return self.given_up

    def take_part(self, outcome: BatchOutcome, number: int) -> None:
        """Keep the outcome, and have the task woken."""
        self._outcome = outcome
        self._number = number
        if self._wakeup is not None:
            outcome.woken.append(self)

    def wake(self) -> None:
        """Have the task go on."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            assert self._context is not None
            self._context.run(wakeup, self)

    # -- what a task asks of a future ----------------------------------------------------------------------------

    def add_done_callback(self, wakeup: Callable[[Any], object], *, context: Context) -> None:
        """Keep the call by which the task goes on."""
        self._wakeup = wakeup
        self._context = context

    def cancel(self, msg: Any = None) -> bool:
        """Give the message up, and have the task go on with its cancellation. False if the outcome is there already."""
        if self.given_up or self._outcome is not None:
            return False
        self.given_up, self._why = True, msg
        self._loop.call_soon(self.wake)
        return True

    def result(self) -> None:
        """Raise CancelledError if the task was cancelled. What became of the send is what `await` returns."""
        if self.given_up:
            raise asyncio.CancelledError() if self._why is None else asyncio.CancelledError(self._why)
