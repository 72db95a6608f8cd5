"""Receipt handles that the proxy renews: a message stays with the push consumer that has it for as long as it works on
it.

Rule (DefaultReceiptHandleManager, 5.5.0): shortly before a message would be visible again its time is extended, each
time by more; after three failures in a row, or three hours, it is left to come again. What a client that is gone had is
given back. The table is bounded, and one host has at most three quarters of it: a message that does not fit is
delivered all the same, and its handle is not renewed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from rocketspark.client.callbacks import end_all
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.proxy.checks import Shares
from rocketspark.proxy.consuming.handle_calls import Held
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused

log = LimitedLog("rocketspark.proxy")

_MINUTE_MS = 60_000
# By how much, by the times that it was renewed before; the last one repeats.
STEPS_MS = tuple(minutes * _MINUTE_MS for minutes in (1, 3, 5, 10, 30, 60))
RENEWALS_MAX = 200_000
# So long an acknowledgement waits for a change of the same message that is under way.
CHANGE_S = 3.0
END_S = 1.0
# Changes under way at the same time.
AT_ONCE_MAX = 256


class RenewSettings(NamedTuple):
    """When and for how long handles are renewed: from `ahead_ms` before a message is visible again, for `longest_ms` in
    all, until `failures_max` renewals in a row have failed.
    """

    ahead_ms: int = 10_000
    longest_ms: int = 3 * 3600_000
    failures_max: int = 3


class Renewal:
    """One message that a client has, and whose handle is renewed.

    `since_ms`: when it was given out; `changing`: set while a renewal is under way; `doubtful`: the client may not have
    got the message, so it is not renewed; `host`: the client's host.
    """

    __slots__ = (
        "changing", "doubtful", "failures", "given", "held", "host", "next_visible_ms", "reconsume_times", "renewed",
        "since_ms",
    )  # fmt: skip

    def __init__(self, held: Held, reconsume_times: int, host: str) -> None:
        self.held, self.host = held, host
        self.given = held.handle
        self.since_ms = held.handle.pop_time_ms
        self.next_visible_ms = held.handle.next_visible_ms
        self.reconsume_times = reconsume_times
        self.renewed = self.failures = 0
        self.doubtful = False
        self.changing: asyncio.Future[None] | None = None

    def renew(self, handle: ReceiptHandle) -> None:
        """Note the handle that the message has now."""
        self.held = self.held._replace(handle=handle)
        self.next_visible_ms = handle.next_visible_ms
        self.renewed += 1
        self.failures = 0


# The place in the log tells messages of lite topics apart, of which not every client names the lite topic.
Key = tuple[str, str, str, str, int, int, int]
# Changes a message's time, and returns its new handle; None if the broker does not take it. Raises RocketSparkError.
Change = Callable[[Held, int], Awaitable[ReceiptHandle | None]]
# The wait before the next attempt, by group and attempts so far; None for a group that is not known.
RetryWait = Callable[[str, int], Awaitable[int | None]]


def _key(held: Held) -> Key:
    h = held.handle
    return held.group, held.topic, h.retry_flag, h.broker_name, h.queue_id, h.queue_offset, h.physical_offset


class Renewals:
    """The table of the handles that are renewed, by client identity. `clock_ms`: returns the time of day.

    `change`: extends a message's time at its broker; `retry_wait`: returns a group's wait before the next attempt.
    """

    def __init__(
        self,
        change: Change,
        retry_wait: RetryWait,
        clock_ms: Callable[[], int],
        settings: RenewSettings,
        *,
        count_max: int = RENEWALS_MAX,
    ) -> None:
        self._change, self._retry_wait, self._clock_ms = change, retry_wait, clock_ms
        self._settings = settings
        self._clients: dict[str, dict[Key, Renewal]] = {}
        # By broker, while its handles are renewed.
        self._renewing: dict[str, asyncio.Task[None]] = {}
        self._shares = Shares(count_max, "as many handles are renewed as the proxy takes")

    @property
    def count(self) -> int:
        """How many handles are renewed."""
        return self._shares.total

    def add(self, client: str, held: Held, reconsume_times: int, host: str = "") -> None:
        """Begin to renew a message that a client gets, unless the table is full, or the host's share of it.

        `reconsume_times`: how often it was delivered before.
        """
        own = self._clients.get(client)
        if own is None:
            own = self._clients[client] = {}
        key = _key(held)
        if key in own:
            self._shares.give(own[key].host, 1)
            self._shares.add(host, 1)
        else:
            try:
                self._shares.take(host, 1)
            except Refused:
                log.warning(
                    "%d handles are renewed, no more are: messages come again when their time is over", self.count
                )
                if not own:
                    del self._clients[client]
                return
        own[key] = Renewal(held, reconsume_times, host)

    async def take(self, client: str, held: Held) -> Held:
        """Stop renewing a message, and return it with its newest handle; as it was given if it was not renewed."""
        found = await self.take_renewal(client, held)
        return held if found is None else found.held

    async def take_renewal(self, client: str, held: Held) -> Renewal | None:
        """Stop renewing a message, and return the renewal with its newest handle; None if it was not renewed."""
        own = self._clients.get(client)
        found = own.get(_key(held)) if own else None
        # An older delivery's handle says nothing of this one.
        if own is None or found is None or held.handle not in (found.given, found.held.handle):
            return None
        if found.changing is not None:
            # Before it is taken: whoever gives up meanwhile has taken nothing.
            await _settled(found.changing)
        self._drop(client, own, found)
        return found

    def restore(self, client: str, renewal: Renewal) -> None:
        """Go on with a renewal that `take_renewal` returned: its client still has the message, as the broker could not
        be told its outcome.
        """
        renewal.doubtful = False
        own = self._clients.setdefault(client, {})
        if own.setdefault(_key(renewal.held), renewal) is renewal:
            self._shares.add(renewal.host, 1)

    def forget(self, client: str, held: Held) -> None:
        """Stop renewing a message that its client did not get."""
        if (found := self._given(client, held)) is not None:
            self._drop(client, self._clients[client], found)

    def doubt(self, client: str, held: Held) -> None:
        """Stop renewing a message that its client may not have got, but keep it, to give it back if the client goes."""
        if (found := self._given(client, held)) is not None:
            found.doubtful = True

    def _given(self, client: str, held: Held) -> Renewal | None:
        found = self._clients.get(client, {}).get(_key(held))
        return found if found is not None and found.given == held.handle else None

    def _drop(self, client: str, own: dict[Key, Renewal], renewal: Renewal) -> None:
        key = _key(renewal.held)
        if own.get(key) is renewal:
            del own[key]
            self._shares.give(renewal.host, 1)
            if not own and self._clients.get(client) is own:
                del self._clients[client]

    async def take_all(self, client: str) -> list[Held]:
        """Stop renewing all messages of a client, and return them with their newest handles."""
        own = self._clients.pop(client, {})
        listed = list(own.values())
        for renewal in listed:
            self._shares.give(renewal.host, 1)
        own.clear()
        waiting = [renewal.changing for renewal in listed if renewal.changing is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=CHANGE_S)
        return [renewal.held for renewal in listed]

    def count_of(self, client: str) -> int:
        """Return how many handles of a client are renewed."""
        return len(self._clients.get(client, ()))

    def of_client(self, client: str) -> list[Held]:
        """Return the messages that a client has and whose handles are renewed."""
        return [renewal.held for renewal in self._clients.get(client, {}).values()]

    def clients(self) -> list[str]:
        """Return the identities of the clients that have messages which are renewed."""
        return list(self._clients)

    # -- renewing ------------------------------------------------------------------------------------------------

    def due(self) -> Iterator[tuple[str, Renewal]]:
        """Yield each client and renewal whose message is visible again so soon that it has to be renewed now."""
        until_ms = self._clock_ms() + self._settings.ahead_ms
        for client, own in list(self._clients.items()):
            for renewal in list(own.values()):
                if renewal.next_visible_ms <= until_ms and renewal.changing is None:
                    yield client, renewal

    def begin_due(self) -> list[asyncio.Task[None]]:
        """Begin the renewals that are due, in a task for each broker: a silent broker must not hold up the others.
        Returns the tasks.
        """
        brokers: dict[str, list[tuple[str, Renewal]]] = {}
        for client, one in self.due():
            brokers.setdefault(one.held.handle.broker_name, []).append((client, one))
        begun = []
        for name, listed in brokers.items():
            if name not in self._renewing:
                task = self._renewing[name] = asyncio.ensure_future(self._renew_all(listed))
                task.add_done_callback(functools.partial(self._renewed_all, name))
                begun.append(task)
        return begun

    def _renewed_all(self, broker_name: str, task: asyncio.Task[None]) -> None:
        del self._renewing[broker_name]

    async def renew_due(self) -> None:
        """Do the renewals that are due, and wait until they are done."""
        await asyncio.gather(*self.begin_due())

    async def close(self) -> None:
        """Renew nothing any more; what is under way may end for a moment."""
        if tasks := list(self._renewing.values()):
            await asyncio.wait(tasks, timeout=END_S)
            await end_all(tasks, END_S)

    async def _renew_all(self, listed: list[tuple[str, Renewal]]) -> None:
        for at in range(0, len(listed), AT_ONCE_MAX):
            await asyncio.gather(*(self._renew(client, one) for client, one in listed[at : at + AT_ONCE_MAX]))

    async def _renew(self, client: str, renewal: Renewal) -> None:
        own = self._clients.get(client)
        if own is None or own.get(_key(renewal.held)) is not renewal or renewal.changing is not None:
            # It was acknowledged, or given out anew, meanwhile.
            return
        renewal.changing = asyncio.get_running_loop().create_future()
        keep = False
        try:
            keep = await self._changed(renewal)
        except asyncio.CancelledError:
            keep = True
            raise
        except Exception as e:
            log.exception("a handle is not renewed any more: %s", e)
        finally:
            renewal.changing.set_result(None)
            renewal.changing = None
            if not keep:
                self._drop(client, own, renewal)

    async def _changed(self, renewal: Renewal) -> bool:
        """Change a message's time; tell whether it is to be renewed again."""
        s = self._settings
        if renewal.doubtful:
            return False
        if renewal.failures >= s.failures_max:
            log.warning("a handle could not be renewed %d times: the message comes again", renewal.failures)
            return False
        last = self._clock_ms() - renewal.since_ms >= s.longest_ms
        try:
            if last:
                wait_ms = await self._retry_wait(renewal.held.group, renewal.reconsume_times)
                if wait_ms is None:
                    return False
            else:
                wait_ms = STEPS_MS[min(renewal.renewed, len(STEPS_MS) - 1)]
            handle = await self._change(renewal.held, wait_ms)
        except (RocketSparkError, TimeoutError) as e:
            renewal.failures += 1
            # A broker that has no master for a moment is one that did not answer.
            return not last and not (isinstance(e, Refused) and e.code == Code.INVALID_RECEIPT_HANDLE)
        if handle is None:
            return False
        renewal.renew(handle)
        return not last


async def _settled(changing: asyncio.Future[None]) -> None:
    await asyncio.wait((changing,), timeout=CHANGE_S)
