"""The clients of this proxy: what each told of itself, and the stream on which it is asked.

Rule: a client is there from its settings until it says that it ends, its streams have ended for `grace_s`, or nothing
was heard of it for `client_idle_ms`; who listens is told once that it is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.calls.call import Call
from rocketspark.proxy.calls.statuses import Refused
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import ClientType, Code

log = LimitedLog("rocketspark.proxy")

PUSH_CONSUMERS = frozenset((ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER))
CONSUMERS = PUSH_CONSUMERS | {ClientType.SIMPLE_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER}
# A client that lost its stream may open it anew this long before it counts as gone.
GRACE_S = 1.0


class Stream(Protocol):
    """An open telemetry stream of a client."""

    async def send(self, command: Any) -> bool:
        """Send a TelemetryCommand; False if the stream has ended."""

    async def ask(self, command: Any, kind: str, nonce: str, timeout_s: float) -> Any:
        """Send a command and return the client's TelemetryCommand of a kind with that nonce. Raises TimeoutError."""


class ProxyClient:
    """One client. `settings`: as merged and told to it; `topics`: those it publishes; `group`: that it consumes in;
    `began_ms`, `told_ms`: when it told its settings first and last.
    """

    def __init__(self, client_id: str, language: str, version: str, address: str) -> None:
        self.client_id = client_id
        self.language, self.version, self.address = language, version, address
        self.user = ""
        self.settings: Any = messages.Settings()
        self.topics: set[str] = set()
        self.group = ""
        self.streams: list[Stream] = []
        self.heard_s = 0.0
        self.began_ms = self.told_ms = int(time.time() * 1000)

    @property
    def is_consumer(self) -> bool:
        """True if it consumes."""
        return self.settings.client_type in CONSUMERS

    @property
    def is_push_consumer(self) -> bool:
        """True if it hands its messages to a listener."""
        return self.settings.client_type in PUSH_CONSUMERS


async def anybody(client: ProxyClient, topic: str, action: str) -> bool:
    """Let every client be sent the messages of every topic, as without access control."""
    return True


# Gets the client that is gone.
Gone = Callable[[ProxyClient], Awaitable[None]]


class Clients:
    """The table of clients by id. `idle_s`: how long a client may be silent.

    `may_be_sent`: asked, with what he needs on its topic, before a client is sent a message that he did not ask for.
    """

    def __init__(self, idle_s: float, grace_s: float = GRACE_S) -> None:
        self._idle_s, self._grace_s = idle_s, grace_s
        self._clients: dict[str, ProxyClient] = {}
        self.may_be_sent: Callable[[ProxyClient, str, str], Awaitable[bool]] = anybody
        self._gone: list[Gone] = []
        self._told_settings: list[Callable[[ProxyClient], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def when_gone(self, act: Gone) -> None:
        """Have `act` told of every client that is gone."""
        self._gone.append(act)

    def when_told(self, act: Callable[[ProxyClient], None]) -> None:
        """Have `act` told whenever a client has told its settings."""
        self._told_settings.append(act)

    def get(self, client_id: str) -> ProxyClient | None:
        """Return the client of that id, if it is there."""
        return self._clients.get(client_id)

    def of(self, call: Call) -> ProxyClient:
        """Return the client that calls. Raises Refused if it has not told its settings."""
        client = self._clients.get(call.client_id)
        if client is None:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "this client has not told its settings yet: telemetry first")
        return client

    def all(self) -> list[ProxyClient]:
        """Return all clients."""
        return list(self._clients.values())

    def producers_of(self, topic: str) -> list[ProxyClient]:
        """Return the clients with a stream that publish a topic."""
        return [c for c in self._clients.values() if topic in c.topics and c.streams]

    def put(self, call: Call, settings: Any) -> ProxyClient:
        """Keep what a client told of itself. Raises Refused for a client id that another user has taken meanwhile."""
        client_id = call.client_id
        client = self._clients.get(client_id)
        if client is not None and client.user != call.user:
            raise Refused(Code.UNAUTHORIZED, "this client id is another user's: choose an own one")
        if client is None:
            client = ProxyClient(client_id, call.language, call.version, call.remote_address)
            client.user = call.user
            self._clients[client_id] = client
        client.settings = settings
        client.told_ms = max(int(time.time() * 1000), client.told_ms + 1)
        if settings.HasField("publishing"):
            client.topics = {topic.name for topic in settings.publishing.topics}
        if settings.HasField("subscription"):
            client.group = settings.subscription.group.name
        self.heard(client)
        for act in self._told_settings:
            act(client)
        return client

    def heard(self, client: ProxyClient) -> None:
        """Note that the client lives."""
        client.heard_s = asyncio.get_running_loop().time()

    def stream_ended(self, client: ProxyClient, stream: Stream) -> None:
        """Take a stream out; if it was the client's last, the client is gone unless it opens another one soon."""
        if stream in client.streams:
            client.streams.remove(stream)
        if not client.streams:
            asyncio.get_running_loop().call_later(self._grace_s, self._end_if_silent, client)

    def _end_if_silent(self, client: ProxyClient) -> None:
        if not client.streams:
            self.end(client)

    def end(self, client: ProxyClient) -> None:
        """Take a client out, and tell."""
        if self._clients.get(client.client_id) is not client:
            return
        del self._clients[client.client_id]
        for act in self._gone:
            task = asyncio.ensure_future(act(client))
            self._tasks.add(task)
            task.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what was to be done for a client that is gone failed: %s", error)

    def expire(self) -> None:
        """Take out clients that are silent for too long."""
        now_s = asyncio.get_running_loop().time()
        for client in self.all():
            if now_s - client.heard_s > self._idle_s:
                log.info("client %s is silent: dropped", client.client_id)
                self.end(client)
