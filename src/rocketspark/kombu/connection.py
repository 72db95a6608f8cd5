"""The transport: connections of kombu, and how what arrives wakes its event loop.

Rule: what arrives on the clients' loop is delivered by the thread that drains or runs the event loop, in the order in
which it arrived; that thread waits for a file descriptor, never in a loop of questions.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from time import monotonic
from typing import Any

from kombu.transport import virtual

import rocketspark
from rocketspark.errors import SendFailed, ServerError, StateError, TransportError
from rocketspark.kombu.channel import Channel
from rocketspark.kombu.options import PORT, settings_of
from rocketspark.kombu.reader import Read
from rocketspark.kombu.source import Popped

WAIT_S_MAX = 3600.0


class Inbox:
    """Messages that arrived for the channels of a connection."""

    def __init__(self) -> None:
        self._items: deque[tuple[Channel, str, Popped | Read]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._write_fd = self._writer.fileno()
        self._told = False

    def fileno(self) -> int:
        """Return the descriptor that can be read when something has arrived."""
        return self._reader.fileno()

    def put(self, channel: Channel, queue: str, item: Popped | Read) -> None:
        """Add a message, and wake who waits; on the clients' loop."""
        self._items.append((channel, queue, item))
        self.wake()

    def take(self) -> tuple[Channel, str, Popped | Read] | None:
        """Return the next message, None if there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def withdraw(self, channel: Channel, queue: str) -> list[Popped | Read]:
        """Take all messages of a channel's queue out that are not delivered."""
        own = [each for each in list(self._items) if each[0] is channel and each[1] == queue]
        for each in own:
            self._items.remove(each)
        return [item for _, _, item in own]

    def wake(self) -> None:
        """Let the descriptor be readable if something is here: what was read of it may stand for more messages."""
        if self._items and not self._told:
            self._told = True
            # Not by the socket: gevent's belong to a thread.
            with contextlib.suppress(OSError):
                os.write(self._write_fd, b"\0")

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, or the time is over."""
        self._reader.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self._reader.recv(4096)
        self._told = False

    def close(self) -> None:
        """Close the descriptors."""
        self._write_fd = -1
        self._reader.close()
        self._writer.close()


class Transport(virtual.Transport):
    """kombu's transport for RocketMQ. Raises OptionIllegal for options that there are not."""

    Channel = Channel
    default_port: Any = PORT
    polling_interval: Any = None
    driver_type = "rocketmq"
    driver_name = "rocketspark"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors: Any = (*virtual.Transport.connection_errors, TransportError, SendFailed, ServerError, OSError)
    channel_errors: Any = (*virtual.Transport.channel_errors, StateError)
    # Without these names kombu gives a send up that fails once more after it has connected anew, as servers start.
    recoverable_connection_errors: Any = connection_errors + channel_errors
    recoverable_channel_errors: Any = ()

    def __init__(self, client: Any, **more: Any) -> None:
        self.settings = settings_of(client)
        super().__init__(client, **more)
        self.inbox = Inbox()
        self._hub: Any = None

    def driver_version(self) -> str:
        """Return this project's version."""
        return rocketspark.__version__

    def establish_connection(self) -> Any:
        """Connect. Raises NotSent if no NameServer answers, or it knows no broker."""
        connection = super().establish_connection()
        try:
            self._avail_channels[-1].cluster.check()
        except BaseException:
            self._avail_channels.pop().close()
            raise
        return connection

    def close_connection(self, connection: Any) -> None:
        """Close all channels: what they hold is given back."""
        if self._hub is not None:
            self._hub.remove(self.inbox.fileno())
            self._hub = None
        super().close_connection(connection)
        self.inbox.close()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver by Celery's event loop what arrives."""
        self._hub = loop
        loop.add_reader(self.inbox.fileno(), self.on_readable, self.inbox.fileno())

    def on_readable(self, connection: Any, loop: Any = None) -> None:
        """Deliver all that has arrived."""
        self.inbox.wait(0)
        try:
            while self._deliver_next():
                pass
        finally:
            # What is left, as a consumer raised, is delivered all the same.
            self.inbox.wake()

    def _deliver_next(self) -> bool:
        """Deliver one message. Returns False if there is none."""
        while (arrived := self.inbox.take()) is not None:
            channel, queue, item = arrived
            if channel.deliver(queue, item):
                return True
        return False

    def drain_events(self, connection: Any, timeout: float | None = None, **more: Any) -> None:
        """Deliver the next message. Raises socket.timeout if none comes in `timeout` seconds."""
        end_s = monotonic() + (WAIT_S_MAX if timeout is None else timeout)
        while not self._deliver_next():
            left_s = end_s - monotonic()
            if left_s <= 0 and timeout is not None:
                raise TimeoutError
            self.inbox.wait(max(left_s, 0.001))
        if self._hub is not None:
            self.inbox.wake()
