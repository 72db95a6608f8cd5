"""The clients of this proxy: what each told of itself, and the telemetry streams on which they tell it and are asked.

Rule: a client is there from its settings, or its first call that names its group, until it says that it ends, its
streams, receives and connections have ended for `grace_s`, or nothing was heard of it for `client_idle_ms`; who listens
is told once that it is gone. One that is heard again while its stream is still open is there again as it was. No call
needs settings: a client that came to another proxy, or whose proxy was started again, tells them minutes later; until
then what its calls say stands for them. The first command of a stream is settings, which are merged and sent back;
whatever else a client sets of its own comes back as it was.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rocketspark import machine
from rocketspark.client.callbacks import Tasks
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.subscription import newer_version
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.proxy.brokers import Brokers, attempts_max, exponential, waits_ms
from rocketspark.proxy.call import WRITE_S, Call
from rocketspark.proxy.checks import (
    TOPICS_MAX,
    Shares,
    check_bound_topic,
    check_lite_group,
    checked_group,
    checked_topic,
    lite_quota,
)
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import AddressScheme, ClientType, Code
from rocketspark.proxy.wire.statuses import Refused, status

log = LimitedLog("rocketspark.proxy")

PUSH_CONSUMERS = frozenset((ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER))
LITE_CONSUMERS = frozenset((ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER))
CONSUMERS = PUSH_CONSUMERS | LITE_CONSUMERS | {ClientType.SIMPLE_CONSUMER}
# A client that lost its stream and connections may open them anew this long before it counts as gone: the official ones
# of Java, Python and Node are back 1.0 to 1.4 s after a connection that broke, and their listeners work on meanwhile.
GRACE_S = 5.0
# The request time-out of the official clients, for those that have not told theirs.
REQUEST_S = 3
# What is kept of all clients: so much of each beside its id, of a topic beside its name.
KEPT_BYTES_MAX = 64 << 20
CLIENT_BYTES = 3 << 10
TOPIC_BYTES = 200
HOSTNAME_MAX = 256
# Characters of what it says that it is written in, and of its release.
SAID_MAX = 64
# Of commands that wait for one client to read those before; they may hold messages.
WAITING_BYTES_MAX = 32 << 20
# So long after its end a stream may still turn out to have been reset.
RESET_S = 0.05


class TelemetryStream:
    """One open telemetry stream. A command that waits for the client's answer is found by its kind and nonce."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._waiting_bytes = 0
        self._asked: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self.is_open = True

    async def send(self, command: Any) -> bool:
        """Send a TelemetryCommand; False if the stream has ended, or its client does not read."""
        size = command.ByteSize()
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            return False
        self._waiting_bytes += size
        try:
            async with self._lock:
                if self.is_open:
                    async with asyncio.timeout(WRITE_S):
                        await self._context.write(command)
        except Exception:
            # gRPC has several errors for a stream that is gone.
            self.is_open = False
        finally:
            self._waiting_bytes -= size
        return self.is_open

    async def ask(self, command: Any, kind: str, nonce: str, timeout_s: float) -> Any:
        """Send a command and return the client's TelemetryCommand of a kind with that nonce. Raises TimeoutError."""
        future = self._asked[kind, nonce] = asyncio.get_running_loop().create_future()
        try:
            # One that reads no more holds up the sending too.
            async with asyncio.timeout(timeout_s):
                if not await asyncio.shield(self.send(command)):
                    raise TimeoutError("the client's stream has ended")
                return await future
        finally:
            self._asked.pop((kind, nonce), None)

    def answered(self, command: Any) -> None:
        """Hand a client's answer to the caller of `ask` that waits for it."""
        kind = command.WhichOneof("command") or ""
        nonce = getattr(getattr(command, kind, None), "nonce", "")
        future = self._asked.get((kind, nonce))
        if future is not None and not future.done():
            future.set_result(command)

    def end(self) -> None:
        """End the stream: a caller of `ask` that waits for an answer gets a TimeoutError."""
        self.is_open = False
        for future in self._asked.values():
            if not future.done():
                future.set_exception(TimeoutError("the client's stream has ended"))


class ProxyClient:
    """One client of the proxy, as it described itself.

    `identity`: its user and client id; `settings`: the used part of the settings that it told; until it `has_told` any,
    they are made of what its calls say. `kept_bytes`: how much memory is counted for it; `topics`: those that it
    publishes to; `group`: the group that it consumes in; `connections`: the addresses that its calls came from;
    `began_ms`: when it was first seen; `told_ms`: when its settings last changed; `lite_parent`: the topic whose lite
    topics it subscribed to, "" for none.
    """

    def __init__(self, call: Call) -> None:
        self.identity, self.client_id, self.user = call.identity, call.client_id, call.user
        self.language, self.version = call.language[:SAID_MAX], call.version[:SAID_MAX]
        self.address = call.remote_address
        self.settings: Any = messages.Settings()
        self.has_told = False
        # Its id stands in its identity too, which is made anew for tables.
        self.least_bytes = CLIENT_BYTES + 3 * len(call.identity)
        self.kept_bytes, self.host = 0, call.remote_host
        self.topics: set[str] = set()
        self.group = self.lite_parent = ""
        self.streams: list[TelemetryStream] = []
        self.connections: set[str] = set()
        # Receives at work.
        self.receiving = 0
        # Set while it has lost all of these.
        self.ending: asyncio.TimerHandle | None = None
        self.heard_s = 0.0
        self.began_ms = self.told_ms = int(machine.time() * 1000)

    @property
    def is_connected(self) -> bool:
        """True while the client has a telemetry stream, a ReceiveMessage at work, or a connection."""
        return bool(self.streams or self.receiving or self.connections)

    @property
    def is_consumer(self) -> bool:
        """True if the client said that it is a consumer."""
        return self.settings.client_type in CONSUMERS

    @property
    def is_lite_consumer(self) -> bool:
        """True if the client said that it reads lite topics, or subscribed to some."""
        return bool(self.lite_parent) or self.settings.client_type in LITE_CONSUMERS

    @property
    def is_push_consumer(self) -> bool:
        """True if the client said that it is a push consumer, which hands its messages to a listener."""
        return self.settings.client_type in PUSH_CONSUMERS


async def anybody(client: ProxyClient, topic: str, action: str) -> bool:
    """Tell that a client may be sent anything: the value of `Clients.may_be_sent` without access control."""
    return True


# Gets the client that is gone.
Gone = Callable[[ProxyClient], Coroutine[Any, Any, None]]


class Clients:
    """The table of clients by identity. `idle_s`: a client that is silent for longer is taken out.

    `may_be_sent(client, topic, action)` is asked before the proxy sends a client something that it did not ask for.
    `action` is what the client needs to be allowed on the topic; for a question about the client's group the topic is
    empty.
    """

    def __init__(self, idle_s: float, grace_s: float = GRACE_S) -> None:
        self._idle_s, self._grace_s = idle_s, grace_s
        self.kept = Shares(KEPT_BYTES_MAX, "as much is kept of clients as the proxy takes")
        self._clients: dict[str, ProxyClient] = {}
        # Those that were taken out while they had a stream, which holds what they told: it counts until that ends.
        self._silent: dict[str, ProxyClient] = {}
        self.may_be_sent: Callable[[ProxyClient, str, str], Awaitable[bool]] = anybody
        self._at: dict[str, set[ProxyClient]] = {}
        self._gone: list[Gone] = []
        self._told_settings: list[Callable[[ProxyClient], None]] = []
        self._tasks = Tasks()

    def when_gone(self, act: Gone) -> None:
        """Have `act` called with each client that is taken out of the table."""
        self._gone.append(act)

    def when_told(self, act: Callable[[ProxyClient], None]) -> None:
        """Have `act` called with a client whenever it has sent its settings, or a call shows something new about it."""
        self._told_settings.append(act)

    def get(self, identity: str) -> ProxyClient | None:
        """Return the client of that identity, if it is there."""
        return self._clients.get(identity)

    def of_group(self, client_id: str, group: str) -> ProxyClient | None:
        """Return a member of a group by its client id alone, as brokers know it."""
        return next((c for c in self._clients.values() if c.client_id == client_id and c.group == group), None)

    def all(self) -> list[ProxyClient]:
        """Return all clients."""
        return list(self._clients.values())

    def producers_of(self, topic: str) -> list[ProxyClient]:
        """Return the clients with a stream that publish a topic."""
        return [c for c in self._clients.values() if topic in c.topics and c.streams]

    def put(self, call: Call, settings: Any) -> ProxyClient:
        """Keep the settings that a client told by its call; returns the client. Raises Refused if clients take too much
        memory.
        """
        client = self._of(call)
        # What he is sent goes to the stream that told last.
        client.address = call.remote_address
        topics = {sys.intern(topic.name) for topic in settings.publishing.topics}
        self._keep(client, _used(settings), topics)
        client.has_told = True
        if settings.HasField("publishing"):
            client.topics = topics
        if settings.HasField("subscription"):
            client.group = settings.subscription.group.name
        self._tell(client)
        return client

    def _keep(self, client: ProxyClient, settings: Any, topics: Collection[str] = ()) -> None:
        """Keep a client's settings. Raises Refused if those of all are too large then."""
        count = len(topics) + len(settings.subscription.subscriptions)
        size = client.least_bytes + settings.ByteSize() + sum(map(len, topics)) + TOPIC_BYTES * count
        try:
            self.kept.take(client.host, size - client.kept_bytes)
        except Refused:
            self.end(client)
            raise
        client.kept_bytes, client.settings = size, settings

    @contextmanager
    def holding(self, client: ProxyClient, size: int) -> Iterator[None]:
        """While the block runs, count `size` bytes that are on their way to a client as memory that it uses. Raises
        Refused if that is too much.
        """
        self.kept.take(client.host, size)
        try:
            yield
        finally:
            self.kept.give(client.host, size)

    def beats(self, call: Call, group: str, kind: int) -> ProxyClient:
        """Note that a consumer lives, and keep its group and its kind (a ClientType) if it has not told its settings
        yet; returns the client. Raises Refused as `put`.
        """
        client = self._of(call)
        if not client.has_told and client.group != group:
            made = messages.Settings(client_type=kind, request_timeout={"seconds": REQUEST_S})
            made.subscription.group.name = group
            self._keep(client, made)
            client.group = group
            self._tell(client)
        return client

    def receives(self, call: Call, request: Any) -> ProxyClient:
        """Return the client that calls ReceiveMessage. One that has told no settings is entered with what its request
        says. Raises Refused as `put`.
        """
        client = self._clients.get(call.identity)
        if client is not None and client.has_told:
            if call.remote_address not in client.connections:
                self._connected(client, call.remote_address)
            return client
        kind = ClientType.PUSH_CONSUMER if request.auto_renew else ClientType.SIMPLE_CONSUMER
        client = self.beats(call, request.group.name, kind)
        if client.has_told:
            return client
        topic, read = request.message_queue.topic.name, client.settings.subscription.subscriptions
        entry = next((one for one in read if one.topic.name == topic), None)
        if (entry is None and len(read) < TOPICS_MAX) or (
            entry is not None and entry.expression != request.filter_expression
        ):
            if entry is None:
                entry = read.add(topic={"name": topic})
            entry.expression.CopyFrom(request.filter_expression)
            self._keep(client, client.settings)
            self._tell(client)
        return client

    def _of(self, call: Call) -> ProxyClient:
        client = self._clients.get(call.identity)
        if client is not None:
            self._connected(client, call.remote_address)
            self.heard(client)
            return client
        back = self._silent.pop(call.identity, None)
        client = self._clients[call.identity] = back or self._new(call)
        self._connected(client, call.remote_address)
        self.heard(client)
        if back is not None:
            self._tell(client)
        return client

    def _new(self, call: Call) -> ProxyClient:
        client = ProxyClient(call)
        self.kept.take(client.host, client.least_bytes)
        client.kept_bytes = client.least_bytes
        return client

    def _tell(self, client: ProxyClient) -> None:
        client.told_ms = newer_version(client.told_ms)
        for act in self._told_settings:
            act(client)

    def heard(self, client: ProxyClient) -> None:
        """Note that the client lives."""
        client.heard_s = asyncio.get_running_loop().time()

    def lives(self, call: Call) -> ProxyClient | None:
        """Note that the client of a call lives, and return it; None if nothing is known of it."""
        is_known = call.identity in self._clients or call.identity in self._silent
        return self._of(call) if is_known else None

    def _connected(self, client: ProxyClient, address: str) -> None:
        if client.ending is not None:
            client.ending.cancel()
            client.ending = None
        client.connections.add(address)
        self._at.setdefault(address, set()).add(client)

    def connection_ended(self, address: str) -> None:
        """Note the end of a connection; clients that have no other one are gone, unless they open one soon."""
        for client in self._at.pop(address, ()):
            client.connections.discard(address)
            self._end_soon(client)

    def stream_ended(self, client: ProxyClient, stream: TelemetryStream, *, cut: bool) -> None:
        """Take a client's telemetry stream out. `cut`: the client did not end it but was lost, perhaps behind a
        connection that it shares with other clients.
        """
        if stream in client.streams:
            client.streams.remove(stream)
        if not client.streams and self._silent.get(client.identity) is client:
            del self._silent[client.identity]
            self.kept.give(client.host, client.kept_bytes)
        self._lost(client, cut)

    def receive_ended(self, client: ProxyClient, *, cut: bool) -> None:
        """Note that a client's ReceiveMessage has ended. `cut`: the client was lost, as for `stream_ended`."""
        client.receiving -= 1
        if not client.streams:
            self._lost(client, cut)

    def _lost(self, client: ProxyClient, cut: bool) -> None:
        if cut and not client.streams and not client.receiving:
            self._forget_connections(client)
        self._end_soon(client)

    def _forget_connections(self, client: ProxyClient) -> None:
        for address in client.connections:
            there = self._at[address]
            there.discard(client)
            if not there:
                del self._at[address]
        client.connections.clear()

    def _end_soon(self, client: ProxyClient) -> None:
        if not client.is_connected and client.ending is None:
            client.ending = asyncio.get_running_loop().call_later(self._grace_s, self.end, client)

    def end(self, client: ProxyClient) -> None:
        """Take a client out of the table, and call what `when_gone` was given."""
        if self._clients.get(client.identity) is not client:
            return
        del self._clients[client.identity]
        if client.streams:
            self._silent[client.identity] = client
        else:
            self.kept.give(client.host, client.kept_bytes)
        self._forget_connections(client)
        for act in self._gone:
            self._tasks.begin(self._tell_gone(act, client)).add_done_callback(self._told)

    async def _tell_gone(self, act: Gone, client: ProxyClient) -> None:
        if self._clients.get(client.identity) is not client:
            await act(client)

    def _told(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what was to be done for a client that is gone failed: %s", error)

    def expire(self) -> None:
        """Take out clients that are silent for too long."""
        now_s = asyncio.get_running_loop().time()
        for client in self.all():
            if now_s - client.heard_s > self._idle_s:
                log.info("client %s is silent: dropped", client.client_id)
                self.end(client)


def _used(settings: Any) -> Any:
    """Return what is used later of a client's settings: it may put texts of any length into the others."""
    made = messages.Settings(client_type=settings.client_type)
    made.request_timeout.CopyFrom(settings.request_timeout)
    made.user_agent.hostname = settings.user_agent.hostname[:HOSTNAME_MAX]
    if settings.HasField("subscription"):
        made.subscription.CopyFrom(settings.subscription)
        # Those of another version may have fields that are not known here.
        made.DiscardUnknownFields()
    return made


class Telemetry:
    """Serves Telemetry, Heartbeat and NotifyClientTermination."""

    def __init__(self, settings: ProxySettings, brokers: Brokers, clients: Clients) -> None:
        self._settings, self._brokers, self._clients = settings, brokers, clients

    async def telemetry(self, call: Call, requests: Any) -> None:
        """Serve one stream until the client ends it."""
        stream = TelemetryStream(call.context)
        client: ProxyClient | None = None
        cut = True
        try:
            async for command in requests:
                kind = command.WhichOneof("command")
                if kind == "settings":
                    merged = await self.merged(command.settings)
                    client = self._clients.put(call, merged)
                    if stream not in client.streams:
                        client.streams.append(stream)
                    with self._clients.holding(client, merged.ByteSize()):
                        if not await stream.send(messages.TelemetryCommand(status=status(Code.OK), settings=merged)):
                            raise Refused(Code.BAD_REQUEST, "the client does not read its settings")
                    del merged
                elif client is None:
                    raise Refused(Code.BAD_REQUEST, "the first command of a telemetry stream must be settings")
                else:
                    self._clients.heard(client)
                    stream.answered(command)
                del command
            # gRPC tells of the end of a stream that was reset before it cancels what serves it.
            await asyncio.sleep(RESET_S)
            cut = False
        finally:
            stream.end()
            if client is not None:
                self._clients.stream_ended(client, stream, cut=cut)

    async def heartbeat(self, call: Call, request: Any) -> Any:
        """Heartbeat: note that a client lives, whether it has sent its settings or not."""
        if self._clients.lives(call) is None and request.group.name:
            self._clients.beats(call, checked_group(request.group.name), request.client_type)
        return messages.HeartbeatResponse(status=status(Code.OK))

    async def notify_client_termination(self, call: Call, request: Any) -> Any:
        """NotifyClientTermination: the client goes."""
        client = self._clients.get(call.identity)
        if client is not None:
            self._clients.end(client)
        return messages.NotifyClientTerminationResponse(status=status(Code.OK))

    async def merged(self, told: Any) -> Any:
        """Return a client's settings with those that the proxy decides. Raises Refused for settings of no client."""
        _check(told)
        merged = messages.Settings()
        merged.CopyFrom(told)
        if told.HasField("publishing"):
            self._merge_producer(merged)
        elif told.HasField("subscription"):
            name = told.subscription.group.name
            group = await self._brokers.group(name)
            lite = told.client_type in LITE_CONSUMERS
            check_lite_group(name, group, lite=lite)
            for entry in told.subscription.subscriptions[:1] if lite else ():
                check_bound_topic(name, group, entry.topic.name)
            self._merge_consumer(merged, group)
        else:
            raise Refused(Code.BAD_REQUEST, "settings hold neither publishing nor subscription")
        if not told.client_type and told.HasField("publishing"):
            merged.client_type = ClientType.PRODUCER
        merged.metric.Clear()
        merged.metric.on = bool(self._settings.metric_collector)
        if merged.metric.on:
            host, _, port = self._settings.metric_collector.rpartition(":")
            # Whatever the host is, as Apache's proxy has it.
            merged.metric.endpoints.scheme = AddressScheme.IPv4
            merged.metric.endpoints.addresses.add(host=host, port=int(port))
        return merged

    def _merge_producer(self, merged: Any) -> None:
        s = self._settings
        merged.backoff_policy.Clear()
        merged.backoff_policy.max_attempts = s.producer_attempts_max
        wait = merged.backoff_policy.exponential_backoff
        wait.initial.FromMilliseconds(s.producer_backoff_initial_ms)
        wait.max.FromMilliseconds(s.producer_backoff_max_ms)
        wait.multiplier = s.producer_backoff_multiplier
        merged.publishing.max_body_size = s.body_bytes_max
        merged.publishing.validate_message_type = s.check_topic_type

    def _merge_consumer(self, merged: Any, group: GroupConfig | None) -> None:
        group = group or GroupConfig(group_name="")
        merged.subscription.fifo = group.consume_message_orderly
        merged.subscription.lite_subscription_quota = lite_quota(group)
        merged.subscription.max_lite_topic_size = self._settings.lite_topic_bytes_max
        merged.subscription.receive_batch_size = self._settings.receive_batch_size
        merged.subscription.long_polling_timeout.FromMilliseconds(self._settings.long_polling_ms_max)
        merged.backoff_policy.Clear()
        merged.backoff_policy.max_attempts = attempts_max(group)
        policy = group.group_retry_policy
        if (grown := exponential(policy)) is not None:
            initial_ms, longest_ms, multiplier = grown
            wait = merged.backoff_policy.exponential_backoff
            wait.initial.FromMilliseconds(initial_ms)
            wait.max.FromMilliseconds(longest_ms)
            wait.multiplier = multiplier
            return
        for wait_ms in waits_ms(policy):
            merged.backoff_policy.customized_backoff.next.add().FromMilliseconds(wait_ms)


def _check(told: Any) -> None:
    """Raise Refused for settings that name what is no topic or group."""
    for topic in told.publishing.topics:
        checked_topic(topic.name)
    if told.HasField("subscription"):
        checked_group(told.subscription.group.name)
