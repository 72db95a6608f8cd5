"""Requests that wait for messages to pop (long polling).

Rule: a message wakes one waiting request of each group that can have it. Arrivals are noted by queue and looked at once
per turn of the loop: the first request of a group tries; as long as one found something and left something, the next
one tries. A request that finds nothing keeps its place. Arrivals in a group's retry topics wake its requests too
(RocketMQ does not wake them for retry topics of the first form), each by itself, as a pop that took all it asked for
does not tell what it left where it did not look. No waiting request has a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from rocketspark import machine
from rocketspark.broker.consumers.long_polling import LongPolling, dropped
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.broker")

ALL_QUEUES = -1
# As long as the loop may be kept by one turn of waking.
TURN_S = 0.02
# No request is held for longer, whatever it asks.
HOLD_MS_MAX = 300_000

# A topic and a group.
Pair = tuple[str, str]
# A queue (or all), and what tells waiters apart that may find different messages there: order, filter.
Line = tuple[int, Hashable]


class WaitingPop:
    """One held request.

    `retry(final)` answers it and returns how many messages are left for others; it returns None if the request goes on
    waiting, or was dropped and leaves all to others. With `final` it must be answered. `woken`: set when something
    came; the request clears it when it looks.
    """

    __slots__ = ("line", "owner", "pair", "retry", "timer", "weight", "woken")

    def __init__(
        self, pair: Pair, line: Line, owner: Hashable, retry: Callable[[bool], int | None], weight: int
    ) -> None:
        self.weight = weight
        self.pair = pair
        self.line = line
        self.owner = owner
        self.retry = retry
        self.timer: asyncio.TimerHandle | None = None
        self.woken = False


class WaitingPops:
    """The held requests of one kind, pops or notifications.

    `notifies`: they are notifications, which take no messages: the one that came last is woken first, and each leaves
    one message less for the others. `retry_topics`: returns the topics with the retries of a topic and a group;
    `of_queue_max`, `all_max`: the limits of one queue and group, and of all.
    """

    def __init__(
        self,
        arrivals: LongPolling,
        retry_topics: Callable[[str, str], Iterable[str]],
        *,
        of_queue_max: Callable[[], int],
        all_max: Callable[[], int],
        notifies: bool = False,
    ) -> None:
        self._arrivals = arrivals
        self._retry_topics = retry_topics
        self._of_queue_max, self._all_max = of_queue_max, all_max
        self._notifies = notifies
        self._lines: dict[Pair, dict[Line, dict[WaitingPop, None]]] = {}
        self._counts: dict[tuple[Pair, int], int] = {}
        self._owned: dict[Hashable, dict[WaitingPop, None]] = {}
        # For each topic whose arrivals are heard of: the pairs, and whether it is one of their retry topics.
        self._heard: dict[str, dict[Pair, bool]] = {}
        # What is to be woken: the queue that grew; for all lines of the pair, the retry topic that did, or None.
        self._due: dict[tuple[Pair, int | str | None], None] = {}
        # Requests that go on by themselves.
        self._due_alone: dict[WaitingPop, None] = {}
        self._scheduled = False
        self.total = 0
        self.refused = 0
        # The broker, or one member, ends: whoever is answered gets nothing.
        self.closed = False

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many requests of a group wait for a queue; queue id -1 counts those that wait for any queue."""
        return self._counts.get(((topic, group), queue_id), 0)

    def has_room(self, topic: str, group: str, queue_id: int, owner: Hashable, weight: int = 1) -> bool:
        """Tell whether an owner's connection may hold one more request for a queue and a group."""
        room = (
            not self.closed
            and self.total < self._all_max()
            and self.count(topic, group, queue_id) <= self._of_queue_max()
            and self._arrivals.weights.has_room(owner, weight)
        )
        self.refused += not room
        return room

    def wait(
        self,
        topic: str,
        group: str,
        queue_id: int,
        timeout_ms: int,
        retry: Callable[[bool], int | None],
        *,
        owner: Hashable,
        kind: Hashable = None,
        weight: int = 1,
    ) -> WaitingPop:
        """Hold a request until `retry` answers it; when its time is over, it is called a last time with final=True.

        `owner`: its connection; `kind`: requests of one kind, e.g. with one filter, wait in one line.
        """
        pair = (topic, group)
        waiter = WaitingPop(pair, (queue_id, kind), owner, retry, weight)
        seconds = min(timeout_ms, HOLD_MS_MAX) / 1000
        waiter.timer = asyncio.get_running_loop().call_later(seconds, self._expire, waiter)
        self._enter(waiter)
        self._counts[pair, queue_id] = self._counts.get((pair, queue_id), 0) + 1
        self._owned.setdefault(owner, {})[waiter] = None
        self.total += 1
        self._arrivals.weights.add(owner, weight)
        return waiter

    def may_answer(self, waiter: WaitingPop, peer: Peer, *, final: bool) -> bool:
        """Tell whether a held request may be answered now.

        One whose connection is gone is dropped, and one whose client does not read waits until it does: what it was
        woken for is left to the next.
        """
        if not peer.is_open:
            self.drop(waiter)
            return False
        if not peer.is_writable and not final:
            self.leave_line(waiter)
            peer.when_writable(lambda: self.enter_again(waiter))
            return False
        return True

    def failed(self, waiter: WaitingPop, peer: Peer, request: Request[Any], error: Exception) -> None:
        """Answer a held request that cannot be carried out, and drop it."""
        failure = peer.failure(request, error)
        if failure is not None:
            peer.send(failure)
        self.drop(waiter)

    def _enter(self, waiter: WaitingPop) -> None:
        lines = self._lines.get(waiter.pair)
        if lines is None:
            lines = self._lines[waiter.pair] = {}
            self._hear(waiter.pair)
        lines.setdefault(waiter.line, {})[waiter] = None

    def leave_line(self, waiter: WaitingPop) -> None:
        """Do not wake a held request for now, e.g. while its connection does not read. Its waiting time goes on."""
        lines = self._lines.get(waiter.pair, {})
        waiters = lines.get(waiter.line, {})
        if waiter not in waiters:
            return
        del waiters[waiter]
        if not waiters:
            del lines[waiter.line]
            if not lines:
                del self._lines[waiter.pair]
                self._hear_no_more(waiter.pair)

    def enter_again(self, waiter: WaitingPop) -> None:
        """Undo `leave_line` for a request that still waits: it can be woken again, and tries at once."""
        if waiter in self._owned.get(waiter.owner, ()):
            self._enter(waiter)
            self.wake(*waiter.pair, waiter.line[0])

    def drop(self, waiter: WaitingPop) -> None:
        """Forget a held request."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        owned = self._owned.get(waiter.owner)
        if owned is None or waiter not in owned:
            return
        del owned[waiter]
        if not owned:
            del self._owned[waiter.owner]
        self.total -= 1
        self._arrivals.weights.add(waiter.owner, -waiter.weight)
        pair = waiter.pair
        key = (pair, waiter.line[0])
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        self.leave_line(waiter)
        waiter.retry = dropped

    def drop_owner(self, owner: Hashable) -> None:
        """Forget all held requests of a connection, e.g. because it ended."""
        for waiter in list(self._owned.get(owner, ())):
            self.drop(waiter)

    def _hear(self, pair: Pair) -> None:
        for topic, is_retry in self._topics(pair):
            pairs = self._heard.get(topic)
            if pairs is None:
                pairs = self._heard[topic] = {}
                self._arrivals.listen(topic, self.arrived)
            pairs[pair] = is_retry

    def _hear_no_more(self, pair: Pair) -> None:
        for topic, _ in self._topics(pair):
            pairs = self._heard[topic]
            pairs.pop(pair, None)
            if not pairs:
                del self._heard[topic]
                self._arrivals.listen_no_more(topic, self.arrived)

    def _topics(self, pair: Pair) -> list[tuple[str, bool]]:
        return [(pair[0], False), *((retry, True) for retry in self._retry_topics(*pair))]

    # -- waking ---------------------------------------------------------------------------------------------------

    def arrived(self, topic: str, queue_id: int) -> None:
        """Note that a queue grew."""
        for pair, is_retry in self._heard.get(topic, {}).items():
            self._wake_later(pair, topic if is_retry else queue_id)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Have a group's requests for a queue (-1: for any) try again, whether it grew or not."""
        if (topic, group) in self._lines:
            self._wake_later((topic, group), None if queue_id < 0 else queue_id)

    def again(self, waiter: WaitingPop) -> None:
        """Have one held request try again in a later turn of the loop; the others of its line go on waiting."""
        if waiter in self._owned.get(waiter.owner, ()):
            self._due_alone[waiter] = None
            self._schedule()

    def _wake_later(self, pair: Pair, grown: int | str | None) -> None:
        self._due[pair, grown] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_due)

    def _wake_due(self) -> None:
        self._scheduled = False
        until = machine.perf_counter() + TURN_S
        alone, self._due_alone = self._due_alone, {}
        for number, waiter in enumerate(alone):
            if number and machine.perf_counter() >= until:
                self._due_alone = dict.fromkeys(list(alone)[number:]) | self._due_alone
                self._schedule()
                break
            if waiter in self._owned.get(waiter.owner, ()) and self._try(waiter, final=False):
                self.wake(*waiter.pair, waiter.line[0])
        due, self._due = self._due, {}
        for number, (pair, grown) in enumerate(due):
            if not self._wake_pair(pair, grown if isinstance(grown, int) else None, until):
                for left in list(due)[number:]:
                    self._wake_later(*left)
                return

    def _wake_pair(self, pair: Pair, queue_id: int | None, until: float) -> bool:
        """Let waiters of a pair try while something is left; False if the turn's time is over before."""
        for line in self._lines_of(pair, queue_id):
            left: int | None = None
            for number, waiter in enumerate(self._in_order(pair, line)):
                if number and machine.perf_counter() >= until:
                    return False
                waiter.woken = True
                found = self._try(waiter, final=False)
                if found is None:
                    if waiter in self._lines.get(pair, {}).get(line, ()):
                        # The next one of the line would find as little.
                        break
                    continue
                left = min(left - 1, found) if self._notifies and left is not None else found
                if left <= 0:
                    break
        return True

    def _lines_of(self, pair: Pair, queue_id: int | None) -> list[Line]:
        lines = sorted(self._lines.get(pair, {}), key=lambda line: line[0])
        return lines if queue_id is None else [line for line in lines if line[0] in (ALL_QUEUES, queue_id)]

    def _in_order(self, pair: Pair, line: Line) -> Iterable[WaitingPop]:
        """Give the waiters of a line; some may be dropped meanwhile."""
        while waiters := self._lines.get(pair, {}).get(line):
            yield next(reversed(waiters) if self._notifies else iter(waiters))

    def _try(self, waiter: WaitingPop, *, final: bool) -> int | None:
        """Let one request try; it is dropped once it is answered."""
        try:
            found = waiter.retry(final)
        except Exception:
            # `retry` answers its own errors; any other must not affect other held requests.
            log.exception("a held pop of %s was dropped", waiter.pair[0])
            self.drop(waiter)
            found = None
        if found is not None:
            self.drop(waiter)
        return found

    def _expire(self, waiter: WaitingPop) -> None:
        retry = waiter.retry
        self.drop(waiter)
        waiter.retry = retry
        left = self._try(waiter, final=True)
        waiter.retry = dropped
        if left:
            self.wake(*waiter.pair, waiter.line[0])

    def answer_left(self, owner: Hashable, group: str) -> None:
        """Answer the requests that a connection has held for a group that it leaves, without messages."""
        was_closed, self.closed = self.closed, True
        try:
            for waiter in list(self._owned.get(owner, ())):
                if waiter.pair[1] == group:
                    self._expire(waiter)
        finally:
            self.closed = was_closed

    def answer_all(self) -> None:
        """Answer every held request now."""
        for owned in list(self._owned.values()):
            for waiter in list(owned):
                self._expire(waiter)
