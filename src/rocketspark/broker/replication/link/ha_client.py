"""The slave's connection to its master: it is made, and made again when it is lost.

What comes over it, and where a slave cuts its log to its master's, is decided in `links`.

Rule: a loss is tried again soon, what does not fit after a long pause, a new address at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from rocketspark.broker.replication.link.doors import Connect
from rocketspark.broker.replication.link.links import LinkState, SlaveLink
from rocketspark.broker.replication.link.troubles import Troubles, reason_of
from rocketspark.errors import ConfigError, FrameError, ReplicationError, StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.connections import parse_address
from rocketspark.transport.dialing import connect_protocol
from rocketspark.transport.shared_task import end_tasks

log = LimitedLog("rocketspark.broker.replication")

# RocketMQ waits 5 s.
RETRY_S = 1.0
# After what another try will hardly mend.
TROUBLE_PAUSE_S = 60.0
CONNECT_TIMEOUT_S = 5.0
# A connection that was left is closed then at the latest: a master that was replaced has heard of it.
LEFT_OPEN_S = 5.0
# A master that takes office refuses until it has; a disk that is full here soon has room again, as old files go.
PASSING = frozenset({"closed", "store"})
PASSING_PAUSE_S_MAX, PASSING_COUNT_MAX = 10.0, 10

MakeLink = Callable[[float], SlaveLink]


async def anybody(address: str) -> None:
    """Accept any master as the right one."""


class _Connection(asyncio.Protocol):
    """One connection to the master; `ended` is set with why, None for a plain loss. `hung_up`: the master ended it."""

    def __init__(self, client: HaClient, link: SlaveLink) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.link = link
        self.ended: asyncio.Future[Exception | None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._left = False
        self.hung_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are of no class of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        if self.ended.done():
            transport.abort()
            return
        transport.write(self.link.hello(self._loop.time()))
        self._look_again()

    def data_received(self, data: bytes) -> None:
        if self.ended.done() or self._transport is None:
            return
        before_fit = self.link.fits
        try:
            answer = self.link.received(data, self._loop.time())
        except (FrameError, ReplicationError, StoreError) as e:
            self.end(e)
        else:
            if answer:
                self._transport.write(answer)
        if self.link.fits and not before_fit:
            self._client.fitted()
        # After this turn, so that the report leaves before the records are looked at.
        self._client.appended_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.hung_up = not self.ended.done()
        self.end(None)

    def _look_again(self) -> None:
        self._timer = self._loop.call_at(self.link.due_s(), self._due)

    def _due(self) -> None:
        if self.ended.done() or self._transport is None:
            return
        try:
            answer = self.link.check(self._loop.time())
        except ReplicationError as e:
            self.end(e)
            return
        if answer:
            self._transport.write(answer)
        self._look_again()

    def leave(self) -> None:
        """Send and take nothing more; the connection stays open for a while, for the master to close."""
        if not self.ended.done():
            self._left = True
            self.end(None)
            self._loop.call_later(LEFT_OPEN_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def end(self, error: Exception | None) -> None:
        """Close at once, unless it is left to the master to do so."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(error)
        if not self._left:
            self._abort()


class HaClient:
    """A slave's link to its master, whose address may change (`set_address`).

    Args: make_link: makes the state machine of a new connection, given the time. on_appended: called after bytes were
    appended, once a turn of the loop. check: called with an address before each connection; raises ReplicationError for
    the master of another name. connect: connects a protocol to a host and port; raises OSError, or ReplicationError for
    a stranger. retry_s, trouble_pause_s: seconds between attempts, the latter after trouble that will last.
    """

    def __init__(
        self,
        make_link: MakeLink,
        troubles: Troubles,
        *,
        on_appended: Callable[[], None],
        check: Callable[[str], Awaitable[None]] = anybody,
        connect: Connect = connect_protocol,
        retry_s: float = RETRY_S,
        trouble_pause_s: float = TROUBLE_PAUSE_S,
    ) -> None:
        self._make_link = make_link
        self._troubles = troubles
        self._on_appended = on_appended
        self._check = check
        self._connect = connect
        self._retry_s = retry_s
        self._trouble_pause_s = trouble_pause_s
        self.address: str | None = None
        self.connects_count = 0
        self._changed = asyncio.Event()
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._appended_due = False
        self._passing_count = 0

    @property
    def link(self) -> SlaveLink | None:
        """The state machine of the open connection, None without one."""
        connection = self._connection
        return None if connection is None or connection.ended.done() else connection.link

    @property
    def state(self) -> LinkState:
        """How far the link is: LinkState.READY without a connection."""
        link = self.link
        return LinkState.READY if link is None else link.state

    def start(self) -> None:
        """Begin to connect; without an address, once one is set."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def set_address(self, address: str | None) -> None:
        """Copy from this master ("host:port" of its replication) from now on; None ends copying for a while."""
        if address == self.address:
            return
        self.address = address
        self._changed.set()
        if self._connection is not None:
            self._connection.end(None)

    async def drained(self, limit_s: float) -> None:
        """Wait until the master closes the link, at most `limit_s` seconds; return at once without a link."""
        if self.state is LinkState.TRANSFER and self._connection is not None:
            await asyncio.wait([self._connection.ended], timeout=limit_s)

    def leave(self) -> None:
        """Stop copying, but leave the connection open for the master to close; after LEFT_OPEN_S it is closed here."""
        self.address = None
        self._changed.set()
        if self._connection is not None:
            self._connection.leave()

    async def close(self) -> None:
        """End the connection and stop."""
        self.address = None
        if self._connection is not None:
            self._connection.end(None)
        await end_tasks(self._task)
        self._task = None

    async def _run(self) -> None:
        while True:
            address = self.address
            self._changed.clear()
            if address is None:
                await self._changed.wait()
                continue
            error: Exception | None
            try:
                error = await self._copy_from(address)
            except Exception as e:
                # Whatever it was, a full disk while damage is mended, say: who gave up would copy nothing for ever.
                log.exception("replication with %s failed, tried again", address)
                error = e
            if error is not None and self.address == address:
                self._troubles.note(address, error)
            pause_s = self._pause_after(error)
            try:
                await asyncio.wait_for(self._changed.wait(), pause_s)
            except TimeoutError:
                pass

    async def _copy_from(self, address: str) -> Exception | None:
        """Connect to a master and copy its log until the connection ends. Returns the error that keeps this broker from
        copying, None if it may simply try again.
        """
        loop = asyncio.get_running_loop()
        try:
            host, port = parse_address(address)
            await self._check(address)
        except (ConfigError, StoreError) as e:
            return e
        except Exception:
            # A mistake here must not end the copying for good.
            log.exception("the master at %s could not be looked at before its log is copied; tried again", address)
            return None
        if self.address != address:
            return None
        link = self._make_link(loop.time())
        connection = self._connection = _Connection(self, link)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connect(lambda: connection, host, port)
        except ReplicationError as e:
            self._connection = None
            return e
        except (OSError, TimeoutError) as e:
            self._connection = None
            log.info("the master's replication at %s cannot be reached, tried again: %s", address, e)
            return None
        self.connects_count += 1
        try:
            error = await connection.ended
        finally:
            connection.end(None)
            self._connection = None
        if connection.hung_up and not link.received_bytes:
            return ReplicationError(
                "the master ended the connection without a word: it is no master, has access control, which this broker"
                " needs then too, with its innerClientAuthenticationCredentials, or speaks the other protocol"
                " (enableControllerMode on one side alone)",
                reason="closed",
            )
        return error

    def _pause_after(self, error: Exception | None) -> float:
        reason = reason_of(error) if error is not None else ""
        # Bounded: no float holds the power of a night of tries.
        self._passing_count = min(self._passing_count + 1, PASSING_COUNT_MAX) if reason in PASSING else 0
        if reason in PASSING:
            return float(min(self._retry_s * 2**self._passing_count, PASSING_PAUSE_S_MAX))
        if reason == "stalled":
            return 0.0
        return self._trouble_pause_s if reason else self._retry_s

    def again(self) -> None:
        """Connect again, so that the handshake tells the master what has changed at this slave."""
        self._changed.set()
        if self._connection is not None:
            self._connection.end(None)

    def retry(self) -> None:
        """Connect now, without the pause, because there is news of the master."""
        self._changed.set()

    def fitted(self) -> None:
        """Note that the master's log continues this one, so that earlier trouble with this master is over."""
        if self.address is not None:
            self._troubles.ended(self.address)

    def appended_soon(self) -> None:
        """Have `on_appended` called in the next turn of the loop."""
        if not self._appended_due:
            self._appended_due = True
            asyncio.get_running_loop().call_soon(self._appended)

    def _appended(self) -> None:
        self._appended_due = False
        self._on_appended()
