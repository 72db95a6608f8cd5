"""Telemetry streams: a client's settings, merged and sent back, and the commands that it is sent.

Rule: the first command of a stream is settings; whatever else a client sets of its own comes back as it was.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.call import WRITE_S, Call
from rocketspark.proxy.calls.statuses import Refused, status
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.names import checked_group, checked_topic
from rocketspark.proxy.retry_waits import attempts_max, exponential, waits_ms
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import AddressScheme, ClientType, Code

# Of commands that wait for one client to read those before; they may hold messages.
WAITING_BYTES_MAX = 32 << 20
# So long after its end a stream may still turn out to have been reset.
RESET_S = 0.05


class TelemetryStream:
    """One open stream; commands that wait for an answer are found by its kind and nonce."""

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
        """Hand a client's answer to who waits for it."""
        kind = command.WhichOneof("command") or ""
        nonce = getattr(getattr(command, kind, None), "nonce", "")
        future = self._asked.get((kind, nonce))
        if future is not None and not future.done():
            future.set_result(command)

    def end(self) -> None:
        """Let nobody wait any more."""
        self.is_open = False
        for future in self._asked.values():
            if not future.done():
                future.set_exception(TimeoutError("the client's stream has ended"))


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
        """Heartbeat: a client lives, whether it has told its settings or not."""
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
            self._merge_consumer(merged, await self._brokers.group(told.subscription.group.name))
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
