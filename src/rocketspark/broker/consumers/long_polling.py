"""Held pulls (long polling). Rule: a held pull is retried when its queue grew, and once more when its time is over.

Appends mark their queue; all marked queues are looked at once per turn of the loop, so a burst costs one look, and many
held pulls are looked at over several turns. Their weight is bounded, in all and for each owner (a connection), and they
end with their owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeVar

import msgspec

from rocketspark import machine
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.headers import Request
from rocketspark.transport.server_bounds import SHARE_OF_ADDRESS, place_of

log = LimitedLog("rocketspark.broker")

QueueKey = tuple[str, int]
K = TypeVar("K", bound=Hashable)
# The key of a request that waits for its time only.
NO_QUEUE: QueueKey = ("", -1)
# Some 2 KB of memory go with a weight of 1; a consumer holds one request for each of its queues.
WEIGHT_MAX = 200_000
OWNER_WEIGHT_MAX = 10_000
# So many tags of a filter, or characters of an expression, take as much as a request without any.
CODES_OF_WEIGHT = 32
CHARACTERS_OF_WEIGHT = 64
# And so many of whatever else its header says: that is kept as it came.
CHARACTERS_KEPT_OF_WEIGHT = 1024
# Waiters looked at in one turn of the loop: some ms, but for those with costly filters.
LOOKED_AT_MAX = 500
TURN_S = 0.02


def request_weight(request: Request[Any], codes: Collection[int] | None, expression: str | None) -> int:
    """Return what holding a request costs in memory, as a number that is 1 for a small one.

    `codes`: the hashes of its tags; `expression`: its compiled SQL92 filter.
    """
    said = (request.language, getattr(request, "remark", None), *msgspec.structs.astuple(request.ext))
    kept = sum(len(text) for text in said if isinstance(text, str)) // CHARACTERS_KEPT_OF_WEIGHT
    return 1 + kept + len(codes or ()) // CODES_OF_WEIGHT + len(expression or "") // CHARACTERS_OF_WEIGHT


def dropped(final: bool) -> Any:
    """Stand in for `retry` of a request that was dropped, so that the memory it held is released at once."""
    return None


class HeldWeights:
    """Counts the weight of a broker's held requests, pulls and pops together.

    `all_max`: the limit of all of them, of which one host may have three quarters; `owner_max`: of one connection.
    """

    def __init__(self) -> None:
        self.all_max, self.owner_max = WEIGHT_MAX, OWNER_WEIGHT_MAX
        self.total = 0
        self.of_owners: dict[Hashable, int] = {}
        self.of_hosts: dict[str, int] = {}

    def has_room(self, owner: Hashable, weight: int) -> bool:
        """Tell whether an owner may hold requests of this further weight."""
        return (
            self.of_owners.get(owner, 0) + weight <= self.owner_max
            and self.of_hosts.get(_host_of(owner), 0) + weight <= max(1, self.all_max * SHARE_OF_ADDRESS)
            and self.total + weight <= self.all_max
        )

    def add(self, owner: Hashable, weight: int) -> None:
        """Add a request's weight to its owner's; a negative weight takes it off again."""
        self.total += weight
        _add(self.of_owners, owner, weight)
        if host := _host_of(owner):
            _add(self.of_hosts, host, weight)


def _host_of(owner: Hashable) -> str:
    """Return what counts as the host of a connection; "" for another owner, which shares with nobody."""
    host = getattr(owner, "remote_host", "")
    return place_of(host) if host else ""


def _add(table: dict[K, int], key: K, weight: int) -> None:
    left = table.get(key, 0) + weight
    if left:
        table[key] = left
    else:
        table.pop(key, None)


class HeldRequest:
    """One held request. `retry(final)` answers it and returns True, or returns False to go on waiting."""

    __slots__ = ("key", "owner", "retry", "timer", "weight")

    def __init__(self, key: QueueKey, retry: Callable[[bool], bool], owner: Hashable, weight: int) -> None:
        self.key = key
        self.retry = retry
        self.owner = owner
        self.weight = weight
        self.timer: asyncio.TimerHandle | None = None


class LongPolling:
    """The held pulls of one broker, by queue and by owner.

    `log_end`: returns the physical offset behind what was stored last; `awaited`: the queues that pulls wait for (read
    only); `refused`: how many pulls found no room; `weights`: what held requests of all kinds weigh.
    """

    def __init__(self, *, log_end: Callable[[], int] = lambda: 0) -> None:
        self.refused = 0
        self.weights = HeldWeights()
        self._waiting: dict[QueueKey, dict[HeldRequest, None]] = {}
        self.awaited: Collection[QueueKey] = self._waiting
        self._owned: dict[Hashable, dict[HeldRequest, None]] = {}
        self._marked: set[QueueKey] = set()
        # Requests to retry, in this turn or a later one.
        self._due: dict[HeldRequest, None] = {}
        self._scheduled = False
        # Who else hears of queues that grew, by topic, and of which one.
        self.listeners: dict[str, dict[Callable[[str, int], None], None]] = {}
        # True while readers do not see at once what is stored: queues that grew are marked again once they do.
        self.keeps_recent = False
        self._reasons: set[str] = set()
        # Called for each queue that grew meanwhile: where the log ends now, and to have it shown.
        self._log_end = log_end
        self.show_soon: Callable[[], None] = lambda: None
        # Called with each light queue that grew, once readers may see it.
        self.light_arrived: Callable[[str], None] = lambda name: None
        # With the log's end behind their last message.
        self._recent: dict[QueueKey, int] = {}

    @property
    def waiting(self) -> int:
        """The number of held requests."""
        return sum(len(w) for w in self._waiting.values())

    def has_room(self, owner: Hashable, weight: int = 1) -> bool:
        """Tell whether an owner may hold one more pull."""
        return self.weights.has_room(owner, weight)

    def wait(
        self,
        key: QueueKey,
        timeout_s: float,
        retry: Callable[[bool], bool],
        *,
        owner: Hashable = None,
        weight: int = 1,
    ) -> HeldRequest:
        """Hold a request until `retry` answers it; after `timeout_s` it is asked a last time, with final=True."""
        waiter = HeldRequest(key, retry, owner, weight)
        waiter.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, waiter)
        self._waiting.setdefault(key, {})[waiter] = None
        self._owned.setdefault(owner, {})[waiter] = None
        self.weights.add(owner, weight)
        return waiter

    def drop(self, waiter: HeldRequest) -> None:
        """Forget a held request."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._due.pop(waiter, None)
        waiters = self._waiting.get(waiter.key)
        if waiters is None or waiter not in waiters:
            return
        del waiters[waiter]
        if not waiters:
            del self._waiting[waiter.key]
        owned = self._owned[waiter.owner]
        del owned[waiter]
        self.weights.add(waiter.owner, -waiter.weight)
        if not owned:
            del self._owned[waiter.owner]
        waiter.retry = dropped

    def drop_owner(self, owner: Hashable) -> None:
        """Forget all that is held for an owner, e.g. because its connection ended."""
        for waiter in list(self._owned.get(owner, ())):
            self.drop(waiter)

    def listen(self, topic: str, arrived: Callable[[str, int], None]) -> None:
        """Have `arrived(topic, queue id)` called when a queue of a topic grew, once for each message or run."""
        self.listeners.setdefault(topic, {})[arrived] = None

    def listen_no_more(self, topic: str, arrived: Callable[[str, int], None]) -> None:
        """Undo `listen` for a topic and a function."""
        listeners = self.listeners.get(topic, {})
        listeners.pop(arrived, None)
        if not listeners:
            self.listeners.pop(topic, None)

    def _tell(self, topic: str, queue_id: int) -> None:
        for arrived in self.listeners[topic]:
            arrived(topic, queue_id)

    def mark_light(self, grown: list[str]) -> None:
        """Note that these light queues grew, and empty the list."""
        for name in grown:
            self.mark(name, 0)
            self.light_arrived(name)
        grown.clear()

    def mark(self, topic: str, queue_id: int) -> None:
        """Note that the queue grew: its held requests are retried later in this turn of the loop."""
        key = (topic, queue_id)
        if self.keeps_recent:
            self._recent[key] = self._log_end()
            self.show_soon()
        if topic in self.listeners:
            self._tell(topic, queue_id)
        if key in self._waiting:
            self._marked.add(key)
            self._schedule()

    def keep_recent(self, reason: str, on: bool) -> None:
        """Set `keeps_recent` for a reason, or no more for it; others may have it set."""
        (self._reasons.add if on else self._reasons.discard)(reason)
        self.keeps_recent = bool(self._reasons)

    def shown(self, position: int) -> None:
        """Note that readers see more of the log, up to a physical offset, and retry the held pulls."""
        recent, self._recent = self._recent, {}
        for key, end in recent.items():
            topic, queue_id = key
            if end > position:
                # A listener may have stored more meanwhile.
                self._recent.setdefault(key, end)
            if topic in self.listeners:
                self._tell(topic, queue_id)
            self.light_arrived(topic)
            if key in self._waiting:
                self._marked.add(key)
        if self._marked:
            self._schedule()

    def again(self, waiter: HeldRequest) -> None:
        """Retry one held request in a later turn, whether its queue grows or not."""
        if waiter in self._waiting.get(waiter.key, ()):
            self._due[waiter] = None
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._scheduled = False
        marked, self._marked = self._marked, set()
        for key in marked:
            self._due.update(self._waiting.get(key, {}))
        due, self._due = self._due, {}
        until = machine.perf_counter() + TURN_S
        for number, waiter in enumerate(due):
            if number >= LOOKED_AT_MAX or (number and machine.perf_counter() >= until):
                # Before those that became due meanwhile.
                self._due = dict.fromkeys(list(due)[number:]) | self._due
                self._schedule()
                return
            if waiter in self._waiting.get(waiter.key, ()) and self._answered(waiter, final=False):
                self.drop(waiter)

    def _answered(self, waiter: HeldRequest, *, final: bool) -> bool:
        try:
            return waiter.retry(final)
        except Exception:
            # `retry` answers its own errors; any other must not affect other held requests.
            log.exception("a held request of %s was dropped", waiter.key[0])
            return True

    def _expire(self, waiter: HeldRequest) -> None:
        retry = waiter.retry
        self.drop(waiter)
        waiter.retry = retry
        self._answered(waiter, final=True)
        waiter.retry = dropped

    def answer_all(self) -> None:
        """Answer every held request now."""
        for waiters in list(self._waiting.values()):
            for waiter in list(waiters):
                self._expire(waiter)

    def close(self) -> None:
        """Answer every held request, and hold none from now on."""
        self.answer_all()
