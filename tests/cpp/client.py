"""Run by the tests in a process of its own: drives the C++ client and prints what happened as one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer

TOPIC = "CppTopic"


def message(body: str, tag: str = "TagA") -> Message:
    made = Message(TOPIC)
    made.set_body(body)
    made.set_tags(tag)
    made.set_keys("k1")
    made.set_property("p1", "v1")
    return made


def main(namesrv: str) -> None:
    received: list[list[object]] = []
    all_there = threading.Event()
    failed: list[str] = []

    def take(m: Any) -> None:
        body = m.body.decode()
        if body == "fails once" and not failed:
            failed.append(body)
            raise RuntimeError("this delivery fails")
        key = m.keys.decode() if m.keys else None
        value = m.get_property("p1")
        received.append([body, m.tags.decode(), key, value.decode() if value else None, m.reconsume_times])
        if len(received) == 8:
            all_there.set()

    producer = Producer("cpp-producers")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    sync = [producer.send_sync(message(body, tag)) for body, tag in (("plain", "TagA"), ("fails once", "TagB"))]
    producer.send_sync(message("filtered out", "TagC"))
    orderly = [producer.send_orderly(message(f"ordered-{i}"), 1) for i in range(3)]
    producer.send_oneway(message("one-way"))
    producer.send_batch([message(f"batch-{i}") for i in range(2)])
    consumer = PushConsumer("cpp-consumers")
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(TOPIC, take, "TagA || TagB")
    consumer.start()
    all_there.wait(45)
    print(
        json.dumps(
            {
                "sync": [int(r.status) for r in sync],
                "orderly": [int(r.status) for r in orderly],
                "orderly_offsets": [r.offset - orderly[0].offset for r in orderly],
                "received": received,
            }
        ),
        flush=True,
    )
    # The library's threads do not all end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
