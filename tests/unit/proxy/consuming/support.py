"""A consumer of the gRPC protocol, made of its messages: its telemetry stream, and its calls."""

from __future__ import annotations

import queue
import uuid
from typing import Any

from tests.java.apache import ask
from tests.unit.proxy.conftest import RawClient

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import bodies as bodies_json
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import ClientType, Code

SIMPLE, PUSH = ClientType.SIMPLE_CONSUMER, ClientType.PUSH_CONSUMER
TAG, SQL = 1, 2


def make_topic(broker: str, topic: str, queues: int = 2, kind: str = "NORMAL") -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": f"+message.type={kind}",
    }  # fmt: skip
    answer = ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
    assert answer.code == 0, answer


def make_group(broker: str, group: str, **settings: Any) -> None:
    body = bodies_json.encode(GroupConfig(group_name=group, **settings))
    answer = ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    assert answer.code == 0, answer


class Consumer:
    """A client that consumes. `answers` of a receive: as they came, the last one with the delivery timestamp; `tells`:
    False for one whose settings the proxy does not get.
    """

    def __init__(
        self, address: str, group: str, topic: str, kind: int = SIMPLE, client_id: str = "", *, tells: bool = True
    ) -> None:
        self.raw = RawClient(address, client_id or f"client-{uuid.uuid4()}")
        self.group, self.topic, self.kind = group, topic, kind
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stream: Any = None
        if tells:
            self.tell()

    def tell(self) -> None:
        """Open a telemetry stream, and tell the settings."""
        self._commands.put(self._settings())
        self.stream = self.raw.telemetry(iter(self._commands.get, None))
        self.settings = next(iter(self.stream)).settings

    def end_stream(self) -> None:
        """Send nothing more on the telemetry stream."""
        self._commands.put(None)
        assert list(self.stream) == []

    def beat(self) -> Any:
        """Send a heartbeat; return the status of its answer."""
        request = messages.HeartbeatRequest(group={"name": self.group}, client_type=int(self.kind))
        return self.raw.call("Heartbeat", request).status

    def _settings(self) -> Any:
        made = messages.TelemetryCommand()
        made.settings.client_type = self.kind
        made.settings.request_timeout.FromSeconds(3)
        made.settings.subscription.group.name = self.group
        entry = made.settings.subscription.subscriptions.add(topic={"name": self.topic})
        entry.expression.type, entry.expression.expression = TAG, "*"
        return made

    def request(
        self, count: int = 32, invisible_ms: int = 30_000, expression: str = "*", kind: int = TAG,
        polling_ms: int = 5000, **fields: Any,
    ) -> Any:  # fmt: skip
        made = messages.ReceiveMessageRequest(
            group={"name": self.group},
            message_queue={"topic": {"name": self.topic}, "broker": {"name": "broker-a"}, "id": -1},
            filter_expression={"type": kind, "expression": expression},
            batch_size=count,
            **fields,
        )
        made.invisible_duration.FromMilliseconds(invisible_ms)
        made.long_polling_timeout.FromMilliseconds(polling_ms)
        return made

    def answers(self, timeout_s: float = 30.0, **request: Any) -> list[Any]:
        return self.raw.call("ReceiveMessage", self.request(**request), timeout_s=timeout_s)

    def receive(self, **request: Any) -> list[Any]:
        """Return the messages of one receive; none if nothing came."""
        answers = self.answers(**request)
        assert answers[-1].WhichOneof("content") == "delivery_timestamp"
        assert answers[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), answers[0]
        return [answer.message for answer in answers[1:-1]]

    def receiving(self, timeout_s: float = 30.0, **request: Any) -> Any:
        """Begin a receive; iterate over the result, or cancel it."""
        call = self.raw.channel.unary_stream(
            f"/{messages.SERVICE}/ReceiveMessage",
            request_serializer=messages.ReceiveMessageRequest.SerializeToString,
            response_deserializer=messages.ReceiveMessageResponse.FromString,
        )
        return call(self.request(**request), timeout=timeout_s, metadata=tuple(self.raw.metadata.items()))

    def receive_all(self, count: int, **request: Any) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            got = self.receive(**request)
            assert got, f"{len(found)} of {count} came"
            found += got
        assert len(found) == count
        return found

    def ack(self, *received: Any, topic: str = "") -> Any:
        entries = [
            {"message_id": m.system_properties.message_id, "receipt_handle": m.system_properties.receipt_handle}
            for m in received
        ]
        name = {"name": topic or self.topic}
        return self.raw.call(
            "AckMessage", messages.AckMessageRequest(group={"name": self.group}, topic=name, entries=entries)
        )

    def change(self, handle: str, invisible_ms: int, topic: str = "") -> Any:
        made = messages.ChangeInvisibleDurationRequest(
            group={"name": self.group}, topic={"name": topic or self.topic}, receipt_handle=handle, message_id="m"
        )
        made.invisible_duration.FromMilliseconds(invisible_ms)
        return self.raw.call("ChangeInvisibleDuration", made)

    def forward(self, handle: str) -> Any:
        made = messages.ForwardMessageToDeadLetterQueueRequest(
            group={"name": self.group}, topic={"name": self.topic}, receipt_handle=handle, message_id="m"
        )
        return self.raw.call("ForwardMessageToDeadLetterQueue", made)

    def terminate(self) -> Any:
        return self.raw.call(
            "NotifyClientTermination", messages.NotifyClientTerminationRequest(group={"name": self.group})
        )

    def vanish(self) -> None:
        """End the connection without a word."""
        self.raw.close()
        self._commands.put(None)


def bodies(received: list[Any]) -> list[bytes]:
    return sorted(one.body for one in received)
