"""The master's replication port and the connections of its slaves, which are sent the log as it grows.

Rules: an error ends the connection that it happened on and no other. A slave that does not read is not written to:
beyond a few frames the rest waits in the log.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from rocketspark.broker.replication.link.doors import Hall, MasterDoor
from rocketspark.broker.replication.link.links import MasterLink
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.broker.replication.waits import ReplicaWaits
from rocketspark.errors import ConfigError, FrameError, ReplicationError, StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.server_bounds import OF_PROCESS, Descriptors, host_of, place_of

log = LimitedLog("rocketspark.broker.replication")

CONNECTIONS_MAX = 64
# What may wait in this process for one slave, give or take a frame; the system's buffers come on top.
UNSENT_BYTES_MAX = 128 << 10

MakeLink = Callable[[float], MasterLink]


class HaConnection(asyncio.Protocol):
    """The connection of one slave. `link`: the state machine that knows how far it is and what to send."""

    def __init__(self, listener: HaListener, link: MasterLink) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.link = link
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._refusal_told = False
        self.address = ""
        self.is_open = False

    @property
    def host(self) -> str:
        """The slave's address without its port, which is another one each time."""
        return host_of(self.address)

    @property
    def place(self) -> str:
        """The address (or IPv6 network) under which this connection's host is counted."""
        return place_of(self.host)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the slave in, if there is room."""
        # uvloop's are of no class of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.address = _address(transport.get_extra_info("peername"))
        if not self._listener.let_in(self):
            transport.abort()
            return
        self.is_open = True
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._look_again()

    def data_received(self, data: bytes) -> None:
        """Take a slave's reports."""
        if not self.is_open:
            return
        try:
            told = self.link.received(data, self._loop.time())
        except (FrameError, ReplicationError) as e:
            self.end(e)
            return
        if self.link.refused is not None:
            self._tell_refusal()
        elif told:
            self._listener.reported(self)
        if self.is_open:
            self.push()

    def push(self) -> None:
        """Write frames until all is sent or the slave does not keep up."""
        transport = self._transport
        if not self.is_open or self._paused or transport is None:
            return
        now_s = self._loop.time()
        link = self.link
        try:
            # Writing may pause it.
            while not self._paused and (frame := link.next_frame(now_s)):
                transport.write(frame)
        except StoreError as e:
            self.end(e)
            return
        if link.refused is not None and not self._refusal_told:
            self._tell_refusal()
        if not self._paused:
            self._look_again()

    def _tell_refusal(self) -> None:
        if self._refusal_told or self.link.refused is None:
            return
        self._refusal_told = True
        self._listener.troubles.note(self.host, self.link.refused)
        self._listener.lost(self)

    def _look_again(self) -> None:
        if not self.is_open:
            return
        # The timer stands early rather than late: moving it at each frame would cost more than a look in vain.
        due_s = self.link.due_s()
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._set_timer(due_s)

    def _set_timer(self, at_s: float) -> None:
        # Kept beside it: a timer that is due at once is none for uvloop, and has no time.
        self._timer_s, self._timer = at_s, self._loop.call_at(at_s, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self.is_open:
            return
        try:
            self.link.check(self._loop.time())
        except ReplicationError as e:
            self.end(e)
            return
        if self._paused:
            # Nothing can be said before it reads on.
            self._set_timer(self.link.silence_due_s())
            return
        self.push()
        if self._timer is None:
            self._look_again()

    def pause_writing(self) -> None:
        """Stop writing: the slave does not read as fast as the log is sent."""
        self._paused = True

    def resume_writing(self) -> None:
        """Write again: the slave has read what was sent."""
        self._paused = False
        self.push()

    def eof_received(self) -> bool | None:
        """Close: a slave that sends no more cannot tell how far it is."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the slave."""
        self._closed()
        self._listener.gone(self)

    def end(self, error: Exception | None = None) -> None:
        """Close at once; `error` is what the operator is told."""
        if not self.is_open:
            return
        self._closed()
        if error is not None:
            self._listener.troubles.note(self.host, error)
        self._listener.lost(self)
        if self._transport is not None:
            self._transport.abort()

    def _closed(self) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HaListener:
    """Listens for slaves and sends them the log.

    Args: make_link: makes the state machine of a new connection, given the time. waits: the sends that wait for copies,
    told of every report. on_report: called with the connection after each report; on_lost: called when a connection
    ended. hall: keeps connections until they proved who they are; None where everybody may connect.
    """

    def __init__(
        self,
        make_link: MakeLink,
        troubles: Troubles,
        waits: ReplicaWaits,
        *,
        on_report: Callable[[HaConnection], None] | None = None,
        on_lost: Callable[[HaConnection], None] | None = None,
        connections_max: int = CONNECTIONS_MAX,
        descriptors: Descriptors = OF_PROCESS,
        hall: Hall | None = None,
    ) -> None:
        self._hall = hall
        if hall is not None:
            hall.takes = lambda: self.accepting
        self._make_link = make_link
        self.troubles = troubles
        self._waits = waits
        self.on_report = on_report
        self.on_lost = on_lost
        self._connections_max = connections_max
        self._descriptors = descriptors
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False
        # Those whose descriptor is taken: open, or on their way out.
        self._counted: set[HaConnection] = set()
        self.connections: list[HaConnection] = []
        # False on a broker that is no master: its port refuses.
        self.accepting = True
        self.refused_count = 0
        # The furthest that any slave ever was; it never falls, as RocketMQ's push2SlaveMaxOffset.
        self.furthest_acked = 0
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` and `port` (0 takes a free one). Raises ConfigError if the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        if self._hall is not None:
            self._hall.start(host)
        try:
            self._server = await self._loop.create_server(self._knocked, host, port, backlog=16)
        except OSError as e:
            if e.errno == errno.EADDRINUSE or "in use" in str(e):
                raise ConfigError(
                    f"port {port} on {host}, for replication, is in use: set haListenPort to another"
                ) from None
            raise ConfigError(
                f"cannot listen on {host}:{port} for replication: {e.strerror or e}; check haBindAddress, haListenPort"
            ) from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    def _knocked(self) -> asyncio.Protocol:
        return self._connection() if self._hall is None else MasterDoor(self._hall, self._connection)

    def _connection(self) -> HaConnection:
        assert self._loop is not None
        return HaConnection(self, self._make_link(self._loop.time()))

    def let_in(self, connection: HaConnection) -> bool:
        """Count a new connection; return False if it must be closed."""
        why = ""
        if not self.accepting:
            why = "this broker is no master"
        elif (
            len(self.connections) >= self._connections_max and not self._made_room(connection)
        ) or not self._descriptors.take():
            why = "there are too many connections already"
        if why:
            self.refused_count += 1
            log.warning("replication to %s refused: %s", connection.address, why)
            return False
        self._counted.add(connection)
        self.connections.append(connection)
        log.info("%s connected for replication", connection.address)
        return True

    def _made_room(self, newest: HaConnection) -> bool:
        """Make one leave that lacks some of the log, the most of it, of the host that has most; False if none should.

        Strangers that hold all places, and say what a replica says, so keep out no replica, which reads what is sent.
        """
        counts = Counter(connection.place for connection in self.connections)
        lacking = [c for c in self.connections if c.link.lacks and counts[c.place] >= counts[newest.place]]
        least = max(lacking, key=lambda c: (counts[c.place], c.link.lacks), default=None)
        if least is None:
            return False
        log.warning("%s makes room for another: it holds least, and all places are taken", least.address)
        least.end()
        return True

    def wake(self) -> None:
        """Send the log, which has grown. It costs little; several calls in one turn of the loop count as one."""
        if self.connections and not self._woken:
            self._woken = True
            assert self._loop is not None
            self._loop.call_soon(self._push)

    def _push(self) -> None:
        self._woken = False
        for connection in self.connections.copy():
            connection.push()

    def reported(self, connection: HaConnection) -> None:
        """Take the report of a slave: waiting sends and the in-sync set hear of it."""
        link = connection.link
        if link.acked < 0:
            return
        if link.replica_id is not None:
            for other in [c for c in self.connections if c is not connection and c.link.replica_id == link.replica_id]:
                log.info("slave %d is connected anew from %s", link.replica_id, connection.address)
                other.end()
        self.troubles.ended(connection.host)
        self.furthest_acked = max(self.furthest_acked, link.acked)
        self._waits.acked(connection, link.acked, link.replica_id)
        if self.on_report:
            self.on_report(connection)

    def lost(self, connection: HaConnection) -> None:
        """Stop counting a slave, because its connection ends or its log does not fit."""
        self._waits.left(connection)
        if not connection.is_open and connection in self.connections:
            self.connections.remove(connection)
        if self.on_lost:
            self.on_lost(connection)

    def gone(self, connection: HaConnection) -> None:
        """Forget a connection that is closed, and give its file descriptor back."""
        if connection not in self._counted:
            return
        self._counted.remove(connection)
        self._descriptors.give_back()
        if connection in self.connections:
            log.info("%s left replication", connection.address)
            self.lost(connection)

    def in_sync_count(self, end_position: int, heard_since_s: float = 0.0) -> int:
        """Return how many slaves are close to a log's end, and sent something since a time (of the loop, in s)."""
        links = (connection.link for connection in self.connections)
        return sum(link.last_read_s >= heard_since_s and link.is_in_sync(end_position) for link in links)

    def end_connections(self) -> None:
        """Close all of them, as when this broker's role changes."""
        for connection in self.connections.copy():
            connection.end()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self.accepting = False
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._hall is not None:
            self._hall.close()
        self.end_connections()


def _address(name: Any) -> str:
    if not isinstance(name, tuple) or len(name) < 2:
        return "unknown:0"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
