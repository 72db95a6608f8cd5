"""A producer of the gRPC protocol, made of its messages, and what brokers stored of it."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import grpc
from google.protobuf import json_format
from tests.unit.proxy.conftest import RawClient, RunningProxy
from tests.unit.proxy.producing.sent_messages import message

from rocketspark.client.connection import client_api
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.headers import PullHeader
from rocketspark.protocol.message import record
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import ClientType, Code


def parsed(fields: Any, **system: Any) -> Any:
    made = json_format.ParseDict(fields, messages.Message())
    for name, value in system.items():
        setattr(made.system_properties, name, value)
    return made


def send(client: RawClient, *sent: Any, timeout_s: float = 10.0) -> Any:
    return client.call("SendMessage", messages.SendMessageRequest(messages=sent), timeout_s=timeout_s)


def sent(client: RawClient, one: Any) -> Any:
    """Send one message that is to be stored; returns its entry."""
    answer = send(client, one)
    assert (answer.status.code, answer.status.message) == (Code.OK, "OK"), answer
    assert len(answer.entries) == 1
    return answer.entries[0]


def stored(proxy: RunningProxy, topic: str) -> list[ReceivedMessage]:
    """Return all messages of a topic, with their queues."""

    async def read() -> list[ReceivedMessage]:
        found = []
        route = await proxy.server.brokers.route(topic)
        for at in route.read_queues():
            peer = await proxy.server.brokers.peer(at.broker_name)
            header = PullHeader(
                group="G",
                topic=topic,
                queue_id=at.queue_id,
                queue_offset=0,
                count_max=32,
                sys_flag=4,
                commit_offset=0,
                suspend_ms=0,
                subscription="*",
                subscription_version=1,
            )
            pulled = await client_api.pull(peer, header)
            found += record.decode_messages(pulled.records, at.broker_name)
        return found

    return proxy.run(read)


def ids(proxy: RunningProxy, topic: str) -> list[str]:
    return [found.message_id for found in stored(proxy, topic)]


def wait_for(proxy: RunningProxy, topic: str, message_id: str) -> ReceivedMessage:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for found in stored(proxy, topic):
            if found.message_id == message_id:
                return found
        time.sleep(0.02)
    raise AssertionError(f"{message_id} did not come to {topic}")


def half(client: RawClient, message_id: str, **system: Any) -> Any:
    one = parsed(message(topic="TRANSACTION", messageId=message_id, messageType="TRANSACTION", **system))
    # Apache's broker neither ends nor checks what was born long ago.
    one.system_properties.born_timestamp.FromMilliseconds(int(time.time() * 1000))
    entry = sent(client, one)
    assert entry.transaction_id == message_id
    return entry


def end(client: RawClient, message_id: str, resolution: int, source: int = 1, topic: str = "TRANSACTION") -> int:
    request = messages.EndTransactionRequest(
        topic=messages.Resource(name=topic),
        message_id=message_id,
        transaction_id=message_id,
        resolution=resolution,
        source=source,
    )
    return int(client.call("EndTransaction", request).status.code)


COMMIT, ROLLBACK, UNKNOWN, CHECKED = 1, 2, 0, 2


class Producer:
    """A client with a telemetry stream; `commands` are what the proxy sent after the settings."""

    def __init__(self, address: str, client_id: str, *topics: str) -> None:
        self.client = RawClient(address, client_id)
        self.commands: queue.Queue[Any] = queue.Queue()
        self._said: queue.Queue[Any] = queue.Queue()
        settings = messages.Settings(client_type=int(ClientType.PRODUCER))
        for topic in topics:
            settings.publishing.topics.add().name = topic
        self._said.put(messages.TelemetryCommand(settings=settings))
        self._call = self.client.telemetry(iter(self._said.get, None))
        assert next(self._call).WhichOneof("command") == "settings"
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for command in self._call:
                self.commands.put(command)
        except grpc.RpcError:
            pass

    def close(self) -> None:
        self._said.put(None)
        self._call.cancel()
        self.client.close()
