"""Single gRPC requests, good ones and one for each rule that refuses, to be asked of any proxy.

`ask` plays them in turn as one client whose settings are known. What Apache's proxy 5.5.0 answers lies in
tests/vectors/v5/answers_5.5.0.json; `python -m tests.v5.requests` asks it and writes that anew.
"""

from __future__ import annotations

import json
import queue
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import duration_pb2
from tests.unit.proxy.conftest import RawClient

from rocketspark.proxy.wire import messages

ANSWERS = Path(__file__).resolve().parents[1] / "vectors" / "v5" / "answers_5.5.0.json"
TOPICS = {"NormalTopic": "NORMAL", "FifoTopic": "FIFO", "DelayTopic": "DELAY", "TranTopic": "TRANSACTION"}
GROUP = "TheGroup"
NORMAL, FIFO, DELAY, TRANSACTION = 1, 2, 3, 4
NOW_S = 1_900_000_000
LIMIT_S = 60.0


def sent(topic: str = "NormalTopic", body: bytes = b"x", user: dict[str, str] | None = None, **system: Any) -> Any:
    """A message to be sent; `system`: its system properties by their names on the wire."""
    made = messages.Message()
    made.topic.name = topic
    made.body = body
    made.user_properties.update(user or {})
    values = {"message_id": "0102FC000000014C750B1573C600000000", "message_type": NORMAL, "body_encoding": 1} | system
    for name in ("delivery_timestamp", "born_timestamp"):
        if name in values:
            getattr(made.system_properties, name).seconds = values.pop(name)
    if "orphaned_transaction_recovery_duration" in values:
        made.system_properties.orphaned_transaction_recovery_duration.seconds = values.pop(
            "orphaned_transaction_recovery_duration"
        )
    made.system_properties.keys.extend(values.pop("keys", []))
    for name, value in values.items():
        setattr(made.system_properties, name, value)
    return made


def send(*given: Any) -> Any:
    return messages.SendMessageRequest(messages=list(given))


def route(topic: str) -> Any:
    return messages.QueryRouteRequest(topic={"name": topic}, endpoints=_ENDPOINTS)


def assignment(topic: str, group: str = GROUP) -> Any:
    return messages.QueryAssignmentRequest(topic={"name": topic}, group={"name": group}, endpoints=_ENDPOINTS)


def receive(
    topic: str = "NormalTopic", group: str = GROUP, invisible_s: int | None = 30, expression: str = "*",
    kind: int = 1, batch: int = 1, polling_s: int | None = 5, **fields: Any,
) -> Any:  # fmt: skip
    made = messages.ReceiveMessageRequest(
        group={"name": group},
        message_queue={"topic": {"name": topic}, "broker": {"name": "broker-a"}, "id": -1},
        filter_expression={"type": kind, "expression": expression},
        batch_size=batch,
        **fields,
    )
    if invisible_s is not None:
        made.invisible_duration.CopyFrom(duration_pb2_of(invisible_s, made.invisible_duration))
    if polling_s is not None:
        made.long_polling_timeout.CopyFrom(duration_pb2_of(polling_s, made.long_polling_timeout))
    return made


def duration_pb2_of(seconds: int, like: Any) -> Any:
    """A duration of the pool that `like` is of."""
    made = type(like)()
    made.ParseFromString(duration_pb2.Duration(seconds=seconds).SerializeToString())
    return made


def ack(handle: str, topic: str = "NormalTopic", group: str = GROUP) -> Any:
    entry = {"message_id": "0102FC000000014C750B1573C600000000", "receipt_handle": handle}
    return messages.AckMessageRequest(group={"name": group}, topic={"name": topic}, entries=[entry])


def change(handle: str, seconds: int) -> Any:
    made = messages.ChangeInvisibleDurationRequest(
        group={"name": GROUP}, topic={"name": "NormalTopic"}, receipt_handle=handle, message_id="m"
    )
    made.invisible_duration.CopyFrom(duration_pb2_of(seconds, made.invisible_duration))
    return made


def end(transaction: str, message: str = "m") -> Any:
    return messages.EndTransactionRequest(
        topic={"name": "TranTopic"}, message_id=message, transaction_id=transaction, resolution=1, source=1
    )


_ENDPOINTS = {"scheme": 1, "addresses": [{"host": "127.0.0.1", "port": 8081}]}
_LONG_AGO = "0 1600000000000 1000 0 0 broker-a 0 0 0"
_FOREVER = "0 1900000000000 60000000 0 0 broker-a 0 999999 0"
_MANY = {f"k{number}": "v" for number in range(129)}

# What is asked -> the call, the request.
REQUESTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "route": ("QueryRoute", lambda: route("NormalTopic")),
    "route of a fifo topic": ("QueryRoute", lambda: route("FifoTopic")),
    "route of no topic": ("QueryRoute", lambda: route("")),
    "route of a topic that is not there": ("QueryRoute", lambda: route("NoSuchTopic")),
    "route of an odd name": ("QueryRoute", lambda: route("odd name!")),
    "route of a long name": ("QueryRoute", lambda: route("x" * 128)),
    "route of a system topic": ("QueryRoute", lambda: route("RMQ_SYS_TRANS_HALF_TOPIC")),
    "route without endpoints": ("QueryRoute", lambda: messages.QueryRouteRequest(topic={"name": "NormalTopic"})),
    "assignment": ("QueryAssignment", lambda: assignment("NormalTopic")),
    "assignment of an odd group": ("QueryAssignment", lambda: assignment("NormalTopic", "odd group!")),
    "assignment of a long group": ("QueryAssignment", lambda: assignment("NormalTopic", "g" * 121)),
    "assignment of a system group": ("QueryAssignment", lambda: assignment("NormalTopic", "CID_RMQ_SYS_X")),
    "assignment of a topic that is not there": ("QueryAssignment", lambda: assignment("NoSuchTopic")),
    "heartbeat": ("Heartbeat", lambda: messages.HeartbeatRequest(group={"name": GROUP}, client_type=3)),
    "send": ("SendMessage", lambda: send(sent())),
    "send fifo": ("SendMessage", lambda: send(sent("FifoTopic", message_group="g", message_type=FIFO))),
    "send two": ("SendMessage", lambda: send(sent(message_id="a"), sent(message_id="b"))),
    "send nothing": ("SendMessage", lambda: send()),
    "send to two topics": ("SendMessage", lambda: send(sent(), sent("FifoTopic"))),
    "send to no topic": ("SendMessage", lambda: send(sent(""))),
    "send to a topic that is not there": ("SendMessage", lambda: send(sent("NoSuchTopic"))),
    "send to an odd name": ("SendMessage", lambda: send(sent("odd name!"))),
    "send no body": ("SendMessage", lambda: send(sent(body=b""))),
    "send a large body": ("SendMessage", lambda: send(sent(body=bytes((4 << 20) + 1)))),
    "send the largest body": ("SendMessage", lambda: send(sent(body=bytes(4 << 20)))),
    "send a blank tag": ("SendMessage", lambda: send(sent(tag="  "))),
    "send an empty tag": ("SendMessage", lambda: send(sent(tag=""))),
    "send a tag with a bar": ("SendMessage", lambda: send(sent(tag="a|b"))),
    "send a tag with a control character": ("SendMessage", lambda: send(sent(tag="a\x01"))),
    "send a blank key": ("SendMessage", lambda: send(sent(keys=["a", " "]))),
    "send a key with a control character": ("SendMessage", lambda: send(sent(keys=["a\x02"]))),
    "send a blank group": ("SendMessage", lambda: send(sent("FifoTopic", message_group="  ", message_type=FIFO))),
    "send a long group": ("SendMessage", lambda: send(sent("FifoTopic", message_group="g" * 65, message_type=FIFO))),
    "send a group of 64": ("SendMessage", lambda: send(sent("FifoTopic", message_group="g" * 64, message_type=FIFO))),
    "send a group with a control character": (
        "SendMessage", lambda: send(sent("FifoTopic", message_group="g\x00", message_type=FIFO)),
    ),
    "send many properties": ("SendMessage", lambda: send(sent(user=_MANY))),
    "send large properties": ("SendMessage", lambda: send(sent(user={"a": "b" * 16_384}))),
    "send a reserved property": ("SendMessage", lambda: send(sent(user={"UNIQ_KEY": "x"}))),
    "send a property with a control character": ("SendMessage", lambda: send(sent(user={"a\x01": "x"}))),
    "send a value with a control character": ("SendMessage", lambda: send(sent(user={"a": "x\x02"}))),
    "send no message id": ("SendMessage", lambda: send(sent(message_id=""))),
    "send far ahead": (
        "SendMessage", lambda: send(sent("DelayTopic", delivery_timestamp=4_000_000_000, message_type=DELAY)),
    ),
    "send a long recovery": (
        "SendMessage",
        lambda: send(sent("TranTopic", message_type=TRANSACTION, orphaned_transaction_recovery_duration=3601)),
    ),
    "send normal to a fifo topic": ("SendMessage", lambda: send(sent("FifoTopic"))),
    "send normal to a delay topic": ("SendMessage", lambda: send(sent("DelayTopic"))),
    "send fifo to a normal topic": ("SendMessage", lambda: send(sent(message_group="g", message_type=FIFO))),
    "send a transaction to a normal topic": ("SendMessage", lambda: send(sent(message_type=TRANSACTION))),
    "end of no transaction": ("EndTransaction", lambda: end("")),
    "end of an unknown transaction": ("EndTransaction", lambda: end("0102")),
    "end of no message": ("EndTransaction", lambda: end("0102", "")),
    "recall nonsense": (
        "RecallMessage", lambda: messages.RecallMessageRequest(topic={"name": "DelayTopic"}, recall_handle="nonsense"),
    ),
    "recall of a normal topic": (
        "RecallMessage", lambda: messages.RecallMessageRequest(topic={"name": "NormalTopic"}, recall_handle="nonsense"),
    ),
    "receive": ("ReceiveMessage", lambda: receive()),
    "receive for a short time": ("ReceiveMessage", lambda: receive(invisible_s=9)),
    "receive for a long time": ("ReceiveMessage", lambda: receive(invisible_s=12 * 3600 + 1)),
    "receive by an odd group": ("ReceiveMessage", lambda: receive(group="odd group!")),
    "receive of an odd topic": ("ReceiveMessage", lambda: receive("odd name!")),
    "receive of a topic that is not there": ("ReceiveMessage", lambda: receive("NoSuchTopic")),
    "receive by nonsense": ("ReceiveMessage", lambda: receive(kind=2, expression="a >")),
    "ack nonsense": ("AckMessage", lambda: ack("nonsense")),
    "ack nothing": ("AckMessage", lambda: ack("")),
    "ack too late": ("AckMessage", lambda: ack(_LONG_AGO)),
    "ack by an odd group": ("AckMessage", lambda: ack(_LONG_AGO, group="odd group!")),
    "change nonsense": ("ChangeInvisibleDuration", lambda: change("nonsense", 10)),
    "change too late": ("ChangeInvisibleDuration", lambda: change(_LONG_AGO, 10)),
    "change to a negative time": ("ChangeInvisibleDuration", lambda: change(_FOREVER, -1)),
    "change to a long time": ("ChangeInvisibleDuration", lambda: change(_FOREVER, 12 * 3600 + 1)),
    "forward nonsense": (
        "ForwardMessageToDeadLetterQueue",
        lambda: messages.ForwardMessageToDeadLetterQueueRequest(
            group={"name": GROUP}, topic={"name": "NormalTopic"}, receipt_handle="nonsense", message_id="m"
        ),
    ),
    "termination": ("NotifyClientTermination", lambda: messages.NotifyClientTerminationRequest(group={"name": GROUP})),
}  # fmt: skip


def subscription() -> Any:
    """Settings of a simple consumer of the normal topic."""
    made = messages.TelemetryCommand()
    made.settings.client_type = 3
    made.settings.request_timeout.CopyFrom(duration_pb2_of(3, made.settings.request_timeout))
    made.settings.subscription.group.name = GROUP
    made.settings.subscription.subscriptions.add(
        topic={"name": "NormalTopic"}, expression={"type": 1, "expression": "*"}
    )
    return made


@contextmanager
def known(client: RawClient) -> Iterator[Any]:
    """Have the client's settings known to the proxy; yields its answer."""
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    commands.put(subscription())
    stream = client.telemetry(iter(commands.get, None))
    try:
        yield next(iter(stream))
    finally:
        commands.put(None)
        stream.cancel()


def ask(address: str) -> dict[str, Any]:
    """Ask everything; per name the code and text of each status, or gRPC's own error."""
    client = RawClient(address, "requests-1")
    found: dict[str, Any] = {}
    try:
        with known(client) as told:
            found["settings"] = settings_of(told)
            for name, (rpc, make) in REQUESTS.items():
                try:
                    answer = client.call(rpc, make(), timeout_s=LIMIT_S)
                except grpc.RpcError as e:
                    found[name] = {"grpc": e.code().name}
                    continue
                first = answer[0] if isinstance(answer, list) else answer
                found[name] = {"code": first.status.code, "message": first.status.message}
                entries = [entry.status.code for entry in getattr(answer, "entries", [])]
                if entries:
                    found[name]["entries"] = entries
        blank = RawClient(address, "")
        answer = blank.call("QueryRoute", route("NormalTopic"), timeout_s=LIMIT_S)
        found["no client id"] = {"code": answer.status.code, "message": answer.status.message}
        blank.close()
    finally:
        client.close()
    return found


def settings_of(told: Any) -> dict[str, Any]:
    """What the proxy tells a simple consumer."""
    settings = told.settings
    return {
        "code": told.status.code,
        "max_attempts": settings.backoff_policy.max_attempts,
        "next_s": [one.seconds for one in settings.backoff_policy.customized_backoff.next],
        "receive_batch_size": settings.subscription.receive_batch_size,
        "long_polling_s": settings.subscription.long_polling_timeout.seconds,
        "fifo": settings.subscription.fifo,
        "request_timeout_s": settings.request_timeout.seconds,
        "metric": settings.metric.on,
    }


def prepare(servers: Any) -> None:
    """Make the topics and the group that the requests name."""
    for topic, kind in TOPICS.items():
        servers.make_topic(topic, kind, 2)
    servers.make_group(GROUP)


def write() -> None:
    """Ask Apache's proxy, and write what it answers."""
    from tests.v5.apache_proxy import ApacheLocalProxy
    from tests.v5.servers import Servers

    with tempfile.TemporaryDirectory() as folder:
        local = ApacheLocalProxy(Path(folder), {"recallMessageEnable": "true"})
        try:
            prepare(Servers("apache", local.endpoints, local.namesrv, local.broker))
            found = ask(local.endpoints)
        finally:
            local.close()
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
