"""Drives the official Python client of RocketMQ 5: one JSON command a line on stdin, one JSON answer a line on stdout.

{"id": 1, "command": "send", ...} is answered by {"id": 1, "result": {...}} or {"id": 1, "error": {...}}. Commands run
side by side. End of stdin ends the process. It runs in an environment of its own and imports nothing of the project.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
)
from rocketmq.grpc_protocol import FilterType, TransactionResolution

Json = dict[str, Any]
things: dict[str, Any] = {}
received: dict[int, Any] = {}
numbers = itertools.count(1)
RESOLUTIONS = {
    "COMMIT": TransactionResolution.COMMIT,
    "ROLLBACK": TransactionResolution.ROLLBACK,
    "UNKNOWN": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


def configuration(args: Json) -> ClientConfiguration:
    credentials = Credentials(args.get("access_key", ""), args.get("secret_key", ""))
    return ClientConfiguration(args["endpoints"], credentials, request_timeout=args.get("timeout_ms", 20_000) // 1000)


def subscriptions(args: Json) -> dict[str, FilterExpression]:
    found = {}
    for topic, expression in args["subscriptions"].items():
        kind = FilterType.SQL if expression.startswith("sql:") else FilterType.TAG
        found[topic] = FilterExpression(expression.removeprefix("sql:"), kind)
    return found


def shape(message: Any) -> Json:
    number = next(numbers)
    received[number] = message
    return {
        "number": number,
        "message_id": message.message_id,
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "group": message.message_group or None,
        "attempt": message.delivery_attempt,
        "born_host": message.born_host,
        "born_timestamp_ms": message.born_timestamp,
        "delivery_timestamp_ms": message.delivery_timestamp or None,
        "at": time.monotonic(),
    }


def message_of(fields: Json) -> Message:
    made = Message()
    made.topic = fields["topic"]
    made.body = base64.b64decode(fields["body"])
    if "tag" in fields:
        made.tag = fields["tag"]
    if "keys" in fields:
        for key in fields["keys"]:
            made.keys = key
    if "group" in fields:
        made.message_group = fields["group"]
    if "delivery_timestamp_ms" in fields:
        # This client takes seconds.
        made.delivery_timestamp = fields["delivery_timestamp_ms"] // 1000
    for name, value in fields.get("properties", {}).items():
        made.add_property(name, value)
    return made


class Checker(TransactionChecker):
    """Answers a check with the message's property "check", and keeps which were asked for."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.changed = threading.Condition()

    def check(self, message: Any) -> Any:
        with self.changed:
            self.checked.append(message.message_id)
            self.changed.notify_all()
        return RESOLUTIONS[message.properties["check"]]


class Collector(MessageListener):
    """Keeps every delivery; fails the first `fail_first` of each message; may take its time."""

    def __init__(self, args: Json) -> None:
        self.fail_first = args.get("fail_first", 0)
        self.pause_ms = args.get("pause_ms", 0)
        self.deliveries: list[Json] = []
        self.failed: dict[str, int] = {}
        self.changed = threading.Condition()

    def consume(self, message: Any) -> Any:
        with self.changed:
            fails = self.failed.get(message.message_id, 0)
            fail = fails < self.fail_first
            self.failed[message.message_id] = fails + fail
            self.deliveries.append(shape(message) | {"accepted": not fail})
            self.changed.notify_all()
        time.sleep(self.pause_ms / 1000)
        return ConsumeResult.FAILURE if fail else ConsumeResult.SUCCESS


def producer_start(args: Json) -> None:
    checker = Checker() if args.get("checks") else None
    made = Producer(configuration(args), args.get("topics"), checker)
    made.startup()
    things[args["name"]] = made, checker


def receipt(sent: Any) -> Json:
    return {"message_id": sent.message_id, "recall_handle": sent.recall_handle or None, "offset": sent.offset}


def send(args: Json) -> Json:
    producer, _ = things[args["name"]]
    return receipt(producer.send(message_of(args["message"])))


def send_transaction(args: Json) -> Json:
    producer, _ = things[args["name"]]
    transaction = producer.begin_transaction()
    sent = producer.send(message_of(args["message"]), transaction)
    if args["outcome"] == "COMMIT":
        transaction.commit()
    elif args["outcome"] == "ROLLBACK":
        transaction.rollback()
    return receipt(sent)


def checked(args: Json) -> list[str]:
    _, checker = things[args["name"]]
    with checker.changed:
        checker.changed.wait_for(lambda: len(checker.checked) >= args["count"], args["wait_ms"] / 1000)
        return list(checker.checked)


def recall(args: Json) -> Json:
    producer, _ = things[args["name"]]
    answer = producer.recall_message(args["topic"], args["recall_handle"])
    return {"message_id": getattr(answer, "message_id", answer)}


def send_many(args: Json) -> list[str]:
    producer, _ = things[args["name"]]
    futures = [producer.send_async(message_of(fields)) for fields in args["messages"]]
    return [future.result(60).message_id for future in futures]


def simple_start(args: Json) -> None:
    made = SimpleConsumer(
        configuration(args), args["group"], subscriptions(args), await_duration=args.get("await_ms", 5000) // 1000
    )
    made.startup()
    # It does not wait by itself for the server's word, without which a proxy refuses to be asked for messages.
    assert made._init_settings_event.wait(30), "no settings came"
    things[args["name"]] = made, None


def receive(args: Json) -> list[Json]:
    consumer, _ = things[args["name"]]
    return [shape(one) for one in consumer.receive(args.get("max", 16), args["invisible_ms"] // 1000)]


def ack(args: Json) -> None:
    consumer, _ = things[args["name"]]
    consumer.ack(received[args["number"]])


def change_invisible(args: Json) -> None:
    consumer, _ = things[args["name"]]
    consumer.change_invisible_duration(received[args["number"]], args["invisible_ms"] // 1000)


def push_start(args: Json) -> None:
    collector = Collector(args)
    threads = args.get("threads", 4)
    made = PushConsumer(
        configuration(args), args["group"], collector, subscriptions(args), consumption_thread_count=threads
    )
    made.startup()
    things[args["name"]] = made, collector


def push_await(args: Json) -> list[Json]:
    _, collector = things[args["name"]]
    with collector.changed:
        collector.changed.wait_for(lambda: len(collector.deliveries) >= args["count"], args["wait_ms"] / 1000)
        return list(collector.deliveries)


def stop(args: Json) -> None:
    thing, _ = things.pop(args["name"])
    thing.shutdown()


COMMANDS: dict[str, Callable[[Json], Any]] = {
    "ping": lambda args: {"client": "python"},
    "producer_stop": stop,
    "simple_stop": stop,
    "push_stop": stop,
} | {
    function.__name__: function
    for function in (
        producer_start, send, send_many, send_transaction, checked, recall, simple_start, receive,
        ack, change_invisible, push_start, push_await,
    )
}  # fmt: skip

output = threading.Lock()


def answer(line: Json) -> None:
    try:
        reply = {"id": line["id"], "result": COMMANDS[line["command"]](line)}
    except Exception as error:
        text = str(error)
        code = getattr(error, "code", None)
        reply = {
            "id": line["id"],
            "error": {"type": type(error).__name__, "message": text, "code": code if isinstance(code, int) else -1},
        }
    with output:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def main() -> None:
    for text in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(text),), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
