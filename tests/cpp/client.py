"""Run by the tests in a process of its own: plays one scenario on the C++ client, prints what happened as JSON."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage
from rocketmq.exceptions import ConsumerException, ffi_check
from rocketmq.ffi import MessageModel, _CConsumeStatus, dll
from tests.java.apache import ask

WAIT_S = 120.0
CONSUMER_CONNECTIONS, RUNNING_INFO = 203, 307


def message(topic: str, body: str, tag: str = "TagA", **properties: str) -> Message:
    made = Message(topic)
    made.set_body(body)
    made.set_tags(tag)
    made.set_keys("k1")
    for name, value in properties.items():
        made.set_property(name, value)
    return made


class Inbox:
    """Deliveries as [body, tag, keys, p1, reconsume times, born, store]; fails those that `fail` names."""

    def __init__(self, count: int, *, fail: Callable[[str, int], bool] = lambda body, seen: False) -> None:
        self.received: list[list[Any]] = []
        self._count = count
        self._fail = fail
        self._seen: dict[str, int] = {}
        self._all_there = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, consumer: Any, handle: Any) -> int:
        m = RecvMessage(handle)
        body, value = m.body.decode(), m.get_property("p1")
        with self._lock:
            seen = self._seen[body] = self._seen.get(body, 0) + 1
            text = [body, m.tags.decode(), m.keys.decode(), value.decode() if value else None]
            self.received.append([*text, m.reconsume_times, m.born_timestamp, m.store_timestamp])
            if len(self.received) >= self._count:
                self._all_there.set()
        return int(_CConsumeStatus.RECONSUME_LATER if self._fail(body, seen) else _CConsumeStatus.CONSUME_SUCCESS)

    def bodies(self) -> set[str]:
        with self._lock:
            return {delivery[0] for delivery in self.received}

    def wait(self) -> list[list[Any]]:
        self._all_there.wait(WAIT_S)
        return self.received


class Scenes:
    """The scenarios, each a method with a topic and a group of its own name; the tests make both before."""

    def __init__(self, namesrv: str, broker: str) -> None:
        self.namesrv = namesrv
        self.broker = broker
        # Destroying a client whose threads still run ends the process.
        self.alive: list[Any] = []

    def producer(self, name: str, **options: Any) -> Producer:
        # What took longer than its 3 s would be sent again, and be there twice.
        made = Producer(f"{name}-producers", **{"timeout": int(WAIT_S * 1000), **options})
        made.set_namesrv_addr(self.namesrv)
        made.start()
        self.alive.append(made)
        return made

    def consumer(self, name: str, inbox: Inbox, tags: str = "*", instance: str = "", **options: Any) -> None:
        made = PushConsumer(f"{name}-group", **options)
        made.set_namesrv_addr(self.namesrv)
        made.set_instance_name(instance or name)
        # Not its subscribe(): there a listener fails by raising, and what C then gets for an answer is chance.
        ffi_check(dll.Subscribe(made._handle, name.encode(), tags.encode()))
        made._register_callback(inbox)
        made.start()
        self.alive.append(made)

    def sends(self, name: str) -> Any:
        inbox = Inbox(7, fail=lambda body, seen: body == "fails once" and seen == 1)
        producer = self.producer(name)
        sync = [
            producer.send_sync(message(name, body, tag, p1="v1"))
            for body, tag in (("plain", "TagA"), ("fails once", "TagB"))
        ]
        producer.send_sync(message(name, "filtered out", "TagC"))
        orderly = [producer.send_orderly(message(name, f"ordered-{i}"), 1) for i in range(3)]
        producer.send_oneway(message(name, "one-way"))
        self.consumer(name, inbox, "TagA || TagB")
        received = inbox.wait()
        return {
            "sync": [int(r.status) for r in sync],
            "orderly": [int(r.status) for r in orderly],
            "orderly_offsets": [r.offset - orderly[0].offset for r in orderly],
            "received": received,
        }

    def batches(self, name: str) -> Any:
        inbox = Inbox(2)
        self.consumer(name, inbox, "TagA")
        sent = self.producer(name).send_batch([message(name, f"batch-{i}") for i in range(2)])
        return {"status": int(sent.status), "received": sorted(delivery[0] for delivery in inbox.wait())}

    def sends_async(self, name: str) -> Any:
        done: list[Any] = []
        all_done = threading.Event()

        def finished(result: Any) -> None:
            done.append(result)
            if len(done) == 20:
                all_done.set()

        producer = self.producer(name)
        for i in range(20):
            producer.send_async(message(name, f"async-{i}"), finished, finished)
        all_done.wait(WAIT_S)
        return [int(r.status) if hasattr(r, "status") else str(r) for r in done]

    def delays(self, name: str) -> Any:
        inbox = Inbox(5)
        self.consumer(name, inbox)
        producer = self.producer(name)
        for level in (2, 1):
            delayed = message(name, f"level {level}")
            delayed.set_delay_time_level(level)
            producer.send_sync(delayed)
        producer.send_sync(message(name, "timer ms", TIMER_DELAY_MS="1200"))
        producer.send_sync(message(name, "timer sec", TIMER_DELAY_SEC="2"))
        producer.send_sync(message(name, "at once"))
        return inbox.wait()

    def dead_letters(self, name: str) -> Any:
        inbox = Inbox(2, fail=lambda body, seen: True)
        self.consumer(name, inbox)
        self.producer(name).send_sync(message(name, "hopeless"))
        received = inbox.wait()
        dead = {"topic": f"%DLQ%{name}-group", "queueId": "0"}
        deadline = time.monotonic() + WAIT_S
        while (end := ask(self.broker, 30, ext_fields=dead).ext_fields.get("offset")) != "1":
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return {"received": received, "dead": end}

    def orderly(self, name: str) -> Any:
        inbox = Inbox(6, fail=lambda body, seen: body == "ordered-2" and seen == 1)
        producer = self.producer(name)
        for i in range(5):
            producer.send_orderly(message(name, f"ordered-{i}"), 1)
        self.consumer(name, inbox, orderly=True)
        return [delivery[0] for delivery in inbox.wait()]

    def broadcast(self, name: str) -> Any:
        inboxes = [Inbox(3), Inbox(3)]
        for i, inbox in enumerate(inboxes):
            self.consumer(name, inbox, instance=f"{name}-{i}", message_model=MessageModel.BROADCASTING)
        producer = self.producer(name)
        # A broadcast consumer begins at the end of each queue as it finds it, some time after its start.
        greetings = {"hello-0", "hello-1"}
        deadline = time.monotonic() + WAIT_S
        while any(greetings - inbox.bodies() for inbox in inboxes) and time.monotonic() < deadline:
            for queue in range(2):
                producer.send_orderly(message(name, f"hello-{queue}"), queue)
            time.sleep(0.1)
        for i in range(3):
            producer.send_sync(message(name, f"{i}"))
        while any({"0", "1", "2"} - inbox.bodies() for inbox in inboxes) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [sorted(m[0] for m in inbox.received if m[0] not in greetings) for inbox in inboxes]

    def pulls(self, name: str) -> Any:
        producer = self.producer(name)
        for i in range(6):
            producer.send_sync(message(name, f"{i}", tag="ab"[i % 2]))
        consumer = PullConsumer(f"{name}-group")
        consumer.set_namesrv_addr(self.namesrv)
        consumer.start()
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                found = sorted(m.body.decode() for m in consumer.pull(name))
                break
            except ConsumerException:
                # It waits 3 s for the route, and gives up.
                assert time.monotonic() < deadline
        return {
            "all": found,
            "again": [m.body.decode() for m in consumer.pull(name)],
        }

    def refused(self, name: str) -> Any:
        producer = self.producer(name, max_message_size=8 << 20)
        outcome = "sent"
        try:
            # Text of which 5 MB are left after compression.
            producer.send_sync(message(name, base64.b64encode(os.urandom(5 << 20)).decode()))
        except Exception as error:
            outcome = type(error).__name__
        # Nothing was stored, and the next goes through.
        return [outcome, producer.send_orderly(message(name, "small"), 0).offset]

    def seen(self, name: str) -> Any:
        inbox = Inbox(1)
        self.producer(name).send_sync(message(name, "seen"))
        self.consumer(name, inbox)
        inbox.wait()
        group = {"consumerGroup": f"{name}-group"}
        connections = json.loads(ask(self.broker, CONSUMER_CONNECTIONS, ext_fields=group).body)
        client = connections["connectionSet"][0]["clientId"]
        asked = group | {"clientId": client, "jstackEnable": "false"}
        info = ask(self.broker, RUNNING_INFO, ext_fields=asked)
        return {"connections": connections, "running": [info.code, info.body.decode()]}


def main(name: str, topic: str, namesrv: str, broker: str) -> None:
    print(json.dumps(getattr(Scenes(namesrv, broker), name)(topic)), flush=True)
    # The library's threads do not all end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
