"""What the answer to a stored message waits for: the disk, other brokers' copies, or neither.

Rule: both waits run side by side, each has its own deadline, and the copies' outcome is told if both fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rocketspark.broker.replication.replica_waits import (
    NOBODY,
    NOT_ENOUGH,
    NOT_ENOUGH_TEXT,
    Mode,
    ReplicaWaits,
    acks_wanted,
    in_sync_members,
)
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.flush import FlushService
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.frames import ONEWAY_FLAG
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer


class InSync(Protocol):
    """Who holds copies now."""

    def in_sync_slaves(self) -> int:
        """Return how many slaves are connected and close to the log's end."""

    def heard_slaves(self) -> int:
        """Return how many of these were heard of lately."""

    def alive_members(self) -> int:
        """Return how many brokers of the name are alive for a NameServer, this one among them."""

    def sync_set_size(self) -> int:
        """Return the size of the controller's in-sync set, with all that was asked for and not answered."""


class Durability:
    """Decides and waits. `needed`: some answers wait, so that handlers ask; it follows settings and role."""

    def __init__(
        self, settings: BrokerSettings, flush_service: FlushService, waits: ReplicaWaits, role: BrokerRole
    ) -> None:
        self._settings = settings
        self._flush_service = flush_service
        self._waits = waits
        self._role = role
        self.mode = Mode.CLASSIC
        self.in_sync: InSync | None = None
        self.flushes = settings.sync_flush
        self.replicates = False
        self.needed = False
        self.changed: Callable[[], None] = lambda: None
        # Called when a message waits for copies: the log has grown.
        self.wake: Callable[[], None] = lambda: None
        self.refresh()

    def refresh(self) -> None:
        """Follow a change of settings or role."""
        s = self._settings
        self.flushes = s.sync_flush
        self.replicates = self._role.is_sync_master and (
            s.in_sync_replicas > 1
            or (self.mode is Mode.CONTROLLER and (s.all_ack_in_sync_set or s.in_sync_replicas_min > 1))
            or (self.mode is Mode.ACTING_MASTER and s.auto_in_sync_replicas and s.in_sync_replicas_min > 1)
        )
        needed = self.flushes or self.replicates
        if needed != self.needed:
            self.needed = needed
            self.changed()

    def wanted(self) -> int:
        """Return how many copies a message needs whose answer waits: see `acks_wanted`."""
        if not self.replicates or self.in_sync is None:
            return NOBODY
        found, mode = self.in_sync, self.mode
        in_sync_count = sync_set_size = 0
        if mode is Mode.ACTING_MASTER:
            in_sync_count = in_sync_members(found.alive_members(), found.in_sync_slaves(), found.heard_slaves())
        elif mode is Mode.CONTROLLER:
            sync_set_size = found.sync_set_size()
        return acks_wanted(self._settings, mode, in_sync_count=in_sync_count, sync_set_size=sync_set_size)

    def check(self) -> None:
        """Raise ServerError 1 if a message that waits for copies cannot have as many: nothing is stored then."""
        if self.replicates and self.wanted() == NOT_ENOUGH:
            raise ServerError(ResponseCode.SYSTEM_ERROR, NOT_ENOUGH_TEXT)

    def reply_when_durable(
        self, peer: Peer, request: Request[Any], position: int, reply_of: Callable[[int], bytes]
    ) -> None:
        """Answer a request by `reply_of(code)` once what it stored, up to `position`, is as durable as it should be."""
        wanted = self.wanted()
        if request.flag & ONEWAY_FLAG:
            self.wake()
            if self.flushes:
                self._flush_service.reached(position, lambda done: None)
            return
        peer.promise()
        self.when_durable(position, wanted, lambda code: peer.answer(reply_of(code)))

    def when_durable(self, position: int, wanted: int, tell: Callable[[int], None], count: int = 1) -> None:
        """Call `tell(code)` once the log up to `position` is as durable as `wanted` and the settings say, or too late.

        `count`: of the messages whose answers wait for it together.
        """
        if wanted == NOT_ENOUGH:
            # Stored before that was known: it waits for the copies that are promised, and is late without them.
            wanted = max(self._settings.in_sync_replicas, self._settings.in_sync_replicas_min, 2)
        if wanted == NOBODY:
            if self.flushes:
                self._flush_service.reached(position, _told(tell, ResponseCode.FLUSH_DISK_TIMEOUT), count)
            else:
                tell(ResponseCode.SUCCESS)
            return
        self.wake()
        if not self.flushes:
            self._waits.reached(position, wanted, _told(tell, ResponseCode.FLUSH_SLAVE_TIMEOUT), count)
            return
        both = _Both(tell)
        self._flush_service.reached(position, both.flushed, count)
        self._waits.reached(position, wanted, both.replicated, count)


def _told(tell: Callable[[int], None], too_late: int) -> Callable[[bool], None]:
    return lambda done: tell(ResponseCode.SUCCESS if done else too_late)


class _Both:
    """An answer that waits for the disk and for copies."""

    __slots__ = ("_flushed", "_replicated", "_tell")

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._flushed: bool | None = None
        self._replicated: bool | None = None

    def flushed(self, done: bool) -> None:
        self._flushed = done
        self._answer()

    def replicated(self, done: bool) -> None:
        self._replicated = done
        self._answer()

    def _answer(self) -> None:
        if self._flushed is None or self._replicated is None:
            return
        code = ResponseCode.SUCCESS
        if not self._replicated:
            code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        elif not self._flushed:
            code = ResponseCode.FLUSH_DISK_TIMEOUT
        self._tell(code)
