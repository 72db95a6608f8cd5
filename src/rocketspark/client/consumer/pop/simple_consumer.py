"""The simple consumer: messages are received one by one and acknowledged one by one; members share no queues.

Rule: what a broker handed out is returned by `receive`, or given back: a receive that is cancelled loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import takewhile
from numbers import Real
from typing import Unpack

from rocketspark import machine
from rocketspark.client import validators
from rocketspark.client.callbacks import Tasks, end_all, trouble_log
from rocketspark.client.consumer.lifecycle import ConsumerLife, filter_of
from rocketspark.client.consumer.pop.pop_calls import COUNT_MAX, INVISIBLE_MS_MAX, PopCalls, Wanted, every_broker
from rocketspark.client.consumer.refusals import OtherSubscriptions, is_refusal
from rocketspark.client.consumer.returned_messages import ReturnedMessages
from rocketspark.client.message_batch import MessageBatch
from rocketspark.client.options import ClientOptions
from rocketspark.errors import (
    ConfigError,
    RocketSparkError,
    RouteNotFound,
    StateError,
    TransportError,
    UsageError,
)
from rocketspark.model import MessageQueue, ReceivedMessage, Subscription, namespace, subscribe
from rocketspark.model.route import PERM_READ
from rocketspark.model.subscription import newer_version
from rocketspark.protocol.json import bodies

log = logging.getLogger("rocketspark.client")

# A broker holds a pop no longer than this.
POLL_MS_MAX = 15_000
# Brokers end a wait some 50 ms early; for less than this nothing is asked again.
POLL_MS_MIN = 100
WAIT_MS_MAX = 24 * 3600 * 1000
TROUBLE_S = 1.0
# A broker that is silent for so long holds up no look at the others.
LOOK_S = 1.0
UNHELD_PAUSE_S = 0.05
# For so long messages that came after their receive ended wait for the next one.
KEPT_S = 1.0
GIVE_BACK_S = 3.0
# How often a receive has it looked whether others of the group subscribe to something else.
OTHERS_S = 20.0

# A queue to pop, and the invisible time that messages of it get.
Place = tuple[MessageQueue, int]


class AsyncSimpleConsumer(ConsumerLife):
    """Receives messages and acknowledges each, on the running asyncio loop; needs brokers of RocketMQ 5.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        group: the consumer group. Its members share messages, not queues: there may be more of them than queues.
        consume_from: where a group begins that never read a queue: "last" (its last message) or "first".
        invisible_ms: for how long other receives do not get a message that was received, up to 12 h. Not acknowledged
            until then it comes again, with `reconsume_times` one higher.
        ordered: each queue's messages come in order, and none that follows until those before it are acknowledged, or
            their invisible time is over; the group should say so too (`consumeMessageOrderly`).
        options: see ClientOptions.

    Use it as a context manager, or `start` and `close` it; `subscribe` comes first.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        group: str = "",
        *,
        consume_from: str = "last",
        invisible_ms: float = 60_000,
        ordered: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        if consume_from not in ("last", "first"):
            raise ConfigError(f"consume_from {consume_from!r} is not one of last, first")
        super().__init__(namesrv, options, group)
        self._from_first = consume_from == "first"
        self._invisible_ms = _invisible(invisible_ms, ConfigError)
        self._ordered = ordered
        self._pops = PopCalls(self._instance, self.group, self._namespace)
        self._returned = ReturnedMessages(
            self._instance,
            self.group,
            self._namespace,
            attempts_max=None,
            runs=lambda: self._state == "started",
            again=lambda puller, message: None,
        )
        self._subscriptions: dict[str, Subscription] = {}
        # Of the newest of them.
        self._version = 0
        self._asking: dict[asyncio.Task[list[ReceivedMessage]], Place] = {}
        self._asked_with: dict[asyncio.Task[list[ReceivedMessage]], Subscription] = {}
        # Messages without a taker yet, with the invisible time asked for.
        self._kept: list[tuple[int, ReceivedMessage]] = []
        self._failures: dict[MessageQueue, RocketSparkError] = {}
        self._again_s: dict[MessageQueue, float] = {}
        self._attempts: dict[MessageQueue, str] = {}
        self._arrived = asyncio.Event()
        # Pops that a broker is to hold.
        self._held_since_s: dict[asyncio.Task[list[ReceivedMessage]], float] = {}
        # How many calls wait, by the invisible time they ask for.
        self._receiving: Counter[int] = Counter()
        self._turn = 0
        self._telling = Tasks()
        self._others = OtherSubscriptions(self._instance, self.group)
        self._others_at_s = -OTHERS_S

    # -- life ----------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: str | None = None) -> None:
        """Subscribe to a topic's messages: all, those of "TagA || TagB", or those for which `sql` is true. Also while
        running.

        All members of a group need the same subscriptions. Raises MessageIllegal for a topic's name that is not
        allowed, FilterIllegal for a wrong `sql`.
        """
        full = validators.check_topic(namespace.wrap(self._namespace, topic))
        wanted, kind = filter_of(expression, sql)
        self._version = newer_version(self._version)
        made = subscribe(full, wanted, version=self._version, kind=kind)
        if not _same(made, self._subscriptions.get(full)):
            self._give_back_kept(full)
        self._subscriptions[full] = made
        self._tell_brokers()

    def unsubscribe(self, topic: str) -> None:
        """End a topic's subscription. Also while running: what was popped of it and not received is given back."""
        full = namespace.wrap(self._namespace, topic)
        self._subscriptions.pop(full, None)
        self._give_back_kept(full)
        self._tell_brokers()

    def _tell_brokers(self) -> None:
        if self._state == "started" and self._entered:
            self._telling.begin(self._instance.heartbeat_all()).add_done_callback(self._told)
            self._arrived.set()

    def _told(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.info("group %s: brokers do not know of the new subscription yet: %s", self.group, task.exception())

    async def start(self) -> None:
        """Join the group. Raises StateError, NotSent if no NameServer answers."""
        await self._start()

    async def _open(self) -> None:
        await self._enter()
        self._instance.consumers[self.group] = self._heartbeat

    def _heartbeat(self) -> bodies.ConsumerData:
        return bodies.ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_POP",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET" if self._from_first else "CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[bodies.SubscriptionBody.of(s) for _, s in sorted(self._subscriptions.items())],
        )

    async def close(self) -> None:
        """Give back what no receive returned, leave the group, close the connections. May be called again.

        A receive that waits raises StateError.
        """
        await self._close(through=True)

    async def _end(self, through: bool) -> None:
        self._arrived.set()
        self._give_back_kept()
        await self._pops.settle(GIVE_BACK_S)
        await self._leave(lambda: self._pops.end_held(GIVE_BACK_S, self._asking))
        await end_all([*self._asking, *self._telling], GIVE_BACK_S)

    # -- receive -------------------------------------------------------------------------------------------------

    async def receive(
        self, count_max: int = COUNT_MAX, *, timeout_ms: float = 15_000, invisible_ms: float | None = None
    ) -> list[ReceivedMessage]:
        """Return up to `count_max` messages (1 to 32) as soon as there are some; none after `timeout_ms`.

        Messages of one batch record come together, also beyond `count_max`. Each is invisible to others for
        `invisible_ms` (None: the consumer's), then it comes again unless it was acknowledged. May be called many times
        at once. A call that is cancelled loses nothing: what still comes for it goes to the next call, or is given back
        after a second. Raises UsageError, StateError, what a broker raises, and RouteNotFound or TransportError if no
        broker could be asked until the end.
        """
        self._check_started()
        if not isinstance(count_max, int) or not 1 <= count_max <= COUNT_MAX:
            raise UsageError(f"count_max {count_max} is not a whole number from 1 to {COUNT_MAX}")
        if not isinstance(timeout_ms, Real) or not 0 <= timeout_ms <= WAIT_MS_MAX:
            raise UsageError(f"timeout_ms {timeout_ms!r} is not from 0 to {WAIT_MS_MAX}")
        if not self._subscriptions:
            raise StateError("nothing to receive: call subscribe(topic) first")
        invisible = self._invisible_ms if invisible_ms is None else _invisible(invisible_ms, UsageError)
        if (now_s := asyncio.get_running_loop().time()) - self._others_at_s >= OTHERS_S:
            self._others_at_s = now_s
            self._telling.begin(self._others.look(self._subscriptions))
        self._receiving[invisible] += 1
        try:
            return await self._receive(count_max, invisible, asyncio.get_running_loop().time() + timeout_ms / 1000)
        finally:
            self._receiving[invisible] -= 1

    async def receive_batch(
        self, count_max: int = COUNT_MAX, *, timeout_ms: float = 15_000, invisible_ms: float | None = None
    ) -> MessageBatch:
        """Return what `receive` does, as columns. `ack` takes the batch, or a part: `batch[mask]`."""
        return MessageBatch(await self.receive(count_max, timeout_ms=timeout_ms, invisible_ms=invisible_ms))

    async def _receive(self, count_max: int, invisible_ms: int, end_s: float) -> list[ReceivedMessage]:
        loop = asyncio.get_running_loop()
        self._failures.clear()
        looked = False
        while True:
            self._check_started()
            if found := self._take(count_max, invisible_ms):
                return found
            self._raise_refusal()
            queues = await self._queues()
            left_ms = (end_s - loop.time()) * 1000
            if not looked and (len(queues) > 1 or left_ms < POLL_MS_MIN):
                if found := await self._look(queues, count_max, invisible_ms):
                    return found
                left_ms = (end_s - loop.time()) * 1000
            if left_ms <= 0 or (looked and left_ms < POLL_MS_MIN and not self._asking):
                return self._nothing(queues)
            self._check_started()
            self._arrived.clear()
            for queue in queues:
                self._ask_enough((queue, invisible_ms), count_max, min(int(left_ms), POLL_MS_MAX))
            looked = True
            # Something may have come while the routes were looked at.
            if not any(time_ms == invisible_ms for time_ms, _ in self._kept):
                await self._wait(min([end_s, *self._later(queues)]))

    def _later(self, queues: Sequence[MessageQueue]) -> list[float]:
        """Return when queues may be asked again that rest now."""
        now_s = asyncio.get_running_loop().time()
        return [again_s for q in queues if (again_s := self._again_s.get(q, 0)) > now_s]

    async def _wait(self, end_s: float) -> None:
        """Wait until something arrives or fails, or it is time to ask again."""
        try:
            async with asyncio.timeout_at(end_s):
                await self._arrived.wait()
        except TimeoutError:
            pass

    async def _queues(self) -> list[MessageQueue]:
        """Return what to pop: for each broker of each topic its queue -1, which stands for all of them."""
        queues: list[MessageQueue] = []
        for topic in list(self._subscriptions):
            try:
                route = await self._instance.routes.get(topic)
            except (RouteNotFound, TransportError) as e:
                # It may be made, or found, later.
                missing = MessageQueue(topic, "", 0)
                self._failures[missing] = e
                self._again_s[missing] = asyncio.get_running_loop().time() + TROUBLE_S
                queues.append(missing)
                continue
            names = sorted(q.broker_name for q in route.queues if q.perm & PERM_READ and q.read_queue_count)
            queues += every_broker(topic, names)
        self._turn += 1
        turn = self._turn % max(len(queues), 1)
        return queues[turn:] + queues[:turn]

    async def _look(self, queues: Sequence[MessageQueue], count_max: int, invisible_ms: int) -> list[ReceivedMessage]:
        """Return what is there already, asking one broker after the other: a wait at all of them takes too much."""
        for queue in queues:
            place = queue, invisible_ms
            if place in self._asking.values() or not self._may_ask(queue):
                continue
            await asyncio.wait([self._ask(place, count_max, 0)], timeout=LOOK_S)
            self._raise_refusal()
            if found := self._take(count_max, invisible_ms):
                return found
        return []

    def _may_ask(self, queue: MessageQueue) -> bool:
        # What is asked of a broker after the leave would be answered to nobody.
        runs = self._state == "started" and bool(queue.broker_name)
        return runs and self._again_s.get(queue, 0) <= asyncio.get_running_loop().time()

    def _ask_enough(self, place: Place, count_max: int, poll_ms: int) -> None:
        """Let as many pops wait at a broker as there are calls of `receive`."""
        if not self._may_ask(place[0]):
            return
        for _ in range(self._receiving[place[1]] - list(self._asking.values()).count(place)):
            self._ask(place, count_max, poll_ms)

    def _ask(self, place: Place, count_max: int, poll_ms: int) -> asyncio.Task[list[ReceivedMessage]]:
        queue, invisible_ms = place
        subscription = self._subscriptions.get(queue.topic) or subscribe(queue.topic)
        attempt = self._attempts.setdefault(queue, str(machine.uuid4())) if self._ordered else None
        wanted = Wanted(
            queue,
            subscription,
            invisible_ms,
            count_max,
            from_first=self._from_first,
            ordered=self._ordered,
            attempt_id=attempt,
        )
        task = asyncio.ensure_future(self._pops.pop(wanted, poll_ms))
        self._asking[task] = place
        self._asked_with[task] = subscription
        if poll_ms:
            self._held_since_s[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._answered)
        return task

    def _answered(self, task: asyncio.Task[list[ReceivedMessage]]) -> None:
        queue, invisible_ms = self._asking.pop(task)
        asked_with = self._asked_with.pop(task)
        since_s = self._held_since_s.pop(task, None)
        self._arrived.set()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and (queue.topic not in self._subscriptions or self._state != "started"):
            return
        if error is not None:
            # Asked once more with the same attempt, a broker gives the same ordered messages.
            self._trouble(queue, error)
            return
        self._failures.pop(queue, None)
        self._attempts.pop(queue, None)
        self._again_s.pop(queue, None)
        messages = task.result()
        if not messages:
            now_s = asyncio.get_running_loop().time()
            if since_s is not None and now_s - since_s < UNHELD_PAUSE_S:
                # A broker that does not hold pops must not be asked in a tight loop.
                self._again_s[queue] = now_s + UNHELD_PAUSE_S
            return
        if self._state != "started" or not _same(asked_with, self._subscriptions.get(queue.topic)):
            # A pop that a broker held until now may be one for what nobody wants any more.
            self._pops.give_back(messages)
            return
        self._kept += [(invisible_ms, m) for m in messages]
        kept_s = min(KEPT_S, invisible_ms / 4000)
        asyncio.get_running_loop().call_later(kept_s, self._give_back_untaken, messages)

    def _trouble(self, queue: MessageQueue, error: BaseException) -> None:
        if not isinstance(error, RocketSparkError):
            log.error("group %s: a receive from %s failed", self.group, queue, exc_info=error)
            error = TransportError(f"a receive from {queue.broker_name} failed: {error}")
        self._failures[queue] = error
        self._again_s[queue] = asyncio.get_running_loop().time() + TROUBLE_S
        trouble_log.warning("group %s: receive from %s: %s", self.group, queue, error)
        self._telling.begin(self._pops.look_again(queue.topic, error))

    def _raise_refusal(self) -> None:
        """Raise what a broker refuses for good."""
        for error in self._failures.values():
            if not error.retriable or is_refusal(error):
                raise copy(error)

    def _nothing(self, queues: Sequence[MessageQueue]) -> list[ReceivedMessage]:
        """Return no messages, or raise why none could be had from anywhere."""
        if queues and all(queue in self._failures for queue in queues):
            raise self._failures[queues[0]]
        return []

    def _take(self, count_max: int, invisible_ms: int) -> list[ReceivedMessage]:
        found = [m for time_ms, m in self._kept if time_ms == invisible_ms]
        if len(found) > count_max:
            # Messages of one batch record go together: who acknowledges one of them acknowledges all.
            last = found[count_max - 1].receipt_handle
            found = [*found[:count_max], *takewhile(lambda m: m.receipt_handle == last, found[count_max:])]
        if found:
            taken = {id(m) for m in found}
            self._kept = [pair for pair in self._kept if id(pair[1]) not in taken]
        return found

    def _give_back_untaken(self, messages: list[ReceivedMessage]) -> None:
        some = {id(m) for m in messages}
        left = [m for _, m in self._kept if id(m) in some]
        if left:
            self._kept = [pair for pair in self._kept if id(pair[1]) not in some]
            self._pops.give_back(left)

    def _give_back_kept(self, topic: str | None = None) -> None:
        """Give back what waits for a taker, of one topic or of all."""
        kept = [m for _, m in self._kept if topic in (None, namespace.wrap(self._namespace, m.topic))]
        if kept:
            some = {id(m) for m in kept}
            self._kept = [pair for pair in self._kept if id(pair[1]) not in some]
            self._pops.give_back(kept)

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let messages that were received come again after a second, here or elsewhere; in the background."""
        self._pops.give_back(messages)

    # -- afterwards ----------------------------------------------------------------------------------------------

    async def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Acknowledge one message or several: they do not come again. Several of one broker go in one request.

        Raises ReceiptExpired for one whose invisible time is over (the others are acknowledged), UsageError for one
        that was not received by popping, what a broker raises, TransportError: then they may come again.
        """
        self._check_started()
        await self._pops.ack([messages] if isinstance(messages, ReceivedMessage) else messages)

    async def change_invisible_time(self, message: ReceivedMessage, invisible_ms: float) -> None:
        """Make a message invisible to others for `invisible_ms` from now on: longer, or shorter so that it comes again
        soon.

        The message gets a new receipt handle. Raises as `ack` does.
        """
        self._check_started()
        await self._pops.change_invisible_time(message, _invisible(invisible_ms, UsageError))

    async def dead_letter(self, message: ReceivedMessage) -> None:
        """Make a message a dead letter of the group (`rocketspark dlq`) instead of acknowledging it: no attempt can do
        it. Raises as `ack` does.
        """
        self._check_started()
        self._pops.handle_of(message)
        await self._returned.bury_popped(message)
        await self._pops.ack([message])


def _invisible(invisible_ms: float, kind: type[UsageError]) -> int:
    if not isinstance(invisible_ms, Real) or not 1 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise kind(f"invisible_ms {invisible_ms!r} is not from 1 to {INVISIBLE_MS_MAX} (12 h)")
    return int(invisible_ms)


def _same(one: Subscription, other: Subscription | None) -> bool:
    """Tell whether two subscriptions want the same, whenever they were made."""
    return other is not None and (one.expression, one.expression_type) == (other.expression, other.expression_type)
